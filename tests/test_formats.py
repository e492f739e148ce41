"""Formats of results, amounts with units, and what is checked before torch is imported."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest
from commands import run_here

import leanify
from leanify.cli import output as formats
from leanify.core import recipe as recipes
from leanify.core.recipe import ALIASES
from leanify.core.units import format_count
from leanify.search.options import amount, check_budget

ROWS: list[dict[str, Any]] = [
    {"name": "a|b", "heads": [4, 8], "memory": {"peak": None}},
    {"name": "c, d", "heads": 3, "memory": {"peak": 7}, "more": 0.1},
]
CELLS = [
    {"name": "a|b", "heads": "4;8", "memory.peak": "", "more": ""},
    {"name": "c, d", "heads": "3", "memory.peak": "7", "more": "0.1"},
]


def shown(kind: formats.Kind, capsys: Any, rows: list[dict[str, Any]] = ROWS) -> str:
    formats.show(kind, {"rows": rows}, rows, lambda: print("drawn"))
    text: str = capsys.readouterr().out
    return text


def test_formats_hold_equal_rows(capsys: Any) -> None:
    assert shown("table", capsys) == "drawn\n"
    assert json.loads(shown("json", capsys)) == {"rows": ROWS}
    assert list(csv.DictReader(io.StringIO(shown("csv", capsys)))) == CELLS
    lines = shown("markdown", capsys).splitlines()
    assert lines[:2] == ["| name | heads | memory.peak | more |", "| --- | --- | --- | --- |"]
    assert lines[2] == r"| a\|b | 4;8 |  |  |"


def test_markdown_leaves_out_empty_columns(capsys: Any) -> None:
    rows = [{"name": "a", "latency": None, "heads": 0}, {"name": "b", "latency": None, "heads": 2}]
    assert shown("markdown", capsys, rows).splitlines()[::2] == ["| name | heads |", "| a | 0 |"]
    assert shown("csv", capsys, rows).splitlines()[0] == "name,latency,heads"


def test_markdown_plan_has_table_columns(capsys: Any) -> None:
    """As in the table, with the design in every row; CSV has the budget and every number."""
    printed = {}
    for kind in ("table", "markdown", "csv"):
        _, out, _ = run_here(f"redesign vit_tiny --format {kind}", capsys)
        printed[kind] = out.splitlines()
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in printed["markdown"]]
    assert head[:3] == ["source", "budget", "design"]
    assert "  ".join(head[3:]).split() == printed["table"][2].split()
    plan = leanify.redesign("vit_tiny")
    assert [row[2] for row in rows] == [name for name, _ in plan.designs()]
    assert rows[1][head.index("params")] == format_count(plan.chosen.params)
    assert {row["budget"] for row in csv.DictReader(printed["csv"])} == {"0.5"}


def test_amounts_are_not_shares() -> None:
    assert amount("--max-latency", "12ms") == 0.012
    assert amount("--max-params", "43M") == 43e6
    with pytest.raises(leanify.BudgetError, match="is a share"):
        amount("--max-params", "0.5")
    check_budget("--target-params", "encoder=0.75,decoder=20M")
    with pytest.raises(leanify.BudgetError, match="20MB"):
        check_budget("--target-params", "encoder=0.75,decoder=20MB")


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("learning_rate=1", "it is optim.lr: --set optim.lr=1"), ("epochs=3", "--set schedule.epochs=3"),
        ("optim.learning_rate=1", "it is optim.lr"), ("optim.epochs=1", "it is schedule.epochs"),
        ("optim.lrr=1", "nearest: lr"), ("train.lr=1", "it is optim.lr"),
        ("optim.dropout=0.1", "model.override.drop_rate"), ("schedule.epochs=abc", "it must be a number"),
        ("nonsense.nonsense=1", "there are model, data"),
    ],
)  # fmt: skip
def test_wrong_setting_names_right_one(setting: str, words: str) -> None:
    with pytest.raises(leanify.RecipeError, match=words):
        recipes.apply_settings(recipes.load("digits"), [setting])
    own = {key for key in ALIASES.values() if not key.startswith("model.override.")}  # the rest are the model's
    assert own <= set(recipes.all_keys())


def test_only_machines_get_full_precision(capsys: Any) -> None:
    row = {"top1": 90.92592592592594, "loss": 0.1 + 0.2, "params": 1234567, "rows": [1 / 3]}
    assert shown("markdown", capsys, [row]).splitlines()[2] == "| 90.93 | 0.3000 | 1234567 | 0.3333 |"
    [_, cells] = csv.reader(shown("csv", capsys, [row]).splitlines())
    assert cells == [str(90.92592592592594), str(0.1 + 0.2), "1234567", str(1 / 3)]
