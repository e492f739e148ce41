"""Messages for wrong command lines, with advice on options of earlier versions. Imports no torch."""

from __future__ import annotations

import re
from pathlib import Path
from shlex import quote
from typing import Any

from leanify.core.built_in_recipes import home

UPLOAD = "hf upload USER/NAME DIR uploads the folder that -o DIR writes"

# options of earlier versions, by command, with their replacement
REMOVED_OPTIONS: dict[str, dict[str, str]] = {
    "redesign": {
        "push": UPLOAD,
        "as": "say that model_type in the config.json of a copy of SOURCE, and redesign the copy",
        "study": "rank designs in Python: leanify.redesign(SOURCE, ranking=FUNCTION)",
        "class": "it is --override class=NAME",
        "experts": "it is --mlp experts=N",
        "active-experts": "it is --mlp active=N",
        "max-active": "--max-macs limits what one token uses",
        "explain": "--json holds how designs were searched and ranked",
        "force": "remove the folder, or name another one with -o",
        "seed": "choose the seed in Python: leanify.redesign(SOURCE).save(DIR, seed=N)",
        "samples": "--data reads as much as a good choice needs",
        "tokens": "choose the length in Python: leanify.redesign(SOURCE, tokens=N)",
        **dict.fromkeys(
            ("batch-size", "device", "dtype", "compile", "latency-of"),
            "leanify profile measures designs in any setting",
        ),
    },
    "shrink": {"push": UPLOAD},
    "export": {"push": UPLOAD},
    "zoo": dict.fromkeys(
        ("check", "propose", "log"), "in a clone of the repository: python -m tests.zoo --check NAME, or --propose NAME"
    ),
    "compare": {
        "more": 'name the designs: --designs "name=depth:7,heads:18,mlp:1536"',
        "tournament": "its winners beat no design that was named; compare the first of the order: baseline,front:6",
    },
}


def usage_message(error: Any, command: Any, name: str) -> str:
    """The parser's message; for an unknown option, with the replacement if there is one.

    ``error`` is click's usage error, ``command`` the parsed command and ``name`` its name.
    """
    message: str = error.format_message()
    if not name and "command 'glue'" in message:  # of earlier versions
        script = home() / "leaner-transformers" / "glue.py"
        return f"there is no command glue any more, a script makes the table: python {script} SOURCE --data DIR"
    word = re.match(r"No such command (['\"])(.*?)\1\.", message)
    if not name and word and Path(word[2]).exists():
        return f"{word[2]} is no command; leanify show {quote(word[2])} describes it and names the commands to run"
    if not name and word and "Did you mean" not in message:
        return f"{message} A command comes first: leanify redesign MODEL; leanify -h lists all commands"
    if name:
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
