"""ListOps (Nangia & Bowman 2018) at the Long-Range Arena's sizes (Tay et al. 2020): evaluate nested list expressions.

    [MAX 4 3 [MIN 2 3 ] 1 0 [MED 1 5 8 9 2 ] ]  →  5

As in the published generator, a node is a digit with probability 0.75 and always at the maximum depth;
otherwise it is an operator with 2 to 10 arguments: MIN, MAX, MED (integer part of the median) or SM (sum
modulo 10). A digit has length 1, an operator 2 plus its arguments. Expressions longer than 500 and shorter
than 2000 are kept, without duplicates.

Expressions are generated once, from data.options.seed rather than the run's seed, and cached in a file; or
they are read from the published files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from torch import nn

from leanify.core.errors import DataError, RecipeError
from leanify.core.files.cache import load_or_make
from leanify.core.files.reading import open_text
from leanify.core.recipe import DataSection
from leanify.data.common import data_path
from leanify.data.samples import Splits
from lra_sequences import Sequences, only_sequences, parse_options, sequence_splits

OPERATORS = ("[MIN", "[MAX", "[MED", "[SM")
CLOSE = "]"
WORDS = ("", *"0123456789", *OPERATORS, CLOSE)  # a symbol's id is its index; 0 is padding
ZERO, MIN, MAX, MED, SM, END = 1, 11, 12, 13, 14, 15
DIGIT = 0.75  # probability that a node is a digit
TREES = 4096  # trees drawn at a time
IDLE = 100  # give up after this many draws in a row without a new expression
PUBLISHED = {"train": "basic_train.tsv", "validation": "basic_val.tsv", "test": "basic_test.tsv"}


@dataclass(frozen=True)
class ListOpsOptions:
    """[data.options], by default the Long-Range Arena's. Length bounds are exclusive; roots have depth 1."""

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
                raise RecipeError(f"data.options.{key} is {getattr(self, key)}; it must be at least {least}")
        if self.longest < self.shortest + 2:
            raise RecipeError(f"data.options allow no length between {self.shortest} and {self.longest} (exclusive)")


@dataclass(frozen=True)
class Level:
    """The nodes of many trees at one depth: each node's symbol, and its parent's index in the level above."""

    symbols: np.ndarray
    parents: np.ndarray

    @property
    def operators(self) -> np.ndarray:
        """Indices of the nodes that have arguments."""
        return np.flatnonzero(self.symbols >= MIN)


def forest(rng: np.random.Generator, trees: int, options: ListOpsOptions) -> list[Level]:
    """Draw random trees, one level of all trees at a time."""
    levels, parents = [], np.arange(trees)
    for depth in range(1, options.depth + 1):
        digits = rng.random(len(parents)) < DIGIT if depth < options.depth else np.ones(len(parents), dtype=bool)
        numbers = np.where(digits, rng.integers(ZERO, MIN, len(parents)), rng.integers(MIN, END, len(parents)))
        levels.append(Level(numbers.astype(np.uint8), parents))
        operators = levels[-1].operators
        if not len(operators):
            break
        parents = np.repeat(operators, rng.integers(2, options.arguments + 1, len(operators)))
    return levels


def lengths(levels: list[Level]) -> list[np.ndarray]:
    """The length in symbols of every node's expression, per level."""
    found = [np.ones(len(levels[-1].symbols), dtype=np.int64)]
    for above, below in zip(levels[-2::-1], levels[:0:-1], strict=True):
        inside = np.bincount(below.parents, found[-1], len(above.symbols)).astype(np.int64)
        found.append(np.where(above.symbols >= MIN, 2 + inside, 1))
    return found[::-1]


def kept(levels: list[Level], roots: np.ndarray) -> list[Level]:
    """The trees of a forest whose roots are True in ``roots``."""
    chosen, thinned = roots, [Level(levels[0].symbols[roots], np.arange(roots.sum()))]
    for level in levels[1:]:
        places = np.cumsum(chosen) - 1  # a kept node's index among the kept ones
        chosen = chosen[level.parents]
        thinned.append(Level(level.symbols[chosen], places[level.parents[chosen]]))
    return thinned


def values(levels: list[Level]) -> np.ndarray:
    """The value of each tree, 0 … 9."""
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
    """The symbols of all trees, concatenated, in reading order: operator, arguments, closing bracket."""
    symbols = np.zeros(sizes[0].sum(), dtype=np.uint8)
    starts = np.cumsum(sizes[0]) - sizes[0]
    for depth, level in enumerate(levels):
        symbols[starts] = level.symbols
        if not len(operators := level.operators):
            break
        symbols[starts[operators] + sizes[depth][operators] - 1] = END
        parents, inside = levels[depth + 1].parents, sizes[depth + 1]
        before = np.cumsum(inside) - inside  # over all arguments of this depth; other operators' are subtracted below
        firsts = np.flatnonzero(np.diff(parents, prepend=-1))
        counts = np.diff(firsts, append=len(parents))
        starts = starts[parents] + 1 + before - np.repeat(before[firsts], counts)
    return symbols


def samples_drawn(options: ListOpsOptions) -> Iterator[tuple[np.ndarray, int]]:
    """Yield distinct expressions and their values without end. Raises DataError when none is new."""
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
        f"only {len(known):,} distinct expressions fit data.options; ask for fewer, or allow longer or deeper ones"
    )


def generated(options: ListOpsOptions) -> dict[str, np.ndarray]:
    """Generate all expressions: concatenated symbols, the end of each expression, and the values."""
    from leanify.core.terminal import track

    source = samples_drawn(options)
    number = range(options.train + options.validation + options.test)
    parts, labels = zip(*(next(source) for _ in track(number, "drawing ListOps")), strict=True)
    return {
        "symbols": np.concatenate(parts),
        "ends": np.cumsum([len(part) for part in parts]),
        "labels": np.array(labels, dtype=np.int64),
    }


def published(path: Path) -> Sequences:
    """Read a published file: a header, then an expression, a tab and its value per line. Raises DataError."""
    ids = {word: place for place, word in enumerate(WORDS) if place}
    parts, labels = [], []
    with open_text(path, DataError) as file:
        for number, line in enumerate(file, 1):
            text, _, label = line.rstrip("\n").partition("\t")
            if number == 1 and (text, label) == ("Source", "Target"):
                continue
            words = [word for word in text.split() if word not in "()"]
            if unknown := [word for word in words if word not in ids]:
                raise DataError(f"{path}, line {number}: {unknown[0]!r} is not a symbol of ListOps")
            if not words or label not in tuple("0123456789"):
                raise DataError(
                    f"{path}, line {number}: expected an expression, a tab and a digit; found {line[:60]!r}"
                )
            parts.append(np.array([ids[word] for word in words], dtype=np.uint8))
            labels.append(int(label))
    return Sequences.of(parts, labels, str(path))


def splits(data: DataSection, model: nn.Module) -> Splits:
    """Training, validation and test expressions: published if data.path has them, else generated."""
    only_sequences(data, model, "listops", vocabulary=len(WORDS))
    options = parse_options(ListOpsOptions, data.options)
    folder = None if data.path is None else data_path(data)
    if folder is not None and (folder / PUBLISHED["train"]).is_file():
        parts = [published(folder / name) for name in PUBLISHED.values()]
        description = f"ListOps from {folder}"
    else:
        whole, place = load_or_make("listops", asdict(options), lambda: generated(options), folder)
        every = Sequences(whole["symbols"], whole["ends"], whole["labels"])
        parts = every.parts(options.train, options.validation, options.test)
        description = f"ListOps generated with seed {options.seed} in {place}"
    return sequence_splits(data, model, *parts, description=description, classes=10, cut=False)
