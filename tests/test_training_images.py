"""Image folders: what is read, how it is changed, and what is refused."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from runs import refused

from leanify.core import recipe as recipes
from leanify.core.errors import DataError, RecipeError
from leanify.data.samples import Keyed
from leanify.data.sampling import SAMPLE, seed_everything
from leanify.runs.run_directory import RunDirectory
from leanify.training import loop
from leanify.training import start as training

TINY = recipes.apply_settings(
    recipes.load("own-images"),
    ["model.override={img_size=32, embed_dim=24, depth=1, num_heads=2, num_classes=3}", "data.name=pictures",
     "data.crop=", "data.flip=", "data.color_jitter=", "data.rand_augment=rand-m9-mstd0.5", "data.erase=0.5",
     "data.mixup=0.8", "data.cutmix=1.0", "data.workers=0", "schedule.epochs=2", "schedule.batch_size=7",
     "schedule.warmup=0", "run.checkpoint_every=2"],
)  # fmt: skip
MODES = ("RGB", "L", "RGBA", "P", "1", "CMYK", "I;16", "LA")


def draw(path: Path, mode: str, seed: int) -> None:
    noise = np.random.default_rng(seed).integers(0, 255, (40, 36, 3), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(noise)
    image = Image.fromarray(noise[..., 0].astype(np.uint16) * 256) if mode == "I;16" else image.convert(mode)
    image.save(path.with_suffix(".jpg" if mode == "CMYK" else ".png"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three classes, ten images each to train and four to validate, in every mode."""
    root = tmp_path / "pictures"
    for split, count in (("train", 10), ("val", 4)):
        for label in range(3):
            for i in range(count):
                draw(root / split / f"c{label}" / f"{i}", MODES[(i + label) % len(MODES)], 100 * label + i)
    return root


def at(folder: Path, *settings: str) -> recipes.Recipe:
    return recipes.apply_settings(TINY, [f"data.path={folder}", *settings])


def test_image_folder_trains_in_every_mode(folder: Path, tmp_path: Path) -> None:
    run = RunDirectory.open(training.train(at(folder), tmp_path / "run"))
    rows = [row for row in run.rows() if row["split"] == "validation"]
    assert [row["step"] for row in rows] == [5, 10]
    assert "top5" not in rows[0]  # three classes
    assert run.best() is not None


def test_workers_change_no_sample(folder: Path) -> None:
    """The augmentation of a sample is a function of seed, epoch and index."""
    trainer = loop.Trainer(at(folder))
    first, others = (list(trainer.batches(0)) for _ in range(2))
    again = list(loop.Trainer(at(folder, "data.workers=2")).batches(4))
    assert all(torch.equal(x, y) for (x, _), (y, _) in zip(first, others, strict=True))
    assert all(torch.equal(x, y) for (x, _), (y, _) in zip(first[4:], again, strict=True))
    one, two = (Keyed(trainer.splits.train, 0).__getitems__([(epoch, 3)])[0] for epoch in (0, 1))
    assert not torch.equal(one, two)


def ramp_to_bytes(values: np.ndarray, trainer: loop.Trainer) -> np.ndarray:
    """Pixels of 16 bits from the data set's darkest and brightest to 0 … 255."""
    low, high = trainer.recipe.data.pixel_range
    return np.round((values.astype(float) - low) * 255 / max(high - low, 1)).clip(0, 255).astype(np.uint8)


def test_samples_match_timm(folder: Path) -> None:
    """An oracle: timm's transforms that scale and erase image by image give the same bits."""
    from timm.data import create_transform

    trainer = loop.Trainer(at(folder))
    words = {"mean": (0.5,) * 3, "std": (0.5,) * 3}
    changed = {"is_training": True, "interpolation": "random", "auto_augment": "rand-m9-mstd0.5", "re_prob": 0.5}
    theirs = {
        0.0: create_transform((3, 32, 32), interpolation="bicubic", crop_pct=0.9, **words),
        0.5: create_transform((3, 32, 32), **changed, **words),
    }
    for data, erase in ((trainer.splits.validation, 0.0), (trainer.splits.train, 0.5)):
        batch, *_ = Keyed(data, 7).__getitems__([(1, index) for index in range(len(data))])
        for index, ours in enumerate(trainer.splits.scale_inputs(batch)):
            seed_everything(SAMPLE, 7, 1, index)
            with data.files[index][0] as file, Image.open(file) as image:  # type: ignore[attr-defined]
                # timm takes what Pillow makes of 16 bits, white above 255
                is_wide = image.mode.startswith("I")  # "I" or "I;16", by the version of Pillow
                grey = Image.fromarray(ramp_to_bytes(np.asarray(image), trainer)) if is_wide else image
                torch.testing.assert_close(ours, theirs[erase](grey.convert("RGB")), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("smallest", "side"), [(0.08, 0.9), (0.8, 0.9), (0.9, 0.9**0.5), (1.0, 1.0)])
def test_evaluation_crops_no_tighter(folder: Path, smallest: float, side: float) -> None:
    """timm's transform with that ``crop_pct`` is the oracle."""
    from timm.data import create_transform

    trainer = loop.Trainer(at(folder, f"data.crop=[{smallest}, 1.0]"))
    theirs = create_transform((3, 32, 32), interpolation="bicubic", crop_pct=side, mean=(0.5,) * 3, std=(0.5,) * 3)
    data = trainer.splits.validation
    batch, *_ = Keyed(data, 7).__getitems__([(1, index) for index in range(len(data))])
    for index, ours in enumerate(trainer.splits.scale_inputs(batch)):
        with data.files[index][0] as file, Image.open(file) as image:  # type: ignore[attr-defined]
            if not image.mode.startswith("I"):
                torch.testing.assert_close(ours, theirs(image.convert("RGB")), rtol=0, atol=1e-6)


def test_evaluation_sees_images_once(folder: Path) -> None:
    """It changes none."""
    trainer = loop.Trainer(at(folder, "data.holdout=0.3", "data.flip=1"))
    data = trainer.splits.validation
    assert (len(data), len(trainer.splits.train)) == (9, 21)
    seed_everything(SAMPLE, 1)
    one = data[0][0]  # type: ignore[index]
    assert torch.equal(one, data[0][0])  # type: ignore[index]


def test_grey_images_stay_one_channel(folder: Path) -> None:
    trainer = loop.Trainer(at(folder, "model.override.in_chans=1", "data.rand_augment="))
    assert next(trainer.batches(0))[0].shape == (7, 1, 32, 32)


def test_transformers_model_learns_images(folder: Path) -> None:
    small = "hidden_size=24 num_hidden_layers=1 num_attention_heads=2 intermediate_size=32 image_size=32 num_labels=3"
    settings = ["model.source=vit", "model.class=AutoModelForImageClassification", "model.override="]
    settings += [f"model.override.{pair}" for pair in small.split()]
    assert training.rehearse(at(folder, *settings))["steps"] == 10


def test_named_dataset_equals_folder(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A folder in the hub's layout goes by a name with a slash, as one on the hub does."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (folder.parent / "sets").mkdir()
    (folder / "val").rename(folder / "validation")
    folder.rename(folder.parent / "sets" / "pictures")
    here = at(tmp_path / "sets" / "pictures", "data.test=validation")
    named = recipes.apply_settings(here, ["data.path=", "data.name=sets/pictures"])
    ours, theirs = (loop.Trainer(value) for value in (here, named))
    assert (len(theirs.splits.train), len(theirs.splits.test), theirs.splits.classes) == (30, 12, 3)
    found = [
        {(pixels.numpy().tobytes(), label) for pixels, label in map(data.__getitem__, range(len(data)))}  # type: ignore[attr-defined]
        for data in (ours.splits.validation, theirs.splits.validation)
    ]
    assert found[0] == found[1]


def remove(folder: Path, pattern: str) -> None:
    for place in folder.glob(pattern):
        shutil.rmtree(place) if place.is_dir() else place.unlink()


@pytest.mark.parametrize(
    ("spoil", "settings", "words"),
    [
        (lambda folder: remove(folder, "train/c2/*"), [], "the class c2 in .*train has no image"),
        (lambda folder: remove(folder, "*/c[12]"), [], "one class, c0"),
        (lambda folder: (folder / "val" / "c2").rename(folder / "val" / "c9"), [], "classes that .*train lacks: c9"),
        (
            lambda folder: (folder / "val").rename(folder / "others"),
            [],
            "has no folder validation .*; found others, train",
        ),
        (lambda folder: remove(folder, "train/*"), [], "has no class folders"),
        (lambda folder: None, ["data.path=/nowhere"], "does not exist"),
        (lambda folder: None, ["data.path="], "--set data.path=PATH"),
        (lambda folder: None, ["model.override.num_classes=2"], "3 classes, but the model has only 2 outputs"),
        (lambda folder: None, ["data.img_size=64"], r"model.override.img_size=64"),
        (lambda folder: None, ["data.crop=[0.5]"], "two shares"),
    ],
)
def test_bad_input_writes_nothing(
    spoil: Callable[[Path], None], settings: list[str], words: str, folder: Path, tmp_path: Path
) -> None:
    spoil(folder)
    with refused((DataError, RecipeError), words, tmp_path / "run"):
        training.train(at(folder, *settings), tmp_path / "run")


@pytest.mark.parametrize("workers", [0, 1])
def test_unreadable_image_keeps_progress(folder: Path, tmp_path: Path, workers: int) -> None:
    """The run stops with its name, and what was learnt is kept."""
    path = sorted((folder / "train" / "c1").iterdir())[2]
    path.write_bytes(path.read_bytes()[:60])
    with refused(DataError, "train/c1/"):
        training.train(at(folder, f"data.workers={workers}"), tmp_path / "run")
    assert RunDirectory.open(tmp_path / "run").checkpoints()


LEFT = """
import sys, torch
from leanify.data.samples import Reader

class Samples:
    workers, targets = 1, None
    def __len__(self): return 6
    def __getitem__(self, index): return torch.zeros(2), 0

reader = iter(Reader(Samples(), [[(0, index)] for index in range(6)], 0, 1))
next(reader)
sys.held = reader
raise RuntimeError("of the caller")
"""


def test_error_releases_reader_process() -> None:
    """Workers ignore SIGTERM, by which multiprocessing ends them at exit before it waits for them."""
    ended = subprocess.run([sys.executable, "-c", LEFT], capture_output=True, text=True, timeout=300)
    assert (ended.returncode, ended.stderr.splitlines()[-1]) == (1, "RuntimeError: of the caller")
