"""`leanify show` and `leanify predict` on runs of one's own images and texts; `leanify runs`."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from runs import DIGITS, make_pictures

import leanify
from leanify.cli import app
from leanify.cli.output import fit, table
from leanify.cli.predict import _print
from leanify.cli.show import _build, _read_shape
from leanify.comparison import planning
from leanify.comparison.folder import find_studies
from leanify.core import recipe as recipes
from leanify.core.path_kinds import is_study
from leanify.data.images.decoding import Decoder
from leanify.data.images.folder import transforms
from leanify.runs.run_directory import RunDirectory
from leanify.training import start as training
from leanify.training.curves import read_curves
from leanify.training.overview import data_name, find_runs
from leanify.training.predicting import Answer, predict

COLOURS = ("blue", "green", "red")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_pictures(tmp_path_factory.mktemp("images"), COLOURS, 20, train=8, validation=2)
    settings = [f"data.path={folder}", "data.workers=0", "model.override.depth=1", "model.override.embed_dim=16"]
    settings += ["schedule.epochs=3", "schedule.batch_size=16", "run.log_every=1"]
    return leanify.train("own-images", folder / "run", settings=settings)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    rows = [f"{('good', 'bad')[i % 2]} film {i},{('pos', 'neg')[i % 2]}" for i in range(32)]
    (folder / "train.csv").write_text("\n".join(["review,sentiment", *rows]))
    settings = [f"data.path={folder}", "data.tokenizer=bytes", "data.length=16", "data.holdout=0.25"]
    settings += ["model.override.num_hidden_layers=1", "schedule.epochs=3", "schedule.batch_size=8"]
    with pytest.warns(UserWarning, match="has no weights"):
        return leanify.train("own-sentences", folder / "run", settings=settings)


def called(capsys: Any, command: str, *arguments: Any) -> str:
    app(command)(args=list(map(str, arguments)), prog_name="leanify", standalone_mode=False)
    out: str = capsys.readouterr().out
    return out


def test_predictions_match_loaded_model(images: Path) -> None:
    assert RunDirectory.open(images).classes == [*COLOURS]
    files = [images.parent / "validation" / name / "0.png" for name in COLOURS]
    found = list(predict(images, files))
    model, data = leanify.load(images), RunDirectory.open(images).recipe.data
    _, plain, scale, mode = transforms(data, model)
    with torch.no_grad():
        batch = scale(torch.stack([torch.as_tensor(plain(Decoder()(file, mode, file))) for file in files]))
        shares = model(batch)[:, :3].softmax(-1)
    assert [list(one.probabilities) for one in found] == [[*COLOURS]] * 3
    assert torch.tensor([list(one.probabilities.values()) for one in found]).equal(shares)
    assert [one.answer for one in found] == [[*COLOURS][i] for i in shares.argmax(-1)]
    assert [one.where for one in predict(images, [images.parent / "validation"])] == sorted(
        str(path) for path in (images.parent / "validation").rglob("*.png")
    )


def test_texts_come_from_every_source(texts: Path) -> None:
    """From tables, files and the command line."""
    table, lines = texts.parent / "new.tsv", texts.parent / "new.txt"
    table.write_text("id\treview\n7\tgood film 1\n8\tbad film 2\n")
    lines.write_text("good film 1\n\nbad film 2\n")
    found = list(predict(texts, [table, lines, "good film 1"]))
    assert [one.sample for one in found] == ["good film 1", "bad film 2"] * 2 + ["good film 1"]
    assert [one.where.rpartition(", ")[2] for one in found[:4]] == ["line 2", "line 3", "line 1", "line 3"]
    assert found[0].probabilities == pytest.approx(found[4].probabilities)
    assert all(one.answer in ("neg", "pos") for one in found)
    assert RunDirectory.open(texts).classes == ["neg", "pos"]


def test_unpredictable_tasks_are_named(texts: Path, images: Path, tmp_path: Path) -> None:
    for run, given, words in ((texts, "nowhere", "no sentence"), (images, "nowhere.png", "does not exist")):
        with pytest.raises(leanify.DataError, match=words):
            list(predict(run, [given]))
    (tmp_path / "odd.csv").write_text("a,b\n1,2\n")
    with pytest.raises(leanify.DataError, match=r"text column.*a, b"):
        list(predict(texts, [tmp_path / "odd.csv"]))


def test_refused_files_name_no_setting(texts: Path, images: Path, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "note.png").write_text("no image")
    (tmp_path / "odd.jsonl").write_text('{"text": 3}\n')
    for run, file in ((images, "note.png"), (texts, "odd.jsonl")):
        with pytest.raises(leanify.DataError, match="fix") as refused:
            called(capsys, "predict", run, tmp_path / file)
        assert "--set" not in str(refused.value)


def test_predictions_print_in_every_format(texts: Path, capsys: Any) -> None:
    drawn = called(capsys, "predict", texts, "good film 1")
    assert "answer" in drawn
    assert "%" in drawn
    (row,) = csv.DictReader(io.StringIO(called(capsys, "predict", texts, "good film 1", "--format", "csv")))
    (same,) = json.loads(called(capsys, "predict", texts, "good film 1", "--json"))["predictions"]
    assert (row["answer"], float(row["probability"])) == (same["answer"], same["probability"])


def test_empty_text_keeps_its_cell(capsys: Any) -> None:
    """So does a text in brackets."""
    samples = ("", "[red] and [/red]", "x" * 99)
    _print([Answer(f"line {i}", sample, f"class-{i}", 0.5, {}) for i, sample in enumerate(samples)])
    header, *rows = capsys.readouterr().out.splitlines()
    assert [row.find(f"class-{i}") for i, row in enumerate(rows)] == [header.index("answer")] * 3
    assert "[red] and [/red]" in rows[1]


def test_run_shows_curves_and_numbers(images: Path, tmp_path: Path, capsys: Any) -> None:
    run = RunDirectory.open(images)
    curves = read_curves(run.rows(), "top1")
    assert curves.train == [(row["step"], row["loss"]) for row in run.rows() if row["split"] == "train"]
    assert [step for step, _ in curves.quality] == [2, 4, 6]
    drawn = called(capsys, "show", images)
    assert "done" in drawn
    assert f"leanify show {images} --plot curves.png" in drawn
    shown = json.loads(called(capsys, "show", images, "--json", "--plot", tmp_path / "curves.svg"))
    assert shown["rows"] == run.rows()
    assert "<svg" in (tmp_path / "curves.svg").read_text()


def test_show_models(capsys: Any) -> None:
    model = json.loads(called(capsys, "show", "vit_tiny", "--json"))
    assert model["params"] == 5_717_416
    assert [layer["heads"] for layer in model["layers"]] == [3] * 12
    with pytest.raises(leanify.LeanifyError, match="curves of a run"):
        called(capsys, "show", "vit_tiny", "--plot", "x.png")


def test_next_command_is_separate(capsys: Any) -> None:
    lines = called(capsys, "show", "vit_tiny").splitlines()
    place = lines.index("next  leanify profile vit_tiny")
    assert lines[place - 1] == ""
    starts = [re.match(r"\S+ +", each) for each in lines[1 : place - 1]]
    assert len({match.end() for match in starts if match}) == 1


def test_narrow_terminal_drops_last_columns() -> None:
    made = table(("layer", "κ", "σ max", "σ min"), [("x" * 20, "1.0", "2.0", "3.0")])
    assert [column.header for column in fit(made, Console(width=30), ("σ min", "σ max")).columns] == ["layer", "κ"]


# -- `leanify runs`: runs that are done, interrupted, running and broken ----------------------------------------------


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
    assert found.data == "digits"
    own = recipes.apply_settings(recipes.load("own-images"), ["data.path=/somewhere/birds/"])
    assert data_name(own.data) == "birds"
    assert _read_shape(RunDirectory.open(done)) == _build(str(done))[1:]


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
    done: Path, tmp_path: Path, capsys: Any, name: str, spoil: Callable[[Path], object]
) -> None:
    for folder in ("a", "b", "c"):
        shutil.copytree(done, tmp_path / folder)
    spoil(tmp_path / "b" / name)
    out = called(capsys, "runs", tmp_path)
    listed = json.loads(called(capsys, "runs", tmp_path, "--json"))["runs"]
    assert [one["state"] for one in listed] == ["done", "broken", "done"]
    [problem] = [line for line in out.splitlines() if line.startswith("broken: ")]
    assert str(tmp_path / "b") in problem
    assert listed[1]["problem"] in problem


def test_long_model_name_is_shortened(done: Path, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    """It is shortened in its middle before it is folded."""
    shutil.copytree(done, tmp_path / "run")
    text = (tmp_path / "run" / "recipe.toml").read_text()
    source = RunDirectory.open(done).recipe.model.source
    (tmp_path / "run" / "recipe.toml").write_text(text.replace(source, f"{source}{'x' * 200}224"))
    monkeypatch.chdir(tmp_path)
    [_, line, *_] = called(capsys, "runs").splitlines()
    assert len(line) <= 100
    assert line.split()[1].startswith(source[:5])
    assert line.split()[1].endswith("x224")


def test_resume_command_can_be_typed(done: Path, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(done, tmp_path / "my runs" / "one")
    shutil.rmtree(RunDirectory.open("my runs/one").checkpoints()[-1].path)
    words = shlex.split(called(capsys, "runs").splitlines()[-1].rpartition("next  leanify ")[2])
    assert words == ["train", "--resume", "my runs/one"]
    called(capsys, *words)
    assert [found.state for found in find_runs(tmp_path)] == ["done"]


def test_study_hides_its_runs(done: Path, tmp_path: Path) -> None:
    request = planning.Request("digits-study", seeds=2, designs=("baseline",), settings=("schedule.epochs=1",))
    folder = planning.open_folder(request, tmp_path / "mine")
    key = next(iter(folder.plan.runs()))
    shutil.copytree(done, folder.run(key))
    (found,) = find_studies(tmp_path)
    assert (found.path, found.designs, found.runs, found.ended) == (tmp_path / "mine", 1, 2, 0)
    assert found.state == "interrupted"
    assert list(find_runs(tmp_path, is_study)) == []
    with RunDirectory.open(folder.run(key)).lock():
        assert [one.state for one in find_studies(tmp_path)] == ["running"]
    (tmp_path / "mine" / "study.toml").write_text("what")
    assert [one.state for one in find_studies(tmp_path)] == ["broken"]


def test_folders_are_visited_once(done: Path, tmp_path: Path) -> None:
    """A run behind a link is found once; a loop of links ends."""
    (tmp_path / "work" / "venv").mkdir(parents=True)
    (tmp_path / "work" / "venv" / "pyvenv.cfg").touch()
    assert list(find_runs(tmp_path)) == []
    shutil.copytree(done, tmp_path / "work" / "venv" / "run")
    (tmp_path / "work" / "a").symlink_to(done)
    (tmp_path / "work" / "b").symlink_to(done)
    (tmp_path / "work" / "loop").symlink_to(tmp_path / "work")
    assert [found.path.name for found in find_runs(tmp_path / "work")] == ["a"]
