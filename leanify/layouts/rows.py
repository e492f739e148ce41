"""Find the table of a split and read its rows: CSV, TSV, JSON, Parquet, folders of texts or of ``datasets``."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sized
from contextlib import suppress
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any, TextIO

from leanify.core.errors import DataError
from leanify.core.files.reading import MAX_LINE, not_utf8, open_text, preview, read_json, text_encoding
from leanify.layouts import columns, guessing, hub
from leanify.layouts.faults import Faults
from leanify.layouts.image_files import LOOKED_UP, class_folders, find_picture_folder, find_split_folder, has_tables
from leanify.layouts.split_names import synonyms
from leanify.layouts.text_folders import find_class_texts, read_class_texts

Row = dict[str, Any]
QUOTED_CELL = re.compile(r'"(?:[^"]|"")*"')  # a cell in quotes, with quotes inside doubled
FASTTEXT_LABEL = re.compile(rf"(?:(?<=\s)|^){columns.FASTTEXT_MARK}(\S+)")
EXCEL_MARK = re.compile(r"sep=(.)\s*")  # a first line that names the delimiter
HEADER_ROWS = 200  # rows that show whether the first line is a header
MAX_COLUMNS = 10_000
MANY_LINES = 5  # lines that look like rows, at least, of which a quoted cell cannot consist


def find_table(path: Path, split: str) -> Path | None:
    """The table of a split, or None; a file, or a folder's only table, is the table of train.

    Without a file it is a folder, which `datasets` saved, or which has the split's texts in folders of their classes.
    """
    if path.is_file():
        return path if split == "train" and columns.is_table(path) else None
    if hub.is_saved(path):
        return hub.find_saved(path, split)
    file = columns.find_split_file(path, split, columns.TABLES)
    if file is None and split == "train":
        file = columns.only_file(path, columns.TABLES)
    if file is not None:
        return file
    # the only table in the split's folder (ImageFolder's metadata), or the split's in a folder of tables
    folder = find_split_folder(path, split)
    files = []
    if folder is not None:
        files += [columns.find_split_file(folder, split, columns.TABLES), columns.only_file(folder, columns.TABLES)]
    for inner in class_folders(path) if path.is_dir() else ():
        if has_tables(inner.name):
            files.append(columns.find_split_file(inner, split, columns.TABLES))
    return next(filter(None, files), None) or find_class_texts(path, split)


def labels_pictures(table: Path, place: Path, split: str) -> bool:
    """Whether a table beside folders of pictures has the labels, and not the folders.

    Either its name is its split's, or its pictures lie in one of the folders, which the others may repeat
    (images_original, images_compressed).
    """
    if columns.split_stem(table).lower() in synonyms(split):
        return True
    rows = []
    with suppress(DataError):  # another table, which is not read
        rows = [row for _, row in islice(read_table(table, Faults(skip=True)), LOOKED_UP)]
    picture = columns.match_column(columns.PICTURES, list(rows[0])) if rows else None
    folder = find_picture_folder(table, [row.get(picture) for row in rows]) if picture is not None else None
    return folder is not None and folder.place in class_folders(place)


def read_table(path: Path, faults: Faults, choose: hub.Choice | None = None) -> Iterator[tuple[str, Row]]:
    """Yield (place, {column: cell}) for every row; from Parquet the columns that ``choose`` takes.

    A row that is not UTF-8, not an object, or longer than the header is a fault. Where the table has a column for each
    class, the column ``label`` has the row's. Raises DataError for no table, and for one of several splits.
    """
    rows = _read_rows(path, faults, choose)
    first_rows = list(islice(rows, HEADER_ROWS))
    for _, row in first_rows[:1]:  # before all cells of many columns are looked at
        _check_count(path, row)
    classes = guessing.class_columns([row for _, row in first_rows])
    column, splits = None, set[str]()
    for number, (place, row) in enumerate(chain(first_rows, rows)):
        _check_count(path, row)
        column = column if number else columns.match_column(columns.SPLIT_COLUMNS, list(row))
        if column is not None:
            splits.add(str(row.get(column)).lower())
            column = column if splits <= columns.SPLIT_NAMES else None  # of another meaning
        if column is not None and len(splits) > 1:
            raise DataError(
                f"{path} has rows of several splits (column {column}: {preview(sorted(splits))}): write a table for "
                "each, such as train.csv and validation.csv, or remove the column to use all rows"
            )
        # a column for each class: the one with a 1 is the label
        marked = guessing.classes_of(row, classes)
        if classes and len(marked) != 1:
            faults.record(f"{path}, {place} has {len(marked)} of the classes {preview(classes)}, not one")
            continue
        yield place, (row | {"label": marked[0]} if classes else row)


def _check_count(path: Path, names: Sized) -> None:
    """Raise DataError for more columns than a table of texts or pictures has: each row takes time for all of them."""
    if len(names) > MAX_COLUMNS:
        raise DataError(f"{path} has {len(names):,} columns, and at most {MAX_COLUMNS:,} are read; keep those you need")


def _read_rows(path: Path, faults: Faults, choose: hub.Choice | None) -> Iterator[tuple[str, Row]]:
    suffix = path.suffix.lower()
    if hub.is_saved(path):
        yield from number_rows(chain.from_iterable(hub.load_saved(path).values()))
        return
    if path.is_dir():
        yield from read_class_texts(path, faults)
        return
    if suffix == ".parquet":
        shards = columns.find_shards(path)
        yield from number_rows(chain.from_iterable(hub.read_parquet(shard, choose) for shard in shards))
        return
    limit = csv.field_size_limit(MAX_LINE)  # of a cell; its default is 131,072
    read = _read_cells
    if suffix in columns.JSON:
        read = _read_json
    elif suffix not in columns.TABLES:
        read = {"cells": _read_cells, "pictures": _read_list}.get(str(columns.text_table(path)), _read_fasttext)
    try:
        # bytes that are not UTF-8 become lone surrogates, by which their row is found
        with open_text(path, DataError, text_encoding(path, DataError), "surrogateescape", "") as file:
            yield from read(path, file, faults)
    except (csv.Error, OSError, UnicodeError) as error:
        raise DataError(f"{path} cannot be read as a {suffix[1:]} table: {error}") from error
    finally:
        csv.field_size_limit(limit)


def number_rows(rows: Iterable[Row]) -> Iterator[tuple[str, Row]]:
    return ((f"row {number}", row) for number, row in enumerate(rows, 1))


def _read_fasttext(path: Path, file: TextIO, faults: Faults) -> Iterator[tuple[str, Row]]:
    """Rows of text and label from lines with labels anywhere; several labels of a line are a list."""
    for number, line in enumerate(file, 1):
        where = f"{path}, line {number}"
        if not line.strip():
            continue
        names = FASTTEXT_LABEL.findall(line)
        if not _is_text(line):
            faults.record(f"{where} {not_utf8(path)}")
        elif not names:
            faults.record(f"{where} has no {columns.FASTTEXT_MARK}")
        else:
            text = FASTTEXT_LABEL.sub("", line).strip()
            label = names[0] if len(names) == 1 else names
            yield f"line {number}", {"text": text, "label": label}


def _read_list(path: Path, file: TextIO, faults: Faults) -> Iterator[tuple[str, Row]]:
    """Rows of image and label from lines of a path and a label, as lists of ImageNet for Caffe are."""
    for number, line in enumerate(file, 1):
        cells = columns.PATH_LABEL.split(line.strip(), maxsplit=1)
        if len(cells) == 2:
            yield f"line {number}", {"image": cells[0], "label": cells[1].strip()}
        elif line.strip():
            faults.record(f"{path}, line {number} is not a path and a label")


def _read_json(path: Path, file: TextIO, faults: Faults) -> Iterator[tuple[str, Row]]:
    """Rows of a list, of one object, or of lines. The first has the keys of all that are looked at, as a header has."""
    # a list, an object alone, or an object a line
    first, second = (line.strip() for line in (next(iter(file), ""), next(iter(file), "")))
    file.seek(0)
    is_whole = path.suffix.lower() == ".json" and (first.startswith("[") or not first.endswith("}") or not second)
    content = read_json(path, DataError) if is_whole else None
    if isinstance(content, dict):
        content = _rows_of_object(content)
    values = number_rows(content) if isinstance(content, list) else _read_json_lines(path, file, faults)

    def read_objects() -> Iterator[tuple[str, Row]]:
        for place, value in values:
            if isinstance(value, dict):
                yield place, value
            else:
                faults.record(f"{path}, {place} is {json.dumps(value)[:40]}, not a table of columns")

    rows = read_objects()
    first_rows = list(islice(rows, HEADER_ROWS))
    missing = dict.fromkeys(chain(*(row for _, row in first_rows)))
    for place, row in chain(first_rows, rows):
        yield place, missing | row
        missing = {}


def _rows_of_object(content: dict[str, Any]) -> list[Any]:
    """The rows of a table that is one object; an object of another form is a row by itself."""
    values = list(content.values())
    # by the names of pictures: a class, or an object with it
    pictures = [name for name in content if name.lower().endswith(columns.IMAGES)]
    if 2 * len(pictures) > len(content):
        cells = [content[name] if isinstance(content[name], dict) else {"label": content[name]} for name in pictures]
        return [{"image": name} | cell for name, cell in zip(pictures, cells, strict=True)]
    # rows below one of its keys, as lists or, by pandas' orient="split", with the columns beside them
    tables = [value for value in values if isinstance(value, list) and value and isinstance(value[0], dict)]
    if len(tables) == 1:
        return tables[0]
    header, rows = content.get("columns"), content.get("data")
    if isinstance(header, list) and isinstance(rows, list) and all(isinstance(row, list) for row in rows):
        return [dict(zip_longest(map(str, header), row[: len(header)])) for row in rows]
    # an object a row, or a column, as DataFrame.to_json writes them
    if values and all(isinstance(value, dict) for value in values):
        keys = values[0].keys()
        if len(keys) < len(values):
            return values
        if all(value.keys() == keys for value in values):
            return [{name: content[name][key] for name in content} for key in keys]
    # a list of cells a column
    lists = [
        value for value in values if isinstance(value, list) and not any(isinstance(x, (list, dict)) for x in value)
    ]
    if len(lists) == len(values) > 1 and len(set(map(len, lists))) == 1 < len(lists[0]):
        return [dict(zip(content, cells, strict=True)) for cells in zip(*lists, strict=True)]
    return [content]


def _read_json_lines(path: Path, file: TextIO, faults: Faults) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        if not _is_text(line):
            faults.record(f"{path}, line {number} {not_utf8(path)}")
            continue
        try:
            yield f"line {number}", json.loads(line)
        except (ValueError, RecursionError) as error:
            faults.record(f"{path}, line {number} is not JSON ({error})")


def _read_cells(path: Path, file: TextIO, faults: Faults) -> Iterator[tuple[str, Row]]:
    # the delimiter, by the first line; quotes count if they enclose cells
    first = next(iter(file), "")
    usual = "\t" if path.suffix.lower() == ".tsv" else ","
    mark = EXCEL_MARK.fullmatch(first)
    delimiter = mark[1] if mark else _find_delimiter(file, first, usual, path.suffix.lower() in columns.TABLES)
    is_quoted = len(delimiter) == 1 and delimiter != "@"
    is_quoted = is_quoted and (delimiter != "\t" or _has_quoted_cells(file, first.count("\t")))
    file.seek(0)
    rows = _read_quoted(path, file, delimiter, faults) if is_quoted else _read_unquoted(file, delimiter)
    # the columns' names
    header, names = next(rows, (1, []))
    if mark:
        header, names = next(rows, (2, []))
    _check_count(path, names)
    if not _is_text("".join(names)):
        raise DataError(f"{path}, line {header} {not_utf8(path)}")
    # a first line that is a sample like the others gives no names
    first_rows = [(header, names), *islice(rows, HEADER_ROWS)]
    if guessing.is_headless(names, [cells for _, cells in first_rows[1:]]):
        names = [f"column {number}" for number in range(1, len(names) + 1)]
    else:
        del first_rows[0]
    if twice := next((name for name, times in Counter(names).items() if name and times > 1), None):
        raise DataError(f"{path} has more than one column {twice}")
    # the rows; a short one has no value in its last columns
    for number, cells in chain(first_rows, rows):
        where = f"{path}, line {number}"
        if any(cells[len(names) :]):
            faults.record(f"{where} has {len(cells)} cells for {len(names)} columns")
        elif not _is_text("".join(cells)):
            faults.record(f"{where} {not_utf8(path)}")
        elif cells:
            yield f"line {number}", dict(zip_longest(names, cells[: len(names)]))


def _find_delimiter(file: TextIO, first: str, usual: str, is_table: bool) -> str:
    """The delimiter of a table: one that the first lines agree on, or the first usual one in its header."""
    lines = [first, *(line for line in islice(file, HEADER_ROWS) if line.strip())]
    file.seek(0)
    next(iter(file), "")
    if mark := columns.even_mark(lines, columns.FEW_MARKS if is_table else columns.TEXT_MARKS):
        return mark
    header = QUOTED_CELL.sub("", first)
    return next((mark for mark in (usual, ";", "\t", ",", "|") if mark in header), usual)


def _has_quoted_cells(file: TextIO, tabs: int) -> bool:
    """Whether quotes enclose cells of a table with tabs. In GLUE's tables they do not, and would join distant rows.

    They do not if every line has the same number of tabs, and a cell begins with a quote that does not enclose it.
    """
    has_stray_quote = False
    for line in file:
        if line.strip() and line.count("\t") != tabs:
            return True
        if '"' in line and not has_stray_quote:
            cells = line.rstrip("\r\n").split("\t")
            has_stray_quote = any(cell.startswith('"') and not QUOTED_CELL.fullmatch(cell) for cell in cells)
    return not has_stray_quote


class _Lines(Iterator[str]):
    """The lines of a file. Those that wait, the next one last, are read again; the record has those that were read."""

    def __init__(self, file: TextIO) -> None:
        self.file = file
        self.waiting: list[str] = []
        self.record: list[str] = []

    def __next__(self) -> str:
        self.record.append(self.waiting.pop() if self.waiting else next(self.file))
        return self.record[-1]


def _read_quoted(path: Path, file: TextIO, delimiter: str, faults: Faults) -> Iterator[tuple[int, list[str]]]:
    """The number of each row's last line, and its cells; quoted ones may hold delimiters and ends of lines.

    A quote that is never closed, or first by a quote of another row, would join all rows between: it is a fault, and
    the next line is read as a row of its own.
    """
    lines, number, width = _Lines(file), 0, 0
    for cells in csv.reader(lines, delimiter=delimiter, skipinitialspace=True):
        # one row, or lines that a stray quote joined: those after the first are read again
        joined_lines, lines.record = lines.record, []
        width = width or len(cells)
        if (len(joined_lines) > 1 or len(cells) < width) and not _is_one_row(joined_lines, delimiter, width):
            lines.waiting += reversed(joined_lines[1:])
            number += 1
            quotation = joined_lines[0].strip()[:40]
            faults.record(f"{path}, line {number} has a quote that does not enclose a cell ({quotation})")
        else:
            number += len(joined_lines)
            yield number, cells


def _is_one_row(lines: list[str], delimiter: str, width: int) -> bool:
    """Whether lines that quotes join are one row of a table with ``width`` columns."""
    try:
        if len(list(csv.reader(lines, delimiter=delimiter, skipinitialspace=True, strict=True))) != 1:
            return False
    except csv.Error:
        return False
    # lines inside a cell that have all of the columns, and one of few values at an end, as labels are, are rows
    inner = [line.strip().split(delimiter) for line in lines[1:-1]]
    if width < 2 or len(inner) < MANY_LINES or any(len(cells) != width for cells in inner):
        return True
    distinct = min(len({cells[0] for cells in inner}), len({cells[-1] for cells in inner}))
    return distinct > len(inner) / 2


def _read_unquoted(file: TextIO, mark: str) -> Iterator[tuple[int, list[str]]]:
    """The number of each line, and its cells between marks; a text before its label may have an @ of its own."""
    most = 1 if mark == "@" else -1
    for number, line in enumerate(file, 1):
        yield number, (line.rstrip("\r\n").rsplit(mark, most) if line.strip() else [])


def _is_text(text: str) -> bool:
    """Whether no character is half of a surrogate pair, as a byte that is not UTF-8 is after decoding."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
