"""Read delimited files strictly: a malformed row is an error that names the file and the line."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from leanify.errors import DataError

LONGEST = 2**31 - 1  # characters per cell; the csv module's default (131,072) is too small for long documents


def rows(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[int, list[str]]]:
    """Yield each row of a CSV file: the number of its last line, and its cells in these columns. Raises DataError."""
    limit = csv.field_size_limit(LONGEST)
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.reader(file, strict=True)
            header = next(reader, [])
            if missing := [name for name in columns if name not in header]:
                found = ", ".join(header[:5]) or "nothing"
                raise DataError(f"{path}, line 1: no column {' or '.join(missing)}; found {found}")
            places = [header.index(name) for name in columns]
            for cells in reader:
                if len(cells) != len(header):
                    raise DataError(f"{path}, line {reader.line_num}: {len(cells)} cells for {len(header)} columns")
                yield reader.line_num, [cells[place] for place in places]
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: {error}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text: {error.reason}") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    finally:
        csv.field_size_limit(limit)


def label_of(text: str, classes: int, where: str) -> int:
    """Parse a class index (``1`` or ``1.0``); ``where`` names file and line. Raises DataError if out of range."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if value not in range(classes):
        raise DataError(f"{where}: the label is {text[:40]!r}; expected one of {', '.join(map(str, range(classes)))}")
    return int(value)


def split_file(folder: Path, names: tuple[str, ...]) -> Path:
    """Return the first of these files that exists in the folder. Raises DataError that lists what is there."""
    if not folder.is_dir():
        raise DataError(f"{folder} is a file; name the folder that contains {' or '.join(names)}")
    found = next((folder / name for name in names if (folder / name).is_file()), None)
    if found is None:
        here = ", ".join(sorted(entry.name for entry in folder.iterdir())[:5]) or "nothing"
        raise DataError(f"{folder} has no {' or '.join(names)}; found {here}")
    return found
