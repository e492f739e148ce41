"""A directory that is there whole or not at all.

It is built beside its target under a name of `writing.name_beside`, locked by the process that writes it,
then renamed. What a killed process leaves is removed by the next write to the same parent.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from leanify.errors import DirectoryError
from leanify.runs import writing
from leanify.runs.places import CARD


@contextmanager
def new_directory(directory: str | Path, force: bool = False) -> Iterator[Path]:
    """Yield a temporary folder that is renamed to ``directory`` on success and removed on failure.

    Creates missing parents. ``force`` replaces a directory that leanify wrote. Raises DirectoryError, also
    where something appeared at ``directory`` in the meantime: that stays, and the temporary folder is
    removed.
    """
    target = Path(directory)
    check_new_directory(target, force)
    parent = target.absolute().parent
    folder = writing.name_beside(target.absolute())
    lock = -1
    try:
        parent.mkdir(parents=True, exist_ok=True)
        writing.remove_litter(parent)
        folder.mkdir()
        lock = os.open(folder, os.O_RDONLY)
        writing.locked(lock)
        yield folder
        mode = folder.stat().st_mode & 0o666  # as the umask allows: safetensors writes for the owner only
        for path in folder.rglob("*"):
            if path.is_file() and not path.is_symlink():
                path.chmod(mode)
        _put(folder, target, force)
    except OSError as error:
        raise DirectoryError(f"{target} could not be written: {error.strerror or error}") from error
    except SafetensorError as error:  # a full disk under its writer, which raises no OSError
        raise DirectoryError(f"{target} could not be written: {error}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock >= 0:
            os.close(lock)


def _put(folder: Path, target: Path, force: bool) -> None:
    """Rename into place. The kernel renames onto nothing or an empty folder only, so nothing is lost.

    With ``force``, the directory of leanify's own that stands there is renamed first and removed last.
    """
    old = folder.with_name(f"{folder.name}.old")
    replaced = force and target.is_dir() and any(target.iterdir())
    if replaced:
        check_new_directory(target, force)
        target.rename(old)
    try:
        folder.rename(target)
    except OSError as error:
        if replaced:
            old.rename(target)
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise DirectoryError(
                f"the output directory {target} appeared while this was made, and stays as it is; name another one"
            ) from error
        raise
    if replaced:
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
    if target.is_symlink():
        raise DirectoryError(f"the output directory {target} is a link; name the folder that it leads to")
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
    """Whether leanify wrote a directory: a lean directory, or a folder of such (lean/ and control/)."""
    if (directory / CARD).is_file():
        return not (directory / "metrics.jsonl").exists()  # a run is never replaced
    return all((inside / CARD).is_file() for inside in directory.iterdir())
