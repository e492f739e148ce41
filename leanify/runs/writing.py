"""Write files: whole or not at all, and never through a link.

People hand runs and studies around, so a link may wait wherever leanify writes: ``.environment.json ->
~/.bashrc``. A file is therefore written beside its place under a random name that must not exist yet, and
renamed, which replaces a link and leaves alone what it leads to. Files that grow (logs, locks) are opened
without following one.

The name beside is ``.NAME.leanify-XXXXXXXX``, locked while it is written. If the process is killed, the
kernel releases the lock; the next write to the folder recognises what is left by its name and its free lock,
and removes it.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TextIO

from leanify.errors import DirectoryError

SETTLING = 60.0  # seconds; what is younger may have been created but not locked yet, so it is not removed
_BESIDE = re.compile(r"\..+\.leanify-[0-9a-f]{8}", re.DOTALL)
_NO_LINK = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY


def write(path: Path, content: str | bytes, sync: bool = True) -> None:
    """Write a file atomically; text as UTF-8. ``sync`` waits until it is on the disk. Raises OSError."""
    with replacing(path, sync) as file:
        file.write(content.encode(errors="replace") if isinstance(content, str) else content)


@contextmanager
def replacing(path: Path, sync: bool = True) -> Iterator[BinaryIO]:
    """Yield a file, open for reading and writing, that gets its name at the end if nothing was raised."""
    remove_litter(path.parent)
    beside = name_beside(path)
    handle = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_EXCL | _NO_LINK, 0o666)
    try:
        with os.fdopen(handle, "w+b") as file:
            locked(handle)
            yield file
            file.flush()
            if sync:
                os.fsync(handle)
            beside.replace(path)
    except BaseException:
        with suppress(OSError):
            beside.unlink()
        raise


def copy(source: BinaryIO, path: Path) -> None:
    """Write what is left of an open file. Raises OSError."""
    with replacing(path, sync=False) as file:
        shutil.copyfileobj(source, file, 1 << 20)


def put_in_place(file: Path, target: Path) -> None:
    """Give a finished file its name. Raises FileExistsError, and changes nothing, if something has it."""
    try:
        os.link(file, target, follow_symlinks=False)
    except FileExistsError:
        raise
    except OSError as error:  # a file system without hard links
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from error
        file.rename(target)
    else:
        file.unlink()


def shorten(path: Path, length: int) -> None:
    """Cut a file after ``length`` bytes, in a new file: another name of the old one keeps its content."""
    with os.fdopen(_opened(path, os.O_RDONLY), "rb") as old, replacing(path) as new:
        for start in range(0, length, 1 << 20):
            new.write(old.read(min(1 << 20, length - start)))


def sync_folder(folder: Path) -> None:
    """Sync a folder to disk, so that a rename in it survives a power failure."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def appending(path: Path) -> Iterator[TextIO]:
    """Yield a text file that is open at its end; creates it. Raises OSError for a link, also a dead one."""
    with os.fdopen(_opened(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "a", encoding="utf-8") as file:
        yield file


def _opened(path: Path, how: int) -> int:
    """A descriptor of a regular file that is no link, without waiting. Raises OSError for anything else."""
    try:
        handle = os.open(path, how | os.O_NONBLOCK | _NO_LINK, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a link, and leanify writes through none", str(path)) from error
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is a pipe, a socket or a device, not a file", str(path))
    return handle


def check_folder(*folders: Path) -> None:
    """Raise DirectoryError if one of these folders of a run or a study is a link: it may lead anywhere."""
    for folder in folders:
        if folder.is_symlink():
            raise DirectoryError(
                f"{folder} is a link, and leanify writes through none; put the folder that it leads to in its place"
            )


def name_beside(path: Path) -> Path:
    """A name beside a path that nobody can foresee and that is recognised as leanify's own."""
    return path.with_name(f".{path.name[:50]}.leanify-{secrets.token_hex(4)}")  # 50 characters are at most 200 bytes


def is_beside(path: Path) -> bool:
    """Whether a path has a name of `name_beside`, and is no link."""
    return _BESIDE.fullmatch(path.name) is not None and not path.is_symlink()


def remove_litter(folder: Path, settling: float = SETTLING) -> None:
    """Remove what killed processes left half written in a folder."""
    with suppress(OSError):
        for path in [path for path in folder.iterdir() if is_beside(path)]:
            if time.time() - path.stat().st_mtime < settling:
                continue
            with suppress(OSError):  # no permission
                handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | _NO_LINK)
                try:
                    if locked(handle):
                        shutil.rmtree(path) if path.is_dir() else path.unlink()
                finally:
                    os.close(handle)


def locked(handle: int) -> bool:
    """Lock an open file or folder until it is closed; False if another process holds the lock."""
    import fcntl  # Unix only

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
