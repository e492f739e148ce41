"""The command line and Python are twins: the same small input gives the same recipe and the same JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commands import run
from runs import make_pictures

import leanify
from leanify.runs.run_directory import RunDirectory
from leanify.training.reference import judge_run

STEPS = ["schedule.steps=4", "schedule.warmup=0", "run.eval_every=", "data.holdout=0.25"]
SMALL = ["model.override.depth=2", *STEPS]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of pictures, a trained run on them, and a leaner one as its student."""
    folder = make_pictures(tmp_path_factory.mktemp("twins"), ("one", "other"), photos=20)
    leanify.train(str(folder / "photos"), folder / "teacher", settings=SMALL)
    return folder


def without_clock(value: Any) -> Any:
    """JSON without what a clock or a folder's name says."""
    if isinstance(value, list):
        return [without_clock(each) for each in value]
    if isinstance(value, dict):
        return {key: without_clock(each) for key, each in value.items() if key not in ("seconds", "samples_per_s")}
    return value


@pytest.mark.parametrize(
    ("source", "teacher"),
    [
        ("photos", None),
        ("teacher", "teacher"),
        pytest.param("photos", "teacher", marks=pytest.mark.slow),
        pytest.param("teacher", None, marks=pytest.mark.slow),
        ("own-images", "teacher"),
        pytest.param("own-images", None, marks=pytest.mark.slow),
    ],
)
def test_train_is_one_request(here: Path, source: str, teacher: str | None, monkeypatch: Any) -> None:
    """A folder of data, a model with weights, a built-in recipe; with and without a teacher."""
    monkeypatch.chdir(here)
    settings = [*STEPS, "data.path=photos"] if source != "photos" else SMALL
    settings += ["distill.temperature=2"] if teacher else []  # known only beside a teacher
    words = [word for setting in settings for word in ("--set", setting)]
    words += ["--teacher", teacher] if teacher else []
    name = f"{source}-{teacher}"
    typed = run("train", source, *words, "-o", f"{name}-typed", "--json", cwd=here)
    assert typed.returncode == 0, typed.stderr
    called = leanify.train(source, f"{name}-called", settings=settings, teacher=teacher)
    runs = [RunDirectory.open(f"{name}-{how}") for how in ("typed", "called")]
    assert runs[0].recipe == runs[1].recipe
    assert without_clock(runs[0].rows()) == without_clock(runs[1].rows())
    judgement = judge_run(runs[1])
    facts = runs[1].summary() | ({} if judgement is None else judgement.to_json())
    told = json.loads(typed.stdout.replace("-typed", "-called"))
    assert called == runs[1].path
    assert without_clock(told) == without_clock(json.loads(json.dumps(facts)))


def test_profile_is_its_function() -> None:
    typed = json.loads(run("profile", "vit_tiny", "--no-measure", "--json").stdout)["models"]
    called = json.loads(json.dumps(leanify.profile("vit_tiny", measure=False).to_json()))
    assert without_clock(typed) == without_clock([called])
