"""Dropping and narrowing: each step's law, in float64 on random parameters, over the families to which it applies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from zoo import tiny
from zoo.running import difference, outputs, randomise

import leanify
from leanify.carrying.blocks import replace_blocks, stage_blocks
from leanify.carrying.calibration import collect_outputs, model_divergence, moments, run
from leanify.carrying.choose import output_projection
from leanify.carrying.narrow import narrow_model, projections
from leanify.carrying.residual import Residual, residuals
from leanify.carrying.teacher import CalibratedTeacher, Cut
from leanify.core.errors import ShapeError, UnsupportedModel
from leanify.lens.located import LocatedModel
from leanify.lens.resize import linear_features
from leanify.reshaping.sites import locate
from leanify.upstream.inputs import example_inputs

Call = Callable[[nn.Module], Any]
TOLERANCE = 1e-10
PRE_NORM = ["timm/vit_base_patch16_224", "timm/vit_small_patch14_dinov2", "hf/gpt2", "hf/llama", "hf/gpt_neox"]
ALL = [*PRE_NORM, "hf/bert", "hf/t5", "timm/swin_tiny_patch4_window7_224", "timm/xcit_nano_12_p16_224"]


def built(name: str) -> tuple[nn.Module, Any]:
    library, _, rest = name.partition("/")
    model, call = tiny.build(library, rest)
    return randomise(model), call


def data(model: nn.Module, count: int = 3) -> list[dict[str, Tensor]]:
    torch.manual_seed(5)
    made = [example_inputs(model, 2, 12) for _ in range(count)]
    return [{k: v.double() if v.is_floating_point() else v for k, v in batch.items()} for batch in made]


class Uncorrected(CalibratedTeacher):
    """Its cuts leave the output projections as they were."""

    def cut(self, *options: Any) -> Cut:
        return replace(super().cut(*options), weights=None)


def narrow(model: nn.Module, shape: Any, teacher: type[CalibratedTeacher] = CalibratedTeacher) -> nn.Module:
    return narrow_model(teacher(model, data(model), data(model)), shape).model


def drop(model: nn.Module, stage: str, place: int) -> nn.Module:
    located = locate(model)
    left = [(i, block) for i, block in enumerate(stage_blocks(located, stage)) if i != place]
    return replace_blocks(located, {stage: left}).model


# -- drop ---------------------------------------------------------------------------------------------------------


def test_position_bound_blocks_stay() -> None:
    model, _ = built("hf/t5")
    with pytest.raises(UnsupportedModel, match="has_relative_attention_bias"):
        drop(model, "encoder.block", 0)


# -- narrow -------------------------------------------------------------------------------------------------------


def halved(model: nn.Module, heads: bool = True) -> Any:
    def half(layer: Any) -> Any:
        fewer = max(layer.group, layer.heads // 2 // layer.group * layer.group) if heads else layer.heads
        return replace(layer.set_heads(fewer), mlp=layer.mlp // 2)

    return leanify.read(model).map_layers(half)


@pytest.mark.parametrize("name", ["timm/vit_base_patch16_224", "hf/gpt2", "hf/llama", "hf/bert", "hf/t5", "hf/mpnet"])
def test_unused_heads_narrow_for_free(name: str) -> None:
    model, call = built(name)
    kept = next(iter(halved(model).layers()))
    for layer in locate(model).layers:
        old = layer.read()
        axis = linear_features(layer.output).input_axis
        dead = torch.arange((old.heads - kept.heads) * old.head_dim)  # the first heads
        layer.output.weight.data.index_fill_(axis, dead, 0.0)
    wanted = leanify.read(model).map_layers(lambda layer: layer.set_heads(kept.heads))
    new = narrow(model, wanted)
    assert leanify.read(new) == wanted
    assert difference(outputs(new, call), outputs(model, call)) < 1e-8


@pytest.mark.parametrize("name", ALL)
def test_narrowed_model_runs_corrected(name: str) -> None:
    model, _ = built(name)
    batches = data(model)
    shape = halved(model)
    errors = []
    for teacher in (CalibratedTeacher, Uncorrected):
        new = narrow(model, shape, teacher)
        assert leanify.read(new) == shape
        errors.append(model_divergence(new, batches, collect_outputs(model, batches), False))
    corrected, plain = errors
    assert corrected <= plain * 1.2
    assert corrected != plain


def test_narrow_pads_with_zero_columns() -> None:
    model, call = built("hf/gpt2")
    shape = leanify.read(model).map_layers(lambda layer: replace(layer.set_heads(layer.heads + 1), mlp=layer.mlp + 7))
    new = narrow(model, shape)
    assert leanify.read(new) == shape
    assert difference(outputs(new, call), outputs(model, call)) < TOLERANCE


def test_padding_does_not_count() -> None:
    model, _ = built("hf/bert")
    batch = data(model, 1)[0]
    padded = {name: torch.cat([x, torch.zeros_like(x[:, :5])], 1) for name, x in batch.items()}
    modules = projections(locate(model))
    alone, behind = (moments(model, modules, [b]) for b in (batch, padded))
    for name, found in alone.items():
        assert torch.allclose(found.second, behind[name].second, rtol=1e-5)


@pytest.mark.parametrize("name", ["hf/t5", "hf/mpnet"])
def test_shared_tables_keep_same_heads(name: str) -> None:
    model, _ = built(name)
    shape = leanify.read(model).map_layers(lambda layer: layer.set_heads(layer.heads // 2))
    kept: list[set[int]] = []
    new = locate(narrow(model, shape))
    for before, after in zip(locate(model).layers, new.layers, strict=True):
        part = next(iter(before.attention.reading.rows))
        rows, left = (layer.attention.module.get_submodule(part).weight for layer in (before, after))
        size = before.read().head_dim
        heads = {i for i in range(before.read().heads) if any(torch.equal(rows[i * size], row) for row in left)}
        assert len(heads) == after.read().heads
        if before.attention.path.split(".")[0] == "encoder":
            kept.append(heads)
    assert all(heads == kept[0] for heads in kept)


@pytest.mark.parametrize(
    "name", ["hf/gpt2", "hf/bert", "timm/vit_base_patch16_224", "timm/swin_tiny_patch4_window7_224"]
)
@pytest.mark.parametrize("masked", [False, True])
def test_counted_tokens_match_projections(name: str, masked: bool) -> None:
    """Of texts with and without padding, and of pictures; in a pyramid, where there are fewest."""
    model, _ = built(name)
    batches = data(model)
    if masked and "input_ids" in batches[0]:
        batches = [{**batch, "attention_mask": torch.ones_like(batch["input_ids"])} for batch in batches]
        for batch in batches:
            batch["attention_mask"][0, 5:] = 0
    teacher = CalibratedTeacher(model, batches[:2], batches[2:])
    found = moments(model, projections(locate(model)), batches[:2])
    assert teacher.tokens == min(each.tokens for each in found.values())


# -- the laws of both moves; a slice of the zoos is every tenth model, all ten slices are all models -------------------


def dead_block(model: nn.Module, call: Call, located: LocatedModel) -> bool | None:
    """A residual block whose output projections are zero is dropped for nothing."""
    for stage in located.stages:
        if stage.container is None or len(stage.blocks) < 3:
            continue
        found = residuals(located, stage.name, lambda m: outputs(m, call))[1]
        if not isinstance(found, Residual) or found.post_norm:
            continue
        alone = replace(located, stages=[replace(stage, blocks=stage.blocks[1:2])])
        for module in projections(alone).values():
            for parameter in module.parameters():
                parameter.data.zero_()
        return difference(outputs(drop(model, stage.name, 1), call), outputs(model, call)) < TOLERANCE
    return None


def dead_units(model: nn.Module, call: Call, located: LocatedModel) -> bool | None:
    """Hidden units without a way out are narrowed for nothing."""
    shape = halved(model, heads=False)
    if shape == located.architecture:
        return None
    for layer in located.layers:
        module = output_projection(layer.mlp, "m")[1] if layer.mlp is not None else None
        if module is not None and layer.mlp is not None:
            dead = torch.arange(0, layer.mlp.sizes["m"] // 2 * 2, 2)
            module.weight.data.index_fill_(linear_features(module).input_axis, dead, 0.0)  # type: ignore[operator, union-attr]
    new = narrow(model, shape)
    return leanify.read(new) == shape and difference(outputs(new, call), outputs(model, call)) < 1e-8


LAWS = {"dead block": dead_block, "dead units": dead_units}


def held(name: str) -> Iterator[tuple[str, bool | None]]:
    """Every law's outcome for a model; None where it does not apply or the move is refused with a reason."""
    for law, holds in LAWS.items():
        model, call = built(name)
        try:
            yield law, holds(model, call, locate(model))
        except (UnsupportedModel, ShapeError):
            yield law, None


@pytest.mark.parametrize("name", ALL)
def test_laws_of_the_moves(name: str) -> None:
    outcomes = dict(held(name))
    assert False not in outcomes.values()
    assert outcomes["dead units"]
    assert outcomes["dead block"] or name not in PRE_NORM


@pytest.mark.long
@pytest.mark.parametrize("part", range(10))
@pytest.mark.parametrize("library", ["timm", "hf"])
def test_moves_obey_laws_over_zoo(library: str, part: int) -> None:
    broken, applied = [], 0
    for name in tiny.names(library)[part::10]:
        try:
            model, call = tiny.build(library, name)
            outputs(randomise(model), call)
            run(model, data(model, 1)[0])
            locate(model)
        except Exception:
            continue  # the zoo's own tests say which models build here
        for law, outcome in held(f"{library}/{name}"):
            applied += outcome is not None
            broken += [f"{name}: {law}"] if outcome is False else []
    print(f"{library}, slice {part}: {applied} laws held against models, broken: {broken}")
    assert applied > 10
    assert not broken
