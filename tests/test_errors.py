"""Errors in Python's words where Python asked, and in those of the shell where the command line did."""

from __future__ import annotations

from typing import Any

import pytest
from commands import run_here

import leanify
from leanify import cli
from leanify.core.errors import python_spelling


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("--target-params 'lots' is not a budget", "target_params='lots' is not a budget"),
        ("give --target-params 0.5, or --depth 7.", "give target_params=0.5, or depth=7."),
        ("--max-kv 64KB: it has none", "max_kv='64KB': it has none"),
        ("--depth and --mlp keep to no rule", "depth and mlp keep to no rule"),
        ("leave out --no-measure", "leave out measure=False"),
        ("--set data.path=DIR names the data", "settings=['data.path=DIR'] names the data"),
        ("go on with leanify train --resume runs/x; or not", "go on with leanify train --resume runs/x; or not"),
        ("name it with --class NAME", "name it with cls='NAME'"),
        ("try --override img_size=32", "try overrides={'img_size': '32'}"),
    ],
)
def test_options_become_keywords(said: str, meant: str) -> None:
    assert python_spelling(said) == meant


def test_shell_and_python_errors_match(capsys: Any) -> None:
    with pytest.raises(leanify.BudgetError, match="target_params='lots'") as raised:
        leanify.redesign("vit_tiny", target_params="lots")
    assert "--" not in str(raised.value)
    code, _, err = run_here("redesign vit_tiny --target-params lots", capsys)
    assert (code, "--target-params 'lots'" in err) == (2, True)


@pytest.mark.unexpected
def test_traceback_is_shown_on_request(monkeypatch: Any, capsys: Any) -> None:
    def divided() -> None:
        raise ZeroDivisionError("integer modulo by zero")

    for asked in (False, True):
        monkeypatch.setenv("LEANIFY_DEBUG", "1" if asked else "")
        code, out, err = run_here("recipes digist", capsys)
        assert (code, out, "Traceback" in err) == (2, "", asked)
        with monkeypatch.context() as patch:
            patch.setattr(cli, "run_command", divided)
            code, out, err = run_here("recipes", capsys)
        assert (code, out, "Traceback" in err) == (2, "", asked)
        assert "unexpected error: ZeroDivisionError: integer modulo by zero" in " ".join(err.split())
        assert "LEANIFY_DEBUG=1" in err
