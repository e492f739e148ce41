"""``leanify train`` as a process: what it prints, where, and with which exit code."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from runs import DIGITS, outcome

from leanify.runs.run_directory import RunDirectory

CODE = "import sys; sys.argv[0] = 'leanify'; from leanify.cli import main; main()"


def run(*arguments: str, where: Path | None = None) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "COLUMNS": "100", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-c", CODE, "train", *arguments], capture_output=True, text=True, env=env, cwd=where
    )


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    file = tmp_path / "tiny.toml"
    file.write_text(DIGITS)
    return file


def test_a_run_is_resumed_after_ctrl_c_and_says_what_came_of_it(recipe: Path, tmp_path: Path) -> None:
    """SIGINT to the process: exit 130 and a checkpoint; then the rest, with results on stdout and lines on stderr."""
    settings = ["--set", "schedule.epochs=20", "--set", "run.log_every=1", "--set", "run.checkpoint_every=50"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "  # also from a background shell
    command = [sys.executable, "-c", heard + CODE, "train", str(recipe), "-o", str(tmp_path / "run"), *settings]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    assert process.stderr is not None
    while not process.stderr.readline().startswith("step 3 "):
        pass
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in err
    assert re.search(r"leanify: saved at step \d+; go on with: leanify train --resume ", err)
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
    assert outcome(tmp_path / "run")["step"] == 160


def test_a_dry_run_predicts_and_writes_nothing(recipe: Path, tmp_path: Path) -> None:
    done = run(str(recipe), "--dry-run", "--json", where=tmp_path)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["steps"] == 24
    assert facts["memory_predicted_bytes"] > 4 * 4 * facts["parameters"]
    assert facts["training_hours_predicted"] > 0
    assert list(tmp_path.iterdir()) == [recipe]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["digist"], "nearest: digits"),
        (["--set", "optim.lrr=1"], "nearest: lr"),
        (["--resume", "nowhere"], "nowhere is not a run"),
        (["--resume", "nowhere", "--dry-run"], "cannot be combined with --dry-run"),
        (["vit_tiny"], "leanify train vit_tiny --set data.path=DIR"),
        (["fashion-mnist"], "no data.path for fashion-mnist; name it with --set data.path=PATH"),
    ],
)
def test_bad_input_is_one_message_and_exit_2(arguments: list[str], message: str, tmp_path: Path) -> None:
    done = run(*arguments, where=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_the_list_has_the_smoke_recipes() -> None:
    done = run("--list", "--json")
    names = [entry["recipe"] for entry in json.loads(done.stdout)["recipes"]]
    assert {"digits", "chars", "leaner-transformers/vit-base"} <= set(names)


@pytest.mark.long
def test_digits_alone_reaches_95_percent(tmp_path: Path) -> None:
    done = run("--json", where=tmp_path)
    facts = json.loads(done.stdout)
    assert facts["run"] == "runs/digits"
    assert facts["top1"] >= 95
