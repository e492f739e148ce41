"""``leanify train`` on what is no recipe: a run, a lean directory, a model's name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from runs import DIGITS, refused

import leanify
from leanify.core import recipe as recipes
from leanify.core.errors import LeanifyError, RecipeError, SourceError
from leanify.runs.run_directory import RunDirectory
from leanify.training import preparation
from leanify.training import start as training

TINY = recipes.apply_settings(recipes.parse(DIGITS), ["data.samples=100", "schedule.epochs=1"])


def test_run_brings_its_recipe(tmp_path: Path) -> None:
    run = training.train(TINY, tmp_path / "run")
    assert training.resolve(run) == TINY
    again = training.train(run, tmp_path / "again", settings=["run.seed=1"])
    assert RunDirectory.open(again).recipe.run.seed == 1


@pytest.mark.parametrize(
    ("source", "task", "cls"),
    [
        ("vit_tiny", "classification", None),
        ("vit", "classification", "AutoModelForImageClassification"),
        ("gpt2", "causal-lm", "AutoModelForCausalLM"),
        ("bert", "masked-lm", "AutoModelForMaskedLM"),
        ("gpt2.py:Gpt2", "causal-lm", None),
        ("crammed_bert.py:CrammedBert", "masked-lm", None),
    ],
)
def test_recipe_defaults_follow_model_kind(source: str, task: str, cls: str | None) -> None:
    value = training.resolve(source, ["data.path=somewhere"])
    assert (value.model.source, value.model.cls, value.data.task) == (source, cls, task)
    assert recipes.parse(value.to_toml()) == value
    with pytest.raises(RecipeError, match=rf"leanify train {source} --set data.path=DIR \(compare takes"):
        training.resolve(source)


def test_lean_directory_keeps_learning(tmp_path: Path) -> None:
    leanify.save(preparation.build_model(TINY), tmp_path / "lean")
    value = training.resolve(tmp_path / "lean", ["data.path=x", "data.name=digits", "schedule.epochs=1"])
    assert value.data is not None
    value = replace(value, data=replace(value.data, path=None))
    run = RunDirectory.open(training.train(value, tmp_path / "run"))
    first = run.checkpoints()[0].weights()
    for name, tensor in leanify.load(tmp_path / "lean").state_dict().items():
        assert (first[name] == tensor).all()


@pytest.mark.parametrize(
    ("source", "error", "words"),
    [
        ("nowhere.toml", RecipeError, "neither a recipe file"),
        ("./nowhere", SourceError, "does not exist"),
    ],
)
def test_unknown_source_is_one_message(source: str, error: type[LeanifyError], words: str) -> None:
    with refused(error, words):
        training.resolve(source)
