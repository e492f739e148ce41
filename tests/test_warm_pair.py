"""Pairing: two layers run side by side are one layer. Held in float64 against blocks written out by hand."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from test_warm_shrink import TOLERANCE
from test_warm_shrink import built as built_upstream
from torch import Tensor, nn
from zoo import laws, tiny
from zoo.running import difference, outputs, randomise

import leanify
from leanify.carrying.blocks import replace_blocks, stage_blocks
from leanify.carrying.fit import _RidgeSolver, fit_pair, regression
from leanify.carrying.narrow import projections
from leanify.carrying.pair import join_pair
from leanify.carrying.residual import Residual, residuals
from leanify.carrying.teacher import CalibratedTeacher
from leanify.carrying.transfer import transfer_weights
from leanify.core.errors import UnsupportedModel
from leanify.reshaping.sites import locate
from leanify.upstream.inputs import example_inputs


def pair(model: nn.Module, stage: str, index: int, call: Callable[[nn.Module], Any]) -> nn.Module:
    """The model with one block that runs the blocks ``index`` and ``index + 1`` side by side."""
    located = locate(model)
    found, blocks = residuals(located, stage, call), list(enumerate(stage_blocks(located, stage)))
    with torch.no_grad():
        joined = join_pair(located, found[index], found[index + 1])
    return copy.deepcopy(
        replace_blocks(located, {stage: [*blocks[:index], (index, joined), *blocks[index + 2 :]]}).model
    )


class SideBySide(nn.Module):
    """Two blocks of one family, run side by side; ``formula`` is the family's block, written out."""

    def __init__(self, first: nn.Module, second: nn.Module, formula: Callable[..., Tensor]) -> None:
        super().__init__()
        self.blocks, self.formula = (first, second), formula

    def __getattr__(self, name: str) -> Any:
        return super().__getattr__(name) if name in ("blocks", "formula") else getattr(self.blocks[0], name)

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return self.formula(self.blocks, x, *args, **kwargs)


def timm_vit(blocks: Any, x: Tensor, **_: Any) -> Tensor:
    x = x + sum(b.ls1(b.attn(b.norm1(x))) for b in blocks)
    return x + sum(b.ls2(b.mlp(b.norm2(x))) for b in blocks)


def timm_beit(blocks: Any, x: Tensor, **kwargs: Any) -> Tensor:
    x = x + sum(b.gamma_1 * b.attn(b.norm1(x), **kwargs) for b in blocks)
    return x + sum(b.gamma_2 * b.mlp(b.norm2(x)) for b in blocks)


def gpt2(blocks: Any, x: Tensor, past: Any = None, mask: Any = None, *_: Any, **kwargs: Any) -> Tensor:
    x = x + sum(b.attn(b.ln_1(x), past_key_values=past, attention_mask=mask, **kwargs)[0] for b in blocks)
    return x + sum(b.mlp(b.ln_2(x)) for b in blocks)


def llama(blocks: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    x = x + sum(b.self_attn(hidden_states=b.input_layernorm(x), **kwargs)[0] for b in blocks)
    return x + sum(b.mlp(b.post_attention_layernorm(x)) for b in blocks)


def neox(blocks: Any, x: Tensor, **kwargs: Any) -> Tensor:
    return x + sum(
        b.attention(b.input_layernorm(x), **kwargs)[0] + b.mlp(b.post_attention_layernorm(x)) for b in blocks
    )


def own(blocks: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    x = x + sum(b.attention(b.norm1(x), mask) for b in blocks)
    return x + sum(b.mlp(b.norm2(x)) for b in blocks)


FAMILIES = {
    "timm/vit_base_patch16_224": ("blocks", timm_vit),
    "timm/vit_small_patch14_dinov2": ("blocks", timm_vit),  # LayerScale
    "timm/deit3_small_patch16_224": ("blocks", timm_vit),
    "timm/beit_base_patch16_224": ("blocks", timm_beit),  # bare gains, a bias table a layer, q and v biases apart
    "hf/gpt2": ("h", gpt2),
    "hf/llama": ("layers", llama),  # key/value groups, rotary positions, a gated MLP
    "hf/mistral": ("layers", llama),
    "hf/qwen2": ("layers", llama),
    "hf/gemma": ("layers", llama),  # norms that keep their gain less one
    "hf/gpt_neox": ("layers", neox),  # attention and MLP in parallel
    "leanify/gpt2": ("blocks", own),  # norms with a bias before projections without
}


def built(name: str) -> tuple[nn.Module, Any]:
    if name != "leanify/gpt2":
        return built_upstream(name)
    sizes = {"vocab": 31, "width": 24, "depth": 3, "heads": 3, "head_dim": 6, "mlp": 40}
    ids = torch.randint(31, (2, 9), generator=torch.Generator().manual_seed(0))
    return randomise(leanify.load("gpt2.py:Gpt2", overrides=sizes)), lambda m: m(ids)


def run(call: Any) -> Callable[[nn.Module], Any]:
    return lambda model: outputs(model, call)


@pytest.mark.parametrize("name", FAMILIES)
def test_pair_equals_parallel_layers(name: str) -> None:
    model, call = built(name)
    stage, formula = FAMILIES[name]
    depth = leanify.read(model).depth
    paired = pair(model, stage, 1, run(call))

    expected = copy.deepcopy(model)
    blocks: Any = expected.get_submodule(stage)
    blocks[1] = SideBySide(blocks[1], blocks[2], formula)
    del blocks[2]
    assert difference(outputs(paired, call), outputs(expected, call)) < TOLERANCE

    layers = list(leanify.read(paired).layers())
    before = next(iter(leanify.read(model).layers()))
    assert len(layers) == depth - 1
    assert layers[1] == replace(before, heads=2 * before.heads, kv_heads=2 * before.kv_heads, mlp=2 * before.mlp)


@pytest.mark.parametrize("name", ["hf/gpt2", "hf/llama"])
def test_paired_decoder_keeps_cached_outputs(name: str) -> None:
    model, _ = built(name)
    stage, _ = FAMILIES[name]
    ids = torch.randint(5, 60, (2, 11), generator=torch.Generator().manual_seed(3))
    paired: Any = pair(model, stage, 0, run(lambda m: m(ids)))
    whole = outputs(paired, lambda m: m(ids).last_hidden_state)[0]
    begun = paired(ids[:, :6], use_cache=True)
    rest = []
    for at in range(6, 11):
        begun = paired(ids[:, at : at + 1], past_key_values=begun.past_key_values, use_cache=True)
        rest.append(begun.last_hidden_state)
    assert difference([torch.cat(rest, 1)], [whole[:, 6:]]) < 1e-6  # upstream's rotary tables are float32


def test_caching_decoder_is_paired() -> None:
    model: Any = built("hf/llama")[0]
    model.config.use_cache = True
    ids = torch.randint(5, 60, (2, 11), generator=torch.Generator().manual_seed(3))
    assert leanify.read(pair(model, "layers", 0, lambda m: m(ids))).depth == leanify.read(model).depth - 1
    assert model.config.use_cache


def test_pairs_pair_again() -> None:
    model, call = built("hf/llama")
    twice = pair(pair(model, "layers", 0, run(call)), "layers", 0, run(call))
    heads = [next(iter(leanify.read(m).layers())).heads for m in (model, twice)]
    assert heads[1] == 3 * heads[0]


@pytest.mark.parametrize(
    ("name", "stage", "reason"),
    [
        ("hf/bert", "encoder.layer", "post-norm"),
        ("hf/qwen3", "layers", "one weight for all heads"),
        ("timm/swin_tiny_patch4_window7_224", "layers.2.blocks", "windowed"),
        ("timm/vit_base_patch16_rpn_224", "blocks", "post-norm"),
    ],
)
def test_unpairable_layers_give_reason(name: str, stage: str, reason: str) -> None:
    model, call = built(name)
    with pytest.raises(UnsupportedModel, match=reason):
        pair(model, stage, 0, run(call))


def test_pairing_leaves_source_unchanged() -> None:
    model, call = built("timm/vit_base_patch16_224")
    before = outputs(model, call)
    paired = pair(model, "blocks", 0, run(call))
    for parameter in paired.parameters():
        parameter.data.zero_()
    assert difference(outputs(model, call), before) == 0


# -- post-norm ----------------------------------------------------------------------------------------------------


def test_inert_post_norm_layer_pairs_free() -> None:
    """Its norms give back what is normalised already; every fit then stays where it starts."""
    model, call = built("hf/bert")
    blocks: Any = model.get_submodule("encoder.layer")
    for norm in (m for m in (*blocks[0].modules(), *blocks[1].modules()) if isinstance(m, nn.LayerNorm)):
        nn.init.ones_(norm.weight)
        nn.init.zeros_(norm.bias)
    for norm in (m for m in model.modules() if isinstance(m, nn.LayerNorm)):
        norm.eps = 0.0
    for output in (blocks[1].attention.output.dense, blocks[1].output.dense):
        nn.init.zeros_(output.weight)
        nn.init.zeros_(output.bias)
    batches = [{"input_ids": torch.randint(5, 60, (2, 9), generator=torch.Generator().manual_seed(i))} for i in (1, 2)]
    located = locate(model)
    found = residuals(located, "encoder.layer", lambda m: m(**batches[0]))
    first, second = found[1:3]
    assert isinstance(first, Residual)
    assert isinstance(second, Residual)
    block = fit_pair(CalibratedTeacher(model, batches, batches), "encoder.layer", 1, located, first, second)
    blocks[1] = block
    expected = outputs(model, call)  # the second layer is behind its pair still
    blocks[1] = first.block
    assert leanify.read(model).depth == 3
    with_pair = replace_blocks(located, {"encoder.layer": [(0, blocks[0]), (1, block)]}).model
    assert difference(outputs(with_pair, call), outputs(model, call)) < TOLERANCE
    assert difference(expected, outputs(model, call)) > 1e-3


def test_fit_never_worsens() -> None:
    generator = torch.Generator().manual_seed(0)
    for trial in range(40):
        rows = [torch.randn(3 + trial % 9, 6, generator=generator).double() for _ in range(1 + trial % 3)]
        wanted = [x @ torch.randn(6, 4, generator=generator).double() + 0.1 * trial for x in rows]
        start = torch.randn(4, 6 + trial % 2, generator=generator).double()
        solved = regression(rows, wanted, start)
        error = [
            sum(float((torch.cat([x, torch.ones(len(x), trial % 2)], 1) @ w.T - t).square().sum())
                for x, t in zip(rows, wanted, strict=True)) for w in (start, solved)
        ]  # fmt: skip
        assert error[1] <= error[0] * (1 + 1e-12)


@pytest.mark.parametrize(("stage", "fewer"), [(0, 0), (0, 2), (1, 0)])
def test_dead_block_pairs_to_other(stage: int, fewer: int) -> None:
    """Every row of T5's table keeps one of two heads: all of the living block's, so that nothing is lost by the pair.

    With fewer heads, it keeps those that every layer does.
    """
    model, _ = built("hf/t5")
    torch.manual_seed(0)
    batches = [example_inputs(model, 4, 12) for _ in range(12)]
    blocks = leanify.read(model).stages[stage]
    for path, module in projections(locate(model)).items():
        if path.startswith(f"{blocks.name}.2"):
            module.weight.data.zero_()  # type: ignore[operator, union-attr]
    old = leanify.read(model)
    new = blocks.reshape(blocks.depth - 1, blocks.primary.heads - fewer, mlp=blocks.primary.mlp)
    shape = replace(old, stages=tuple(new if i == stage else each for i, each in enumerate(old.stages)))
    teacher = CalibratedTeacher(model, batches[:10], batches[10:])
    paired, dropped = (transfer_weights(teacher, shape, moves=(move,)) for move in ("pair", "drop"))
    assert [step.description for step in paired.steps] == ["narrow", f"pair {blocks.name} 1 + 2"]
    assert dropped.steps[-1].description == f"drop {blocks.name} 2"
    given, expected = (outputs(one.model, lambda m: m(**batches[0])) for one in (paired, dropped))
    assert difference(given, expected) < 1e-8


@pytest.mark.parametrize("tokens", [4, 6, 40])
def test_ridge_agrees_by_inputs_or_tokens(tokens: int) -> None:
    """The textbook's formula, whichever of the two squares is smaller."""
    torch.manual_seed(tokens)
    rows, missed = torch.randn(tokens, 6).double(), torch.randn(tokens, 3).double()
    for ridge in (1e-4, 1.0):
        strength = ridge * rows.square().sum() / 6 * torch.eye(6).double()
        wanted = torch.linalg.solve(rows.T @ rows + strength, rows.T @ missed).T
        given = _RidgeSolver(rows.split(3), missed.split(3)).solve(ridge)
        assert torch.allclose(given, wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.long
@pytest.mark.parametrize("library", ["timm", "hf"])
def test_zoo_stages_pair_or_refuse(library: str) -> None:
    """`pair` holds every pair against its two layers; here that nothing else goes wrong with any model."""
    paired = 0
    for name in tiny.names(library):
        try:
            model, call = tiny.build(library, name)
            model = randomise(model)
            outputs(model, call)
            stages = leanify.read(model).stages
        except Exception:
            continue  # the zoo's own tests say which models build here
        for stage in stages:
            if stage.depth > 1 and not stage.is_fixed:
                try:
                    new = pair(model, stage.name, stage.depth - 2, run(call))
                except UnsupportedModel:
                    continue
                laws.require(bool(outputs(new, call)), "paired", name)
                paired += 1
    assert paired > 60, f"{paired} stages of {library} were paired"


def test_ridge_is_the_one_that_predicts_other_batches() -> None:
    """An exact map is found; where there is nothing to learn, the start is hardly left."""
    torch.manual_seed(0)
    inputs = [torch.randn(40, 8) for _ in range(4)]
    start, true = torch.zeros(3, 8, dtype=torch.float64), torch.randn(3, 8)
    exact = regression(inputs, [rows @ true.T for rows in inputs], start)
    assert (exact - true).abs().max() < 1e-3
    few = [torch.randn(5, 30) for _ in range(4)]
    noise = regression(few, [torch.randn(5, 3) for _ in few], torch.zeros(3, 30, dtype=torch.float64))
    loose = regression([torch.cat(few)], [torch.randn(20, 3)], torch.zeros(3, 30, dtype=torch.float64))
    assert noise.norm() < 2 * loose.norm(), "one batch takes the strongest ridge"
