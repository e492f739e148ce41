"""Write files and folders: complete or not at all, and never through a link.

People hand runs and studies around, so a link may wait wherever leanify writes: ``.environment.json ->
~/.bashrc``. A file is therefore written under a random name in the same folder that must not exist yet, and
renamed, which replaces a link and does not touch its target. Files that grow (logs, locks) are opened
without following one.

The temporary name is ``.NAME.leanify-XXXXXXXX``, locked while it is written. If the process is killed, the
kernel releases the lock; the next process that writes to the folder recognises such leftovers by their name and
free lock, and removes them. Folders are made and removed the same way.
"""

from __future__ import annotations

import errno
import math
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TextIO

from leanify.core.errors import DirectoryError

SWEEP_EVERY = 60.0  # seconds, in a folder to which many files are written
CARD, METRICS = "leanify.json", "metrics.jsonl"  # the file that marks a directory of leanify's, and a run's among them
_TEMP_NAME = re.compile(r"\..+\.leanify-[0-9a-f]{8}", re.DOTALL)
_NO_LINK = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY
_swept: dict[Path, float] = {}  # when this process looked for litter in a folder


# -- files ------------------------------------------------------------------------------------------------------------


def write(path: Path, content: str | bytes, sync: bool = True) -> None:
    """Write a file atomically; text as UTF-8. ``sync`` waits until it is on the disk. Raises OSError."""
    with open_atomic(path, sync) as file:
        if isinstance(content, str):
            content = content.encode(errors="replace")
        file.write(content)


def copy(source: BinaryIO, path: Path) -> None:
    """Copy an open file to a path; its holes stay holes, so that no more is written than it holds. Raises OSError."""
    size, start = os.fstat(source.fileno()).st_size, 0
    with open_atomic(path, sync=False) as file:
        file.truncate(size)
        while start < size:
            try:
                start = os.lseek(source.fileno(), start, os.SEEK_DATA)
            except OSError:  # nothing but a hole follows
                break
            end = os.lseek(source.fileno(), start, os.SEEK_HOLE)
            file.seek(start)
            while start < end and (part := os.pread(source.fileno(), min(1 << 20, end - start), start)):
                file.write(part)
                start += len(part)
            start = max(start, end)


def add_name(file: Path, path: Path) -> bool:
    """Give a finished file another name; False where the file system does not do that."""
    try:
        os.link(file, path, follow_symlinks=False)
    except OSError:
        return False
    return True


@contextmanager
def open_atomic(path: Path, sync: bool = True) -> Iterator[BinaryIO]:
    """Yield a file, open for reading and writing, that gets its name at the end if nothing was raised."""
    # remove the folder's litter, but look for it once in a while only: many files are written one after another
    now, folder = time.monotonic(), path.parent.absolute()
    if now - _swept.get(folder, -math.inf) >= SWEEP_EVERY:
        _swept[folder] = now
        remove_litter(path.parent)
    temp, handle = _make_locked(path, lambda temp: os.open(temp, os.O_RDWR | os.O_CREAT | os.O_EXCL | _NO_LINK, 0o666))
    try:
        with os.fdopen(handle, "w+b") as file:
            yield file
            file.flush()
            if sync:
                os.fsync(handle)
            temp.replace(path)
    except BaseException:
        with suppress(OSError):
            temp.unlink()
        raise


@contextmanager
def open_append(path: Path) -> Iterator[TextIO]:
    """Yield a text file that is open at its end; creates it. Raises OSError for a link, also a dead one."""
    with os.fdopen(_open_no_link(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "a", encoding="utf-8") as file:
        yield file


def truncate_file(path: Path, length: int) -> None:
    """Cut a file after ``length`` bytes, in a new file: a hard link to the old one keeps its content."""
    with os.fdopen(_open_no_link(path, os.O_RDONLY), "rb") as old, open_atomic(path) as new:
        for start in range(0, length, 1 << 20):
            new.write(old.read(min(1 << 20, length - start)))


def rename_new(file: Path, target: Path) -> None:
    """Rename a finished file. Raises FileExistsError, and changes nothing, if the target exists."""
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


def sync_folder(folder: Path) -> None:
    """Sync a folder to disk, so that a rename in it survives a power failure."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _open_no_link(path: Path, flags: int) -> int:
    """Open a regular file without waiting, and return its descriptor. Raises OSError for links and anything else."""
    try:
        handle = os.open(path, flags | os.O_NONBLOCK | _NO_LINK, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a link, and leanify writes through none", str(path)) from error
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is a pipe, a socket or a device, not a file", str(path))
    return handle


# -- temporary names --------------------------------------------------------------------------------------------------


def temp_path(path: Path) -> Path:
    """An unpredictable path in the same folder, recognised as leanify's own by `is_temp`."""
    return path.with_name(f".{path.name[:50]}.leanify-{secrets.token_hex(4)}")  # 50 characters are at most 200 bytes


def _make_locked(path: Path, make: Callable[[Path], int]) -> tuple[Path, int]:
    """Make something with a temporary name and lock it until its handle is closed; again if a sweep came between."""
    import fcntl  # Unix only

    tries = 0
    while True:
        temp = temp_path(path)
        tries += 1
        try:
            handle = make(temp)
        except FileNotFoundError:  # swept, or a folder such as /proc, in which nothing can be made
            if tries == 100 or not path.parent.is_dir():
                raise
            continue
        with suppress(OSError):  # a file system without locks, on which nothing is swept
            fcntl.flock(handle, fcntl.LOCK_EX)  # waits for the sweep that has it
        if temp.exists():
            return temp, handle
        os.close(handle)


def is_temp(path: Path) -> bool:
    """Whether a path has a name of `temp_path`; False for links."""
    return _TEMP_NAME.fullmatch(path.name) is not None and not path.is_symlink()


def remove_litter(folder: Path) -> None:
    """Remove what killed processes left half written in a folder."""
    with suppress(OSError):
        for path in [path for path in folder.iterdir() if is_temp(path)]:
            with suppress(OSError):  # no permission
                handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | _NO_LINK)
                try:
                    if try_lock(handle):
                        shutil.rmtree(path) if path.is_dir() else path.unlink()
                finally:
                    os.close(handle)


def try_lock(handle: int) -> bool:
    """Lock an open file or folder until it is closed; False if another process holds the lock."""
    import fcntl  # Unix only

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


# -- folders ----------------------------------------------------------------------------------------------------------


@contextmanager
def temp_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder next to a path, which is removed at the end, or after a kill by the next process."""

    def make(temp: Path) -> int:
        temp.mkdir()
        return os.open(temp, os.O_RDONLY)

    remove_litter(path.parent)
    folder, lock = _make_locked(path, make)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


@contextmanager
def new_directory(directory: str | Path, force: bool = False) -> Iterator[Path]:
    """Yield a temporary folder that is renamed to ``directory`` on success and removed on failure.

    Creates missing parents. ``force`` replaces a directory that leanify wrote. Raises DirectoryError, also
    where something appeared at ``directory`` in the meantime: that stays, and the temporary folder is
    removed.
    """
    from safetensors import SafetensorError

    target = Path(directory)
    check_new_directory(target, force)
    try:
        target.absolute().parent.mkdir(parents=True, exist_ok=True)
        with temp_folder(target.absolute()) as folder:
            yield folder
            # permissions as the umask allows: safetensors writes for the owner only
            mode = folder.stat().st_mode & 0o666
            for path in folder.rglob("*"):
                if path.is_file() and not path.is_symlink():
                    path.chmod(mode)
            _rename_folder(folder, target, force)
    except (OSError, SafetensorError) as error:  # the latter for a full disk under its writer, which raises no OSError
        reason = getattr(error, "strerror", None) or error
        raise DirectoryError(f"{target} could not be written: {reason}") from error


def _rename_folder(folder: Path, target: Path, force: bool) -> None:
    """Rename a folder. The kernel replaces nothing but an empty folder, so nothing is lost.

    With ``force``, a directory of leanify's own at the target is renamed first and removed last.
    """
    old = folder.with_name(f"{folder.name}.old")
    replaces = force and target.is_dir() and any(target.iterdir())
    # the old directory steps aside, and comes back where the new one cannot take its place
    if replaces:
        check_new_directory(target, force)
        target.rename(old)
    try:
        folder.rename(target)
    except OSError as error:
        if replaces:
            old.rename(target)
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise DirectoryError(
                f"the output directory {target} appeared while this was made, and stays as it is; name another one"
            ) from error
        raise
    if replaces:
        shutil.rmtree(old, ignore_errors=True)


def check_new_directory(directory: str | Path, force: bool = False) -> None:
    """Raise DirectoryError unless ``directory`` can be created, or exists and is empty or may be replaced."""
    target = Path(directory)
    # a name that every library can write
    try:
        str(target.absolute()).encode()
        target.exists()
    except UnicodeEncodeError as error:
        raise DirectoryError(
            f"the name of the output directory {target} is not UTF-8; safetensors needs that"
        ) from error
    except OSError as error:
        raise DirectoryError(f"the output directory {target} cannot be written: {error.strerror}") from error
    # nothing in the way but an empty directory, or one that may be replaced
    if target.is_symlink():
        raise DirectoryError(f"the output directory {target} is a link; name the folder that it leads to")
    if target.exists() and not target.is_dir():
        raise DirectoryError(f"the output directory {target} is a file; name a directory that does not exist yet")
    if target.is_dir() and any(target.iterdir()) and not (force and _is_replaceable(target)):
        why = "was not written by leanify" if force else "is not empty"
        hint = " (in Python force=True replaces it: leanify wrote it)" if _is_replaceable(target) else ""
        raise DirectoryError(f"the output directory {target} {why}; name a new one, or empty it first{hint}")
    # the nearest folder that exists can be written to
    parent = next(folder for folder in target.absolute().parents if folder.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        why = "no write permission in" if parent.is_dir() else "this is a file:"
        raise DirectoryError(f"the output directory {target} cannot be written: {why} {parent}")


def _is_replaceable(directory: Path) -> bool:
    """Whether leanify wrote a directory: a lean directory, or a folder of such (lean/ and control/); never a run."""
    if (directory / CARD).is_file():
        return not (directory / METRICS).exists()
    return all((folder / CARD).is_file() for folder in directory.iterdir())


def check_folders(*folders: Path) -> None:
    """Raise DirectoryError if one of these folders of a run or a study is a link: it may lead anywhere."""
    for folder in folders:
        if folder.is_symlink():
            raise DirectoryError(
                f"{folder} is a link, and leanify writes through none; put the folder that it leads to in its place"
            )


# -- removing: only folders that hold nothing but what leanify writes; the rest may be the user's ---------------------


def holds_only(folder: Path, names: re.Pattern[str], *folders: Path) -> bool:
    """Whether a folder, no link, holds nothing but (half written) files of these names, and these folders."""
    if folder.is_symlink() or not folder.is_dir():
        return False
    for path in folder.iterdir():
        is_known = names.fullmatch(path.name) is not None or is_temp(path)
        if path not in folders and not (is_known and path.is_file() and not path.is_symlink()):
            return False
    return True


def remove_folder(folder: Path, aside: Path) -> None:
    """Rename a folder to ``aside``, then delete it, so that a half-deleted one never has its name."""
    shutil.rmtree(aside, ignore_errors=True)
    folder.rename(aside)
    shutil.rmtree(aside)


def keep_aside(folder: Path) -> Path:
    """Rename a folder to ``NAME.kept-XXXXXXXX``, because it holds files that leanify did not write."""
    new_path = folder.with_name(f"{folder.name}.kept-{secrets.token_hex(4)}")
    folder.rename(new_path)
    return new_path
