"""The residual sublayers of a block, x + s · F(norm(x)) or norm(x + F(x)), found by running the model and looking.

No table lists where a block keeps its norms and its LayerScale. So a block is run once: the inputs and outputs of its
norms and sites show which norm feeds which site, and whether the next input is their sum.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from leanify.errors import UnsupportedModel
from leanify.lens.located import LocatedModel, Site
from leanify.lens.resize import part_of
from leanify.upstream.hooked import hooked
from leanify.warm.blocks import list_of, sites_in, uncached


@dataclass(frozen=True)
class Call:
    """One call of a module: what went in, and the first tensor that came out."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Tensor

    @property
    def tensors(self) -> list[Tensor]:
        return [value for value in (*self.args, *self.kwargs.values()) if isinstance(value, Tensor)]


@dataclass(frozen=True)
class Sublayer:
    """x + scale · site(norm(x)). ``norm`` and ``scale`` are paths in the block; ``scale`` is "" where there is none.

    In a post-norm block it is norm(x + site(x)), and ``normed`` is x, which the site takes.

    ``readers`` are the parts of the site that take the norm's output: a cross-attention's keys do not.
    """

    site: Site
    norm: str
    scale: str
    readers: tuple[str, ...]
    call: Call
    normed: Tensor


@dataclass(frozen=True)
class Residual:
    """A block as groups of sublayers; those of a group take the same x and are added to it together.

    ``post_norm``: the norm follows the sum (Vaswani et al. 2017) instead of standing before the sublayer.
    """

    block: nn.Module
    path: str
    call: Call
    groups: list[list[Sublayer]]
    post_norm: bool = False

    @property
    def sublayers(self) -> Iterator[Sublayer]:
        return (sublayer for group in self.groups for sublayer in group)


@torch.no_grad()
def residuals(
    located: LocatedModel, stage: str, call: Callable[[nn.Module], Any], places: Sequence[int] | None = None
) -> list[Residual | UnsupportedModel]:
    """The blocks of a stage, or those at some places, as residual sublayers; ``call`` runs a model on example inputs.

    In the place of a block that is anything else, such as a windowed one, stands the error that says why.
    """
    located.model.eval()
    several = list(enumerate(list_of(located, stage)))
    several = several if places is None else [several[place] for place in places]
    with uncached(located.model), calls_in([block for _, block in several]) as calls:
        call(located.model)
    found: list[Residual | UnsupportedModel] = []
    for index, block in several:
        try:
            found.append(_residual(located, stage, index, block, calls))
        except UnsupportedModel as error:
            found.append(_post_norm(located, stage, index, block, calls) or error)
    return found


@contextmanager
def calls_in(blocks: Sequence[nn.Module]) -> Iterator[dict[int, Call]]:
    """The last call of every module in some blocks, by the module's id."""
    calls: dict[int, Call] = {}

    def keep(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        first = output[0] if isinstance(output, (tuple, list)) and output else output
        if isinstance(first, Tensor):
            calls[id(module)] = Call(args, kwargs, first)

    modules = {id(module): module for block in blocks for module in block.modules()}
    with hooked(module.register_forward_hook(keep, with_kwargs=True) for module in modules.values()):
        yield calls


@dataclass
class _Reader:
    """What is known of a block while its sublayers are sorted out."""

    path: str
    block: nn.Module
    calls: Mapping[int, Call]
    used: set[str] = field(default_factory=set)

    def refuse(self, why: str) -> UnsupportedModel:
        return UnsupportedModel(f"{self.path} ({type(self.block).__name__}) is not pre-norm and residual: {why}")


def _path_of(located: LocatedModel, stage: str, index: int) -> str:
    names = [name for name, _ in located.model.get_submodule(stage).named_children()]
    return f"{stage}.{names[index]}".lstrip(".")


def _residual(located: LocatedModel, stage: str, index: int, block: nn.Module, calls: Mapping[int, Call]) -> Residual:
    path = _path_of(located, stage, index)
    reader = _Reader(path, block, calls)
    if id(block) not in calls or not calls[id(block)].tensors:
        raise reader.refuse("it did not run on the example input, or took no tensor")
    found = list(sites_in(located, stage, index))
    if not found:
        raise reader.refuse("it has no attention")
    norms = _norms_in(block, calls)
    states: list[tuple[Tensor, list[tuple[Site, str, Call]]]] = []
    for site in found:
        norm, call = _norm_before(reader, site, norms)
        state = calls[id(norms[norm])].tensors[0]
        if not states or states[-1][0] is not state:
            states.append((state, []))
        states[-1][1].append((site, norm, call))
        _check_readers(reader, norm, found)
    return Residual(block, path, calls[id(block)], _groups(reader, states))


def _norms_in(block: nn.Module, calls: Mapping[int, Call]) -> dict[str, nn.Module]:
    """The norms with a gain a channel that ran, by path."""
    return {
        name: module
        for name, module in block.named_modules()
        if "Norm" in type(module).__name__ and getattr(getattr(module, "weight", None), "ndim", 0) == 1
        if id(module) in calls
    }


def _norm_before(reader: _Reader, site: Site, norms: Mapping[str, nn.Module]) -> tuple[str, Call]:
    """The norm whose output a site takes, and the site's call."""
    call = reader.calls.get(id(site.module))
    if call is None:
        raise reader.refuse(f"{site.path} was not called as a module on the example input")
    for name, norm in norms.items():
        if any(tensor is reader.calls[id(norm)].output for tensor in call.tensors):
            return name, call
    raise reader.refuse(
        f"{site.path} does not take the output of a norm (post-norm blocks normalise the sum; windowed ones cut it)"
    )


def _groups(reader: _Reader, states: Sequence[tuple[Tensor, list[tuple[Site, str, Call]]]]) -> list[list[Sublayer]]:
    if states[0][0] is not reader.calls[id(reader.block)].tensors[0]:
        raise reader.refuse("its first norm does not take the block's input")
    groups = []
    after = [state for state, _ in states[1:]] + [reader.calls[id(reader.block)].output]
    for (state, members), following in zip(states, after, strict=True):
        scales = _scales(reader, state, [call.output for _, _, call in members], following)
        groups.append(
            [
                Sublayer(site, norm, scale, _readers(reader, site, norm), call, reader.calls[_id(reader, norm)].output)
                for (site, norm, call), scale in zip(members, scales, strict=True)
            ]
        )
    return groups


def _id(reader: _Reader, path: str) -> int:
    return id(reader.block.get_submodule(path))


def _scales(reader: _Reader, state: Tensor, outputs: Sequence[Tensor], following: Tensor) -> tuple[str, ...]:
    """The parameter (LayerScale) that scales each output in x + Σ s · F(norm(x)); "" where none does."""
    width = state.shape[-1]
    named = {
        name: parameter
        for name, parameter in reader.block.named_parameters()
        if parameter.shape == (width,) and name not in reader.used and not name.endswith("bias")
        if not any("Norm" in type(m).__name__ for m in _owners(reader.block, name))
    }
    bound = 16 * torch.finfo(state.dtype).eps * float(following.norm())
    for chosen in itertools.product([*named, ""], repeat=len(outputs)):
        if len({name for name in chosen if name}) < sum(bool(name) for name in chosen):
            continue
        if any(output.shape != state.shape for output in outputs):
            break
        total = state + sum((named[name] if name else 1.0) * out for name, out in zip(chosen, outputs, strict=True))
        if float((total - following).norm()) <= bound:
            reader.used.update(chosen)
            return chosen
    raise reader.refuse("what follows an attention or MLP is not its output, scaled or not, added to its input")


def _owners(block: nn.Module, parameter: str) -> Iterator[nn.Module]:
    path = parameter.rpartition(".")[0]
    yield block.get_submodule(path)


def _readers(reader: _Reader, site: Site, norm: str) -> tuple[str, ...]:
    """The parts of a site that take the norm's output."""
    normed = reader.calls[_id(reader, norm)].output
    parts = ((part, part_of(site.module, part)) for part in site.reading.rows)
    return tuple(part for part, module in parts if module is not None and _takes(reader, module, normed))


def _check_readers(reader: _Reader, norm: str, sites: Sequence[Site]) -> None:
    """Refuse a block in which something that is no projection of a site reads a norm: a router, a convolution."""
    known = {id(part_of(site.module, part)) for site in sites for part in site.reading.rows}
    known |= {id(site.module) for site in sites}
    normed = reader.calls[_id(reader, norm)].output
    for name, module in reader.block.named_modules():
        leaf = not any(True for _ in module.children()) and any(True for _ in module.parameters())
        call = reader.calls.get(id(module))
        if leaf and id(module) not in known and call and any(_same(tensor, normed) for tensor in call.tensors):
            raise reader.refuse(f"{name} ({type(module).__name__}) reads {norm} beside the projections")


def _takes(reader: _Reader, module: nn.Module, normed: Tensor) -> bool:
    """Whether a linear map takes the norm's output. One that was not called is used by its weight alone."""
    call = reader.calls.get(id(module))
    if call is not None:
        return any(_same(tensor, normed) for tensor in call.tensors)
    weight = module.weight
    return isinstance(weight, Tensor) and weight.dim() == 2 and normed.shape[-1] in weight.shape


def _same(tensor: Tensor, other: Tensor) -> bool:
    """Whether two tensors are one, or views of the same values."""
    return tensor.data_ptr() == other.data_ptr() and tensor.numel() == other.numel()


# -- post-norm ----------------------------------------------------------------------------------------------------


def _post_norm(
    located: LocatedModel, stage: str, index: int, block: nn.Module, calls: Mapping[int, Call]
) -> Residual | None:
    """A block as h = norm₁(x + A(x)), then norm₂(h + M(h)); None where it computes anything else."""
    if id(block) not in calls or not calls[id(block)].tensors:
        return None
    norms, state, groups = _norms_in(block, calls), calls[id(block)].tensors[0], []
    for site in sites_in(located, stage, index):
        readers = {part: part_of(site.module, part) for part in site.reading.rows}
        ends = [part_of(site.module, part) for part in site.reading.columns]
        ends = [module for module in ends if module is not None]
        if len(ends) != 1 or id(ends[0]) not in calls:
            return None
        names = []
        for part, module in readers.items():
            if module is None:
                continue
            if id(module) not in calls or not _same(calls[id(module)].tensors[0], state):
                return None
            names.append(part)
        output = calls[id(ends[0])].output
        norm = next((name for name, m in norms.items() if _is_sum(calls[id(m)].tensors[0], state, output)), None)
        if norm is None:
            return None
        del norms[norm]
        groups.append([Sublayer(site, norm, "", tuple(names), calls[id(ends[0])], state)])
        state = calls[id(block.get_submodule(norm))].output
    whole = Residual(block, _path_of(located, stage, index), calls[id(block)], groups, post_norm=True)
    return whole if groups and _same(state, whole.call.output) else None


def _is_sum(total: Tensor, state: Tensor, output: Tensor) -> bool:
    if total.shape != state.shape or output.shape != state.shape:
        return False
    return float((state + output - total).norm()) <= 16 * torch.finfo(state.dtype).eps * float(total.norm())
