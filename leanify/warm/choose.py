"""Which heads and hidden units stay: remove one after another, each time the one whose loss costs least.

Removing inputs S of an output projection W, and refitting what is left by least squares, raises E|W a − W'
a|² by

    tr(W_S ([H⁻¹]_SS)⁻¹ W_Sᵀ),  H = E[a aᵀ] + λ

(Hassibi and Stork 1993, Optimal Brain Surgeon, equation 5; for groups of inputs, such as a head's, Kurtić et
al. 2023, ZipLM, equation 2). After each removal W and H⁻¹ are those of the refitted projection, so that two
units that say the same are not both removed. Where the data says nothing of a projection, the size of its
columns decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from leanify.errors import UnsupportedModel
from leanify.lens import notation
from leanify.lens.located import Site
from leanify.lens.resize import features_of, part_of
from leanify.warm.axes import Picks
from leanify.warm.calibration import Moments

RIDGE = 1e-4  # λ, in units of the mean power of an input: enough for float64 where inputs repeat each other
SCARCE = 1e-2  # λ where there are fewer tokens than twice the inputs: H is then hardly known
WIDE = 2048  # inputs beyond which the updates of H⁻¹ are in float32: half the time and memory
ROUNDS = 24  # of updates of the whole H⁻¹, when all inputs are removed: each removes several, chosen one after another


def output_of(site: Site, symbol: str) -> tuple[str, nn.Module | None]:
    """The path and module of the map out of heads (``h``) or out of hidden units (``m``)."""
    for part, how in site.reading.columns.items():
        if symbol in how.split() and (module := part_of(site.module, part)) is not None:
            return f"{site.path}.{part}", module
    return "", None


def chosen(site: Site, symbol: str, counts: Sequence[int], found: Mapping[str, Moments]) -> dict[int, Picks]:
    """The heads or units that stay, in their old order, at each of some counts; of key/value heads, whole groups.

    A count is of key/value heads where several heads share one.
    """
    grouped = symbol == "h" and site.sizes.get("g", 1) > 1
    each = site.sizes["h"] // site.sizes["g"] if grouped else 1
    path, module = _projection(site, symbol)
    matrix = matrix_of(module).double()
    places = _places(site, symbol, path, each).to(matrix.device)
    if path not in found:
        scores = matrix.square().sum(0)[places].sum(1)
        kept = {count: _best(scores, count) for count in counts}
    else:
        second, tokens = found[path].second.to(matrix.device), found[path].tokens
        if isinstance(module.bias, Tensor):
            constant = matrix.new_zeros(len(matrix), 1)  # stays whatever its weight, so the weight does not matter
            matrix = torch.cat([matrix, constant], 1)
        else:
            second = second[:-1, :-1]
        ridge = RIDGE if tokens >= 2 * len(second) else SCARCE
        kept = survivors(matrix, second, places, counts, ridge)
    return {count: _of_groups(left, each) if grouped else {symbol: left} for count, left in kept.items()}


def most_important(site: Site, wanted: Mapping[str, int], scores: Tensor) -> Picks:
    """The heads with the largest scores, in their old order; of heads in key/value groups, whole groups."""
    groups = site.sizes.get("g", 1)
    if groups == 1:
        return {"h": _best(scores, wanted["h"])}
    return _of_groups(_best(scores.view(groups, -1).sum(1), wanted["g"]), site.sizes["h"] // groups)


def _of_groups(kept: Tensor, each: int) -> Picks:
    return {"g": kept, "h": (kept[:, None] * each + torch.arange(each)).flatten()}


def _best(scores: Tensor, count: int) -> Tensor:
    return scores.topk(count).indices.sort().values.cpu()


def importances(site: Site, symbol: str, found: Mapping[str, Moments]) -> Tensor:
    """E|W_S a_S|² of every head or unit S; |W_S|² where the data says nothing of the projection."""
    path, module = _projection(site, symbol)
    matrix = matrix_of(module).double()
    places = _places(site, symbol, path, 1)
    if path not in found:
        return matrix.square().sum(0)[places].sum(1)
    second = found[path].second[:-1, :-1].to(matrix.device)
    return torch.stack([torch.einsum("oi,ij,oj->", matrix[:, at], second[at][:, at], matrix[:, at]) for at in places])


def survivors(
    matrix: Tensor, second: Tensor, groups: Tensor, counts: Sequence[int], ridge: float = RIDGE
) -> dict[int, Tensor]:
    """Which groups of inputs stay at each of some counts; those of a small count are among those of a larger.

    ``matrix`` is W, outputs × inputs; ``second`` E[a aᵀ], inputs × inputs; ``groups`` the inputs of each
    group, groups × size. Inputs of no group, such as the constant one of a bias, stay.
    """
    strength = ridge * float(second.diagonal().mean().clamp(min=1e-30))
    inverse = second.clone()
    inverse.diagonal().add_(strength)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(inverse))
    if len(inverse) > WIDE:
        inverse, matrix = inverse.float(), matrix.float()
    matrix, left = matrix.clone(), torch.arange(len(groups), device=matrix.device)
    several = max(1, len(groups) // ROUNDS)
    found: dict[int, Tensor] = {}
    for count in sorted(set(counts), reverse=True):
        while len(left) > count:
            removing = min(several, len(left) - count)
            columns = matrix[:, groups].permute(1, 2, 0)
            costs = _costs(columns @ columns.mT, _blocks(inverse, groups))
            near = costs.topk(min(2 * removing, len(left)), largest=False).indices
            gone = near[_in_turn(matrix, inverse, groups[near], removing)]
            at = groups[gone].flatten()
            change = torch.linalg.solve(inverse[at][:, at], inverse[at])
            stays = _without(len(inverse), at)
            matrix = matrix[:, stays] - matrix[:, at] @ change[:, stays]
            inverse = inverse[stays][:, stays].sub_(inverse[stays][:, at] @ change[:, stays])
            kept = _without(len(left), gone)
            left, groups = left[kept], torch.searchsorted(stays, groups[kept])
        found[count] = left.cpu()
    return found


def _without(count: int, gone: Tensor) -> Tensor:
    """0 … count - 1 without some."""
    stays = torch.ones(count, dtype=torch.bool, device=gone.device)
    stays[gone] = False
    return stays.nonzero()[:, 0]


def _in_turn(matrix: Tensor, inverse: Tensor, groups: Tensor, count: int) -> Tensor:
    """The ``count`` groups that go first, one at a time. Their own part of WᵀW and of H⁻¹ tells."""
    inputs = groups.flatten()
    power, inverse = matrix[:, inputs].T @ matrix[:, inputs], inverse[inputs][:, inputs]
    groups = torch.arange(len(inputs), device=inputs.device).view_as(groups)
    alive, gone = torch.ones(len(groups), dtype=torch.bool, device=inputs.device), []
    for _ in range(count):
        costs = _costs(_blocks(power, groups), _blocks(inverse, groups))
        gone.append(int(costs.masked_fill(~alive, torch.inf).argmin()))
        alive[gone[-1]] = False
        at = groups[gone[-1]]
        change = torch.linalg.solve(inverse[at][:, at], inverse[at])
        inverse = inverse - inverse[:, at] @ change
        power = power - change.T @ power[at]  # (W − W_S C)ᵀ(W − W_S C), one factor at a time
        power = power - power[:, at] @ change
    return torch.tensor(gone, device=inputs.device)


def _blocks(square: Tensor, groups: Tensor) -> Tensor:
    """The block of each group on the diagonal: groups × size × size."""
    return square[groups[:, :, None], groups[:, None, :]]


def _costs(powers: Tensor, inverses: Tensor) -> Tensor:
    """tr(W_S ([H⁻¹]_SS)⁻¹ W_Sᵀ) of every group S, from its blocks of WᵀW and of H⁻¹; zeros if gone."""
    if powers.shape[-1] == 1:
        return powers[:, 0, 0] / inverses[:, 0, 0]
    inner: Tensor = torch.linalg.pinv(inverses, hermitian=True)
    return (inner * powers).sum((1, 2))


def _projection(site: Site, symbol: str) -> tuple[str, nn.Module]:
    path, module = output_of(site, symbol)
    if module is None:
        raise UnsupportedModel(f"{site.path} has no output projection by which its heads or units could be scored")
    return path, module


def _places(site: Site, symbol: str, path: str, each: int) -> Tensor:
    """The inputs of an output projection that belong to each unit, or to ``each`` heads: units × size."""
    layout = site.reading.columns[path.removeprefix(f"{site.path}.")]
    runs = torch.arange(site.sizes[symbol]).view(-1, each)
    return torch.stack([notation.picked(layout, site.sizes, {symbol: run}) for run in runs])


def matrix_of(module: nn.Module) -> Tensor:
    """The weight of a linear map as outputs × inputs (a 1 × 1 convolution's too)."""
    features = features_of(module)
    weight = module.weight
    assert isinstance(weight, Tensor)
    matrix: Tensor = weight.detach().movedim(features.output_axis, 0).flatten(1)
    return matrix
