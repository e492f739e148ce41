"""What may become of a run's folder, its data, its disk and its process, and what `train --resume` makes of it."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import DIGITS, forked, outcome
from safetensors.torch import save_file

import leanify
from leanify.data import fingerprint
from leanify.errors import DataError, DirectoryError, RecipeError, TrainingError
from leanify.runs import checkpoint_writing, checkpoints
from leanify.runs import recipe as recipes
from leanify.runs.run_directory import RunDirectory
from leanify.training import loop
from leanify.training import start as training
from leanify.training.interrupts import Interrupted

TINY = recipes.with_settings(recipes.parse(DIGITS), ["data.samples=200", "schedule.epochs=2", "run.eval_every=2"])
TEXT = """
[model]
source = "leanify/gpt2-tinystories"
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


class Watcher(loop.Silent):
    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warned(self, words: str) -> None:
        self.warnings.append(words)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An unbroken run; not to be written to."""
    return training.train(TINY, tmp_path_factory.mktemp("whole") / "run")


@pytest.fixture
def copied(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "copy"))


def resumed(run: Path, **words: Any) -> list[str]:
    """The warnings of a resume."""
    watcher = Watcher()
    training.train(resume=run, watcher=watcher, **words)
    return watcher.warnings


# -- the folder -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["gone", "", "[", '{"a": 1}', "[1]"])
def test_a_damaged_environment_stops_nobody(copied: Path, whole: Path, damage: str) -> None:
    file = copied / "environment.json"
    file.unlink() if damage == "gone" else file.write_text(damage)
    assert "environment.json was missing or damaged" in resumed(copied)[0]
    assert json.loads(file.read_text())[0]["versions"]["torch"] == version("torch")
    assert outcome(copied) == outcome(whole)


def test_a_log_shorter_than_its_checkpoint_is_never_extended(copied: Path, whole: Path) -> None:
    """The checkpoint before serves, whose rows are all there; the end is the same."""
    log = copied / "metrics.jsonl"
    log.write_bytes(log.read_bytes()[:-30])
    [warning] = resumed(copied)
    assert "metrics.jsonl has" in warning
    assert "going on from step 4" in warning
    assert b"\0" not in log.read_bytes()
    assert outcome(copied) == outcome(whole)


@pytest.mark.parametrize("damage", [None, b"", b"{", b"\0" * 5000, b"1\n" * 2000])
def test_a_lost_log_is_one_message_and_nothing_is_written(copied: Path, damage: bytes | None) -> None:
    log = copied / "metrics.jsonl"
    log.unlink() if damage is None else log.write_bytes(damage)
    with pytest.raises(DirectoryError, match=r"no checkpoint to resume from: .*metrics\.jsonl") as found:
        training.train(resume=copied)
    assert "\n" not in str(found.value)
    assert not log.exists() if damage is None else log.read_bytes() == damage


@pytest.mark.parametrize("damage", ["gone", "", "[]", "{"])
def test_a_lost_card_is_written_again_and_the_run_is_a_source(copied: Path, whole: Path, damage: str) -> None:
    card = copied / "leanify.json"
    card.unlink() if damage == "gone" else card.write_text(damage)
    assert "leanify.json was missing or damaged and has been rewritten" in resumed(copied)[0]
    assert card.read_text() == (whole / "leanify.json").read_text()
    assert leanify.read(leanify.load(copied)) == leanify.read(leanify.load(whole))


def test_an_edited_recipe_is_refused_with_what_was_edited(copied: Path) -> None:
    file = copied / "recipe.toml"
    file.write_text(file.read_text().replace("lr = 0.002", "lr = 0.004").replace("embed_dim = 16", "embed_dim = 32"))
    with pytest.raises(RecipeError, match=r"was edited .*embed_dim: 16 → 32; optim\.lr: 0\.002 → 0\.004"):
        training.train(resume=copied)


def test_rows_that_are_no_rows_are_named(copied: Path) -> None:
    with (copied / "metrics.jsonl").open("a") as file:
        file.write('{"cut": ')  # a process was killed here: the row never was
    assert len(RunDirectory.open(copied).rows()) > 3
    with (copied / "metrics.jsonl").open("a") as file:
        file.write("\n")
    with pytest.raises(DirectoryError, match=r"metrics\.jsonl, line \d+ "):
        RunDirectory.open(copied).rows()


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ('{"step": [2], "split": "validation", "top1": 3.0}', "step is no int"),
        ('{"step": 2, "split": "validation", "top1": [3.0, 4.0]}', "top1 is no float"),
        ('{"step": 2, "split": "validation", "loss": "low"}', "loss is no float"),
        ('{"step": 2, "split": null}', "split is no str"),
        ('{"step": true, "split": "train"}', "step is no int"),
        ('{"loss": 2.0}', "it lacks step or split"),
    ],
)
def test_rows_with_odd_values_are_named(copied: Path, row: str, words: str) -> None:
    (copied / "metrics.jsonl").write_text(f"{row}\n")
    with pytest.raises(DirectoryError, match=rf"metrics\.jsonl, line 1 .*{words}"):
        RunDirectory.open(copied).rows()


@pytest.mark.parametrize("sums", [None, [], ["model.safetensors"], "x", 3, {"../x": "0"}, {"state.pt": None}])
def test_a_checkpoint_card_with_odd_sums_is_no_checkpoint(tmp_path: Path, sums: Any) -> None:
    card = {"step": 2, "rows": 10, "score": None, "metrics": {}, "sums": {"state.pt": "0" * 64}}
    (tmp_path / checkpoints.CARD).write_text(json.dumps(card))
    assert checkpoints.Checkpoint.read(tmp_path) is not None
    (tmp_path / checkpoints.CARD).write_text(json.dumps(card | {"sums": sums}))
    assert checkpoints.Checkpoint.read(tmp_path) is None


def test_files_of_a_checkpoint_follow_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        run = training.train(recipes.with_settings(TINY, ["schedule.epochs=1"]), tmp_path / "run")
    finally:
        os.umask(before)
    files = [path for path in (run / "checkpoints").rglob("*") if path.is_file()]
    assert {oct(path.stat().st_mode & 0o777) for path in files} == {"0o640"}


def test_weights_are_written_as_the_library_writes_them(tmp_path: Path) -> None:
    """An oracle, byte for byte: every type, no elements, no dimension, names beyond ASCII."""
    tensors = {f"é{i}": torch.ones(3, 2).to(kind) for i, kind in enumerate(checkpoint_writing.DTYPES)}
    tensors |= {"none": torch.ones(0, 3), "one": torch.tensor(1.5), "turned": torch.arange(6.0).view(2, 3).T}
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()}, tmp_path / "a", metadata={"format": "pt"}
    )
    with checkpoint_writing.summed(tmp_path / "b") as file:
        checkpoint_writing.write_tensors(tensors, file)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


# -- the data ---------------------------------------------------------------------------------------------------------


def longer(file: Path) -> None:
    file.write_text(file.read_text() + "and more\n")


def other(file: Path) -> None:
    file.write_text(file.read_text().replace("fox", "cat"))


@pytest.mark.parametrize(
    ("change", "words"),
    [(longer, r"\.: 1 files of 8,800 bytes → 1 files of 8,809 bytes"), (other, r"the content of text\.txt changed")],
)
def test_changed_data_is_refused_unless_accepted(tmp_path: Path, change: Callable[[Path], None], words: str) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog\n" * 200)
    run = training.train(recipes.parse(TEXT), tmp_path / "run", settings=[f"data.path={text}"])
    assert resumed(run) == []
    change(text)
    with pytest.raises(DataError, match=rf"{words}.*--accept-changed-data"):
        training.train(resume=run)
    assert "going on with changed data" in resumed(run, accept_changed_data=True)[0]
    assert resumed(run) == []  # accepted once


def test_a_fingerprint_sees_files_that_come_and_go(tmp_path: Path) -> None:
    def facts() -> dict[str, Any]:
        data = recipes.DataSection("x", "classification", path=str(tmp_path))
        splits: Any = type("Splits", (), {"train": range(3), "validation": range(3)})
        return fingerprint.taken(data, splits)

    for name in ("a/1.png", "a/2.png", "b/1.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"1")
    first = facts()
    assert fingerprint.changes(first, facts()) is None
    assert fingerprint.changes({}, first) is None
    (tmp_path / "a/2.png").rename(tmp_path / "a/3.png")
    assert fingerprint.changes(first, facts()) == "files in a have other names or sizes"
    (tmp_path / "c").mkdir()
    (tmp_path / "c/1.png").touch()
    assert "the folder c is new" in str(fingerprint.changes(first, facts()))
    assert json.loads(json.dumps(first)) == first


# -- the disk ---------------------------------------------------------------------------------------------------------


def test_a_disk_full_at_a_row_is_one_message_and_the_rest_is_the_same(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
            training.train(TINY, tmp_path / "run")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    monkeypatch.undo()
    resumed(tmp_path / "run")
    assert outcome(tmp_path / "run") == outcome(whole)


@pytest.mark.parametrize("room", [100, 30_000, 100_000])
def test_a_disk_full_inside_a_checkpoint_is_named_in_plain_words(room: int, tmp_path: Path) -> None:
    """In the weights, in torch's file (whose own words are "enforce fail at inline_container.cc") or at its end."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
    try:
        with pytest.raises(OSError, match="File too large"):
            checkpoint_writing.write(tmp_path / "1", {"a": torch.ones(5_000)}, {"b": torch.ones(50_000)}, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert list(tmp_path.iterdir()) == []


# -- the process ------------------------------------------------------------------------------------------------------


def bits(tmp_path: Path, kills: list[str], recipe: str) -> dict[str, Any]:
    """What came of a run that was killed so, and then ended; nothing of the killed processes is left."""
    codes = forked(tmp_path / "run", *kills, "whole", recipe=recipe)
    assert codes[-1][0] == 0
    assert [code for code, _ in codes[:-1]] == [-9] * len(kills), codes
    assert [path.name for path in (tmp_path / "run").rglob(".*")] == []
    for folder in (tmp_path / "run" / "checkpoints").iterdir():
        assert sorted(path.name for path in folder.iterdir()) == ["checkpoint.json", "model.safetensors", "state.pt"]
    return outcome(tmp_path / "run")


def test_killed_while_checkpoints_are_written_and_pruned_nothing_is_left(whole: Path, tmp_path: Path) -> None:
    assert bits(tmp_path, ["aim:9", "aim:17", "write:60"], TINY.to_toml()) == outcome(whole)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(5))
def test_twenty_kills_half_of_them_aimed_at_checkpoints_leave_nothing(tmp_path: Path, seed: int) -> None:
    """Each comes early enough that the run is not at its end before the last."""
    draw = random.Random(seed)
    aimed = [f"aim:{draw.randint(1, 14)}" for _ in range(6)] + [f"write:{draw.randint(1, 90)}" for _ in range(4)]
    kills = [*aimed, *(f"event:{draw.randint(1, 25)}" for _ in range(10))]
    draw.shuffle(kills)
    assert forked(tmp_path / "whole", "whole") == [(0, 24)]
    assert bits(tmp_path, kills, DIGITS) == outcome(tmp_path / "whole")


def test_a_time_limit_and_a_closed_shell_save_first(whole: Path, tmp_path: Path) -> None:
    codes = forked(tmp_path / "run", "term:2", "hup:5", "whole", recipe=TINY.to_toml())
    assert codes == [(143, 2), (129, 5), (0, 6)]
    assert outcome(tmp_path / "run") == outcome(whole)


def test_an_interrupt_names_the_step_and_the_line_that_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import signal

    step = loop.Trainer.step

    def interrupted(self: loop.Trainer, number: int, batches: Any) -> None:
        signal.raise_signal(signal.SIGTERM)
        step(self, number, batches)

    monkeypatch.setattr(loop.Trainer, "step", interrupted)
    with pytest.raises(
        Interrupted, match=rf"^saved at step 1; go on with: leanify train --resume {tmp_path}/run$"
    ) as e:
        training.train(TINY, tmp_path / "run")
    assert e.value.code == 143
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
