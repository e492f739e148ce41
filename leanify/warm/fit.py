"""Pair two post-norm layers by least squares on calibration data.

In a post-norm block, h = norm₁(x + A(x)) and y = norm₂(h + M(h)), the norms stand in the residual stream: no
layer equals two of them side by side. So one layer with the heads and hidden units of both is fitted, part by
part, each on what the parts before it really give (as SparseGPT and FLAP fit a projection after what stands
before it has changed):

1. the second layer's heads read x through the linear map that best predicts its input y₁ from x;
2. the output projection makes of all heads what the second layer's first norm takes, less x;
3. the hidden units read h through the linear maps that best predict what each layer's MLP took;
4. their output projection makes what the second layer's last norm takes, less h.

Norms are the second layer's. Every fit is a ridge regression towards where it starts from; how strong the
ridge is, half of the data decides for the other half.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from leanify.errors import UnsupportedModel
from leanify.lens.forwards import free
from leanify.lens.located import LocatedModel, Site
from leanify.lens.resize import features_of, part_of
from leanify.lens.sites import locate
from leanify.upstream.hooked import hooked
from leanify.warm.blocks import copied, list_of
from leanify.warm.calibration import rows_of
from leanify.warm.choose import matrix_of
from leanify.warm.correction import OUTPUTS, set_matrix
from leanify.warm.donor import Donor
from leanify.warm.pair import check_alike, join, moved, outputs_of_site
from leanify.warm.residual import Residual, Sublayer, calls_in
from leanify.warm.tape import Call, replay

RIDGES = (1e-4, 1e-2, 1e-1, 1.0)  # strengths that are tried, in units of the mean power of an input


@dataclass(frozen=True)
class Seen:
    """What two layers did with a batch: the first one's call, and the inputs of projections and norms."""

    call: Call
    mask: Tensor | None
    values: dict[str, Tensor]


@torch.no_grad()
def fitted_pair(
    donor: Donor,
    stage: str,
    first: int,
    pared: LocatedModel,
    one: Residual,
    other: Residual,
    kept: Mapping[str, tuple[Tensor, Tensor]] | None = None,
) -> nn.Module:
    """A block with the heads and units of two post-norm blocks, which makes of the donor's states what they make.

    ``one`` and ``other`` are the two as they stand in ``pared``; ``kept`` as in `join`. Raises
    UnsupportedModel.
    """
    check_alike(pared, one, other)
    if len(one.groups) != 2 or not all(s.norm for s in one.sublayers):
        raise UnsupportedModel(f"{one.path} cannot be paired: it is not an attention and an MLP, each before a norm")
    seen = list(_seen(donor, stage, first, one, other))
    block, second = copied(one.block), copied(other.block)
    mine, theirs = ([moved(s, r, b) for s in r.sublayers] for r, b in ((one, block), (other, second)))

    _read_through(theirs[0], [s.values["x"] for s in seen], [s.values["y"] for s in seen])
    join(pared.model, mine[0].site, theirs[0].site, kept)
    for layer in locate(block).layers:
        if features_of(layer.output).inputs != features_of(layer.output).outputs:
            free(layer.attention.module)
    given = _fit_output(block, mine[0].site, seen, "x", "before 0")
    _copy_norm(block, mine[0].norm, other.block)

    norm = block.get_submodule(mine[0].norm)
    states = [norm(s.values["x"] + output) for s, output in zip(seen, given, strict=True)]
    for sublayer, name in ((mine[1], "h of first"), (theirs[1], "h of second")):
        _read_through(sublayer, states, [s.values[name] for s in seen])
    join(pared.model, mine[1].site, theirs[1].site)
    seen = [replace(s, values={**s.values, "h": state}) for s, state in zip(seen, states, strict=True)]
    _fit_output(block, mine[1].site, seen, "h", "before 1")
    _copy_norm(block, mine[1].norm, other.block)
    return block


def _seen(donor: Donor, stage: str, place: int, one: Residual, other: Residual) -> Iterator[Seen]:
    """What the donor's own two blocks do, batch by batch."""
    first, second = list_of(donor.located, stage)[place : place + 2]
    attention, mlp = (group[0].norm for group in other.groups)
    for (mask, call), (_, following) in zip(donor.calls(stage, place), donor.calls(stage, place + 1), strict=True):
        with calls_in([first, second]) as calls:
            replay(first, call)
            replay(second, following)
        before = calls[id(first.get_submodule(one.groups[0][0].norm))]
        norms = [calls[id(second.get_submodule(path))] for path in (attention, mlp)]
        values = {
            "x": call.state,
            "y": following.state,
            "h of first": before.output,
            "h of second": norms[0].output,
            "before 0": norms[0].state,
            "before 1": norms[1].state,
        }
        yield Seen(calls[id(first)], mask, {name: rows_of(value, mask) for name, value in values.items()})


class _Reached(Exception):
    """Ends a forward pass at the module that was asked for: what follows it is not looked at."""


def _into(block: nn.Module, seen: Seen, module: nn.Module) -> Tensor:
    """The input of a module of a block on what the first layer was called with, as (tokens, width)."""
    found: list[Tensor] = []

    def reached(_: nn.Module, args: tuple[Tensor, ...]) -> None:
        found.append(rows_of(args[0], seen.mask))
        raise _Reached

    with hooked([module.register_forward_pre_hook(reached)]), suppress(_Reached):
        block(*seen.call.args, **seen.call.kwargs)
    return found[0]


def _read_through(sublayer: Sublayer, given: Sequence[Tensor], wanted: Sequence[Tensor]) -> None:
    """Let the maps that read ``wanted`` read ``given``, through the best linear map between them."""
    parts = [part_of(sublayer.site.module, part) for part in sublayer.readers]
    bias = all(part is not None and isinstance(part.bias, Tensor) for part in parts)
    width = given[0].shape[1]
    start = torch.eye(width, width + bias, dtype=torch.float64, device=given[0].device)
    through = regression(given, wanted, start)
    for part in parts:
        assert part is not None
        matrix = matrix_of(part).double()
        added = None if not bias else part.bias + matrix @ through[:, -1]  # type: ignore[operator]
        set_matrix(part, matrix @ through[:, :width], added)


def _fit_output(block: nn.Module, site: Site, seen: Sequence[Seen], state: str, target: str) -> list[Tensor]:
    """Fit a site's output projection: output + state is what the second layer's norm took. → what it gives"""
    output = outputs_of_site(site)[0]
    inputs = [_into(block, s, output) for s in seen]
    wanted = [s.values[target] - s.values[state] for s in seen]
    start = matrix_of(output).double()
    bias = isinstance(output.bias, Tensor)
    if bias:
        start = torch.cat([start, output.bias.detach().double()[:, None]], 1)  # type: ignore[operator]
    solved = regression(inputs, wanted, start)
    set_matrix(output, solved[:, : inputs[0].shape[1]], solved[:, -1] if bias else None)
    return [output(rows) for rows in inputs]


def _copy_norm(block: nn.Module, path: str, source: nn.Module) -> None:
    block.get_submodule(path).load_state_dict(source.get_submodule(path).state_dict())


def regression(given: Sequence[Tensor], wanted: Sequence[Tensor], start: Tensor) -> Tensor:
    """The map W that minimises Σ|W x − t|² + λ|W − W₀|² over rows x and t; W₀ = ``start``, outputs × inputs.

    Where ``start`` has a column more than x, it is the bias. λ is the one of `RIDGES` whose map from every
    other batch has the least error on the rest, in some outputs; with one batch, the largest.
    """
    rows = [torch.cat([x, x.new_ones(len(x), start.shape[1] - x.shape[1])], 1) for x in given]
    missed = [t - x @ start.to(x.dtype).T for x, t in zip(rows, wanted, strict=True)]
    ridge = max(RIDGES)
    if len(rows) > 1:
        some = slice(None, None, max(1, len(start) // OUTPUTS))
        others = [(x, left[:, some]) for x, left in zip(rows[1::2], missed[1::2], strict=True)]
        half = _Change(rows[::2], [left[:, some] for left in missed[::2]])
        errors = {each: _error(half.of(each), others) for each in RIDGES}
        ridge = min(errors, key=errors.__getitem__)
    return start + _Change(rows, missed).of(ridge)


class _Change:
    """What is added to W₀, from rows x and from what W₀ misses of their targets, at any strength of the ridge.

    With X (tokens × inputs) and R (tokens × outputs) it is Rᵀ X (Xᵀ X + λ)⁻¹ = Rᵀ (X Xᵀ + λ)⁻¹ X: the smaller
    of the two squares is solved.
    """

    def __init__(self, rows: Sequence[Tensor], missed: Sequence[Tensor]) -> None:
        self.inputs = rows[0].shape[1]
        self.power = sum(float(x.double().square().sum()) for x in rows) / self.inputs
        self.whole: Tensor | None = None
        if sum(map(len, rows)) < self.inputs:
            self.whole, self.cross = torch.cat(list(rows)).double(), torch.cat(list(missed)).double()
            self.square = self.whole @ self.whole.T
            return
        self.square = rows[0].new_zeros(self.inputs, self.inputs, dtype=torch.float64)
        self.cross = self.square.new_zeros(self.inputs, missed[0].shape[1])
        for x, left in zip(rows, missed, strict=True):
            self.square += x.T @ x
            self.cross += x.T @ left

    def of(self, ridge: float) -> Tensor:
        """Outputs × inputs."""
        square = self.square.clone()
        square.diagonal().add_(ridge * max(self.power, 1e-30))
        solved: Tensor = torch.cholesky_solve(self.cross, torch.linalg.cholesky(square)).T
        return solved if self.whole is None else solved @ self.whole


def _error(change: Tensor, others: Sequence[tuple[Tensor, Tensor]]) -> float:
    """Σ|t − (W₀ + change) x|² over rows x, each with t − W₀ x."""
    return sum(float((left - x @ change.to(x.dtype).T).square().sum()) for x, left in others)
