"""Reading small files that somebody else wrote: regular ones, of a sensible size, JSON that is not too deep."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from leanify.errors import LeanifyError, SourceError

LARGEST = 64 << 20  # bytes; the largest config.json and tokenizer.json in use are a few MB to 30 MB


def read_text(path: Path, error: type[LeanifyError] = SourceError) -> str:
    """A small text file. Raises ``error`` for a device, a FIFO, a file over 64 MB, or bytes that are not UTF-8."""
    if not path.is_file():
        raise error(f"{path} is not a regular file" if path.exists() else f"{path} does not exist")
    try:
        size = path.stat().st_size
        if size > LARGEST:
            raise error(f"{path} has {size >> 20} MB; a file of this kind has at most {LARGEST >> 20} MB")
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as caught:
        raise error(f"{path} is not text in UTF-8: {caught.reason} at byte {caught.start}") from caught
    except OSError as caught:
        raise error(f"{path} cannot be read: {caught.strerror or caught}") from caught


def check_regular(folder: Path, error: type[LeanifyError] = SourceError, below: bool = False) -> None:
    """Raise ``error`` for a pipe, a socket or a device in a folder, ``below`` also further down.

    Whoever opens a pipe waits for ever, and /dev/zero has no end; upstream's loaders open what they find.
    """
    for path in folder.rglob("*") if below else folder.iterdir():
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise error(f"{path} is a pipe or a device, where a file is expected; remove it")


def read_json(path: Path, error: type[LeanifyError] = SourceError) -> Any:
    """The JSON in a small file. Raises ``error`` as `read_text` does, and for what is not JSON."""
    try:
        return json.loads(read_text(path, error))
    except json.JSONDecodeError as caught:
        raise error(f"{path} is not JSON: {caught}") from caught
    except RecursionError as caught:
        raise error(f"{path} is JSON nested too deep to be read") from caught
