"""Every command where streams, the terminal or the user's home are not what they should be: it works, or one message.

Commands run in forks of this process, which has their imports; what the interpreter does at its start is done by hand.
`tests/test_hostile_data.py` has the same in processes of their own for a few.
"""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import commands
import pytest
from commands import Pipe, reopen_streams
from fuzz_intact import TIMM
from runs import make_pictures

import leanify
from leanify.cli import COMMANDS

TYPED = {
    "redesign": "redesign lean --depth 1", "train": "train run --dry-run",
    "compare": "compare run --dry-run --designs baseline,x=depth:1,heads:2,mlp:16",
    "profile": "profile lean --no-measure", "condition": "condition lean --samples 2",
    "export": "export lean --format timm -o out", "shrink": "shrink --help", "recipes": "recipes digits",
    "runs": "runs .", "show": "show run", "predict": "predict --help", "zoo": "zoo --library timm", "all": "--help",
    "list": "train --list",
}  # fmt: skip


@pytest.fixture(scope="module")
def here(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("here")
    shutil.copytree(trained, folder / "run")
    leanify.save(leanify.load("vit_tiny_patch16_224", overrides=TIMM), folder / "lean")
    return folder


def ran(
    line: str, folder: Path, change: Callable[[], None], *streams: Pipe, reader: bool = True
) -> tuple[int, str, str]:
    """Exit code, standard output and error of a command in a fork after ``change``. Without ``reader`` nobody reads.

    ``streams`` are the two ends of either stream, to read from and to write to, where they are no pipes.
    """
    shutil.rmtree(folder / "out", ignore_errors=True)
    out, err = streams or (os.pipe(), os.pipe())
    code, said, complained = commands.run_forked(line.split(), folder, change, out, err, reader)
    commands.assert_no_bug(said, complained)
    return code, said, complained


def full() -> None:
    os.dup2(os.open("/dev/full", os.O_WRONLY), 1)


def closed() -> None:
    os.close(1)
    sys.stdout = None  # type: ignore[assignment]


def latin() -> None:
    reopen_streams("latin-1")


def homeless() -> None:
    for name in ("HOME", "XDG_CACHE_HOME", "LEANIFY_PRICES", "HF_HOME"):
        os.environ.pop(name, None)


def unwritable() -> None:
    """A home where nobody can write, not even root."""
    homeless()
    os.environ["HOME"] = "/proc/1/nobody"


def unheard_errors() -> None:
    os.close(2)
    sys.stderr = None  # type: ignore[assignment]


SLOW = ("train", "compare", "condition", "export")  # 1 to 10 s each
EVERY = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] if name in SLOW else []) for name in TYPED]
)


def test_commands_are_all_tried() -> None:
    assert set(COMMANDS) <= TYPED.keys()


@EVERY
@pytest.mark.parametrize("change", [full, closed])
def test_unwritable_output_is_one_message(name: str, change: Callable[[], None], here: Path) -> None:
    code, out, err = ran(TYPED[name], here, change)
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith("leanify: standard output could not be written: ")


@EVERY
def test_closed_reader_ends_command(name: str, here: Path) -> None:
    """As with `| head -1`: no word of complaint, and never the exit code of a limit that is exceeded."""
    code, _, err = ran(TYPED[name], here, lambda: None, reader=False)
    assert code == -signal.SIGPIPE
    assert "roken pipe" not in err


@EVERY
@pytest.mark.parametrize("change", [latin, homeless, unwritable, unheard_errors])
def test_poor_environment_changes_no_result(name: str, change: Callable[[], None], here: Path) -> None:
    code, out, err = ran(TYPED[name], here, change)
    assert code == 0, err
    assert out.strip()


@EVERY
def test_dumb_terminal_gets_no_escapes(name: str, here: Path) -> None:
    """Standard output and error are a terminal that only prints."""
    terminal = pty.openpty()
    code, shown, _ = ran(TYPED[name], here, lambda: os.environ.update(TERM="dumb"), terminal, terminal)
    assert code == 0, shown
    assert shown.strip()
    assert "\x1b" not in shown


def test_names_cannot_drive_terminal(here: Path, tmp_path: Path) -> None:
    """Folders, classes, settings and configurations whose names have escape sequences: shown, not sent."""
    evil = "\x1b]0;owned\x07\x1b[2J\x9b31m"
    shutil.copytree(here / "run", tmp_path / f"run{evil}")
    make_pictures(tmp_path / "images", (f"a{evil}", "b"), train=1, validation=1)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": evil, "architectures": [evil]}))
    for line in ("runs .", "train images", "profile config.json", f"show {evil}", f"show run{evil}"):
        terminal = pty.openpty()
        _, shown, _ = ran(line, tmp_path, lambda: os.environ.update(TERM="dumb"), terminal, terminal)
        assert "\\x1b]0;own" in shown, (line, shown)
        assert not {"\x1b", "\x07", "\x9b"} & set(shown), (line, shown)


def test_messages_break_between_words(tmp_path: Path) -> None:
    """On a terminal of 50 columns: the words of a pipe, none broken, and commands whole."""
    make_pictures(tmp_path / "pictures-of-two-kinds", ("a", "b"), train=1, validation=1)
    line, terminal = "show pictures-of-two-kinds", pty.openpty()
    _, _, piped = ran(line, tmp_path, lambda: None)
    _, shown, _ = ran(line, tmp_path, lambda: os.environ.update(TERM="dumb", COLUMNS="50"), terminal, terminal)
    assert shown.split() == piped.split()
    assert max(map(len, piped.splitlines())) > 50
    assert max(map(len, shown.splitlines())) <= 50
    assert "  leanify train pictures-of-two-kinds" in shown.splitlines()
