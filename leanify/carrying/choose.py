"""Select heads and hidden units, and correct their output projection for the removed ones.

One after another is removed, each time the one with the smallest loss. Removing inputs S of an output projection W, and
refitting the rest by least squares, raises E|W a − W' a|² by

    tr(W_S ([H⁻¹]_SS)⁻¹ W_Sᵀ),  H = E[a aᵀ] + λ

(Hassibi and Stork 1993, Optimal Brain Surgeon, equation 5; for groups of inputs, such as a head's, Kurtić et
al. 2023, ZipLM, equation 2). W and H⁻¹ are updated after each removal, so two redundant units are not both removed.
Without data for a projection, the norm of its columns decides; experts in one tensor keep the units with the largest
weights over all experts.

The corrected projection W' of the kept inputs minimises E|W a − W' a_S|² + λ|W' − W_S|², with a the projection's input
(Frantar & Alistarh 2023, SparseGPT, solve the same problem entry by entry). W' = W_S is one of the candidates, so the
error on the data never rises. With few tokens the error on other data could rise: λ is the one whose W' from half
of the batches is best on the other half, and W_S is kept if it is better than all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from leanify.carrying.calibration import Moments
from leanify.core.errors import UnsupportedModel
from leanify.lens import notation
from leanify.lens.axes import Picks, resizable_axes
from leanify.lens.located import Site
from leanify.lens.resize import linear_features, weighted_part

RIDGE = 1e-4  # λ, relative to the mean power of an input: enough for float64 with redundant inputs
SCARCE = 1e-2  # λ with fewer tokens than twice the inputs, which leave H uncertain
WIDE = 2048  # above this many inputs, H⁻¹ is updated in float32: half the time and memory
ROUNDS = 24  # updates of the full H⁻¹ to remove all inputs; each removes several, selected sequentially
RIDGES = (RIDGE, 1e-2, 1.0)  # candidates for the λ of a correction, relative to the mean power of an input
OUTPUTS = 64  # number of outputs on which they are compared
Weights = tuple[Tensor, Tensor | None]  # a weight, outputs × inputs, and a bias


def output_projection(site: Site, symbol: str) -> tuple[str, nn.Module | None]:
    """Return the path and module of the output projection of heads (``h``) or hidden units (``m``)."""
    for part, how in site.reading.columns.items():
        if symbol in how.split() and (module := weighted_part(site.module, part)) is not None:
            return f"{site.path}.{part}", module
    return "", None


def output_projections(site: Site) -> dict[str, nn.Module]:
    """Return the output projections of a site by path: of heads first, then of hidden units."""
    found = (output_projection(site, symbol) for symbol in "hm")
    return {path: module for path, module in found if module is not None}


def choose_units(site: Site, symbol: str, counts: Sequence[int], moments: Mapping[str, Moments]) -> dict[int, Picks]:
    """Return the heads or units to keep at each count, in their old order; key/value groups stay complete.

    If several heads share a key/value head, a count is of key/value heads.
    """
    is_grouped = symbol == "h" and site.sizes.get("g", 1) > 1
    group_size = site.sizes["h"] // site.sizes["g"] if is_grouped else 1
    path, module = output_projection(site, symbol)
    if module is None or path not in moments:  # experts in one tensor, or without data
        scores = importances(site, symbol, {}, group_size)
        kept_by_count = {count: _best(scores, count) for count in counts}
    else:
        matrix = weight_matrix(module).double()
        places = _all_inputs(site, symbol, path, group_size).to(matrix.device)
        second, tokens = moments[path].second.to(matrix.device), moments[path].tokens
        if isinstance(module.bias, Tensor):
            constant = matrix.new_zeros(len(matrix), 1)  # the constant input stays, whatever its weight
            matrix = torch.cat([matrix, constant], 1)
        else:
            second = second[:-1, :-1]
        ridge = RIDGE if tokens >= 2 * len(second) else SCARCE
        kept_by_count = survivors(matrix, second, places, counts, ridge)
    # key/value heads → picks of their groups
    if is_grouped:
        return {count: _group_picks(indices, group_size) for count, indices in kept_by_count.items()}
    return {count: {symbol: indices} for count, indices in kept_by_count.items()}


def most_important(site: Site, counts: Mapping[str, int], scores: Tensor) -> Picks:
    """Return the heads with the largest scores, in their old order; key/value groups stay complete."""
    groups = site.sizes.get("g", 1)
    if groups == 1:
        return {"h": _best(scores, counts["h"])}
    return _group_picks(_best(scores.view(groups, -1).sum(1), counts["g"]), site.sizes["h"] // groups)


def _group_picks(groups: Tensor, group_size: int) -> Picks:
    return {"g": groups, "h": (groups[:, None] * group_size + torch.arange(group_size)).flatten()}


def _best(scores: Tensor, count: int) -> Tensor:
    return scores.topk(count).indices.sort().values.cpu()


def importances(site: Site, symbol: str, moments: Mapping[str, Moments], group_size: int = 1) -> Tensor:
    """Return E|W_S a_S|² of every head or unit S, or |W_S|² without data for the projection."""
    path, module = output_projection(site, symbol)
    if module is None:
        return _unit_sizes(site, symbol, group_size)
    matrix = weight_matrix(module).double()
    places = _all_inputs(site, symbol, path, group_size)
    if path not in moments:
        return matrix.square().sum(0)[places].sum(1)
    second = moments[path].second[:-1, :-1].to(matrix.device)
    return torch.stack([torch.einsum("oi,ij,oj->", matrix[:, at], second[at][:, at], matrix[:, at]) for at in places])


def survivors(
    matrix: Tensor, second: Tensor, groups: Tensor, counts: Sequence[int], ridge: float = RIDGE
) -> dict[int, Tensor]:
    """Return the groups of inputs to keep at each count; the groups of a smaller count are a subset of a larger one's.

    ``matrix`` is W, outputs × inputs; ``second`` is E[a aᵀ], inputs × inputs; ``groups`` has the inputs of each group,
    groups × size. Inputs outside every group, such as the constant input of a bias, stay.
    """
    # H⁻¹ from its Cholesky factor
    strength = ridge * float(second.diagonal().mean().clamp(min=1e-30))
    inverse = second.clone()
    inverse.diagonal().add_(strength)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(inverse))
    if len(inverse) > WIDE:
        inverse, matrix = inverse.float(), matrix.float()
    # remove several groups per round, from the largest count to the smallest
    matrix, alive = matrix.clone(), torch.arange(len(groups), device=matrix.device)
    several = max(1, len(groups) // ROUNDS)
    result: dict[int, Tensor] = {}
    for count in sorted(set(counts), reverse=True):
        while len(alive) > count:
            removing = min(several, len(alive) - count)
            # the candidates: twice as many of the cheapest groups, of which the best sequence is removed
            columns = matrix[:, groups].permute(1, 2, 0)
            costs = _costs(columns @ columns.mT, _blocks(inverse, groups))
            cheapest = costs.topk(min(2 * removing, len(alive)), largest=False).indices
            removed_indices = cheapest[_pick_sequentially(matrix, inverse, groups[cheapest], removing)]
            # refit W to the remaining inputs, and update H⁻¹
            at = groups[removed_indices].flatten()
            change = torch.linalg.solve(inverse[at][:, at], inverse[at])
            stays = _complement(len(inverse), at)
            matrix = matrix[:, stays] - matrix[:, at] @ change[:, stays]
            inverse = inverse[stays][:, stays].sub_(inverse[stays][:, at] @ change[:, stays])
            kept_indices = _complement(len(alive), removed_indices)
            alive, groups = alive[kept_indices], torch.searchsorted(stays, groups[kept_indices])
        result[count] = alive.cpu()
    return result


def _complement(count: int, removed_indices: Tensor) -> Tensor:
    """Return 0 … count − 1 without the removed indices."""
    stays = torch.ones(count, dtype=torch.bool, device=removed_indices.device)
    stays[removed_indices] = False
    return stays.nonzero()[:, 0]


def _pick_sequentially(matrix: Tensor, inverse: Tensor, groups: Tensor, count: int) -> Tensor:
    """Select ``count`` groups to remove, one at a time, from their blocks of WᵀW and H⁻¹."""
    inputs = groups.flatten()
    power, inverse = matrix[:, inputs].T @ matrix[:, inputs], inverse[inputs][:, inputs]
    groups = torch.arange(len(inputs), device=inputs.device).view_as(groups)
    alive, removed_indices = torch.ones(len(groups), dtype=torch.bool, device=inputs.device), []
    for _ in range(count):
        costs = _costs(_blocks(power, groups), _blocks(inverse, groups))
        removed_indices.append(int(costs.masked_fill(~alive, torch.inf).argmin()))
        alive[removed_indices[-1]] = False
        at = groups[removed_indices[-1]]
        change = torch.linalg.solve(inverse[at][:, at], inverse[at])
        inverse = inverse - inverse[:, at] @ change
        power = power - change.T @ power[at]  # (W − W_S C)ᵀ(W − W_S C), one factor at a time
        power = power - power[:, at] @ change
    return torch.tensor(removed_indices, device=inputs.device)


def _blocks(square: Tensor, groups: Tensor) -> Tensor:
    """Return the diagonal block of each group: groups × size × size."""
    return square[groups[:, :, None], groups[:, None, :]]


def _costs(powers: Tensor, inverses: Tensor) -> Tensor:
    """Return tr(W_S ([H⁻¹]_SS)⁻¹ W_Sᵀ) of every group S, from its blocks of WᵀW and H⁻¹; zero for removed groups."""
    if powers.shape[-1] == 1:
        return powers[:, 0, 0] / inverses[:, 0, 0]
    inner: Tensor = torch.linalg.pinv(inverses, hermitian=True)
    return (inner * powers).sum((1, 2))


def _unit_sizes(site: Site, symbol: str, group_size: int) -> Tensor:
    """The size of every unit, or ``group_size`` heads: |row|² · |column|², over all tensors that hold it.

    Experts in one tensor (experts × units × width) have no output projection whose inputs could be measured. They all
    keep the same units, so their squares are summed.
    """
    runs = torch.arange(site.sizes[symbol]).view(-1, group_size)
    scores = torch.ones(len(runs), dtype=torch.float64)
    for axes in resizable_axes(site):
        for axis, layout in axes.layouts.items():
            if symbol not in notation.symbols(layout):
                continue
            # squares along the axis, and their sum for every unit
            others = [other for other in range(axes.value.dim()) if other != axis]
            squares = axes.value.float().square()
            powers = squares.sum(others, dtype=torch.float64).cpu() if others else squares.double().cpu()
            places = torch.stack([notation.pick_positions(layout, site.sizes, {symbol: run}) for run in runs])
            scores *= powers[places].sum(1)
    if not scores.max() > 0:
        raise UnsupportedModel(f"{site.path} holds nothing by which its heads or units could be scored")
    return scores


def input_positions(site: Site, path: str, picks: Picks) -> Tensor:
    """Return the inputs that the output projection at ``path`` takes from some heads or units."""
    return notation.pick_positions(site.reading.columns[path.removeprefix(f"{site.path}.")], site.sizes, picks)


def _all_inputs(site: Site, symbol: str, path: str, group_size: int) -> Tensor:
    """Return the inputs of an output projection for each unit, or for each group of heads: units × size."""
    runs = torch.arange(site.sizes[symbol]).view(-1, group_size)
    return torch.stack([input_positions(site, path, {symbol: run}) for run in runs])


def weight_matrix(module: nn.Module) -> Tensor:
    """Return the weight of a linear map as outputs × inputs, also of a 1 × 1 convolution."""
    features = linear_features(module)
    weight = module.weight
    assert isinstance(weight, Tensor)
    matrix: Tensor = weight.detach().movedim(features.output_axis, 0).flatten(1)
    return matrix


# -- correction ----------


def correct_output(site: Site, symbol: str, picks: Picks, moments: Mapping[str, Moments]) -> Weights | None:
    """Return the least-squares output projection of the kept inputs, and its bias; None without data."""
    path, module = output_projection(site, symbol)
    if module is None or path not in moments:
        return None
    kept_inputs = input_positions(site, path, picks)
    matrix = weight_matrix(module).double()
    bias = module.bias
    halves = [part.to(matrix.device) for part in moments[path].sums]
    if isinstance(bias, Tensor):
        matrix = torch.cat([matrix, bias.double()[:, None]], 1)
        kept_inputs = torch.cat([kept_inputs, torch.tensor([matrix.shape[1] - 1])])
    else:
        halves = [part[:-1, :-1] for part in halves]
    # the λ from one half of the data that is best on the other half
    if len(halves) < 2:
        solution = least_squares(matrix, halves[0], kept_inputs)
    else:
        first, second = halves
        some = matrix[:: max(1, len(matrix) // OUTPUTS)]
        errors = {}
        for ridge in RIDGES:
            errors[ridge] = _error(some, second, kept_inputs, least_squares(some, first, kept_inputs, ridge))
        best = min(errors, key=errors.__getitem__)
        if errors[best] < _error(some, second, kept_inputs, some[:, kept_inputs]):
            solution = least_squares(matrix, first + second, kept_inputs, best)
        else:
            solution = matrix[:, kept_inputs]
    solution = solution.to(weight_matrix(module).dtype)
    return (solution[:, :-1], solution[:, -1].clone()) if isinstance(bias, Tensor) else (solution, None)


def _error(matrix: Tensor, second: Tensor, kept_inputs: Tensor, solution: Tensor) -> float:
    """Return Σ|W a − W' a_S|² from Σ a aᵀ."""
    residual = matrix.clone()
    residual[:, kept_inputs] -= solution
    return float(((residual @ second) * residual).sum())


def least_squares(matrix: Tensor, second: Tensor, kept_inputs: Tensor, ridge: float = RIDGE) -> Tensor:
    """Return the W' that minimises E|W a − W' a_S|² + λ|W' − W_S|², given E[a aᵀ] or any multiple of it.

    W' = W_S + (W G_S − W_S G_SS) (G_SS + λ)⁻¹, with G_S the kept columns of E[a aᵀ].
    """
    start = matrix[:, kept_inputs]
    columns = second[:, kept_inputs]
    inner = columns[kept_inputs]
    target = matrix @ columns - start @ inner
    inner.diagonal().add_(ridge * float(inner.diagonal().mean().clamp(min=1e-30)))
    change: Tensor = torch.cholesky_solve(target.T, torch.linalg.cholesky(inner))
    return start + change.T


def set_matrix(module: nn.Module, matrix: Tensor, bias: Tensor | None) -> None:
    """Set a linear map's weight from outputs × inputs (see `weight_matrix`), in place. None keeps the bias."""
    weight = module.weight
    assert isinstance(weight, Tensor)
    weight.copy_(matrix.movedim(0, linear_features(module).output_axis).reshape(weight.shape))
    if bias is not None and isinstance(module.bias, Tensor):
        module.bias.copy_(bias)
