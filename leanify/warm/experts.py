"""Which experts of a mixture stay: those that the data is sent to and that add most there.

Without an expert the mixture gives something else for the tokens that its router sends to it. How much else,
over some of the data, is what the expert is worth; one that no token is sent to is worth nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from leanify.architecture import Layer
from leanify.errors import ShapeError
from leanify.lens import notation
from leanify.lens.located import LocatedLayer, LocatedModel, Site, routers_of
from leanify.lens.resize import resize
from leanify.warm.axes import Axes, axes_of, select
from leanify.warm.calibration import run
from leanify.warm.donor import Donor
from leanify.warm.tape import Call, first_of, recording

BATCHES = 4  # of the data: every expert is left out once for each


@torch.no_grad()
def keep_experts(donor: Donor, new: LocatedModel, old: LocatedLayer, layer: LocatedLayer, wanted: Layer) -> None:
    """Leave as many experts of a layer, and rows of its router, as are wanted, in place."""
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
    calls: list[tuple[Call, Tensor | None]] = []
    for batch in donor.batches[:BATCHES]:
        with recording([mixture.module]) as passes:
            run(donor.model, batch)
        calls += [(call, batch.get("attention_mask")) for call in itertools.chain(*passes)]
    found = []
    for expert in range(mixture.sizes["x"]):
        lost = 0.0
        with _without(mixture, expert):
            for call, mask in calls:
                other = first_of(mixture.module(*call.args, **call.kwargs))
                rows = (other - call.output).flatten(0, -2)
                if mask is not None and mask.numel() == len(rows):
                    rows = rows[mask.flatten().bool()]
                lost += float(rows.double().square().sum())
        found.append(lost)
    return torch.tensor(found, dtype=torch.float64)


def _tensors(mixture: Site) -> Iterator[tuple[Axes, int]]:
    """The tensors that have a part of every expert, and the axis of the experts."""
    for axes in axes_of(mixture):
        for axis, layout in axes.layouts.items():
            if "x" in notation.symbols(layout):
                yield axes, axis


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
