"""The files of the Long-Range Arena's releases."""

from __future__ import annotations

from pathlib import Path

from leanify.errors import DataError


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
