"""The screen of a study: every number whole, the time left from the first steps on, nothing with --quiet."""

from __future__ import annotations

import io
import re
import sys
from threading import Thread
from typing import Any

import pytest
from studies import NARROW, recipe_file

from leanify.cli import app
from leanify.cli.board import Board
from leanify.cli.screen import Screen
from leanify.cli.study_tables import render_study
from leanify.errors import LeanifyError
from leanify.study import comparing as studies
from leanify.study.folder import Outcome, StudyFolder
from leanify.study.plan import Key

FIRST, SECOND = Key("baseline", 0), Key("narrow", 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> StudyFolder:
    """A study of two designs and two seeds, none of which has run."""
    where = tmp_path_factory.mktemp("board")
    request = studies.Request(str(recipe_file(where)), designs=("baseline", NARROW), seeds=2, rates=(1.0,))
    return studies.folder_of(request, where / "study")


def train_two(folder: StudyFolder) -> None:
    """What the engine and its workers tell of two runs, one of which ends."""
    with Board(folder) as board:
        for key in (FIRST, SECOND):
            board.row(key, {"prepares": str(key)})
            board.row(key, {"began": "words", "step": 0, "steps": 9000})
            board.row(key, {"step": 2500, "split": "train", "loss": 1.25})
            board.progress.refresh()
        folder.record(
            Outcome(FIRST.design, FIRST.seed, folder.plan.fingerprint(FIRST), "finished", metric="top1", quality=61.5)
        )
        board.ended(FIRST)
        board.progress.refresh()
    (folder.path / "runs" / f"{FIRST}.json").unlink()


def drawn(monkeypatch: Any, capsys: Any, folder: StudyFolder, width: int) -> list[str]:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TTY_INTERACTIVE", "1")
    monkeypatch.setenv("COLUMNS", str(width))
    train_two(folder)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().err).replace("\r", "\n").splitlines()


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_bars_of_a_study_fit_and_leave_room_for_an_interruption(
    monkeypatch: Any, capsys: Any, folder: StudyFolder, width: int
) -> None:
    lines = [line for line in drawn(monkeypatch, capsys, folder, width) if re.match("[⠀-⣿] ", line)]
    assert max(map(len, lines)) <= width - len("^C^C")
    assert not [line for line in lines if "…" in line]
    run = next(line for line in reversed(lines) if "narrow-0" in line)
    assert re.search(r"2,500/9,000 · \d+:\d\d left", run)
    assert ("━" in run, "train loss 1.25" in run) == (width >= 60, width >= 80)


def test_the_time_left_is_known_before_a_run_has_ended(monkeypatch: Any, capsys: Any, folder: StudyFolder) -> None:
    lines = [line for line in drawn(monkeypatch, capsys, folder, 80) if " runs " in line]
    assert any("0/4 · –:–– left" in line for line in lines)
    assert any(re.search(r"0/4 · \d+:\d\d left", line) for line in lines)
    assert "1/4" in lines[-1]


def test_results_stand_apart_from_what_was_shown_before(monkeypatch: Any, capsys: Any, folder: StudyFolder) -> None:
    assert drawn(monkeypatch, capsys, folder, 80)[-1] == ""
    with pytest.raises(LeanifyError), Board(folder):
        raise LeanifyError("no results follow")
    assert capsys.readouterr().err[-1] != "\n"


def test_rows_and_ends_come_from_several_threads(folder: StudyFolder) -> None:
    """A bar that one thread removes is not one that another still writes to."""
    failures: list[Exception] = []

    def rows(board: Board, key: Key) -> None:
        try:
            for _ in range(300):
                board.row(key, {"began": "", "step": 0, "steps": 9})
                board.ended(key)
        except Exception as error:
            failures.append(error)

    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    with Board(folder) as board:
        threads = [Thread(target=rows, args=(board, key)) for key in folder.plan.runs()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    sys.setswitchinterval(usual)
    assert failures == []


def test_quiet_shows_no_progress(monkeypatch: Any, capsys: Any, folder: StudyFolder) -> None:
    """Neither on a terminal nor in a pipe."""
    for terminal in ("0", "1"):
        monkeypatch.setenv("TTY_COMPATIBLE", terminal)
        monkeypatch.setenv("LEANIFY_QUIET", "1")
        train_two(folder)
        with Screen() as watcher:
            watcher.prepares("a name")
            watcher.began("words", 0, 100, "top1", 1)
            watcher.warned("a warning")
            watcher.logged({"step": 50, "epoch": 1.0, "split": "validation", "loss": 1.25, "top1": 61.5})
        assert capsys.readouterr().err == ""


def test_the_page_and_the_next_command_stand_apart_from_the_answers(folder: StudyFolder, capsys: Any) -> None:
    page = folder.path / "report.html"
    for reason in ("", "no room"):
        if reason:
            folder.record(Outcome(FIRST.design, FIRST.seed, folder.plan.fingerprint(FIRST), "failed", reason))
        render_study(studies.finished(folder), page)
        *lines, blank, named, below, more, explained = capsys.readouterr().out.splitlines()
        assert (blank, named, below) == ("", f"page  {page}", "")
        assert lines[-1] != ""
        assert reason in lines[-1]
        assert more.endswith(f"leanify compare {folder.path} --seeds 4")
        assert explained.endswith(f"leanify compare {folder.path} --report --explain")
    (folder.path / "runs" / f"{FIRST}.json").unlink()


def test_a_study_is_shown_where_the_bar_of_its_reading_was(folder: StudyFolder, monkeypatch: Any) -> None:
    """On a terminal both streams are one: what is printed beside a bar would stand on the bar's line."""
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TTY_INTERACTIVE", "1")
    both = io.StringIO()
    monkeypatch.setattr(sys, "stdout", both)
    monkeypatch.setattr(sys, "stderr", both)
    app("show")(args=[str(folder.path)], prog_name="leanify", standalone_mode=False)
    printed = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", re.sub(r"\x1b\[\d?[AK]|\r", "\n", both.getvalue()))
    assert any(line.startswith("tiny · ") for line in printed.splitlines())
    assert any("reading" in line for line in printed.splitlines())
