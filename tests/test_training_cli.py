"""``leanify train``: as a process, with what it prints and its exit code; and on what is no recipe."""

from __future__ import annotations

import json
import re
import signal
from dataclasses import replace
from pathlib import Path

import commands
import pytest
from runs import DIGITS, digits, final_state, refused

import leanify
from leanify.core import recipe as recipes
from leanify.core.errors import RecipeError, SourceError
from leanify.runs.run_directory import RunDirectory
from leanify.training import preparation
from leanify.training import start as training

TINY = digits("data.samples=100", "schedule.epochs=1")


def run(*arguments: str, where: Path | None = None) -> commands.Result:
    return commands.run("train", *arguments, cwd=where)


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    file = tmp_path / "tiny.toml"
    file.write_text(DIGITS)
    return file


def test_interrupted_run_resumes_with_summary(recipe: Path, tmp_path: Path) -> None:
    """SIGINT to the process: exit 130 and a checkpoint; then the rest, with results on stdout and lines on stderr."""
    settings = ["--set", "schedule.epochs=20", "--set", "run.log_every=1", "--set", "run.checkpoint_every=50"]
    process = commands.start("commands:command", "train", str(recipe), "-o", str(tmp_path / "run"), *settings)
    process.wait_for_line("step 3 ")
    process.send_signal(signal.SIGINT)
    done = process.wait()
    assert (done.returncode, done.stdout) == (130, "")
    commands.assert_no_bug(done.stderr)
    assert re.search(r"leanify: saved at step \d+; continue with: leanify train --resume ", done.stderr)
    step = RunDirectory.open(tmp_path / "run").checkpoints()[-1].step
    assert 3 <= step < 160
    assert RunDirectory.open(tmp_path / "run").rows()[-1]["step"] == step

    done = run("--resume", str(tmp_path / "run"), *settings, "--set", "optim.lr=1")
    assert (done.returncode, done.stdout) == (2, "")
    assert "optim.lr: 0.002 → 1" in done.stderr

    done = run("--resume", str(tmp_path / "run"), "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert (facts["step"], facts["run"]) == (160, str(tmp_path / "run"))
    assert f"from step {step}" in done.stderr
    assert final_state(tmp_path / "run")["step"] == 160


def test_dry_run_writes_nothing(recipe: Path, tmp_path: Path) -> None:
    done = run(str(recipe), "--dry-run", "--json", where=tmp_path)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["steps"] == 24
    assert facts["memory_predicted_bytes"] > 4 * 4 * facts["parameters"]
    assert facts["training_hours_predicted"] > 0
    assert list(tmp_path.iterdir()) == [recipe]


def test_list_has_smoke_recipes() -> None:
    done = run("--list", "--json")
    names = [entry["recipe"] for entry in json.loads(done.stdout)["recipes"]]
    assert {"digits", "chars", "leaner-transformers/vit-base"} <= set(names)


@pytest.mark.long
def test_digits_reach_95_percent(tmp_path: Path) -> None:
    """With no other option."""
    done = run("--json", where=tmp_path)
    facts = json.loads(done.stdout)
    assert facts["run"] == "runs/digits"
    assert facts["top1"] >= 95


# -- what is no recipe: a run, a lean directory, a model's name --------------------------------------------------------


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


def test_unknown_source_is_one_message() -> None:
    with refused(RecipeError, "neither a recipe file"):
        training.resolve("nowhere.toml")
    with refused(SourceError, "does not exist"):
        training.resolve("./nowhere")
