"""Try a tokenizer's files in a process of its own before this one reads them.

The library that reads them is written in Rust. A damaged table makes it panic, or end the process; rules that replace
one character by forty, one after another, fill any memory. Neither can be caught here, so a child with limits of memory
and time loads the tokenizer and encodes a text first. The result is cached by the files' contents.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from leanify.core.errors import DataError
from leanify.core.files import cache
from leanify.core.files.reading import open_file, read_object

MAX_GROWTH = 64  # maximum characters per input character; "ﷺ" becomes 18 under NFKC
MAX_PREFIX = 1000  # characters that rules put before a text
SECONDS = 60  # of processor time; the largest tokenizer.json in use takes 2
MEMORY = 4 << 30  # bytes
PARSED_BY_RUST = ("tokenizer.json", "*.model", "*.spm")
PROBE = "The quick brown fox; Ünïcode, 日本語, 🙂, 12.5 %\n\tjumps over the lazy dog. " * 4

CHILD = """
import resource, sys
for limit, value in ((resource.RLIMIT_DATA, int(sys.argv[2])), (resource.RLIMIT_CPU, int(sys.argv[3]))):
    hard = resource.getrlimit(limit)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(limit, (value, hard))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
text = sys.stdin.buffer.read().decode()
if sys.argv[1].endswith(".json"):
    from tokenizers import Tokenizer
    ids = Tokenizer.from_file(sys.argv[1]).encode(text).ids
else:
    from transformers import AutoTokenizer
    ids = AutoTokenizer.from_pretrained(sys.argv[1], trust_remote_code=False)(text)["input_ids"]
sys.exit(3 if len(ids) > 64 * len(text) else 0)
"""


def check_tokenizer(folder: Path) -> None:
    """Raise DataError if a folder's tokenizer grows texts without bound, or ends the process that reads it."""
    paths = chain.from_iterable(sorted(folder.glob(pattern)) for pattern in PARSED_BY_RUST)
    files = [path for path in paths if path.is_file()]
    if not files:
        return
    digest = hashlib.sha256()
    for path in files:
        with open_file(path, DataError) as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    record = cache.home() / "tokenizers" / f"{digest.hexdigest()[:32]}.json"
    if cache.read_value(record, "harmless", bool):
        return
    if files[0].name == "tokenizer.json":
        _check_growth(files[0])
        _try_in_child(files[0], MEMORY)
    else:  # transformers converts a SentencePiece model: slower to import, and with torch's libraries in memory
        _try_in_child(folder, 2 * MEMORY)
    with contextlib.suppress(OSError):  # it is tried again next time
        cache.write_value(record, "harmless", True)


def _check_growth(file: Path) -> None:
    """Raise DataError where a normalizer's rules make many characters of one, together."""
    growth, prefix = 1.0, 0
    for rule in _rules(read_object(file, DataError).get("normalizer")):
        growth *= max(1.0, _rule_growth(file, rule))
        prefix += len(str(rule.get("prepend", "")))
        if growth > MAX_GROWTH or prefix > MAX_PREFIX:
            raise DataError(f"{file} has rules that make over {MAX_GROWTH} characters of one: no text is read with it")


def _rules(normalizer: Any) -> Iterator[Mapping[str, Any]]:
    """The rules of a normalizer, in order, including rules of nested sequences."""
    pending = [normalizer]
    while pending:
        rule = pending.pop()
        if not isinstance(rule, Mapping):
            continue
        parts = rule.get("normalizers")
        if isinstance(parts, list):
            pending += reversed(parts)
        yield rule


def _rule_growth(file: Path, rule: Mapping[str, Any]) -> float:
    """How many characters, or bytes, a rule makes of one at most; 1 for kinds that have no text of their own."""
    if "precompiled_charsmap" in rule:
        try:
            table = base64.b64decode(rule["precompiled_charsmap"])
        except (ValueError, TypeError) as error:
            raise DataError(f"{file} has a damaged table of characters: {error}") from error
        start = 4 + int.from_bytes(table[:4], "little")  # behind the trie, whose length comes first
        if len(table) < 4 or start > len(table) or start % 4:
            raise DataError(f"{file} has a damaged table of characters: it is cut off")
        return max(map(len, table[start:].split(b"\0"))) / 3
    pattern = rule.get("pattern")
    text = pattern.get("String", "") if isinstance(pattern, Mapping) else ""
    return len(str(rule.get("content", ""))) / max(1, len(str(text)))


def _try_in_child(place: Path, memory: int) -> None:
    """Load a tokenizer and encode a text in a process with limits. Raises DataError if it does not end well."""
    variables = {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "MALLOC_ARENA_MAX": "2"}
    # -P: no module of the current folder
    command = [sys.executable, "-P", "-c", CHILD, str(place.absolute()), str(memory), str(SECONDS)]
    try:
        process = subprocess.run(
            command, input=PROBE.encode(), capture_output=True, timeout=5 * SECONDS, env=os.environ | variables
        )
    except subprocess.TimeoutExpired as error:
        raise DataError(f"the tokenizer in {place} was still loading after {5 * SECONDS} s") from error
    except OSError as error:
        raise DataError(f"the tokenizer in {place} could not be tried in a process: {error.strerror}") from error
    if process.returncode == 0:
        return
    lines = process.stderr.decode(errors="replace").strip().splitlines()
    reason = lines[-1][:300] if lines else "it gave no reason"
    if process.returncode == 3:
        reason = f"it makes over {MAX_GROWTH} tokens of one character"
    elif process.returncode < 0:
        name = signal.Signals(-process.returncode).name
        reason = f"its reader ended by {name}, within {memory >> 30} GiB and {SECONDS} s: {reason}"
    raise DataError(f"the tokenizer in {place} cannot be read: {reason}")
