"""ListOps: the generator against a plain one, every value against another evaluator, and the file it is kept in."""

from __future__ import annotations

import random
import statistics
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import chi2_contingency, ks_2samp

import leanify
import lra_listops as listops
from leanify.core.errors import DataError, RecipeError
from leanify.core.strict_toml import read_table
from leanify.runs.run_directory import RunDirectory
from leanify.training import loop
from lra_listops import CLOSE, OPERATORS, WORDS, ListOpsOptions

PUBLISHED = ListOpsOptions(train=996, validation=2, test=2)


# -- the published generator, a node at a time, as its description says -----------------------------------------------


def tree(rng: random.Random, depth: int) -> list[str]:
    """The symbols of a random node at a depth."""
    if depth == 10 or rng.random() < 0.75:
        return [str(rng.randrange(10))]
    inside = [symbol for _ in range(rng.randint(2, 10)) for symbol in tree(rng, depth + 1)]
    return [rng.choice(OPERATORS), *inside, CLOSE]


def value(symbols: list[str]) -> int:
    """What an expression comes to, by a stack."""
    stack: list[list[int]] = [[]]
    names: list[str] = []
    for symbol in symbols:
        if symbol.isdigit():
            stack[-1].append(int(symbol))
        elif symbol == CLOSE:
            numbers, name = stack.pop(), names.pop()
            functions = {"[MIN": min, "[MAX": max, "[MED": statistics.median, "[SM": lambda these: sum(these) % 10}
            stack[-1].append(int(functions[name](numbers)))
        else:
            names.append(symbol)
            stack.append([])
    [[found]] = stack
    return found


def depth_of(symbols: list[str]) -> int:
    deepest = now = 0
    for symbol in symbols:
        now += (symbol in OPERATORS) - (symbol == CLOSE)
        deepest = max(deepest, now)
    return deepest


@pytest.fixture(scope="module")
def theirs() -> tuple[list[list[str]], float]:
    """1,000 expressions of that generator, and the share of trees that is kept."""
    rng, found, trees = random.Random(1), [], 0
    while len(found) < 1000:
        expression, trees = tree(rng, 1), trees + 1
        if 500 < len(expression) < 2000:
            found.append(expression)
    return found, len(found) / trees


@pytest.fixture(scope="module")
def ours() -> tuple[list[list[str]], list[int]]:
    made = listops.generated(PUBLISHED)
    parts = np.split(made["symbols"], made["ends"][:-1])
    return [[WORDS[symbol] for symbol in part] for part in parts], made["labels"].tolist()


def test_values_match_another_evaluator(ours: tuple[list[list[str]], list[int]]) -> None:
    expressions, labels = ours
    assert [value(expression) for expression in expressions] == labels
    assert all(500 < len(expression) < 2000 for expression in expressions)
    assert all(depth_of(expression) <= 9 for expression in expressions)


def test_small_trees_have_equal_values() -> None:
    """Medians of two, digits alone, and levels without an operator."""
    source = listops.samples_drawn(ListOpsOptions(shortest=0, longest=12, depth=3, arguments=4))
    for _ in range(2000):
        symbols, label = next(source)
        assert value([WORDS[symbol] for symbol in symbols]) == label


def test_distribution_matches_the_published(
    ours: tuple[list[list[str]], list[int]], theirs: tuple[list[list[str]], float]
) -> None:
    mine, other = ours[0], theirs[0]
    assert ks_2samp([len(e) for e in mine], [len(e) for e in other]).pvalue > 0.01
    for what in (depth_of, value, lambda e: e[0]):
        alike(Counter(map(what, mine)), Counter(map(what, other)))
    alike(*(Counter(e.count(CLOSE) // 20 for e in side) for side in (mine, other)))
    for name in OPERATORS:  # among the operators of an expression; symbols of one are not independent
        shares = [[e.count(name) / e.count(CLOSE) for e in side] for side in (mine, other)]
        assert ks_2samp(*shares).pvalue > 0.01


def alike(one: Counter[object], other: Counter[object]) -> None:
    """Two histograms could be of one distribution; rare values are put together."""
    keys = [key for key in {**one, **other} if one[key] + other[key] >= 20]
    rest = [sum(side.values()) - sum(side[key] for key in keys) for side in (one, other)]
    table = [[side[key] for key in keys] + [left] for side, left in zip((one, other), rest, strict=True)]
    columns = [column for column in zip(*table, strict=True) if sum(column)]
    assert chi2_contingency(np.array(columns)).pvalue > 0.01


def test_eight_percent_of_trees_fit(theirs: tuple[list[list[str]], float]) -> None:
    rng = np.random.default_rng(0)
    sizes = np.concatenate([listops.lengths(listops.forest(rng, 4096, PUBLISHED))[0] for _ in range(10)])
    share = ((sizes > 500) & (sizes < 2000)).mean()
    assert share == pytest.approx(0.08, abs=0.005)
    assert share == pytest.approx(theirs[1], abs=0.01)  # of some 11,000 trees


def test_constant_answers_score_16_percent(ours: tuple[list[list[str]], list[int]]) -> None:
    assert max(Counter(ours[1]).values()) / len(ours[1]) == pytest.approx(0.165, abs=0.025)


def test_seed_decides_and_nothing_repeats() -> None:
    small = {"shortest": 5, "longest": 30, "depth": 3, "train": 500, "validation": 50, "test": 50}
    one, two, other = (listops.generated(ListOpsOptions(**small, seed=seed)) for seed in (3, 3, 4))
    assert all(np.array_equal(one[name], two[name]) for name in one)
    assert not np.array_equal(one["labels"], other["labels"])
    parts = np.split(one["symbols"], one["ends"][:-1])
    assert len({part.tobytes() for part in parts}) == len(parts) == 600


def test_published_files_are_read(tmp_path: Path) -> None:
    lines = ["Source\tTarget", "( ( ( [MAX 4 ) 3 ) ] )\t4", "( ( ( [SM 9 ) 3 ) ] )\t2"]
    for name in listops.PUBLISHED.values():
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    found = listops.published(tmp_path / "basic_val.tsv")
    inputs, labels = found.batch(np.array([0, 1]))
    assert labels.tolist() == [4, 2]
    assert [[WORDS[symbol] for symbol in row] for row in inputs["input_ids"].tolist()] == [
        ["[MAX", "4", "3", "]"],
        ["[SM", "9", "3", "]"],
    ]
    for broken, words in (
        ("( [AVG 1 ) ]\t3", "line 4: '\\[AVG' is not a symbol"),
        ("4 ]", "line 4: expected an expression"),
    ):
        (tmp_path / "basic_val.tsv").write_text("\n".join([*lines, broken]))
        with pytest.raises(DataError, match=rf"basic_val.tsv, {words}"):
            listops.published(tmp_path / "basic_val.tsv")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"longest": 400}, "no length between 500 and 400"),
        ({"arguments": 1}, r"arguments is 1; it must be at least 2"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(RecipeError, match=words):
        read_table(ListOpsOptions, options, "data.options")


def test_too_few_expressions_are_refused() -> None:
    few = ListOpsOptions(shortest=0, longest=2, depth=1, train=20, validation=1, test=1)  # ten digits
    with pytest.raises(DataError, match=" 10 "):
        listops.generated(few)


@pytest.mark.slow
def test_small_recipe_draws_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    few = ["data.options.train=64", "data.options.validation=32", "data.options.test=32"]
    run = leanify.train("listops-small", tmp_path / "run", settings=[*few, "schedule.steps=4", "schedule.warmup=2"])
    assert RunDirectory.open(run).rows()[-1]["split"] == "test"
    monkeypatch.setattr(listops, "generated", lambda options: pytest.fail("what was drawn is kept"))
    assert len(loop.Trainer(RunDirectory.open(run).recipe).splits.train) == 64
