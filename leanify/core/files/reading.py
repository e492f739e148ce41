"""Read files from untrusted sources: regular files only, with limits on size and JSON nesting.

A file is opened once, and its descriptor is checked and read. A path that is checked and then opened again may
be another file by then.
"""

from __future__ import annotations

import codecs
import hashlib
import io
import json
import os
import re
import shlex
import stat
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from leanify.core.errors import LeanifyError, SourceError

MAX_DEPTH = 64  # folders in one another; the time of looking at one grows with the square
MAX_LINKS = 16  # links from one folder of data to the same other one that are followed
MAX_DIGITS = 300  # of an integer in JSON; floats hold no more than 308
POINTER, MAX_POINTER = b"version https://git-lfs", 1024  # how a pointer of Git LFS begins, and its bytes at most
KERNEL = ("/proc/", "/sys/")  # regular files by their kind; /proc/kmsg waits
MAX_LINE = 1 << 24  # characters of a line in a table or a text, several novels
SCANNED = 16 << 20  # bytes at the start of a text, by which its encoding is told
MIN_UTF16 = 16  # bytes by which UTF-16 without a mark is told
CODE_PAGES = ("cp1252", "cp1250", "cp1254", "cp1257")  # Windows' encodings of Latin letters
# bytes that show another encoding than those: three above ASCII in a row, UTF-8, a mark of DOS inside a word
FOREIGN = re.compile(rb"[\x80-\xff]{3}|[\xc2-\xdf][\x80-\xbf]|[a-z][\x80-\x91\x93-\x95\x98-\x9f][a-z]")
BYTE_ORDER_MARKS = {b"\xff\xfe\0\0": "utf-32", b"\0\0\xfe\xff": "utf-32", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
MAX_PARTS = 2_000_000  # objects and lists in JSON; the largest tokenizer.json in use has half a million
MAX_BYTES = 64 << 20  # the largest config.json and tokenizer.json in use are a few MB to 30 MB


def open_file(path: Path, error: type[LeanifyError] = SourceError, max_bytes: int | None = None) -> io.BufferedReader:
    """Open a regular file for reading. Raises ``error`` for anything else, and above ``max_bytes`` bytes.

    A pipe or a device is refused before it is opened: opening one may wait, or do something.
    """
    # open a regular file, then check the opened file too: the path may lead elsewhere by then
    handle = -1
    try:
        if stat.S_ISREG(path.stat().st_mode):
            handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        about = os.fstat(handle) if handle >= 0 else None
    except FileNotFoundError as caught:
        raise error(f"{path} does not exist") from caught
    except (OSError, ValueError) as caught:  # ValueError: a NUL in its name
        raise error(f"{path} cannot be read: {getattr(caught, 'strerror', None) or caught}") from caught
    # refuse endless files, and files larger than any of their kind
    if about is None or not stat.S_ISREG(about.st_mode):
        reason = "is not a regular file"
    elif about.st_size == 0 and os.path.realpath(path).startswith(KERNEL):
        reason = "is a file of the kernel, which may never end"
    elif about.st_size < MAX_POINTER and os.pread(handle, len(POINTER), 0) == POINTER:
        reason = "is a pointer of Git LFS to the file, which git lfs pull fetches"
    elif max_bytes is not None and about.st_size > max_bytes:
        reason = f"has {about.st_size >> 20:,} MB; at most {max_bytes >> 20:,} MB are accepted for a file of this kind"
    else:
        return os.fdopen(handle, "rb")
    if handle >= 0:
        os.close(handle)
    raise error(f"{path} {reason}")


def open_text(
    path: Path,
    error: type[LeanifyError] = SourceError,
    encoding: str = "utf-8",
    errors: str | None = None,
    newline: str | None = None,
) -> TextIO:
    """`open_file`, as text; reading raises UnicodeDecodeError, and OSError for a line without bounds."""
    return _BoundedLines(open_file(path, error), encoding, errors, newline)


def text_encoding(path: Path, error: type[LeanifyError] = SourceError) -> str:
    """The encoding of a text file: by its byte order mark, UTF-8, or the only other one that it can have.

    UTF-16 without a mark is told by its zero bytes. Windows' code pages are used if all of those with Latin letters
    read the same text (quotes, dashes, é, ö, ß, …). Both are said in a warning. Raises ``error`` for other zero bytes.
    """
    with open_file(path, error) as file:
        start = file.read(SCANNED)
        for mark, encoding in BYTE_ORDER_MARKS.items():
            if start.startswith(mark):
                return encoding
        assumption = None
        if b"\0" in start[:4096]:
            assumption = _unmarked_utf16(start[:4096])
            if assumption is None:
                raise error(f"{path} has zero bytes: it {not_utf8(path, 'UTF-16LE')}")
        elif _decodes(start, "utf-8") is None and _is_windows_text(start, file):
            assumption = CODE_PAGES[0]
    if assumption is None:
        return "utf-8-sig"
    warnings.warn(f"{path} is not UTF-8; it is read as {assumption.replace('cp', 'windows-')}", stacklevel=2)
    return assumption


def not_utf8(path: Path, encoding: str = "WINDOWS-1252") -> str:
    """The fault of a text in another encoding, and the command that converts it."""
    name = shlex.quote(path.name)
    return f"is not UTF-8 text (if it is {encoding}: iconv -f {encoding} -t UTF-8 {name} > new{path.suffix})"


def _decodes(start: bytes, encoding: str) -> str | None:
    """The beginning of a file as text, whose last character may be incomplete; None for another encoding."""
    try:
        return codecs.getincrementaldecoder(encoding)().decode(start)
    except UnicodeDecodeError:
        return None


def _unmarked_utf16(start: bytes) -> str | None:
    """The byte order of UTF-16 whose letters are below U+2100, with zero bytes in every second place only, and nothing
    but text; otherwise None: bytes of ASCII read as UTF-16 would be letters of other scripts.
    """
    is_big_endian = 0 in start[::2]
    high = start[::2] if is_big_endian else start[1::2]
    if len(start) < MIN_UTF16 or max(high) > 0x20 or start.count(0) > high.count(0):
        return None
    encoding = "utf-16-be" if is_big_endian else "utf-16-le"
    text = _decodes(start, encoding) or "\0"
    return encoding if all(letter.isprintable() or letter.isspace() for letter in text) else None


def _is_windows_text(start: bytes, file: io.BufferedReader) -> bool:
    """Whether all code pages of Latin letters read a file, whose beginning was read, as the same text."""
    for block in (start, *iter(lambda: file.read(SCANNED), b"")):
        readings = {block.decode(page, "replace") for page in CODE_PAGES}
        if FOREIGN.search(block) or len(readings) > 1 or "\ufffd" in readings.pop():
            return False
    return True


class _BoundedLines(io.TextIOWrapper):
    """A text whose lines have bounds: one of gigabytes would be read as a whole."""

    def __next__(self) -> str:  # type: ignore[override]
        line = self.readline(MAX_LINE + 1)
        if not line:
            raise StopIteration
        if len(line) > MAX_LINE:
            raise OSError(f"a line has more than {MAX_LINE:,} characters")
        return line


def read_lines(path: Path, error: type[LeanifyError] = SourceError, newline: str | None = None) -> Iterator[str]:
    """Yield the lines of a text file. Raises ``error`` as `text_encoding` does, and for text of another encoding."""
    encoding = text_encoding(path, error)
    try:
        with open_text(path, error, encoding, newline=newline) as file:
            yield from file
    except UnicodeDecodeError as caught:
        reason = f"{caught.reason} at byte {caught.start}"
        raise error(f"{path} {not_utf8(path)}: {reason}") from None
    except OSError as caught:
        raise error(f"{path} cannot be read: {caught}") from caught


def read_bytes(path: Path, error: type[LeanifyError] = SourceError, max_bytes: int = MAX_BYTES) -> bytes:
    """Return a small file's content. Raises ``error`` as `open_file` does, also if the file grows meanwhile."""
    with open_file(path, error, max_bytes) as file:
        try:
            data = file.read(max_bytes + 1)
        except OSError as caught:  # /proc/kmsg is a regular file that would wait
            raise error(f"{path} cannot be read: {caught.strerror or caught}") from caught
    if data is None or len(data) > max_bytes:
        raise error(f"{path} is not a file of at most {max_bytes >> 20:,} MB")
    return data


def read_text(path: Path, error: type[LeanifyError] = SourceError, max_bytes: int = MAX_BYTES) -> str:
    """Return a small text file's content. Raises ``error`` as `read_bytes` does, and for invalid UTF-8."""
    try:
        return read_bytes(path, error, max_bytes).decode()
    except UnicodeDecodeError as caught:
        raise error(f"{path} is not text in UTF-8: {caught.reason} at byte {caught.start}") from caught


def resolve_inside(folder: Path, name: str) -> Path:
    """The path that a file of a folder names. Raises SourceError if it leads out, also through links."""
    path, home = folder / name, folder.resolve()
    try:
        target = path.resolve()
    except (OSError, RuntimeError, ValueError) as caught:  # links in a circle, a NUL
        raise SourceError(f"{folder} names {name!r}, which cannot be followed: {caught}") from caught
    if ".." in Path(name).parts and home in target.parents:
        raise SourceError(f"{folder} names {name!r}; write {str(target.relative_to(home))!r}, without '..'")
    if Path(name).is_absolute() or home not in target.parents:
        raise SourceError(f"{folder} names {name!r}, which leads out of it, to {target}; put it into the folder")
    return path


def walk_folders(folder: Path, is_closed: Callable[[Path], bool] = lambda folder: False) -> Iterator[Path]:
    """Yield a folder and the folders below it once each, following links. Skips hidden and unreadable folders, and
    does not enter those that ``is_closed`` names.
    """
    seen_paths, pending = set(), [folder]
    while pending:
        place = pending.pop()
        try:
            about = place.stat()
            if (about.st_dev, about.st_ino) in seen_paths or (place / "pyvenv.cfg").is_file():
                continue
            seen_paths.add((about.st_dev, about.st_ino))
            with os.scandir(place) as entries:
                names = [entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir()]
        except OSError:
            continue
        yield place
        if not is_closed(place) and len(place.parts) - len(folder.parts) < MAX_DEPTH:
            pending += [place / name for name in sorted(names, reverse=True)]


def check_regular(folder: Path, error: type[LeanifyError] = SourceError, *below: str) -> None:
    """Raise ``error`` if a folder, or one that matches a pattern, has a pipe, a device or a kernel's file.

    Upstream's loaders open whatever they find: a pipe would block for ever, and /dev/zero never ends. Folders
    may be links, which a search of everything below would not enter, or not leave.
    """
    places = [folder]
    for pattern in below:
        places += folder.glob(pattern)
    for place in places:
        entries = place.iterdir() if place.is_dir() else ()
        for path in entries:
            if path.exists() and not (path.is_file() or path.is_dir()):
                raise error(f"{path} is a pipe, a socket or a device, not a file; remove it")
            if path.is_symlink() and os.path.realpath(path).startswith(KERNEL):
                raise error(f"{path} leads to a file of the kernel, which may never end; remove it")


def check_links(folder: Path, error: type[LeanifyError] = SourceError) -> None:
    """Raise ``error`` if links below a folder lead back to a folder above them, or often to the same folder.

    Readers of folders follow links: one loop gives every file forty times, and two of them never end.
    """
    top = os.path.realpath(folder)
    parents, times = {str(folder): {top}}, Counter({top: 1})  # the real paths of a folder and those above it
    for place, subfolders, _ in os.walk(folder, followlinks=True):
        if len(parents[place]) > MAX_DEPTH:
            raise error(f"{str(place)[:200]} lies over {MAX_DEPTH} folders deep")
        for name in subfolders:
            path = os.path.join(place, name)  # noqa: PTH118  a hundred thousand times
            real = os.path.realpath(path)
            times[real] += 1
            if real in parents[place] or times[real] > MAX_LINKS:
                raise error(f"{path} is a link that leads to {real} again; remove it")
            parents[path] = {*parents[place], real}


def preview(names: Sequence[str], count: int = 3) -> str:
    """The first names, joined, for an error message."""
    rest = ", …" if len(names) > count else ""
    return ", ".join(names[:count]) + rest


def is_file(path: Path) -> bool:
    """Whether a path is a file; a text may be too long for a path, or hold a NUL."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def list_folder(folder: Path) -> str:
    """The names of the first things in a folder, for an error message."""
    return ", ".join(sorted(entry.name for entry in folder.iterdir())[:5]) or "nothing"


def read_json(path: Path, error: type[LeanifyError] = SourceError) -> Any:
    """Parse a small JSON file. Raises ``error`` as `read_text` does, and for invalid or too deep JSON.

    transformers writes an infinite number as {"__float__": "Infinity"}, since JSON has no word for it.
    """
    try:
        text = read_text(path, error)
        if text.count("{") + text.count("[") > MAX_PARTS:  # a hundred bytes of memory for two of the file
            raise error(f"{path} has over {MAX_PARTS:,} objects and lists")
        return parse_json(text, object_hook=_special_float)
    except ValueError as caught:  # JSONDecodeError, or an integer of too many digits
        raise error(f"{path} is not JSON: {caught}") from caught
    except RecursionError as caught:
        raise error(f"{path} cannot be read: its JSON is nested too deeply") from caught


def read_object(path: Path, error: type[LeanifyError] = SourceError) -> dict[str, Any]:
    """The object in a JSON file, as `read_json` reads it; {} without a file or an object in it."""
    content = read_json(path, error) if path.is_file() else None
    return content if isinstance(content, dict) else {}


def parse_json(text: str, **options: Any) -> Any:
    """Parse JSON as `json.loads` does, but raise ValueError for an integer that no float can hold."""
    return json.loads(text, parse_int=_integer, **options)


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"an integer of {len(digits):,} digits")
    return int(digits)


def _special_float(table: dict[str, Any]) -> Any:
    """The number that an object of a parsed file stands for; other objects are returned unchanged."""
    tag = table.get("__float__")
    is_number = len(table) == 1 and tag in ("Infinity", "-Infinity", "NaN")
    return float(str(tag)) if is_number else table


# -- checksums: they tell damage and overwriting, not a forger --------------------------------------------------------


class Crc32:
    """CRC-32 with hashlib's methods: half the work of SHA-256, and enough for files that only leanify reads."""

    def __init__(self) -> None:
        self.value = 0

    def update(self, data: Any) -> None:
        self.value = zlib.crc32(data, self.value)

    def hexdigest(self) -> str:
        return f"{self.value:08x}"


def checksum(path: Path, like: str = 64 * "0") -> str:
    """The checksum of a file, of the kind of another one. Raises OSError, and SourceError for no file."""
    kind: Callable[[], Any] = Crc32 if len(like) == 8 else hashlib.sha256
    with open_file(path) as file:
        return str(hashlib.file_digest(file, kind).hexdigest())
