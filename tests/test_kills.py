"""Kills of every kind of run: the end is the same bit for bit, and nothing is left.

`tests/test_hostile_runs.py` has the plain kind; here are distillation, image workers, two processes, and the other
commands that write.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from kills import KINDS, kill_often
from runs import SHORT, final_state, launched, make_pictures, nothing_left, run_modes
from test_training_processes import RECIPE as TWO

import leanify
from leanify.core import recipe as recipes
from leanify.data.sampling import MODEL, seed_everything
from leanify.training import preparation

KILLS = int(os.environ.get("LEANIFY_KILLS", "20"))


def distilled(home: Path) -> str:
    """From a teacher that is wider, with the maps that this takes."""
    seed_everything(MODEL, 0)
    teacher = preparation.build_model(recipes.apply_settings(SHORT, ["model.override.embed_dim=24"]))
    leanify.save(teacher, home / "teacher")
    settings = [f"distill.teacher={home / 'teacher'}", "distill.hidden_weight=0.5"]
    return recipes.apply_settings(SHORT, ["model.override.drop_path_rate=0", *settings]).to_toml()


def pictured(home: Path) -> str:
    """A folder of images that two workers read, change and erase."""
    make_pictures(home / "data", "abc", train=40, validation=8)
    settings = ["data.name=pictures", f"data.path={home / 'data'}", "data.workers=2", "data.erase=0.3", "data.samples="]
    settings += ["data.holdout=0", "model.override.in_chans=3", "model.override.num_classes=3", "schedule.epochs=3"]
    settings += ["data.rand_augment=rand-m9-mstd0.5-inc1"]
    return recipes.apply_settings(SHORT, settings).to_toml()


def kills(seed: int, number: int) -> list[str]:
    """Half of them aimed at the writing and pruning of checkpoints."""
    draw = random.Random(seed)
    aimed = [draw.choice([f"aim:{draw.randint(1, 14)}", f"write:{draw.randint(1, 90)}"]) for _ in range(number // 2)]
    found = [*aimed, *(f"event:{draw.randint(1, 25)}" for _ in range(number - len(aimed)))]
    draw.shuffle(found)
    return found


@pytest.mark.long
@pytest.mark.parametrize("kind", [distilled, pictured])
def test_kills_with_teacher_or_workers(tmp_path: Path, kind: Callable[[Path], str]) -> None:
    recipe = kind(tmp_path)
    whole = run_modes(tmp_path / "whole", "whole", recipe=recipe)
    codes = run_modes(tmp_path / "run", *kills(7, KILLS), "whole", recipe=recipe)
    assert whole[-1][0] == codes[-1][0] == 0
    assert {code for code, _ in codes[:-1]} <= {-signal.SIGKILL, 0}  # a run that was at its end already ends well
    nothing_left(tmp_path / "run")
    assert final_state(tmp_path / "run") == final_state(tmp_path / "whole")


@pytest.mark.long
def test_kills_of_one_process(tmp_path: Path) -> None:
    """Either of them is killed once the run has begun; the launcher ends the other."""
    recipe = tmp_path / "two.toml"
    recipe.write_text(TWO.replace("log_every = 1", "log_every = 1\ncheckpoint_every = 1"))
    done = launched("train", str(recipe), "-o", str(tmp_path / "whole"))
    _, said = done.communicate()
    assert done.returncode == 0, said
    draw = random.Random(0)
    run = tmp_path / "run"
    for _ in range(max(2, KILLS // 4)):
        known = {*run.glob("checkpoints/*")}
        begun = ("--resume", str(run)) if run.exists() else (str(recipe), "-o", str(run))
        process = launched("train", *begun)
        while process.poll() is None:
            if {*run.glob("checkpoints/*")} - known:  # a checkpoint more, or one that is being written
                time.sleep(draw.random() * 0.05)
                ranks = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
                for rank in ranks[draw.randrange(2) :][:1]:
                    os.kill(int(rank), signal.SIGKILL)
                break
            time.sleep(0.01)
        process.communicate()
    done = launched("train", "--resume", str(run))
    _, said = done.communicate()
    assert done.returncode == 0, said
    nothing_left(run)
    assert final_state(run) == final_state(tmp_path / "whole")


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_kills_of_every_command(kind: str, tmp_path: Path) -> None:
    counts = kill_often(kind, 3, tmp_path)
    assert (counts["bad"], counts["equal"]) == ([], counts["subjects"])
