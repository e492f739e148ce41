"""A fingerprint of a run's data, cheap enough to take at every start.

Of files it has all names and sizes, and the contents of some; of a hub data set what ``datasets`` keeps; of data that
comes with a library some samples. A change that keeps names and sizes and misses these contents goes unnoticed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from leanify.core.errors import DataError
from leanify.core.files.reading import check_links, open_file
from leanify.core.path_kinds import is_run
from leanify.core.recipe import DataSection
from leanify.data.common import spread_places
from leanify.data.samples import Splits
from leanify.layouts import hub
from leanify.layouts.columns import IMAGES, TABLES

FILES, SAMPLES, PIECES, PIECE = 256, 16, 16, 1 << 16
MAX_CHANGES = 3  # changes listed in a message
SUFFIXES = {*TABLES, *IMAGES, ".txt", ".arrow", ".npz", ".tar"}  # of data files


def take_fingerprint(data: DataSection, splits: Splits) -> dict[str, Any]:
    """Sizes of the splits; of every folder [files, bytes, digest of names and sizes]; digests of some files."""
    facts: dict[str, Any] = {"samples": {"train": len(splits.train), "validation": len(splits.validation)}}
    # data of the hub and of a library have no files here
    if hub.names_hub_data(data):
        return facts | {"contents": {data.name: str(hub.load_rows(data.name, data.train)._fingerprint)}}
    root = None if data.path is None else Path(data.path).expanduser()
    if root is None or not root.exists():  # data that comes with a library has no path
        return facts | {"contents": {data.name: _samples_digest(splits.train)}}
    # name and size of every file, and the content of some of them, spread over all
    files, top = [(root.name, root.stat().st_size)], root.parent
    if root.is_dir():
        files, top = list(_data_files(root)), root
    contents = {}
    for place in spread_places(len(files), FILES):
        name, size = files[place]
        content = hashlib.sha256()
        with open_file(top / name, DataError) as file:
            pieces = spread_places(size - PIECE + 1, PIECES) if size > PIECES * PIECE else range(0, size, PIECE)
            for start in pieces:
                file.seek(start)
                content.update(file.read(PIECE))
        contents[name] = content.hexdigest()[:16]
    # number, bytes, and names and sizes of the files in each folder
    files_by_folder: dict[str, list[tuple[str, int]]] = {}
    for name, size in files:
        files_by_folder.setdefault(os.path.dirname(name) or ".", []).append((name, size))  # noqa: PTH120  a million times
    folders: dict[str, list[Any]] = {}
    for folder, some in files_by_folder.items():
        digest = hashlib.sha256(repr(some).encode()).hexdigest()[:16]
        folders[folder] = [len(some), sum(size for _, size in some), digest]
    return facts | {"folders": folders, "contents": contents}


def describe_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """What changed between two fingerprints; None if nothing did, or if the first is empty or malformed."""
    folders, contents = before.get("folders", {}), before.get("contents", {})
    if not before or not isinstance(contents, Mapping) or not isinstance(folders, Mapping):
        return None
    for entry in folders.values():
        if not isinstance(entry, list) or [*map(type, entry)] != [int, int, str]:
            return None
    # files that were added, removed or resized
    changes, new_folders = [], now.get("folders", {})
    for name in dict.fromkeys([*folders, *new_folders]):
        old, new = folders.get(name), new_folders.get(name)
        if old is None or new is None:
            changes.append(f"the folder {name} is {'gone' if new is None else 'new'}")
        elif old[:2] != new[:2]:
            changes.append(f"{name}: {old[0]:,} files of {old[1]:,} bytes → {new[0]:,} files of {new[1]:,} bytes")
        elif old != new:
            changes.append(f"files in {name} have other names or sizes")
    # contents of equal size
    others = now.get("contents", {})
    for name, digest in contents.items():
        if others.get(name, digest) != digest:
            changes.append(f"the content of {name} changed")
    if not changes and before.get("samples") != now.get("samples"):
        changes = [f"samples: {before.get('samples')} → {now.get('samples')}"]
    # the first changes, and how many more
    if len(changes) > MAX_CHANGES:
        changes[MAX_CHANGES:] = [f"and {len(changes) - MAX_CHANGES} more"]
    return "; ".join(changes) or None


def _data_files(root: Path) -> Iterator[tuple[str, int]]:
    """Yield (relative name, size) of every data file under a folder, sorted; runs in it are skipped."""
    check_links(root, DataError)
    for folder, subfolders, names in os.walk(root, followlinks=True):
        visible = [name for name in subfolders if not name.startswith(".")]
        subfolders[:] = sorted(name for name in visible if not is_run(Path(folder, name)))
        for name in sorted(names):
            path = Path(folder, name)
            is_of_data = path.suffix.lower() in SUFFIXES or name.isdigit()  # texts called by a number (20 newsgroups)
            if is_of_data and path.is_file():
                yield path.relative_to(root).as_posix(), path.stat().st_size


def _samples_digest(samples: Any) -> str:
    """Digest of evenly spaced samples for a data set in memory; for any other, just the number of samples."""
    if not hasattr(samples, "batch"):
        return str(len(samples))
    inputs, targets = samples.batch(np.linspace(0, len(samples) - 1, SAMPLES).astype(int))
    digest = hashlib.sha256()
    for part in (*inputs.values(), targets) if isinstance(inputs, dict) else (inputs, targets):
        digest.update(part.contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]
