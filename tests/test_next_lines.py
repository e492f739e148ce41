"""The commands that ``redesign -o`` proposes: each works as it is printed, once DATA is replaced."""

from __future__ import annotations

import json
import shutil
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import typed
from runs import make_documents

import leanify

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
EXAMPLES = Path(__file__).parents[1] / "docs" / "examples"
TINY = (
    "--override img_size=16 --override patch_size=4 --override embed_dim=32 --override depth=8 --override num_heads=2 "
    "--target-params 0.55"
)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with pictures in classes, labelled sentences, and a small BERT."""
    folder = tmp_path_factory.mktemp("here")
    make_documents(folder, images="pets", sentences="reviews", checkpoint="old")
    shutil.copy(EXAMPLES / "own_gpt.py", folder)
    sizes = {"img_size": 16, "patch_size": 4, "embed_dim": 32, "depth": 8, "num_heads": 2}
    tensors = leanify.load("vit_tiny", overrides=sizes).state_dict()
    torch.save({"state_dict": {f"module.{name}": tensor for name, tensor in tensors.items()}}, folder / "best.pth.tar")
    return folder


@pytest.mark.parametrize(
    ("line", "data", "proposed"),
    [
        (f"vit_tiny {TINY} --control -o lean", "pets", ["compare vit_tiny", "train lean/lean"]),
        (f"vit_tiny {TINY} --depth 3 --heads 3 -o control", "pets", ["compare vit_tiny", "train control"]),
        ("own_gpt.py:make --target-params 0.6 -o own", "", ["profile own_gpt.py:make own"]),
        ("digits-study --target-params 0.5 -o 'a b'", "", ["compare digits-study"]),
        (f"vit_tiny {TINY} --weights best.pth.tar -o file", "pets", ["train file --set", "compare vit_tiny --weights"]),
        ("old --depth 3 --weights old -o bare", "reviews", ["train bare --teacher old", "compare old --weights old"]),
    ],
)
def test_next_line_keeps_the_design(
    line: str, data: str, proposed: list[str], here: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.chdir(here)
    assert typed(f"redesign {line}") == 0
    _, _, after = capsys.readouterr().out.partition("\nnext  leanify ")
    lines = [each.strip().removeprefix("leanify ") for each in after.splitlines()]
    assert [each[: len(words)] for each, words in zip(lines, proposed, strict=True)] == proposed
    assert all(("DATA" in each) == bool(data) for each in lines)
    for each in lines:
        rehearsal = "--no-measure" if each.startswith("profile") else "--dry-run"
        assert typed(f"{each.replace('DATA', data)} {rehearsal}") == 0, each


def test_next_line_writes_shown_design(here: Path, monkeypatch: Any, capsys: Any) -> None:
    """A folder that is there already is not proposed, and the line is the last one."""
    monkeypatch.chdir(here)
    for folder in ("lean", "lean-2"):
        (here / folder).mkdir(exist_ok=True)
    monkeypatch.setattr(sys, "stderr", sys.stdout)
    assert typed("redesign digits-study --target-params 50% --top 1") == 0
    *above, last = capsys.readouterr().out.splitlines()
    assert not any(line.startswith("next ") for line in above)
    assert last.startswith("next  leanify redesign digits-study ")
    assert typed(last.removeprefix("next  leanify ")) == 0
    assert (here / "lean-3" / "config.json").is_file()


@pytest.mark.slow
def test_proposed_study_trains_written_shape(here: Path, monkeypatch: Any, capsys: Any) -> None:
    """A directory called lean is that directory's shape, and control and narrow have its depth and size."""
    (here / "apart").mkdir()
    monkeypatch.chdir(here / "apart")
    shutil.copytree(here / "pets", "pets")
    pinned = TINY.replace("--target-params 0.55", "--depth 5 --heads 3 --mlp 64")
    assert typed(f"redesign vit_tiny {pinned} -o lean") == 0
    _, _, after = capsys.readouterr().out.partition("\nnext  leanify ")
    assert typed(f"{after.splitlines()[0].replace('DATA', 'pets')} --dry-run --json") == 0
    baseline, lean, control, narrow = json.loads(capsys.readouterr().out)["designs"]
    assert [design["name"] for design in (baseline, lean, control, narrow)] == ["baseline", "lean", "control", "narrow"]
    assert (lean["depth"], lean["heads"], lean["mlp"]) == (5, 3, 64)
    assert (control["depth"], control["heads"]) == (5, baseline["heads"])
    assert control["mlp"] > lean["mlp"]
    assert narrow["depth"] == baseline["depth"]
    assert all(abs(design["params"] / lean["params"] - 1) < 0.02 for design in (control, narrow))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "proposed"),
    [
        ("own-images --set data.path=pets", "compare pets"),
        ("vit_tiny {tiny} --set data.path=pets", "compare out"),
        ("lean", None),
    ],
)
def test_proposed_study_trains_same_model(
    recipe: str, proposed: str | None, here: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    """After a run of a model typed alone, its run is the recipe; a lean directory is not made leaner once more."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(here / "pets", "pets")
    tiny = TINY.replace("--override ", "--set model.override.").replace("--target-params 0.55", "")
    if recipe == "lean":
        assert typed(f"redesign vit_tiny {TINY} -o lean") == 0
        recipe = "lean --set data.path=pets"
    assert typed(f"train {recipe.format(tiny=tiny)} --set schedule.epochs=1 -o out") == 0
    _, _, after = capsys.readouterr().out.rpartition("\nnext  leanify ")
    lines = [each.strip().removeprefix("leanify ") for each in after.splitlines()]
    assert next((each for each in lines if each.startswith("compare")), None) == proposed
    for each in lines:
        if each.startswith("compare"):
            assert typed(f"{each} --dry-run") == 0


def test_no_line_writes_several_designs(capsys: Any) -> None:
    assert typed("redesign vit_tiny deit_small --target-params 0.5") == 0
    assert "next " not in capsys.readouterr().out


def test_timed_designs_lack_no_weights(here: Path, monkeypatch: Any) -> None:
    """Designs that are only timed are not said to lack weights."""
    monkeypatch.chdir(here)
    line = "compare old --weights old --set data.path=reviews --designs small=depth:3 --dry-run"
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert typed(line) == 0
    assert not [str(one.message) for one in said if "no weights" in str(one.message)]
