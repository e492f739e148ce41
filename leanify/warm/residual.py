"""The residual sublayers of a block, x + s · F(norm(x)) or norm(x + F(x)), found by running the model.

No table lists where a block keeps its norms and its LayerScale. So a block is run once: the inputs and
outputs of its norms and sites show which norm feeds which site, and whether the next input is their sum.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from leanify.errors import UnsupportedModel
from leanify.lens.located import LocatedModel, Site
from leanify.lens.resize import part_of
from leanify.upstream.hooked import hooked
from leanify.warm.blocks import list_of, sites_in, uncached
from leanify.warm.tape import Call


@dataclass(frozen=True)
class Sublayer:
    """x + scale · site(norm(x)). ``norm`` and ``scale`` are paths in the block; ``scale`` may be "".

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
    """A block as groups of sublayers; those of a group take the same x and are added to it together."""

    block: nn.Module
    path: str
    call: Call
    groups: list[list[Sublayer]]
    post_norm: bool = False  # the norm follows the sum (Vaswani et al. 2017) instead of preceding the sublayer

    @property
    def sublayers(self) -> Iterator[Sublayer]:
        return itertools.chain(*self.groups)


@torch.no_grad()
def residuals(
    located: LocatedModel, stage: str, call: Callable[[nn.Module], Any], places: Sequence[int] | None = None
) -> list[Residual | UnsupportedModel]:
    """The blocks of a stage, or those at some places, as residual sublayers.

    ``call`` runs a model on example inputs. In the place of a block that is anything else, such as a windowed
    one, stands the error that says why.
    """
    located.model.eval()
    blocks = list_of(located, stage)
    names = [name for name, _ in located.model.get_submodule(stage).named_children()]
    places = range(len(blocks)) if places is None else places
    with uncached(located.model), calls_in([blocks[place] for place in places]) as calls:
        call(located.model)
    found: list[Residual | UnsupportedModel] = []
    for place in places:
        path = f"{stage}.{names[place]}".lstrip(".")
        reader = _Reader(path, blocks[place], list(sites_in(located, stage, place)), calls)
        try:
            found.append(reader.pre_norm())
        except UnsupportedModel as error:
            found.append(reader.post_norm() or error)
    return found


@contextmanager
def calls_in(blocks: Sequence[nn.Module]) -> Iterator[dict[int, Call]]:
    """The last call of every module in some blocks, by the module's id."""
    calls: dict[int, Call] = {}

    def keep(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        first = output[0] if isinstance(output, (tuple, list)) and output else output
        if isinstance(first, Tensor):
            calls[id(module)] = Call(args, kwargs, output)

    modules = {id(module): module for block in blocks for module in block.modules()}
    with hooked(module.register_forward_hook(keep, with_kwargs=True) for module in modules.values()):
        yield calls


@dataclass
class _Reader:
    """What is known of a block while its sublayers are sorted out."""

    path: str
    block: nn.Module
    sites: list[Site]
    calls: Mapping[int, Call]
    used: set[str] = field(default_factory=set)

    def refuse(self, why: str) -> UnsupportedModel:
        kind = type(self.block).__name__
        return UnsupportedModel(f"{self.path} ({kind}) is not pre-norm and residual: {why}")

    @cached_property
    def norms(self) -> dict[str, nn.Module]:
        """The norms with a gain a channel that ran, by path."""
        found = {}
        for name, module in self.block.named_modules():
            gain = getattr(module, "weight", None)
            if "Norm" in type(module).__name__ and getattr(gain, "ndim", 0) == 1 and id(module) in self.calls:
                found[name] = module
        return found

    def normed(self, norm: str) -> Tensor:
        return self.calls[id(self.norms[norm])].output

    def pre_norm(self) -> Residual:
        """The block as sublayers x + s · F(norm(x)). Raises UnsupportedModel where it is anything else."""
        whole = self.calls.get(id(self.block))
        if whole is None or not whole.tensors:
            raise self.refuse("it did not run on the example input, or took no tensor")
        if not self.sites:
            raise self.refuse("it has no attention")
        states: list[tuple[Tensor, list[tuple[Site, str, Call]]]] = []
        for site in self.sites:
            norm, call = self.norm_before(site)
            state = self.calls[id(self.norms[norm])].state
            if not states or states[-1][0] is not state:
                states.append((state, []))
            states[-1][1].append((site, norm, call))
            self.check_readers(norm)
        if states[0][0] is not whole.state:
            raise self.refuse("its first norm does not take the block's input")
        groups = []
        after = [*(state for state, _ in states[1:]), whole.output]
        for (state, members), following in zip(states, after, strict=True):
            scales = self.scales(state, [call.output for _, _, call in members], following)
            group = []
            for (site, norm, call), scale in zip(members, scales, strict=True):
                normed = self.normed(norm)
                group.append(Sublayer(site, norm, scale, self.readers(site, normed), call, normed))
            groups.append(group)
        return Residual(self.block, self.path, whole, groups)

    def norm_before(self, site: Site) -> tuple[str, Call]:
        """The norm whose output a site takes, and the site's call."""
        call = self.calls.get(id(site.module))
        if call is None:
            raise self.refuse(f"{site.path} was not called as a module on the example input")
        for norm in self.norms:
            if any(tensor is self.normed(norm) for tensor in call.tensors):
                return norm, call
        where = f"{site.path} does not take the output of a norm"
        raise self.refuse(f"{where} (post-norm blocks normalise the sum; windowed ones cut it)")

    def scales(self, state: Tensor, outputs: Sequence[Tensor], following: Tensor) -> tuple[str, ...]:
        """The parameter (LayerScale) that scales each output in x + Σ s · F(norm(x)); "" where none does."""
        named: dict[str, Tensor] = {}
        for name, parameter in self.block.named_parameters():
            owner = type(self.block.get_submodule(name.rpartition(".")[0])).__name__
            known = name in self.used or name.endswith("bias") or "Norm" in owner
            if parameter.shape == state.shape[-1:] and not known:
                named[name] = parameter
        bound = 16 * torch.finfo(state.dtype).eps * float(following.norm())
        fit = all(output.shape == state.shape for output in outputs)
        for chosen in itertools.product([*named, ""], repeat=len(outputs)) if fit else ():
            scaled = [name for name in chosen if name]
            if len(set(scaled)) < len(scaled):
                continue
            total = state + sum(named.get(name, 1.0) * out for name, out in zip(chosen, outputs, strict=True))
            if float((total - following).norm()) <= bound:
                self.used.update(chosen)
                return chosen
        raise self.refuse("what follows an attention or MLP is not its output, scaled or not, added to its input")

    def readers(self, site: Site, normed: Tensor) -> tuple[str, ...]:
        """The parts of a site that take the norm's output; one that was not called, by its weight."""
        found = []
        for part in site.reading.rows:
            module = part_of(site.module, part)
            call = self.calls.get(id(module))
            if call is not None:
                takes = any(_same(tensor, normed) for tensor in call.tensors)
            else:
                weight = getattr(module, "weight", None)
                takes = isinstance(weight, Tensor) and weight.dim() == 2 and normed.shape[-1] in weight.shape
            if takes:
                found.append(part)
        return tuple(found)

    def check_readers(self, norm: str) -> None:
        """Refuse a block in which anything but projections reads a norm: a router, a convolution."""
        known = {id(site.module) for site in self.sites}
        for site in self.sites:
            known |= {id(part_of(site.module, part)) for part in site.reading.rows}
        for name, module in self.block.named_modules():
            call = self.calls.get(id(module))
            inner = any(True for _ in module.children()) or not any(True for _ in module.parameters())
            if call is None or inner or id(module) in known:
                continue
            if any(_same(tensor, self.normed(norm)) for tensor in call.tensors):
                raise self.refuse(f"{name} ({type(module).__name__}) reads {norm} beside the projections")

    def post_norm(self) -> Residual | None:
        """The block as h = norm₁(x + A(x)), then norm₂(h + M(h)); None where it computes anything else."""
        whole = self.calls.get(id(self.block))
        if whole is None or not whole.tensors:
            return None
        norms, state, groups = dict(self.norms), whole.state, []
        for site in self.sites:
            names = []
            for part in site.reading.rows:
                module = part_of(site.module, part)
                if module is None:
                    continue
                if id(module) not in self.calls or not _same(self.calls[id(module)].state, state):
                    return None
                names.append(part)
            ends = [module for part in site.reading.columns if (module := part_of(site.module, part)) is not None]
            if len(ends) != 1 or id(ends[0]) not in self.calls:
                return None
            end = self.calls[id(ends[0])]
            norm = next((name for name in norms if self.is_sum(norms[name], state, end.output)), None)
            if norm is None:
                return None
            groups.append([Sublayer(site, norm, "", tuple(names), end, state)])
            state = self.calls[id(norms.pop(norm))].output
        if not groups or not _same(state, whole.output):
            return None
        return Residual(self.block, self.path, whole, groups, post_norm=True)

    def is_sum(self, norm: nn.Module, state: Tensor, output: Tensor) -> bool:
        """Whether a norm takes the sum of these two."""
        total = self.calls[id(norm)].state
        if total.shape != state.shape or output.shape != state.shape:
            return False
        return float((state + output - total).norm()) <= 16 * torch.finfo(state.dtype).eps * float(total.norm())


def _same(tensor: Tensor, other: Tensor) -> bool:
    """Whether two tensors are one, or views of the same values."""
    return tensor.data_ptr() == other.data_ptr() and tensor.numel() == other.numel()
