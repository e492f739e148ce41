"""Cache generated arrays in a file, in the user's cache directory or a given folder."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from leanify.errors import DataError

Arrays = dict[str, np.ndarray]


def home() -> Path:
    """leanify's cache folder: $XDG_CACHE_HOME/leanify, or ~/.cache/leanify if that is not set."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "leanify"


def cached(
    name: str, options: Mapping[str, Any], make: Callable[[], Arrays], folder: Path | None = None
) -> tuple[Arrays, Path]:
    """Return the arrays that ``make()`` yields for these options, and the file that caches them.

    The file's name contains a hash of ``options``. It is written under a temporary name, then renamed; a damaged file
    is rebuilt. Raises DataError if it cannot be written.
    """
    digest = hashlib.sha256(json.dumps(dict(options), sort_keys=True).encode()).hexdigest()[:12]
    path = (home() if folder is None else folder) / f"{name}-{digest}.npz"
    try:
        with path.open("rb") as file:
            return dict(np.load(file, allow_pickle=False)), path
    except (OSError, ValueError, EOFError, BadZipFile, KeyError):
        pass
    arrays = make()
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with beside.open("wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
        beside.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise DataError(
            f"{name} was generated but could not be saved in {path.parent} ({error.strerror}); choose another folder "
            "with --set data.path=FOLDER or XDG_CACHE_HOME"
        ) from error
    return arrays, path
