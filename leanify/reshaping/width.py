"""Change a model's residual width: upstream's constructor builds it, surgery applies the other sizes.

No table lists the axes that follow the width. The constructor is called with another width on meta, and the
result is read; a model that ignores the argument is refused. The axes with different lengths follow the width.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from leanify.core.architecture import Architecture, Layer
from leanify.core.errors import LeanifyError, ShapeError
from leanify.discovery.discover import inherit_rows
from leanify.lens.located import LocatedModel
from leanify.reshaping.sites import locate
from leanify.upstream.derived_attributes import keep_runtime_settings
from leanify.upstream.example_inputs import give
from leanify.upstream.origin import Origin, get_example, get_origin, in_mode, is_hf, live_options, plain_keys
from leanify.upstream.user_modules import copy_to_meta, is_user_module
from leanify.upstream.width import Candidate, respell_width

OWN_ORDER = (  # modules whose channels follow the width interleaved, or in parts of another proportion
    "ZambaMambaMixer", "RecurrentGemmaRglru", "SplitTransposeBlock",
)  # fmt: skip
NOT_KEPT = "so its weights cannot be kept; weights='fresh' writes this width"
_bases: dict[str, Base] = {}  # the last origin → the model that it builds
_known: dict[str, int] = {}  # origin → index of the candidate that built its last width
# model on meta → the sizes that were last built from it, and what built them: a search counts many MLPs at one width
_last_built: WeakKeyDictionary[nn.Module, tuple[object, Candidate, LocatedModel]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Base:
    """The model that an origin builds without changes: shape, options, and names of parameters."""

    architecture: Architecture
    options: dict[str, Any]
    names: frozenset[str]


class NoWidth(ShapeError):
    """Raised if upstream cannot build a model of this width."""


def paired_layers(old: Architecture, new: Architecture) -> Iterator[tuple[Layer, Layer]]:
    """Yield (old, new) for every layer of ``new``; blocks beyond the old depth repeat the last."""
    for before, after in zip(old.stages, new.stages, strict=True):
        for index, block in enumerate(after.blocks):
            yield from zip(before.blocks[min(index, before.depth - 1)], block, strict=False)


def differs_in_width(old: Architecture, new: Architecture) -> bool:
    """Whether any layer of ``new`` has another width than the layer of ``old`` at the same position."""
    if [stage.name for stage in old.stages] != [stage.name for stage in new.stages]:
        return False  # refused elsewhere
    return any(before.width != after.width for before, after in paired_layers(old, new))


def candidates_of_width(located_model: LocatedModel, new: Architecture) -> Iterator[tuple[Candidate, LocatedModel]]:
    """Yield constructor calls that build the widths of ``new``, with their located models on meta; other sizes vary.

    After the last one, raises ShapeError with the reason why upstream cannot build another.
    """
    # the constructor and its arguments as they are now
    model = located_model.model
    if min(layer.width for layer in new.layers()) < 1:
        raise NoWidth(f"{_change(located_model.architecture, new)}: a width must be positive")
    origin = get_origin(model)
    if origin is None or origin.library == "live":
        raise NoWidth(
            f"{_change(located_model.architecture, new)}: only what builds this {type(model).__name__} can change its "
            "width; name the function that does as the source, model.py:make, with an argument: make(width=…)"
        )
    origin, base = _current_origin(model, origin)
    # on meta, the candidate that built the last sizes comes first if they are requested again
    sizes = (origin, [(layer.width, layer.heads, layer.kv_heads, layer.head_dim) for layer in new.layers()])
    is_meta = next(model.parameters()).is_meta
    if is_meta and model in _last_built and _last_built[model][0] == sizes:
        yield _last_built[model][1:]
    for candidate, built in _built_candidates(located_model, new, origin, base):
        if is_meta:
            _last_built[model] = sizes, candidate, built
        yield candidate, built


def _built_candidates(
    located_model: LocatedModel, new: Architecture, origin: Origin, base: Base
) -> Iterator[tuple[Candidate, LocatedModel]]:
    """`candidates_of_width` for an origin and what it builds."""
    model = located_model.model
    reason = "upstream has no argument that is its width"
    if origin.library == "module":
        reason = "the function has no argument width; write it as make(width=…)"
    # possible spellings of the width, the one that worked last first; one that builds the heads, too, needs no surgery
    stages = []  # at the depth that upstream's constructor builds
    for stage, other in zip(base.architecture.stages, new.stages, strict=True):
        blocks = other.blocks[: stage.depth] + other.blocks[-1:] * (stage.depth - other.depth)
        stages.append(replace(other, blocks=blocks))
    candidates = list(enumerate(respell_width(origin, base.architecture, replace(new, stages=tuple(stages)))))
    key = f"{origin.library}/{origin.name}/{origin.cls}"
    first = _known.get(key, 0)
    others: list[tuple[bool, int, Candidate, LocatedModel]] = []
    for number, candidate in sorted(candidates, key=lambda pair: pair[0] != first):
        try:
            built = locate_built(candidate, model)
        except LeanifyError as error:
            reason = str(error)
            continue
        if differs_in_width(built.architecture, new) or _frame(built.architecture) != _frame(base.architecture):
            options = {**candidate.origin.options, **candidate.arguments}
            new_options = {name: value for name, value in options.items() if origin.options.get(name) != value}
            reason = f"{origin} with {str(new_options)[:160]} builds {_widths(built.architecture)}"
            continue
        if any(layer.heads < layer.kv_heads for layer in built.architecture.layers()):
            continue  # heads that no attention can compute
        has_other_tensors = _names(built.model) != base.names  # such as a projection of the embeddings
        if has_other_tensors or _heads(built.architecture) != _heads(new):
            others.append((has_other_tensors, number, candidate, built))
        else:
            _known[key] = number
            yield candidate, built
    # the others in their own order, so that the result does not depend on what worked last
    for *_, candidate, built in sorted(others, key=lambda entry: entry[:2]):
        yield candidate, built
    raise NoWidth(f"{_change(located_model.architecture, new)}: {' '.join(reason.split())[:300]}")


def _current_origin(model: nn.Module, origin: Origin) -> tuple[Origin, Base]:
    """Return the constructor call of the model as it is now (classes and image size may differ), and what it builds."""
    if is_hf(model):
        config: Any = model.config
        origin = Origin("hf", config.model_type, plain_keys(config), type(model).__name__)
    key = repr(origin)
    if key not in _bases:
        built = locate_built(Candidate(origin, {}), model)
        _bases.clear()
        options = live_options(built.model) if origin.library == "timm" else {}
        _bases[key] = Base(built.architecture, options, _names(built.model))
    base = _bases[key]
    if origin.library == "timm":
        now = live_options(model)
        new_options = {name: value for name, value in now.items() if base.options.get(name) != value}
        origin = replace(origin, options={**origin.options, **new_options})
    return origin, base


def _heads(architecture: Architecture) -> list[tuple[int, int, int]]:
    """Heads, groups and head size of each stage's leading layer."""
    layers = [stage.primary for stage in architecture.stages if stage.primary is not None]
    return [(layer.heads, layer.kv_heads, layer.head_dim) for layer in layers]


def _names(model: nn.Module) -> frozenset[str]:
    return frozenset(name for name, _ in model.named_parameters())


def locate_built(candidate: Candidate, model: nn.Module) -> LocatedModel:
    """Build ``candidate`` on meta and locate it; a user's own module gets the example inputs of ``model``."""
    if not is_user_module(candidate.origin):
        built = candidate.build("meta")
        inherit_rows(built, model)
        return locate(built)
    # read a user's own module while it can run, then move it to meta
    built = candidate.build("cpu")
    example = get_example(model)
    if example is not None and get_example(built) is None:
        give(built, example)
    inherit_rows(built, model)
    locate(built)
    return locate(copy_to_meta(built))


def build_like(candidate: Candidate, model: nn.Module) -> nn.Module:
    """Build ``candidate`` with the runtime settings of ``model``, and parameters in its type and on its device."""
    parameter = next(model.parameters())
    built = in_mode(candidate.build("cpu").to(parameter.device, parameter.dtype), model.training)
    keep_runtime_settings(built, model)
    return built


@torch.no_grad()
def keep_channels(new: nn.Module, old: nn.Module, old_shape: Architecture, new_shape: Architecture) -> None:
    """Copy the first channels of every tensor of ``old`` into ``new``, in place; their other sizes must be equal.
    Raises ShapeError if it is not clear which channels of a tensor follow the width.

    An axis may contain the width several times (queries, keys and values of one map; four merged pixels): the first
    channels of each part are kept.
    """
    for path, module in old.named_modules():
        if type(module).__name__ in OWN_ORDER:
            raise ShapeError(
                f"{path} ({type(module).__name__}) has channels that follow the width in an order of their own, "
                f"{NOT_KEPT}"
            )
    others = sorted(_names(old) ^ _names(new))
    if others:
        raise ShapeError(f"at this width it has or lacks {others[0]} and {len(others) - 1} other tensors, {NOT_KEPT}")
    # old width → new width
    pairs = {before.width: after.width for before, after in paired_layers(old_shape, new_shape)}
    sources: dict[str, Tensor] = {**dict(old.named_parameters()), **dict(old.named_buffers())}
    targets: dict[str, Tensor] = {**dict(new.named_parameters()), **dict(new.named_buffers())}
    # copy equal shapes as they are, and the first channels of axes that became shorter
    for name, target in targets.items():
        source = sources.get(name)
        if source is None or source.is_meta or target.is_meta or source.dim() != target.dim():
            continue
        is_table = isinstance(target, nn.Parameter) is False and not target.is_floating_point()
        if source.shape == target.shape and not is_table:
            target.copy_(source)
        elif isinstance(target, nn.Parameter) or target.is_floating_point():
            for axis in range(source.dim()):
                if source.shape[axis] != target.shape[axis]:
                    indices = _kept_channels(name, source.shape[axis], target.shape[axis], pairs)
                    source = source.index_select(axis, indices.to(source.device))
            common = tuple(slice(min(a, b)) for a, b in zip(source.shape, target.shape, strict=True))
            target[common] = source[common].to(target.dtype)


def _kept_channels(name: str, old: int, new: int, widths: Mapping[int, int]) -> Tensor:
    """Return the indices that remain if an axis of ``old`` channels is cut to ``new``: the first of each part.

    ``widths`` maps old widths to new ones. Raises ShapeError for the width beside channels that nothing tells apart.
    """
    matching = [old_width for old_width, new_width in widths.items() if old * new_width == new * old_width]
    if matching:
        parts = next((old // width for width in matching if old % width == 0), 1)
        return torch.arange(old).view(parts, -1)[:, : new // parts].reshape(-1)
    for old_width, new_width in widths.items():
        parts, remainder = divmod(old - new, old_width - new_width) if old_width > new_width else (0, 0)
        if parts and not remainder and old > parts * old_width:
            raise ShapeError(
                f"{name} takes {parts} × {old_width} channels of the width beside {old - parts * old_width} others, "
                f"and nothing says which they are, {NOT_KEPT}"
            )
    return torch.arange(min(old, new))


def replace_widths(new: Architecture, old: Architecture) -> Architecture:
    """Return ``new`` with the widths of the layers in ``old``; additional blocks repeat the last width."""
    pairs = paired_layers(old, new)
    return new.map_layers(lambda layer: replace(layer, width=next(pairs)[0].width))


def _frame(architecture: Architecture) -> list[object]:
    """The stages, their depths and the number of layers in each block, without the sizes of layers."""
    return [(stage.name, *map(len, stage.blocks)) for stage in architecture.stages]


def _change(old: Architecture, new: Architecture) -> str:
    return f"{old.source} is {_widths(old)}, and {_widths(new)} was requested"


def _widths(architecture: Architecture) -> str:
    widths = dict.fromkeys(stage.primary.width for stage in architecture.stages if stage.primary)
    return f"{', '.join(map(str, widths))} wide"
