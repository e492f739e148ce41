"""Which experts of a mixture stay: those that the data is sent to and that add most there.

Without an expert the mixture gives something else for the tokens that its router sends to it. How much else, over some
of the data, is what the expert is worth; one that no token is sent to is worth nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from leanify.architecture import Layer
from leanify.errors import ShapeError
from leanify.lens import notation
from leanify.lens.located import LocatedLayer, LocatedModel, Site, routers_of
from leanify.lens.resize import resize
from leanify.upstream.hooked import hooked
from leanify.warm.axes import Axes, axes_of, select
from leanify.warm.calibration import run
from leanify.warm.donor import Donor

BATCHES = 4  # of the data: every expert is left out once for each


@dataclass(frozen=True)
class MixtureCall:
    """A call of a mixture of experts, which tokens of it are none, and what it gave."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    mask: Tensor | None
    output: Tensor

    def difference(self, other: Tensor) -> float:
        """Σ|other − output|² over the tokens."""
        rows = (other - self.output).flatten(0, -2)
        if self.mask is not None and self.mask.numel() == len(rows):
            rows = rows[self.mask.flatten().bool()]
        return float(rows.double().square().sum())


@torch.no_grad()
def keep_experts(donor: Donor, new: LocatedModel, old: LocatedLayer, layer: LocatedLayer, wanted: Layer) -> None:
    """Leave as many experts of a layer, and rows of its router, as are wanted, in place. Raises ShapeError."""
    mixture = layer.mlp
    if mixture is None or old.mlp is None or not 0 < wanted.experts < mixture.sizes.get("x", 0):
        return
    routers = routers_of(mixture.path, new.sites)
    known = {name for router in routers for name in router.sizes}
    if not {"x", "a"} <= known or not any(True for _ in _tensors(mixture)):
        raise ShapeError(f"{mixture.path} keeps its {mixture.sizes['x']} experts: how to leave some out is not known")
    groups = next((router.sizes["u"] for router in routers if "u" in router.sizes), 1)
    scores = worth(donor, old.mlp).view(groups, -1)
    best = scores.topk(wanted.experts // groups, dim=1).indices.sort(dim=1).values
    picks = (best + torch.arange(groups)[:, None] * scores.shape[1]).flatten()
    for site in (mixture, *routers):
        sizes = select(new.model, site, {"x": picks}) if "x" in site.sizes else site.sizes
        active = {"a": wanted.active} if "a" in sizes else {}
        resize(new.model, site.path, site.module, site.reading, sizes, sizes | active)


def worth(donor: Donor, mixture: Site) -> Tensor:
    """How much else a mixture gives without each of its experts: Σ|difference|² over some of the data."""
    calls = list(_calls(donor, mixture.module))
    found = list[float]()
    for expert in range(mixture.sizes["x"]):
        with _without(mixture, expert):
            others = [mixture.module(*call.args, **call.kwargs) for call in calls]
        found.append(sum(call.difference(_first(other)) for call, other in zip(calls, others, strict=True)))
    return torch.tensor(found, dtype=torch.float64)


def _calls(donor: Donor, module: nn.Module) -> Iterator[MixtureCall]:
    found: list[MixtureCall] = []

    def keep(mask: Tensor | None, _: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        found.append(MixtureCall(args, dict(kwargs), mask, _first(output)))

    for batch in donor.batches[:BATCHES]:
        hook = partial(keep, batch.get("attention_mask"))
        with hooked([module.register_forward_hook(hook, with_kwargs=True)]):
            run(donor.model, batch)
    return iter(found)


def _first(output: Any) -> Tensor:
    value: Tensor = output if isinstance(output, Tensor) else output[0]
    return value


def _tensors(mixture: Site) -> Iterator[tuple[Axes, int]]:
    """The tensors that have a part of every expert, and the axis of the experts."""
    for axes in axes_of(mixture):
        yield from ((axes, axis) for axis, layout in axes.layouts.items() if "x" in notation.symbols(layout))


@contextmanager
def _without(mixture: Site, expert: int) -> Iterator[None]:
    """An expert whose weights are zero adds nothing."""
    picks = {"x": torch.tensor([expert])}
    places = [(axes.value, axis, axes.picked(axis, mixture.sizes, picks)) for axes, axis in _tensors(mixture)]
    before = [value.index_select(axis, at.to(value.device)) for value, axis, at in places]
    try:
        for value, axis, at in places:
            value.index_fill_(axis, at.to(value.device), 0.0)
        yield
    finally:
        for (value, axis, at), part in zip(places, before, strict=True):
            value.index_copy_(axis, at.to(value.device), part)
