"""The commands that ``redesign -o`` proposes: each works as it is printed, once DATA is replaced."""

from __future__ import annotations

import shlex
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from leanify.cli import main

MAKERS = Path(__file__).parent / "fixtures" / "documents"
TINY = (
    "--override img_size=16 --override patch_size=4 --override embed_dim=32 --override depth=8 --override num_heads=2 "
    "--target-params 0.5"
)


def typed(line: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["leanify", *shlex.split(line)])
    try:
        main()
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else 1
    return 0


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with pictures in classes, labelled sentences, and a small BERT."""
    folder = tmp_path_factory.mktemp("here")
    for maker, name in (("make_images", "pets"), ("make_sentences", "reviews"), ("make_checkpoint", "old")):
        subprocess.run([sys.executable, MAKERS / f"{maker}.py", name], cwd=folder, check=True)
    return folder


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("line", "data", "proposed"),
    [
        (f"vit_tiny {TINY} --control -o lean", "pets", ["compare vit_tiny", "train lean/lean"]),
        ("digits-study --target-params 0.5 -o 'a b'", "", ["compare digits-study"]),
        pytest.param(
            "old --depth 3 --weights old --data reviews -o healed",
            "",
            ["train healed --teacher old", "compare old --weigh"],
            marks=pytest.mark.slow,
        ),
        ("old --depth 3 --weights old -o bare", "reviews", ["train bare --teacher old", "compare old --weights old"]),
    ],
)
def test_next_line_keeps_the_design(
    line: str,
    data: str,
    proposed: list[str],
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(here)
    assert typed(f"redesign {line}", monkeypatch) == 0
    _, _, after = capsys.readouterr().out.partition("\nnext  leanify ")
    lines = [each.strip().removeprefix("leanify ") for each in after.splitlines()]
    assert [each[: len(words)] for each, words in zip(lines, proposed, strict=True)] == proposed
    assert all(("DATA" in each) == bool(data) for each in lines)
    for each in lines:
        assert typed(f"{each.replace('DATA', data)} --dry-run", monkeypatch) == 0, each


def test_next_line_writes_shown_design(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder that is there already is not proposed, and the line is the last one."""
    monkeypatch.chdir(here)
    for folder in ("lean", "lean-2"):
        (here / folder).mkdir(exist_ok=True)
    monkeypatch.setattr(sys, "stderr", sys.stdout)
    assert typed("redesign digits-study --target-params 50% --top 1", monkeypatch) == 0
    *above, last = capsys.readouterr().out.splitlines()
    assert not any(line.startswith("next ") for line in above)
    assert last.startswith("next  leanify redesign digits-study ")
    assert typed(last.removeprefix("next  leanify "), monkeypatch) == 0
    assert (here / "lean-3" / "config.json").is_file()


def test_no_line_writes_several_designs(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    assert typed("redesign vit_tiny deit_small --target-params 0.5", monkeypatch) == 0
    assert "next " not in capsys.readouterr().out


def test_timed_designs_lack_no_weights(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Designs that are only timed are not said to lack weights."""
    monkeypatch.chdir(here)
    line = "compare old --weights old --set data.path=reviews --designs small=depth:3 --dry-run"
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert typed(line, monkeypatch) == 0
    assert not [str(one.message) for one in said if "no weights" in str(one.message)]
