"""Usual column names of tables, to guess which hold texts, labels or images. Does not import torch."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from shlex import quote
from typing import Any, Literal

from leanify.core.errors import DataError
from leanify.core.files.reading import open_text, preview, read_object, text_encoding
from leanify.layouts.split_names import ALL_WORDS, SHARD, WORDS, choose_split, parse_split

TEXT_FILES = (".txt", ".text", ".tokens", ".raw")  # of plain text; enwik8 has no suffix
JSON = (".jsonl", ".ndjson", ".json")
TABLES = (".csv", ".tsv", *JSON, ".parquet")
FASTTEXT = (".txt", ".ft", ".ft.txt")  # endings of fastText's tables, of lines such as `__label__pos a fine film`
FASTTEXT_SPLITS = (".train", ".valid", ".test")  # endings in its tutorial
FASTTEXT_MARK = "__label__"
IMAGES = (
    ".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".webp", ".avif", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".jp2",
)  # fmt: skip  # that Pillow reads
TEXTS = (
    ("sentence1", "sentence2"), ("premise", "hypothesis"), ("question1", "question2"), ("question", "answer"),
    ("question", "passage"), ("question", "sentence"), ("#1_string", "#2_string"), ("sentence_a", "sentence_b"),
    ("text1", "text2"), ("text_a", "text_b"), ("sentence_1", "sentence_2"), ("s1", "s2"), ("query", "passage"),
    ("context", "hypothesis"), ("text", "text_pair"), ("text", "text2"),
    ("text",), ("sentence",), ("review",), ("content",), ("question",), ("body",), ("comment",),
    ("comment_text",), ("tweet",), ("message",), ("utterance",), ("document",), ("headline",), ("review_text",),
    ("reviewtext",), ("review_body",), ("clean_text",), ("phrase",), ("abstract",), ("description",), ("title",),
)  # fmt: skip
LABELS = (
    "label", "labels", "class", "category", "target", "score", "rating", "sentiment", "stars", "intent", "topic",
    "topics", "categories", "genres", "tags", "emotion", "opinion", "polarity", "gold_label", "is_duplicate", "quality",
    "airline_sentiment", "similarity", "relatedness_score", "similarity_score", "breed", "star_rating", "overall",
)  # fmt: skip
WITHOUT_LABELS = ("masked-lm", "causal-lm", "sentence-embedding")  # tasks that read texts alone
PICTURES = (
    "image", "path", "file", "filename", "file_name", "image_path", "filepath", "img", "image_id", "img_path",
    "image_name", "img_id", "image_file", "filepaths", "photo",
)  # fmt: skip
CONTENTS = {"text": "texts", "label": "labels", "image": "images"}
PART = re.compile(r"(?:part-)?([0-9]{3,6})(?:[-_.].*)?\.parquet")  # as Spark and the hub's own conversion name parts
LONGEST_LINE = 1 << 16  # characters by which a line is recognised
LISTS = (".lst", ".list", ".conll", ".iob", ".iob2", ".bio", ".data")  # endings of text files that may be tables
MIN_LINES, MAX_LINES = 5, 200  # lines by which a text file is a table
PATH_LABEL = re.compile(r"(?<=\.[a-z]{3})[ \t,;]+|(?<=\.[a-z]{4})[ \t,;]+", re.IGNORECASE)  # between a path and a label
TAG = re.compile(r"O|[BIESLU]-\S+")
TREE = re.compile(r"\(\d .+\)")  # a sentence in brackets, with the label of each of its parts
FEW_MARKS, TEXT_MARKS = ("\t", ";", "|"), ("\t", " ::: ", " ||| ", ";", "|", "@")  # between cells of tables, of texts
NO_ROWS = ("tags", "trees", "mixed")  # text files with labels, of which a table is to be made
MAX_LABEL = 1000  # characters of a label; Python reads no number of more than 4,300 digits
SPLIT_COLUMNS = ("split", "subset", "partition", "set", "dataset_split", "data_split", "is_valid", "is_test")
SPLIT_NAMES = ALL_WORDS | {"true", "false"}  # in such a column of a table of several splits
MISSING_LABELS = ("nan", "na", "n/a", "null", "<na>", "#n/a")  # as pandas and R write no label
MISSING_NUMBERS = ("nan", "na", "n/a", "null", "none")  # words for no number, in a column of numbers
DECIMAL_COMMA = re.compile(r"[+-]?[0-9]+,(?![0-9]{3}$)[0-9]+")  # three digits may as well be thousands


def match_column(names: Sequence[str], candidates: Sequence[str]) -> str | None:
    """The column that matches the first of ``names``, as spelt in the file; or None."""
    # a row with a cell too many has a column without a name
    spellings = {spelling(name): name for name in candidates if isinstance(name, str)}
    return next((spellings[spelling(name)] for name in names if spelling(name) in spellings), None)


def guess_texts(candidates: Sequence[str]) -> tuple[str, ...]:
    """Guess the text columns by name, as spelt in the file; () if no name is known."""
    spellings = {spelling(name): name for name in candidates if isinstance(name, str)}
    for names in TEXTS:
        if set(names) <= spellings.keys():
            return tuple(spellings[name] for name in names)
    return ()


def spelling(name: str) -> str:
    """A column's name without what differs between spellings of one: case, spaces and dashes."""
    return re.sub(r"[ -]", "_", name.strip().lower())


def pick_columns(
    file: Path, candidates: Sequence[Any], **wanted: tuple[Sequence[str], Sequence[str]]
) -> dict[str, list[str]]:
    """The requested columns, or the columns with usual names, as spelt in the file. Raises DataError.

    ``wanted`` has, by key (``text`` for data.text), the names that the recipe asks for and the usual ones.
    The error proposes columns that the file has: by spelling, by name, or because no other is left.
    """
    # columns that are there, as the user or convention names them
    spellings = {str(name).lower(): str(name) for name in candidates}
    right: dict[str, list[str]] = {}
    for key, (requested_names, usual) in wanted.items():
        guess = match_column(usual, list(spellings.values()))
        names = requested_names or [name for name in (guess,) if name is not None]
        if names and all(name.lower() in spellings for name in names):
            right[key] = [spellings[name.lower()] for name in names]
    if len(right) == len(wanted):
        return right
    # the others are named in the error, each with a proposal
    used_columns = set(chain(*right.values()))
    unused_columns = [name for name in spellings.values() if name not in used_columns]
    missing, settings = [], []
    for key, (requested_names, usual) in wanted.items():
        if key in right:
            continue
        absent = [name for name in requested_names if name.lower() not in spellings]
        absent_columns = " and ".join(f"no column {name[:80]}" for name in absent)
        missing.append(absent_columns or f"no column of {CONTENTS.get(key, key)}")
        proposals = _propose(absent, usual, unused_columns)
        unused_columns = [name for name in unused_columns if name not in proposals]
        settings.append(f"--set {quote(f'data.{key}={format_setting(key, proposals)}')}")
    raise DataError(
        f"{file} has {' and '.join(missing)}; it has {preview([*spellings.values()], 8)}. Name one that it has: "
        f"{' '.join(settings)}"
    )


def _propose(absent: Sequence[str], usual: Sequence[str], unused_columns: Sequence[str]) -> list[str]:
    """The columns that were meant: of a similar spelling, of a usual name, the only one left; or "COLUMN"."""
    lower = {name.lower(): name for name in unused_columns}
    similar_columns: list[str] = []
    for name in absent:
        similar_columns += get_close_matches(name.lower(), lower, 1)
    if similar_columns:
        return [lower[name] for name in similar_columns]
    guess = match_column(usual, unused_columns)
    if guess is not None:
        return [guess]
    return list(unused_columns) if len(unused_columns) == 1 else ["COLUMN"]


def format_setting(key: str, names: Sequence[str]) -> str:
    """The value of a setting that names columns: text takes a list, the others one, quoted for TOML."""
    if key == "text":
        return json.dumps(names, ensure_ascii=False)
    is_plain = re.fullmatch(r"(?!(true|false|inf|nan)$)[A-Za-z_][\w-]*", names[0])
    return names[0] if is_plain else json.dumps(names[0], ensure_ascii=False)


def is_table(path: Path) -> bool:
    """Whether a file is a table: by its ending, or by the first lines of a text file."""
    return path.suffix.lower() in TABLES or is_text_table(path)


def is_text_table(path: Path) -> bool:
    """Whether a text file is a table, by its first lines."""
    return text_table(path) not in (None, *NO_ROWS)


def text_table(path: Path) -> Literal["fasttext", "cells", "pictures", "tags", "trees", "mixed"] | None:
    """The kind of table that a text file holds, by its first lines; None for plain text.

    fasttext: lines with a label of fastText's; cells: as many cells in each line, between tabs or marks of several
    characters, or a text and one of few labels on the two sides of a semicolon, a bar or an @; pictures: a path to a
    picture and a label. Not read are tags: a token and its tag in each line, with a blank line after a sentence; trees:
    a sentence in brackets in each line; mixed: lines of cells, with other lines between them.
    """
    is_other = path.suffix != "" and path.suffix.lower() not in (*FASTTEXT, *FASTTEXT_SPLITS, *LISTS)
    if is_other or not path.is_file():
        return None
    lines = _read_start(path).splitlines()[:MAX_LINES]
    rows = [line for line in lines if line.strip()]
    words = rows[0].split() if rows else []
    if any(word.startswith(FASTTEXT_MARK) for word in (*words[:1], *words[-1:])):
        return "fasttext"
    if len(rows) < MIN_LINES:
        return None
    cells = [line.split() for line in rows]
    paths = [PATH_LABEL.split(row) for row in rows]
    if all(len(path) > 1 and path[0].lower().endswith(IMAGES) for path in paths):
        return "pictures"
    are_tags = all(len(row) == len(cells[0]) > 1 and TAG.fullmatch(row[-1]) for row in cells)
    if are_tags and (len(rows) < len(lines) or path.suffix.lower() != ".txt"):
        return "tags"
    if all(map(TREE.fullmatch, map(str.strip, rows))):
        return "trees"
    tabbed = [line for line in rows if "\t" in line]
    are_cells = even_mark(tabbed) == "\t" and not any(line.startswith("\t") for line in tabbed)  # no indentation
    if are_cells and MIN_LINES <= len(tabbed) < len(rows) < 2 * len(tabbed) and _have_labels(tabbed, "\t"):
        return "mixed"
    if len(rows) < len(lines):
        return None
    mark = even_mark(rows, TEXT_MARKS)
    is_sure = mark is not None and (mark == "\t" or len(mark) > 1)
    return "cells" if is_sure or (mark is not None and _have_labels(rows, mark)) else None


def _read_start(file: Path) -> str:
    """The first characters of a text file; "" for one with zero bytes."""
    try:
        with open_text(file, DataError, text_encoding(file, DataError), "ignore") as text:
            return text.read(LONGEST_LINE)
    except DataError:
        return ""


def _have_labels(lines: Sequence[str], mark: str) -> bool:
    """Whether lines begin or end with one of a few cells."""
    firsts = {line.partition(mark)[0].strip() for line in lines}
    lasts = {line.rpartition(mark)[2].strip() for line in lines}
    return any(2 <= len(cells) <= len(lines) / MIN_LINES for cells in (firsts, lasts))


def even_mark(lines: Sequence[str], marks: Sequence[str] = FEW_MARKS) -> str | None:
    """The mark between cells, the first of ``marks`` that each line has as often; a single character other than a tab
    must be there once.
    """
    for mark in marks:
        counts = {line.rstrip("\r\n").count(mark) for line in lines}
        if counts == {1} or (len(counts) == 1 and counts != {0} and (mark == "\t" or len(mark) > 1)):
            return mark
    return None


def text_files(folder: Path) -> list[Path]:
    """The .txt files of a folder, in order."""
    return sorted(file for file in _visible_files(folder) if file.suffix.lower() == ".txt")


def _visible_files(folder: Path) -> list[Path]:
    """The files of a folder, without hidden ones, which macOS adds to archives."""
    if not folder.is_dir():
        return []
    return sorted(entry for entry in folder.iterdir() if not entry.name.startswith(".") and entry.is_file())


def find_split_file(folder: Path, split: str, suffixes: Sequence[str]) -> Path | None:
    """A split's file by its name (`split_names`), or the first of its Parquet shards; None if there is none."""
    ranks = {}
    for file in _visible_files(folder):
        shard = SHARD.fullmatch(file.name)
        if file.suffix.lower() in suffixes and (shard is None or not int(shard[2])):
            ranks[file] = list(suffixes).index(file.suffix.lower())
        elif ".csv" in suffixes and parse_split(file.name) is not None and is_text_table(file):
            ranks[file] = len(suffixes)
    return choose_split(sorted(ranks, key=lambda file: (ranks[file], file)), split)


def other_training_tables(file: Path) -> list[str]:
    """The names of further tables to train on in a table's folder, which are not read with it."""
    shards = find_shards(file)
    tables = [one for one in _visible_files(file.parent) if one.suffix.lower() in TABLES and one not in (file, *shards)]
    parses = {one.name: parse_split(split_stem(one)) for one in tables}
    return [name for name, parse in parses.items() if parse is not None and parse[0] in WORDS["train"]]


def find_shards(file: Path) -> list[Path]:
    """The Parquet files that one stands for, NAME-00000-of-00002.parquet or 0000.parquet, in order; else itself."""
    first = SHARD.fullmatch(file.name)
    if (numbered := PART.fullmatch(file.name)) and not int(numbered[1]):
        return sorted(path for path in _visible_files(file.parent) if PART.fullmatch(path.name))
    if first is None or int(first[2]):
        return [file]
    shards = []
    for path in sorted(file.parent.iterdir()):
        part = SHARD.fullmatch(path.name)
        if part and (part[1], part[3]) == (first[1], first[3]):
            shards.append(path)
    return shards


def split_stem(file: Path) -> str:
    """A file's name without suffix and number of a shard: ``test`` of test-00000-of-00001.parquet."""
    part = SHARD.fullmatch(file.name)
    return part[1] if part else file.stem


def describe_table(file: Path) -> str:
    """A table's path, and how many shards it stands for."""
    shard_count = len(find_shards(file))
    return f"{file} (of {shard_count} shards)" if shard_count > 1 else str(file)


def only_file(folder: Path, suffixes: Sequence[str]) -> Path | None:
    """The only file of a folder with such an ending and without a split's name, to train on; None if there are more."""
    # Kaggle's sample of an answer holds no data
    files = [file for file in _visible_files(folder) if "submission" not in file.name.lower()]
    tables = [file for file in files if file.suffix.lower() in suffixes and file.suffix != ".json"]
    if not tables and ".csv" in suffixes and len(files) <= MAX_LINES:
        tables = [file for file in files if is_text_table(file) or (file.suffix == ".json" and _has_objects(file))]
    others = [file for file in tables if parse_split(split_stem(file)) is None]
    if len(others) > 1 and find_shards(others[0]) == others:  # parts of one table
        return others[0]
    return others[0] if len(others) == 1 else None


def _has_objects(file: Path) -> bool:
    """Whether a .json, which may be anything, begins with a list of objects, or with two lines of an object each."""
    start = _read_start(file).lstrip()
    lines = start.splitlines()[:2]
    return re.match(r"\[\s*\{", start) is not None or (len(lines) > 1 and all(line.startswith('{"') for line in lines))


def class_names(file: Path, column: str) -> tuple[str, ...]:
    """The names of a column's integer classes, as ``datasets`` writes them into Parquet files and folders; else ()."""
    info = read_object(file / "dataset_info.json", DataError)
    if file.suffix.lower() != ".parquet" and not info:
        return ()
    import pyarrow.parquet

    try:
        if not info:
            metadata = (pyarrow.parquet.read_schema(file).metadata or {}).get(b"huggingface", b"{}")
            info = json.loads(metadata).get("info", {})
        feature = info.get("features", {}).get(column)
        names = feature["names"] if feature["_type"] == "ClassLabel" else []
        are_names = all(isinstance(name, str) for name in names) and len(set(names)) == len(names)
    except (pyarrow.ArrowException, OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return ()  # the reader of the table reports the damage
    return tuple(names) if isinstance(names, list) and are_names else ()


def name_class(cell: Any, names: Sequence[str]) -> Any:
    """A cell with its class by name, if it is an index into ``names``."""
    return names[cell] if type(cell) is int and 0 <= cell < len(names) else cell


def parse_label(cell: Any) -> str | None:
    """A label (string, number or boolean, alone or in a list) as text; None for nothing, several, or a long text."""
    if isinstance(cell, (list, tuple)) and len(cell) == 1:  # as doccano exports it
        cell = cell[0]
    if not isinstance(cell, (str, int, float)) or (isinstance(cell, str) and len(cell) > MAX_LABEL):
        return None
    return str(cell).strip() or None


def missing_labels(labels: Iterable[str], order: Sequence[str] = ()) -> list[str]:
    """The labels that say that there is none: SNLI's "-", unless "+" is one; words for none, unless all others are as
    short (NA, EU); or -1 where a file names its classes.
    """
    values = set(labels)
    if order:
        return ["-1"] if "-1" in values else []
    words = [value for value in sorted(values) if value.lower() in MISSING_LABELS]
    words = words if any(len(value) > 2 for value in values.difference(words)) else []
    return ["-", *words] if "-" in values and "+" not in values and len(values) > 2 else words


def parse_number(text: str) -> float | None:
    """The finite number that a label stands for, with a point or a decimal comma; None if it is none."""
    try:
        value = float(text.replace(",", ".") if DECIMAL_COMMA.fullmatch(text) else text)
    except ValueError:
        return None
    return value if abs(value) < float("inf") else None


def are_scores(labels: Iterable[str]) -> bool:
    """Whether all labels are numbers, and one has a fraction; a word for a missing number may be among them."""
    present = [label for label in labels if label.lower() not in MISSING_NUMBERS]
    numbers = [parse_number(label) for label in present]
    if None in numbers or not any(number % 1 for number in numbers if number is not None):
        return False
    # two numbers around a comma are two labels (0,2 and 1,3) where both vary, rise, and use up most of a range
    pairs = {tuple(map(int, label.split(","))) for label in present if DECIMAL_COMMA.fullmatch(label)}
    parts = set(chain(*pairs))
    do_vary = all(len(set(side)) > 1 for side in zip(*pairs, strict=True)) and bool(pairs)
    are_lists = do_vary and all(first < second for first, second in pairs) and max(parts) < 2 * len(parts)
    return not are_lists


def sort_labels(labels: Iterable[str], order: Sequence[str] = ()) -> list[str]:
    """Sort labels: as in ``order`` if all are there; as numbers if all are integers; otherwise by letters."""
    labels = list(labels)
    if set(labels) <= set(order):
        return [name for name in order if name in labels]
    are_integers = all(label.removeprefix("-").isdecimal() and len(label) <= MAX_LABEL for label in labels)
    return sorted(labels, key=int) if are_integers else sorted(labels)
