"""Blocks of many styles are read as their authors would say, or refused with what is in the way."""

from __future__ import annotations

import dataclasses
import json
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import leanify
from leanify.core import machine
from leanify.lens.parameter_parts import describe_kept
from leanify.reshaping.sites import locate
from recipes.research import further_styles, own_styles


@pytest.mark.parametrize("style", own_styles.STYLES, ids=lambda style: style[0].__name__)
def test_style_is_read_right(style: own_styles.Shape) -> None:
    make, heads, head_dim, kv_heads, units, experts = style
    torch.manual_seed(0)
    model, inputs = make()
    shape = leanify.read(model, inputs=inputs)
    layers = list(shape.layers())
    assert [(one.heads, one.head_dim, one.kv_heads, one.mlp, one.experts) for one in layers] == [
        (heads, head_dim, kv_heads, units, experts)
    ] * len(model.blocks)
    model, inputs = model.double().eval(), inputs.double()
    check_growth(model, inputs)
    check_price(model, inputs, 0.95)


@torch.no_grad()
def check_growth(model: Any, inputs: torch.Tensor) -> None:
    """Twice the heads give the same outputs."""
    assert float((leanify.grow(model, factor=2, inputs=inputs)(inputs) - model(inputs)).abs().max()) < 1e-10


def check_price(model: Any, inputs: torch.Tensor, share: float, **options: Any) -> None:
    """A design has the parameters that its price said."""
    plan = leanify.redesign(model, target_params=share, min_depth=1, min_mlp=0.1, **options)
    lean = plan.build()
    assert sum(parameter.numel() for parameter in lean.parameters()) == plan.chosen.params
    lean(inputs).sum().backward()


REFUSED = ("OutputPerHead", "HeadModules", "HardWidth", "FusedParallel")
# attentions and MLPs in lists of their own, and what is told of them
NO_LIST = {"FeedForwardOutside": "no MLP was found", "HeadsOutside": "is not in a list"}
# maps over heads grow with their square, low-rank additions with their map
PRICED = ("TalkingHeads", "LowRankEverywhere", "Palm", "OneFeedForward", "BiasOfModel")


@pytest.mark.parametrize("name", [name for name in further_styles.STYLES if name not in (*REFUSED, *NO_LIST)])
def test_further_style_is_read_right(name: str) -> None:
    """It is read as its author would say, and growth keeps its outputs; or more heads would change them, and it is
    refused.
    """
    make, shape = further_styles.STYLES[name]
    torch.manual_seed(0)
    try:
        model, inputs = make()
    except ImportError as error:
        pytest.skip(str(error))
    model, inputs = model.double().eval(), inputs.double()
    if shape is None:
        with pytest.raises(leanify.UnsupportedModel, match=r"outputs change|mixes all heads"):
            leanify.read(model, inputs=inputs)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # blocks outside lists, MLPs that a norm mixes: they are reported
        stages = str(leanify.read(model, inputs=inputs)).split("; ")
    assert "; ".join(stage.partition(": ")[2] or stage for stage in stages) == shape
    check_growth(model, inputs)
    if name in PRICED:
        check_price(model, inputs, 0.8, multiple=4)


@pytest.mark.parametrize("name", REFUSED)
def test_refusal_names_what_is_in_the_way(name: str) -> None:
    model, inputs = further_styles.STYLES[name][0]()
    with pytest.raises(leanify.UnsupportedModel, match=r"further_styles\.py, line \d+|contradict|outputs change"):
        leanify.read(model, inputs=inputs)


@pytest.mark.filterwarnings("ignore::UserWarning")  # others
@pytest.mark.parametrize(("name", "words"), NO_LIST.items())
def test_parts_without_a_list_are_reported(name: str, words: str) -> None:
    model, inputs = further_styles.STYLES[name][0]()
    with pytest.warns(UserWarning, match=words):
        leanify.read(model, inputs=inputs)


@pytest.mark.parametrize("name", ["dropout_between", "maps_between", "ConvolutionsBetween"])
def test_blocks_leave_with_what_is_between(name: str) -> None:
    model, inputs = further_styles.STYLES[name][0]()
    shape = leanify.read(model, inputs=inputs)
    stage = shape.stages[0]
    for depth in (2, 1, 5):
        lean = leanify.write(model, dataclasses.replace(shape, stages=(stage.reshape(depth=depth),)))
        entries = lean.get_submodule(stage.name.partition("[")[0])
        assert len(entries) == 2 * depth
        assert torch.isfinite(lean(inputs)).all()
        assert leanify.read(lean).stages[0].depth == depth


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["OneBlockRepeated", "OneBlockListed"])
def test_repeated_block_is_priced_once(name: str) -> None:
    model, inputs = further_styles.STYLES[name][0]()
    plan = leanify.redesign(model, inputs=inputs, target_params=0.9, multiple=4, min_mlp=0.1)
    assert plan.chosen.params == sum(parameter.numel() for parameter in plan.build().parameters())
    (block,) = locate(model, inputs).blocks
    assert plan.baseline.params_body == sum(parameter.numel() for parameter in block.parameters())


def test_parts_that_stay_are_named() -> None:
    """Adapters are kept and reported; unread maps are reported above a twentieth of the block."""
    model, inputs = own_styles.houlsby_adapters()
    (adapters,) = describe_kept(locate(model, inputs))[:1]
    assert "kept: attn.adapter (6.2%), mlp.adapter (6.2%), narrower" in adapters
    model, inputs = own_styles.conformer()
    plan = leanify.redesign(model, inputs=inputs, target_params=0.95, min_depth=1, min_mlp=0.1)
    assert any("kept: conv (" in warning for warning in plan.warnings)
    before, after = model.blocks[0].conv, plan.build().blocks[0].conv
    assert before.up.weight.shape == after.up.weight.shape
    model, inputs = further_styles.STYLES["Adaptive"][0]()
    plan = leanify.redesign(model, inputs=inputs, target_params=0.95, min_depth=1, min_mlp=0.1)
    (unread,) = [warning for warning in plan.warnings if "cannot read" in warning]
    assert "% of a block" in unread
    assert "ada.1 (" in unread
    assert not describe_kept(locate(*own_styles.macaron()))
    for make, *_ in own_styles.STYLES:
        assert not any("cannot read" in words for words in describe_kept(locate(*make()))), make


@pytest.mark.parametrize("name", ["window_table", "shuffled_tokens"])
def test_index_buffers_survive_saving(name: str, tmp_path: Path) -> None:
    """A copy without values is not run: its indices would be whatever the memory held."""
    plan = leanify.redesign(f"{own_styles.__file__}:{name}", target_params=0.9, min_depth=1, min_mlp=0.1)
    plan.save(tmp_path / "lean")
    _, inputs = getattr(own_styles, name)()
    lean = leanify.load(tmp_path / "lean")
    assert torch.isfinite(lean(inputs)).all()


def test_pooled_maximum_is_refused() -> None:
    """New heads as small as an initialiser draws them would change nothing; as large as the old ones, they do."""
    model, inputs = own_styles.pooled_maximum()
    with pytest.raises(leanify.UnsupportedModel, match=r"none holds; the likeliest failed: .*outputs change"):
        leanify.read(model, inputs=inputs)


def test_grown_module_runs_before_it_returns() -> None:
    model, inputs = own_styles.regional_bias()
    shape = leanify.read(model, inputs=inputs)
    for change in (lambda: leanify.grow(model, heads=8), lambda: leanify.write(model, shape.grown(heads=8))):
        with pytest.raises(leanify.UnsupportedModel, match="runs as it is, but not in the requested shape"):
            change()


@pytest.mark.parametrize("name", ["no_attention", "no_tensor", "pooled_maximum"])
def test_profile_counts_what_runs(name: str) -> None:
    """A module that cannot be read, or has nothing to read, has parameters and MACs all the same."""
    model, inputs = getattr(own_styles, name)()
    facts = leanify.profile(model, inputs=inputs, measure=False)
    assert facts.params == sum(parameter.numel() for parameter in model.parameters())
    assert facts.macs >= inputs.shape[1] * 10 * 24
    assert leanify.profile(f"{own_styles.__file__}:{name}", measure=False).macs == facts.macs


def test_module_that_draws_is_read() -> None:
    model, inputs = own_styles.drawn_at_random()
    assert str(leanify.read(model, inputs=inputs)) == f"blocks: {further_styles.PLAIN}"


@pytest.mark.parametrize(
    ("name", "words"), [("no_attention", "no attention layer"), ("absent_device", r"does not give a module: .*CUDA")]
)
def test_bad_module_is_refused_in_a_sentence(name: str, words: str) -> None:
    with pytest.raises(leanify.LeanifyError, match=words):
        leanify.redesign(f"{own_styles.__file__}:{name}", target_params=0.8)


def test_configuration_with_own_code_is_refused(tmp_path: Path) -> None:
    keys = {"model_type": "somebodys", "auto_map": {"AutoModel": "modeling_somebodys.Model"}, "hidden_size": 32}
    (tmp_path / "config.json").write_text(json.dumps(keys))
    with pytest.raises(leanify.LeanifyError, match=r"'somebodys' needs code of its own") as caught:
        leanify.redesign(tmp_path, target_params=0.8)
    assert len(str(caught.value)) < 250


def test_control_stays_within_the_budget() -> None:
    """Where a step of eight units is a large share, the nearest control would be larger than the budget."""
    for make in (own_styles.routed_experts, further_styles.STYLES["SquaredRelu"][0]):
        model, inputs = make()
        plan = leanify.redesign(model, inputs=inputs, target_params=0.7, min_depth=1, min_mlp=0.1, multiple=4)
        assert plan.control.params <= 0.7 * sum(parameter.numel() for parameter in model.parameters())


def test_nvml_is_asked_by_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVML ignores CUDA_VISIBLE_DEVICES: its number 0 is another card than torch's."""
    stub: Any = types.ModuleType("pynvml")
    stub.NVMLError = type("NVMLError", (Exception,), {})
    stub.nvmlInit = lambda: None
    stub.nvmlDeviceGetHandleByIndex = lambda index: index
    stub.nvmlDeviceGetHandleByUUID = lambda uuid: {"GPU-b": 1, "MIG-c": 2}[uuid]
    stub.nvmlDeviceGetMemoryInfo = lambda handle: types.SimpleNamespace(used=(11, 22, 33)[handle])
    monkeypatch.setitem(sys.modules, "pynvml", stub)
    for visible, used in (("1", 22), ("GPU-b", 22), ("MIG-c", 33), ("1,0", 22), ("", 11)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert machine.nvml_used(torch.device("cuda", 0)) == used
