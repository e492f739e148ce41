"""``leanify train`` as a process: what it prints, where, and with which exit code."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import commands
import pytest
from runs import DIGITS, outcome

from leanify.runs.run_directory import RunDirectory


def run(*arguments: str, where: Path | None = None) -> commands.Done:
    return commands.run("train", *arguments, where=where)


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    file = tmp_path / "tiny.toml"
    file.write_text(DIGITS)
    return file


def test_a_run_is_resumed_after_ctrl_c_and_says_what_came_of_it(recipe: Path, tmp_path: Path) -> None:
    """SIGINT to the process: exit 130 and a checkpoint; then the rest, with results on stdout and lines on stderr."""
    settings = ["--set", "schedule.epochs=20", "--set", "run.log_every=1", "--set", "run.checkpoint_every=50"]
    process = commands.start("commands:command", "train", str(recipe), "-o", str(tmp_path / "run"), *settings)
    process.until("step 3 ")
    process.send(signal.SIGINT)
    done = process.end()
    assert (done.returncode, done.stdout) == (130, "")
    commands.expected(done.stderr)
    assert re.search(r"leanify: saved at step \d+; go on with: leanify train --resume ", done.stderr)
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
