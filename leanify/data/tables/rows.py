"""Read the rows of a user's table: CSV, TSV, JSON lines, Parquet, CoNLL. Does not import torch.

A CoNLL file has one token and its tag per line, blank lines between sentences, and perhaps lines that begin
with ``-DOCSTART-``. A line's first cell is the token and its last one the tag; cells are separated by tabs,
or by blanks if there is no tab.
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any

from leanify.data import hub
from leanify.data.faults import Faults
from leanify.data.tables import guessing
from leanify.data.tables.columns import CONLL, shards_of
from leanify.errors import DataError
from leanify.runs.files import opened, opened_text

Row = dict[str, Any]
LONGEST = 2**31 - 1  # characters per cell; the csv module's default (131,072) is too small for long documents
AHEAD = 200  # rows that show whether the first line is a header
WIDE = (b"\xff\xfe", b"\xfe\xff")  # byte order marks of UTF-16 and, the first, UTF-32


def rows_of_table(path: Path, faults: Faults, columns: Sequence[str] | None = None) -> Iterator[tuple[str, Row]]:
    """Yield (place, {column: cell}) for every row; from Parquet the first of ``columns`` that it has.

    A row that is no UTF-8 text, no object, or longer than the header is a fault. Raises DataError for no
    table.
    """
    if path.suffix == ".parquet":
        yield from numbered(row for shard in shards_of(path) for row in hub.parquet(shard, columns))
        return
    if path.suffix in CONLL:
        yield from _of_conll(path, faults)
        return
    limit = csv.field_size_limit(LONGEST)
    try:
        with opened(path, DataError) as start:
            if start.read(2).startswith(WIDE):
                raise DataError(f"{path} is UTF-16 or UTF-32 text; save it as UTF-8")
        # bytes that are not UTF-8 become lone surrogates, by which their row is found; -sig drops a byte order mark
        with opened_text(path, DataError, "utf-8-sig", "surrogateescape", "") as file:
            yield from _of_json(path, file, faults) if path.suffix == ".jsonl" else _of_cells(path, file, faults)
    except (csv.Error, OSError) as error:
        raise DataError(f"{path} cannot be read as a {path.suffix[1:]} table: {error}") from error
    finally:
        csv.field_size_limit(limit)


def numbered(rows: Iterable[Row]) -> Iterator[tuple[str, Row]]:
    return ((f"row {number}", row) for number, row in enumerate(rows, 1))


def _of_conll(path: Path, faults: Faults) -> Iterator[tuple[str, Row]]:
    """The tokens and tags of every sentence; a line without a tag is a fault."""
    first, tokens, tags = 1, list[str](), list[str]()
    try:
        with opened_text(path, DataError, newline="\n") as lines:
            for number, line in enumerate(chain(lines, [""]), 1):
                text = line.strip()
                cells = text.split("\t") if "\t" in text else text.split()
                if not text or text.startswith("-DOCSTART-"):
                    if tokens:
                        yield f"line {first}", {"tokens": tokens, "tags": tags}
                    first, tokens, tags = number + 1, [], []
                elif len(cells) < 2:
                    faults.found(f"{path}, line {number}: {text[:40]!r} is one cell; a line needs a token and a tag")
                else:
                    tokens.append(cells[0].strip())
                    tags.append(cells[-1].strip())
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _of_json(path: Path, lines: Iterable[str], faults: Faults) -> Iterator[tuple[str, Row]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        if not _is_text(line):
            faults.found(f"{where} is not UTF-8 text")
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            faults.found(f"{where} is not JSON ({error})")
            continue
        if isinstance(row, dict):
            yield f"line {number}", row
        else:
            faults.found(f"{where} is {json.dumps(row)[:40]}, not a table of columns")


def _of_cells(path: Path, lines: Iterable[str], faults: Faults) -> Iterator[tuple[str, Row]]:
    lines = iter(lines)
    first = next(lines, "")
    usual = "\t" if path.suffix == ".tsv" else ","
    delimiter = next((mark for mark in (usual, ";", "\t", ",") if mark in first), usual)
    reader = csv.reader(chain([first], lines), delimiter=delimiter)
    names = next(reader, [])
    if not _is_text("".join(names)):
        raise DataError(f"{path}, line {reader.line_num} is not UTF-8 text")
    rows = ((reader.line_num, cells) for cells in reader)
    ahead = [(reader.line_num, names), *islice(rows, AHEAD)]
    if guessing.is_headless(names, [cells for _, cells in ahead[1:]]):
        names = [f"column {number}" for number in range(1, len(names) + 1)]
    else:
        del ahead[0]
    if twice := next((name for name, times in Counter(names).items() if name and times > 1), None):
        raise DataError(f"{path} has more than one column {twice}")
    for number, cells in chain(ahead, rows):
        where = f"{path}, line {number}"
        if any(cells[len(names) :]):
            faults.found(f"{where} has {len(cells)} cells for {len(names)} columns")
        elif not _is_text("".join(cells)):
            faults.found(f"{where} is not UTF-8 text")
        elif cells:
            yield f"line {number}", dict(zip_longest(names, cells[: len(names)]))


def _is_text(text: str) -> bool:
    """Whether no character is half of a surrogate pair, as a byte that is not UTF-8 is after decoding."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
