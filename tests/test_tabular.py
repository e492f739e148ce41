"""Results that show themselves: short as text, whole as a frame, a table in a notebook."""

from __future__ import annotations

import re
from typing import Any

import pandas
import pytest
import torch

import leanify
from leanify.core.tabular import MAX_ROWS, Tabular


class Long(Tabular):
    def headline(self) -> str:
        return "<many> rows"

    def rows(self) -> list[dict[str, Any]]:
        return [{"name": f"row {number}", "value": number / 3} for number in range(MAX_ROWS + 5)]

    def cells(self) -> list[dict[str, str]]:
        return [{"name": row["name"], "value": f"{row['value']:.2f}"} for row in self.rows()]


@pytest.fixture(scope="module")
def results() -> dict[str, Tabular]:
    small = {"img_size": 32, "embed_dim": 60, "num_heads": 3}
    tiny = leanify.load("vit_tiny", overrides={**small, "depth": 2})
    return {
        "plan": leanify.redesign("vit_tiny", target_params=0.75, overrides={**small, "depth": 6}),
        "profile": leanify.profile("vit_tiny", measure=False, overrides=small),
        "probe": leanify.condition(tiny, torch.randn(2, 3, 32, 32)),
        "long": Long(),
    }


@pytest.mark.parametrize("name", ["plan", "profile", "probe", "long"])
def test_text_and_notebook_tables_match(name: str, results: dict[str, Tabular]) -> None:
    result = results[name]
    text, page = repr(result), result._repr_html_()
    assert len(text) < 1500
    assert name != "long" or text.endswith("… and 5 more; to_frame() has all of them")
    assert max(map(len, text.splitlines())) <= 100
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", page)
    assert cells == [cell for row in result.cells() for cell in row.values()]
    assert all(cell in text for cell in cells[: len(cells) * MAX_ROWS // max(MAX_ROWS, len(result.cells()))])
    assert page.count("<tr>") == len(result.cells()) + 1
    assert "<many>" not in page
    frame = result.to_frame()
    assert isinstance(frame, pandas.DataFrame)
    assert len(frame) == len(result.rows())


def test_plan_frame_has_full_numbers(results: dict[str, Tabular]) -> None:
    plan = results["plan"]
    assert isinstance(plan, leanify.search.plan.Plan)
    frame = plan.to_frame().set_index("design")
    assert frame.loc["lean", "params"] == plan.chosen.params
    assert frame.loc["control, plain", "macs"] == plan.control.macs  # type: ignore[union-attr]
