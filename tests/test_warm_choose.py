"""Which heads and units stay: each choice against refitting by NumPy without each of the others in turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from test_warm_shrink import built
from test_warm_shrink import data as calibration
from torch import nn

import leanify
from leanify.carrying.calibration import Moments
from leanify.carrying.choose import (
    RIDGE,
    SCARCE,
    choose_units,
    importances,
    most_important,
    output_projection,
    weight_matrix,
)
from leanify.carrying.narrow import common_heads, head_tables, moment_cuts
from leanify.carrying.teacher import CalibratedTeacher
from leanify.lens.located import LocatedLayer, Site
from leanify.reshaping.sites import locate

NAMES = ["hf/bert", "hf/gpt2", "hf/llama", "timm/vit_base_patch16_224"]  # with biases, transposed, in groups, of pixels


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


def moments_of(inputs: np.ndarray) -> Moments:
    return Moments(tuple(torch.from_numpy(half.T @ half) for half in (inputs[::2], inputs[1::2])))


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
    found = choose_units(site, symbol, counts, {path: moments_of(inputs)})
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
        found = choose_units(site, "h", [1], {path: moments_of(inputs)})[1]
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
    assert importances(site, symbol, {path: moments_of(inputs)}).tolist() == pytest.approx(expected)
    plain = [float((matrix[:, run] ** 2).sum()) for run in runs]
    assert importances(site, symbol, {}).tolist() == pytest.approx(plain)


def test_important_heads_and_groups_stay() -> None:
    """Of groups, whole ones."""
    site, _, _ = site_of("hf/bert", "h")
    heads = site.sizes["h"]
    scores = torch.arange(heads).double().roll(1)
    kept = sorted(sorted(range(heads), key=lambda i: -float(scores[i]))[:2])
    alone = replace(site, sizes={name: size for name, size in site.sizes.items() if name != "g"})
    assert as_lists(most_important(alone, {"h": 2, "g": 2}, scores)) == {"h": kept}
    one = replace(site, sizes={**site.sizes, "g": 1})
    assert as_lists(most_important(one, {"h": 2, "g": 1}, scores)) == {"h": kept}
    grouped = replace(site, sizes={**site.sizes, "h": 6, "g": 3})
    found = as_lists(most_important(grouped, {"h": 4, "g": 2}, torch.tensor([9.0, 0, 1, 1, 5, 5])))
    assert found == {"g": [0, 2], "h": [0, 1, 4, 5]}
    pair = replace(site, sizes={**site.sizes, "h": 4, "g": 2})
    assert as_lists(most_important(pair, {"h": 2, "g": 1}, torch.tensor([9.0, 0, 5, 5]))) == {"g": [1], "h": [2, 3]}


# -- narrow -----------------------------------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("name", ["hf/bert", "hf/llama"])
def test_layer_keeps_by_moments_or_heads(name: str) -> None:
    """What stays follows the moments, or the heads that the caller names."""
    layer = layer_of(name)
    mlp = layer.mlp
    wanted = replace(layer.read(), mlp=mlp.sizes["m"] // 2)
    wanted = replace(wanted, heads=wanted.heads // 2, kv_heads=wanted.kv_heads // 2)
    count = wanted.kv_heads if layer.attention.sizes.get("g", 1) > 1 else wanted.heads
    found = {}
    for site, symbol in ((layer.attention, "h"), (mlp, "m")):
        path, module = output_projection(site, symbol)
        found[path] = moments_of(data(module, 5 * weight_matrix(module).shape[1], 3))
    heads = choose_units(layer.attention, "h", [count], found)[count]
    units = choose_units(mlp, "m", [wanted.mlp], found)[wanted.mlp]
    own = moment_cuts(found, wanted)
    assert as_lists(own(layer.attention, "h").picks) == as_lists(heads)
    assert as_lists(own(mlp, "m").picks) == as_lists(units)
    assert own(mlp, "m").weights is not None
    assert own(layer.attention, "h").weights is not None
    others = {symbol: pick.flip(0) for symbol, pick in heads.items()}
    given = moment_cuts(found, wanted, others)
    assert as_lists(given(layer.attention, "h").picks) == as_lists(others)
    assert as_lists(given(mlp, "m").picks) == as_lists(units)


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
    wanted = [layer.set_heads(layer.heads - fewer) for layer in leanify.read(model).layers()]
    common = common_heads(teacher, wanted)
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


@pytest.mark.parametrize("name", ["hf/t5", "hf/mpnet"])
def test_sharing_needs_removed_heads(name: str) -> None:
    model, _ = built(name)
    teacher = CalibratedTeacher(model, calibration(model), calibration(model))
    same = list(leanify.read(model).layers())
    more = [layer.set_heads(layer.heads + 1) for layer in same]
    assert common_heads(teacher, same) == {}
    assert common_heads(teacher, more) == {}
