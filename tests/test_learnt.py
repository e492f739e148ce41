"""What `train` ends with on own data: the model beside a trivial one, and what to do where it is no better."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from commands import run as command
from PIL import Image

import leanify
from leanify.runs.run_directory import RunDirectory
from leanify.training.reference import Judgement, ReferenceScore, judge_run

THIN = ["data.workers=0", "model.override.depth=1", "model.override.embed_dim=16"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of two shades, which a linear model tells apart."""
    root = tmp_path_factory.mktemp("shades")
    rng = np.random.default_rng(0)
    for name, level in (("dark", 60), ("light", 190)):
        (root / name).mkdir()
        for number in range(20):
            Image.fromarray(rng.integers(level - 50, level + 50, (8, 8), np.uint8)).save(root / name / f"{number}.png")
    return root


def test_run_is_held_against_trivial_model(folder: Path, tmp_path: Path) -> None:
    settings = [f"data.path={folder}", *THIN, "schedule.epochs=1", "optim.lr=1e-9"]
    run = RunDirectory.open(leanify.train("own-images", tmp_path / "run", settings=settings))
    judgement = judge_run(run)
    assert judgement is not None
    assert (judgement.reference.value, judgement.reference.metric) == (100.0, "top1")
    assert judgement.has_learnt is False
    assert f"leanify train facebook/deit-tiny-patch16-224 --set data.path={folder}" in judgement.message


def test_lower_losses_are_better() -> None:
    trivial = ReferenceScore("bigram counts", 11.0, metric="perplexity", sign=-1)
    assert [Judgement(trivial, value, "").has_learnt for value in (9.0, 11.0, 12.0)] == [True, False, False]
    assert Judgement(trivial, 9.0, "").message == "learnt: perplexity 9.000 against 11.00 of bigram counts"


def test_built_in_data_are_not_judged(tmp_path: Path) -> None:
    settings = ["schedule.epochs=1", "data.samples=64", "model.override.depth=1"]
    assert judge_run(RunDirectory.open(leanify.train("digits", tmp_path / "run", settings=settings))) is None


def test_command_ends_with_judgement(folder: Path, tmp_path: Path) -> None:
    settings = [f"data.path={folder}", *THIN, "schedule.epochs=1"]
    words = [word for setting in settings for word in ("--set", setting)]
    done = command("train", "own-images", *words, "-o", str(tmp_path / "run"))
    assert "learnt: top1 " in done.stdout
    assert "of logistic regression on 4 × 4 pixels" in done.stdout
    facts = json.loads(command("train", "--resume", str(tmp_path / "run"), "--json").stdout)
    assert facts["reference"]["value"] == 100.0
    assert facts["learnt"] in (True, False)


def test_next_line_names_the_text(tmp_path: Path) -> None:
    """The recipe alone has no data that could be compared."""
    text = tmp_path / "notes.txt"
    text.write_text("a few words in a row. " * 100)
    settings = [f"data.path={text}", "model.override.n_layer=3", "schedule.steps=2", "schedule.warmup=1"]
    words = [word for setting in settings for word in ("--set", setting)]
    done = command("train", "own-text", *words, "-o", str(tmp_path / "run"))
    assert done.stdout.splitlines()[-1].strip() == f"leanify compare {text}"
