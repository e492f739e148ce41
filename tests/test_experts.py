"""Mixtures of experts: the routed experts are the MLP, `mlp` being the hidden units of one of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import leanify
from leanify.architecture import Architecture
from leanify.design.appraisal import appraise
from leanify.design.counting import count
from leanify.design.prices import StageDesign
from leanify.upstream.build import build_model
from leanify.upstream.origin import origin_of
from leanify.zoo import laws, running, tiny

MIXTURES = {
    "mixtral": "layers.0.mlp.experts",  # gate and up side by side
    "gpt_oss": "layers.0.mlp.experts",  # transposed, with biases; gate and up alternate
    "switch_transformers": "encoder.block.1.layer.1.mlp.experts",  # a module for each expert
}
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> None:
    torch.set_num_threads(1)
    tiny.warm()


def with_units(shape: Architecture, units: int) -> Architecture:
    return shape.map_layers(lambda layer: replace(layer, mlp=units) if layer.mlp else layer)


def weights_of(model: nn.Module, path: str) -> int:
    return sum(parameter.numel() for parameter in model.get_submodule(path).parameters())


@pytest.mark.parametrize("name", MIXTURES)
def test_other_expert_widths_are_built_counted_as_priced_and_survive_the_disk(name: str) -> None:
    model, call = tiny.build("hf", name)
    applied = laws.hold_all(model, call)
    assert applied["wider"]
    assert applied["priced"]
    shape = leanify.read(model)
    experts = {layer.experts for layer in shape.layers() if layer.experts}
    units = next(layer.mlp for layer in shape.layers() if layer.experts)
    assert experts == {4}
    for wanted in (with_units(shape, units // 2), with_units(shape, 3 * units)):
        assert leanify.read(leanify.write(model, wanted)) == wanted
        fresh = running.outputs(leanify.write(model, wanted, "fresh"), call)
        assert all(tensor.isfinite().all() for tensor in fresh)


@pytest.mark.parametrize("name", MIXTURES)
def test_every_expert_changes_alike(name: str) -> None:
    model, _ = tiny.build("hf", name)
    half = leanify.write(model, with_units(leanify.read(model), 20))
    wide = leanify.write(model, with_units(leanify.read(model), 60))
    sizes = [weights_of(one, MIXTURES[name]) for one in (half, model, wide)]
    assert sizes[1] - sizes[0] == sizes[2] - sizes[1] > 0


def test_a_mixture_is_priced_by_its_experts() -> None:
    origin = origin_of(tiny.build("hf", "mixtral")[0])
    assert origin is not None
    meta = build_model(origin, "meta")
    prices = appraise(meta, 12)
    for units in (8, 24, 120):
        said = prices.total([StageDesign(2, 12, 8, units)])
        wanted = replace(
            prices.architecture, stages=tuple(stage.reshape(2, 12, 8, units) for stage in prices.architecture.stages)
        )
        assert said == count(leanify.write(meta, wanted), 12, prices.facts.context)


def test_the_number_of_experts_stays() -> None:
    model = build_model(origin_of(tiny.build("hf", "mixtral")[0]), "meta")  # type: ignore[arg-type]
    shape = leanify.read(model)
    with pytest.raises(leanify.ShapeError, match="has 4 experts, 2 of them active; a redesign keeps both"):
        leanify.write(model, shape.map_layers(lambda layer: replace(layer, experts=8)))


def test_a_redesign_of_a_mixture_has_a_control() -> None:
    plan = leanify.redesign("mixtral", target_params=0.5, tokens=32)
    assert plan.control is not None
    assert plan.baseline.mlp == 14336
    assert all(layer.experts == 8 and layer.active == 2 for layer in plan.chosen.architecture.layers())
