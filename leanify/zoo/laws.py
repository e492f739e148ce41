"""The laws that every redesigned model must obey, tested in float64 with random parameters and inputs.

written   read(write(m, a)) == a, and write(m, read(m)) computes the same as m, bit for bit
grown     doubling the heads at constant head_dim, with zero new output columns, keeps the outputs to 1e-10
alive     the outputs depend on the new output columns of every layer (non-zero gradient)
wider     doubling the hidden units, with zero new output columns, keeps the outputs to 1e-10
complete  no softmax over tokens runs outside the attentions that were found
shorter   the model runs with one block fewer
split     the model runs with twice the heads of half the size
cached    `grown` and `shorter` also hold with a key/value cache
kept      a saved model loads and computes the same outputs
priced    the parameters and MACs that a search predicts for a design equal the counted ones, on meta and on the CPU

`grown`, `wider`, `shorter`, `split`, `cached` and `priced` do not apply to every model. They return whether
there was anything to test, and `hold` reports that per law, so that no law passes silently.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from leanify.architecture import Architecture, Layer, primary_of
from leanify.design.prices import counting
from leanify.design.prices.live import prices_of
from leanify.design.prices.shapes import StageShape, applied
from leanify.design.search import search
from leanify.errors import LeanifyError, ShapeError, UnsupportedModel
from leanify.lens import resize, sites, surgery
from leanify.lens.families import short
from leanify.lens.located import LocatedModel, names_of
from leanify.sources import find, lean_directory
from leanify.upstream.build import build_model
from leanify.upstream.libraries import in_words
from leanify.upstream.origin import origin_of
from leanify.zoo.running import Call, LawBroken, complete, difference, holding, outputs, randomised, require

TOLERANCE = 1e-10


def hold(model: nn.Module, call: Call, seed: int = 0) -> dict[str, bool]:
    """Test ``model`` against every law except `kept` and `priced`; ``call`` runs it on fixed inputs.

    Returns law → whether it applied. Raises LawBroken.
    """
    model = randomised(model, seed)
    shape = surgery.read(model)
    reference = complete(model, call)
    same = surgery.write(model, shape)
    require(surgery.read(same) == shape, "written", "another shape is read back")
    require(difference(outputs(same, call), reference) == 0, "written", "writing a model's own shape changes it")
    applied = {"written": True, "complete": True}
    with holding("grown"):
        applied["grown"] = applied["alive"] = grown(model, shape, call, reference)
    with holding("wider"):
        applied["wider"] = wider(model, shape, call, reference)
    with holding("shorter"):
        applied["shorter"] = shorter(model, shape, call)
    with holding("cached"):
        applied["cached"] = cached(model, shape, call, applied["grown"])
    with holding("split"):
        applied["split"] = split(model, shape, call)
    return applied


def hold_all(model: nn.Module, call: Call) -> dict[str, bool]:
    """Test ``model`` against every law, including `kept` and `priced`. Returns and raises as `hold`."""
    applied = hold(model, call)
    with holding("kept"):
        kept(model, call)
    with holding("priced"):
        return {**applied, "kept": True, "priced": priced(model)}


def grown(model: nn.Module, shape: Architecture, call: Call, reference: list[Tensor]) -> bool:
    """Law `grown`. Does not apply if growth is refused (a norm over all heads)."""
    try:
        big = surgery.grow(model, factor=2)
    except UnsupportedModel:
        return False
    require(surgery.read(big) == shape.grown(factor=2), "grown", "another shape is read back")
    _unchanged("grown", outputs(big, call), reference)
    tied = [sorted(several for several in names_of(each).values() if len(several) > 1) for each in (big, model)]
    require(tied[0] == tied[1], "grown", "parameters that were one are several")
    alive(big, call)
    return True


def _unchanged(law: str, found: list[Tensor], reference: list[Tensor], tolerance: float = TOLERANCE) -> None:
    error = difference(found, reference)
    require(error < tolerance, law, f"outputs differ by {error:.1e}")


def alive(big: nn.Module, call: Call) -> None:
    """Law `alive`: the outputs depend on every layer's new output columns, so it ran with its new heads."""
    places = list(sites.locate(big).layers)
    weights: list[Tensor] = [place.output.weight for place in places]  # type: ignore[misc]
    axes = [resize.features_of(place.output).input_axis for place in places]
    new = []
    for axis, weight in zip(axes, weights, strict=True):
        is_new = (weight.movedim(axis, 0).flatten(1) == 0).all(1)
        new.append(is_new.nonzero().flatten())
    randomised(big, seed=1)  # with upstream's zero biases, heads on zero inputs (DETR's queries) would stay zero
    big.requires_grad_(False)
    for weight in weights:
        weight.requires_grad_(True)
    results = [tensor for tensor in outputs(big, call, grad=True) if tensor.requires_grad]
    loss = sum(torch.sin(3 * tensor + 1).sum() for tensor in results)
    gradients: Iterable[Tensor | None] = [None] * len(weights)  # some upstream functions are not differentiable
    if isinstance(loss, Tensor):
        gradients = torch.autograd.grad(loss, weights, allow_unused=True)
    for place, weight, axis, columns, gradient in zip(places, weights, axes, new, gradients, strict=True):
        felt = gradient is not None and bool((gradient.index_select(axis, columns) != 0).any())
        changes = felt or _stirs(big, call, weight, axis, columns)
        require(changes, "alive", f"the new heads of {place.attention.path} change nothing")


@torch.no_grad()
def _stirs(model: nn.Module, call: Call, weight: Tensor, axis: int, columns: Tensor) -> bool:
    """Whether noise in some columns changes the outputs; used if no gradient reaches them."""
    before = outputs(model, call)
    weight.index_add_(axis, columns, torch.ones_like(weight.index_select(axis, columns)))
    return difference(outputs(model, call), before) > 0


def wider(model: nn.Module, shape: Architecture, call: Call, reference: list[Tensor]) -> bool:
    """Law `wider`. Does not apply without an MLP, or where a norm over hidden units sees the new ones."""
    wanted = shape.map_layers(lambda layer: replace(layer, mlp=2 * layer.mlp))
    if wanted == shape or any(site.reading.is_mlp and site.mixed_by for site in sites.sites_of(model)):
        return False
    wide = surgery.write(model, wanted)
    require(surgery.read(wide) == wanted, "wider", "another shape is read back")
    _unchanged("wider", outputs(wide, call), reference)
    return True


def shorter(model: nn.Module, shape: Architecture, call: Call) -> bool:
    """Law `shorter`, for the deepest stage that can lose a block. Does not apply without a list of blocks."""
    lists = [stage for stage in shape.stages if not stage.fixed and stage.depth > 1]
    for longest in sorted(lists, key=lambda stage: -stage.depth):
        stages = tuple(s.reshape(depth=s.depth - 1) if s is longest else s for s in shape.stages)
        try:
            short = surgery.write(model, replace(shape, stages=stages))
        except ShapeError:  # the only attention is in the last block
            continue
        require(surgery.read(short).stages == stages, "shorter", "another shape is read back")
        _run(short, call, "shorter")
        return True
    return False


def cached(model: nn.Module, shape: Architecture, call: Call, grows: bool) -> bool:
    """Law `cached`: transformers makes the cache from the configuration, which must agree with the shape."""
    inner = [getattr(module, "config", None) for module in model.modules()]
    decoders = [getattr(model, "config", None), *(c for c in inner if getattr(c, "is_decoder", True))]
    configs: dict[int, Any] = {id(config): config for config in decoders if hasattr(config, "use_cache")}
    before = {key: config.use_cache for key, config in configs.items()}
    if not configs:
        return False
    try:
        for config in configs.values():
            config.use_cache = True
        if grows:
            _unchanged("cached", outputs(surgery.grow(model, factor=2), call), outputs(model, call))
        return shorter(model, shape, call) or grows
    finally:
        for key, config in configs.items():
            config.use_cache = before[key]


def split(model: nn.Module, shape: Architecture, call: Call) -> bool:
    """Law `split`, at constant inner width. Does not apply if refused (tables made for one head_dim)."""

    def halved(layer: Layer) -> Layer:
        return layer if layer.head_dim % 2 else layer.with_heads(2 * layer.heads, layer.head_dim // 2)

    wanted = shape.map_layers(halved)
    if wanted == shape:
        return False
    try:
        cut = surgery.write(model, wanted)
    except LeanifyError:
        return False
    require(surgery.read(cut) == wanted, "split", "another shape is read back")
    _run(cut, call, "split")
    return True


def kept(model: nn.Module, call: Call) -> None:
    """Law `kept`, for a model with twice the heads."""
    big = surgery.write(model, surgery.read(model).grown(factor=2))
    expected = outputs(big, call)
    with tempfile.TemporaryDirectory() as folder:
        lean_directory.save(big, Path(folder) / "lean")
        loaded = find.load(str(Path(folder) / "lean")).to(next(big.parameters()).dtype).eval()
    experts = getattr(getattr(big, "config", None), "_experts_implementation", None)
    for module in loaded.modules():  # the implementation that computes experts is a runtime setting, not saved
        config: Any = getattr(module, "config", None)
        if hasattr(config, "_experts_implementation"):
            config._experts_implementation = experts
    _unchanged("kept", outputs(loaded, call), expected, 1e-6)


def priced(model: nn.Module, tokens: int = 12) -> bool:
    """Law `priced`, for the model itself and a leaner one with more heads.

    Does not apply if pricing is refused (tokens merged on the way, or sampled at random).
    """
    origin = origin_of(model)
    assert origin is not None
    try:
        meta = build_model(origin, "meta")
        prices = prices_of(meta, tokens)
        if not prices.changed:
            return False
        base = search.baseline_of(prices).cost
        counted = counting.count(meta, tokens, prices.facts.context)
        require(base == counted, "priced", f"the source is priced at {base}, but counting gives {counted}")
        shape: list[StageShape | None] = [None] * len(prices.architecture.stages)
        for i in prices.changed:
            stage = prices.architecture.stages[i]
            primary = primary_of(stage)
            depth = stage.depth if stage.fixed else max(stage.shortest, stage.depth - 1)
            mlp = primary.mlp and primary.mlp + 3 * stage.units
            shape[i] = StageShape(depth, primary.heads + stage.group, primary.head_dim, mlp)
        predicted = prices.total(tuple(shape))
        leaner = applied(tuple(shape), prices.architecture)
        lean = surgery.write(meta, leaner)
        counted = counting.count(lean, tokens, prices.facts.context)
        require(counted == predicted, "priced", f"{leaner} is priced at {predicted}, but counting gives {counted}")
        real = counting.observed_on_cpu(lean, tokens, counting.macs)
        what = f"{leaner} is priced at {predicted.macs} MACs, but counting with values gives {real}"
        require(real == predicted.macs, "priced", what)
    except UnsupportedModel:
        return False
    return True


def _run(model: nn.Module, call: Call, law: str) -> None:
    try:
        outputs(model, call)
    except Exception as error:
        raise LawBroken(f"{law}: {type(error).__name__}: {str(error)[:200]}") from error


def blamed(model: nn.Module, call: Call) -> list[str]:
    """The classes whose rows are wrong, by their names in the tables, each with what went wrong."""
    located = sites.locate(model)
    reference = outputs(model, call)
    places = [layer.attention for layer in located.layers]
    places += [layer.mlp for layer in located.layers if layer.mlp]
    found = []
    for name in dict.fromkeys(place.reading.name for place in places):
        try:
            error = difference(outputs(surgery.write(model, _doubled(located, name)), call), reference)
            why = "" if error < TOLERANCE else f"outputs differ by {error:.1e}"
        except Exception as failed:  # a wrong row can fail in any way: in a reshape, an index, a kernel
            why = in_words(failed, 120)
        if why:
            found.append(f"{short(name)} ({why})")
    return found


def _doubled(located: LocatedModel, name: str) -> Architecture:
    """The shape with twice the heads and hidden units in the layers of one row, where that keeps outputs."""
    stages = []
    for found, stage in zip(located.stages, located.architecture.stages, strict=True):
        blocks = []
        for places in found.blocks:
            layers = []
            for place in places:
                layer = place.read()
                if place.attention.reading.name == name:
                    layer = layer.with_heads(2 * layer.heads)
                if place.mlp and place.mlp.reading.name == name and not place.mlp.mixed_by:
                    layer = replace(layer, mlp=2 * layer.mlp)
                layers.append(layer)
            blocks.append(tuple(layers))
        stages.append(replace(stage, blocks=tuple(blocks)))
    return replace(located.architecture, stages=tuple(stages))
