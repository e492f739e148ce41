"""Read small files from untrusted sources: regular files only, with limits on size and JSON nesting."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from leanify.errors import LeanifyError, SourceError

LARGEST = 64 << 20  # bytes; the largest config.json and tokenizer.json in use are a few MB to 30 MB


def read_text(path: Path, error: type[LeanifyError] = SourceError) -> str:
    """Return a small text file's content. Raises ``error`` for a device, a FIFO, over 64 MB, or invalid UTF-8."""
    if not path.is_file():
        raise error(f"{path} is not a regular file" if path.exists() else f"{path} does not exist")
    try:
        size = path.stat().st_size
        if size > LARGEST:
            raise error(f"{path} has {size >> 20} MB; at most {LARGEST >> 20} MB are accepted for a file of this kind")
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as caught:
        raise error(f"{path} is not text in UTF-8: {caught.reason} at byte {caught.start}") from caught
    except OSError as caught:
        raise error(f"{path} cannot be read: {caught.strerror or caught}") from caught


def check_regular(folder: Path, error: type[LeanifyError] = SourceError, below: bool = False) -> None:
    """Raise ``error`` if a folder contains a pipe, a socket or a device; with ``below``, search subfolders too.

    Upstream's loaders open whatever they find: a pipe would block for ever, and /dev/zero never ends.
    """
    for path in folder.rglob("*") if below else folder.iterdir():
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise error(f"{path} is a pipe, a socket or a device, not a file; remove it")


def read_json(path: Path, error: type[LeanifyError] = SourceError) -> Any:
    """Parse a small JSON file. Raises ``error`` as `read_text` does, and for invalid or too deeply nested JSON.

    transformers writes an infinite number as {"__float__": "Infinity"}, since JSON has no word for it.
    """
    try:
        return json.loads(read_text(path, error), object_hook=_special_float)
    except ValueError as caught:  # JSONDecodeError, or an integer of too many digits
        raise error(f"{path} is not JSON: {caught}") from caught
    except RecursionError as caught:
        raise error(f"{path} cannot be read: its JSON is nested too deeply") from caught


def _special_float(found: dict[str, Any]) -> Any:
    """The number that an object of a parsed file stands for; any other object as it is."""
    tag = found.get("__float__")
    return float(tag) if len(found) == 1 and tag in ("Infinity", "-Infinity", "NaN") else found
