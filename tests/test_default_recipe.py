"""Recipes that fit the user's own data, and studies that fit the user's minutes."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from test_compare import plan

import leanify
from leanify.comparison import duration
from leanify.core.errors import DataError, RecipeError
from leanify.layouts import recognition
from leanify.layouts.own_data import OwnData
from leanify.training import default_recipe
from leanify.training import start as training
from leanify.training.preparation import model_on_meta

RNG = np.random.default_rng(2)


def pictures(folder: Path, size: tuple[int, int], mode: str = "L", count: int = 6) -> Path:
    for name in ("cats", "dogs"):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            shape = size[::-1] if mode == "L" else (*size[::-1], 3)
            Image.fromarray(RNG.integers(0, 255, shape, np.uint8)).save(folder / name / f"{number}.png")
    return folder


@pytest.mark.parametrize(("samples", "smallest"), [(500, 0.9), (60_000, 1.0)])
def test_few_epochs_keep_whole_images(samples: int, smallest: float, tmp_path: Path) -> None:
    """Images that are seen a few times are not cropped, and all keep their colours."""
    folder = pictures(tmp_path / "pictures", (8, 8))
    data = default_recipe.data_recipe(OwnData("images", "", True, classes=2, samples=samples), str(folder)).data
    assert (data.crop, data.color_jitter, data.flip) == ((smallest, 1.0), 0.0, 0.0)


@pytest.mark.parametrize(
    ("size", "mode", "expected"),
    [
        ((28, 28), "L", (28, 7, 1)),
        ((8, 8), "L", (8, 2, 1)),
        ((32, 32), "RGB", (32, 8, None)),
        ((300, 200), "RGB", (64, 16, None)),
    ],
)
def test_image_size_is_capped_for_laptops(
    size: tuple[int, int], mode: str, expected: tuple[int, int, int | None], tmp_path: Path
) -> None:
    recipe = training.resolve(pictures(tmp_path / "own", size, mode))
    override = recipe.model.override
    assert (override["img_size"], override["patch_size"], override.get("in_chans")) == expected
    assert override["img_size"] % override["patch_size"] == 0
    assert override["num_classes"] == 2
    assert (recipe.data.flip, recipe.data.holdout) == (0.0, 0.2)
    assert recipe.schedule.warmup == pytest.approx(default_recipe.WARMUP * recipe.schedule.epochs)
    assert recipe == training.resolve("own-images", [f"data.path={tmp_path / 'own'}"])


def test_texts_set_length_and_vocabulary(tmp_path: Path) -> None:
    def table(words: int) -> Path:
        file = tmp_path / f"{words}.csv"
        rows = [" ".join(f"w{RNG.integers(0, 600)}" for _ in range(words)) + f",{n % 2}" for n in range(300)]
        file.write_text("text,label\n" + "\n".join(rows) + "\n")
        return file

    short, long = (training.resolve(table(words)).data for words in (6, 400))
    assert 6 < short.length < 32
    assert long.length == 128
    known = recognition.recognise(table(6))
    assert known.words == 6
    assert known.vocabulary is not None
    assert short.tokenizer in ("wordpiece-512", "wordpiece-1024")
    assert training.resolve(table(6)).model.override["vocab_size"] in (512, 1024)


FACTS = {"seconds_a_step": 0.1, "steps": 300, "validated": 320, "data": "4 sentences", "memory_predicted_bytes": None}
NAMES = ("baseline", "lean", "control", "wide")


@pytest.fixture
def rehearsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every design takes 0.1 s a step, 300 steps a run."""
    monkeypatch.setattr(duration.start, "rehearse", lambda recipe: FACTS)


def test_study_time_counts_runs_and_trials(rehearsed: None) -> None:
    """Steps, evaluations and the start of each run; trials take half of the schedule, and the range may move once."""
    full = replace(plan("baseline", "lean"), rates=(0.5, 1.0, 2.0), seeds=(0, 1, 2))
    timings = duration.time_designs(full, evaluations=10)
    timing = timings["lean"]
    batches = -(-320 // 32)
    assert timing.run == pytest.approx(timing.startup + 300 * 0.1 + 10 * batches * 0.1 * duration.FORWARD)
    trials = (6 + 2) * (timing.startup + (timing.run - timing.startup) / 2)
    expected = 6 * timing.run + trials + 2 * duration.MEASURING
    assert duration.study_seconds(full, timings, 1) == pytest.approx(expected)
    halved = (6 * timing.run + trials) / 2 + 2 * duration.MEASURING
    assert duration.study_seconds(full, timings, 2) == pytest.approx(halved)
    prediction = duration.forecast(full, timings, 1)
    assert (prediction["runs"], prediction["steps"]) == (12, 300)


@pytest.mark.parametrize(
    ("minutes", "removed", "rates", "seeds", "designs"),
    [
        (60.0, [], 3, 5, NAMES),
        (13.0, ["the trials of 3 learning rates"], 1, 5, NAMES),
        (10.5, ["the trials of 3 learning rates", "1 of 5 seeds"], 1, 4, NAMES),
        (4.5, ["the trials of 3 learning rates", "2 of 5 seeds", "wide, control"], 1, 3, NAMES[:2]),
    ],
)
def test_minutes_take_away_rates_then_seeds_then_designs(
    minutes: float, removed: list[str], rates: int, seeds: int, designs: tuple[str, ...], rehearsed: None
) -> None:
    """Never steps of a run: the recipe is left as it is."""
    full = replace(plan(*NAMES), rates=(0.5, 1.0, 2.0), seeds=(0, 1, 2, 3, 4))
    timings = duration.time_designs(full)
    smaller, words = duration.fit_minutes(full, timings, minutes, 1)
    assert words == removed
    assert (len(smaller.rates), len(smaller.seeds)) == (rates, seeds)
    assert tuple(design.name for design in smaller.designs) == designs
    assert smaller.recipe == full.recipe
    assert duration.study_seconds(smaller, timings, 1) <= 60 * minutes


def test_too_few_minutes_are_refused(rehearsed: None, monkeypatch: pytest.MonkeyPatch) -> None:
    full = replace(plan(*NAMES), seeds=(0, 1, 2))
    timings = duration.time_designs(full)
    words = r"--minutes 2 is too few: baseline and lean .* 3 seeds .* 300 steps"
    with pytest.raises(RecipeError, match=words) as caught:
        duration.fit_minutes(full, timings, 2.0, 1)
    enough = float(re.findall(r"--minutes (\d+),", str(caught.value))[0])
    assert duration.fit_minutes(full, timings, enough, 1)
    for minutes in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(RecipeError, match="--minutes must be above 0"):
            duration.fit_minutes(full, timings, minutes, 1)
    monkeypatch.setattr(duration.start, "rehearse", lambda recipe: FACTS | {"validated": 2})
    with pytest.raises(DataError, match=r"4 sentences: too few .* 10 samples must validate, and 2 do"):
        duration.time_designs(full)


# -- as much as the data need ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "epochs"), [(999, 30), (1000, 30), (2000, 15), (5000, 6), (40_000, 3)])
def test_tables_are_counted(tmp_path: Path, rows: int, epochs: int) -> None:
    """A long table is seen as often as a short one needs, and its vocabulary is at most a third of the model."""
    lines = [f"word{number} of sentence{number % 701} here,{('neg', 'pos')[number % 2]}\n" for number in range(rows)]
    (tmp_path / "train.csv").write_text("text,label\n" + "".join(lines))
    recipe = training.resolve(str(tmp_path))
    assert recipe.schedule.epochs == epochs
    model = model_on_meta(recipe.model)
    [embeddings] = [tensor for name, tensor in model.named_parameters() if name.endswith("word_embeddings.weight")]
    assert 3 * embeddings.numel() <= sum(tensor.numel() for tensor in model.parameters())


def test_own_model_fits_few_pictures(tmp_path: Path) -> None:
    """A model without a recipe is trained as own-images is; trained weights take a lower rate for a shorter time."""
    folder = pictures(tmp_path / "pictures", (32, 32), "RGB", count=50)
    sizes = {"img_size": 32, "depth": 4}
    leanify.redesign("vit_tiny_patch16_224", target_params=0.5, min_depth=2, overrides=sizes).save(tmp_path / "fresh")
    leanify.save(leanify.load(tmp_path / "fresh"), tmp_path / "trained")
    fresh, trained = (training.resolve(tmp_path / name, [f"data.path={folder}"]) for name in ("fresh", "trained"))
    for recipe, epochs, rate in ((fresh, 100, 1e-3), (trained, 100, 1e-4)):
        assert (recipe.schedule.batch_size, recipe.schedule.epochs, recipe.optim.lr) == (32, epochs, rate)
        assert recipe.schedule.warmup == pytest.approx(0.1 * epochs)
    many = default_recipe.model_recipe("vit_tiny_patch16_224").schedule
    assert (many.batch_size, many.epochs) == (128, 10)


def test_types_without_a_classifier_are_named(tmp_path: Path) -> None:
    """Instead of an output without logits, which says nothing of what to do."""
    folder = pictures(tmp_path / "own", (8, 8))
    with pytest.raises(RecipeError, match="no image classifier for the model type 'vit_mae'"):
        training.resolve("hf/vit_mae", [f"data.path={folder}"])
