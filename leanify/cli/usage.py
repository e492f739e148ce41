"""The help of a command, and messages for wrong command lines. Imports no torch."""

from __future__ import annotations

import re
from difflib import get_close_matches
from pathlib import Path
from shlex import quote
from typing import Any

from typer.core import TyperCommand

from leanify.core.errors import LeanifyError

# options that the last version had, by command, and what to use instead
REMOVED_OPTIONS: dict[str, dict[str, str]] = {
    "redesign": dict.fromkeys(
        ("data", "samples"), "leanify shrink CHECKPOINT --data DATA --minutes 0 carries weights by data"
    ),
    "shrink": {"device-memory": "leanify profile CHECKPOINT --no-measure predicts the memory"},
    "compare": {
        "tournament": "its winners beat no design that was named; compare the first of the order: baseline,front:6"
    },
}
HUB_ID = re.compile(r"(?!timm/|hf/|diffusers/)[\w.-]+/[\w.-]+")


def apply_revision(arguments: list[str]) -> list[str]:
    """The command line with ``--revision REV`` spelt in its hub ids, ``org/name@REV``. Raises LeanifyError."""
    place = next(index for index, argument in enumerate(arguments) if argument.partition("=")[0] == "--revision")
    _, equals, revision = arguments[place].partition("=")
    rest = arguments[:place] + arguments[place + (1 if equals else 2) :]
    if not equals:
        revision = arguments[place + 1] if place + 1 < len(arguments) else ""
    if not re.fullmatch(r"[\w][\w./-]*", revision):
        raise LeanifyError("--revision takes a branch, a tag or a commit of a model on the hub: --revision main")
    ids = []
    for index, argument in enumerate(rest):
        before = rest[index - 1] if index else ""
        is_value = before.startswith("-") and before not in ("--weights", "--teacher")
        if HUB_ID.fullmatch(argument) and not is_value and not Path(argument).exists():
            ids.append(index)
    if not ids:
        raise LeanifyError(f"--revision {revision} is of a hub id, and none was named; org/name@{revision} is one")
    return [f"{argument}@{revision}" if index in ids else argument for index, argument in enumerate(rest)]


def usage_message(error: Any, command: Any, name: str) -> str:
    """The message of click's usage error, with what to type instead."""
    message: str = error.format_message()

    # an unknown command: a path, one that click suggests, one that the parser does not know, or none
    word = re.match(r"No such command (['\"])(.*?)\1\.", message)
    if word and Path(word[2]).exists():
        return f"{word[2]} is no command; leanify show {quote(word[2])} describes it and names the commands to run"
    if word and "Did you mean" not in message:
        if words := get_close_matches(word[2], ("help", "version"), 1):
            return f"{message} Did you mean {words[0]!r}?"
        return f"{message} A command comes first: leanify redesign MODEL; leanify -h lists all commands"

    # a missing argument
    if name:
        example = re.search(r"^ +(leanify .*)$", command.help or "", re.MULTILINE)
        if message.startswith("Missing argument") and example is not None:
            return f"{name}: {message} For example: {example[1]}"
        message = f"{name}: {message}"
    if not hasattr(error, "possibilities"):
        return message

    # an unknown option: a former option, a key of the recipe, or the list of options if click suggests none
    option = error.option_name.lstrip("-")
    hint = None if error.possibilities else f"{f'leanify {name}'.strip()} -h lists the options"
    if any("--set" in param.opts for param in command.params):
        from leanify.core.recipe import nearest_key

        key = nearest_key(option)
        hint = hint if key is None else f"--set {key}=VALUE sets a key of the recipe"
    hint = REMOVED_OPTIONS.get(name, {}).get(option, hint)
    return message if hint is None else f"{message}; {hint}"


class PanelCommand(TyperCommand):
    """A command whose plain help has a section for each `rich_help_panel`; options without one come last.

    Arguments are shown by their metavar alone; typer adds braces and the type in Python.
    """

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        pieces = ["[OPTIONS]"]
        for param in self.get_params(ctx):
            if param.param_type_name == "argument":
                pieces.append(str(param.metavar) if param.required else f"[{param.metavar}]")
        return pieces

    def format_options(self, ctx: Any, formatter: Any) -> None:
        # (name, help) of each parameter by its panel; hidden ones have no record
        panels: dict[str, list[tuple[str, str]]] = {"Arguments": []}
        options: list[tuple[str, str]] = []
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is None:
                continue
            if param.param_type_name == "argument":
                panels["Arguments"].append((str(param.metavar), record[1]))
            elif (panel := getattr(param, "rich_help_panel", None)) is not None:
                panels.setdefault(panel, []).append(record)
            else:
                options.append(record)
        for name, records in [*panels.items(), ("Options", options)]:
            if records:
                with formatter.section(name):
                    formatter.write_dl(records)
