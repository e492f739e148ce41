"""Guess a table's columns by their cells, where names say nothing. Does not import torch."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain, pairwise
from typing import Any

from leanify.layouts.columns import IMAGES, LABELS, PICTURES, TEXTS, are_scores, match_column, parse_number, spelling
from leanify.layouts.split_names import are_split_names, name_words

USUAL_NAMES = {*LABELS, *PICTURES, *chain(*TEXTS)}
INDICES = ("", "id", "idx", "index", "unnamed: 0")  # columns that number the rows, as any that counts up by one
LABEL_WORDS = {*LABELS, "gold", "duplicate", "stance", "verdict", "answer", "annotation", "grade"}
BESIDE_LABELS = {"confidence", "id", "url", "annotator", "prob", "probability", "reason", "count", "timestamp"}
NO_SPACES = re.compile(r"[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff]{4}")  # scripts without them: Thai, Japanese, Chinese
NO_WORDS = re.compile(r"^[\d\s.,;+-]+$|\d\d?:\d\d(:\d\d)?( [A-Z]+)?( \d{4})?$")  # pixels in a cell, a date
MIN_PIXELS = 64
PIXELS = re.compile(rf"\d+( \d+){{{MIN_PIXELS - 1},}}")
CHOICES = re.compile(r"(answer_?)?(choice|option|ending|candidate|alternative)s", re.IGNORECASE)
CHOICE = re.compile(r"(choice|option|opt?|ending|sol|candidate|alternative|answer)[ _]?([0-9]|[a-eA-E])", re.IGNORECASE)
BOXES = (  # columns of the sides of boxes
    ("xmin", "ymin"), ("x1", "y1"), ("x_min", "y_min"), ("bbox_x", "bbox_y"), ("bbox",), ("left", "top"), ("x", "y"),
)  # fmt: skip
ONES, ZEROS = ("1", "1.0", "true"), ("0", "0.0", "false")  # cells of a column for each class
MIN_PRESENT = 2  # a column of labels has a value in at least one of so many rows
MIN_NUMBERS, FEW_WORDS = 3, 6  # columns of numbers in a table of measurements, and the words of a name in it
MIN_ROWS_A_LABEL = 5  # rows per value of a label, at least

Row = Mapping[str, Any]


def guess_text(rows: Sequence[Row]) -> tuple[str, ...]:
    """The columns with strings of several words, if there are one or two; else ()."""
    text_columns = tuple(name for name, cells in _columns(rows).items() if _is_text(cells))
    return text_columns if len(text_columns) < 3 else ()


def guess_label(rows: Sequence[Row], texts: Sequence[str]) -> str | None:
    """The column besides the texts that can be a label: the only one, or the one that its name or values give away.

    Of several, one has a usual word in its name (airline_sentiment), or in a table without names the fewest values.
    """
    candidates = label_candidates(rows, texts)
    if len(candidates) < 2:
        return next(iter(candidates), None)
    words = {name: {*name_words(name)} for name in candidates}
    label_names = [name for name in candidates if words[name] & LABEL_WORDS and not words[name] & BESIDE_LABELS]
    if len(label_names) == 1:
        return label_names[0]
    if all(name.startswith("column ") for name in candidates):
        # scores are rarer than years and sources of texts
        scores = [name for name, cells in candidates.items() if are_scores(map(str, cells))]
        return scores[0] if len(scores) == 1 else min(candidates, key=lambda name: len(set(candidates[name])))
    return None


def label_candidates(rows: Sequence[Row], texts: Sequence[str]) -> dict[str, list[Any]]:
    """The columns besides the texts that have few values in many rows, or fractions; with the cells that are there."""
    candidates = {}
    for name, cells in _columns(rows).items():
        present = [cell for cell in cells if isinstance(cell, (str, int, float)) and str(cell).strip()]
        is_full = MIN_PRESENT * len(present) >= len(cells)
        if name not in texts and is_full and (_is_label(present) or are_scores(map(str, present))):
            candidates[name] = present
    return candidates


def flag_columns(rows: Sequence[Row], texts: Sequence[str]) -> list[str]:
    """The columns of 0 and 1, if there are several: each is a label of its own, as in the toxic comments."""
    flags = [name for name, cells in label_candidates(rows, texts).items() if {*map(str, cells)} == {"0", "1"}]
    return flags if len(flags) > 2 else []


def class_columns(rows: Sequence[Row]) -> list[str]:
    """The columns of which each row has a single 1, if all others are one or two before them; else [].

    Each is a class, as in the tables of skin lesions (ISIC) and sick leaves: image, MEL, NV, …
    """
    names = [name for name in rows[0] if isinstance(name, str)] if len(rows) >= MIN_ROWS_A_LABEL else []
    if match_column(LABELS, names) is not None:
        return []
    classes = [name for name in names if all(str(row.get(name)).lower() in ONES + ZEROS for row in rows)]
    others = names[: len(names) - len(classes)]
    if len(classes) < 2 or not 1 <= len(others) <= 2 or [*others, *classes] != names or are_split_names(classes):
        return []
    marked = [classes_of(row, classes) for row in rows]
    return classes if {*map(len, marked)} == {1} and len({*chain(*marked)}) > 1 else []


def classes_of(row: Row, names: Sequence[str]) -> list[str]:
    """The columns with a 1."""
    return [name for name in names if str(row.get(name)).lower() in ONES]


def find_numbers(rows: Sequence[Row], texts: Sequence[str], label: str) -> list[str]:
    """The columns of numbers if they are what a table is about: several, beside names or addresses; else []."""
    words = [len(str(row.get(name)).split()) for row in rows for name in texts]
    if sum(words) >= FEW_WORDS * len(words):
        return []
    columns = {name: [str(cell) for cell in cells if str(cell or "")] for name, cells in _columns(rows).items()}
    numbers = [name for name, cells in columns.items() if cells and None not in map(parse_number, cells)]
    numbers = [name for name in numbers if name not in (label, *texts)]
    return numbers if len(numbers) >= MIN_NUMBERS else []


def find_choices(row: Row) -> list[str]:
    """The columns with texts of which a row's label names one: a list of them, or columns that differ in a number."""
    names = [name for name in row if isinstance(name, str)]
    lists = [name for name in names if CHOICES.fullmatch(name) and isinstance(row[name], (list, tuple, dict))]
    inner = [name for name in names if isinstance(row[name], dict) and any(map(CHOICES.fullmatch, row[name]))]
    stems: dict[str, list[str]] = {}
    for name in names:
        if match := CHOICE.fullmatch(name):
            stems.setdefault(match[1], []).append(name)
    choices = next((same for same in stems.values() if len(same) > 1), [])
    letters = [name for name in names if name in ("A", "B", "C", "D", "E") and not str(row[name]).isdigit()]
    return lists or inner or choices or (letters if letters[:3] == ["A", "B", "C"] else [])


def find_pixels(row: Row) -> list[str]:
    """The columns with the pixels of a picture, one each or all in a cell: whole numbers below 256; else []."""
    numbers = [name for name, cell in row.items() if str(cell).isdecimal() and len(str(cell)) < 4 and int(cell) < 256]
    numbers = [name for name in numbers if str(name).lower() not in LABELS]
    for count in (len(numbers), len(numbers) - 1):  # a label may be another number
        if count >= MIN_PIXELS and any(math.isqrt(count // channels) ** 2 * channels == count for channels in (1, 3)):
            return numbers
    return [name for name, cell in row.items() if isinstance(cell, str) and PIXELS.fullmatch(cell)]


def has_boxes(names: Sequence[str]) -> bool:
    """Whether a table's columns are the sides of boxes in pictures."""
    lower = {name.lower() for name in names if isinstance(name, str)}
    return any(set(sides) <= lower for sides in BOXES)


def several_labels(labels: Sequence[str]) -> str | None:
    """One of the labels that are several, joined by a mark, or None: all of its parts occur again in other labels."""
    for mark in ("|", ";", ",", " "):
        split = {label: {part.strip() for part in label.split(mark)} for label in labels}
        times = Counter(chain(*split.values()))
        # words are parts where few of them make many labels, of several lengths: not in "strongly agree"
        if mark == " " and (len({*map(len, split.values())}) < 3 or len(times) > len(labels) / 2 + 1):
            continue
        for label, parts in split.items():
            if len(parts) > 1 and all(times[part] > 1 for part in parts):
                return label
    return None


def is_headless(names: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Whether a table's first line is a sample, not names: it has one of a column's labels, a fraction, a picture's
    name, or an integer twice.

    Names that describe a column, and 0, 1, …, as pandas writes for columns without a name, are a header.
    """
    if any(spelling(name) in USUAL_NAMES for name in names) or [*names] == [str(i) for i in range(len(names))]:
        return False
    numbers = [name for name in names if name.isdecimal()]
    if len(set(numbers)) < len(numbers) or any(name.lower().endswith(IMAGES) for name in names):
        return True
    # a header's word does not occur again as one of few values below it
    for place, name in enumerate(names):
        cells = [row[place] for row in rows if len(row) > place]
        if name in cells and _is_label(cells):
            return True
        if are_scores([name]) and are_scores(cells):
            return True
    return False


def _columns(rows: Sequence[Row]) -> dict[str, list[Any]]:
    """The cells of every column but those that number the rows."""
    cells_by_column = {}
    for name in rows[0]:
        cells = [row.get(name) for row in rows]
        if not isinstance(name, str) or _counts(cells):
            continue
        if name.strip().lower() not in INDICES or 2 * len(set(map(str, cells))) < len(cells):  # whales have an Id
            cells_by_column[name] = cells
    return cells_by_column


def _counts(cells: Sequence[Any]) -> bool:
    try:
        return len(cells) > 2 and all(int(after) == int(before) + 1 for before, after in pairwise(cells))
    except (TypeError, ValueError):
        return False


def has_words(cell: Any) -> bool:
    """Whether a cell is a string of several words, and not of numbers or a date."""
    if not isinstance(cell, str) or NO_WORDS.search(cell):
        return False
    return " " in cell.strip() or NO_SPACES.search(cell) is not None


def _is_text(cells: Sequence[Any]) -> bool:
    several = sum(has_words(cell) for cell in cells)
    return 2 * several > len(cells) and not _is_label(cells)


def _is_label(cells: Sequence[Any]) -> bool:
    if not all(isinstance(cell, (str, int)) and str(cell).strip() for cell in cells):
        return False
    return 2 <= len(set(cells)) <= len(cells) / MIN_ROWS_A_LABEL
