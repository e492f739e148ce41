"""The user's cache directory: arrays and JSON values by a key, each in a file of its own.

A file that is damaged, or that another key or program wrote, counts as missing: its content is made again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from leanify.core.errors import DataError, LeanifyError
from leanify.core.files import writing
from leanify.core.files.reading import open_file, read_json

if TYPE_CHECKING:
    import numpy as np

Arrays: TypeAlias = "dict[str, np.ndarray]"
Value = TypeVar("Value")
NAMES = "__names__"  # the member of an archive that lists the others: damage may rename one


def home() -> Path:
    """leanify's cache folder: $XDG_CACHE_HOME/leanify, or ~/.cache/leanify, or without a home a temporary one."""
    with contextlib.suppress(RuntimeError):  # no HOME, and no user of this number either
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "leanify"
    return _private_folder(Path(tempfile.gettempdir()) / f"leanify-{os.getuid()}")


@cache
def _private_folder(place: Path) -> Path:
    """A folder for temporary files if it belongs to this user alone; otherwise a new one."""
    with contextlib.suppress(OSError):
        place.mkdir(mode=0o700, exist_ok=True)
        about = place.lstat()
        if stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid() and not about.st_mode & 0o022:
            return place
    return Path(tempfile.mkdtemp(prefix="leanify-"))


def regular_file(path: Path) -> Path:
    """Check that a path is a regular file. Raises SourceError for a pipe, a device or a kernel's file."""
    open_file(path).close()
    return path


@contextlib.contextmanager
def new_entry(place: Path, what: str) -> Iterator[Path]:
    """Yield a new folder that is renamed to a place of the cache. Raises DataError if it cannot be written.

    Where another process is faster, its content stays: concurrent writers produce the same.
    """
    is_new = False
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with writing.temp_folder(place) as folder:
            is_new = True
            folder.chmod(0o700)
            yield folder
            if not place.exists():
                folder.rename(place)
    except OSError as error:
        if not is_new:
            raise DataError(
                f"{what} could not be saved in {place.parent} ({error.strerror}); choose another folder with "
                "XDG_CACHE_HOME"
            ) from error
        if not place.is_dir():
            raise DataError(f"{what} could not be cached in {place}: {error.strerror or error}") from error


def load_or_make(
    name: str, options: Mapping[str, Any], make: Callable[[], Arrays], folder: Path | None = None
) -> tuple[Arrays, Path]:
    """Arrays and their file in the cache; ``make()`` makes those that the cache lacks for these options."""
    import numpy as np  # imported here because most readers of the cache do not need numpy

    # one file for each set of options; it names its own arrays, so that a part of an archive is not taken for all
    digest = hashlib.sha256(json.dumps(dict(options), sort_keys=True).encode()).hexdigest()[:12]
    path = (home() if folder is None else folder) / f"{name}-{digest}.npz"
    try:
        with open_file(path) as file:
            members = dict(np.load(file, allow_pickle=False))
        names = members.pop(NAMES, None)
        if names is None or sorted(members) == sorted(names.tolist()):
            return members, path
    except Exception:  # a damaged archive raises what its parts happen to be taken for
        pass
    # the cache has none, or a damaged one: make it again
    arrays = make()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with writing.open_atomic(path, sync=False) as file:
            np.savez(file, **{NAMES: np.array(list(arrays))}, **arrays)  # type: ignore[arg-type]
    except OSError as error:
        raise DataError(
            f"{name} was generated but could not be saved in {path.parent} ({error.strerror}); choose another folder "
            "with --set data.path=FOLDER or XDG_CACHE_HOME"
        ) from error
    return arrays, path


def read_value(file: Path, key: str, parse: Callable[[Any], Value]) -> Value | None:
    """The parsed value in a file of the cache; None unless it holds what `write_value` wrote for this key."""
    try:
        entry = read_json(file)
        is_valid = entry["key"] == key and entry["sum"] == _checksum(entry["answers"])
        return parse(entry["answers"]) if is_valid else None
    except (LeanifyError, ValueError, TypeError, KeyError, AttributeError):
        return None


def write_value(file: Path, key: str, value: Any) -> None:
    """Write a JSON value for a key. Raises OSError."""
    file.parent.mkdir(parents=True, exist_ok=True)
    writing.write(file, json.dumps({"key": key, "sum": _checksum(value), "answers": value}), sync=False)


def _checksum(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
