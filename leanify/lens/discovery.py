"""Discover how an attention or MLP without a row is laid out: propose readings from names and shapes, then test them.

The names of the linear maps suggest the output projection; the lengths of the others suggest how heads are laid out in
them. Each reading is tested on a single module, in float64 with random parameters, on the arguments that the model
passes to it: with twice its heads (or hidden units) and zero output columns the output must stay the same, and with
non-zero output columns it must change. That is sufficient, because the rest of the model sees only the module's output.
The first reading that passes is used in this process, with a warning; it allows more heads and units, but keeps
head_dim.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import re
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from leanify.errors import LeanifyError
from leanify.lens import families
from leanify.lens.families import Reading
from leanify.lens.forwards import free_as
from leanify.lens.located import within
from leanify.lens.resize import features_of, resize, sizes_of
from leanify.upstream.inputs import example_inputs

TOLERANCE = 1e-10
MOST = 24  # readings tried of one module
TOKENS = 16
_OUTPUT = re.compile(
    r"(^|\.)(\w*out(put)?(_?(proj|lin|layer|projection|linear))?|[cop]_?proj|proj|projection|wo|o)$|dense$"
)
_COUNTS = re.compile(r"n_?heads?$|nhead$|num(_attention)?_heads$|^heads$")
_INNER = re.compile(r"all_head|inner|split|attn_dim|attention_dim|qkv?_dim")
_UNITS = re.compile(r"(intermediate|hidden|ffn|mlp|inner|d_ff)\w*$")
_NOT_RUN = (LeanifyError, RuntimeError, TypeError, ValueError, AttributeError, KeyError, IndexError)
_WIDTH = re.compile(r"embed_dim|hidden_size|hidden_dim|d_model|n_embd|^dim$")


def learn(model: nn.Module, path: str) -> str:
    """Discover the layout of the attention at ``path`` and learn it with a warning. Returns why not, or ``""``."""
    tried = 0
    for owner in _around(path):
        module = model.get_submodule(owner)
        readings = list(itertools.islice(_readings(module), MOST))
        if not readings or families.reading_of(module):
            continue
        try:
            args, kwargs = _arguments(model, module)
        except _NOT_RUN as error:
            return f", and it could not be run: {' '.join(str(error).split())[:120] or 'no input reached it'}"
        alone = _alone(module)
        edits = _edits(type(module))
        for reading in [*readings, *(replace(reading, edits=edits) for reading in readings if edits)]:
            tried += 1
            if _holds(alone, reading, args, kwargs):
                _remember(reading, "attention")
                return ""
    return f": {tried} readings of its parts were tried, and under none did more heads keep its outputs"


def learn_mlp(model: nn.Module, block: nn.Module, width: int) -> bool:
    """Discover the MLP of a block of this width and learn it with a warning. Returns whether there is one.

    Modules are tried from the inside out: an MLP may be a module of its own, or a few maps of the block (BERT).
    """
    parts = dict(block.named_modules())
    for path in sorted(parts, key=lambda path: -len(path.split(".")) if path else 0):
        module = parts[path]
        reading = _mlp_reading(module, width)
        if reading is None or families.reading_of(module):
            continue
        with suppress(*_NOT_RUN):
            args, kwargs = _arguments(model, module)
            if _holds(_alone(module), reading, args, kwargs):
                _remember(reading, "MLP")
                return True
    return False


def _mlp_reading(module: nn.Module, width: int) -> Reading | None:
    """Propose an MLP: one map from units back to the width, and the parts that compute the units."""
    maps = {path: part for path, part in module.named_modules() if path and _is_map(part)}
    inside = {path for path, part in module.named_modules() if families.reading_of(part)}
    maps = {path: part for path, part in maps.items() if not any(within(path, at) for at in inside)}
    shapes = {path: features_of(part) for path, part in maps.items()}
    wide = {path for path, part in maps.items() if part.weight.dim() > 1}
    back = [path for path in wide if shapes[path].outputs == width != shapes[path].inputs]
    if len(back) != 1:
        return None
    units = shapes[back[0]].inputs
    ways = {units: "m", 2 * units: "2 m"}
    ups = {p: ways[shapes[p].outputs] for p in wide if shapes[p].inputs == width and shapes[p].outputs in ways}
    along = {p: "m" for p in maps if shapes[p].outputs == shapes[p].inputs == units and p not in ups}
    if not ups:
        return None
    numbers = {name: "m" for name, value in _numbers(module) if value == units and _UNITS.match(name)}
    rows = {path: how for path, how in {**ups, **along}.items() if path not in back}
    return Reading(_name_of(module), rows=rows, columns={back[0]: "m"}, attributes=numbers)


def _is_map(part: nn.Module) -> bool:
    return isinstance(getattr(part, "weight", None), Tensor) and not isinstance(part, nn.Embedding)


def _remember(reading: Reading, what: str) -> None:
    families.learn(reading)
    warnings.warn(
        f"{reading.name}: its {what} was read by trial; it is not in leanify's table. `leanify zoo --propose MODEL` "
        "prints a row for it, and holds the model against every law",
        stacklevel=2,
    )


def _name_of(module: nn.Module) -> str:
    return f"{type(module).__module__}.{type(module).__qualname__}"


def _around(path: str) -> list[str]:
    """The module and its ancestors: the output projection may be outside the module."""
    parts = path.split(".")
    return [".".join(parts[:end]) for end in range(len(parts), max(len(parts) - 2, 0), -1)]


# -- proposing readings -----------------------------------------------------------------------------------------------


def _readings(module: nn.Module) -> Iterator[Reading]:
    """Yield the readings that the names and shapes of a module's parts allow, most likely first."""
    heads = {value for name, value in _numbers(module) if _COUNTS.search(name.rpartition(".")[2])}
    groups = {value for name, value in _numbers(module) if re.search(r"(kv|key_value)_heads", name)}
    maps = {
        path: part
        for path, part in module.named_modules()
        if path and isinstance(getattr(part, "weight", None), Tensor) and not isinstance(part, nn.Embedding)
    }
    outputs = [p for p, part in maps.items() if part.weight.dim() > 1 and _OUTPUT.search(p)]
    for out, h in itertools.product(outputs, sorted(heads, reverse=True)):
        inner = features_of(maps[out]).inputs
        if h > 1 and inner % h == 0:
            for g in sorted({h, *(g for g in groups if g > 1 and h % g == 0)}):
                yield from _of(module, maps, out, {"h": h, "g": g, "d": inner // h})


def _of(module: nn.Module, maps: dict[str, nn.Module], out: str, sizes: dict[str, int]) -> Iterator[Reading]:
    """Readings for one output projection and one head count; ambiguous maps and numbers are tried both ways."""
    h, g, d = sizes["h"], sizes["g"], sizes["d"]
    kinds = {h * d: ["h d"], g * d: ["g d" if g != h else "h d"], 3 * h * d: ["3 h d", "h 3 d"], h: ["h"]}
    kinds |= {2 * h * d: ["2 h d", "h 2 d"], (h + 2 * g) * d: ["h d | g d | g d"] if g != h else ["3 h d", "h 3 d"]}
    ways = {p: kinds.get(features_of(part).outputs, []) for p, part in maps.items() if p != out}
    matrices = {p: how for p, how in ways.items() if maps[p].weight.dim() > 1 and how}  # type: ignore[operator]
    norms = {p: "d" for p, part in maps.items() if part.weight.dim() == 1 and features_of(part).outputs == d}  # type: ignore[operator]
    bare = {
        name: tuple({h: "h", d: "d"}.get(length, "1") for length in tensor.shape)
        for name, tensor in (*module.named_parameters(), *module.named_buffers())
        if name.rpartition(".")[0] not in maps and h in tensor.shape
    }
    sure, doubtful = _attributes(module, sizes)
    fused = [how for how in matrices.values() if len(how) > 1]
    for choice, extra in itertools.product(range(2 if fused else 1), ({}, doubtful) if doubtful else ({},)):
        yield Reading(
            _name_of(module),
            rows={**{p: how[min(choice, len(how) - 1)] for p, how in matrices.items()}, **norms},
            columns={out: "h d"},
            tensors=bare,
            attributes={**sure, **extra},
            constant=("d",),
        )


def _edits(upstream: type[nn.Module]) -> dict[str, str]:
    """Edits for a forward that assumes inner == width; ``B, N, C = x.shape`` shows what it calls the width."""
    try:
        source = inspect.getsource(inspect.unwrap(upstream.forward))
    except (OSError, TypeError):  # a forward without Python source
        return {}
    edits: dict[str, str] = {}
    for width in dict.fromkeys(re.findall(r"^\s*[\w, ]*\b(\w+) = \w+\.(?:shape|size\(\))", source, re.MULTILINE)):
        edits |= dict.fromkeys(re.findall(rf"\b{width} // self\.\w+", source), "-1")
        edits |= dict.fromkeys(re.findall(rf", {width}\)", source), ", -1)")
    return edits


def _attributes(module: nn.Module, sizes: dict[str, int]) -> tuple[dict[str, str], dict[str, str]]:
    """Attributes that depend on the heads: unambiguous by their name, and those that may mean the width instead."""
    h, g, d = sizes["h"], sizes["g"], sizes["d"]
    sure: dict[str, str] = {}
    doubtful: dict[str, str] = {}
    for name, value in _numbers(module):
        leaf = name.rpartition(".")[2]
        into = doubtful if "config" in name else sure
        if value == g != h and re.search(r"kv|key_value", leaf) and "group" not in leaf:
            into[name] = "g"
        elif value == h and (leaf == "embedding_dim" or ("head" in leaf and not re.search(r"dim|size", leaf))):
            into[name] = "h"
        elif value == h // g and "group" in leaf and g != h:
            into[name] = "h /g"
        elif value == d and re.search(r"head_(dim|size)|d_head|d_k", leaf) and "config" not in name:
            into[name] = "d"
        elif value == h * d and _INNER.search(leaf):
            into[name] = "h d"
        elif value == h * d and _WIDTH.search(leaf) and "config" not in name:
            doubtful[name] = "h d"
    return sure, doubtful


def _numbers(module: nn.Module) -> Iterator[tuple[str, int]]:
    """Yield (path, value) of every integer in a module, its parts and its configuration."""
    for path, part in module.named_modules():
        own = vars(part).items()
        config = getattr(getattr(part, "config", None), "__dict__", {}).items()
        for name, value in (*own, *((f"config.{key}", value) for key, value in config)):
            if type(value) is int:
                yield f"{path}.{name}".lstrip("."), value


# -- testing a reading on one module ------------------------------------------------------------------------------


class _Reached(Exception):
    """Raised from a hook to end the forward pass; carries the arguments of the module's first call."""


@torch.no_grad()
def _arguments(model: nn.Module, module: nn.Module) -> tuple[Any, Any]:
    """The arguments that the model passes to a module, with tensors replaced by real float64 ones on the CPU."""

    def reached(_: nn.Module, args: Any, kwargs: Any) -> None:
        raise _Reached(args, kwargs)

    hook = module.register_forward_pre_hook(reached, with_kwargs=True)
    try:
        own = next(model.parameters())
        made = example_inputs(model, 1, TOKENS, own.device)
        inputs = {name: x.to(own.dtype) if x.is_floating_point() else x for name, x in made.items()}
        model(**{name: value for name, value in inputs.items() if name != "attention_mask" or not value.is_meta})
    except _Reached as call:
        args, kwargs = _real(call.args)
        return args, kwargs
    finally:
        hook.remove()
    raise LeanifyError("no input reached it")


def _real(value: Any) -> Any:
    if isinstance(value, Tensor):
        floating = value.is_floating_point()
        if not value.is_meta:
            return value.to("cpu", torch.float64) if floating else value.cpu()
        return torch.randn(value.shape, dtype=torch.float64) if floating else value.new_ones(value.shape, device="cpu")
    if isinstance(value, dict):
        return {key: _real(item) for key, item in value.items()}
    return type(value)(_real(item) for item in value) if type(value) in (tuple, list) else value


@torch.no_grad()
def _alone(module: nn.Module) -> nn.Module:
    """A copy of the module with random parameters, because zeros and constants could hide a wrong reading."""
    copied = copy.deepcopy(module)
    alone = (copied.to_empty(device="cpu") if any(p.is_meta for p in copied.parameters()) else copied.cpu()).double()
    generator = torch.Generator().manual_seed(0)
    for parameter in alone.parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.copy_(noise * max(parameter[0].numel(), 1) ** -0.5 if parameter.dim() > 1 else 1 + 0.3 * noise)
    return alone.eval()


@torch.no_grad()
def _holds(alone: nn.Module, reading: Reading, args: Any, kwargs: Any) -> bool:
    """Whether new heads or units keep the outputs, but change them once their output columns are non-zero."""
    try:
        sizes = sizes_of("", alone, reading)
        more = {name: 2 * size if name in "hgm" else size for name, size in sizes.items()}
        big = copy.deepcopy(alone)
        resize(big, "", big, reading, sizes, more)
        if reading.edits:
            free_as(big, reading)
        before, same = (_outputs(module, args, kwargs) for module in (alone, big))
        weight = big.get_submodule(next(iter(reading.columns))).weight
        assert isinstance(weight, Tensor)
        weight.copy_(torch.randn_like(weight))
        other = _outputs(big, args, kwargs)
    except Exception:  # a wrong reading can fail in any way: in a reshape, an index, a kernel
        return False
    return _differ(same, before) < TOLERANCE < _differ(other, before)


def _outputs(module: nn.Module, args: Any, kwargs: Any) -> Tensor:
    """The first tensor of a module's output, which upstream adds to the residual stream."""
    torch.manual_seed(0)
    result = module(*copy.deepcopy(args), **copy.deepcopy(kwargs))
    while not isinstance(result, Tensor):
        result = next(iter(result.values() if isinstance(result, dict) else result))
    return result


def _differ(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max() / other.abs().max()) if one.shape == other.shape else float("inf")
