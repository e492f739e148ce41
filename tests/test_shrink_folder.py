"""The folder of a `shrink`: what is the user's stays, and what somebody else wrote into its state does nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from leanify.core.errors import DirectoryError
from leanify.shrinking.folder import MOVING, STATE, ShrinkFolder

ASKED = {"source": "old"}
CARRIED = {
    "chosen_on": 1.0, "quality": 1.0, "params": 3, "macs": 3, "damage": 0.1, "unit": "nats", "steps": [], "files": [],
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> ShrinkFolder:
    """With one candidate that was carried, ready to be finished."""
    made = ShrinkFolder.open(tmp_path / "small", ASKED)
    made.keep()
    model = made.fresh("narrow")
    (model / "1_Pooling").mkdir(parents=True)
    for name in ("README.md", "leanify.json", "model.safetensors", "1_Pooling/config.json"):
        (model / name).write_text(name)
    made.once("carried narrow", lambda: {**CARRIED, "files": made.files("narrow")})
    return made


def test_users_file_is_not_replaced(folder: ShrinkFolder) -> None:
    mine = folder.path / "README.md"
    mine.write_text("mine")
    with pytest.raises(DirectoryError, match=r"README\.md.*move it away"):
        folder.finish(folder.place("narrow"), {})
    assert (mine.read_text(), (folder.place("narrow") / "leanify.json").exists()) == ("mine", True)
    mine.unlink()
    folder.finish(folder.place("narrow"), {})
    assert mine.read_text() == "README.md"
    assert not (folder.path / "work").exists()


def test_users_work_files_remain(folder: ShrinkFolder) -> None:
    work = folder.path / "work"
    (folder.path.parent / "elsewhere").mkdir()
    (folder.path.parent / "elsewhere" / "model.safetensors").write_text("mine")
    (work / "linked").symlink_to(folder.path.parent / "elsewhere")
    for name in ("notes.txt", "narrow/1_Pooling/notes.txt"):
        (work / name).write_text("mine")
    folder.findings["carried linked"] = {
        **CARRIED,
        "files": ["linked/model.safetensors", "../elsewhere/model.safetensors"],
    }
    model = folder.place("narrow")
    (model / "1_Pooling").rename(work / "aside")
    folder.finish(model, {})
    assert (folder.path / "model.safetensors").is_file()
    assert (work / "notes.txt").read_text() == (work / "aside" / "notes.txt").read_text() == "mine"
    assert (folder.path.parent / "elsewhere" / "model.safetensors").read_text() == "mine"
    with pytest.raises(DirectoryError, match="linked is a link"):
        folder.place("linked")


def test_candidate_path_is_cleared_by_renaming(folder: ShrinkFolder, capsys: Any) -> None:
    (folder.place("narrow") / "best.txt").write_text("mine")
    assert not folder.fresh("narrow").exists()
    assert [file.read_text() for file in (folder.path / "work").glob("narrow.kept-*/best.txt")] == ["mine"]
    [kept] = (folder.path / "work").glob("narrow.kept-*")
    assert f"{kept} is what an interrupted shrink left" in " ".join(capsys.readouterr().err.split())


def test_changed_report_is_refused(folder: ShrinkFolder) -> None:
    folder.finish(folder.place("narrow"), {"chosen": "narrow", "directory": "small", "value": float("nan")})
    again = ShrinkFolder.open(folder.path, ASKED)
    assert again.report["chosen"] == "narrow"
    (folder.path / "report.json").write_text(json.dumps({**again.report, "directory": "elsewhere"}))
    with pytest.raises(DirectoryError, match=r"report\.json has changed"):
        _ = again.report


def test_kill_during_move_resumes(folder: ShrinkFolder) -> None:
    folder.once(MOVING, dict)
    (folder.place("narrow") / "README.md").rename(folder.path / "README.md")
    again = ShrinkFolder.open(folder.path, ASKED)
    again.finish(again.place("narrow"), {"chosen": "narrow"})
    assert again.report == {"chosen": "narrow"}
    assert {"README.md", "leanify.json", "1_Pooling"} <= {file.name for file in folder.path.iterdir()}


@pytest.mark.parametrize(
    "found",
    [
        7,
        {"original": 7},
        {"original": {"quality": 1.0}},
        {"carried narrow": {**CARRIED, "files": "x"}},
        {"carried narrow": {"refused": 7}},
        {"plan narrow": {"steps": 1.5, "rate": 1}},
        {"healed narrow": {"quality": "x"}},
        {"reference": {"name": 7}},
        {"reference": {"name": "x"}},
        {"carried narrow": {**CARRIED, "files": [{}]}},
        {"latency": {"narrow": {"latency_s": "x"}}},
        {"latency": {"narrow": {"latency_s": 1.0, "latency_range": ["x", 1.0]}}},
        {"seconds": "x"},
    ],
)
def test_odd_state_is_one_message(found: Any, folder: ShrinkFolder) -> None:
    (folder.path / STATE).write_text(json.dumps({"asked": ASKED, "found": found}))
    with pytest.raises(DirectoryError, match=rf"{STATE} is damaged; remove "):
        ShrinkFolder.open(folder.path, ASKED)
