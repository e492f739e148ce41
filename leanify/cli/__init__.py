"""The command line: parse, call, render. Commands import torch inside; `--help` never does.

A command is a file here with a function of its own name; `main` loads the one that is asked for, and all of them only
to list them.
"""

from __future__ import annotations

import sys
import warnings
from importlib import import_module

import typer

from leanify.errors import LeanifyError

COMMANDS = ("redesign", "train", "glue", "profile", "condition", "recipes", "zoo")
ABOUT = "Redesign transformers: trade layers for attention heads under a parameter budget."


def app(*names: str) -> typer.Typer:
    """The commands with these names; one alone takes its arguments directly."""
    made = typer.Typer(
        help=ABOUT,
        no_args_is_help=len(names) > 1,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    for name in names:
        made.command()(getattr(import_module(f"leanify.cli.{name}"), name))
    return made


def main() -> None:
    """The console script: a LeanifyError is one message on stderr and exit code 2."""
    asked = sys.argv[1] if len(sys.argv) > 1 else ""
    warnings.formatwarning = lambda message, *_: f"leanify: warning: {message}\n"
    try:
        if asked in COMMANDS:
            app(asked)(args=sys.argv[2:], prog_name=f"leanify {asked}")
        else:
            app(*COMMANDS)(prog_name="leanify")
    except LeanifyError as error:
        print(f"leanify: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt as error:
        if str(error):
            print(f"leanify: {error}", file=sys.stderr)
        raise SystemExit(getattr(error, "code", 130)) from None
