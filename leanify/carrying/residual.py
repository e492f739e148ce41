"""Find the residual sublayers of a block, x + s · F(norm(x)) or norm(x + F(x)), by running the model.

No table lists the norms and LayerScales of a block. Instead, a block is run once: the inputs and outputs of its norms
and sites show which norm feeds which site, and whether the next input is their sum.
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

from leanify.carrying.blocks import block_sites, disable_cache, stage_blocks
from leanify.carrying.calibration import Call
from leanify.core.errors import UnsupportedModel
from leanify.lens.blocks import block_paths
from leanify.lens.located import LocatedModel, Site
from leanify.lens.resize import weighted_parts
from leanify.upstream.origin import remove_on_exit


@dataclass(frozen=True)
class Sublayer:
    """x + scale · site(norm(x)). ``norm`` and ``scale`` are paths in the block; ``scale`` may be "".

    In a post-norm block it is norm(x + site(x)), and ``norm_output`` is x, the input of the site.

    ``readers`` are the parts of the site that read the norm's output: a cross-attention's keys do not.
    """

    site: Site
    norm: str
    scale: str
    readers: tuple[str, ...]
    call: Call
    norm_output: Tensor


@dataclass(frozen=True)
class Residual:
    """A block as groups of sublayers; all sublayers of a group read the same x and are added to it together."""

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
    located_model: LocatedModel, stage: str, call: Callable[[nn.Module], Any], places: Sequence[int] | None = None
) -> list[Residual | UnsupportedModel]:
    """Return the blocks of a stage, or the blocks at some places, as residual sublayers.

    ``call`` runs a model on example inputs. A block that is not residual, such as a windowed one, is replaced by the
    error with the reason.
    """
    located_model.model.eval()
    blocks = stage_blocks(located_model, stage)
    paths = block_paths(located_model.model, stage)
    places = range(len(blocks)) if places is None else places
    with disable_cache(located_model.model), record_calls([blocks[place] for place in places]) as calls:
        call(located_model.model)
    result: list[Residual | UnsupportedModel] = []
    for place in places:
        reader = _Reader(paths[place], blocks[place], list(block_sites(located_model, stage, place)), calls)
        try:
            result.append(reader.pre_norm())
        except UnsupportedModel as error:
            result.append(reader.post_norm() or error)
    return result


@contextmanager
def record_calls(blocks: Sequence[nn.Module]) -> Iterator[dict[int, Call]]:
    """Record the last call of every module in some blocks, by the module's id."""
    calls: dict[int, Call] = {}

    def keep(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        first = output[0] if isinstance(output, (tuple, list)) and output else output
        if isinstance(first, Tensor):
            calls[id(module)] = Call(args, kwargs, output)

    modules = {id(module): module for block in blocks for module in block.modules()}
    with remove_on_exit(module.register_forward_hook(keep, with_kwargs=True) for module in modules.values()):
        yield calls


@dataclass
class _Reader:
    """The state of an analysis that assigns norms and scales to a block's sublayers."""

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
        """Return the norms with one gain per channel that ran, by path."""
        norm_modules = {}
        for name, module in self.block.named_modules():
            gain = getattr(module, "weight", None)
            if "Norm" in type(module).__name__ and getattr(gain, "ndim", 0) == 1 and id(module) in self.calls:
                norm_modules[name] = module
        return norm_modules

    def norm_output(self, norm: str) -> Tensor:
        return self.calls[id(self.norms[norm])].output

    def pre_norm(self) -> Residual:
        """Return the block as sublayers x + s · F(norm(x)). Raises UnsupportedModel if it is not of this form."""
        block_call = self.calls.get(id(self.block))
        if block_call is None or not block_call.tensors:
            raise self.refuse("it did not run on the example input, or took no tensor")
        if not self.sites:
            raise self.refuse("it has no attention")
        # sites grouped by the state that their norms read
        states: list[tuple[Tensor, list[tuple[Site, str, Call]]]] = []
        for site in self.sites:
            norm, call = self.find_norm(site)
            state = self.calls[id(self.norms[norm])].state
            if not states or states[-1][0] is not state:
                states.append((state, []))
            states[-1][1].append((site, norm, call))
            self.check_readers(norm)
        if states[0][0] is not block_call.state:
            raise self.refuse("its first norm does not take the block's input")
        # each group's sum must be the next state
        groups = []
        after = [*(state for state, _ in states[1:]), block_call.output]
        for (state, members), following in zip(states, after, strict=True):
            scales = self.scales(state, [call.output for _, _, call in members], following)
            group = []
            for (site, norm, call), scale in zip(members, scales, strict=True):
                norm_output = self.norm_output(norm)
                group.append(Sublayer(site, norm, scale, self.readers(site, norm_output), call, norm_output))
            groups.append(group)
        return Residual(self.block, self.path, block_call, groups)

    def find_norm(self, site: Site) -> tuple[str, Call]:
        """Return the norm whose output a site takes, and the site's call."""
        call = self.calls.get(id(site.module))
        if call is None:
            raise self.refuse(f"{site.path} was not called as a module on the example input")
        for norm in self.norms:
            if any(tensor is self.norm_output(norm) for tensor in call.tensors):
                return norm, call
        where = f"{site.path} does not take the output of a norm"
        raise self.refuse(f"{where} (post-norm blocks normalise the sum; windowed ones cut it)")

    def scales(self, state: Tensor, outputs: Sequence[Tensor], following: Tensor) -> tuple[str, ...]:
        """Return the parameter (LayerScale) that scales each output in x + Σ s · F(norm(x)); "" without one."""
        # candidates: unused vectors of the stream's width
        parameters: dict[str, Tensor] = {}
        for name, parameter in self.block.named_parameters():
            owner = type(self.block.get_submodule(name.rpartition(".")[0])).__name__
            is_used = name in self.used or name.endswith("bias") or "Norm" in owner
            if parameter.shape == state.shape[-1:] and not is_used:
                parameters[name] = parameter
        # the combination that gives the next state, up to rounding
        bound = 16 * torch.finfo(state.dtype).eps * float(following.norm())
        fit = all(output.shape == state.shape for output in (*outputs, following))
        for chosen in itertools.product([*parameters, ""], repeat=len(outputs)) if fit else ():
            scale_names = [name for name in chosen if name]
            if len(set(scale_names)) < len(scale_names):
                continue
            total = state + sum(parameters.get(name, 1.0) * out for name, out in zip(chosen, outputs, strict=True))
            if float((total - following).norm()) <= bound:
                self.used.update(chosen)
                return chosen
        raise self.refuse("what follows an attention or MLP is not its output, scaled or not, added to its input")

    def readers(self, site: Site, norm_output: Tensor) -> tuple[str, ...]:
        """Return the parts of a site that read the norm's output; without a call, the weight's shape decides."""
        parts = []
        for part, module in weighted_parts(site.module, site.reading.rows).items():
            call = self.calls.get(id(module))
            if call is not None:
                takes = any(_same(tensor, norm_output) for tensor in call.tensors)
            else:
                weight = module.weight
                takes = isinstance(weight, Tensor) and weight.dim() == 2 and norm_output.shape[-1] in weight.shape
            if takes:
                parts.append(part)
        return tuple(parts)

    def check_readers(self, norm: str) -> None:
        """Raise an error if anything but projections reads a norm, such as a router or a convolution."""
        known_ids = {id(site.module) for site in self.sites}
        for site in self.sites:
            known_ids |= {id(part) for part in weighted_parts(site.module, site.reading.rows).values()}
        for name, module in self.block.named_modules():
            call = self.calls.get(id(module))
            inner = any(True for _ in module.children()) or not any(True for _ in module.parameters())
            if call is None or inner or id(module) in known_ids:
                continue
            if any(_same(tensor, self.norm_output(norm)) for tensor in call.tensors):
                raise self.refuse(f"{name} ({type(module).__name__}) reads {norm} in addition to the projections")

    def post_norm(self) -> Residual | None:
        """Return the block as h = norm₁(x + A(x)), then norm₂(h + M(h)); None if it has another form."""
        block_call = self.calls.get(id(self.block))
        if block_call is None or not block_call.tensors:
            return None
        norms, state, groups = dict(self.norms), block_call.state, []
        # each site must read the state, and a norm must take the sum
        for site in self.sites:
            readers = weighted_parts(site.module, site.reading.rows)
            calls = [self.calls.get(id(module)) for module in readers.values()]
            if not all(call is not None and _same(call.state, state) for call in calls):
                return None
            ends = [*weighted_parts(site.module, site.reading.columns).values()]
            if len(ends) != 1 or id(ends[0]) not in self.calls:
                return None
            end = self.calls[id(ends[0])]
            norm = next((name for name in norms if self.is_sum(norms[name], state, end.output)), None)
            if norm is None:
                return None
            groups.append([Sublayer(site, norm, "", tuple(readers), end, state)])
            state = self.calls[id(norms.pop(norm))].output
        if not groups or not _same(state, block_call.output):
            return None
        return Residual(self.block, self.path, block_call, groups, post_norm=True)

    def is_sum(self, norm: nn.Module, state: Tensor, output: Tensor) -> bool:
        """Whether a norm takes the sum of these two tensors."""
        total = self.calls[id(norm)].state
        if total.shape != state.shape or output.shape != state.shape:
            return False
        return float((state + output - total).norm()) <= 16 * torch.finfo(state.dtype).eps * float(total.norm())


def _same(tensor: Tensor, other: Tensor) -> bool:
    """Whether two tensors are the same, or views of the same values."""
    return tensor.data_ptr() == other.data_ptr() and tensor.numel() == other.numel()
