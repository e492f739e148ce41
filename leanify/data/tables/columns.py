"""Usual column names of tables, to guess which hold texts, labels or images. Does not import torch."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from shlex import quote
from typing import Any

from leanify.errors import DataError
from leanify.runs.files import few

TABLES = (".csv", ".tsv", ".jsonl", ".parquet")
CONLL = (".conll", ".iob", ".iob2", ".bio")  # a token and its tag a line (`conll`)
IMAGES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm")  # that Pillow reads
TEXTS = (
    ("sentence1", "sentence2"), ("premise", "hypothesis"), ("question1", "question2"), ("question", "answer"),
    ("text",), ("sentence",), ("review",), ("content",), ("question",), ("title",), ("body",), ("comment",),
    ("comment_text",), ("tweet",), ("message",), ("utterance",), ("document",), ("headline",),
)  # fmt: skip
LABELS = (
    "label", "labels", "class", "category", "target", "score", "rating", "sentiment", "stars", "intent", "topic",
    "topics", "categories", "genres", "tags", "emotion", "opinion", "polarity",
)  # fmt: skip
TOKENS = ("tokens", "words")
TAGS = ("tags", "ner_tags", "ner", "pos_tags", "pos", "chunk_tags", "labels", "label")
SEPARATORS = "|;,"  # between several labels in one cell, in the order they are tried
WITHOUT_LABELS = ("masked-lm", "causal-lm", "sentence-embedding")  # tasks that read texts alone
PICTURES = ("image", "path", "file", "filename", "file_name", "image_path", "filepath", "img")
MEANT = {"text": "texts", "label": "labels", "image": "images"}
SHARD = re.compile(r"(.+)-([0-9]{5})-of-([0-9]{5})\.parquet")  # as `datasets` and the hub name them
LONGEST = 1000  # digits of a label that is a number: Python reads no more than 4,300
SPLITS = {  # file names of a split, in order of preference
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev", "test"),
}


def one_of(names: Sequence[str], found: Sequence[str]) -> str | None:
    """Return the column that matches the first of ``names`` (case-insensitive), as spelt in the file; or None."""
    known = {name.lower(): name for name in found if isinstance(name, str)}  # a row with a cell too many has no name
    return next((known[name.lower()] for name in names if name.lower() in known), None)


def texts_in(found: Sequence[str]) -> tuple[str, ...]:
    """Guess the text columns by name, as spelt in the file; () if no name is known."""
    known = {name.lower(): name for name in found if isinstance(name, str)}
    for names in TEXTS:
        if set(names) <= known.keys():
            return tuple(known[name] for name in names)
    return ()


def missing_columns(file: Path, found: Sequence[Any], **wanted: tuple[Sequence[str], Sequence[str]]) -> DataError:
    """What is wrong with the columns that are asked for, and settings that name columns which the file has.

    ``wanted`` has, by key (``text`` for data.text), the names that the recipe asks for and the usual ones, which are
    looked for if it asks for none. A column is proposed by its spelling, by its name, or because no other is left.
    """
    known = {str(name).lower(): str(name) for name in found}
    right: dict[str, list[str | None]] = {}
    wrong: dict[str, list[str | None]] = {}
    for key, (asked, usual) in wanted.items():
        column = one_of(usual, list(known.values()))
        there = [known.get(name.lower()) for name in asked] or [column]
        (wrong if None in there else right)[key] = there
    taken = {name for names in right.values() for name in names}
    left = [name for name in known.values() if name not in taken]
    missing, settings = [], []
    for key in wrong:
        asked, usual = wanted[key]
        absent = [name for name in asked if name.lower() not in known]
        named = " and ".join(f"no column {name[:80]}" for name in absent)
        missing.append(named or f"no column of {MEANT.get(key, key)}")
        proposed = _proposed(absent, usual, left)
        left = [name for name in left if name not in proposed]
        settings.append(f"--set {quote(f'data.{key}={_as_setting(key, proposed)}')}")
    return DataError(
        f"{file} has {' and '.join(missing)}; it has {few([*known.values()], 8)}. Name one that it has: "
        f"{' '.join(settings)}"
    )


def _proposed(absent: Sequence[str], usual: Sequence[str], left: Sequence[str]) -> list[str]:
    """The columns that were meant: those spelt nearly so, one of a usual name, the only one left; else ``COLUMN``."""
    lower = {name.lower(): name for name in left}
    near = []
    for name in absent:
        near += [lower[match] for match in get_close_matches(name.lower(), lower, 1)]
    if near:
        return near
    guess = one_of(usual, left)
    if guess is not None:
        return [guess]
    return list(left) if len(left) == 1 else ["COLUMN"]


def _as_setting(key: str, names: Sequence[str]) -> str:
    """The value of a setting that names columns: text takes a list, the others one, quoted where TOML needs it."""
    if key == "text":
        return json.dumps(names, ensure_ascii=False)
    is_plain = re.fullmatch(r"(?!true$|false$)[A-Za-z_][\w-]*", names[0])
    return names[0] if is_plain else json.dumps(names[0], ensure_ascii=False)


def file_of(folder: Path, split: str, suffixes: Sequence[str]) -> Path | None:
    """A split's file under one of its usual names, or the first of its Parquet shards; None if there is none."""
    stems = (split, *SPLITS.get(split, ()))
    for stem in stems:
        for suffix in suffixes:
            if (folder / f"{stem}{suffix}").is_file():
                return folder / f"{stem}{suffix}"
    if ".parquet" not in suffixes or not folder.is_dir():
        return None
    first_shards = {}
    for path in sorted(folder.iterdir()):
        part = SHARD.fullmatch(path.name)
        if part and int(part[2]) == 0:
            first_shards[part[1]] = path
    return next((first_shards[stem] for stem in stems if stem in first_shards), None)


def shards_of(file: Path) -> list[Path]:
    """The Parquet files that one of them stands for, NAME-00000-of-00002.parquet, in order; else the file itself."""
    first = SHARD.fullmatch(file.name)
    if first is None or int(first[2]):
        return [file]
    shards = []
    for path in sorted(file.parent.iterdir()):
        part = SHARD.fullmatch(path.name)
        if part and (part[1], part[3]) == (first[1], first[3]):
            shards.append(path)
    return shards


def stem_of(file: Path) -> str:
    """A file's name without its suffix and without the number of a shard: ``test`` of test-00000-of-00001.parquet."""
    part = SHARD.fullmatch(file.name)
    return part[1] if part else file.stem


def described(file: Path) -> str:
    """A table's path, and how many shards it stands for."""
    many = len(shards_of(file))
    return f"{file} (of {many} shards)" if many > 1 else str(file)


def only_file(folder: Path, suffixes: Sequence[str]) -> Path | None:
    """The one file of a folder that ends so, whatever its name: what there is to train on; None if there are more."""
    found = [file for suffix in suffixes for file in folder.glob(f"*{suffix}") if file.is_file()]
    one = len(found) == 1 and stem_of(found[0]) not in SPLITS["validation"]
    return found[0] if one else None


def class_names(file: Path, column: str) -> tuple[str, ...]:
    """The names of a column's integer classes, as ``datasets`` writes them into Parquet files (ClassLabel); else ()."""
    if file.suffix != ".parquet":
        return ()
    import pyarrow.parquet

    try:
        written = (pyarrow.parquet.read_schema(file).metadata or {}).get(b"huggingface", b"{}")
        feature = json.loads(written).get("info", {}).get("features", {}).get(column)
    except (pyarrow.ArrowException, OSError, ValueError, RecursionError, AttributeError):
        return ()  # what reads the table says what is wrong with it
    if isinstance(feature, dict) and feature.get("_type") in ("Sequence", "List", "LargeList"):
        feature = feature.get("feature")
    feature = feature[0] if isinstance(feature, list) and len(feature) == 1 else feature
    names = feature.get("names") if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" else None
    whole = isinstance(names, list) and all(isinstance(name, str) for name in names) and len(set(names)) == len(names)
    return tuple(names) if names and whole else ()


def by_class_name(cell: Any, names: Sequence[str]) -> Any:
    """A cell with classes by name, where it is an index into ``names`` or a list of them; any other as it is."""
    if isinstance(cell, (list, tuple)):
        return [by_class_name(each, names) for each in cell]
    return names[cell] if type(cell) is int and 0 <= cell < len(names) else cell


def tagged_in(
    row: Mapping[str, Any], token_names: Sequence[str] = TOKENS, tag_names: Sequence[str] = TAGS
) -> tuple[str, str] | None:
    """Guess the columns of tokens and tags by name; None unless ``row`` has equally many of both."""
    tokens, tags = one_of(token_names, list(row)), one_of(tag_names, list(row))
    if tokens is None or tags is None:
        return None
    words, kinds = parts_of(row[tokens]), parts_of(row[tags])
    return (tokens, tags) if words is not None and kinds is not None and len(words) == len(kinds) else None


def parts_of(cell: Any) -> tuple[str, ...] | None:
    """The entries of a list, or the words of a string, as strings; None for anything else."""
    if isinstance(cell, str):
        return tuple(cell.split())
    if isinstance(cell, (list, tuple)) and all(isinstance(each, (str, int)) for each in cell):
        return tuple(map(str, cell))
    return None


def labels_of(cell: Any, separator: str | None) -> tuple[str, ...] | None:
    """The distinct labels in a cell: a list's entries, or a string's parts; () if empty, None for anything else."""
    if cell is None or isinstance(cell, (str, int)):
        text = "" if cell is None else str(cell)
        parts: Iterable[Any] = text.split(separator) if separator else [text]
    elif isinstance(cell, (list, tuple)) and all(isinstance(each, (str, int)) for each in cell):
        parts = cell
    else:
        return None
    names = [str(part).strip() for part in parts]
    return tuple(dict.fromkeys(name for name in names if name))


def separator_of(cells: Sequence[Any]) -> str | None:
    """Guess the separator between several labels in a cell: one that yields fewer distinct labels than cells.

    So "red|round", "red" and "round" have two labels, but "Oslo, Norway" and "Lima, Peru" are not split.
    """
    texts = {cell for cell in cells if isinstance(cell, str)}
    for separator in SEPARATORS:
        if any(separator in text for text in texts):
            labels = {label for text in texts for label in labels_of(text, separator) or ()}
            if 1 < len(labels) < len(texts):
                return separator
    return None


def have_several(cells: Sequence[Any]) -> bool:
    """Whether cells of a column have several labels: lists, or strings with a separator."""
    return any(isinstance(cell, (list, tuple)) for cell in cells) or separator_of(cells) is not None


def label_of(cell: Any) -> str | None:
    """A label (string, number or boolean) as text; None for anything else, and for an empty string."""
    return str(cell).strip() or None if isinstance(cell, (str, int, float)) else None


def in_order(labels: Iterable[str], order: Sequence[str] = ()) -> list[str]:
    """Sort labels: as in ``order`` if all are there, else numerically if all are integers, else alphabetically."""
    labels = list(labels)
    if set(labels) <= set(order):
        return [name for name in order if name in labels]
    whole = all(label.removeprefix("-").isdecimal() and len(label) <= LONGEST for label in labels)
    return sorted(labels, key=int) if whole else sorted(labels)
