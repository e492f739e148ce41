"""The Long-Range Arena: every recipe as it stands on small data, what the samples are, and what is said of bad ones."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from runs import refused
from scipy import ndimage

import lra_pathfinder as pathfinder
import lra_retrieval as aan
from leanify.core import recipe as recipes
from leanify.core.errors import DataError, LeanifyError, RecipeError
from leanify.runs.run_directory import RunDirectory
from leanify.training import loop
from leanify.training import start as training
from lra_pathfinder import PathfinderOptions, generated
from lra_sequences import Sequences

NAMES = ("listops", "text", "image", "pathfinder", "retrieval")
SHORT = ["schedule.steps=2", "schedule.warmup=2", "schedule.batch_size=2"]
FEW = ["data.options.train=16", "data.options.validation=8", "data.options.test=8"]
TEXTS = [f"film number {n}, {'good' if n % 2 else 'bad'} and Ünïcode" * (1 + n % 3) for n in range(40)]


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Reviews, papers and pictures, each in its own layout."""
    path = tmp_path / "data"
    for split, number in (("train", 40), ("test", 10)):
        for label in ("cat", "dog"):
            (path / split / label).mkdir(parents=True)
            for n in range(number // 4):
                pixels = np.random.default_rng(n).integers(0, 256, (32, 32, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(path / split / label / f"{n}.png")
        with (path / f"{split}.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("text", "label"), *((TEXTS[n], n % 2) for n in range(number))])
    for name in aan.FILES.values():
        rows = (f"{n % 2}.0\tA{n}\tB{n}\t{TEXTS[n]}\t{TEXTS[-n]}\n" for n in range(12))
        (path / name).write_text("".join(rows), encoding="utf-8")
    return path


def settings_of(name: str, folder: Path) -> list[str]:
    return [*SHORT, *(FEW if name in ("listops", "pathfinder") else [f"data.path={folder}"])]


@pytest.mark.slow
@pytest.mark.parametrize("role", ["", *(pytest.param(role, marks=pytest.mark.long) for role in ("-lean", "-control"))])
@pytest.mark.parametrize("name", NAMES)
def test_recipes_run_unchanged(name: str, role: str, folder: Path, tmp_path: Path) -> None:
    run = RunDirectory.open(training.train(f"lra-{name}{role}", tmp_path / "run", settings=settings_of(name, folder)))
    *_, row, test = run.rows()
    assert (row["split"], test["split"]) == ("validation", "test")
    assert row["accuracy"] == row["top1"]
    assert 0 <= row["majority"] <= 100
    summary = run.summary()
    assert summary["test_accuracy"] == test["accuracy"]
    assert test["step"] == summary["best_step"]


# -- samples ----------------------------------------------------------------------------------------------------------


def splits(name: str, folder: Path, *settings: str) -> loop.Trainer:
    return loop.Trainer(recipes.apply_settings(recipes.load(f"lra-{name}"), [*settings_of(name, folder), *settings]))


def test_texts_become_bytes(folder: Path) -> None:
    found = splits("text", folder).splits
    assert (len(found.train), len(found.validation), len(found.test or ())) == (36, 4, 10)
    inputs, labels = found.test.batch(np.arange(10))  # type: ignore[union-attr]
    for n in range(10):
        ids = inputs["input_ids"][n][inputs["attention_mask"][n].bool()] - 1
        assert bytes(ids.tolist()).decode() == TEXTS[n]
        assert labels[n] == n % 2
    assert inputs["input_ids"].shape == (10, 4096)


def test_long_texts_are_cut(folder: Path) -> None:
    found = splits("text", folder, "data.length=7", "model.override.length=7", "model.override.landmarks=7").splits
    inputs, _ = found.train.batch(np.arange(3))  # type: ignore[attr-defined]
    assert bytes((inputs["input_ids"][0] - 1).tolist()) == b"film nu"
    assert "attention_mask" not in inputs
    assert "the first 7 tokens of each" in found.description


def test_images_become_grey_rows(folder: Path) -> None:
    found = splits("image", folder).splits
    assert (len(found.train), len(found.validation), len(found.test or ())) == (18, 2, 4)
    inputs, labels = found.test.batch(np.arange(4))  # type: ignore[union-attr]
    with Image.open(folder / "test" / "dog" / "1.png") as image:
        assert inputs["input_ids"][3].tolist() == list(np.asarray(image.convert("L")).ravel())
    assert labels.tolist() == [0, 0, 1, 1]


def test_validation_folder_becomes_test(folder: Path) -> None:
    (folder / "test").rename(folder / "validation")
    assert "tested on validation" in splits("image", folder).splits.description


def test_pairs_hold_two_texts(folder: Path) -> None:
    trainer = splits("retrieval", folder)
    inputs, labels = trainer.splits.train.batch(np.array([5, 2]))  # type: ignore[attr-defined]
    assert inputs["input_ids"].shape == (2, 2, 4096)
    for row, n in ((0, 5), (1, 2)):
        for side, text in enumerate((TEXTS[n], TEXTS[-n])):
            ids = inputs["input_ids"][row, side][inputs["attention_mask"][row, side].bool()] - 1
            assert bytes(ids.tolist()).decode() == text
    assert labels.tolist() == [1, 0]


def test_answers_ignore_batching(folder: Path) -> None:
    """Landmarks move with the padding, so that is the same for all; another encoder is padded to the longest."""
    trainer = splits("text", folder)
    alone, both = (trainer.splits.test.batch(np.array(i))[0] for i in ([0], [0, 2]))  # type: ignore[union-attr]
    with torch.no_grad():
        model = trainer.unwrapped_model.eval()
        torch.testing.assert_close(model(**alone)[0], model(**both)[0])
    bert = ["model.source=bert", "model.class=AutoModelForSequenceClassification", "model.override=",
            "model.override.hidden_size=16", "model.override.num_attention_heads=2", "data.length=512",
            "model.override.num_hidden_layers=1", "model.override.intermediate_size=16"]  # fmt: skip
    trainer = splits("text", folder, *bert)
    alone, both = (trainer.splits.test.batch(np.array(i))[0] for i in ([0], [0, 2]))  # type: ignore[union-attr]
    assert alone["input_ids"].shape[1] < both["input_ids"].shape[1] < 512
    with torch.no_grad():
        model = trainer.unwrapped_model.eval()
        torch.testing.assert_close(model(**alone).logits[0], model(**both).logits[0], rtol=1e-4, atol=1e-5)


def test_parts_are_consecutive() -> None:
    whole = Sequences.of([np.full(n, n, dtype=np.uint8) for n in (1, 2, 3, 4)], [0, 1, 0, 1], "here")
    first, second = whole.parts(1, 3)
    assert first.batch(np.array([0]))[0]["input_ids"].tolist() == [[1]]
    inputs, labels = second.batch(np.array([2, 0]))
    assert inputs["input_ids"].tolist() == [[4, 4, 4, 4], [2, 2, 0, 0]]
    assert inputs["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]
    assert labels.tolist() == [1, 1]


# -- Pathfinder -------------------------------------------------------------------------------------------------------

PATHS = PathfinderOptions(train=40, validation=8, test=8)


@pytest.fixture(scope="module")
def pictures() -> dict[str, np.ndarray]:
    return generated(PATHS)


def test_pathfinder_is_balanced_and_seeded(pictures: dict[str, np.ndarray]) -> None:
    start = 0
    for size in (PATHS.train, PATHS.validation, PATHS.test):
        assert Counter(pictures["labels"][start : start + size].tolist()) == {0: size // 2, 1: size // 2}
        start += size
    again = generated(PATHS)
    assert all(np.array_equal(pictures[name], again[name]) for name in pictures)
    assert len({image.tobytes() for image in pictures["images"]}) == 56


def test_pictures_have_two_discs(pictures: dict[str, np.ndarray]) -> None:
    for image in pictures["images"]:
        _, discs = ndimage.label(image > pathfinder.GREY, np.ones((3, 3)))
        assert discs in (1, 2)  # one where an end lies beside the start
        assert 40 < (image > 0).sum() < 500


def test_class_1_joins_discs(pictures: dict[str, np.ndarray]) -> None:
    canvas = pathfinder.finished(np.random.default_rng(PATHS.seed), PATHS)
    told = set()
    for dashes, image, label in zip(canvas.dashes, pictures["images"], pictures["labels"], strict=False):
        start, mine, other = dashes[0, 0], dashes[26, 1], dashes[27, 1]
        white = [image[int(y), int(x)] > pathfinder.GREY for x, y in (start, mine, other)]
        assert white[0]
        if min(np.linalg.norm(a - b) for a, b in ((start, mine), (start, other), (mine, other))) > 4:
            assert white[1:] == [label == 1, label == 0]
            told.add(label)
    assert told == {0, 1}


def test_paths_turn_gently_and_separate() -> None:
    """Walked along the drawn dashes: each lies a gap behind the one before, the paths are apart."""
    rng = np.random.default_rng(0)
    canvas = pathfinder.Canvas(rng, 2000, 28)
    pathfinder.two_paths(canvas, 14)
    assert len(canvas.dashes) > 20
    for path in (canvas.dashes[:, 0::2], canvas.dashes[:, 1::2]):
        gaps = np.linalg.norm(path[:, 1:, 0] - path[:, :-1, 1], axis=-1)
        np.testing.assert_allclose(gaps, pathfinder.GAP, rtol=1e-9)
        np.testing.assert_allclose(np.linalg.norm(path[:, :, 1] - path[:, :, 0], axis=-1), pathfinder.DASH, rtol=1e-9)
        steps = path[:, :, 1] - path[:, :, 0]
        assert ((steps[:, 1:] * steps[:, :-1]).sum(-1) > -1e-9).all()  # no turn of more than a right angle
    one, other = canvas.dashes[:, 0::2].mean(2), canvas.dashes[:, 1::2].mean(2)
    apart = np.linalg.norm(one[:, :, None] - other[:, None], axis=-1).min((1, 2))
    assert apart.min() > 2 * pathfinder.HALF_WIDTH


def test_turns_have_published_density() -> None:
    drawn = pathfinder.turns(np.random.default_rng(0), (200_000,))
    assert np.abs(drawn).max() <= np.pi / 2
    assert (np.cos(drawn) ** 2).mean() == pytest.approx(0.75, abs=0.005)  # ∫cos⁴ / ∫cos²


# -- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "settings", "error", "words"),
    [
        ("retrieval", ["data.path="], DataError, "needs new_aan_pairs.train.tsv, .* folder with --set data.path"),
        ("listops", ["data.length=1024"], DataError, r"sequences of 1,\d+ tokens, but data.length allows only 1,024"),
        ("image", ["data.length=1000"], DataError, "not a square image"),
        ("image", ["data.length=256"], DataError, "has 32 × 32 pixels; data.length requires 16 × 16"),
        ("image", ["data.test=tset"], DataError, r"has no folder tset or validation"),
        ("pathfinder", ["data.options.train=7"], RecipeError, "it must be even"),
        ("text", ["data.options.seed=1"], RecipeError, "data.options does not apply to .*lra.py:text"),
        ("text", ["data.test=tests"], DataError, r"has no tests.csv; found"),
        ("text", ["model.override.vocab=256"], DataError, "257 token ids, but the model's vocabulary has only 256"),
        ("text", ["model.override.pair=true"], DataError, "single sequences; .*--set model.override.pair=false"),
        ("text", ["data.task=pair-classification"], RecipeError, "is for classification"),
        ("text", ["data.tokenizer=words"], RecipeError, "needs bytes"),
    ],
)
def test_misfits_are_one_message(
    name: str, settings: list[str], error: type[LeanifyError], words: str, folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(error, match=words) as found:
        training.train(f"lra-{name}", tmp_path / "run", settings=[*settings_of(name, folder), *settings])
    assert "\n" not in str(found.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "file", "content", "words"),
    [
        ("text", "train.csv", "text,label\na,1\nb,2\n", r"train.csv, line 3: the label is '2'; expected one of 0, 1"),
        ("text", "train.csv", "text,label\n,1\n", "train.csv, line 2: the text is empty"),
        ("text", "train.csv", "text,label\n", "train.csv has no samples"),
        ("text", "train.csv", "review,label\na,1\n", "needs the columns text and label; found review, label"),
        ("retrieval", aan.FILES["train"], "1.0\ta\tb\tc\n", "line 1: found 4 tab-separated cells, expected 5"),
        ("retrieval", aan.FILES["train"], "3\ta\tb\tc\td\n", "line 1: the label is '3'"),
        ("retrieval", aan.FILES["test"], "1\ta\tb\tc\t\n", "line 1: a text is empty"),
        ("image", "train/cat/0.png", "no image", r"0.png cannot be read \(cannot identify image file\)"),
    ],
)
def test_malformed_lines_are_named(
    name: str, file: str, content: str, words: str, folder: Path, tmp_path: Path
) -> None:
    (folder / file).write_text(content)
    with refused(DataError, words, tmp_path / "run"):
        training.train(f"lra-{name}", tmp_path / "run", settings=settings_of(name, folder))
