"""The laws that every redesigned model must obey, tested in float64 with random parameters and inputs.

written   read(write(m, a)) == a, and write(m, read(m)) computes the same as m, bit for bit
grown     doubling the heads at constant head_dim, with zero new output columns, keeps the outputs to 1e-10
reordered the heads in another order compute the same, groups together with their heads; not where each head has
          queries, gates or hashes of its own (GCViT, WavLM, Reformer)
alive     the outputs depend on the new output columns of every layer (non-zero gradient)
wider     doubling the hidden units, with zero new output columns, keeps the outputs to 1e-10
complete  no softmax over tokens runs outside the attentions that were found
shorter   the model runs with one block fewer
split     the model runs with twice the heads of half the size
cached    `grown` and `shorter` also hold with a key/value cache
kept      a saved model loads and computes the same outputs
priced    the parameters and MACs that a search predicts for a design equal the counted ones, on meta and on the CPU

`grown`, `reordered`, `wider`, `shorter`, `split`, `cached` and `priced` do not apply to every model. They return
whether there was anything to test, and `hold` reports that per law, so that no law passes silently.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from leanify.core.architecture import Architecture, Layer, primary_layer
from leanify.core.errors import LeanifyError, ShapeError, UnsupportedModel
from leanify.discovery import row_laws
from leanify.lens import resize
from leanify.lens.families import short
from leanify.lens.located import LocatedModel, parameter_names
from leanify.profiling import counting
from leanify.profiling.cost import StageShape, apply_shape
from leanify.profiling.cost_model import ModelCosts
from leanify.profiling.forward import observe_on_cpu
from leanify.profiling.live_model import LiveModel
from leanify.profiling.price_list import PriceList
from leanify.reshaping import sites, surgery
from leanify.search import search
from leanify.sources import find, lean_directory
from leanify.upstream.build import build_model
from leanify.upstream.libraries import format_error
from leanify.upstream.origin import get_origin

from .running import Call, LawBroken, check_complete, difference, holding, keep_experts, outputs, randomise, require

TOLERANCE = 1e-10
OWN_PLACES = {"WindowAttentionGlobal", "WavLMAttention", "LSHSelfAttention"}  # heads differ by more than their weights


def hold(model: nn.Module, call: Call, seed: int = 0) -> dict[str, bool]:
    """Test ``model`` against every law except `kept` and `priced`; ``call`` runs it on fixed inputs.

    Returns law → whether it applied. Raises LawBroken.
    """
    model = randomise(model, seed)
    shape = surgery.read(model)
    reference = check_complete(model, call)
    same = surgery.write(model, shape)
    require(surgery.read(same) == shape, "written", "another shape is read back")
    require(difference(outputs(same, call), reference) == 0, "written", "writing a model's own shape changes it")
    applicable = {"written": True, "complete": True}
    laws = {
        "grown": lambda: check_growth(model, shape, call, reference),
        "reordered": lambda: check_reordered(model, call, reference),
        "wider": lambda: check_wider(model, shape, call, reference),
        "shorter": lambda: check_shorter(model, shape, call),
        "cached": lambda: check_cache(model, shape, call, applicable["grown"]),
        "split": lambda: check_split(model, shape, call),
    }
    for law, check in laws.items():
        with holding(law):
            applicable[law] = check()
    return {**applicable, "alive": applicable["grown"]}


def hold_all(model: nn.Module, call: Call) -> dict[str, bool]:
    """Test ``model`` against every law, including `kept` and `priced`. Returns and raises as `hold`."""
    applicable = hold(model, call)
    with holding("kept"):
        check_saving(model, call)
    with holding("priced"):
        return {**applicable, "kept": True, "priced": check_prices(model)}


def check_growth(model: nn.Module, shape: Architecture, call: Call, reference: list[Tensor]) -> bool:
    """Law `grown`. Does not apply if growth is refused (a norm over all heads)."""
    try:
        big = surgery.grow(model, factor=2)
    except UnsupportedModel:
        return False
    require(surgery.read(big) == shape.grown(factor=2), "grown", "another shape is read back")
    _require_equal("grown", outputs(big, call), reference)
    tied = [sorted(group for group in parameter_names(version).values() if len(group) > 1) for version in (big, model)]
    require(tied[0] == tied[1], "grown", "parameters that were one are several")
    check_alive(big, call)
    return True


def _require_equal(law: str, actual: list[Tensor], reference: list[Tensor], tolerance: float = TOLERANCE) -> None:
    error = difference(actual, reference)
    require(error < tolerance, law, f"outputs differ by {error:.1e}")


def check_alive(big: nn.Module, call: Call) -> None:
    """Law `alive`: the outputs depend on every layer's new output columns, so it ran with its new heads."""
    places = list(sites.locate(big).layers)
    weights: list[Tensor] = [place.output.weight for place in places]  # type: ignore[misc]
    axes = [resize.linear_features(place.output).input_axis for place in places]
    new = []  # columns that are zero
    for axis, weight in zip(axes, weights, strict=True):
        new.append((weight.movedim(axis, 0).flatten(1) == 0).all(1).nonzero().flatten())
    randomise(big, seed=1)  # with upstream's zero biases, heads on zero inputs (DETR's queries) would stay zero
    big.requires_grad_(False)
    for weight in weights:
        weight.requires_grad_(True)
    results = [tensor for tensor in outputs(big, call, grad=True) if tensor.requires_grad]
    loss = sum(torch.sin(3 * tensor + 1).sum() for tensor in results)
    gradients: Iterable[Tensor | None] = [None] * len(weights)  # some upstream functions are not differentiable
    if isinstance(loss, Tensor):
        gradients = torch.autograd.grad(loss, weights, allow_unused=True)
    for place, weight, axis, columns, gradient in zip(places, weights, axes, new, gradients, strict=True):
        has_gradient = gradient is not None and bool((gradient.index_select(axis, columns) != 0).any())
        changes = has_gradient or _changes_outputs(big, call, weight, axis, columns)
        require(changes, "alive", f"the new heads of {place.attention.path} change nothing")


@torch.no_grad()
def check_reordered(model: nn.Module, call: Call, reference: list[Tensor]) -> bool:
    """Law `reordered`. Does not apply if no layer has two heads, or each head has a place of its own."""
    if {type(module).__name__ for module in model.modules()} & OWN_PLACES:
        return False
    location = sites.locate(copy.deepcopy(model))
    attentions = [layer.attention for layer in location.layers]
    order_of = {site.path: row_laws.head_order(site.reading, site.sizes) for site in attentions}
    for site in location.sites:
        if "h" in site.sizes:
            order = order_of.get(site.path) or order_of[surgery.dependent_attentions(location, site)[0].path]
            row_laws.reorder_heads(site.module, site.reading, site.sizes, order)
    _require_equal("reordered", outputs(location.model, call), reference)
    return any(layer.heads > 1 for layer in surgery.read(model).layers())


@torch.no_grad()
def _changes_outputs(model: nn.Module, call: Call, weight: Tensor, axis: int, columns: Tensor) -> bool:
    """Whether noise in some columns changes the outputs; used if no gradient reaches them."""
    before = outputs(model, call)
    weight.index_add_(axis, columns, torch.ones_like(weight.index_select(axis, columns)))
    return difference(outputs(model, call), before) > 0


def check_wider(model: nn.Module, shape: Architecture, call: Call, reference: list[Tensor]) -> bool:
    """Law `wider`. Does not apply without an MLP, or where a norm over hidden units sees the new ones."""
    target = shape.map_layers(lambda layer: replace(layer, mlp=2 * layer.mlp))
    if target == shape or any(site.reading.is_mlp and site.mixing_part for site in sites.find_sites(model)):
        return False
    wide = surgery.write(model, target)
    require(surgery.read(wide) == target, "wider", "another shape is read back")
    _require_equal("wider", outputs(wide, call), reference)
    return True


def check_shorter(model: nn.Module, shape: Architecture, call: Call) -> bool:
    """Law `shorter`, for the deepest stage that can lose a block. Does not apply without a list of blocks."""
    lists = [stage for stage in shape.stages if not stage.is_fixed and stage.depth > 1]
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


def check_cache(model: nn.Module, shape: Architecture, call: Call, grows: bool) -> bool:
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
            _require_equal("cached", outputs(surgery.grow(model, factor=2), call), outputs(model, call))
        return check_shorter(model, shape, call) or grows
    finally:
        for key, config in configs.items():
            config.use_cache = before[key]


def check_split(model: nn.Module, shape: Architecture, call: Call) -> bool:
    """Law `split`, at constant inner width. Does not apply if refused (tables made for one head_dim)."""
    target = shape.map_layers(lambda x: x if x.head_dim % 2 else x.set_heads(2 * x.heads, x.head_dim // 2))
    if target == shape:
        return False
    try:
        cut = surgery.write(model, target)
    except LeanifyError:
        return False
    require(surgery.read(cut) == target, "split", "another shape is read back")
    _run(cut, call, "split")
    return True


def check_saving(model: nn.Module, call: Call) -> None:
    """Law `kept`, for a model with twice the heads."""
    big = surgery.write(model, surgery.read(model).grown(factor=2))
    reference = outputs(big, call)
    with tempfile.TemporaryDirectory() as folder:
        lean_directory.save(big, Path(folder) / "lean")
        saved_model = find.load(str(Path(folder) / "lean")).to(next(big.parameters()).dtype).eval()
    keep_experts(saved_model, big)
    _require_equal("kept", outputs(saved_model, call), reference, 1e-6)


def check_prices(model: nn.Module, tokens: int = 12) -> bool:
    """Law `priced`, for the model itself and a leaner one with more heads.

    Does not apply if pricing is refused (tokens merged on the way, or sampled at random).
    """
    origin = get_origin(model)
    try:
        meta = build_model(origin, "meta")
        prices = PriceList(ModelCosts(lambda: (LiveModel(meta, tokens), False)))
        if not prices.stage_indices:
            return False
        base = search.baseline_design(prices).cost
        actual_cost = counting.count(meta, tokens, prices.facts.context)
        require(base == actual_cost, "priced", f"the source is priced at {base}, but counting gives {actual_cost}")
        shape: list[StageShape | None] = [None] * len(prices.architecture.stages)
        for i in prices.stage_indices:
            stage = prices.architecture.stages[i]
            primary = primary_layer(stage)
            depth = stage.depth if stage.is_fixed else max(stage.shortest, stage.depth - 1)
            mlp = primary.mlp and primary.mlp + 3 * stage.units
            shape[i] = StageShape(depth, primary.heads + stage.group, primary.head_dim, mlp)
        predicted_cost = prices.total(tuple(shape))
        leaner = apply_shape(tuple(shape), prices.architecture)
        lean = surgery.write(meta, leaner)
        actual_cost = counting.count(lean, tokens, prices.facts.context)
        message = f"{leaner} is priced at {predicted_cost}, but counting gives {actual_cost}"
        require(actual_cost == predicted_cost, "priced", message)
        real = observe_on_cpu(lean, tokens, counting.macs)
        message = f"{leaner} is priced at {predicted_cost.macs} MACs, but counting with values gives {real}"
        require(real == predicted_cost.macs, "priced", message)
    except UnsupportedModel:
        return False
    return True


def _run(model: nn.Module, call: Call, law: str) -> None:
    try:
        outputs(model, call)
    except Exception as error:
        raise LawBroken(f"{law}: {type(error).__name__}: {str(error)[:200]}") from error


def wrong_rows(model: nn.Module, call: Call) -> list[str]:
    """The classes whose rows are wrong, by their names in the tables, each with what went wrong."""
    location = sites.locate(model)
    reference = outputs(model, call)
    places = [layer.attention for layer in location.layers]
    places += [layer.mlp for layer in location.layers if layer.mlp]
    messages = []
    for name in dict.fromkeys(place.reading.name for place in places):
        try:
            error = difference(outputs(surgery.write(model, _double_row(location, name)), call), reference)
            why = "" if error < TOLERANCE else f"outputs differ by {error:.1e}"
        except Exception as failed:  # a wrong row can fail in any way: in a reshape, an index, a kernel
            why = format_error(failed, 120)
        if why:
            messages.append(f"{short(name)} ({why})")
    return messages


def _double_row(location: LocatedModel, name: str) -> Architecture:
    """The shape with twice the heads and hidden units in the layers of one row, where that keeps outputs."""
    places = location.layers

    def double(layer: Layer) -> Layer:
        place = next(places)
        if place.attention.reading.name == name:
            layer = layer.set_heads(2 * layer.heads)
        if place.mlp and place.mlp.reading.name == name and not place.mlp.mixing_part:
            layer = replace(layer, mlp=2 * layer.mlp)
        return layer

    return location.architecture.map_layers(double)
