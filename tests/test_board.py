"""The screen of a study: every number whole, the time left from the first steps on, nothing with --quiet."""

from __future__ import annotations

import io
import re
import sys
from typing import Any

import pytest
from commands import on_terminal, plain
from studies import NARROW, recipe_file

from leanify.cli import app
from leanify.cli.screen import Screen
from leanify.cli.study_tables import Board, render_study
from leanify.comparison import comparing as studies
from leanify.comparison import planning
from leanify.comparison.folder import Outcome, StudyFolder
from leanify.comparison.plan import Key
from leanify.core.errors import LeanifyError

FIRST, SECOND = Key("baseline", 0), Key("narrow", 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> StudyFolder:
    """A study of two designs and two seeds, none of which has run."""
    where = tmp_path_factory.mktemp("board")
    request = planning.Request(str(recipe_file(where)), designs=("baseline", NARROW), seeds=2, rates=(1.0,))
    return planning.open_folder(request, where / "study")


def outcome(folder: StudyFolder, status: str, **values: Any) -> Outcome:
    return Outcome(FIRST.design, FIRST.seed, folder.plan.fingerprint(FIRST), status, **values)


def train_two(folder: StudyFolder) -> None:
    """What the engine and its workers tell of two runs, one of which ends."""
    with Board(folder) as board:
        for key in (FIRST, SECOND):
            board.row(key, {"prepares": str(key)})
            board.row(key, {"began": "words", "step": 0, "steps": 9000})
            board.row(key, {"step": 2500, "split": "train", "loss": 1.25})
            board.progress.refresh()
        folder.record(outcome(folder, "finished", metric="top1", quality=61.5))
        board.on_end(FIRST)
        board.progress.refresh()
    (folder.path / "runs" / f"{FIRST}.json").unlink()


def drawn(monkeypatch: Any, capsys: Any, folder: StudyFolder, width: int) -> list[str]:
    on_terminal(monkeypatch, width)
    train_two(folder)
    return plain(capsys.readouterr().err)


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_study_bars_fit_width(monkeypatch: Any, capsys: Any, folder: StudyFolder, width: int) -> None:
    lines = [line for line in drawn(monkeypatch, capsys, folder, width) if re.match("[⠀-⣿] ", line)]
    assert max(map(len, lines)) <= width
    run = next(line for line in reversed(lines) if "narrow-0" in line)
    assert "2500/9000" in run
    assert ("━" in run, "train loss 1.25" in run) == (width >= 60, width >= 60)


def test_time_left_counts_running_runs(folder: StudyFolder) -> None:
    with Board(folder) as board:
        for step in (0, 4500):
            board.row(FIRST, {"began": "words", "step": 0, "steps": 9000})
            board.row(FIRST, {"step": step, "split": "train", "loss": 1.25})
        assert board.progress.tasks[0].completed == 0.5
        board.on_end(FIRST)
        assert (board.progress.tasks[0].completed, board.progress.tasks[0].total) == (1, 4)


def test_pipe_gets_periodic_lines(monkeypatch: Any, capsys: Any, folder: StudyFolder) -> None:
    """A pipe gets a line every half minute."""
    now = [0.0]
    monkeypatch.setattr("leanify.cli.study_tables.time.monotonic", lambda: now[0])
    with Board(folder) as board:
        for step in range(0, 100, 10):
            now[0] += 10
            board.row(FIRST, {"step": step, "split": "train", "loss": 1.25})
    lines = capsys.readouterr().err.splitlines()[1:]
    assert lines == [f"baseline-0 · step {step} · train loss 1.250" for step in (30, 70)]


def test_results_follow_a_blank_line(monkeypatch: Any, capsys: Any, folder: StudyFolder) -> None:
    assert drawn(monkeypatch, capsys, folder, 80)[-1] == ""
    with pytest.raises(LeanifyError), Board(folder):
        raise LeanifyError("no results follow")
    assert capsys.readouterr().err[-1] != "\n"


def test_quiet_hides_progress(monkeypatch: Any, capsys: Any, folder: StudyFolder) -> None:
    """Neither on a terminal nor in a pipe."""
    for terminal in ("0", "1"):
        monkeypatch.setenv("TTY_COMPATIBLE", terminal)
        monkeypatch.setenv("LEANIFY_QUIET", "1")
        train_two(folder)
        with Screen() as callback:
            callback.on_train_begin("words", 0, 100, "top1", 1)
            callback.on_warning("a warning")
            callback.on_log({"step": 50, "epoch": 1.0, "split": "validation", "loss": 1.25, "top1": 61.5})
        assert capsys.readouterr().err == ""


def test_page_and_next_command_are_separate(folder: StudyFolder, capsys: Any) -> None:
    page = folder.path / "report.html"
    for reason in ("", "no room"):
        if reason:
            folder.record(outcome(folder, "failed", reason=reason))
        render_study(studies.finish_study(folder), page)
        *lines, blank, named, below, more, explained = capsys.readouterr().out.splitlines()
        assert (blank, named, below) == ("", f"page  {page}", "")
        assert lines[-1] != ""
        assert reason in lines[-1]
        assert more.endswith(f"leanify compare {folder.path}")  # runs are missing
        assert explained.endswith(f"leanify compare {folder.path} --report --explain")
    (folder.path / "runs" / f"{FIRST}.json").unlink()


def test_page_replaces_loading_bar(monkeypatch: Any) -> None:
    """On a terminal both streams are one: what is printed beside a bar would stand on the bar's line."""
    on_terminal(monkeypatch, 80)
    both = io.StringIO()
    monkeypatch.setattr(sys, "stdout", both)
    monkeypatch.setattr(sys, "stderr", both)
    app("show")(args=["vit_tiny"], prog_name="leanify", standalone_mode=False)
    lines = plain(re.sub(r"\x1b\[\d?[AK]", "\n", both.getvalue()))
    assert any(line.startswith("vit_tiny · ") for line in lines)
    assert any("reading" in line for line in lines)
