"""The screen of a training run: what fits, what stays, what is best."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import on_terminal, plain

from leanify.cli import predict, recipes, screen
from leanify.core.errors import RecipeError
from leanify.core.terminal import progress, track
from leanify.training.curves import Curves, curves_figure
from leanify.training.predicting import Answer

ROWS: list[dict[str, Any]] = [
    {"step": 50, "epoch": 1.0, "split": "train", "loss": 1.5, "lr": 1e-3, "samples_per_s": 100.0},
    {"step": 50, "epoch": 1.0, "split": "validation", "loss": 1.25, "top1": 61.5, "top5": 90.0, "samples_per_s": 9.0},
    {"step": 100, "epoch": 2.0, "split": "validation", "loss": 1.0, "top1": 60.25, "top5": 91.0, "samples_per_s": 9.0},
]


@pytest.mark.parametrize("width", [40, 80, 120])
def test_progress_fits_and_evaluations_stay(monkeypatch: Any, capsys: Any, width: int) -> None:
    on_terminal(monkeypatch, width)
    with screen.Screen() as callback:
        callback.on_train_begin("vit_tiny, 1,234 parameters · digits, 10 images", 0, 1000, "top1", 1)
        for row in ROWS:
            callback.on_step_end(row["step"])
            callback.on_log(row)
    lines = plain(capsys.readouterr().err)
    assert "step 50 · epoch 1 · validation loss 1.250, top1 61.50%, top5 90.00% · best" in lines
    assert "step 100 · epoch 2 · validation loss 1.000, top1 60.25%, top5 91.00%" in lines
    drawn = [line for line in lines if "/1000" in line]
    assert "loss 1.5" in drawn[-1]
    assert max(map(len, drawn)) <= width


def test_pipe_gets_periodic_lines(monkeypatch: Any, capsys: Any) -> None:
    """A pipe gets a line every half minute."""
    now = [0.0]
    monkeypatch.setattr("leanify.core.terminal.time.monotonic", lambda: now[0])
    for step in track(range(100), "reading"):
        now[0] = float(step)
    assert capsys.readouterr().err.splitlines() == [f"reading: {done} of 100" for done in (32, 63, 94)]


def test_pipe_gets_rows_without_bar(capsys: Any) -> None:
    with screen.Screen() as callback:
        callback.on_train_begin("words", 0, 100, "top1", 1)
        for row in ROWS:
            callback.on_log(row)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "words"
    assert [line.partition(" · ")[0] for line in lines[1:]] == ["step 50", "step 50", "step 100"]
    assert "samples_per_s 100" in lines[1]


@pytest.mark.parametrize(("metric", "sign", "best"), [("top1", 1, 5.0), ("loss", -1, 2.0)])
def test_best_follows_checkpoint_metric(metric: str, sign: int, best: float) -> None:
    with screen.Screen() as callback:
        callback.on_train_begin("words", 0, 100, metric, sign)
        for loss, top1 in ((3.0, 3.0), (2.0, 5.0), (2.5, 4.0)):
            callback.on_log({"step": 1, "epoch": 1.0, "split": "validation", "loss": loss, "top1": top1})
        assert callback.best == best


def test_dry_run_facts_have_units(capsys: Any) -> None:
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


def test_prints_keep_bar_lines_apart(monkeypatch: Any, capsys: Any) -> None:
    """What is printed beside a bar has lines of its own."""
    on_terminal(monkeypatch, 80)
    monkeypatch.setenv("NO_COLOR", "1")
    with screen.Screen() as callback:
        callback.on_warning("a warning")
        callback.on_train_begin("a summary", 0, 1000, "top1", 1)
        with progress("an inner bar", None):
            callback.on_log(ROWS[1])
    drawn = re.sub(r"\x1b\[[01]?m", "", capsys.readouterr().err)
    for words in ("leanify: a warning", "a summary", "step 50 · epoch 1 · validation loss 1.250"):
        assert re.search(rf"(\n|\x1b\[2K|\r|^){re.escape(words)}", drawn), words


@pytest.mark.parametrize(
    "words",
    [
        ("redesign", "vit_base", "--target-params", "0.5"), ("train", "digits"), ("compare",), ("profile", "vit_tiny"),
        ("condition", "vit_tiny"), ("export", "vit_tiny", "--format", "onnx", "-o", "a.onnx"),
        ("show", "."), ("predict", ".", "x"),
    ],
    ids=lambda words: words[0],
)  # fmt: skip
def test_spinner_precedes_torch_import(words: tuple[str, ...], tmp_path: Path) -> None:
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
    assert "⠋" in before, before


@pytest.mark.parametrize("width", [120, 80])
@pytest.mark.parametrize("words", [(), ("images",), ("paper", "ViT")])
def test_recipe_line_has_full_name(monkeypatch: Any, capsys: Any, width: int, words: tuple[str, ...]) -> None:
    recipes.list_recipes("json", words)
    rows = json.loads(capsys.readouterr().out)["recipes"]
    own = [row for row in rows if words or "/" not in row["recipe"]]
    on_terminal(monkeypatch, width)
    recipes.list_recipes(words=words)
    _, *lines = plain(capsys.readouterr().out)
    assert [line.split()[0] for line in lines[: len(own)]] == [row["recipe"].rpartition("/")[2] for row in own]
    assert all(
        row["purpose"].startswith(line.split("  ")[-1].rstrip("…")) for row, line in zip(own, lines, strict=False)
    )
    assert max(map(len, lines)) <= width
    assert f"{len(rows) - len(own)} more" in " ".join(lines) or own == rows


def test_search_covers_names_and_purposes() -> None:
    with pytest.raises(RecipeError, match="nearest: images"):
        recipes.list_recipes(words=["imgaes"])
    assert [row["recipe"] for row in recipes.search(["own", "sentences"])] == ["own-sentences"]


def test_curves_show_full_marks_and_single_points() -> None:
    """An axis of per cent ends at 100; a single point has a marker."""
    full = Curves([(1, 0.1), (9, 0.1)], [], "top1", [(1, 100.0), (9, 100.0)])
    assert curves_figure(full, "run").axes[1].get_ylim()[1] == 100
    drawn = curves_figure(Curves([(23, 2.32)], [(23, 2.31)], "top1", [(23, 6.4)]), "title")
    assert all(line.get_marker() not in ("", "None") for axes in drawn.axes for line in axes.get_lines())


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("sample", [None, "a long text that goes on and on, about nothing, until it is cut off"])
def test_prediction_ends_with_file_name(monkeypatch: Any, capsys: Any, width: int, sample: str | None) -> None:
    on_terminal(monkeypatch, width)
    shares = {"cat": 0.91, "dog": 0.05, "horse": 0.03, "zebra": 0.01}
    places = [f"a/long/folder/of/pictures/on/this/disk/cat_{number:05}.png" for number in range(3)]
    predict._print([Answer(place, sample, "cat", 0.91, shares) for place in places])
    _, *lines = plain(capsys.readouterr().out)
    assert max(len(line.rstrip()) for line in lines) <= width
    starts = [line for line in lines if line.strip().startswith("a/")]
    assert [line.split()[0][-9:] for line in starts] == [place[-9:] for place in places]
    assert sample is not None or len(lines) == 3
