"""Try a tokenizer's files in a process of its own before this one reads them.

The library that reads them is written in Rust. A damaged table makes it panic, or end the process; rules that replace
one character by forty, one after another, fill any memory. Neither can be caught here, so a fork with limits reads them
first, in the same way. What came of it is cached by the files' contents.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from leanify.core import bounds
from leanify.core.errors import DataError
from leanify.core.files import cache
from leanify.core.files.reading import check_regular, check_size, open_file, read_object
from leanify.sources.side_files import PATTERNS
from leanify.upstream.libraries import import_transformers

FILES = ("config.json", "tokenizer*", *PATTERNS)  # all that transformers may read to make a tokenizer
PROBE = "The quick brown fox; Ünïcode, 日本語, 🙂, 12.5 %\n\tjumps over the lazy dog. " * 4


def try_first(folder: Path, load: Callable[[], Any]) -> None:
    """Raise DataError if loading a folder's tokenizer, or reading a text with it, goes beyond the bound or fails."""
    # transformers may be told to read another file than tokenizer.json
    check_regular(folder, DataError)
    files = sorted({path for pattern in FILES for path in folder.glob(pattern) if path.is_file()})
    for path in files:
        check_size(path, DataError)
    names = read_object(folder / "tokenizer_config.json", DataError).get("fast_tokenizer_files") or []
    file_names = {path.name for path in files}
    if not isinstance(names, list) or not file_names.issuperset(name for name in names if isinstance(name, str)):
        raise DataError(
            f"{folder}/tokenizer_config.json names fast_tokenizer_files that are no tokenizer files beside it"
        )
    # the same files were tried before
    digest = hashlib.sha256()
    for path in files:
        with open_file(path, DataError) as file:
            digest.update(path.name.encode() + hashlib.file_digest(file, "sha256").digest())
    record = cache.home() / "tokenizers" / f"{digest.hexdigest()[:32]}.json"
    if not cache.read_value(record, "harmless", bool):
        with contextlib.suppress(Exception):  # what both import is imported once, before the fork
            import_transformers().AutoConfig.from_pretrained(str(folder), trust_remote_code=False)
        bounds.call(lambda: bool(load()(PROBE)), f"the tokenizer in {folder}")
        with contextlib.suppress(OSError):  # it is tried again next time
            cache.write_value(record, "harmless", True)
