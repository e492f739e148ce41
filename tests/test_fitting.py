"""Recipes that fit the user's own data, and studies that fit the user's minutes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from test_compare import plan

from leanify.data import found
from leanify.errors import DataError, RecipeError
from leanify.study import duration
from leanify.training import defaults

RNG = np.random.default_rng(2)


def pictures(folder: Path, size: tuple[int, int], mode: str = "L", count: int = 6) -> Path:
    for name in ("cats", "dogs"):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            shape = size[::-1] if mode == "L" else (*size[::-1], 3)
            Image.fromarray(RNG.integers(0, 255, shape, np.uint8)).save(folder / name / f"{number}.png")
    return folder


@pytest.mark.parametrize(("samples", "smallest"), [(500, 0.9), (60_000, 1.0)])
def test_pictures_that_are_seen_a_few_times_are_whole_and_all_keep_their_colours(
    samples: int, smallest: float, tmp_path: Path
) -> None:
    folder = pictures(tmp_path / "pictures", (8, 8))
    data = defaults.of_data(found.Found("images", "", True, classes=2, samples=samples), str(folder)).data
    assert data is not None
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
def test_pictures_keep_their_size_as_far_as_a_laptop_goes(
    size: tuple[int, int], mode: str, expected: tuple[int, int, int | None], tmp_path: Path
) -> None:
    recipe = defaults.recipe_of(pictures(tmp_path / "own", size, mode))
    override = recipe.model.override
    assert (override["img_size"], override["patch_size"], override.get("in_chans")) == expected
    assert override["img_size"] % override["patch_size"] == 0
    assert override["num_classes"] == 2
    assert recipe.data is not None
    assert (recipe.data.flip, recipe.data.holdout) == (0.0, 0.2)
    assert recipe.schedule is not None
    assert recipe.schedule.epochs is not None
    assert recipe.schedule.warmup == pytest.approx(defaults.WARMUP * recipe.schedule.epochs)
    assert recipe == defaults.recipe_of("own-images", str(tmp_path / "own"))


def test_texts_decide_length_and_vocabulary(tmp_path: Path) -> None:
    def table(words: int) -> Path:
        file = tmp_path / f"{words}.csv"
        rows = [" ".join(f"w{RNG.integers(0, 600)}" for _ in range(words)) + f",{n % 2}" for n in range(300)]
        file.write_text("text,label\n" + "\n".join(rows) + "\n")
        return file

    short, long = (defaults.recipe_of(table(words)).data for words in (6, 400))
    assert short is not None
    assert long is not None
    assert short.length is not None
    assert 6 < short.length < 32
    assert long.length == 128
    known = found.recognise(table(6))
    assert known is not None
    assert known.words == 6
    assert known.vocabulary is not None
    assert short.tokenizer in ("wordpiece-512", "wordpiece-1024")
    assert defaults.recipe_of(table(6)).model.override["vocab_size"] in (512, 1024)


def test_the_minutes_of_a_study_are_the_steps_of_its_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten steps an epoch, at 0.1 s a step of each design."""
    facts = {"seconds_a_step": 0.1, "steps": 40, "validated": 100, "data": "4 sentences"}
    monkeypatch.setattr(duration.start, "rehearse", lambda recipe: facts)
    two = plan("baseline", "lean")
    short, long = (duration.fitted(two, minutes, 1).recipe.schedule for minutes in (1.0, 2.0))
    assert short is not None
    assert long is not None
    assert short.steps == int(60 * duration.SPARE / (2 * 2 * 0.1))
    assert long.steps == pytest.approx(2 * short.steps, abs=2)
    tried = duration.fitted(replace(two, rates=(0.5, 1.0, 2.0)), 2.0, 1).recipe.schedule
    assert tried is not None
    assert tried.steps == pytest.approx(long.steps * 2 / 3.5, abs=2)
    most = duration.fitted(two, 1e5, 1).recipe.schedule
    assert most is not None
    assert most.steps == 10 * duration.MOST
    with pytest.raises(RecipeError, match=r"--minutes 0\.1 is too few: .* take about 1 minute here"):
        duration.fitted(two, 0.1, 1)
    for minutes in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(RecipeError, match="--minutes must be above 0"):
            duration.fitted(two, minutes, 1)
    monkeypatch.setattr(duration.start, "rehearse", lambda recipe: facts | {"validated": 2})
    with pytest.raises(DataError, match=r"4 sentences: too few .* 10 samples must validate, and 2 do"):
        duration.fitted(two, 2.0, 1)
