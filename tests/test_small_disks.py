"""Disks of every size under every command that writes: whole or one message, nothing in part, and room mends it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import commands
import pytest
from runs import final_state, nothing_left
from test_kills import SHORT
from test_streams import here, ran

from leanify.core import recipe as recipes

ROOM = ("No space left", "no space left", "room", "free")  # one of them is in the message
needs_root = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root mounts a small disk")

__all__ = ["here"]  # the fixture


def said(*arguments: str) -> tuple[int, list[str]]:
    done = commands.run(*arguments, cwd=Path("/"))
    return done.returncode, [line for line in done.stderr.splitlines() if line.startswith("leanify:")]


def mounted(place: Path, kilobytes: int, *more: str) -> bool:
    options = ["-o", ",".join([f"size={kilobytes}k", *more])]
    return subprocess.run(["mount", "-t", "tmpfs", *options, "tmpfs", str(place)], capture_output=True).returncode == 0


@contextmanager
def small(disk: Path, kilobytes: int) -> Iterator[Path]:
    disk.mkdir()
    if not mounted(disk, kilobytes):
        pytest.skip("no disk can be mounted here")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def whole_or_one_message(code: int, words: list[str]) -> None:
    assert (code, len(words)) in ((0, 0), (2, 1)), words
    if code:
        assert any(word in words[0] for word in ROOM), words


@pytest.mark.long
@needs_root
@pytest.mark.parametrize("kilobytes", [64, 128, 256, 512, 1024])
def test_run_resumes_once_room_returns(tmp_path: Path, kilobytes: int) -> None:
    """Room ends a run as if nothing were."""
    recipe = tmp_path / "r.toml"
    recipe.write_text(recipes.apply_settings(SHORT, ["model.override.embed_dim=32", "run.keep=0"]).to_toml())
    assert said("train", str(recipe), "-o", str(tmp_path / "whole"))[0] == 0
    with small(tmp_path / "disk", kilobytes) as disk:
        whole_or_one_message(*said("train", str(recipe), "-o", str(disk / "run")))
        assert mounted(disk, 20_000, "remount")
        begun = (disk / "run" / "recipe.toml").exists()
        again = ("--resume", str(disk / "run")) if begun else (str(recipe), "-o", str(disk / "run"))
        assert said("train", *again)[0] == 0
        nothing_left(disk / "run")
        assert final_state(disk / "run") == final_state(tmp_path / "whole")
        assert json.loads((disk / "run" / "environment.json").read_text())


def contents(place: Path) -> dict[str, bytes]:
    """Every file's bytes; of a zip archive, whose order is its writer's, the first ones."""
    files = sorted(path for path in place.rglob("*") if path.is_file())
    ends = {".pt2": slice(0, 2)}
    return {str(path.relative_to(place)): path.read_bytes()[ends.get(path.suffix, slice(None))] for path in files}


WRITERS = {
    "redesign": "redesign lean --depth 1 -o {out}/lean",
    "weights": "redesign lean --depth 1 --weights lean -o {out}/lean",
    "export": "export run --format timm -o {out}/timm",
    "program": "export run --format torch-export -o {out}/model.pt2",
    "figure": "show run --plot {out}/curves.png",
}


def one(line: str, here: Path) -> tuple[int, list[str]]:
    code, _, err = ran(line, here, lambda: None)
    return code, [words for words in err.splitlines() if words.startswith("leanify:") and "wrote" not in words]


LONG = ("export", "program")  # they load what they wrote elsewhere, and trace


@needs_root
@pytest.mark.parametrize("kilobytes", [4, 64])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long if name in LONG else []) for name in WRITERS]
)
def test_outputs_are_complete_or_absent(here: Path, tmp_path: Path, name: str, kilobytes: int) -> None:
    (tmp_path / "large").mkdir()
    assert one(WRITERS[name].format(out=tmp_path / "large"), here) == (0, [])
    with small(tmp_path / "disk", kilobytes) as disk:
        line = WRITERS[name].format(out=disk)
        code, lines = one(line, here)
        whole_or_one_message(code, lines)
        if code:
            assert list(disk.rglob("*")) == []
            assert mounted(disk, 20_000, "remount")
            assert one(line, here) == (0, [])
        assert contents(disk) == contents(tmp_path / "large")


@needs_root
def test_cache_without_room_is_skipped(here: Path, tmp_path: Path) -> None:
    with small(tmp_path / "disk", 4) as disk:
        (disk / "filled").write_bytes(bytes(4096))
        code, out, err = ran("redesign lean --depth 1", here, lambda: os.environ.update(XDG_CACHE_HOME=str(disk)))
        assert (code, bool(out)) == (0, True), err
        assert [path.name for path in disk.rglob("*") if path.is_file()] == ["filled"]


@needs_root
def test_read_only_disk_is_one_message(here: Path, tmp_path: Path) -> None:
    with small(tmp_path / "disk", 20_000) as disk:
        shutil.copytree(here / "run", disk / "run")
        for name in ("environment.json", "leanify.json"):
            (disk / "run" / name).unlink()  # which would be written again
        assert mounted(disk, 20_000, "remount", "ro")
        for line in (
            f"train --resume {disk}/run",
            f"train {here}/run -o {disk}/new",
            f"redesign {here}/lean --depth 1 -o {disk}/lean",
            f"condition {here}/lean --samples 2 --plot {disk}/plot.svg",
            f"export {here}/lean --format timm -o {disk}/out",
            f"compare {here}/run --designs baseline -o {disk}/study",
        ):
            code, _, err = ran(line, here, lambda: None)
            assert code in (1, 2), err
            assert "Traceback" not in err
            assert str(disk) in "".join(err.split())
