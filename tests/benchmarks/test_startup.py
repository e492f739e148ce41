"""Whole processes side by side, by processor time: start-up, and a redesign beside building its model.

The bars are a third above the goals: what is asserted is not the noise. `speed.py` writes the page of results.
"""

from __future__ import annotations

import pytest
import speed

pytestmark = pytest.mark.benchmark
SLACK = 4 / 3


def check(figure: speed.Figure) -> None:
    print(figure.row())
    assert figure.median <= SLACK * figure.goal


def test_what_needs_no_torch_starts_like_its_libraries() -> None:
    for figure in speed.start_up(pairs=7):
        check(figure)


def test_a_redesign_beside_building_its_model() -> None:
    for figure in speed.redesigns(pairs=3):
        check(figure)


def test_large_models_are_planned_in_seconds() -> None:
    for figure in speed.large(runs=1):
        check(figure)
