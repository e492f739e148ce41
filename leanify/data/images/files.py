"""Images in folders of classes: which files and folders count. What looks at data and what reads it ask here.

Does not import torch.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

from leanify.core.errors import DataError
from leanify.core.files.reading import open_file, preview, walk_folders
from leanify.data.tables.columns import IMAGES

SYNONYMS = (  # folder names of a split, in order of preference, in upper or lower case
    ("train", "training"),
    ("validation", "val", "valid", "eval", "evaluation", "dev"),
    ("test", "testing"),
)


TOOL_FOLDERS = (
    "__macosx", "__pycache__", "node_modules", "cache", "_cache", "thumbnails", "_thumbnails", "lost+found",
    "@eadir", "@recycle", "@tmp", "#recycle", "#snapshot", "$recycle.bin", "recycler", "system volume information",
)  # fmt: skip


OTHER_IMAGES = (
    ".heic", ".heif", ".jxl", ".svg", ".psd", ".tga", ".ico", ".exr", ".hdr", ".dng", ".cr2", ".nef", ".dcm", ".nii",
)  # fmt: skip  # that are not read
MAX_SEARCHED = 100_000  # images among which a missing one is looked for
IMAGE_KEYS = (("bytes", bytes), ("path", str))  # of an image, as `datasets` keeps it in a table
NUMBERS = (
    "its labels are numbers, and images are learnt by class; a function of your own may read numbers, "
    "--set data.name=file.py:function"
)


def is_tool_folder(name: str) -> bool:
    """Whether a folder of this name belongs to an editor, an archive, a file system or a cache, and not to a class."""
    return name.startswith(".") or name.lower() in TOOL_FOLDERS


class ImageFiles:
    """The images of FOLDER/CLASS/…, with the interface of a timm reader: index → (open file, class).

    timm's own reader takes the innermost folder's name, and so loses what lies deeper or gives it another
    class.
    """

    def __init__(self, root: Path, classes: Mapping[str, int]) -> None:
        from timm.utils.misc import natural_key

        self.root = root
        samples: list[tuple[str, int]] = []
        for name, label in classes.items():
            samples += [(str(file), label) for file in find_images(root / name)]
        self.samples = sorted(samples, key=lambda sample: natural_key(sample[0]))

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        path, label = self.samples[index]
        return open_file(Path(path), DataError), label

    def size(self, index: int) -> int:
        """The bytes of an image, as stored; −1 for a link that leads nowhere, a pipe or a device."""
        return file_size(Path(self.samples[index][0]))

    def relabel(self, numbers: Sequence[int]) -> None:
        """Give each class another number: ``numbers`` has the new one of each."""
        self.samples = [(path, numbers[label]) for path, label in self.samples]

    def filename(self, index: int, absolute: bool = True) -> str:
        path = self.samples[index][0]
        return path if absolute else os.path.relpath(path, self.root)


def file_size(path: Path) -> int:
    """The bytes of a file, −1 for anything else."""
    return path.stat().st_size if path.is_file() else -1


def find_images(folder: Path, others: Counter[str] | None = None) -> Iterator[Path]:
    """The images below a folder, however deep; without hidden ones, which macOS adds for each file.

    ``others`` counts images that are not read, by their endings.
    """
    for place in walk_folders(folder):
        if any(is_tool_folder(part) for part in place.relative_to(folder).parts):
            continue
        with os.scandir(place) as entries:  # closed before the first is given: who asks for one leaves the rest
            files = [entry.name for entry in entries if not entry.name.startswith(".") and not entry.is_dir()]
        names = [name for name in files if name.lower().endswith(IMAGES)]
        if others is not None and len(names) < len(files):
            endings = (Path(name).suffix.lower() for name in files)
            others.update(ending for ending in endings if ending in OTHER_IMAGES)
        yield from (place / name for name in names)


def count_images(folders: Iterable[Path], others: Counter[str]) -> dict[str, int]:
    """The number of images in each folder, by its name; ``others`` as `find_images` counts them."""
    counts = {}
    for folder in folders:
        counts[folder.name] = sum(1 for _ in find_images(folder, others))
    return counts


def class_folders(folder: Path) -> list[Path]:
    """The folders in a folder that may be classes or splits, in order."""
    return sorted(entry for entry in folder.iterdir() if entry.is_dir() and not is_tool_folder(entry.name))


def parse_picture(cell: Any, folder: Path) -> Any:
    """The path in a table's cell, or its image as bytes or as ``datasets`` keeps it; None for anything else."""
    if isinstance(cell, str) and "\0" not in cell:
        path = folder / Path(cell).expanduser()
        if "\\" in cell and not path.exists():  # as Windows writes it
            path = folder / cell.replace("\\", "/")
        return path if cell else None
    is_stored = isinstance(cell, dict) and any(isinstance(cell.get(key), kind) for key, kind in IMAGE_KEYS)
    return cell if is_stored or (isinstance(cell, bytes) and cell) else None


def describe_unread(others: Counter[str]) -> str:
    """Images that are not read, by their endings, as `find_images` counts them."""
    endings = preview([f"{count:,} {ending}" for ending, count in sorted(others.items())])
    return f"files that are not read: {endings} (save them as .png or .jpg)"


def describe_missing(file: Path, pictures: Sequence[Any]) -> tuple[int, str]:
    """How many of the images that a table names are no files, and a sentence: the first, where one of its name is."""
    missing = [picture for picture in pictures if isinstance(picture, Path) and not picture.is_file()]
    if not missing:
        return 0, ""
    images = islice(find_images(file.parent), MAX_SEARCHED)
    elsewhere = next((path for path in images if path.name == missing[0].name), None)
    hint = f", while {elsewhere.relative_to(file.parent)} is there" if elsewhere is not None else ""
    return len(missing), (
        f"{len(missing):,} of {len(pictures):,} images that it names are missing, the first: {missing[0]}{hint} (a "
        "path is relative to the table's folder)"
    )


def split_names(split: str) -> tuple[str, ...]:
    """The names that a split's folder may have: its own name, then the usual ones."""
    return next((names for names in SYNONYMS if split in names), (split,))


def find_split_folder(folder: Path, split: str) -> Path | None:
    """The folder of a split, by its name or a usual synonym in upper or lower case; None if there is none."""
    exact = next((folder / name for name in (split, *split_names(split)) if (folder / name).is_dir()), None)
    if exact is not None or not folder.is_dir():
        return exact
    by_name = {entry.name.lower(): entry for entry in class_folders(folder)}
    return next((by_name[name] for name in (split.lower(), *split_names(split)) if name in by_name), None)


def are_split_names(names: list[str]) -> bool:
    """Whether folders are all named as splits: then they are not classes."""
    return all(name.lower() in chain(*SYNONYMS) for name in names)
