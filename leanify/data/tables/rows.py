"""Read the rows of a table of the user's own: CSV, TSV, JSON lines, Parquet, CoNLL. Does not import torch."""

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
from leanify.data.tables import conll, guessing
from leanify.data.tables.columns import CONLL, shards_of
from leanify.errors import DataError
from leanify.runs.files import opened, opened_text

Row = dict[str, Any]
LONGEST = 2**31 - 1  # characters per cell; the csv module's default (131,072) is too small for long documents
AHEAD = 200  # rows that show whether the first line is a header
WIDE = (b"\xff\xfe", b"\xfe\xff")  # byte order marks of UTF-16 and, the first, UTF-32


def rows_of_table(path: Path, faults: Faults, columns: Sequence[str] | None = None) -> Iterator[tuple[str, Row]]:
    """Yield (place, {column: cell}) for every row of a table; from Parquet only the first of ``columns`` that it has.

    A row that is no UTF-8 text, no object, or longer than the header is a fault. Raises DataError if the file is not
    such a table.
    """
    if path.suffix == ".parquet":
        yield from numbered(row for shard in shards_of(path) for row in hub.parquet(shard, columns))
        return
    if path.suffix in CONLL:
        yield from conll.rows(path, faults)
        return
    limit = csv.field_size_limit(LONGEST)
    try:
        if _start(path).startswith(WIDE):
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


def _start(path: Path) -> bytes:
    with opened(path, DataError) as file:
        return file.read(2)


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
    reader = csv.reader(chain([first], lines), delimiter=_delimiter(path, first))
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


def _delimiter(path: Path, header: str) -> str:
    """What stands between cells: a comma, a tab in .tsv files; where the header has none, what it has instead."""
    usual = "\t" if path.suffix == ".tsv" else ","
    return next((mark for mark in (usual, ";", "\t", ",") if mark in header), usual)


def _is_text(text: str) -> bool:
    """Whether no character is half of a surrogate pair, as a byte that is not UTF-8 is after decoding."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
