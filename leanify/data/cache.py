"""What was drawn once and is kept: a file of arrays in the user's cache directory, or in a folder that is named."""

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
    """leanify's folder among the user's caches: below XDG_CACHE_HOME, ~/.cache where that is not set."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "leanify"


def cached(
    name: str, options: Mapping[str, Any], make: Callable[[], Arrays], folder: Path | None = None
) -> tuple[Arrays, Path]:
    """The arrays that ``make`` gives for the options, and the file that holds them from then on.

    The file is written under a temporary name and renamed when complete; a damaged one is rebuilt. Raises
    DataError where it cannot be written.
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
            f"{name} was drawn and could not be kept in {path.parent} ({error.strerror}): name another folder, "
            "--set data.path=FOLDER or XDG_CACHE_HOME"
        ) from error
    return arrays, path
