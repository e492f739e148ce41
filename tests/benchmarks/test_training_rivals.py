"""Whole training programs beside others', turn by turn on the same core: timm's script and transformers' Trainer.

    TIMM_TRAIN   the train.py of a checkout of huggingface/pytorch-image-models; it is not in timm's wheel
    TURNS        how often each is run, 3 unless it is said

The time of a turn is that of a longer run less that of a shorter one: imports and beginnings cancel out, reading,
evaluating and saving do not.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from leanify import recipe as recipes

pytestmark = pytest.mark.benchmark
CORE = min(os.sched_getaffinity(0))
TURNS = int(os.environ.get("TURNS", "3"))
IMAGES, SIZE = 256, 128

VIT = f"""
[model]
source = "vit_tiny_patch16_224"
[model.override]
img_size = {SIZE}
num_classes = 4
[data]
name = "noise"
task = "classification"
rand_augment = "rand-m9-mstd0.5"
mixup = 0.8
cutmix = 1.0
workers = 1
[optim]
lr = 1e-3
weight_decay = 0.05
label_smoothing = 0.1
[schedule]
epochs = 1
batch_size = 32
[run]
keep = 1
"""
TIMM = [
    "--model=vit_tiny_patch16_224", f"--img-size={SIZE}", "--model-kwargs", f"img_size={SIZE}", "--num-classes=4",
    "--aa=rand-m9-mstd0.5", "--mixup=0.8", "--cutmix=1.0", "--smoothing=0.1", "--workers=1", "--batch-size=32",
    "--opt=adamw", "--lr=1e-3", "--weight-decay=0.05", "--sched=cosine", "--warmup-epochs=0", "--cooldown-epochs=0",
    "--device=cpu", "--checkpoint-hist=1",
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photograph-sized noise as JPEG: decoding, cropping and augmenting cost what they do."""
    root, draw = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    for split, count in (("train", IMAGES), ("validation", 32)):
        for number in range(count):
            place = root / split / str(number % 4) / f"{number}.jpg"
            place.parent.mkdir(parents=True, exist_ok=True)
            small = Image.fromarray(draw.integers(0, 255, (24, 32, 3), dtype=np.uint8))
            small.resize((400, 300), Image.Resampling.BICUBIC).save(place, quality=90)
    return root


def seconds(command: list[str], where: Path) -> tuple[float, float]:
    """Wall-clock and processor time of a process that has one core and one thread."""
    before, began = os.times(), time.perf_counter()
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(["taskset", "-c", str(CORE), *command], cwd=where, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    after = os.times()
    busy = after.children_user + after.children_system - before.children_user - before.children_system
    return time.perf_counter() - began, busy


def side_by_side(ours: Callable[[bool], tuple[float, float]], theirs: Callable[[bool], tuple[float, float]]) -> float:
    """The medians over turns of the others' time by ours, in processor time where the machine is shared."""
    turns = []
    for _ in range(TURNS):
        found = [[run(longer) for longer in (False, True)] for run in (theirs, ours)]
        turns.append([[longer - shorter for shorter, longer in zip(*pair, strict=True)] for pair in found])
    wall, busy = (statistics.median(turn[0][i] / turn[1][i] for turn in turns) for i in (0, 1))
    print(f"\n{wall:.3f} times as fast by the clock, {busy:.3f} by processor time; turns (theirs, ours): {turns}")
    return busy


def test_at_least_as_fast_as_timms_own_script(folder: Path, tmp_path: Path) -> None:
    script = os.environ.get("TIMM_TRAIN")
    if not script:
        pytest.skip("TIMM_TRAIN does not name the train.py of a checkout of huggingface/pytorch-image-models")
    (tmp_path / "vit.toml").write_text(VIT)
    code = "from leanify.cli import main; main()"
    # timm as it comes may need what torchvision's registry build lacks beside a CPU-only torch; leanify declares it
    shim = "import sys, runpy, leanify; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"

    def ours(longer: bool) -> tuple[float, float]:
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        settings = ["--set", f"data.path={folder}", "--set", f"schedule.epochs={3 if longer else 1}"]
        return seconds([sys.executable, "-c", code, "train", "vit.toml", "-o", "run", *settings], tmp_path)

    def theirs(longer: bool) -> tuple[float, float]:
        shutil.rmtree(tmp_path / "timm", ignore_errors=True)
        places = [f"--data-dir={folder}", f"--epochs={3 if longer else 1}", f"--output={tmp_path / 'timm'}"]
        return seconds([sys.executable, "-W", "ignore", "-c", shim, script, *TIMM, *places], tmp_path)

    assert side_by_side(ours, theirs) >= 1.0


GPT = [
    "schedule.kind=linear", "schedule.warmup=5", "run.log_every=10", "run.eval_every=1000", "run.eval_batches=1",
    "run.keep=1", "schedule.batch_size=8",
]  # fmt: skip


def test_at_least_as_fast_as_transformers_trainer(tmp_path: Path) -> None:
    """The same GPT-2, text, batches, optimiser and schedule; a line of the log every ten steps, one checkpoint."""
    lengths = {False: 40, True: 200}
    for steps in lengths.values():
        value = recipes.with_settings(recipes.load("chars"), [*GPT, f"schedule.steps={steps}"])
        (tmp_path / f"{steps}.toml").write_text(value.to_toml())
    code = "from leanify.cli import main; main()"
    trainer = (
        f"import sys, pathlib; sys.path.insert(0, {str(Path(__file__).parent)!r}); import rivals; "
        "from leanify import recipe; rivals.trained(recipe.load(sys.argv[1]), pathlib.Path('trainer'))"
    )

    def ours(longer: bool) -> tuple[float, float]:
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        return seconds([sys.executable, "-c", code, "train", f"{lengths[longer]}.toml", "-o", "run"], tmp_path)

    def theirs(longer: bool) -> tuple[float, float]:
        shutil.rmtree(tmp_path / "trainer", ignore_errors=True)
        return seconds([sys.executable, "-c", trainer, f"{lengths[longer]}.toml"], tmp_path)

    assert side_by_side(ours, theirs) >= 1.0
