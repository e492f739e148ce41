"""A directory that is there whole or not at all.

It is built beside its target, then renamed. Until then it is called ``.NAME.leanify-XXXXXXXX`` and locked by the
process that writes it. If that process is killed, the kernel releases the lock, and the next write to the same parent
recognises the folder by its name and free lock and removes it.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError

from leanify.errors import DirectoryError
from leanify.runs.places import CARD

_OURS = re.compile(r"\..+\.leanify-[0-9a-f]{8}")
_SETTLING = 60.0  # seconds; a younger folder may have been created but not locked yet, so it is not removed


@contextmanager
def new_directory(directory: str | Path, force: bool = False) -> Iterator[Path]:
    """Yield a temporary folder that is renamed to ``directory`` on success and removed on failure.

    Creates missing parents. ``force`` replaces a directory that leanify wrote. Raises DirectoryError.
    """
    target = Path(directory)
    check_new_directory(target, force)
    parent = target.absolute().parent
    folder = parent / f".{target.name}.leanify-{secrets.token_hex(4)}"
    lock = -1
    try:
        parent.mkdir(parents=True, exist_ok=True)
        remove_litter(parent)
        folder.mkdir()
        lock = _locked(folder)
        yield folder
        _follow_umask(folder)
        _put(folder, target)
    except OSError as error:
        raise DirectoryError(f"{target} could not be written: {error.strerror or error}") from error
    except SafetensorError as error:  # a full disk under its writer, which raises no OSError
        raise DirectoryError(f"{target} could not be written: {error}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock >= 0:
            os.close(lock)


def _put(folder: Path, target: Path) -> None:
    """Rename into place. The previous directory is renamed first and removed last, so one of them always exists."""
    old = folder.with_name(f"{folder.name}.old")
    if target.exists():
        target.rename(old)
    folder.replace(target)
    shutil.rmtree(old, ignore_errors=True)


def check_new_directory(directory: str | Path, force: bool = False) -> None:
    """Raise DirectoryError unless ``directory`` can be created, or exists and is empty or may be replaced."""
    target = Path(directory)
    try:
        str(target.absolute()).encode()
        target.exists()
    except UnicodeEncodeError as error:
        raise DirectoryError(
            f"the name of the output directory {target} is not UTF-8; safetensors needs that"
        ) from error
    except OSError as error:
        raise DirectoryError(f"the output directory {target} cannot be written: {error.strerror}") from error
    if target.exists() and not target.is_dir():
        raise DirectoryError(f"the output directory {target} is a file; name a directory that does not exist yet")
    if target.is_dir() and any(target.iterdir()) and not (force and _is_ours(target)):
        why = "was not written by leanify" if force else "is not empty"
        raise DirectoryError(
            f"the output directory {target} {why}; name a new one, or empty it first"
            + (" (--force replaces it: leanify wrote it)" if not force and _is_ours(target) else "")
        )
    parent = next(folder for folder in target.absolute().parents if folder.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        why = "no write permission in" if parent.is_dir() else "this is a file:"
        raise DirectoryError(f"the output directory {target} cannot be written: {why} {parent}")


def _is_ours(directory: Path) -> bool:
    """Whether leanify wrote a directory: a lean directory, or a folder of nothing else (lean/ and control/)."""
    if (directory / CARD).is_file():
        return not (directory / "metrics.jsonl").exists()  # a run is never replaced
    return all((inside / CARD).is_file() for inside in directory.iterdir())


def remove_litter(parent: Path) -> None:
    """Remove unfinished folders that killed processes left in ``parent``."""
    with suppress(OSError):
        for folder in [path for path in parent.iterdir() if _OURS.fullmatch(path.name) and not path.is_symlink()]:
            if time.time() - folder.stat().st_mtime < _SETTLING:
                continue
            with suppress(OSError):  # locked by a running process, or no permission
                lock = _locked(folder)
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)


def _locked(folder: Path) -> int:
    """Lock a folder until the returned descriptor is closed. Raises OSError if another process holds the lock."""
    import fcntl  # Unix only

    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise
    return lock


def _follow_umask(folder: Path) -> None:
    """Make files as readable as the umask allows: safetensors writes them for the owner only."""
    mode = folder.stat().st_mode & 0o666
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.chmod(mode)
