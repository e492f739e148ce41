"""ListOps (Nangia & Bowman 2018) in the sizes of the Long-Range Arena (Tay et al. 2020): nested lists and their value.

    [MAX 4 3 [MIN 2 3 ] 1 0 [MED 1 5 8 9 2 ] ]  →  5

The published generator: a node is a digit with probability 0.75, or where it lies as deep as it may; else an operator,
MIN, MAX, MED (the integer part of the median) or SM (the sum modulo 10), of 2 to 10 arguments. A digit is 1 long, an
operator 2 and its arguments; expressions of more than 500 and less than 2000 are kept, duplicates are not.

Drawn once by a seed of their own, not the run's, and kept in a file; or read from the published files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from torch import nn

from leanify.data.cache import cached
from leanify.data.common import folder_of
from leanify.data.samples import Splits
from leanify.data.sequences import Sequences, only_sequences, sequence_splits
from leanify.errors import DataError, RecipeError
from leanify.sources.recipe import DataSection
from leanify.sources.strict_toml import read_table

OPERATORS = ("[MIN", "[MAX", "[MED", "[SM")
CLOSE = "]"
WORDS = ("", *"0123456789", *OPERATORS, CLOSE)  # a symbol's id is its place; 0 is padding
ZERO, MIN, MAX, MED, SM, END = 1, 11, 12, 13, 14, 15
DIGIT = 0.75  # how probable a node is to be one
TREES = 4096  # drawn at a time
IDLE = 100  # times in a row that nothing new may be among them
PUBLISHED = {"train": "basic_train.tsv", "validation": "basic_val.tsv", "test": "basic_test.tsv"}


@dataclass(frozen=True)
class ListOpsOptions:
    """[data.options]: by default the Long-Range Arena's. Lengths are exclusive; the root is at depth 1."""

    shortest: int = 500
    longest: int = 2000
    depth: int = 10
    arguments: int = 10
    train: int = 96_000
    validation: int = 2_000
    test: int = 2_000
    seed: int = 0

    def __post_init__(self) -> None:
        low = {"depth": 1, "arguments": 2, "train": 1, "validation": 1, "test": 1, "seed": 0, "shortest": 0}
        for key, least in low.items():
            if getattr(self, key) < least:
                raise RecipeError(f"data.options.{key} is {getattr(self, key)}; it is at least {least}")
        if self.longest < self.shortest + 2:
            raise RecipeError(f"there is no length between {self.shortest} and {self.longest}, data.options' ends")


@dataclass(frozen=True)
class Level:
    """The nodes of many trees at one depth: each one's symbol, and its parent's place in the level above."""

    symbols: np.ndarray
    parents: np.ndarray

    @property
    def operators(self) -> np.ndarray:
        """The places of those that have arguments."""
        return np.flatnonzero(self.symbols >= MIN)


def forest(rng: np.random.Generator, trees: int, options: ListOpsOptions) -> list[Level]:
    """Random trees, all of them a level at a time."""
    levels, parents = [], np.arange(trees)
    for depth in range(1, options.depth + 1):
        digits = rng.random(len(parents)) < DIGIT if depth < options.depth else np.ones(len(parents), dtype=bool)
        drawn = np.where(digits, rng.integers(ZERO, MIN, len(parents)), rng.integers(MIN, END, len(parents)))
        levels.append(Level(drawn.astype(np.uint8), parents))
        operators = levels[-1].operators
        if not len(operators):
            break
        parents = np.repeat(operators, rng.integers(2, options.arguments + 1, len(operators)))
    return levels


def lengths(levels: list[Level]) -> list[np.ndarray]:
    """The length of every node, level by level."""
    found = [np.ones(len(levels[-1].symbols), dtype=np.int64)]
    for above, below in zip(levels[-2::-1], levels[:0:-1], strict=True):
        inside = np.bincount(below.parents, found[-1], len(above.symbols)).astype(np.int64)
        found.append(np.where(above.symbols >= MIN, 2 + inside, 1))
    return found[::-1]


def kept(levels: list[Level], roots: np.ndarray) -> list[Level]:
    """Those trees of a forest whose root is to be kept."""
    chosen, thinned = roots, [Level(levels[0].symbols[roots], np.arange(roots.sum()))]
    for level in levels[1:]:
        places = np.cumsum(chosen) - 1  # of a kept node among the kept ones
        chosen = chosen[level.parents]
        thinned.append(Level(level.symbols[chosen], places[level.parents[chosen]]))
    return thinned


def values(levels: list[Level]) -> np.ndarray:
    """What each tree comes to, 0 … 9."""
    below = np.empty(0, dtype=np.int64)
    for depth in range(len(levels) - 1, -1, -1):
        level = levels[depth]
        found = level.symbols.astype(np.int64) - ZERO
        if len(operators := level.operators):
            parents = levels[depth + 1].parents
            starts = np.flatnonzero(np.diff(parents, prepend=-1))
            counts = np.diff(starts, append=len(parents))
            ranked = below[np.lexsort((below, parents))]
            middle = (ranked[starts + (counts - 1) // 2] + ranked[starts + counts // 2]) // 2
            total = np.add.reduceat(below, starts) % 10
            last = ranked[starts + counts - 1]
            found[operators] = np.choose(level.symbols[operators] - MIN, [ranked[starts], last, middle, total])
        below = found
    return below


def written(levels: list[Level], sizes: list[np.ndarray]) -> np.ndarray:
    """The symbols of all trees, one tree after the other, as they are read: operator, arguments, bracket."""
    symbols = np.zeros(sizes[0].sum(), dtype=np.uint8)
    starts = np.cumsum(sizes[0]) - sizes[0]
    for depth, level in enumerate(levels):
        symbols[starts] = level.symbols
        if not len(operators := level.operators):
            break
        symbols[starts[operators] + sizes[depth][operators] - 1] = END
        parents, inside = levels[depth + 1].parents, sizes[depth + 1]
        before = np.cumsum(inside) - inside  # of all arguments at this depth; those of other operators are taken off
        firsts = np.flatnonzero(np.diff(parents, prepend=-1))
        counts = np.diff(firsts, append=len(parents))
        starts = starts[parents] + 1 + before - np.repeat(before[firsts], counts)
    return symbols


def drawn(options: ListOpsOptions) -> Iterator[tuple[np.ndarray, int]]:
    """Expressions and their values, for ever, each of them once. Raises DataError where there are no more."""
    rng, known, idle = np.random.default_rng(options.seed), set[bytes](), 0
    while idle < IDLE:
        levels = forest(rng, TREES, options)
        sizes = lengths(levels)
        levels = kept(levels, (options.shortest < sizes[0]) & (sizes[0] < options.longest))
        sizes = lengths(levels)
        before, idle = len(known), idle + 1
        parts = np.split(written(levels, sizes), np.cumsum(sizes[0])[:-1]) if len(sizes[0]) else []
        for part, value in zip(parts, values(levels), strict=True):
            if (key := part.tobytes()) not in known:
                known.add(key)
                yield part, int(value)
        idle = 0 if len(known) > before else idle
    raise DataError(
        f"there are only {len(known):,} expressions like that: data.options asks for too many, or too short"
    )


def generated(options: ListOpsOptions) -> dict[str, np.ndarray]:
    """All expressions: their symbols strung together, where each one ends, and the values."""
    from leanify.terminal import track

    source = drawn(options)
    number = range(options.train + options.validation + options.test)
    parts, labels = zip(*(next(source) for _ in track(number, "drawing ListOps")), strict=True)
    return {
        "symbols": np.concatenate(parts),
        "ends": np.cumsum([len(part) for part in parts]),
        "labels": np.array(labels, dtype=np.int64),
    }


def published(path: Path) -> Sequences:
    """A file of the Long-Range Arena: a header, then an expression and its value a line, separated by a tab."""
    ids = {word: place for place, word in enumerate(WORDS) if place}
    parts, labels = [], []
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            text, _, label = line.rstrip("\n").partition("\t")
            if number == 1 and (text, label) == ("Source", "Target"):
                continue
            words = [word for word in text.split() if word not in "()"]
            if unknown := [word for word in words if word not in ids]:
                raise DataError(f"{path}, line {number}: {unknown[0]!r} is not a symbol of ListOps")
            if not words or label not in tuple("0123456789"):
                raise DataError(
                    f"{path}, line {number}: it takes an expression, a tab and a digit; found {line[:60]!r}"
                )
            parts.append(np.array([ids[word] for word in words], dtype=np.uint8))
            labels.append(int(label))
    return Sequences.of(parts, labels, str(path))


def splits(data: DataSection, model: nn.Module) -> Splits:
    """Training, validation and test expressions: published files where data.path has them, else drawn."""
    only_sequences(data, model, "listops", vocabulary=len(WORDS))
    options: ListOpsOptions = read_table(ListOpsOptions, data.options, "data.options")
    folder = None if data.path is None else folder_of(data)
    if folder is not None and (folder / PUBLISHED["train"]).is_file():
        parts = [published(folder / name) for name in PUBLISHED.values()]
        words = f"ListOps from {folder}"
    else:
        whole, place = cached("listops", asdict(options), lambda: generated(options), folder)
        every = Sequences(whole["symbols"], whole["ends"], whole["labels"])
        parts = every.parts(options.train, options.validation, options.test)
        words = f"ListOps drawn by seed {options.seed} into {place}"
    return sequence_splits(data, model, *parts, words=words, classes=10, cut=False)
