"""What may become of a run's folder, its data, its disk and its process, and what `train --resume` makes of it."""

from __future__ import annotations

import hashlib
import json
import resource
import shutil
import signal
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import SHORT, Warnings, final_state, nothing_left, refused, run_modes
from safetensors.torch import save_file

import leanify
from leanify.core import recipe as recipes
from leanify.core.errors import DataError, DirectoryError, RecipeError, TrainingError
from leanify.runs import checkpoint_writing, checkpoints
from leanify.runs.run_directory import RunDirectory
from leanify.sources import lean_directory
from leanify.training import loop
from leanify.training import start as training
from leanify.training.interrupts import Interrupted

TEXT = """
[model]
source = "gpt2.py:Gpt2"
override = { depth = 1, width = 16, heads = 2, vocab = 256, length = 32 }
[data]
name = "letters"
task = "causal-lm"
length = 16
[optim]
lr = 1e-3
[schedule]
steps = 4
batch_size = 4
[run]
checkpoint_every = 2
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An unbroken run; not to be written to."""
    return training.train(SHORT, tmp_path_factory.mktemp("whole") / "run")


@pytest.fixture
def copied(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "copy"))


def resumed(run: Path, **words: Any) -> list[str]:
    """The warnings of a resume."""
    callback = Warnings()
    training.train(resume=run, callback=callback, **words)
    return callback.warnings


# -- the folder -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["gone", "[1]"])
@pytest.mark.parametrize("name", ["environment.json", "leanify.json"])
def test_lost_file_is_rewritten(copied: Path, whole: Path, name: str, damage: str) -> None:
    """Nothing stops, the end is the same, and the run is a source again."""
    file = copied / name
    file.unlink() if damage == "gone" else file.write_text(damage)
    assert f"{name} was missing or damaged" in resumed(copied)[0]
    assert json.loads((copied / "environment.json").read_text())[0]["versions"]["torch"] == version("torch")
    assert (copied / "leanify.json").read_text() == (whole / "leanify.json").read_text()
    assert leanify.read(leanify.load(copied)) == leanify.read(leanify.load(whole))
    assert final_state(copied) == final_state(whole)


@pytest.mark.parametrize("key", ["library", "name", "options", "cls", "pictures"])
def test_card_of_other_kinds_is_damaged(copied: Path, key: str) -> None:
    card = json.loads((copied / "leanify.json").read_text())
    card["origin"][key] = [1]
    (copied / "leanify.json").write_text(json.dumps(card))
    with pytest.raises(DirectoryError, match=f"leanify.json is damaged: origin must have {key} as"):
        lean_directory.read_card(copied)


def test_short_log_is_never_extended(copied: Path, whole: Path) -> None:
    """The checkpoint before serves, whose rows are all there; the end is the same."""
    log = copied / "metrics.jsonl"
    log.write_bytes(log.read_bytes()[:-30])
    [warning] = resumed(copied)
    assert "metrics.jsonl has" in warning
    assert "continuing from step 4" in warning
    assert b"\0" not in log.read_bytes()
    assert final_state(copied) == final_state(whole)


@pytest.mark.parametrize("name", ["model.safetensors", "state.pt", "checkpoint.json"])
def test_damaged_checkpoint_falls_back(copied: Path, whole: Path, name: str) -> None:
    """It is named, and the one before serves."""
    file = RunDirectory.open(copied).checkpoints()[-1].path / name
    file.write_bytes(file.read_bytes()[:-7])
    warning = resumed(copied)[0]
    assert "the checkpoint of step 6 is damaged" in warning
    assert "continuing from step 4" in warning
    assert final_state(copied) == final_state(whole)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda run: (run / "metrics.jsonl").unlink(), r"metrics\.jsonl"),
        (lambda run: (run / "metrics.jsonl").write_bytes(b"1\n" * 2000), r"metrics\.jsonl"),
        (lambda run: [file.unlink() for file in run.glob("checkpoints/*/state.pt")], "step 6.*; .*step 4"),
    ],
    ids=["no log", "another log", "no state"],
)
def test_unusable_run_is_one_message(copied: Path, damage: Callable[[Path], Any], words: str) -> None:
    """Nothing is written."""
    damage(copied)
    before = {path: path.stat().st_mtime_ns for path in copied.rglob("*")}
    with refused(DirectoryError, f"no checkpoint to resume from: .*{words}"):
        training.train(resume=copied)
    assert {path: path.stat().st_mtime_ns for path in copied.rglob("*")} == before


def test_finished_run_stays_unchanged(copied: Path, whole: Path) -> None:
    training.train(resume=copied)
    assert (copied / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()


def test_run_has_one_writer(copied: Path) -> None:
    with RunDirectory.open(copied).lock(), pytest.raises(DirectoryError, match="another process"):
        training.train(resume=copied)


def test_last_and_best_checkpoints_stay(whole: Path) -> None:
    found = RunDirectory.open(whole).checkpoints()
    scored = [row for row in RunDirectory.open(whole).rows() if row["split"] == "validation"]
    best = max(scored, key=lambda row: row["top1"])
    assert [entry.step for entry in found] == sorted({best["step"], 4, 6})
    assert RunDirectory.open(whole).best() == next(entry for entry in found if entry.step == best["step"])


def test_run_records_its_environment(whole: Path) -> None:
    """It holds what was asked and where it ran."""
    assert recipes.load(whole / "recipe.toml") == SHORT
    entry = json.loads((whole / "environment.json").read_text())[0]
    assert entry["versions"]["torch"] == version("torch")
    assert {"git", "command", "threads", "processes", "device"} <= entry.keys()
    assert {tuple(row)[:3] for row in RunDirectory.open(whole).rows()} == {("step", "epoch", "split")}


def test_row_has_its_steps_rate(whole: Path) -> None:
    trainer = loop.Trainer(SHORT)
    rows = [row for row in RunDirectory.open(whole).rows() if row["split"] == "train"]
    assert [row["lr"] for row in rows] == [trainer.schedule.lr(row["step"] - 1) for row in rows]
    assert len({row["lr"] for row in rows}) == len(rows)


def test_run_is_a_source(whole: Path) -> None:
    model = leanify.load(whole)
    best = RunDirectory.open(whole).best()
    weights = best.weights()
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())
    assert leanify.read(model).stages[0].depth == 2


def test_resume_names_recipe_differences(copied: Path) -> None:
    words = r"data.cutmix: 1.0 → unset; optim.lr: 0.002 → 0.01"
    with pytest.raises(RecipeError, match=words):
        training.train(recipes.apply_settings(SHORT, ["optim.lr=0.01", "data.cutmix="]), resume=copied)
    with pytest.raises(RecipeError, match=r"run.seed: unset → 3"):
        training.train(resume=copied, settings=["run.seed=3"])


def test_edited_recipe_names_its_changes(copied: Path) -> None:
    file = copied / "recipe.toml"
    file.write_text(file.read_text().replace("lr = 0.002", "lr = 0.004").replace("embed_dim = 16", "embed_dim = 32"))
    with pytest.raises(RecipeError, match=r"was edited .*embed_dim: 16 → 32; optim\.lr: 0\.002 → 0\.004"):
        training.train(resume=copied)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ('{"step": 2, "split": "validation", "top1": [3.0, 4.0]}', "top1 is no float"),
        ('{"step": true, "split": "train"}', "step is no int"),
        ('{"loss": 2.0}', "it lacks step or split"),
    ],
)
def test_odd_rows_are_named(copied: Path, row: str, words: str) -> None:
    (copied / "metrics.jsonl").write_text(f"{row}\n")
    with pytest.raises(DirectoryError, match=rf"metrics\.jsonl, line 1 .*{words}"):
        RunDirectory.open(copied).rows()


@pytest.mark.parametrize("sums", [None, ["model.safetensors"], {"../x": "0"}, {"state.pt": None}])
def test_odd_checksums_are_refused(tmp_path: Path, sums: Any) -> None:
    card = {"step": 2, "rows": 10, "score": None, "metrics": {}, "sums": {"state.pt": "0" * 64}}
    (tmp_path / checkpoints.CARD).write_text(json.dumps(card))
    assert checkpoints.Checkpoint.read(tmp_path) is not None
    (tmp_path / checkpoints.CARD).write_text(json.dumps(card | {"sums": sums}))
    assert checkpoints.Checkpoint.read(tmp_path) is None


def test_weights_match_library_format(tmp_path: Path) -> None:
    """An oracle, byte for byte: every type, no elements, no dimension, names beyond ASCII."""
    tensors = {f"é{i}": torch.ones(3, 2).to(kind) for i, kind in enumerate(checkpoint_writing.DTYPES)}
    tensors |= {"none": torch.ones(0, 3), "one": torch.tensor(1.5), "turned": torch.arange(6.0).view(2, 3).T}
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(contiguous, tmp_path / "a", metadata={"format": "pt"})
    with checkpoint_writing.open_hashed(tmp_path / "b", hashlib.sha256()) as file:
        checkpoint_writing.write_tensors(tensors, file)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


# -- the data ---------------------------------------------------------------------------------------------------------


FOX = "the quick brown fox jumps over the lazy dog\n" * 200


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (FOX + "and more\n", r"\.: 1 files of 8,800 bytes → 1 files of 8,809 bytes"),
        (FOX.replace("fox", "cat"), r"the content of text\.txt changed"),
    ],
    ids=["longer", "other"],
)
def test_changed_data_needs_consent(tmp_path: Path, changed: str, words: str) -> None:
    text = tmp_path / "text.txt"
    text.write_text(FOX)
    run = training.train(recipes.parse(TEXT), tmp_path / "run", settings=[f"data.path={text}"])
    assert resumed(run) == []
    text.write_text(changed)
    with pytest.raises(DataError, match=rf"{words}.*--accept-changed-data"):
        training.train(resume=run)
    assert "continuing with changed data" in resumed(run, accept_changed_data=True)[0]
    assert resumed(run) == []  # accepted once


# -- the disk ---------------------------------------------------------------------------------------------------------


def test_full_disk_at_row_recovers(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel refuses a file that grows beyond a limit, as a full disk does."""
    before = RunDirectory.append

    def limited(self: RunDirectory, row: Any) -> None:
        if row["step"] == 4:
            while not (self.path / "checkpoints" / "00000002").exists():  # a thread writes it
                time.sleep(0.01)
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.length + 10, resource.RLIM_INFINITY))
        before(self, row)

    monkeypatch.setattr(RunDirectory, "append", limited)
    try:
        with pytest.raises(TrainingError, match=r"metrics\.jsonl .*step 2 "):
            training.train(SHORT, tmp_path / "run")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    monkeypatch.undo()
    resumed(tmp_path / "run")
    assert final_state(tmp_path / "run") == final_state(whole)


@pytest.mark.parametrize("room", [100, 30_000])
def test_full_disk_at_checkpoint_is_named(room: int, tmp_path: Path) -> None:
    """In the weights, in torch's file (whose own words are "enforce fail at inline_container.cc") or at its end."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
    try:
        with pytest.raises(OSError, match="File too large"):
            checkpoint_writing.write(tmp_path / "1", {"a": torch.ones(5_000)}, {"b": torch.ones(50_000)}, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert list(tmp_path.iterdir()) == []


# -- the process ------------------------------------------------------------------------------------------------------


def test_kills_leave_nothing_and_change_nothing(whole: Path, tmp_path: Path) -> None:
    """Inside a row of the log, inside the writing and the pruning of checkpoints, and wherever the clock says."""
    modes = ("event:21", "aim:9", "aim:17", "write:60", "time:0.8", "whole")
    codes = run_modes(tmp_path / "run", *modes, recipe=SHORT.to_toml())
    assert [code for code, _ in codes[:4]] == [-9] * 4, codes
    assert codes[-1] == (0, 6)
    nothing_left(tmp_path / "run")
    assert final_state(tmp_path / "run") == final_state(whole)


def test_signals_save_the_run(whole: Path, tmp_path: Path) -> None:
    codes = run_modes(tmp_path / "run", "int:2", "term:3", "hup:5", "whole", recipe=SHORT.to_toml())
    assert codes == [(130, 2), (143, 3), (129, 5), (0, 6)]
    assert final_state(tmp_path / "run") == final_state(whole)


def test_stopped_run_goes_on(whole: Path, tmp_path: Path) -> None:
    assert run_modes(tmp_path / "run", "stop:3", recipe=SHORT.to_toml()) == [(0, 6)]
    assert final_state(tmp_path / "run") == final_state(whole)


def test_interrupt_names_step_and_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = loop.Trainer.step

    def interrupted(self: loop.Trainer, number: int, batches: Any) -> None:
        signal.raise_signal(signal.SIGTERM)
        step(self, number, batches)

    monkeypatch.setattr(loop.Trainer, "step", interrupted)
    words = rf"^saved at step 1; continue with: leanify train --resume {tmp_path}/run$"
    with pytest.raises(Interrupted, match=words) as caught:
        training.train(SHORT, tmp_path / "run")
    assert caught.value.code == 143
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
