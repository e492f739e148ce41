"""An option of `redesign` is written down once: the command line, Python and JSON show the same ones."""

from __future__ import annotations

import inspect
import json
from dataclasses import fields
from typing import Any

import pytest
import typer
from cases import IMAGE

import leanify
from leanify.cli.redesign import redesign as command
from leanify.core import recipe
from leanify.search.options import Options, flag_name, flags
from leanify.sources import find

NAMES = [option.name for option in fields(Options)]


def parser() -> Any:
    app = typer.Typer(add_completion=False)
    app.command()(command)
    return typer.main.get_command(app)


def test_options_are_flags_and_keywords() -> None:
    shown = {name for parameter in parser().params for name in parameter.opts}
    assert {flag_name(name) for name in flags()} <= shown
    assert {*NAMES} - {*flags()} == {"tokens"}
    assert set(NAMES) <= set(inspect.signature(leanify.redesign).parameters)


def test_help_lists_28_options() -> None:
    """Without --json, which every command has."""
    listed = {max(one.opts, key=len) for one in parser().params if one.opts[0].startswith("-") and not one.hidden}
    assert len(listed - {"--help", "--json"}) <= 28
    assert {"--json", "--override", "--control", "--weights"} <= listed


def test_json_options_repeat_the_plan() -> None:
    """JSON holds the options that were set, and they make the same plan."""
    plan = leanify.redesign("vit_tiny", target_params=0.7, depth=8, overrides=IMAGE | {"depth": 12}, top=1)
    held = json.loads(json.dumps(plan.to_json()["options"]))
    assert held == {"target_params": 0.7, "depth": 8, "overrides": IMAGE | {"depth": 12}, "top": 1}
    again = leanify.redesign("vit_tiny", Options(**held))
    assert again.chosen == plan.chosen
    assert leanify.redesign("vit_tiny", Options(**held), depth=9).chosen.depth == 9


def test_invalid_values_are_refused_in_python() -> None:
    wrong: dict[str, Any] = {"count": "some", "heads_mode": "any", "top": 0, "max_heads": float("nan"), "max_macs": "x"}
    for option, value in wrong.items():
        with pytest.raises(leanify.LeanifyError, match=f"{option}={value!r}"):
            leanify.redesign("no such model", target_params=0.5, **{option: value})


def test_none_is_every_default() -> None:
    assert Options(**dict.fromkeys(NAMES)) == Options()
    assert Options(**dict.fromkeys(NAMES)).changed_options == {}


def test_recipes_and_models_are_sources(tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("LEANIFY_PRICES", raising=False)
    value = recipe.load("digits-study")
    named = leanify.redesign("digits-study", target_params=0.5)
    for source in (value, find.find("digits-study")):
        plans = [leanify.redesign(source, target_params=0.5) for _ in range(2)]  # counted, then from the cache
        assert {plan.chosen for plan in plans} == {named.chosen}
        assert leanify.read(plans[1].build()) == named.chosen.architecture
