"""A fresh model of a shape is one model, whoever asks for it: a plan, a recipe as a SOURCE, a training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from cases import GPT2, IMAGE
from torch import nn

import leanify
from leanify.core import recipe
from leanify.sources import find, weights
from leanify.sources.tensors import load_into
from leanify.training.preparation import build_model

TEXT = {**GPT2, "n_positions": 32}
SHAPE = {"depth": 3, "heads": 6, "mlp": 96}


def of_recipe(folder: Path, source: str, overrides: dict[str, int], cls: str = "") -> Path:
    model = {"source": source, **SHAPE, "override": overrides, **({"class": cls} if cls else {})}
    path = folder / "shape.toml"
    path.write_text(recipe.from_dict({"model": model}).to_toml())
    return path


def same(left: nn.Module, right: nn.Module) -> bool:
    a, b = left.state_dict(), right.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize(
    ("source", "overrides", "cls"),
    [
        ("vit_tiny_patch16_224", IMAGE, ""),  # timm expresses this shape
        ("xcit_nano_12_p16_224", IMAGE, ""),
        ("gpt2", TEXT, "AutoModelForCausalLM"),  # heads and width are one in upstream's words; head and words are tied
    ],
)
def test_seed_decides_the_model(tmp_path: Path, source: str, overrides: dict[str, int], cls: str) -> None:
    path = of_recipe(tmp_path, source, overrides, cls)
    plan = leanify.redesign(source, overrides=overrides | ({"class": cls} if cls else {}), **SHAPE)
    planned = plan.build(seed=5)
    found = find.find(source, overrides=overrides, cls=cls or None)
    torch.manual_seed(5)
    direct = weights.build_fresh(replace(found, architecture=plan.chosen.architecture))
    torch.manual_seed(5)
    loaded = leanify.load(path)
    torch.manual_seed(5)
    trained = build_model(recipe.load(path))
    assert leanify.read(planned) == plan.chosen.architecture
    assert all(same(planned, other) for other in (direct, loaded, trained))


def test_tied_weights_stay_tied_on_load(tmp_path: Path) -> None:
    plan = leanify.redesign("gpt2", overrides={**TEXT, "class": "AutoModelForCausalLM"}, **SHAPE)
    model = plan.build()
    leanify.save(model, tmp_path / "lean")
    found = find.find("gpt2", overrides=TEXT, cls="AutoModelForCausalLM")
    shell = weights.shell(replace(found, architecture=leanify.read(model)))
    load_into(shell, dict(model.state_dict()), "the plan's weights")
    grown = leanify.write(model, leanify.read(model).grown(factor=2))
    for one in (model, shell, leanify.load(tmp_path / "lean"), grown):
        assert one.lm_head.weight is one.transformer.wte.weight
    assert same(model, leanify.load(tmp_path / "lean"))
