"""Budgets to plans: the published counts, the limits, the ranking, the control."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from cases import CASES, IMAGE

import leanify
from leanify.design.measure import profiling
from leanify.design.options import Options
from leanify.design.prices import counting
from leanify.design.prices.counting import count
from leanify.design.prices.live import prices_of
from leanify.design.prices.price_list import PriceList
from leanify.design.prices.shapes import StageShape
from leanify.design.search import amounts, search
from leanify.design.search.design import Design
from leanify.design.search.request import Request
from leanify.lens import families, surgery
from leanify.lens.sites import locate

SMALL = CASES["vit"]


@pytest.fixture(scope="module")
def vit_base() -> PriceList:
    return prices_of(leanify.load("vit_base", device="meta"))


@pytest.mark.parametrize(
    ("source", "pins", "params"),
    [
        ("vit_base", {"depth": 7, "heads": 16, "mlp": 1536}, 40_112_872),
        ("vit_large", {"depth": 8, "heads": 30, "mlp": 2048}, 98_597_864),
        ("vit_base", {"depth": 8, "heads": 14}, 61_364_968),
        ("vit_base", {"depth": 8, "heads": 18}, 67_662_568),
        ("xcit_medium_24", {"depth": 12, "heads": 16}, 59_003_000),
        ("xcit_large_24", {"depth": 12, "heads": 24, "heads_mode": "split"}, 103_793_000),
    ],
)
def test_the_papers_lean_rows(source: str, pins: dict[str, Any], params: int) -> None:
    """Tables 1-3 of Leaner Transformers as rebuilt: exact where the count is known exactly."""
    plan = leanify.redesign(source, **pins)
    assert plan.chosen.params == pytest.approx(params, abs=0 if params % 1000 else 5_000)


def test_the_control_of_the_papers_lean_vit() -> None:
    plan = leanify.redesign("vit_base", depth=7, heads=16, mlp=1536)
    assert plan.control is not None
    assert (plan.control.heads, plan.control.depth, plan.control.mlp) == (12, 7, 2048)
    assert plan.control.params == 40_111_080


def test_half_of_vit_base(vit_base: PriceList) -> None:
    baseline = search.baseline_of(vit_base).params
    assert baseline == 86_567_656
    found = search.search(vit_base, Request(limits={"params": baseline // 2}))
    assert found.searched == 10 * 25 * 139  # depths, heads, MLPs of half to twelve widths in steps of 64
    assert found.chosen.shape == (StageShape(5, 30, 64, 1536),)
    assert found.chosen == found.front[0]
    assert all(candidate.cost.params <= baseline // 2 for candidate in found.front)
    assert search.search(vit_base, Request(limits={"params": baseline // 2})) == found


@pytest.mark.parametrize("share", [0.35, 0.5, 0.75, 1.0])
@pytest.mark.parametrize("mode", ["grow", "split", "auto"])
def test_never_over_budget_and_exact_as_built(vit_base: PriceList, share: float, mode: Any) -> None:
    limit = int(share * search.baseline_of(vit_base).params)
    found = search.search(vit_base, Request(Options(heads_mode=mode), {"params": limit}))
    for candidate in (found.front[0], found.front[-1]):
        built = count(surgery.write(vit_base.costs.model, candidate.architecture))
        assert candidate.cost == built
        assert built.params <= limit


def test_the_front_holds_no_beaten_design(vit_base: PriceList) -> None:
    found = search.search(vit_base, Request(limits={"params": 60_000_000}))

    def values(c: Design) -> np.ndarray[Any, Any]:
        return np.array([c.cost.params, c.cost.macs, c.kappa_predicted, -c.shape[0].depth])  # type: ignore[union-attr]

    points = [values(candidate) for candidate in found.front]
    assert len(points) > 3
    for one in points:
        assert not any((other <= one).all() and (other < one).any() for other in points)


@pytest.mark.parametrize("source", ["vit_base", "xcit_small_12_p16_224", "gpt2", "llama"])
def test_the_control_has_leans_parameters_and_the_old_heads(source: str) -> None:
    overrides = {"num_hidden_layers": 16} if source == "llama" else {}
    plan = leanify.redesign(source, target_params=0.7, overrides=overrides)
    assert plan.control is not None
    assert plan.control.params == pytest.approx(plan.chosen.params, rel=0.001)
    assert (plan.control.depth, plan.control.head_dim) == (plan.chosen.depth, plan.baseline.head_dim)
    assert plan.control.heads == plan.baseline.heads


def test_a_body_budget_counts_blocks_alone() -> None:
    plan = leanify.redesign("gpt2", target_params=0.5, count="body")
    assert plan.baseline.params_body == 12 * 7_087_872
    assert plan.chosen.params_body <= plan.baseline.params_body / 2 < plan.chosen.params


def test_limits_on_macs_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = leanify.redesign("vit_base", max_macs="8G")
    assert plan.chosen.macs <= 8e9
    small = {"overrides": {**IMAGE, "depth": 9}}
    baseline = profiling.predicted_training_bytes(SMALL.load("meta", depth=9), 1, None, fused=False)
    plan = leanify.redesign("vit_base", max_memory=0.6, **small)
    lean = surgery.write(SMALL.load("meta", depth=9), plan.chosen.architecture)
    assert profiling.predicted_training_bytes(lean, 1, None, torch.cuda.is_available()) <= 0.6 * baseline
    with pytest.raises(leanify.BudgetError, match=r"below every sensible design.*max_latency="):
        leanify.redesign("vit_base", max_latency="0.001us", **small)


@pytest.mark.parametrize(
    ("pins", "word"),
    [
        ({"depth": 3}, "published depth floor"),
        ({"depth": 2}, "so shallow"),
        ({"heads": 24, "heads_mode": "split"}, "evidence of harm"),
        ({"heads": 48, "heads_mode": "split"}, "strong evidence of harm"),
        ({"heads": 3}, "where κ peaks"),
        ({"depth": 8}, "no control: lean has the baseline's heads"),
    ],
)
def test_crossed_floors_are_said(pins: dict[str, Any], word: str) -> None:
    assert any(word in warning for warning in leanify.redesign("vit_base", **pins).warnings)


def test_more_heads_than_inner_reaches_the_tokens_are_warned_of() -> None:
    plan = leanify.redesign("vit_base", heads=4, overrides=IMAGE | {"img_size": 224})
    assert any("make κ worse" in warning for warning in plan.warnings)


@pytest.mark.parametrize(
    ("budget", "limit"),
    [
        (0.5, 50),
        ("0.5", 50),
        ("50%", 50),
        (1, 100),
        ("43M", 43e6),
        (43_000_000, 43e6),
        ("43_000_000", 43e6),
        ("1.5b", 1.5e9),
    ],
)
def test_budgets_in_every_form(budget: Any, limit: float) -> None:
    assert amounts.parse_budget("--x", budget, 100, amounts.COUNTS) == limit


@pytest.mark.parametrize("budget", [0, -1, "0", 1.5, 50, "50", "abc", "", "M", "nan", "inf", "150%", "0.5x"])
def test_budgets_that_are_none(budget: Any) -> None:
    with pytest.raises(leanify.BudgetError, match=r"--x .*share"):
        amounts.parse_budget("--x", budget, 100, amounts.COUNTS)


def test_a_budget_below_the_floors_names_the_smallest_design() -> None:
    with pytest.raises(leanify.BudgetError, match=r"smallest .* has 10,972,840 .*min_depth=2"):
        leanify.redesign("vit_base", target_params="1M")


def test_without_a_budget_it_is_half_of_the_parameters() -> None:
    plan = leanify.redesign("vit_tiny")
    assert plan.chosen == leanify.redesign("vit_tiny", target_params=0.5).chosen
    assert plan.options.target_params == 0.5


def test_a_seventy_billion_shape_is_planned_in_no_memory() -> None:
    shape = {"num_hidden_layers": 80, "hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64}
    plan = leanify.redesign("llama", target_params=0.7, overrides={**shape, "num_key_value_heads": 8})
    assert plan.baseline.params == 68_714_504_192
    assert plan.chosen.params <= 0.7 * plan.baseline.params
    assert plan.chosen.heads % 8 == 0


@pytest.mark.parametrize(
    ("source", "params"),
    [("hf/mixtral", 46_571_720_704), ("hf/gemma4_text", 5_077_177_856), ("hf/qwen3_next", None), ("hf/whisper", None)],
)
def test_what_meta_alone_cannot_run_is_planned(source: str, params: int | None) -> None:
    """Experts, layers of two head_dims, a hybrid, an encoder with its decoder: each at its full size."""
    model = leanify.load(source, device="meta")
    plan = leanify.redesign(source, target_params=0.8)
    assert plan.baseline.params == counting.parameters(model)
    assert params in (None, plan.baseline.params)
    assert plan.chosen.params <= 0.8 * plan.baseline.params
    lean = surgery.write(model, plan.chosen.architecture)
    assert (counting.parameters(lean), counting.count(lean).macs) == (plan.chosen.params, plan.chosen.macs)


@pytest.mark.parametrize("source", ["hf/openai-gpt", "hf/clip_vision_model", "qwen3_vl_text"])
def test_every_model_type_is_a_source(source: str) -> None:
    """Those that are no folder of transformers' too."""
    assert str(leanify.read(leanify.load(source, device="meta")).source) == f"hf/{source.removeprefix('hf/')}"


def test_tokens_are_counted_where_they_come_before_the_batch() -> None:
    """WavLM: ten seconds of sound, cut by seven convolutions."""
    length = 159_760
    for kernel, stride in zip((10, 3, 3, 3, 3, 2, 2), (5, 2, 2, 2, 2, 2, 2), strict=True):
        length = (length - kernel) // stride + 1
    assert counting.token_counts(locate(leanify.load("hf/wavlm", device="meta"))) == [length] == [499]


def test_layers_that_differ_follow_the_first_in_proportion() -> None:
    """DeepSeek-V3: 671 B parameters, three dense layers and 58 of experts a ninth as wide."""
    plan = leanify.redesign("hf/deepseek_v3", target_params=0.7)
    assert plan.baseline.params == pytest.approx(671e9, rel=0.002)
    dense, experts = plan.chosen.architecture.stages[0].blocks[0][0], plan.chosen.architecture.stages[0].blocks[-1][0]
    assert dense.mlp == 9 * experts.mlp
    with pytest.raises(leanify.ShapeError, match="multiple of 9"):
        leanify.redesign("hf/deepseek_v3", mlp=1000)


def test_what_cannot_be_planned_says_why() -> None:
    with pytest.raises(leanify.ShapeError, match="nothing to trade for heads"):
        leanify.redesign("hf/xlm", target_params=0.9)
    with pytest.raises(leanify.ShapeError, match="attention in two of them"):
        leanify.redesign("hf/qwen3_next", depth=3)


@pytest.mark.parametrize("source", ["timm/edgenext_xx_small", pytest.param("hf/albert", marks=pytest.mark.slow)])
def test_where_no_block_can_be_left_out_narrower_mlps_pay_for_the_heads(source: str) -> None:
    plan = leanify.redesign(source, target_params=0.98)
    assert plan.chosen.depth == plan.baseline.depth
    for before, after in zip(plan.baseline.architecture.layers(), plan.chosen.architecture.layers(), strict=True):
        assert (after.heads > before.heads, after.mlp < before.mlp) == (True, True)
    assert any("narrower MLPs alone pay" in warning for warning in plan.warnings)
    assert plan.control is not None
    assert plan.control.heads == plan.baseline.heads
    assert counting.parameters(plan.build()) == plan.chosen.params


def test_a_row_without_its_constant_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Phi makes rotary tables for one head_dim."""
    name = "transformers.models.phi.modeling_phi.PhiAttention"
    small = {"num_hidden_layers": 3, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128}
    with pytest.raises(leanify.ShapeError, match="head_dim of 16"):
        leanify.redesign("hf/phi", depth=2, heads=8, head_dim=8, overrides=small)
    monkeypatch.setitem(families.known(), name, [replace(families.known()[name][0], constant=())])
    with pytest.raises(leanify.UnsupportedModel, match=r"runs as it stands.*phi\.PhiAttention.*constant = \["):
        leanify.redesign("hf/phi", depth=2, heads=8, head_dim=8, overrides=small)


def test_stages_that_differ_are_lists_and_the_plan_is_json() -> None:
    plan = leanify.redesign("xcit_nano_12_p16_224", depth=6, heads=8)
    data = json.loads(json.dumps(plan.to_json(), allow_nan=False))
    assert (data["chosen"]["depth"], data["chosen"]["heads"], data["chosen"]["head_dim"]) == ([6, 2], [8, 4], 32)
    assert leanify.Architecture.from_json(data["chosen"]["architecture"]) == plan.chosen.architecture
    keys = {"source", "baseline", "chosen", "control", "candidates", "warnings", "directory", "searched", "seconds"}
    assert keys <= data.keys()
    square = leanify.redesign(
        "vit_base", heads=4, overrides={**IMAGE, "embed_dim": 48, "img_size": 112, "num_heads": 3}
    )
    assert square.tokens == 50
    assert leanify.redesign("vit_base", heads=3, overrides=IMAGE).to_json()["chosen"]["kappa_predicted"] > 1


def test_stages_of_different_widths_follow_the_deepest() -> None:
    plan = leanify.redesign("volo_d1_224", target_params=0.6)
    assert plan.chosen.depth[2] == max(plan.chosen.depth[:4])  # type: ignore[index]
    assert plan.chosen.depth[4] == plan.baseline.depth[4]  # type: ignore[index]
    assert plan.chosen.params <= 0.6 * plan.baseline.params
    built = count(surgery.write(leanify.load("volo_d1_224", device="meta"), plan.chosen.architecture))
    assert (built.params, built.macs) == (plan.chosen.params, plan.chosen.macs)


def test_pins_for_every_stage() -> None:
    plan = leanify.redesign("xcit_nano_12_p16_224", depth=[6, 1], heads=[8, 6])
    assert (plan.chosen.depth, plan.chosen.heads) == ([6, 1], [8, 6])
    with pytest.raises(leanify.ShapeError, match="splits into"):
        leanify.redesign("vit_base", heads=13, heads_mode="split")


def test_weights_are_carried_over_or_drawn_anew(tmp_path: Any) -> None:
    model = SMALL.load()
    leanify.save(model, tmp_path / "old")
    plan = leanify.redesign(tmp_path / "old", heads=4)
    kept = plan.build(weights=tmp_path / "old")
    assert torch.equal(kept.blocks[0].mlp.fc1.weight, model.blocks[0].mlp.fc1.weight)
    fresh, again = plan.build(seed=3), plan.build(seed=3)
    assert torch.equal(fresh.blocks[0].mlp.fc1.weight, again.blocks[0].mlp.fc1.weight)
    assert not torch.equal(fresh.blocks[0].mlp.fc1.weight, model.blocks[0].mlp.fc1.weight)
    with pytest.raises(leanify.SourceError, match="has no weights"):
        plan.build(weights="vit_base")


def test_where_no_design_spends_the_budget_the_nearest_is_taken() -> None:
    """Steps of 64 units in five wide layers are 5 % of this budget: a design within 3 % of it may not exist."""
    sizes = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
    asked: dict[str, Any] = {"count": "body", "overrides": {**sizes, "vocab_size": 100}, "depth": 5, "heads": 12}
    plan = leanify.redesign("bert", target_params=0.6, **asked)
    budget = 0.6 * plan.baseline.params_body
    assert plan.chosen.params_body <= budget
    assert plan.chosen.params_body < 0.97 * budget
    wider = leanify.redesign("bert", **asked, mlp=plan.chosen.mlp + 64).chosen
    assert wider.params_body > budget
    assert any("unspent: no sensible design is nearer" in warning for warning in plan.warnings)
