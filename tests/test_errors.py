"""Errors in Python's words where Python asked, and in those of the shell where the command line did."""

from __future__ import annotations

import pytest

import leanify
from leanify.cli import main
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
    """Options become keyword arguments, and commands stay."""
    assert python_spelling(said) == meant


def test_shell_and_python_errors_match(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(leanify.BudgetError, match="target_params='lots'") as raised:
        leanify.redesign("vit_tiny", target_params="lots")
    assert "--" not in str(raised.value)
    monkeypatch.setattr("sys.argv", ["leanify", "redesign", "vit_tiny", "--target-params", "lots"])
    with pytest.raises(SystemExit):
        main()
    assert "--target-params 'lots'" in capsys.readouterr().err
