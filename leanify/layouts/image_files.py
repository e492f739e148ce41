"""Images in folders of classes: which files and folders count. Does not import torch."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from leanify.core.errors import DataError
from leanify.core.files.reading import is_file, open_file, preview, walk_folders
from leanify.layouts.columns import IMAGES, TABLES
from leanify.layouts.split_names import are_parts, are_split_names, choose_split, is_split, parse_split

TOOL_FOLDERS = (
    "__macosx", "__pycache__", "node_modules", "cache", "_cache", "thumbnails", "_thumbnails", "lost+found",
    "@eadir", "@recycle", "@tmp", "#recycle", "#snapshot", "$recycle.bin", "recycler", "system volume information",
)  # fmt: skip


OTHER_IMAGES = (
    ".heic", ".heif", ".jxl", ".svg", ".psd", ".tga", ".ico", ".exr", ".hdr", ".dng", ".cr2", ".nef", ".dcm", ".nii",
)  # fmt: skip  # that are not read
MAX_SEARCHED = 100_000  # images among which a missing one is looked for
IMAGE_KEYS = (("bytes", bytes), ("path", str))  # of an image, as `datasets` keeps it in a table
LOOKED_UP, FIRST = 20, 3  # cells by which a folder is found, and of them those without which the rest is not looked up
MAX_BESIDE, FEW_FOLDERS = 40, 5  # folders in which they are looked up; folders of splits
MASKS = re.compile(
    r"masks?|annot(ation)?s?|anns?|labels?|gts?|gtfine|ground_?truths?|segment(ation)?s?|segmentationclass"
)
PICTURE_WORDS = re.compile(  # names of folders of pictures, without the words for masks
    r"[\d_ .-]|train(ing)?|test(ing)?|val(id(ation)?)?|dev|eval|jpe?g|png|leftimg8bit|images?|imgs?|photos?|pictures?"
    r"|originals?|inputs?|rgb|dir(?=$|_)|folder|dataset|set|data|bit"
)
NOTES = (".md", ".rst", ".pdf", ".docx", ".py", ".ipynb")  # endings of files beside data, and beginnings of their names
NOTE_STEMS = ("readme", "license", "licence", "dataset_infos", "citation")
TABLE_FOLDERS = re.compile(r"(.*[_ -])?(meta(data)?|anno(tation)?s?|labels?|lists?|splits?|csvs?|ground_?truths?)")
NUMBERS = (
    "its labels are numbers, and images are learnt by class; a function of your own may read numbers, "
    "--set data.name=file.py:function"
)


def has_tables(name: str) -> bool:
    """Whether a folder of this name has tables about the pictures in the folders beside it."""
    return TABLE_FOLDERS.fullmatch(name.lower()) is not None


def is_tool_folder(name: str) -> bool:
    """Whether a folder of this name belongs to an editor, an archive, a file system or a cache, and not to a class."""
    return name.startswith(".") or name.lower() in TOOL_FOLDERS


class ImageFiles:
    """The images of FOLDER/CLASS/…, with the interface of a timm reader: index → (open file, class).

    timm's own reader takes the innermost folder's name, and so loses what lies deeper or gives it another class.
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
    return path.stat().st_size if is_file(path) else -1


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


def has_images(folder: Path) -> bool:
    """Whether there is an image below a folder, however deep."""
    return next(find_images(folder), None) is not None


def picture_folders(folder: Path) -> list[Path]:
    """The folders in a folder that may be classes or splits, and have images."""
    return [inner for inner in class_folders(folder) if has_images(inner)]


def data_folder(place: Path) -> Path:
    """The folder of the data: the only one in a folder that has nothing else but notes (data/ and README.md)."""
    for _ in range(FEW_FOLDERS):
        try:
            entries = [entry for entry in place.iterdir() if not is_tool_folder(entry.name)]
            others = [entry for entry in entries if entry.is_dir() or entry.suffix.lower() not in NOTES]
            others = [entry for entry in others if entry.is_dir() or not entry.name.lower().startswith(NOTE_STEMS)]
            if len(others) != 1 or not others[0].is_dir() or is_split(others[0].name) or has_picture(others[0]):
                return place
        except OSError:
            return place
        place = others[0]
    return place


@dataclass(frozen=True)
class PictureFolder:
    """Where a table's pictures are: the folder that its cells are relative to, and the suffix that they lack.

    ``parts`` are all folders of a set that comes in parts.
    """

    place: Path
    ending: str = ""
    parts: tuple[Path, ...] = ()

    def parse(self, cell: Any) -> Any:
        """The path in a table's cell, or its image as bytes or as ``datasets`` keeps it; None for anything else."""
        if isinstance(cell, int) and self.ending:
            cell = str(cell)
        if isinstance(cell, str) and "\0" not in cell:
            path = self.place / Path(f"{cell}{self.ending}").expanduser()
            if "\\" in cell and not is_file(path):  # as Windows writes it
                path = self.place / cell.replace("\\", "/")
            if self.parts and not is_file(path):
                inner = [part / path.relative_to(self.place) for part in self.parts]
                path = next(filter(is_file, inner), path)
            return path if cell else None
        is_stored = isinstance(cell, dict) and any(isinstance(cell.get(key), kind) for key, kind in IMAGE_KEYS)
        return cell if is_stored or (isinstance(cell, bytes) and cell) else None

    def count(self, cells: Sequence[Any]) -> int:
        """How many cells are files here."""
        pictures = (self.parse(cell) for cell in cells)
        return sum(isinstance(picture, Path) and is_file(picture) for picture in pictures)


def find_picture_folder(file: Path, cells: Sequence[Any]) -> PictureFolder | None:
    """The folder of the pictures that a table's cells name: its own or a neighbour; None if the files do not exist.

    ``cells`` may lack the suffix (Kaggle's ids).
    """
    names = [cell for cell in cells if isinstance(cell, (str, int)) and str(cell).strip()][:LOOKED_UP]
    if not names:
        return None
    # folders next to the table, its split's first; for a table in meta/ or annotations/ also the folders next to meta/
    is_below = str(names[0]).startswith(f"{file.absolute().parent.name}/")  # cells that begin with their folder's name
    outer = [file.absolute().parent.parent] if is_below or has_tables(file.parent.name) else []
    neighbours = [*class_folders(file.parent), *chain(*map(class_folders, () if is_below else outer))]
    split = parse_split(file.stem) or parse_split(file.parent.name)
    neighbours.sort(key=lambda folder: split is None or parse_split(folder.name) != split)
    folders = [file.parent, *outer, *neighbours]
    for folder in neighbours:
        folders += class_folders(folder)[:MAX_BESIDE]
    # folders that are parts of one, with their pictures inside or in a folder of their own
    parts = []
    for folder in neighbours[:MAX_BESIDE]:
        others = [other.name for other in neighbours[:MAX_BESIDE] if other != folder]
        if any(are_parts([folder.name, other]) for other in others):
            parts.append(next(iter(class_folders(folder)), folder))
    has_suffix = all(str(name).lower().endswith(IMAGES) for name in names)
    for folder in folders[:MAX_BESIDE]:
        for ending in ("",) if has_suffix else (*IMAGES, *(suffix.upper() for suffix in IMAGES)):
            candidate = PictureFolder(folder, ending, tuple(parts) if folder in parts else ())
            if candidate.count(names[:FIRST]) and 2 * candidate.count(names) > len(names):
                return candidate
    return None


def mask_folders(place: Path) -> list[str]:
    """The folders of masks of a folder with pictures and masks, or of its training split; [] if there are none."""
    for folder in filter(None, (place, find_split_folder(place, "train"))):
        names = [inner.name for inner in picture_folders(folder)]
        kinds = {name: PICTURE_WORDS.sub("", name.lower()) for name in names}
        masks = [name for name, kind in kinds.items() if MASKS.fullmatch(kind)]
        if masks and {kinds[name] for name in names if name not in masks} == {""}:
            return masks
    return []


def describe_unread(others: Counter[str]) -> str:
    """Images that are not read, by their endings, as `find_images` counts them."""
    endings = preview([f"{count:,} {ending}" for ending, count in sorted(others.items())])
    return f"files that are not read: {endings} (save them as .png or .jpg)"


def describe_missing(file: Path, pictures: Sequence[Any]) -> tuple[int, str]:
    """The number of images that a table names and that do not exist, and a sentence about the first."""
    missing = [picture for picture in pictures if isinstance(picture, Path) and not is_file(picture)]
    if not missing:
        return 0, ""
    images = islice(find_images(file.parent), MAX_SEARCHED)
    elsewhere = next((path for path in images if path.name == missing[0].name), None)
    hint = f", while {elsewhere.relative_to(file.parent)} is there" if elsewhere is not None else ""
    are = "is" if len(missing) == 1 else "are"
    return len(missing), (
        f"{len(missing):,} of {len(pictures):,} images that it names {are} missing, the first: {missing[0]}{hint} (a "
        "path is relative to the table's folder)"
    )


def find_split_folder(folder: Path, split: str) -> Path | None:
    """The folder of a split, by its name or a usual one (`split_names`); None if there is none.

    It may be inside the only folder that has splits, or inside a folder of its own name, as archives unpack.
    """
    if not folder.is_dir():
        return None
    folders = class_folders(folder)
    place = choose_split(folders, split)
    if place is None and len(folders) <= FEW_FOLDERS and choose_split(folders, "train") is None:
        inner_folders = [inner for inner in map(class_folders, folders) if choose_split(inner, "train") is not None]
        place = choose_split(inner_folders[0], split) if len(inner_folders) == 1 else None
    if place is None:
        return None
    # a folder called train has pictures like its neighbours bus and car, and no table names them
    classes = [folder for folder in folders if parse_split(folder.name) is None]
    has_table = any(path.suffix.lower() in TABLES for path in folder.iterdir())
    if place in folders and len(classes) > 1 and not has_table and all(map(has_picture, (place, *classes))):
        return None
    inner = class_folders(place)
    return inner[0] if len(inner) == 1 and parse_split(inner[0].name) == parse_split(place.name) is not None else place


def has_picture(folder: Path) -> bool:
    """Whether a folder contains a picture, not counting its subfolders."""
    return any(path.name.lower().endswith(IMAGES) for path in folder.iterdir())


def find_class_folders(place: Path, split: str) -> Path | None:
    """The folder with one folder of images for each class: a split's, or the place itself; None if there is none."""
    train = find_split_folder(place, split) or place
    if not train.is_dir():
        return None
    names = [folder.name for folder in picture_folders(train)]
    return train if len(names) > 1 and not are_split_names(names) and not are_parts(names) else None
