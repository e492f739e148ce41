"""``leanify runs``: what it says of runs that are done, interrupted, running and broken."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from runs import DIGITS

from leanify.cli import app
from leanify.core import recipe as recipes
from leanify.runs.run_directory import RunDirectory
from leanify.training import start as training
from leanify.training.overview import data_name, find_runs


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    short = recipes.apply_settings(recipes.parse(DIGITS), ["schedule.steps=4", "schedule.epochs=", "data.samples=120"])
    return training.train(short, tmp_path_factory.mktemp("runs") / "done")


def test_run_reports_its_progress(done: Path) -> None:
    [found] = find_runs(done.parent)
    assert (found.path, found.state, found.step, found.steps) == (done, "done", 4, 4)
    assert found.source == RunDirectory.open(done).recipe.model.source
    assert found.metric == "top1"
    best = RunDirectory.open(done).best()
    assert found.best == best.metrics["top1"]


def test_own_data_takes_folder_name() -> None:
    own = recipes.apply_settings(recipes.load("own-images"), ["data.path=/somewhere/birds/"])
    assert data_name(own.data) == "birds"
    digits = recipes.parse(DIGITS).data
    assert data_name(digits) == "digits"


def test_run_states_are_distinct(done: Path, tmp_path: Path) -> None:
    """Interrupted, running and broken runs are told apart."""
    for name in ("broken", "inner/interrupted"):
        shutil.copytree(done, tmp_path / name)
    (tmp_path / "broken" / "recipe.toml").write_text("no recipe")
    last = RunDirectory.open(tmp_path / "inner" / "interrupted").checkpoints()[-1]
    shutil.rmtree(last.path)
    states = {found.path.name: found.state for found in find_runs(tmp_path)}
    assert states == {"broken": "broken", "interrupted": "interrupted"}
    run = RunDirectory.open(tmp_path / "inner" / "interrupted")
    with run.lock():
        assert [found.state for found in find_runs(run.path)] == ["running"]
    assert [found.state for found in find_runs(run.path)] == ["interrupted"]


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes of Unix")
@pytest.mark.parametrize(
    ("name", "spoil"),
    [
        ("recipe.toml", lambda path: path.write_bytes(b"\xff\x00")),
        ("metrics.jsonl", _pipe),
        ("leanify.json", _pipe),
        ("environment.json", lambda path: path.write_text('[{"steps": "many"}]')),
        ("environment.json", lambda path: path.write_text("[" * 100_000)),
    ],
)
def test_broken_run_takes_one_line(
    done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, spoil: Callable[[Path], object]
) -> None:
    for folder in ("a", "b", "c"):
        shutil.copytree(done, tmp_path / folder)
    spoil(tmp_path / "b" / name)
    app("runs")(args=[str(tmp_path)], prog_name="leanify", standalone_mode=False)
    out = capsys.readouterr().out
    app("runs")(args=[str(tmp_path), "--json"], prog_name="leanify", standalone_mode=False)
    listed = json.loads(capsys.readouterr().out)["runs"]
    assert [one["state"] for one in listed] == ["done", "broken", "done"]
    [problem] = [line for line in out.splitlines() if line.startswith("broken: ")]
    assert str(tmp_path / "b") in problem
    assert listed[1]["problem"] in problem


def test_long_model_name_is_shortened(
    done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is shortened in its middle before it is folded."""
    shutil.copytree(done, tmp_path / "run")
    text = (tmp_path / "run" / "recipe.toml").read_text()
    source = RunDirectory.open(done).recipe.model.source
    (tmp_path / "run" / "recipe.toml").write_text(text.replace(source, f"{source}{'x' * 200}224"))
    monkeypatch.chdir(tmp_path)
    app("runs")(args=[], prog_name="leanify", standalone_mode=False)
    [_, line, *_] = capsys.readouterr().out.splitlines()
    assert len(line) <= 100
    assert line.split()[1].startswith(source[:5])
    assert line.split()[1].endswith("x224")


def test_resume_command_can_be_typed(
    done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(done, tmp_path / "my runs" / "one")
    shutil.rmtree(RunDirectory.open("my runs/one").checkpoints()[-1].path)
    app("runs")(args=[], prog_name="leanify", standalone_mode=False)
    words = shlex.split(capsys.readouterr().out.splitlines()[-1].rpartition("next  leanify ")[2])
    assert words == ["train", "--resume", "my runs/one"]
    app("train")(args=words[1:], prog_name="leanify", standalone_mode=False)
    assert [found.state for found in find_runs(tmp_path)] == ["done"]


def test_card_states_built_shape(done: Path) -> None:
    from leanify.cli.show import _build, _read_notes

    assert _read_notes(RunDirectory.open(done)) == _build(str(done))[1:]


def test_empty_folder_has_no_runs(tmp_path: Path) -> None:
    assert list(find_runs(tmp_path)) == []


def test_study_hides_its_runs(done: Path, tmp_path: Path) -> None:
    from leanify.comparison import comparing as study
    from leanify.comparison.overview import find_studies
    from leanify.core.path_kinds import is_study

    request = study.Request("digits-study", seeds=2, designs=("baseline",), settings=("schedule.epochs=1",))
    folder = study.open_folder(request, tmp_path / "mine")
    key = next(iter(folder.plan.runs()))
    shutil.copytree(done, folder.run(key))
    (found,) = find_studies(tmp_path)
    assert (found.path, found.designs, found.runs, found.ended, found.state) == (
        tmp_path / "mine",
        1,
        2,
        0,
        "interrupted",
    )
    assert list(find_runs(tmp_path, is_study)) == []
    with RunDirectory.open(folder.run(key)).lock():
        assert [one.state for one in find_studies(tmp_path)] == ["running"]
    (tmp_path / "mine" / "study.toml").write_text("what")
    assert [one.state for one in find_studies(tmp_path)] == ["broken"]


def test_folders_are_visited_once(done: Path, tmp_path: Path) -> None:
    """A run behind a link is found once; a loop of links ends."""
    (tmp_path / "work" / "venv").mkdir(parents=True)
    (tmp_path / "work" / "venv" / "pyvenv.cfg").touch()
    shutil.copytree(done, tmp_path / "work" / "venv" / "run")
    (tmp_path / "work" / "a").symlink_to(done)
    (tmp_path / "work" / "b").symlink_to(done)
    (tmp_path / "work" / "loop").symlink_to(tmp_path / "work")
    assert [found.path.name for found in find_runs(tmp_path / "work")] == ["a"]
