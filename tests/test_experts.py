"""Mixtures of experts: the routed experts are the MLP, `mlp` being the hidden units of one of them."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import nn
from zoo import laws, running, tiny

import leanify
from leanify.carrying.teacher import CalibratedTeacher
from leanify.carrying.transfer import transfer_weights
from leanify.core.architecture import Architecture
from leanify.profiling.counting import count, idle_parameters, macs
from leanify.profiling.forward import observe_on_cpu, observe_on_meta
from leanify.profiling.price_list import PriceList
from leanify.reshaping.sites import locate
from leanify.search.options import Options
from leanify.search.redesign import model_costs
from leanify.upstream.build import build_model
from leanify.upstream.inputs import example_inputs
from leanify.upstream.origin import get_origin

MIXTURES = ("mixtral", "gpt_oss", "switch_transformers")  # gate and up beside, alternating, apart
pytestmark = pytest.mark.filterwarnings("ignore")


def with_units(shape: Architecture, units: int) -> Architecture:
    return shape.map_layers(lambda layer: replace(layer, mlp=units) if layer.mlp else layer)


@pytest.mark.parametrize("name", MIXTURES)
def test_expert_widths_survive_the_disk(name: str) -> None:
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


# -- their number -----------------------------------------------------------------------------------------------------

SHAPE: dict[str, object] = {"hidden_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 80}
DEEP: dict[str, object] = {
    "kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "head_dim": 4,
}  # fmt: skip
SOURCES: dict[str, dict[str, object]] = {
    "mixtral": {**SHAPE, "num_key_value_heads": 2, "head_dim": 12, "intermediate_size": 64, "num_local_experts": 8},
    "qwen3_moe": {
        **{**SHAPE, "num_key_value_heads": 2, "moe_intermediate_size": 64},
        **{"num_experts": 8, "num_experts_per_tok": 2},
    },
    "deepseek_v3": {  # a dense layer first, a shared expert beside the routed ones, which stand in groups
        **{**SHAPE, **DEEP, "num_key_value_heads": 4, "v_head_dim": 8, "intermediate_size": 128},
        **{"moe_intermediate_size": 64, "n_routed_experts": 8, "n_group": 2, "topk_group": 1},
        **{"first_k_dense_replace": 1, "num_experts_per_tok": 2},
    },
}
NUMBERS = [(4, 1), (4, 2), (12, 3), (8, 1)]


@cache
def small(name: str) -> nn.Module:
    torch.manual_seed(0)
    return running.randomise(leanify.load(name, overrides=SOURCES[name], cls="AutoModelForCausalLM"))


def logits(model: nn.Module) -> torch.Tensor:
    ids = torch.randint(80, (2, 12), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found: torch.Tensor = model.set_experts_implementation("eager") or model(ids).logits  # type: ignore[operator]
    return found


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize(("experts", "active"), NUMBERS)
def test_expert_count_matches_upstream(name: str, experts: int, active: int, tmp_path: Path) -> None:
    model = small(name).float()
    shape = leanify.read(model)
    wanted = shape.map_layers(lambda x: replace(x, experts=experts, active=active) if x.experts else x)
    lean = leanify.write(model, wanted)
    assert leanify.read(lean) == wanted
    given = logits(lean)
    assert given.isfinite().all()
    old, new = model.state_dict(), lean.state_dict()
    kept = min(8, experts)
    for key in (key for key in old if ".experts." in key or ".gate." in key):  # routed experts, and their router
        assert torch.equal(new[key][:kept], old[key][:kept]), key
        assert len(new[key]) == experts
    leanify.save(lean, tmp_path / "lean")
    assert json.loads((tmp_path / "lean" / "leanify.json").read_text())["upstream"]  # upstream's own keys say it
    found, notes = type(model).from_pretrained(tmp_path / "lean", output_loading_info=True)  # type: ignore[attr-defined]
    assert not any(notes[what] for what in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    for one in (found, leanify.load(tmp_path / "lean")):
        assert torch.equal(logits(one), given)


@pytest.mark.parametrize("name", SOURCES)
def test_expert_count_is_priced_exactly(name: str) -> None:
    costs = model_costs(name, Options(overrides=SOURCES[name], tokens=12))
    listed = PriceList(costs)
    (stage,) = listed.architecture.stages
    (old,) = listed.baseline
    for experts, active in NUMBERS:
        for design in (
            old._replace(experts=experts, active=active),
            old._replace(depth=3, heads=8, mlp=old.mlp // 2, experts=experts, active=active),
        ):
            said = listed.total([design])
            model = leanify.write(costs.live.model, replace(listed.architecture, stages=(design.applied_to(stage),)))
            assert said == count(model, 12, listed.facts.context)
            assert (said.params, said.active) == parameters(model, experts, active)


def parameters(model: nn.Module, experts: int, active: int) -> tuple[int, int]:
    """All parameters of a mixture, and those that a token meets."""
    every = sum(parameter.numel() for parameter in model.parameters())
    routed = sum(parameter.numel() for path, parameter in model.named_parameters() if ".experts." in path)
    return every, every - routed * (experts - active) // experts


@pytest.mark.parametrize("name", SOURCES)
def test_redesign_changes_experts(name: str) -> None:
    plan = leanify.redesign(
        name, overrides=SOURCES[name], tokens=12, target_params=0.8, mlp={"experts": 6, "active": 1}, min_depth=1
    )
    assert plan.baseline.experts == 8
    for design in (*plan.candidates, plan.control):
        assert (design.experts, design.active_experts) == (6, 1)
        assert design.params <= 0.8 * plan.baseline.params or design is plan.control
        built = plan.build(design=design)
        assert leanify.read(built) == design.architecture
        assert (design.params, design.params_active) == parameters(built, 6, 1)
    pinned = leanify.redesign(name, overrides=SOURCES[name], tokens=12, mlp={"experts": 4})
    assert (pinned.chosen.experts, pinned.chosen.active_experts) == (4, pinned.baseline.active_experts)
    assert (pinned.chosen.depth, pinned.chosen.heads) == (pinned.baseline.depth, pinned.baseline.heads)


REFUSED: dict[str, tuple[str, dict[str, int], str]] = {
    "a dense model": ("gpt2", {"experts": 4}, "has no routed experts"),
    "a router that is not known": ("switch_transformers", {"experts": 4}, "nothing says to how many of its 8"),
    "more active than there are": ("mixtral", {"experts": 2, "active": 3}, "to 3 of 2 experts"),
    "groups": ("deepseek_v3", {"experts": 7}, "must be a multiple of 2"),
    "more active than in a group": ("deepseek_v3", {"active": 5}, "at most 4 of 8 can be active"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_impossible_expert_counts_are_refused(case: str) -> None:
    name, asked, words = REFUSED[case]
    overrides = SOURCES.get(name, {"num_layers": 2} if name == "switch_transformers" else {"n_layer": 2})
    with pytest.raises(leanify.ShapeError, match=words):
        leanify.redesign(name, overrides=overrides, tokens=12, mlp=asked)


@pytest.mark.parametrize("name", ["dbrx", "switch_transformers"])
def test_looped_experts_need_no_memory(name: str) -> None:
    """They ask which of them have rows; on meta it is the first, which has them all."""
    model = build_model(get_origin(tiny.build("hf", name)[0]), "meta")  # type: ignore[arg-type]
    on_meta = observe_on_meta(model, 12, macs)
    assert on_meta == observe_on_cpu(model, 12, macs)


def test_dbrx_has_published_parameters() -> None:
    """132 B in all, 36 B of them active (Databricks, 2024); four of sixteen experts."""
    model = leanify.load("dbrx", device="meta", cls="AutoModelForCausalLM")
    total = sum(parameter.numel() for parameter in model.parameters())
    idle = idle_parameters(locate(model))
    assert (round(total / 1e9), round((total - idle) / 1e9)) == (132, 36)
    layer = next(iter(leanify.read(model).layers()))
    assert (layer.experts, layer.active, layer.mlp) == (16, 4, 10752)


def test_most_used_experts_stay() -> None:
    """A router that sends everything to the second and the last of four experts loses nothing with the others."""
    model, call = tiny.build("hf", "gpt_oss")
    model = running.randomise(model)
    located = locate(model)
    for site in located.sites:
        if site.reading.is_table and "x" in site.sizes:
            site.module.bias.data.copy_(torch.tensor([0.0, 100.0, 0.0, 100.0]))  # type: ignore[operator, union-attr]
    torch.manual_seed(0)
    batches = [example_inputs(model, 2, 12) for _ in range(3)]
    shape = leanify.read(model).map_layers(lambda layer: replace(layer, experts=2) if layer.experts else layer)
    carried = transfer_weights(CalibratedTeacher(model, batches[:2], batches[2:]), shape).model
    assert leanify.read(carried) == shape
    expected = running.outputs(model, call)
    assert running.difference(running.outputs(carried, call), expected) < 1e-10
    assert running.difference(running.outputs(leanify.write(model, shape), call), expected) > 1e-3


def test_mixture_drops_blocks_by_data() -> None:
    model, _ = tiny.build("hf", "mixtral")
    model = running.randomise(model)
    torch.manual_seed(0)
    batches = [example_inputs(model, 2, 12) for _ in range(3)]
    shape = leanify.read(model)
    [stage] = shape.stages
    shorter = replace(shape, stages=(stage.reshape(stage.depth - 1, stage.primary.heads, mlp=stage.primary.mlp),))
    found = transfer_weights(CalibratedTeacher(model, batches[:2], batches[2:]), shorter)
    assert leanify.read(found.model) == shorter
    assert found.steps[-1].move == "drop"
