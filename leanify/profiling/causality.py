"""Whether attention is causal, measured: a late token is changed, and the outputs of early ones are looked at.

Upstream's attributes are not evidence: CLIP's text tower gets its mask from outside of its attention, and a GPT
of the user's own has no attribute. The model is shortened on ``meta``, as for its prices, and only then gets memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from leanify.core.architecture import Architecture, Stage
from leanify.core.errors import LeanifyError
from leanify.discovery.flow import iterate_tensors
from leanify.lens.located import LocatedModel
from leanify.profiling.forward import call, drop_values, unmasked_inputs
from leanify.reshaping.surgery import write_located
from leanify.upstream import user_modules
from leanify.upstream.build import build_model
from leanify.upstream.origin import get_origin, remove_on_exit
from leanify.upstream.spelling import looks_back

TOKENS = 16  # of a text
MAX_DRAWN = 4_000_000  # numbers of a table; of a larger one only the rows that the input reads are drawn
MAX_PARAMETERS = 500_000_000  # numbers that the shortened model draws: 2 GB
CHANGED = 1e-5  # of the largest output: what rounding stays below


class _AllSeen(Exception):
    """Raised once every stage has run: a head over a large vocabulary need not."""


def causal_stages(located_model: LocatedModel, tokens: int | None = None) -> list[bool]:
    """For each stage whether a token sees earlier tokens only.

    Images have no late tokens, so a model of images alone counts as bidirectional. Where the shortened model does not
    run, upstream's attributes decide.
    """
    by_attributes = []
    for stage in located_model.stages:
        by_attributes.append(any(looks_back(layer.attention.module) for layer in stage.layers))
    try:
        if not any(_sequences(unmasked_inputs(located_model.model, tokens))):
            return by_attributes
        measured = _measure(located_model)
    except Exception:  # upstream's code may fail at untested sizes
        return by_attributes
    return [said if seen is None else seen for said, seen in zip(by_attributes, measured, strict=True)]


def _sequences(inputs: dict[str, Tensor]) -> Iterator[str]:
    """The names of inputs that are sequences: token ids (B, N), or vectors (B, N, C) of sound; no images."""
    for name, value in inputs.items():
        if not isinstance(value, Tensor):  # a number, or a user's tensors in containers
            continue
        is_ids = not value.is_floating_point() and value.dim() == 2 and value.shape[1] > 2
        is_sound = value.is_floating_point() and value.dim() in (2, 3) and "pixel" not in name
        if (is_ids and not name.endswith(("mask", "type_ids", "position_ids"))) or is_sound:
            yield name


def _measure(located_model: LocatedModel) -> list[bool | None]:
    """For each stage whether late tokens change late outputs alone and early ones reach them; None if none is seen."""
    origin = get_origin(located_model.model)
    if origin is not None and user_modules.is_user_module(origin):
        small, real = located_model, build_model(origin)  # masks may be plain attributes, which only his code makes
    else:
        small = _shortened(located_model)
        real = drop_values(small.model)
    for module in real.modules():  # experts one by one: the implementations for speed copy their weights
        config: Any = getattr(module, "config", None)
        if getattr(config, "_experts_implementation", None) is not None:
            config._experts_implementation = "eager"
    inputs = unmasked_inputs(small.model, TOKENS, device="cpu")
    if not _draw_parameters(real, inputs):
        raise MemoryError(f"more than {MAX_PARAMETERS} numbers")

    # the modules with the stages' outputs: the last blocks, or attentions without a list of blocks
    module_paths: dict[int, str] = {id(module): path for path, module in small.model.named_modules()}
    paths = []
    for stage in small.stages:
        output: Any = list(stage.layers)[-1].attention.module
        if stage.container is not None:
            output = list(stage.container.children())[-1]
        paths.append(module_paths[id(output)])

    with torch.no_grad():
        before = _outputs(real, inputs, paths)
        is_causal: list[bool | None] = [None] * len(paths)
        for name in _sequences(inputs):
            # stages that a late token changes at its own place alone
            late = _outputs(real, {**inputs, name: _change_token(inputs[name], -1)}, paths)
            candidates = []
            for index, (old, new) in enumerate(zip(before, late, strict=True)):
                if old is None or new is None:
                    continue
                earlier, _ = _rows(old, inputs[name])
                if _changes(old, new, earlier):
                    is_causal[index] = is_causal[index] or False
                elif _changes(old, new, slice(-1, None)):
                    candidates.append(index)
            # a window that only looks to its side is not causal: an early token must reach later ones
            if candidates:
                early = _outputs(real, {**inputs, name: _change_token(inputs[name], 0)}, paths)
                for index in candidates:
                    old, new = before[index], early[index]
                    reaches = old is not None and new is not None and _changes(old, new, _rows(old, inputs[name])[1])
                    is_causal[index] = is_causal[index] or reaches
    return is_causal


def _shortened(located_model: LocatedModel) -> LocatedModel:
    """The model with few blocks, few heads and narrow MLPs; with its own heads and MLPs if those do not change."""

    def shorten(stage: Stage, is_thin: bool) -> Stage:
        if stage.primary is None:
            return stage
        heads, mlp = (stage.group, stage.units) if is_thin else (None, None)
        return stage.reshape(depth=stage.shortest, heads=heads, mlp=mlp if stage.primary.mlp else None)

    architecture = located_model.architecture
    for is_thin in (True, False):
        try:
            stages = tuple(shorten(stage, is_thin) for stage in architecture.stages)
            return write_located(located_model, Architecture(architecture.source, stages))
        except LeanifyError:
            continue
    return located_model


def _draw_parameters(model: nn.Module, inputs: dict[str, Tensor]) -> bool:
    """Draw the parameters in place: gains and biases about 1, maps about 0; whether they are few enough.

    Maps preserve the size of their inputs at any width: with large ones softmax would ignore most tokens. The
    experts of a mixture share the memory of the first: 512 of them would fill 25 GB.
    """
    # the ids that the probes use: only these rows of a vocabulary are drawn
    generator = torch.Generator().manual_seed(0)
    ids = [torch.zeros(1, dtype=torch.long)]
    for value in iterate_tensors(list(inputs.values())):
        if not value.is_floating_point():
            ids.append(value.flatten().long())
    numbers = torch.cat(ids)
    rows = torch.cat([numbers, numbers + 1, (numbers - 1).clamp(min=0)])  # with those that are put in their place
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    # every parameter, by its kind: a stack of experts, a gain or bias, a map, a large table of embeddings
    drawn_count = 0
    with torch.no_grad():
        for parameter in model.parameters():
            is_stack = parameter.dim() == 3 and parameter.numel() > MAX_DRAWN  # (experts, in, out)
            if id(parameter) not in tables:
                drawn_count += parameter[0].numel() if is_stack else parameter.numel()
            if drawn_count > MAX_PARAMETERS:
                return False
            if is_stack:
                expert = torch.randn(parameter.shape[1:], generator=generator) * max(parameter.shape[1:]) ** -0.5
                parameter.data = expert.to(parameter.dtype).expand_as(parameter)
            elif parameter.dim() < 2:
                parameter.normal_(1.0, 0.1, generator=generator)
            elif parameter.numel() <= MAX_DRAWN or id(parameter) not in tables:
                fan_in = max(parameter.shape[0], parameter.numel() // max(1, parameter.shape[0]))
                parameter.normal_(0.0, fan_in**-0.5, generator=generator)
            else:
                drawn_rows = rows[rows < parameter.shape[0]]
                shape = (len(drawn_rows), *parameter.shape[1:])
                parameter[drawn_rows] = torch.randn(shape, generator=generator).to(parameter.dtype)
    return True


def _outputs(model: nn.Module, inputs: dict[str, Tensor], paths: list[str]) -> list[Tensor | None]:
    """The output of every stage as (N, values), None for those that did not run."""
    outputs: dict[int, Tensor] = {}
    hooks = []
    for index, path in enumerate(paths):

        def note(_: nn.Module, args: Any, result: Any, index: int = index) -> None:
            tensor = next(iterate_tensors(result), None)
            if tensor is not None and index not in outputs:
                outputs[index] = _token_rows(tensor)
            if len(outputs) == len(paths):
                raise _AllSeen

        hooks.append(model.get_submodule(path).register_forward_hook(note))
    with remove_on_exit(hooks), suppress(_AllSeen):
        call(model, inputs)
    return [outputs.get(index) for index in range(len(paths))]


def _token_rows(tensor: Tensor) -> Tensor:
    """(B, N, C), (N, 1, C), (N, C) or, of several streams (Gemma 3n), (streams, 1, N, C) as (N, values)."""
    if tensor.dim() == 4 and tensor.shape[0] > 1 and tensor.shape[1] == 1:
        return tensor[:, 0].transpose(0, 1).reshape(tensor.shape[2], -1)
    if tensor.dim() == 3 and tensor.shape[0] > 1 and tensor.shape[1] == 1:
        return tensor[:, 0]
    return tensor[0].reshape(tensor.shape[1], -1) if tensor.dim() > 2 else tensor


def _change_token(value: Tensor, place: int) -> Tensor:
    """The input with another value at its first (0) or last (-1) place."""
    new_value = value.clone()
    if value.is_floating_point():
        length = value.shape[-1] if value.dim() == 2 else value.shape[1]
        part = max(1, length // 8)
        axis = value.dim() - 1 if value.dim() == 2 or value.shape[-1] > value.shape[1] else 1
        start = 0 if place == 0 else value.shape[axis] - part
        new_value.narrow(axis, start, part).mul_(-1.0).add_(0.5)
        return new_value
    old = value[:, place]
    new_value[:, place] = torch.where(old > 0, old - 1, old + 1)
    return new_value


def _rows(output: Tensor, value: Tensor) -> tuple[slice, slice]:
    """The outputs before the last token, and those after the first; halves where outputs are not one for each token."""
    if not value.is_floating_point() and output.shape[0] == value.shape[1]:
        return slice(0, -1), slice(1, None)
    half = max(1, output.shape[0] // 2)
    return slice(0, half), slice(half, None)


def _changes(before: Tensor, after: Tensor, rows: slice) -> bool:
    off = (before[rows] - after[rows]).abs().max()
    return bool(off > CHANGED * before.abs().max())
