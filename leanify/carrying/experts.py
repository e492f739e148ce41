"""Select experts of a mixture by their contribution on calibration data.

Removing an expert changes the mixture's output for the tokens that its router sends to it. The size of this change on
some of the data is the expert's worth; an expert without tokens is worth nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from leanify.carrying.calibration import run
from leanify.carrying.call_traces import Call, first_tensor, record_trace
from leanify.carrying.teacher import CalibratedTeacher
from leanify.core.architecture import Layer
from leanify.core.errors import ShapeError
from leanify.lens import notation
from leanify.lens.axes import Axes, resizable_axes, select
from leanify.lens.located import LocatedLayer, LocatedModel, Site, find_routers
from leanify.lens.resize import resize

BATCHES = 4  # batches on which every expert is left out once


@torch.no_grad()
def keep_experts(
    teacher: CalibratedTeacher, new: LocatedModel, old: LocatedLayer, layer: LocatedLayer, target: Layer
) -> None:
    """Reduce the experts of a layer, and the rows of its router, to the target number, in place."""
    mixture = layer.mlp
    if mixture is None or old.mlp is None or not 0 < target.experts < mixture.sizes.get("x", 0):
        return
    routers = find_routers(mixture.path, new.sites)
    router_symbols = {name for router in routers for name in router.sizes}
    if not {"x", "a"} <= router_symbols or not any(True for _ in _tensors(mixture)):
        raise ShapeError(f"{mixture.path} keeps its {mixture.sizes['x']} experts: leanify cannot remove any of them")
    groups = next((router.sizes["u"] for router in routers if "u" in router.sizes), 1)
    scores = worth(teacher, old.mlp).view(groups, -1)
    best = scores.topk(target.experts // groups, dim=1).indices.sort(dim=1).values
    picks = (best + torch.arange(groups)[:, None] * scores.shape[1]).flatten()
    for site in (mixture, *routers):
        sizes = select(new.model, site, {"x": picks}) if "x" in site.sizes else site.sizes
        active = {"a": target.active} if "a" in sizes else {}
        resize(new.model, site.path, site.module, site.reading, sizes, sizes | active)


def worth(teacher: CalibratedTeacher, mixture: Site) -> Tensor:
    """Return the change of a mixture's output without each of its experts: Σ|difference|² over some of the data."""
    calls: list[tuple[Call, Tensor | None]] = []
    for batch in teacher.batches[:BATCHES]:
        with record_trace([mixture.module]) as passes:
            run(teacher.model, batch)
        calls += [(call, batch.get("attention_mask")) for call in itertools.chain(*passes)]
    scores = []
    for expert in range(mixture.sizes["x"]):
        lost = 0.0
        with _without(mixture, expert):
            for call, mask in calls:
                other = first_tensor(mixture.module(*call.args, **call.kwargs))
                rows = (other - call.output).flatten(0, -2)
                if mask is not None and mask.numel() == len(rows):
                    rows = rows[mask.flatten().bool()]
                lost += float(rows.double().square().sum())
        scores.append(lost)
    return torch.tensor(scores, dtype=torch.float64)


def _tensors(mixture: Site) -> Iterator[tuple[Axes, int]]:
    """Yield the tensors with an entry per expert, and their axis of experts."""
    for axes in resizable_axes(mixture):
        for axis, layout in axes.layouts.items():
            if "x" in notation.symbols(layout):
                yield axes, axis


@contextmanager
def _without(mixture: Site, expert: int) -> Iterator[None]:
    """Set an expert's weights to zero in the context, so that it adds nothing."""
    picks = {"x": torch.tensor([expert])}
    places = [(axes.value, axis, axes.pick_positions(axis, mixture.sizes, picks)) for axes, axis in _tensors(mixture)]
    before = [value.index_select(axis, at.to(value.device)) for value, axis, at in places]
    try:
        for value, axis, at in places:
            value.index_fill_(axis, at.to(value.device), 0.0)
        yield
    finally:
        for (value, axis, at), part in zip(places, before, strict=True):
            value.index_copy_(axis, at.to(value.device), part)
