"""Plausible mistakes: one message each, and what it says to type works when it is typed."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from commands import run_here
from runs import make_pictures

from leanify.cli.usage import REMOVED_OPTIONS
from leanify.training import start as training

TINY = "--set data.samples=64 --set schedule.epochs=1 --set model.depth=1 --dry-run"
WORKED: set[str] = set()  # what was typed instead, and worked: several mistakes lead to the same line


@dataclass(frozen=True)
class Mistake:
    """What was typed, the words of the message, and what it says to type instead.

    ``says`` is what of that stands in the message; None where the message names no value, because it cannot know one.
    """

    typed: str
    words: str
    instead: str | None = None
    says: str | None = None


def misspelt(typed: str, words: str, wrong: str, right: str) -> Mistake:
    """A part of the line is wrong, and the message says what is right in its place."""
    return Mistake(typed, words, typed.replace(wrong, right), right)


MISTAKES = [
    Mistake("trian", "No such command 'trian'", "train --list", "train"),
    Mistake("versoin", "No such command 'versoin'. Did you mean 'version'?"),
    misspelt("redesign vit_tiny --target-param 0.5", "No such option: --target-param ", "-param", "-params"),
    misspelt("redesign vit_tiny --target-params 4MB", "'4MB' is not a valid budget", "4MB", "50%"),
    misspelt("redesign vit_tiny --target-params 1.5", "above 1 and has no unit", "1.5", "0.5"),
    Mistake("profile --no-measure", "Missing argument 'SOURCE…'", says="For example: leanify profile vit_base lean"),
    Mistake("shrink", "Missing argument 'CHECKPOINT'", says="For example: leanify shrink "),
    Mistake("profile vit_tiny --max-latency 5", "--max-latency 5 has no unit; say an amount (12ms)"),
    misspelt("redesign vit_tniy --target-params 0.5", "did you mean vit_tiny", "vit_tniy", "vit_tiny"),
    Mistake("redesign resnet18 --target-params 0.5", "no attention"),
    Mistake("redesign llama --heads 33 --override num_key_value_heads=8", "multiple of 4"),
    misspelt("redesign vit_tiny --heads 3.5", "--heads must be an integer", "3.5", "4"),
    Mistake("redesign vit_tiny --heads encoder=²", "must be a positive integer per tower"),
    misspelt("redesign vit_tiny --depth 7 --count bdy", "not one of all, body", "bdy", "body"),
    Mistake("redesign vit_tiny --depth 7 --control", "give -o"),
    Mistake("redesign vit_tiny --override img_size=32 --depth 7 --weights nowhere", "nowhere"),
    Mistake("redesign vit_tiny --override img_size=32 --depth 7 --weights bert", "has no weights"),
    Mistake("condition bert --tokens 0", "--tokens"),
    misspelt("redesign vit_tiny --depth 7 --override img_sise=32", "img_sise", "img_sise", "img_size"),
    misspelt("profile vit_tiny --no-measure --max-params 0.5", "is a share", "0.5", "43M"),
    Mistake("profile vit_tiny --no-measure --max-latency 9ms", "leave out --no-measure"),
    misspelt("recipes --format cvs", "must be one of table, json, csv, markdown", "cvs", "csv"),
    Mistake("recipes --json --format csv", "contradict each other", "recipes --json --format json", "--json"),
    misspelt("recipes digist", "nearest: digits", "digist", "digits"),
    misspelt("show vit_tniy", "did you mean vit_tiny", "vit_tniy", "vit_tiny"),
    Mistake("show vit_tiny --plot curve.png", "curves of a run"),
    Mistake("show digits", "is a recipe", "recipes digits", "leanify recipes digits prints it"),
    Mistake("condition vit_tiny --plot k.html", ".png", says=".svg"),
    misspelt(f"train digist {TINY}", "nearest: digits", "digist", "digits"),
    misspelt(f"train --set learning_rate=1e-3 {TINY}", "it is optim.lr", "--set learning_rate", "--set optim.lr"),
    misspelt(f"train --set optim.epochs=1 {TINY}", "it is schedule.epochs", "optim.epochs", "schedule.epochs"),
    Mistake("train --set optim.lr=abc", "it must be a number"),
    misspelt(f"train --set data.workes=0 {TINY}", "nearest: workers", "workes", "workers"),
    Mistake("train vit_tiny", "needs data", says="leanify train vit_tiny --set data.path=DIR"),
    Mistake("train digits -o run", "already contains a run", "train --resume run", "leanify train --resume run"),
    Mistake("train --resume nowhere", "nowhere is not a run", "runs", "leanify runs"),
    Mistake("predict nowhere a.png", "nowhere is not a run", "runs", "leanify runs"),
    Mistake("predict encoder text", "encoder is a model, not a run"),
    Mistake("predict run a.png", "trained on digits", says='leanify.load("run")'),
    Mistake("compare --report", "name its folder", says="leanify compare STUDY --report"),
    misspelt("profile rnu --no-measure", "nearest: run", "rnu", "run"),
    misspelt("redesign vit_tiny --target-params 0,5", "has a comma", "0,5", "0.5"),
    Mistake("profile vit_tiny --batch 8 --no-measure", "No such option", says="--batch-size"),
    Mistake("train --lr 1e-3", "key of the recipe", says="--set optim.lr=VALUE"),
    Mistake("train digits --epochs=1", "key of the recipe", says="--set schedule.epochs=VALUE"),
    Mistake("train --set optim.lr 1e-3", "section.key=value", f"train --set optim.lr=1e-3 {TINY}", "optim.lr=1e-3"),
    Mistake("compare digits-study --seed 3", "No such option", says="--seeds"),
    Mistake("compare vit_tiny", "needs data", says="compare takes the same --set"),
    Mistake("predict a.png run", "the run comes first", says="leanify predict run a.png"),
    Mistake("show pictures", "is data, not a model", says="leanify compare pictures"),
    misspelt("zoo swni", "no model has swni in its name", "swni", "swin"),
    misspelt("zoo swin --status refsued", "supported, refused or failing", "refsued", "supported"),
    Mistake("zoo swin --status failing", "none is failing", "zoo swin", "leanify zoo swin"),
    Mistake("vit_tiny", "No such command 'vit_tiny'", says="leanify redesign MODEL"),
    Mistake("pictures", "is no command", "show run", "leanify show pictures"),
    Mistake("redesign vit_tiny 0.5", "is not the name of a model", says="--target-params 0.5"),
    Mistake("train --set=optim.lr", "section.key=value", says="optim.lr=1e-3"),
    Mistake("compare --data pictures", "key of the recipe", says="--set data.path=VALUE"),
    misspelt(f"train digits --device tpu {TINY}", "cpu, cuda or cuda:N", "tpu", "cpu"),
    Mistake("train notes.yaml", "recipes are TOML", "recipes digits", "leanify recipes digits"),
    Mistake("train digits --num-classes 10", "key of the recipe", says="--set model.override.num_classes=VALUE"),
    Mistake("predict model a.png", "model is a model, not a run", says="leanify train model --set data.path=DATA"),
    Mistake("predict study a.png", "study is not a run", "show study/runs/lean-0", "study/runs/lean-0"),
    Mistake("profile study --no-measure", "study is not a model", "show study/runs/lean-0", "study/runs/lean-0"),
    Mistake("train digits --resume run", "another recipe", "train --resume run", "leanify train --resume run"),
    Mistake("redesign pictures --depth 2", "is not a model", says="leanify train pictures"),
    Mistake("compare digits-study --seeds 1", "at least --seeds 2"),
    Mistake("compare digits --set model.depth=1", "small=depth:1,heads:8; or compare", says="--set model.depth=3"),
    Mistake("compare digits-study --designs leaner", "'leaner' is not a design"),
    Mistake("train --resume nowhere --dry-run", "cannot be combined with --dry-run"),
    Mistake("train fashion-mnist", "no data.path for fashion-mnist; name it with --set data.path=PATH"),
    Mistake("compare digits-study --seeds three", "Invalid value for '--seeds'"),
    Mistake("compare digits-study --margin=much", "Invalid value for '--margin'"),
    Mistake("export run", "Missing option '--output'"),
    Mistake("export run -o a.onnx", "Missing option '--format'"),
    misspelt("profile vit_tiny --no-measur", "No such option", "--no-measur", "--no-measure"),
    Mistake("train digits -o", "Option '-o' requires an argument"),
    Mistake("train run --resume", "Option '--resume' requires an argument", "train --resume run"),
    Mistake("predict run", "Missing argument 'FILES…'"),
    Mistake("train digits --set data.path=pictures", "is pictures, but", says="leanify train pictures"),
    Mistake("train digits --dry-run --set data.mixup=nan", "data.mixup is nan; it must be a finite number"),
    Mistake("redesign vit_tiny --target-params 0.9 --mlp 1000000000000000000000000", "beyond any model's size"),
]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run on digits, and with pictures by class."""
    folder = make_pictures(tmp_path_factory.mktemp("here"), ("blue", "red"), 16, pictures=10)
    (folder / "notes.yaml").write_text("model: vit_tiny\n")
    (folder / "encoder").mkdir()
    (folder / "encoder" / "modules.json").write_text("[]")
    training.train("digits", folder / "run", settings=["data.samples=64", "schedule.epochs=1", "model.depth=1"])
    shutil.copytree(folder / "run", folder / "study" / "runs" / "lean-0")
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text("{}")
    return folder


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.typed)
def test_mistake_names_what_works(mistake: Mistake, here: Path, monkeypatch: Any, capsys: Any) -> None:
    """A mistake is one message, and what it says works."""
    monkeypatch.chdir(here)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # what --device sets is set back
    before = sorted(path.name for path in here.iterdir())
    code, out, err = run_here(mistake.typed, capsys)
    assert (code, out) == (2, "")
    assert mistake.words in err
    assert mistake.says is None or mistake.says in err
    if mistake.instead is not None and mistake.instead not in WORKED:
        code, out, err = run_here(mistake.instead, capsys)
        assert code == 0, err
        assert out
        WORKED.add(mistake.instead)
    assert sorted(path.name for path in here.iterdir()) == before


@pytest.mark.parametrize(
    ("command", "option"), [(name, option) for name in REMOVED_OPTIONS for option in REMOVED_OPTIONS[name]]
)
def test_removed_option_names_alternative(command: str, option: str, capsys: Any) -> None:
    code, out, err = run_here(f"{command} vit_tiny --{option} 1", capsys)
    assert (code, out) == (2, "")
    assert f"No such option: --{option}" in err
    assert " ".join(REMOVED_OPTIONS[command][option].split()) in err
