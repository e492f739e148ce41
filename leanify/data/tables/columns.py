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
CONLL = (".conll", ".iob", ".iob2", ".bio")  # a token and its tag a line (`rows`)
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
    """The column that matches the first of ``names``, in upper or lower case, as spelt in the file; or None."""
    known = {name.lower(): name for name in found if isinstance(name, str)}  # a row with a cell too many has no name
    return next((known[name.lower()] for name in names if name.lower() in known), None)


def texts_in(found: Sequence[str]) -> tuple[str, ...]:
    """Guess the text columns by name, as spelt in the file; () if no name is known."""
    known = {name.lower(): name for name in found if isinstance(name, str)}
    for names in TEXTS:
        if set(names) <= known.keys():
            return tuple(known[name] for name in names)
    return ()


def pick(file: Path, found: Sequence[Any], **wanted: tuple[Sequence[str], Sequence[str]]) -> dict[str, list[str]]:
    """The columns that are asked for, else those of a usual name, as spelt in the file. Raises DataError.

    ``wanted`` has, by key (``text`` for data.text), the names that the recipe asks for and the usual ones.
    The error proposes columns that the file has: by spelling, by name, or because no other is left.
    """
    known = {str(name).lower(): str(name) for name in found}
    right: dict[str, list[str]] = {}
    for key, (asked, usual) in wanted.items():
        guess = one_of(usual, list(known.values()))
        names = asked or [name for name in (guess,) if name is not None]
        if names and all(name.lower() in known for name in names):
            right[key] = [known[name.lower()] for name in names]
    if len(right) == len(wanted):
        return right
    left = [name for name in known.values() if all(name not in names for names in right.values())]
    missing, settings = [], []
    for key, (asked, usual) in wanted.items():
        if key in right:
            continue
        absent = [name for name in asked if name.lower() not in known]
        named = " and ".join(f"no column {name[:80]}" for name in absent)
        missing.append(named or f"no column of {MEANT.get(key, key)}")
        proposed = _proposed(absent, usual, left)
        left = [name for name in left if name not in proposed]
        settings.append(f"--set {quote(f'data.{key}={_as_setting(key, proposed)}')}")
    raise DataError(
        f"{file} has {' and '.join(missing)}; it has {few([*known.values()], 8)}. Name one that it has: "
        f"{' '.join(settings)}"
    )


def _proposed(absent: Sequence[str], usual: Sequence[str], left: Sequence[str]) -> list[str]:
    """The columns that were meant: of a similar spelling, of a usual name, the only one left; or "COLUMN"."""
    lower = {name.lower(): name for name in left}
    near: list[str] = []
    for name in absent:
        near += get_close_matches(name.lower(), lower, 1)
    if near:
        return [lower[name] for name in near]
    guess = one_of(usual, left)
    if guess is not None:
        return [guess]
    return list(left) if len(left) == 1 else ["COLUMN"]


def _as_setting(key: str, names: Sequence[str]) -> str:
    """The value of a setting that names columns: text takes a list, the others one, quoted for TOML."""
    if key == "text":
        return json.dumps(names, ensure_ascii=False)
    is_plain = re.fullmatch(r"(?!true$|false$)[A-Za-z_][\w-]*", names[0])
    return names[0] if is_plain else json.dumps(names[0], ensure_ascii=False)


def file_of(folder: Path, split: str, suffixes: Sequence[str]) -> Path | None:
    """A split's file under one of its usual names, or the first of its Parquet shards; None if none."""
    stems = (split, *SPLITS.get(split, ()))
    for stem in stems:
        for suffix in suffixes:
            if (folder / f"{stem}{suffix}").is_file():
                return folder / f"{stem}{suffix}"
    first_shards = {}
    for path in sorted(folder.glob("*-00000-of-*.parquet")) if ".parquet" in suffixes else ():
        first_shards[stem_of(path)] = path
    return next((first_shards[stem] for stem in stems if stem in first_shards), None)


def shards_of(file: Path) -> list[Path]:
    """The Parquet files that one stands for, NAME-00000-of-00002.parquet, in order; else the file itself."""
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
    """A file's name without suffix and number of a shard: ``test`` of test-00000-of-00001.parquet."""
    part = SHARD.fullmatch(file.name)
    return part[1] if part else file.stem


def described(file: Path) -> str:
    """A table's path, and how many shards it stands for."""
    many = len(shards_of(file))
    return f"{file} (of {many} shards)" if many > 1 else str(file)


def only_file(folder: Path, suffixes: Sequence[str]) -> Path | None:
    """The one file of a folder that ends so, which is the one to train on; None if there are more."""
    found = [file for suffix in suffixes for file in folder.glob(f"*{suffix}") if file.is_file()]
    one = len(found) == 1 and stem_of(found[0]) not in SPLITS["validation"]
    return found[0] if one else None


def class_names(file: Path, column: str) -> tuple[str, ...]:
    """The names of a column's integer classes, as ``datasets`` writes them into Parquet files; else ()."""
    if file.suffix != ".parquet":
        return ()
    import pyarrow.parquet

    try:
        written = (pyarrow.parquet.read_schema(file).metadata or {}).get(b"huggingface", b"{}")
        feature = json.loads(written).get("info", {}).get("features", {}).get(column)
        if isinstance(feature, dict) and feature.get("_type") in ("Sequence", "List", "LargeList"):
            feature = feature.get("feature")
        if isinstance(feature, list) and len(feature) == 1:
            feature = feature[0]
        names = feature["names"] if feature["_type"] == "ClassLabel" else []
        whole = all(isinstance(name, str) for name in names) and len(set(names)) == len(names)
    except (pyarrow.ArrowException, OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return ()  # what reads the table says what is wrong with it
    return tuple(names) if isinstance(names, list) and whole else ()


def by_class_name(cell: Any, names: Sequence[str]) -> Any:
    """A cell with classes by name, where it is an index into ``names`` or a list of them."""
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
    if words is None or kinds is None or len(words) != len(kinds):
        return None
    return tokens, tags


def parts_of(cell: Any) -> tuple[str, ...] | None:
    """The entries of a list, or the words of a string, as strings; None for anything else."""
    if isinstance(cell, str):
        return tuple(cell.split())
    if isinstance(cell, (list, tuple)) and all(isinstance(each, (str, int)) for each in cell):
        return tuple(map(str, cell))
    return None


def labels_of(cell: Any, separator: str | None) -> tuple[str, ...] | None:
    """The distinct labels in a cell, a list or a string; () if it is empty, None for anything else."""
    parts: Iterable[Any]
    if cell is None:
        parts = ()
    elif isinstance(cell, (str, int)):
        parts = str(cell).split(separator) if separator else [cell]
    elif isinstance(cell, (list, tuple)) and all(isinstance(each, (str, int)) for each in cell):
        parts = cell
    else:
        return None
    names = dict.fromkeys(str(part).strip() for part in parts)
    return tuple(name for name in names if name)


def separator_of(cells: Sequence[Any]) -> str | None:
    """Guess the separator between several labels in a cell: one that yields fewer distinct labels than cells.

    So "red|round", "red" and "round" have two labels, but "Oslo, Norway" and "Lima, Peru" are not split.
    """
    texts = {cell for cell in cells if isinstance(cell, str)}
    for separator in SEPARATORS:
        labels: set[str] = set()
        for text in texts:
            labels.update(labels_of(text, separator) or ())
        if any(separator in text for text in texts) and 1 < len(labels) < len(texts):
            return separator
    return None


def have_several(cells: Sequence[Any]) -> bool:
    """Whether cells of a column have several labels: lists, or strings with a separator."""
    return any(isinstance(cell, (list, tuple)) for cell in cells) or separator_of(cells) is not None


def label_of(cell: Any) -> str | None:
    """A label (string, number or boolean) as text; None for anything else, and for an empty string."""
    return str(cell).strip() or None if isinstance(cell, (str, int, float)) else None


def number_in(text: str) -> float | None:
    """The finite number that a label stands for; None if it is none."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if abs(value) < float("inf") else None


def in_order(labels: Iterable[str], order: Sequence[str] = ()) -> list[str]:
    """Sort labels: as in ``order`` if all are there, else as numbers if all are integers, else by letters."""
    labels = list(labels)
    if set(labels) <= set(order):
        return [name for name in order if name in labels]
    whole = all(label.removeprefix("-").isdecimal() and len(label) <= LONGEST for label in labels)
    return sorted(labels, key=int) if whole else sorted(labels)
