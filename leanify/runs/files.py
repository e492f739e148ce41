"""Read files from untrusted sources: regular files only, with limits on size and JSON nesting.

A file is opened once; what the descriptor says is checked, and what it gives is read. A path that is checked
and then opened again may be another file by then.
"""

from __future__ import annotations

import io
import json
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from leanify.errors import LeanifyError, SourceError

OFTEN = 16  # links from one folder of data to the same other one that are followed
DIGITS = 300  # of an integer in JSON; floats hold no more than 308
KERNEL = ("/proc/", "/sys/")  # regular files by their kind; /proc/kmsg waits
LARGEST = 64 << 20  # bytes; the largest config.json and tokenizer.json in use are a few MB to 30 MB


def opened(path: Path, error: type[LeanifyError] = SourceError, largest: int | None = None) -> io.BufferedReader:
    """Open a regular file for reading. Raises ``error`` for anything else, and above ``largest`` bytes.

    A pipe or a device is refused before it is opened: opening one may wait, or do something.
    """
    handle = -1
    try:
        if stat.S_ISREG(path.stat().st_mode):
            handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        about = os.fstat(handle) if handle >= 0 else None
    except FileNotFoundError as caught:
        raise error(f"{path} does not exist") from caught
    except (OSError, ValueError) as caught:  # ValueError: a NUL in its name
        raise error(f"{path} cannot be read: {getattr(caught, 'strerror', None) or caught}") from caught
    if about is None or not stat.S_ISREG(about.st_mode):
        wrong = "is not a regular file"
    elif about.st_size == 0 and os.path.realpath(path).startswith(KERNEL):
        wrong = "is a file of the kernel, which may never end"
    elif largest is not None and about.st_size > largest:
        wrong = f"has {about.st_size >> 20:,} MB; at most {largest >> 20:,} MB are accepted for a file of this kind"
    else:
        return os.fdopen(handle, "rb")
    if handle >= 0:
        os.close(handle)
    raise error(f"{path} {wrong}")


def opened_text(
    path: Path,
    error: type[LeanifyError] = SourceError,
    encoding: str = "utf-8",
    errors: str | None = None,
    newline: str | None = None,
) -> TextIO:
    """`opened`, as text; decoding raises UnicodeDecodeError as it is read."""
    return io.TextIOWrapper(opened(path, error), encoding, errors, newline)


def lines_in(path: Path, error: type[LeanifyError] = SourceError, newline: str | None = None) -> Iterator[str]:
    """Yield the lines of a text file. Raises ``error`` as `opened` does, and for what is not UTF-8."""
    try:
        with opened_text(path, error, newline=newline) as file:
            yield from file
    except UnicodeDecodeError as caught:
        raise error(f"{path} is not UTF-8 text: {caught.reason} at byte {caught.start}") from None


def read_bytes(path: Path, error: type[LeanifyError] = SourceError, largest: int = LARGEST) -> bytes:
    """Return a small file's content. Raises ``error`` as `opened` does, also if the file grows meanwhile."""
    with opened(path, error, largest) as file:
        try:
            data = file.read(largest + 1)
        except OSError as caught:  # /proc/kmsg is a regular file that would wait
            raise error(f"{path} cannot be read: {caught.strerror or caught}") from caught
    if data is None or len(data) > largest:
        raise error(f"{path} is not a file of at most {largest >> 20:,} MB")
    return data


def read_text(path: Path, error: type[LeanifyError] = SourceError, largest: int = LARGEST) -> str:
    """Return a small text file's content. Raises ``error`` as `read_bytes` does, and for invalid UTF-8."""
    try:
        return read_bytes(path, error, largest).decode()
    except UnicodeDecodeError as caught:
        raise error(f"{path} is not text in UTF-8: {caught.reason} at byte {caught.start}") from caught


def check_size(path: Path, error: type[LeanifyError] = SourceError, largest: int = LARGEST) -> None:
    """Raise ``error`` unless a path is a regular file of at most ``largest`` bytes."""
    opened(path, error, largest).close()


def inside(folder: Path, name: str, error: type[LeanifyError] = SourceError) -> Path:
    """The path that a file of a folder names. Raises ``error`` if it leads out, also through links."""
    path, home = folder / name, folder.resolve()
    try:
        leads = path.resolve()
    except (OSError, RuntimeError, ValueError) as caught:  # links in a circle, a NUL
        raise error(f"{folder} names {name!r}, which cannot be followed: {caught}") from caught
    parts = Path(name).parts
    if Path(name).is_absolute() or ".." in parts or home not in leads.parents:
        raise error(f"{folder} names {name!r}, which leads out of it, to {leads}; put what it names into the folder")
    return path


def folders_below(folder: Path, closed: Callable[[Path], bool] = lambda folder: False) -> Iterator[Path]:
    """A folder and those below it, each once, also by links; not hidden or unreadable, nor below ``closed``."""
    seen, ahead = set(), [folder]
    while ahead:
        place = ahead.pop()
        try:
            about = place.stat()
            if (about.st_dev, about.st_ino) in seen or (place / "pyvenv.cfg").is_file():
                continue
            seen.add((about.st_dev, about.st_ino))
            with os.scandir(place) as entries:
                inside = [entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir()]
        except OSError:
            continue
        yield place
        if not closed(place):
            ahead += [place / name for name in sorted(inside, reverse=True)]


def check_regular(folder: Path, error: type[LeanifyError] = SourceError, *below: str) -> None:
    """Raise ``error`` if a folder, or one that matches a pattern, has a pipe, a device or a kernel's file.

    Upstream's loaders open whatever they find: a pipe would block for ever, and /dev/zero never ends. Folders
    may be links, which a search of everything below would not enter, or not leave.
    """
    for place in (folder, *(found for pattern in below for found in folder.glob(pattern))):
        for path in place.iterdir() if place.is_dir() else ():
            if path.exists() and not (path.is_file() or path.is_dir()):
                raise error(f"{path} is a pipe, a socket or a device, not a file; remove it")
            if path.is_symlink() and os.path.realpath(path).startswith(KERNEL):
                raise error(f"{path} leads to a file of the kernel, which may never end; remove it")


def check_links(folder: Path, error: type[LeanifyError] = SourceError) -> None:
    """Raise ``error`` if links below a folder lead back to where they lie, or often to the same folder.

    Readers of folders follow links: one loop gives every file forty times, and two of them never end.
    """
    top = os.path.realpath(folder)
    above, times = {str(folder): {top}}, Counter({top: 1})
    for place, below, _ in os.walk(folder, followlinks=True):
        for name in below:
            path = os.path.join(place, name)  # noqa: PTH118  a hundred thousand times
            real = os.path.realpath(path)
            times[real] += 1
            if real in above[place] or times[real] > OFTEN:
                raise error(f"{path} is a link that leads to {real} again; remove it")
            above[path] = {*above[place], real}


def few(names: Sequence[str], shown: int = 3) -> str:
    return ", ".join(names[:shown]) + (", …" if len(names) > shown else "")


def listing(folder: Path, shown: int = 5) -> str:
    """The names of the first things in a folder, for an error message."""
    return ", ".join(sorted(entry.name for entry in folder.iterdir())[:shown]) or "nothing"


def read_json(path: Path, error: type[LeanifyError] = SourceError) -> Any:
    """Parse a small JSON file. Raises ``error`` as `read_text` does, and for invalid or too deep JSON.

    transformers writes an infinite number as {"__float__": "Infinity"}, since JSON has no word for it.
    """
    try:
        return parsed(read_text(path, error), object_hook=_special_float)
    except ValueError as caught:  # JSONDecodeError, or an integer of too many digits
        raise error(f"{path} is not JSON: {caught}") from caught
    except RecursionError as caught:
        raise error(f"{path} cannot be read: its JSON is nested too deeply") from caught


def parsed(text: str, **how: Any) -> Any:
    """Parse JSON as `json.loads` does, but raise ValueError for an integer that no float can hold."""
    return json.loads(text, parse_int=_integer, **how)


def _integer(digits: str) -> int:
    if len(digits) > DIGITS:
        raise ValueError(f"an integer of {len(digits):,} digits")
    return int(digits)


def _special_float(found: dict[str, Any]) -> Any:
    """The number that an object of a parsed file stands for; any other object as it is."""
    tag = found.get("__float__")
    return float(tag) if len(found) == 1 and tag in ("Infinity", "-Infinity", "NaN") else found
