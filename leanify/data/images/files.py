"""Images in folders of classes: which files and folders count. What looks at data and what reads it ask here.

Does not import torch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from leanify.data.tables.columns import IMAGES
from leanify.errors import DataError
from leanify.runs.files import folders_below, opened

SYNONYMS = (  # folder names of a split, in order of preference, in upper or lower case
    ("train", "training"),
    ("validation", "val", "valid", "eval", "evaluation", "dev"),
    ("test", "testing"),
)


class ImageFiles:
    """The images of FOLDER/CLASS/…, with the interface of a timm reader: index → (open file, class).

    timm's own reader takes the innermost folder's name, and so loses what lies deeper or gives it another
    class.
    """

    def __init__(self, root: Path, classes: Mapping[str, int]) -> None:
        from timm.utils.misc import natural_key

        self.root = root
        found = [(str(file), label) for name, label in classes.items() for file in images_below(root / name)]
        self.samples = sorted(found, key=lambda sample: natural_key(sample[0]))

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        path, label = self.samples[index]
        return opened(Path(path), DataError), label

    def filename(self, index: int, absolute: bool = True) -> str:
        path = self.samples[index][0]
        return path if absolute else os.path.relpath(path, self.root)


def images_below(folder: Path) -> Iterator[Path]:
    """The images below a folder, however deep; not hidden ones, as macOS leaves them beside each file."""
    for place in folders_below(folder):
        with os.scandir(place) as entries:  # closed before the first is given: who asks for one leaves the rest
            names = [entry.name for entry in entries if _is_image(entry)]
        yield from (place / name for name in names)


def _is_image(entry: os.DirEntry[str]) -> bool:
    return entry.name.lower().endswith(IMAGES) and not entry.name.startswith(".") and not entry.is_dir()


def names_of(split: str) -> tuple[str, ...]:
    """The names that a split's folder may have: its own, else the usual ones."""
    return next((names for names in SYNONYMS if split in names), (split,))


def folder_of_split(folder: Path, split: str) -> Path | None:
    """The folder of a split, by its name or a usual synonym in upper or lower case; None if there is none."""
    exact = next((folder / name for name in (split, *names_of(split)) if (folder / name).is_dir()), None)
    if exact is not None or not folder.is_dir():
        return exact
    found = {entry.name.lower(): entry for entry in sorted(folder.iterdir()) if entry.is_dir()}
    return next((found[name] for name in (split.lower(), *names_of(split)) if name in found), None)


def splits_among(names: list[str]) -> bool:
    """Whether folders are all named as splits: then they are not classes."""
    known = {name for synonyms in SYNONYMS for name in synonyms}
    return all(name.lower() in known for name in names)
