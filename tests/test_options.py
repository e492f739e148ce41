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
from leanify.design.options import Options, flag_of
from leanify.runs import recipe
from leanify.sources import find

NAMES = [option.name for option in fields(Options)]


def parser() -> Any:
    app = typer.Typer()
    app.command()(command)
    return typer.main.get_command(app)


def test_every_option_is_a_flag_and_a_keyword() -> None:
    flags = {name for parameter in parser().params for name in parameter.opts}
    assert {flag_of(name) for name in NAMES} <= flags
    assert set(NAMES) <= set(inspect.signature(leanify.redesign).parameters)


def test_json_holds_the_options_that_were_set_and_they_make_the_same_plan() -> None:
    plan = leanify.redesign("vit_tiny", target_params=0.7, depth=8, overrides=IMAGE | {"depth": 12}, top=1)
    held = json.loads(json.dumps(plan.to_json()["options"]))
    assert held == {"target_params": 0.7, "depth": 8, "overrides": IMAGE | {"depth": 12}, "top": 1}
    again = leanify.redesign("vit_tiny", Options(**held))
    assert again.chosen == plan.chosen
    assert leanify.redesign("vit_tiny", Options(**held), depth=9).chosen.depth == 9


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"count": "some"}, "count='some' is none of all, body"),
        ({"heads_mode": "shrink"}, "grow, split, auto"),
        ({"top": 0}, "top=0: it must be at least 1"),
        ({"max_heads": float("nan")}, "max_heads=nan"),
        ({"max_macs": "much"}, "max_macs='much'"),
        ({"batch_size": 8}, "need max_latency"),
        ({"compiled": True}, "compiled"),
    ],
)
def test_a_value_that_no_model_makes_valid_is_refused_in_python_too(options: dict[str, Any], words: str) -> None:
    with pytest.raises(leanify.LeanifyError, match=words):
        leanify.redesign("no such model", target_params=0.5, **options)


def test_none_is_the_default_of_every_option() -> None:
    assert Options(**dict.fromkeys(NAMES)) == Options()
    assert Options(**dict.fromkeys(NAMES)).changed == {}


def test_a_name_that_is_no_option_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="max_param"):
        leanify.redesign("vit_tiny", max_param=0.5)


def test_a_recipe_as_a_value_and_a_resolved_model_are_sources(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("LEANIFY_PRICES", raising=False)
    value = recipe.load("digits-study")
    named = leanify.redesign("digits-study", target_params=0.5)
    for source in (value, find.find("digits-study")):
        plans = [leanify.redesign(source, target_params=0.5) for _ in range(2)]  # counted, then from the cache
        assert {plan.chosen for plan in plans} == {named.chosen}
        assert leanify.read(plans[1].build()) == named.chosen.architecture
