"""Whatever comes in, what comes out is a result or one message: files by a seeded fuzzer, values by Hypothesis."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fuzz
import fuzz_cases
import fuzz_files
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from runs import DIGITS

from leanify.cli import options
from leanify.core import machine
from leanify.core import recipe as recipes
from leanify.core.errors import LeanifyError
from leanify.sources import find, names

SEEDS, MORE_SEEDS = range(18), range(18, 626)  # of a kind, in the slow run and in the long one


@pytest.fixture(scope="module")
def intact() -> Iterator[Path]:
    home = fuzz.prepare()
    yield home
    shutil.rmtree(home)


@pytest.mark.parametrize("kind", fuzz.KINDS)
@pytest.mark.parametrize(
    "seeds", [pytest.param(SEEDS, marks=pytest.mark.slow), pytest.param(MORE_SEEDS, marks=pytest.mark.long)], ids=str
)
def test_damaged_files_give_one_message(kind: str, seeds: range, intact: Path) -> None:
    ends = {seed: fuzz.run(kind, seed, intact) for seed in seeds}
    assert {f"python tests/fuzz.py {kind} {seed}": end for seed, end in ends.items() if end} == {}


@pytest.mark.slow
def test_fuzzer_detects_planted_faults(intact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A traceback, a process that dies, one that never ends, memory without bound, and an output that is half there."""

    def case(action: Callable[[Path], Any]) -> str | None:
        monkeypatch.setitem(fuzz.KINDS, "case", lambda draw, home: action(home))
        return fuzz.run("case", 0, intact)

    def endless(home: Path) -> None:
        while True:
            pass

    def refused(home: Path) -> None:
        raise LeanifyError("one line")

    monkeypatch.setattr(fuzz, "SECONDS", 1)
    assert case(lambda home: None) is case(refused) is None
    assert "ZeroDivisionError" in str(case(lambda home: 1 // 0))
    assert "of the processor" in str(case(endless))
    assert "MemoryError" in str(case(lambda home: bytearray(3 << 30)))
    assert case(lambda home: (home / "out").mkdir()) == "left out"


@pytest.mark.slow
@pytest.mark.parametrize("key", ["intermediate_size=1000000", "num_hidden_layers=100000", "num_attention_heads=10**6"])
def test_absurd_sizes_end_soon(key: str, intact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan or one message within ten seconds of the processor and two gigabytes."""
    line = ("redesign", "bert", "--override", key.replace("10**6", "1000000"), "--target-params", "0.5", "--json")
    monkeypatch.setitem(fuzz.KINDS, "case", lambda draw, home: fuzz_cases.command(*line))
    assert fuzz.run("case", 0, intact) is None


@pytest.mark.parametrize("written", [{"num_labels": 10**7}, {"id2label": {str(n): "x" for n in range(50_001)}}])
def test_too_many_classes_are_refused(tmp_path: Path, written: dict[str, Any]) -> None:
    """transformers copies their names at every turn, for minutes."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"} | written))
    with pytest.raises(LeanifyError, match="50,000"):
        find.find(tmp_path / "config.json")
    with pytest.raises(LeanifyError, match=r"num_labels.*50,000"):
        find.find("bert", overrides={"num_labels": 50_001})


# -- values -----------------------------------------------------------------------------------------------------------

WORDS = st.text(max_size=30) | st.sampled_from([str(value) for value in fuzz_files.HOSTILE])
KEYS = st.sampled_from(
    [f"{section}.{key}" for section, table in recipes.parse(DIGITS).to_dict().items() for key in table]
)
PLAIN = settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


def refused_or(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function returns, None where it raises LeanifyError."""
    try:
        return function(*arguments)
    except LeanifyError:
        return None


@PLAIN
@given(KEYS | WORDS, WORDS)
def test_setting_round_trips_or_errors(key: str, word: str) -> None:
    value = refused_or(recipes.apply_settings, recipes.parse(DIGITS), [f"{key}={word}"])
    if value is not None and (text := refused_or(value.to_toml)) is not None:
        assert recipes.parse(text).to_toml() == text  # NaN is no equal of itself


VALUES = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(max_size=10),
    lambda inner: st.dictionaries(st.text(max_size=8), inner, max_size=3) | st.lists(inner, max_size=3),
    max_leaves=6,
)


@PLAIN
@given(st.dictionaries(st.text(max_size=8), VALUES, max_size=4))
def test_any_recipe_reads_back(override: dict[str, Any]) -> None:
    value = recipes.Recipe(recipes.ModelSection("x", override=override))
    if (text := refused_or(value.to_toml)) is not None:
        assert recipes.parse(text) == value
    else:
        assert "\\ud" in ascii(override)  # half of a surrogate pair, which TOML cannot hold


@PLAIN
@given(WORDS)
def test_options_are_values_or_message(word: str) -> None:
    refused_or(names.parse_overrides, [word])
    refused_or(names.parse_overrides, [f"key={word}"])
    refused_or(options.pin, "--depth", word)
    refused_or(machine.parse_device, word)
    refused_or(recipes.parse, word)
