"""Budgets to plans: the published counts, the limits, the ranking, the control."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import CASES, IMAGE, price_list

import leanify
from leanify.lens import families
from leanify.profiling import counting
from leanify.profiling.cost import StageShape
from leanify.profiling.counting import count
from leanify.profiling.price_list import PriceList
from leanify.profiling.training_memory import predict_training_bytes
from leanify.reshaping import surgery
from leanify.reshaping.sites import locate
from leanify.search import options, search
from leanify.search.grid import make_grids
from leanify.search.options import Options
from leanify.search.ranking import grid_scores, preference
from leanify.search.request import Request

SMALL = CASES["vit"]


@pytest.fixture(scope="module")
def vit_base() -> PriceList:
    return price_list(leanify.load("vit_base", device="meta"))


def test_paper_vit_control() -> None:
    plan = leanify.redesign("vit_base", depth=7, heads=16, mlp=1536)
    assert (plan.control.heads, plan.control.depth, plan.control.mlp) == (12, 7, 2048)
    assert plan.control.params == 40_111_080


def test_half_of_vit_base(vit_base: PriceList) -> None:
    baseline = search.baseline_design(vit_base).params
    assert baseline == 86_567_656
    found = search.search(vit_base, Request(limits={"params": baseline // 2}))
    assert found.searched == 7 * 7 * 25  # depths from log3 of 768, even heads up to twice 12, MLPs from two widths
    assert found.lean.shape == (StageShape(7, 18, 64, 1536),)  # type: ignore[union-attr]
    assert found.lean == found.front[0]
    assert all(candidate.cost.params <= baseline // 2 for candidate in found.front)
    assert search.search(vit_base, Request(limits={"params": baseline // 2})) == found


@pytest.mark.parametrize("share", [0.4, 0.5, 0.75, 1.0])
@pytest.mark.parametrize("mode", ["grow", "split", "auto"])
def test_plans_are_exact_and_within_budget(vit_base: PriceList, share: float, mode: Any) -> None:
    """Never over budget, and exact as built."""
    limit = int(share * search.baseline_design(vit_base).params)
    found = search.search(vit_base, Request(Options(heads_mode=mode), {"params": limit}))
    for candidate in (found.front[0], found.front[-1]):
        built = count(surgery.write(vit_base.costs.live.model, candidate.architecture))
        assert candidate.cost == built
        assert built.params <= limit


def test_alternatives_are_best_of_each_depth(vit_base: PriceList) -> None:
    """Lean first, then the best design of every other depth that spends the budget."""
    limit = 60_000_000
    request = Request(limits={"params": limit})
    found = search.search(vit_base, request)
    depths = [design.depth for design in found.front]
    assert len(set(depths)) == len(depths) > 3
    (grid,) = make_grids(vit_base, request)
    scores = grid_scores(grid, preference(vit_base, grid.tower))
    spent = (grid.params <= limit) & (grid.params >= 0.97 * limit) & (grid.macs <= 1.1 * found.plain.macs)  # type: ignore[union-attr]
    for design in found.front[1:]:
        assert design.score == pytest.approx(scores[spent & (grid.depth == design.depth)].min())
    assert [design.score for design in found.front[1:]] == sorted(design.score for design in found.front[1:])


def test_body_budget_counts_blocks_alone() -> None:
    plan = leanify.redesign("gpt2", target_params=0.5, count="body")
    assert plan.baseline.params_body == 12 * 7_087_872
    assert plan.chosen.params_body <= plan.baseline.params_body / 2 < plan.chosen.params


def test_limits_bind_macs_and_memory() -> None:
    plan = leanify.redesign("vit_base", max_macs="8G")
    assert plan.chosen.macs <= 8e9
    small = {"overrides": {**IMAGE, "depth": 9}}
    baseline = predict_training_bytes(SMALL.load("meta", depth=9), 1, None, is_fused=False)
    plan = leanify.redesign("vit_base", max_memory=0.6, **small)
    lean = surgery.write(SMALL.load("meta", depth=9), plan.chosen.architecture)
    assert predict_training_bytes(lean, 1, None, torch.cuda.is_available()) <= 0.6 * baseline


@pytest.mark.parametrize(
    ("pins", "word"),
    [
        ({"depth": 3}, "published depth floor"),
        ({"depth": 2}, "so shallow"),
        ({"heads": 24, "heads_mode": "split"}, "evidence of harm"),
        ({"heads": 48, "heads_mode": "split"}, "strong evidence of harm"),
        ({"depth": 7, "mlp": 1024, "heads": 16}, "no published lean model"),
        ({"target_params": 0.35, "min_mlp": 1}, "no published lean model"),
    ],
)
def test_crossed_floors_are_reported(pins: dict[str, Any], word: str) -> None:
    assert any(word in warning for warning in leanify.redesign("vit_base", **pins).warnings)


@pytest.mark.parametrize(
    ("request_", "word"),
    [
        ({"heads": 3}, "where κ peaks"),
        ({"depth": 8}, "no control: lean has the baseline's heads"),
        ({"heads": 4, "overrides": IMAGE | {"img_size": 224}}, "make κ worse"),
        ({"target_params": 0.5, "overrides": {"img_size": 512}}, "more MACs than control"),
    ],
)
def test_remarks_are_no_warnings(request_: dict[str, Any], word: str) -> None:
    plan = leanify.redesign("vit_base", **request_)
    assert any(word in remark for remark in plan.remarks)
    assert not plan.warnings


@pytest.mark.parametrize(
    ("budget", "limit"),
    [
        (0.5, 50), ("0.5", 50), ("50%", 50), (1, 100), ("43M", 43e6), (43_000_000, 43e6), ("43_000_000", 43e6),
        ("1.5b", 1.5e9),
    ],
)  # fmt: skip
def test_budget_forms_parse(budget: Any, limit: float) -> None:
    assert options.parse_budget("--x", budget, 100, options.COUNTS) == limit


@pytest.mark.parametrize("budget", [0, -1, "0", 1.5, 50, "50", "abc", "", "M", "nan", "inf", "150%", "0.5x"])
def test_invalid_budgets_are_refused(budget: Any) -> None:
    with pytest.raises(leanify.BudgetError, match=r"--x .*share"):
        options.parse_budget("--x", budget, 100, options.COUNTS)


def test_default_budget_is_half() -> None:
    plan = leanify.redesign("vit_tiny")
    assert plan.chosen == leanify.redesign("vit_tiny", target_params=0.5).chosen
    assert plan.options.target_params == 0.5


@pytest.mark.parametrize(
    ("source", "params", "min_depth"),
    [
        ("hf/mixtral", 46_571_720_704, None),
        ("hf/gemma4_text", 5_077_177_856, None),
        ("hf/qwen3_next", None, None),
        ("hf/whisper", None, 2),  # a tiny one: its four blocks are below the published floor already
    ],
)
def test_meta_failures_are_still_planned(source: str, params: int | None, min_depth: int | None) -> None:
    """Experts, layers of two head_dims, a hybrid, an encoder with its decoder: each at its full size."""
    model = leanify.load(source, device="meta")
    plan = leanify.redesign(source, target_params=0.8, min_depth=min_depth)
    assert plan.baseline.params == counting.parameters(model)
    assert params in (None, plan.baseline.params)
    assert plan.chosen.params <= 0.8 * plan.baseline.params
    lean = surgery.write(model, plan.chosen.architecture)
    assert (counting.parameters(lean), counting.count(lean).macs) == (plan.chosen.params, plan.chosen.macs)


@pytest.mark.parametrize("source", ["hf/openai-gpt", "hf/clip_vision_model", "qwen3_vl_text"])
def test_model_types_are_sources(source: str) -> None:
    """Those that are no folder of transformers' too."""
    assert str(leanify.read(leanify.load(source, device="meta")).source) == f"hf/{source.removeprefix('hf/')}"


def test_tokens_count_without_batch_first() -> None:
    """WavLM: ten seconds of sound, cut by seven convolutions."""
    length = 159_760
    for kernel, stride in zip((10, 3, 3, 3, 3, 2, 2), (5, 2, 2, 2, 2, 2, 2), strict=True):
        length = (length - kernel) // stride + 1
    assert counting.token_counts(locate(leanify.load("hf/wavlm", device="meta"))) == [length] == [499]


def test_layers_shrink_proportionally() -> None:
    """DeepSeek-V3: 671 B parameters, three dense layers and 58 of experts a ninth as wide."""
    plan = leanify.redesign("hf/deepseek_v3", target_params=0.7)
    assert plan.baseline.params == pytest.approx(671e9, rel=0.002)
    dense, experts = plan.chosen.architecture.stages[0].blocks[0][0], plan.chosen.architecture.stages[0].blocks[-1][0]
    assert dense.mlp == 9 * experts.mlp


@pytest.mark.parametrize("source", ["timm/edgenext_xx_small", pytest.param("hf/albert", marks=pytest.mark.slow)])
def test_narrower_mlps_pay_for_heads(source: str) -> None:
    """Where no block can be left out."""
    plan = leanify.redesign(source, target_params=0.98, min_mlp=1)
    assert plan.chosen.depth == plan.baseline.depth
    for before, after in zip(plan.baseline.architecture.layers(), plan.chosen.architecture.layers(), strict=True):
        assert (after.heads > before.heads, after.mlp < before.mlp) == (True, True)
    assert any("narrower MLPs alone pay" in remark for remark in plan.remarks)
    assert plan.control.heads == plan.baseline.heads
    assert counting.parameters(plan.build()) == plan.chosen.params


def test_missing_constant_names_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Phi makes rotary tables for one head_dim."""
    name = "transformers.models.phi.modeling_phi.PhiAttention"
    small = {"num_hidden_layers": 3, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128}
    with pytest.raises(leanify.ShapeError, match="head_dim of 16"):
        leanify.redesign("hf/phi", depth=2, heads=8, head_dim=8, overrides=small)
    monkeypatch.setitem(families.all_rows(), name, [replace(families.all_rows()[name][0], constant=())])
    with pytest.raises(leanify.UnsupportedModel, match=r"runs as it stands.*phi\.PhiAttention.*constant = \["):
        leanify.redesign("hf/phi", depth=2, heads=8, head_dim=8, overrides=small)


def test_plan_json_lists_stages() -> None:
    """Stages that differ are lists."""
    plan = leanify.redesign("xcit_nano_12_p16_224", depth=6, heads=8)
    data = json.loads(json.dumps(plan.to_json(), allow_nan=False))
    assert (data["chosen"]["depth"], data["chosen"]["heads"], data["chosen"]["head_dim"]) == ([6, 2], [8, 4], 32)
    assert leanify.Architecture.from_json(data["chosen"]["architecture"]) == plan.chosen.architecture
    keys = {"source", "baseline", "chosen", "control", "candidates", "warnings", "directory", "searched", "seconds"}
    assert keys <= data.keys()


def test_stages_follow_the_deepest() -> None:
    """Where their widths differ."""
    plan = leanify.redesign("volo_d1_224", target_params=0.6)
    assert plan.chosen.depth[2] == max(plan.chosen.depth[:4])  # type: ignore[index]
    assert plan.chosen.depth[4] == plan.baseline.depth[4]  # type: ignore[index]
    assert plan.chosen.params <= 0.6 * plan.baseline.params
    built = count(surgery.write(leanify.load("volo_d1_224", device="meta"), plan.chosen.architecture))
    assert (built.params, built.macs) == (plan.chosen.params, plan.chosen.macs)


def test_pins_cover_every_stage() -> None:
    plan = leanify.redesign("xcit_nano_12_p16_224", depth=[6, 1], heads=[8, 6])
    assert (plan.chosen.depth, plan.chosen.heads) == ([6, 1], [8, 6])


def test_weights_are_carried_or_drawn(tmp_path: Any) -> None:
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


def test_oversized_weights_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights do not fit on the disk."""
    plan = leanify.redesign("vit_tiny", depth=2)
    full = os.statvfs_result((512, 512, 100, 1, 1, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: full)
    with pytest.raises(leanify.DirectoryError, match="the weights take"):
        plan.save(tmp_path / "lean")
    assert list(tmp_path.iterdir()) == []


def test_nearest_design_is_taken() -> None:
    """Steps of 64 units in five wide layers are 5 % of this budget: a design within 3 % of it may not exist."""
    sizes = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
    asked: dict[str, Any] = {"count": "body", "overrides": {**sizes, "vocab_size": 100}, "depth": 5, "heads": 12}
    plan = leanify.redesign("bert", target_params=0.6, **asked)
    budget = 0.6 * plan.baseline.params_body
    assert plan.chosen.params_body <= budget
    assert plan.chosen.params_body < 0.97 * budget
    wider = leanify.redesign("bert", **asked, mlp=plan.chosen.mlp + 64).chosen
    assert wider.params_body > budget
    assert any("unspent: no design is nearer" in remark for remark in plan.remarks)
