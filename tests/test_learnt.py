"""What `train` ends with on own data: the model beside a trivial one, and what to do where it is no better."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from commands import Result
from commands import run as command
from PIL import Image

import leanify
from leanify.runs.run_directory import RunDirectory
from leanify.training import default_recipe
from leanify.training.reference import Judgement, ReferenceScore, judge_run
from leanify.training.start import resolve

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
    assert (judgement.reference.value, judgement.reference.metric) == (100.0, "top1")
    assert judgement.has_learnt is False
    more, _, pretrained = judgement.message.partition("; or pretrained weights")
    assert more.endswith(f"more steps: leanify train {run.path} --set data.path={folder} --set schedule.epochs=3")
    assert pretrained.endswith(f"leanify train facebook/deit-tiny-patch16-224 --set data.path={folder}")
    longer = resolve(str(run.path), [f"data.path={folder}", "schedule.epochs=3"])
    assert longer == replace(run.recipe, schedule=replace(run.recipe.schedule, epochs=3))


def test_trained_weights_need_more_steps(folder: Path, tmp_path: Path) -> None:
    """A run that began from weights is not sent to others."""
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.ViTConfig(image_size=8, patch_size=4, num_labels=2, **shape)
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path / "vit")
    settings = [f"data.path={folder}", "data.workers=0", "schedule.epochs=1", "schedule.warmup=0", "optim.lr=1e-9"]
    judgement = judge_run(RunDirectory.open(leanify.train(str(tmp_path / "vit"), tmp_path / "run", settings=settings)))
    line = f"leanify train {tmp_path / 'vit'} --set data.path={folder} --set schedule.epochs=3"
    assert judgement.message.endswith(f"What helps are more steps: {line}")


def test_lower_losses_are_better() -> None:
    trivial = ReferenceScore("bigram counts", 11.0, metric="perplexity", sign=-1)
    assert [Judgement(trivial, value, "").has_learnt for value in (9.0, 11.0, 12.0)] == [True, False, False]
    assert Judgement(trivial, 9.0, "").message == "learnt: perplexity 9.000 against 11.00 of bigram counts"


def test_built_in_data_are_not_judged(tmp_path: Path) -> None:
    settings = ["schedule.epochs=1", "data.samples=64", "model.override.depth=1"]
    assert judge_run(RunDirectory.open(leanify.train("digits", tmp_path / "run", settings=settings))) is None


def train(recipe: str, run: Path, *settings: str) -> Result:
    return command("train", recipe, *(word for one in settings for word in ("--set", one)), "-o", str(run))


def test_command_ends_with_judgement(folder: Path, tmp_path: Path) -> None:
    done = train("own-images", tmp_path / "run", f"data.path={folder}", *THIN, "schedule.epochs=1")
    assert "learnt: top1 " in done.stdout
    assert "of logistic regression on 4 × 4 pixels" in done.stdout
    facts = json.loads(command("train", "--resume", str(tmp_path / "run"), "--json").stdout)
    assert facts["reference"]["value"] == 100.0
    assert facts["learnt"] in (True, False)


def test_next_line_names_the_text(tmp_path: Path) -> None:
    """The recipe alone has no data that could be compared."""
    text = tmp_path / "notes.txt"
    text.write_text("a few words in a row. " * 100)
    short = ["model.override.n_layer=3", "schedule.steps=2", "schedule.warmup=1"]
    done = train("own-text", tmp_path / "run", f"data.path={text}", *short)
    assert done.stdout.splitlines()[-1].strip() == f"leanify compare {text}"


SENTENCES = [f"{('a fine and sunny day', 'a dull and rainy night')[i % 2]} {i}" for i in range(60)]


@pytest.mark.parametrize(
    ("header", "label", "settings"),
    [
        ("text,label", lambda i: i % 2, []),
        ("words,mood", lambda i: i % 2, []),
        ("text,score", lambda i: i, ["data.task=text-regression"]),
        ("text,score", lambda i: "nan" if i % 9 == 0 else i / 7, ["data.on_error=skip"]),
        ("lead,body,its mood", lambda i: f"{i} words,{i % 3}", ['data.text=["lead"]', "data.label=its mood"]),
    ],
    ids=["names", "cells", "task", "faults", "columns"],
)
def test_other_commands_read_the_same_data(tmp_path: Path, header: str, label: Any, settings: list[str]) -> None:
    """What the user said of a run's data stands in the lines that are proposed after it."""
    rows = [f"{text},{label(i)}" for i, text in enumerate(SENTENCES)]
    (tmp_path / "train.csv").write_text("\n".join([header, *rows]))
    data = resolve("own-sentences", [f"data.path={tmp_path}", *settings]).data
    words = shlex.split(default_recipe.further_settings(data))
    assert words[::2] == ["--set"] * (len(words) // 2)
    assert resolve("own-sentences", [f"data.path={tmp_path}", *words[1::2]]).data == data
    assert bool(words) is bool(settings)
