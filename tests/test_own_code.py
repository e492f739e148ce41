"""Data that a user's own function reads, named in a recipe: what it returns, how it is found again, when it may run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from runs import refused

import leanify
from leanify.core import recipe as recipes
from leanify.core import recipe_code as code
from leanify.core.errors import DataError, RecipeError, SourceError
from leanify.runs.run_directory import RunDirectory
from leanify.sources.names import check_names
from leanify.training import start as training
from leanify.upstream import user_modules

RECIPE = """
[model]
source = "test_vit"
override = { img_size = 8, patch_size = 4, in_chans = 1, num_classes = 2 }
[data]
name = "stripes.py:splits"
task = "classification"
options = { number = 48 }
[optim]
lr = 3e-3
[schedule]
batch_size = 16
steps = 6
[run]
eval_every = 3
"""
STRIPES = '''"""Stripes that lie or stand, as a user would write them."""
import torch
from stripes_drawn import stripe

open(__file__ + ".ran", "a").close()


class Stripes(torch.utils.data.Dataset):
    def __init__(self, number, seed):
        self.number, self.seed = number, seed

    def __len__(self):
        return self.number

    def __getitem__(self, index):
        return stripe(index % 2, 1000 * self.seed + index), index % 2


def splits(data, model):
    return Stripes(data.options["number"], 0), Stripes(16, 1), 2


def pair(data, model):
    return Stripes(8, 0), Stripes(8, 1)


def nothing(data, model):
    return "no data"
'''
DRAWN = """import torch


def stripe(kind, seed):
    picture = torch.randn(1, 8, 8, generator=torch.Generator().manual_seed(seed))
    picture[:, 3] += 4 * kind
    picture[:, :, 3] += 4 * (1 - kind)
    return picture
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recipe beside the code that it names, which this user has never named."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(user_modules, "ALLOWED_SOURCES", set())
    monkeypatch.chdir(tmp_path)
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "stripes.toml").write_text(RECIPE)
    (mine / "stripes.py").write_text(STRIPES)
    (mine / "stripes_drawn.py").write_text(DRAWN)
    yield mine
    for name in [name for name in sys.modules if name.startswith(("_leanify_stripes", "stripes"))]:
        del sys.modules[name]


def last_row(run: Path) -> dict[str, Any]:
    row = RunDirectory.open(run).rows()[-1]
    return {key: value for key, value in row.items() if key != "samples_per_s"}


def test_own_data_resumes_anywhere(folder: Path, tmp_path: Path, monkeypatch: Any) -> None:
    named = ["data.name=mine/stripes.py:splits"]
    full = training.train("mine/stripes.toml", "full", settings=[*named, "schedule.steps=12"])
    assert last_row(full)["top1"] > 90

    # the run names the file absolutely, so that it goes on from another folder to the same numbers
    again = training.train("mine/stripes.toml", "again", settings=["schedule.steps=12"])
    recipe = RunDirectory.open(again).recipe
    assert recipe.data.name == f"{folder}/stripes.py:splits"
    assert last_row(again) == last_row(full)
    monkeypatch.chdir(folder)
    for checkpoint in sorted((tmp_path / "again/checkpoints").iterdir())[1:]:
        checkpoint.rename(tmp_path / checkpoint.name)
    training.train(resume=tmp_path / "again")
    assert last_row(tmp_path / "again") == last_row(tmp_path / "full")


def test_unnamed_data_code_never_runs(folder: Path) -> None:
    with pytest.raises(
        SourceError, match=r"data is read by code, .*stripes.py:splits, which was not named.*--set data"
    ):
        training.train("mine/stripes.toml", "run")
    assert not list(folder.glob("*.ran"))
    assert not Path("run").exists()
    training.train("mine/stripes.toml", "run", settings=["data.name=mine/stripes.py:splits"])
    assert list(folder.glob("*.ran"))
    training.train("mine/stripes.toml", "other")  # named once, with these contents


def test_changed_code_does_not_resume(folder: Path) -> None:
    training.train("mine/stripes.toml", "run", settings=["data.name=mine/stripes.py:splits"])
    (folder / "stripes.py").write_text(STRIPES + "\n# changed\n")
    with pytest.raises(SourceError, match="which was not named here before"):
        training.train(resume="run")
    (folder / "stripes.py").unlink()
    with pytest.raises(SourceError, match=f"there is no file {folder}/stripes.py"):
        training.train(resume="run")


def test_unnamed_model_code_never_runs(folder: Path) -> None:
    """Neither in training nor in resuming, where whoever sent the folder may have named anything."""
    code_of_model = 'import timm\nopen(__file__ + ".ran", "a").close()\n'
    (folder / "stripes_model.py").write_text(f"{code_of_model}def make():\n    return timm.create_model('test_vit')\n")
    text = RECIPE.replace('"test_vit"', '"stripes_model.py:make"').replace("stripes.py:splits", "digits")
    text = "\n".join(line for line in text.splitlines() if not line.startswith(("override", "options")))
    (folder / "stripes.toml").write_text(text)
    with pytest.raises(SourceError, match=r"model is built by code, .*stripes_model.py:make, which was not named"):
        training.train("mine/stripes.toml", "run")
    run = training.train("digits", "sent", settings=["schedule.steps=2", "schedule.warmup=0"])
    card = json.loads((run / "leanify.json").read_text())
    recipe = (run / "recipe.toml").read_text().replace(f'source = "{card["recipe"]["model"]["source"]}"', "SOURCE")
    (run / "recipe.toml").write_text(recipe.replace("SOURCE", f'source = "{folder}/stripes_model.py:make"'))
    card["recipe"]["model"]["source"] = f"{folder}/stripes_model.py:make"
    (run / "leanify.json").write_text(json.dumps(card))
    with pytest.raises(SourceError, match="which was not named here before"):
        training.train(resume=run)
    assert not list(folder.glob("*.ran"))


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        (["data.name=mine/stripes.py:pair"], DataError, "return the number of classes as a third item"),
        (["data.name=mine/stripes.py:nothing"], DataError, "returned a str; it must return two torch data sets"),
        (["data.name=mine/stripes.py:missing"], SourceError, "has no function 'missing'"),
        (["data.name=mine/none.py:splits"], SourceError, "there is no file .*none.py"),
        (["data.name=mine/stripes.py:splits", "data.holdout=0.1"], RecipeError, "data.holdout does not apply"),
        (["data.name=digits"], RecipeError, "data.options are for the function"),
        (["data.name=mine/stripes.py:splits", "model.override.num_classes=1"], DataError, "has 2 classes"),
    ],
)
def test_misfits_are_one_message(
    settings: list[str], error: type[Exception], words: str, folder: Path, tmp_path: Path
) -> None:
    with refused(error, words, tmp_path / "run"):
        training.train("mine/stripes.toml", "run", settings=settings)


def test_built_in_code_has_one_name(folder: Path) -> None:
    """From its recipe, from a copy of it, by its file's name; no link leads out."""
    Path("copy.toml").write_text(code.built_in_recipes()["leaner-transformers/lra-text"].read_text())
    for name in ("lra-text", "copy.toml"):
        assert leanify.read(leanify.load(name)).source == "leaner-transformers/nystromformer.py:Nystromformer"
    assert recipes.load("farthest-point").data.name == "leaner-transformers/farthest_point.py:splits"  # type: ignore[union-attr]
    assert str(user_modules.origin_of_code("gpt2.py:Gpt2")) == "leaner-transformers/gpt2.py:Gpt2"
    values = [recipes.load(path) for path in code.built_in_recipes().values()]
    names = {value.model.source for value in values} | {value.data.name for value in values if value.data}
    assert {name for name in names if code.is_code(name)} == code.SHIPPED_CODE


@pytest.mark.parametrize("name", ["glue.py:main", "lra.py:Path", "leaner_layers.py:Mlp", "../../tests/runs.py:run"])
def test_other_functions_do_not_run(name: str, folder: Path) -> None:
    """Scripts there write files and train; a run that somebody sent may name their models and data alone."""
    file = code.home() / "leaner-transformers" / name.partition(":")[0]
    text = RECIPE.replace('"test_vit"', f'"{file}:{name.partition(":")[2]}"')
    (folder / "stripes.toml").write_text(text)
    with pytest.raises(SourceError, match="which was not named here before"):
        leanify.load("mine/stripes.toml")
    with pytest.raises(SourceError, match="there is no file"):
        leanify.load(f"leaner-transformers/{name}")


def test_wheel_recipes_find_code(folder: Path, monkeypatch: Any) -> None:
    """There the folder of recipes lies inside the package."""
    monkeypatch.setattr(code, "home", lambda: folder.parent)
    monkeypatch.setattr(code, "SHIPPED_CODE", frozenset(["mine/stripes.py:splits"]))
    for name in ("stripes.py:splits", f"{folder}/stripes.py:splits"):
        assert code.resolve_code(name, folder) == "mine/stripes.py:splits"
    assert code.find_shipped("stripes.py:splits") == "mine/stripes.py:splits"
    assert code.resolve_code("stripes.py:pair", folder) == f"{folder}/stripes.py:pair"
    for name in ("~no-such-user/stripes.py:pair", f"{'a' * 300}.py:pair"):  # no file has such a name
        assert code.resolve_code(name, folder) == check_names(name) == name
    origin = user_modules.origin_of_code("stripes.py:splits")
    assert user_modules.load_function(origin, user_modules.DATA).__name__ == "splits"
