"""CoNLL files: one token and its tag per line, blank lines between sentences. Does not import torch.

A line's first cell is the token and its last one the tag; cells are separated by tabs, or by blanks if there is no tab.
Lines that begin with ``-DOCSTART-`` separate documents.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from leanify.data.faults import Faults
from leanify.errors import DataError
from leanify.runs.files import opened_text

Row = dict[str, list[str]]  # tokens and tags, of the same length


def rows(file: Path, faults: Faults) -> Iterator[tuple[str, Row]]:
    """Yield (place, tokens and tags) of every sentence. Raises DataError for a line without a tag, unless skipped."""
    try:
        with opened_text(file, DataError, newline="\n") as lines:
            yield from _sentences(file, lines, faults)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _sentences(file: Path, lines: Iterator[str], faults: Faults) -> Iterator[tuple[str, Row]]:
    first, tokens, tags = 1, list[str](), list[str]()
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("-DOCSTART-"):
            if tokens:
                yield f"line {first}", {"tokens": tokens, "tags": tags}
            first, tokens, tags = number + 1, [], []
            continue
        cells = text.split("\t") if "\t" in text else text.split()
        if len(cells) < 2:
            faults.found(f"{file}, line {number}: {text[:40]!r} is one cell; a line needs a token and a tag")
            continue
        tokens.append(cells[0].strip())
        tags.append(cells[-1].strip())
    if tokens:
        yield f"line {first}", {"tokens": tokens, "tags": tags}
