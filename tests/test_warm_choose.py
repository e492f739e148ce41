"""Which heads and units stay, each choice against refitting by NumPy without each of the others in turn; and the
corrected output projection against NumPy's least squares.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from test_warm_shrink import built
from test_warm_shrink import data as calibration
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

import leanify
from leanify.carrying.calibration import Moments
from leanify.carrying.choose import (
    OUTPUTS,
    RIDGE,
    RIDGES,
    SCARCE,
    choose_units,
    correct_output,
    importances,
    least_squares,
    most_important,
    output_projection,
    set_matrix,
    weight_matrix,
)
from leanify.carrying.narrow import common_heads, head_tables
from leanify.carrying.teacher import CalibratedTeacher
from leanify.lens.located import LocatedLayer, Site
from leanify.reshaping.sites import locate

NAMES = ["hf/bert", "hf/gpt2", "hf/llama", "timm/vit_base_patch16_224"]  # with biases, transposed, in groups, of pixels


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def layer_of(name: str) -> LocatedLayer:
    return next(iter(locate(built(name)[0]).layers))


def site_of(name: str, symbol: str) -> tuple[Site, nn.Module, str]:
    layer = layer_of(name)
    site = layer.attention if symbol == "h" else layer.mlp
    path, module = output_projection(site, symbol)
    return site, module, path


def columns_of(site: Site, symbol: str) -> list[list[int]]:
    """The inputs of the output projection that belong to each unit, or to each group of heads; heads lie in a row."""
    if symbol == "m":
        return [[i] for i in range(site.sizes["m"])]
    each = site.sizes["h"] // site.sizes.get("g", site.sizes["h"]) if site.sizes.get("g", 1) > 1 else 1
    size = each * site.sizes["d"]
    return [list(range(i, i + size)) for i in range(0, site.sizes["h"] * site.sizes["d"], size)]


def picks_of(site: Site, symbol: str, kept: Sequence[int]) -> dict[str, list[int]]:
    if symbol == "h" and site.sizes.get("g", 1) > 1:
        each = site.sizes["h"] // site.sizes["g"]
        return {"g": [*kept], "h": [group * each + i for group in kept for i in range(each)]}
    return {symbol: [*kept]}


def as_lists(picks: Any) -> dict[str, list[int]]:
    return {name: pick.tolist() for name, pick in picks.items()}


def data(module: nn.Module, tokens: int, seed: int, alike: float = 1.0) -> np.ndarray:
    """Inputs of a projection that say much of each other the smaller ``alike`` is, and the constant one of its bias."""
    width = weight_matrix(module).shape[1]
    rng = np.random.default_rng(seed)
    few = rng.normal(size=(tokens, 4)) @ rng.normal(size=(4, width))
    return np.concatenate([few + alike * rng.normal(size=(tokens, width)) + 0.3, np.ones((tokens, 1))], 1)


def moments_of(*parts: np.ndarray) -> Moments:
    return Moments(tuple(torch.from_numpy(part.T @ part) for part in parts))


def survivors_of(
    module: nn.Module, inputs: np.ndarray, groups: Sequence[Sequence[int]], count: int, ridge: float
) -> list[int]:
    """One after another the group without which a refit misses least, by the second moments with a ridge."""
    matrix = weight_matrix(module).double().numpy()
    if getattr(module, "bias", None) is not None:
        matrix = np.concatenate([matrix, np.zeros((len(matrix), 1))], 1)
    else:
        inputs = inputs[:, :-1]
    second = inputs.T @ inputs / len(inputs)
    second = second + ridge * np.diag(second).mean() * np.eye(len(second))

    def missed(gone: Sequence[int]) -> float:
        out = [i for group in gone for i in groups[group]]
        kept = [i for i in range(len(second)) if i not in out]
        rest = matrix.copy()
        rest[:, kept] -= matrix @ second[:, kept] @ np.linalg.inv(second[np.ix_(kept, kept)])
        return float(np.einsum("oi,ij,oj->", rest, second, rest))

    left = list(range(len(groups)))
    gone: list[int] = []
    while len(left) > count:
        worst = min(left, key=lambda i: missed([*gone, i]))
        left.remove(worst)
        gone.append(worst)
    return left


@pytest.mark.parametrize("symbol", ["h", "m"])
@pytest.mark.parametrize("name", NAMES)
def test_largest_columns_stay_without_data(name: str, symbol: str) -> None:
    site, module, _ = site_of(name, symbol)
    matrix, groups = weight_matrix(module).double().numpy(), columns_of(site, symbol)
    power = [float((matrix[:, group] ** 2).sum()) for group in groups]
    counts = list(range(1, len(groups)))
    found = choose_units(site, symbol, counts, {})
    for count in counts:
        kept = sorted(sorted(range(len(groups)), key=lambda i: -power[i])[:count])
        assert as_lists(found[count]) == picks_of(site, symbol, kept)


@pytest.mark.parametrize("symbol", ["h", "m"])
@pytest.mark.parametrize("name", NAMES)
def test_most_replaceable_unit_goes(name: str, symbol: str) -> None:
    """Several counts at once, in any order, give what each alone gives."""
    site, module, path = site_of(name, symbol)
    groups = columns_of(site, symbol)
    inputs = data(module, 5 * weight_matrix(module).shape[1], 1)
    counts = sorted({1, len(groups) // 2, len(groups) - 1} - {0})
    found = choose_units(site, symbol, counts, {path: moments_of(inputs[::2], inputs[1::2])})
    for count in counts if len(groups) < 48 else counts[-1:]:  # of many units several go in one round
        kept = survivors_of(module, inputs, groups, count, RIDGE)
        assert as_lists(found[count]) == picks_of(site, symbol, kept)


@pytest.mark.parametrize("name", ["hf/bert", "hf/llama"])
@pytest.mark.parametrize("more", [-1, 0, 1])
def test_few_tokens_are_trusted_less(name: str, more: int) -> None:
    """Fewer tokens than twice the inputs: a ridge a hundred times as strong. Data is looked for where that matters."""
    site, module, path = site_of(name, "h")
    groups = columns_of(site, "h")
    width = weight_matrix(module).shape[1] + (getattr(module, "bias", None) is not None)
    tokens = 2 * width + more
    right, wrong = (SCARCE, RIDGE) if more < 0 else (RIDGE, SCARCE)
    told_apart = 0
    for seed in range(400):
        inputs = data(module, tokens, seed, alike=0.05)
        expected, other = (survivors_of(module, inputs, groups, 1, ridge) for ridge in (right, wrong))
        if expected == other:
            continue
        told_apart += 1
        found = choose_units(site, "h", [1], {path: moments_of(inputs[::2], inputs[1::2])})[1]
        assert as_lists(found) == picks_of(site, "h", expected)
        if told_apart == 3:
            break
    assert told_apart


@pytest.mark.parametrize("symbol", ["h", "m"])
@pytest.mark.parametrize("name", NAMES)
def test_importance_is_output_power(name: str, symbol: str) -> None:
    site, module, path = site_of(name, symbol)
    matrix = weight_matrix(module).double().numpy()
    size = site.sizes["d"] if symbol == "h" else 1
    runs = [list(range(i, i + size)) for i in range(0, matrix.shape[1], size)]
    inputs = data(module, 50, 2)
    expected = [float(((inputs[:, run] @ matrix[:, run].T) ** 2).sum(1).mean()) for run in runs]
    assert importances(site, symbol, {path: moments_of(inputs[::2], inputs[1::2])}).tolist() == pytest.approx(expected)


def test_important_heads_and_groups_stay() -> None:
    """Of groups, whole ones."""
    site, _, _ = site_of("hf/bert", "h")
    heads = site.sizes["h"]
    scores = torch.arange(heads).double().roll(1)
    kept = sorted(sorted(range(heads), key=lambda i: -float(scores[i]))[:2])
    one = replace(site, sizes={**site.sizes, "g": 1})
    assert as_lists(most_important(one, {"h": 2, "g": 1}, scores)) == {"h": kept}
    grouped = replace(site, sizes={**site.sizes, "h": 6, "g": 3})
    found = as_lists(most_important(grouped, {"h": 4, "g": 2}, torch.tensor([9.0, 0, 1, 1, 5, 5])))
    assert found == {"g": [0, 2], "h": [0, 1, 4, 5]}


# -- correction -------------------------------------------------------------------------------------------------------


def fitted(w: np.ndarray, a: np.ndarray, kept: np.ndarray, ridge: float) -> np.ndarray:
    """W' that minimises |W a − W' a_S|² + λ|W' − W_S|²; λ is a share, ``ridge``, of the mean power of a_S."""
    strength = np.sqrt(ridge * (a[:, kept] ** 2).sum(0).mean())
    inputs = np.concatenate([a[:, kept], strength * np.eye(len(kept))])
    wanted = np.concatenate([a @ w.T, strength * w[:, kept].T])
    solved: np.ndarray = np.linalg.lstsq(inputs, wanted, rcond=None)[0].T
    return solved


def error(w: np.ndarray, a: np.ndarray, kept: np.ndarray, solved: np.ndarray) -> float:
    return float(((a @ w.T - a[:, kept] @ solved.T) ** 2).sum())


def oracle(w: np.ndarray, halves: list[np.ndarray], kept: np.ndarray) -> np.ndarray:
    """At the strength that the first half finds best for the second, on some outputs; W_S where none helps."""
    whole = np.concatenate(halves)
    if len(halves) == 1:
        return fitted(w, whole, kept, RIDGE)
    some = w[:: max(1, len(w) // OUTPUTS)]
    errors = [error(some, halves[1], kept, fitted(some, halves[0], kept, ridge)) for ridge in RIDGES]
    if min(errors) >= error(some, halves[1], kept, some[:, kept]):
        return w[:, kept]
    return fitted(w, whole, kept, RIDGES[int(np.argmin(errors))])


@pytest.mark.parametrize("ridge", RIDGES)
@pytest.mark.parametrize("factor", [None, 0, 2])
def test_least_squares_matches_numpy(ridge: float, factor: int | None) -> None:
    """Also where an input is dead, or is another one's multiple."""
    w, a, kept = np.random.default_rng(0).normal(size=(5, 12)), data(nn.Linear(12, 5), 30, 1, 0.3), [0, 2, 3, 7, 11]
    a = a[:, :-1]
    if factor is not None:
        a[:, 3] = factor * a[:, 2]
    found = least_squares(torch.from_numpy(w), torch.from_numpy(a.T @ a), torch.tensor(kept), ridge)
    np.testing.assert_allclose(found.numpy(), fitted(w, a, np.array(kept), ridge), rtol=1e-6, atol=1e-8)


def check_correction(site: Site, module: nn.Module, tokens: tuple[int, ...], alike: float) -> None:
    """Hold the correction for every other unit, on parts of as many tokens, against the oracle."""
    weight = weight_matrix(module).double().numpy()
    kept = np.arange(0, weight.shape[1], 2)
    inputs = data(module, sum(tokens), 3, alike)
    parts = np.split(inputs, np.cumsum(tokens)[:-1])
    moments = {output_projection(site, "m")[0]: moments_of(*parts)}
    new, bias = correct_output(site, "m", {"m": torch.from_numpy(kept)}, moments)
    assert new.dtype == module.weight.dtype
    solved = new.double().numpy()
    if isinstance(module.bias, Tensor):
        solved = np.concatenate([solved, bias.double().numpy()[:, None]], 1)
        weight = np.concatenate([weight, module.bias.detach().double().numpy()[:, None]], 1)
        kept = np.append(kept, weight.shape[1] - 1)
    else:
        assert bias is None
        parts = [part[:, :-1] for part in parts]
    np.testing.assert_allclose(solved, oracle(weight, parts, kept), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["timm/vit_base_patch16_224", "hf/llama", "hf/gpt2"])  # a bias, none, transposed
@pytest.mark.parametrize("alike", [0.01, 0.3, 1.0, 30.0])
@pytest.mark.parametrize("tokens", [(400, 400), (12, 9), (60,)])
def test_correction_strength_is_cross_validated(name: str, alike: float, tokens: tuple[int, ...]) -> None:
    check_correction(*site_of(name, "m")[:2], tokens, alike)


@pytest.mark.parametrize("width", [63, 130])
def test_some_outputs_suffice_to_compare(width: int) -> None:
    site, module, _ = site_of("timm/vit_base_patch16_224", "m")
    weight: Any = torch.randn(width, weight_matrix(module).shape[1], dtype=torch.float64)
    module.weight, module.bias = nn.Parameter(weight), nn.Parameter(torch.randn(width, dtype=torch.float64))
    module.out_features = width  # type: ignore[assignment]
    check_correction(site, module, (50, 40), 0.5)


def test_no_data_means_no_correction() -> None:
    site, _, _ = site_of("hf/llama", "m")
    assert correct_output(site, "m", {"m": torch.arange(2)}, {}) is None
    assert correct_output(site, "x", {"m": torch.arange(2)}, {}) is None


@pytest.mark.parametrize("module", [nn.Linear(5, 3), Conv1D(3, 5), nn.Conv2d(5, 3, 1), nn.Linear(5, 3, bias=False)])
def test_set_matrix_reads_back(module: nn.Module) -> None:
    matrix, bias, before = torch.randn(3, 5), torch.randn(3), module.bias
    kept = before.detach().clone() if isinstance(before, Tensor) else None
    with torch.no_grad():
        set_matrix(module, matrix, None)
        assert torch.equal(weight_matrix(module), matrix)
        assert kept is None or torch.equal(module.bias, kept)  # type: ignore[arg-type]
        set_matrix(module, 2 * matrix, bias)
    assert torch.equal(weight_matrix(module), 2 * matrix)
    assert (module.bias is None) if kept is None else torch.equal(module.bias, bias)  # type: ignore[arg-type]


# -- narrow -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["hf/t5", "hf/mpnet"])
@pytest.mark.parametrize("fewer", [1, 2])
def test_layers_under_table_share_heads(name: str, fewer: int) -> None:
    """Each layer's importances are scaled to one, however large its weights."""
    model, _ = built(name)
    located = locate(model)
    layers = list(located.layers)
    layers[0].output.weight.data.mul_(100)
    layers[1].output.weight.data.mul_(1e-4)
    teacher = CalibratedTeacher(model, calibration(model), calibration(model))
    shapes = list(leanify.read(model).layers())
    wanted = [layer.set_heads(layer.heads - fewer) for layer in shapes]
    common = common_heads(teacher, wanted)
    for more in (0, 1):  # no head goes
        assert common_heads(teacher, [layer.set_heads(layer.heads + more) for layer in shapes]) == {}
    stages = [list(stage.layers) for stage in located.stages]
    together = [layers] if head_tables(located) else stages
    assert bool(head_tables(located)) == (name == "hf/mpnet")
    assert common
    for members in together:
        if members[0].attention.path not in common:
            continue
        shares = 0
        for layer in members:
            scores = importances(layer.attention, "h", teacher.heads(layer)).numpy()
            shares = shares + scores / scores.sum()
        kept = sorted(np.argsort(-np.asarray(shares))[: layer.read().heads - fewer].tolist())
        for layer in members:
            assert common[layer.attention.path]["h"].tolist() == kept
