"""The screen of a training run: what fits, what stays, what is best."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import leanify
from leanify import terminal
from leanify.cli import app, predict, recipe_list, screen, show
from leanify.errors import RecipeError
from leanify.terminal import progress, wrap
from leanify.training.curves import DOT, Curves, figure, in_text, ticks
from leanify.training.predicting import Answer

ROWS: list[dict[str, Any]] = [
    {"step": 50, "epoch": 1.0, "split": "train", "loss": 1.5, "lr": 1e-3, "samples_per_s": 100.0},
    {"step": 50, "epoch": 1.0, "split": "validation", "loss": 1.25, "top1": 61.5, "top5": 90.0, "samples_per_s": 9.0},
    {"step": 100, "epoch": 2.0, "split": "validation", "loss": 1.0, "top1": 60.25, "top5": 91.0, "samples_per_s": 9.0},
]


def on_terminal(monkeypatch: Any, capsys: Any, width: int) -> list[str]:
    """The lines that a run leaves on a terminal of this width, with all that was drawn between."""
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TTY_INTERACTIVE", "1")
    monkeypatch.setenv("COLUMNS", str(width))
    with screen.Screen() as watcher:
        watcher.began("vit_tiny, 1,234 parameters · digits, 10 images", 0, 1000, "top1", 1)
        for row in ROWS:
            watcher.stepped(row["step"])
            watcher.logged(row)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().err).replace("\r", "\n").splitlines()


@pytest.mark.parametrize("width", [40, 80, 120])
def test_progress_fits_and_evaluations_stay(monkeypatch: Any, capsys: Any, width: int) -> None:
    lines = on_terminal(monkeypatch, capsys, width)
    assert max(map(len, lines)) <= width
    (first,) = (line for line in lines if line.startswith("epoch 1"))
    assert first.startswith("epoch 1 · top1 61.50% best · step 50")
    (second,) = (line for line in lines if line.startswith("epoch 2"))
    assert "best" not in second
    assert ("loss 1" in second) == (width > 40)
    bar = next(line for line in reversed(lines) if "100/1,000" in line)
    assert "loss 1.5" in bar
    assert ("best top1 61.50%" in bar) == (width > 40)


@pytest.mark.parametrize("width", [40, 80, 120])
def test_a_bar_leaves_room_for_the_characters_of_an_interruption(monkeypatch: Any, capsys: Any, width: int) -> None:
    """After a full line the terminal writes ^C on the next one, and the bar would stay on the screen."""
    lines = [line for line in on_terminal(monkeypatch, capsys, width) if "1,000" in line and "vit_tiny" not in line]
    with progress("a step of many words " * 9, 3), progress("few words", None):
        pass
    lines += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().err).replace("\r", "\n").splitlines()
    assert len(lines) > 5
    assert max(map(len, lines)) <= width - len("^C^C")


def test_a_pipe_gets_a_line_for_every_row_and_no_bar(capsys: Any) -> None:
    with screen.Screen() as watcher:
        watcher.began("words", 0, 100, "top1", 1)
        for row in ROWS:
            watcher.logged(row)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "words"
    assert [line.partition(" · ")[0] for line in lines[1:]] == ["step 50", "step 50", "step 100"]
    assert "samples_per_s 100" in lines[1]


@pytest.mark.parametrize(("metric", "sign", "best"), [("top1", 1, 5.0), ("loss", -1, 2.0)])
def test_the_best_is_by_the_metric_that_names_checkpoints(metric: str, sign: int, best: float) -> None:
    with screen.Screen() as watcher:
        watcher.began("words", 0, 100, metric, sign)
        for loss, top1 in ((3.0, 3.0), (2.0, 5.0), (2.5, 4.0)):
            watcher.logged({"step": 1, "epoch": 1.0, "split": "validation", "loss": loss, "top1": top1})
        assert watcher.best == best


def test_times_and_lines() -> None:
    assert [screen.clock(seconds) for seconds in (7, 63, 3723)] == ["0:07", "1:03", "1:02:03"]
    assert screen.fitted(["abc", "def", "ghi"], 9) == "abc · def"
    assert screen.fitted(["too long for it"], 5) == "too long for it"


def test_facts_of_a_dry_run_have_units(capsys: Any) -> None:
    facts = {
        "steps": 1200,
        "seconds_a_step": 0.25,
        "training_hours_predicted": 1 / 12,
        "memory_available_bytes": 3 << 29,
    }
    screen.print_facts({**facts, "memory_predicted_bytes": None}, "leanify train digits")
    lines = [re.split(r"\s{2,}", line.strip()) for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        ["steps", "1,200"], ["a step", "250.0 ms"], ["training predicted", "about 5 minutes"],
        ["memory available", "1.50 GiB"], ["memory predicted", "–"],
        [""], ["next", "leanify train digits"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("first", "last", "steps"),
    [
        (4, 161, [25, 50, 75, 100, 125, 150]),
        (0, 50, [0, 10, 20, 30, 40, 50]),
        (1, 3, [1, 2, 3]),
        (7, 7, [7]),
        (10, 280_000, [50_000, 100_000, 150_000, 200_000, 250_000]),
    ],
)
def test_steps_on_an_axis_are_round_whole_numbers(first: int, last: int, steps: list[int]) -> None:
    assert ticks(first, last) == steps
    text = in_text(Curves([(first, 2.0), (last + 1, 1.0)], [], "loss", []), 80, 8)
    assert f"{steps[-1]:,}" in text.splitlines()[-2]


def test_an_inner_bar_takes_the_place_of_the_outer_one(monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TTY_INTERACTIVE", "1")
    with progress("outer", None), progress("inner", 3) as tick:
        tick(1)
    drawn = capsys.readouterr().err
    assert drawn.index("outer") < drawn.index("inner") < drawn.rindex("outer")


def test_what_is_printed_beside_a_bar_has_lines_of_its_own(monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TTY_INTERACTIVE", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    with screen.Screen() as watcher:
        for name in ("rte-0", "rte-1"):
            watcher.prepares(name)
            watcher.warned(f"a warning of {name}")
            watcher.began(f"words of {name}", 0, 1000, "top1", 1)
            with progress("an inner bar", None):
                watcher.logged(ROWS[1])
    drawn = re.sub(r"\x1b\[[01]?m", "", capsys.readouterr().err)
    for words in ("rte-0", "rte-1", "leanify: a warning of rte-1", "words of rte-1", "epoch 1 · top1 61.50% best"):
        assert re.search(rf"(\n|\x1b\[2K|\r|^){re.escape(words)}", drawn), words


def test_the_folder_of_a_run_is_resumed_not_emptied(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").touch()
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(leanify.LeanifyError, match=f"leanify train --resume {tmp_path}"):
        app("train")(args=["digits", "-o", str(tmp_path)], prog_name="leanify", standalone_mode=False)


@pytest.mark.parametrize("width", [40, 80])
def test_messages_break_between_words_and_commands_stay_whole(width: int) -> None:
    command = "leanify train --resume runs/digits"
    words = f"leanify: runs/digits holds a run already; go on with it: {command}, or name another folder\n  {command}"
    lines = wrap(words, width).splitlines()
    assert max(map(len, lines)) <= width
    assert " ".join(" ".join(lines).split()) == " ".join(words.split())
    assert sum(command in line for line in lines) == 2
    assert wrap(words, None) == words


@pytest.mark.parametrize(
    "words",
    [
        ("redesign", "vit_base", "--target-params", "0.5"), ("train", "digits"), ("compare",), ("profile", "vit_tiny"),
        ("condition", "vit_tiny"), ("export", "vit_tiny", "--format", "onnx", "-o", "a.onnx"), ("glue", "bert"),
        ("show", "."), ("predict", ".", "x"),
    ],
    ids=lambda words: words[0],
)  # fmt: skip
def test_a_spinner_turns_before_torch_is_imported(words: tuple[str, ...], tmp_path: Path) -> None:
    """On a pseudo-terminal, with a torch that says when it is imported and ends the process."""
    (tmp_path / "torch.py").write_text("import os\nos.write(2, b'TORCH')\nos._exit(0)\n")
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "leanify", *words]
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{Path.cwd()}", "TERM": "xterm", "COLUMNS": "80"}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdin=theirs, stdout=theirs, stderr=theirs):
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # Linux's end of a terminal whose other side is closed
            while part := os.read(ours, 1 << 16):
                shown += part
    os.close(ours)
    before, _, _ = shown.decode().partition("TORCH")
    assert "TORCH" in shown.decode()
    assert before.startswith(f"  leanify {words[0]}"), before  # before typer and rich are imported
    assert "⠋" in before, before


@pytest.mark.parametrize("width", [120, 80])
@pytest.mark.parametrize("words", [(), ("images",), ("paper", "ViT")])
def test_a_recipe_is_a_line_with_its_whole_name(
    monkeypatch: Any, capsys: Any, width: int, words: tuple[str, ...]
) -> None:
    recipe_list.show("json", words)
    rows = json.loads(capsys.readouterr().out)["recipes"]
    own = [row for row in rows if words or "/" not in row["recipe"]]
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("COLUMNS", str(width))
    recipe_list.show(words=words)
    _, *lines = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
    assert [line.split()[0] for line in lines[: len(own)]] == [row["recipe"].rpartition("/")[2] for row in own]
    assert all(
        row["purpose"].startswith(line.split("  ")[-1].rstrip("…")) for row, line in zip(own, lines, strict=False)
    )
    assert max(map(len, lines)) <= width
    assert f"{len(rows) - len(own)} more" in " ".join(lines) or own == rows


def test_words_are_looked_for_in_names_and_purposes() -> None:
    with pytest.raises(RecipeError, match="nearest: images"):
        recipe_list.show(words=["imgaes"])
    assert [row["recipe"] for row in recipe_list.found(["own", "sentences"])] == ["own-sentences"]


@pytest.mark.parametrize("shape", ["blocks: 2 × [4×16]", "blocks: 2 × [4×16, mlp 256, width 64], head: 1 × [4×16]"])
def test_a_run_fits_a_small_terminal(monkeypatch: Any, capsys: Any, shape: str) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    points = [(step, 1 / step) for step in range(1, 50)]
    show._print(show.Page([f"model  vit_tiny_patch16_224 · {shape}", *["facts"] * 4], {}, [],
                          Curves(points, points, "top1", points), ["next"] * 2))  # fmt: skip
    lines = re.sub(r"\x1b\[\d+m", "", capsys.readouterr().out).splitlines()
    assert len(lines) < 24  # and the prompt
    assert max(map(len, lines)) <= 80
    assert sum(line.count("┤") for line in lines) >= 2 * 3
    assert next(line for line in lines if "training" in line).split() == [
        "loss",
        "⡠",
        "training",
        "o",
        "validation",
        "validation",
        "top1",
        "%",
    ]


def test_no_axis_of_percent_goes_above_100() -> None:
    full = Curves([(1, 0.1), (9, 0.1)], [], "top1", [(1, 100.0), (9, 100.0)])
    assert "101" not in in_text(full, 80, 9)
    assert figure(full, "run").axes[1].get_ylim()[1] == 100


@pytest.mark.parametrize("width", [50, 80])
def test_a_curve_of_one_point_has_a_marker(width: int) -> None:
    text = in_text(Curves([(23, 2.32)], [(23, 2.31)], "top1", [(23, 6.4)]), width, 9)
    inside = "".join(re.findall("[┤│](.*?)│", text))
    assert (inside.count(DOT), inside.count("o")) == (2, 1)
    drawn = figure(Curves([(23, 2.32)], [(23, 2.31)], "top1", [(23, 6.4)]), "title")
    assert all(line.get_marker() not in ("", "None") for axes in drawn.axes for line in axes.get_lines())


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("sample", [None, "a long text that goes on and on, about nothing, until it is cut off"])
def test_a_prediction_is_a_line_that_ends_in_its_files_name(
    monkeypatch: Any, capsys: Any, width: int, sample: str | None
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("COLUMNS", str(width))
    shares = {"cat": 0.91, "dog": 0.05, "horse": 0.03, "zebra": 0.01}
    places = [f"a/long/folder/of/pictures/on/this/disk/cat_{number:05}.png" for number in range(3)]
    predict._print([Answer(place, sample, "cat", 0.91, shares) for place in places])
    _, *lines = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
    assert max(len(line.rstrip()) for line in lines) <= width
    starts = [line for line in lines if line.strip().startswith("a/")]
    assert [line.split()[0][-9:] for line in starts] == [place[-9:] for place in places]
    assert sample is not None or len(lines) == 3


def test_a_line_above_a_bar_is_printed_while_no_thread_draws_the_bar(monkeypatch: Any) -> None:
    """Else one of both goes back by the wrong number of lines, and a stale line stays."""
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    out = terminal.console(stderr=True)
    bar = terminal.bars(out)
    held: list[bool] = []

    class Spy(io.StringIO):
        def write(self, text: str) -> int:
            held.append("above" in text and bar.live._lock._is_owned())
            return len(text)

    out.file = Spy()
    with terminal.showing(bar):
        bar.add_task("run")
        out.print("above")
    assert any(held)


def test_lines_in_a_pipe_have_no_spaces_at_their_end(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.table import Table

    made = Table("short", "long")
    made.add_row("a", "")
    words = " ".join(["word"] * 200)
    for err in (False, True):
        out = terminal.console(stderr=err)
        out.print(words)
        out.print(made)
        out.print("to go on ", end="")
    for text in capsys.readouterr():
        lines = text.splitlines()
        assert text.split()[:200] == ["word"] * 200
        assert [line for line in lines[:-1] if line.endswith(" ")] == []
        assert lines[-1] == "to go on "
