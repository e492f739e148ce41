"""Every block its own shape: the program's choice against trying everything, and a model within the budget."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from test_warm_carry import built

import leanify
from leanify.carrying.calibration import collect_outputs
from leanify.carrying.free import Variant, measure_variants, solve_program, transfer_free
from leanify.carrying.teacher import CalibratedTeacher
from leanify.core.errors import BudgetError


def library(seed: int) -> list[Variant]:
    """Two blocks that may lose heads, units or themselves."""
    drawn = np.random.default_rng(seed)
    parts = [("heads", 10), ("heads", 20), ("mlp", 15), ("mlp", 30), ("block", 70)]
    return [
        Variant("layers", place, part, None, saved, float(drawn.exponential()))
        for place in (0, 1)
        for part, saved in parts
    ]


def allowed(several: Sequence[Variant]) -> Iterator[tuple[Variant, ...]]:
    """Every choice that a model can be made of, by trying all."""
    for count in range(len(several) + 1):
        for taken in itertools.combinations(several, count):
            of_block = [[v.part for v in taken if v.place == place] for place in (0, 1)]
            alone = all(
                len(set(parts)) == len(parts) and ("block" not in parts or len(parts) == 1) for parts in of_block
            )
            if alone and sum(v.part == "block" for v in taken) < 2:
                yield taken


@pytest.mark.parametrize("saving", [5, 40, 95, 120])
def test_choice_minimises_total_damage(saving: int) -> None:
    """Among those that save enough."""
    for seed in range(4):
        several = library(seed)
        taken = solve_program(several, saving)
        best = min(sum(v.damage for v in t) for t in allowed(several) if sum(v.params_saved for v in t) >= saving)
        assert sum(v.params_saved for v in taken) >= saving
        assert sum(v.damage for v in taken) == pytest.approx(best)
    with pytest.raises(BudgetError, match="1,000"):
        solve_program(library(0), 1000)


def test_last_key_value_group_stays_whole() -> None:
    """A layer that has one group left looks like multi-query attention, which may lose single heads."""
    original, data = built("hf/llama")
    group = next(leanify.read(original).layers()).group
    model = leanify.write(original, leanify.read(original).map_layers(lambda layer: layer.set_heads(group)))
    teacher = CalibratedTeacher(model, data[:2], data[2:])
    name, target = teacher.architecture.stages[0].name, collect_outputs(model, data[2:], teacher.headless)
    parts = [{one.part for one in measure_variants(teacher, {name: count}, data[2:], target)} for count in (1, group)]
    assert group > 1
    assert [("heads" in several) for several in parts] == [True, False]


def test_free_shapes_keep_the_budget() -> None:
    model, data = built("hf/llama")
    whole = sum(parameter.numel() for parameter in model.parameters())
    found = transfer_free(CalibratedTeacher(model, data[:2], data[2:]), int(0.8 * whole))
    assert sum(parameter.numel() for parameter in found.model.parameters()) <= 0.8 * whole
    assert leanify.read(found.model) != leanify.read(model)
    assert [step.description.partition(":")[0] for step in found.steps] == ["round 1", "round 2"]
