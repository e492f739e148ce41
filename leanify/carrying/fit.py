"""Pair two post-norm layers by least squares on calibration data.

In a post-norm block, h = norm₁(x + A(x)) and y = norm₂(h + M(h)), the norms are in the residual stream, so no single
layer equals two of them side by side. Instead, one layer with the heads and hidden units of both is fitted part by
part, each part on the actual outputs of the previous parts (as SparseGPT and FLAP fit a projection after the parts
before it have changed):

1. the second layer's heads read x through the linear map that best predicts its input y₁ from x;
2. the output projection maps all heads to the input of the second layer's first norm, minus x;
3. the hidden units read h through the linear maps that best predict the input of each layer's MLP;
4. their output projection maps them to the input of the second layer's last norm, minus h.

The norms are the second layer's. Every fit is a ridge regression towards its starting point; the ridge's strength is
selected by cross-validation between the halves of the data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from leanify.carrying.blocks import copy_block, stage_blocks
from leanify.carrying.calibration import Call, replay, token_rows
from leanify.carrying.choose import OUTPUTS, output_projections, set_matrix, weight_matrix
from leanify.carrying.pair import adapt_forwards, check_alike, copy_sublayer, join_sites
from leanify.carrying.residual import Residual, Sublayer, record_calls
from leanify.carrying.teacher import CalibratedTeacher
from leanify.core.errors import UnsupportedModel
from leanify.lens.located import LocatedModel, Site
from leanify.lens.resize import weighted_parts

RIDGES = (1e-4, 1e-2, 1e-1, 1.0)  # candidates for the ridge, relative to the mean power of an input


@dataclass(frozen=True)
class LayerRecord:
    """The activations of two layers for one batch: the first layer's call, and the inputs of projections and norms."""

    call: Call
    mask: Tensor | None
    values: dict[str, Tensor]


@torch.no_grad()
def fit_pair(
    teacher: CalibratedTeacher,
    stage: str,
    first: int,
    narrow_model: LocatedModel,
    one: Residual,
    other: Residual,
    kept_heads: Mapping[str, tuple[Tensor, Tensor]] | None = None,
) -> nn.Module:
    """Return a block with the heads and units of two post-norm blocks, fitted to their outputs on the teacher's data.

    ``one`` and ``other`` are the two blocks in ``narrow_model``; for ``kept_heads`` see `join`. Raises
    UnsupportedModel.
    """
    check_alike(narrow_model, one, other)
    if len(one.groups) != 2 or not all(s.norm for s in one.sublayers):
        raise UnsupportedModel(f"{one.path} cannot be paired: it is not an attention and an MLP, each before a norm")
    # activations of the two layers, and copies of their blocks
    records = list(_record_layers(teacher, stage, first, one, other))
    block, second = copy_block(one.block), copy_block(other.block)
    first_sublayers = [copy_sublayer(sublayer, one, block) for sublayer in one.sublayers]
    second_sublayers = [copy_sublayer(sublayer, other, second) for sublayer in other.sublayers]

    # 1. and 2.: the attention
    _read_through(second_sublayers[0], [s.values["x"] for s in records], [s.values["y"] for s in records])
    join_sites(narrow_model.model, first_sublayers[0].site, second_sublayers[0].site, kept_heads)
    adapt_forwards(block)
    outputs = _fit_output(block, first_sublayers[0].site, records, "x", "before 0")
    _copy_norm(block, first_sublayers[0].norm, other.block)

    # 3. and 4.: the MLP, on the states that the fitted attention gives
    norm = block.get_submodule(first_sublayers[0].norm)
    states = [norm(s.values["x"] + output) for s, output in zip(records, outputs, strict=True)]
    for sublayer, name in ((first_sublayers[1], "h of first"), (second_sublayers[1], "h of second")):
        _read_through(sublayer, states, [s.values[name] for s in records])
    join_sites(narrow_model.model, first_sublayers[1].site, second_sublayers[1].site)
    records = [replace(s, values={**s.values, "h": state}) for s, state in zip(records, states, strict=True)]
    _fit_output(block, first_sublayers[1].site, records, "h", "before 1")
    _copy_norm(block, first_sublayers[1].norm, other.block)
    return block


def _record_layers(
    teacher: CalibratedTeacher, stage: str, place: int, one: Residual, other: Residual
) -> Iterator[LayerRecord]:
    """Yield the activations of the teacher's two blocks, batch by batch."""
    first, second = stage_blocks(teacher.located_model, stage)[place : place + 2]
    attention, mlp = (group[0].norm for group in other.groups)
    for (mask, call), (_, following) in zip(teacher.calls(stage, place), teacher.calls(stage, place + 1), strict=True):
        with record_calls([first, second]) as calls:
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
        yield LayerRecord(calls[id(first)], mask, {name: token_rows(value, mask) for name, value in values.items()})


def _read_through(sublayer: Sublayer, inputs: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
    """Make the maps that read ``targets`` read ``inputs`` instead, through the best linear map between them."""
    parts = weighted_parts(sublayer.site.module, sublayer.readers).values()
    bias = all(isinstance(part.bias, Tensor) for part in parts)
    width = inputs[0].shape[1]
    start = torch.eye(width, width + bias, dtype=torch.float64, device=inputs[0].device)
    through = regression(inputs, targets, start)
    for part in parts:
        matrix = weight_matrix(part).double()
        new_bias = None if not bias else part.bias + matrix @ through[:, -1]  # type: ignore[operator]
        set_matrix(part, matrix @ through[:, :width], new_bias)


def _fit_output(block: nn.Module, site: Site, records: Sequence[LayerRecord], state: str, target: str) -> list[Tensor]:
    """Fit a site's output projection: output + state is the input of the second layer's norm. Returns the outputs."""
    output = next(iter(output_projections(site).values()))
    inputs = []
    for record in records:
        with record_calls([block]) as calls:
            replay(block, record.call)
        inputs.append(token_rows(calls[id(output)].state, record.mask))
    targets = [s.values[target] - s.values[state] for s in records]
    start = weight_matrix(output).double()
    bias = isinstance(output.bias, Tensor)
    if bias:
        start = torch.cat([start, output.bias.detach().double()[:, None]], 1)  # type: ignore[operator]
    solution = regression(inputs, targets, start)
    set_matrix(output, solution[:, : inputs[0].shape[1]], solution[:, -1] if bias else None)
    return [output(rows) for rows in inputs]


def _copy_norm(block: nn.Module, path: str, source: nn.Module) -> None:
    block.get_submodule(path).load_state_dict(source.get_submodule(path).state_dict())


def regression(inputs: Sequence[Tensor], targets: Sequence[Tensor], start: Tensor) -> Tensor:
    """Return the map W that minimises Σ|W x − t|² + λ|W − W₀|² over rows x and t; W₀ = ``start``, outputs × inputs.

    An additional column of ``start`` is the bias. λ is taken from `RIDGES`: a map from every other batch with this λ
    has the smallest error on the rest, for some outputs; with one batch, λ is the largest.
    """
    rows = [torch.cat([x, x.new_ones(len(x), start.shape[1] - x.shape[1])], 1) for x in inputs]
    residuals = [t - x @ start.to(x.dtype).T for x, t in zip(rows, targets, strict=True)]
    ridge = max(RIDGES)
    if len(rows) > 1:
        some = slice(None, None, max(1, residuals[0].shape[1] // OUTPUTS))
        half = _RidgeSolver(rows[::2], [residual[:, some] for residual in residuals[::2]])
        errors = dict.fromkeys(RIDGES, 0.0)
        for candidate in RIDGES:
            change = half.solve(candidate)
            for x, residual in zip(rows[1::2], residuals[1::2], strict=True):
                errors[candidate] += float((residual[:, some] - x @ change.to(x.dtype).T).square().sum())
        ridge = min(errors, key=errors.__getitem__)
    return start + _RidgeSolver(rows, residuals).solve(ridge)


class _RidgeSolver:
    """Solves for the change of W₀ given rows x and the residuals of their targets, for any strength of the ridge.

    With X (tokens × inputs) and R (tokens × outputs), the change is Rᵀ X (Xᵀ X + λ)⁻¹ = Rᵀ (X Xᵀ + λ)⁻¹ X: the smaller
    of the two square matrices is used.
    """

    def __init__(self, rows: Sequence[Tensor], residuals: Sequence[Tensor]) -> None:
        self.inputs = rows[0].shape[1]
        self.power = sum(float(x.double().square().sum()) for x in rows) / self.inputs
        self.all_rows: Tensor | None = None
        # fewer rows than inputs: use X Xᵀ
        if sum(map(len, rows)) < self.inputs:
            self.all_rows, self.cross = torch.cat(list(rows)).double(), torch.cat(list(residuals)).double()
            self.square = self.all_rows @ self.all_rows.T
            return
        # otherwise accumulate Xᵀ X and Xᵀ R
        self.square = rows[0].new_zeros(self.inputs, self.inputs, dtype=torch.float64)
        self.cross = self.square.new_zeros(self.inputs, residuals[0].shape[1])
        for x, residual in zip(rows, residuals, strict=True):
            self.square += x.T @ x
            self.cross += x.T @ residual

    def solve(self, ridge: float) -> Tensor:
        """Return the change of W₀, outputs × inputs."""
        square = self.square.clone()
        square.diagonal().add_(ridge * max(self.power, 1e-30))
        solution: Tensor = torch.cholesky_solve(self.cross, torch.linalg.cholesky(square)).T
        return solution if self.all_rows is None else solution @ self.all_rows
