"""Messages for wrong command lines, with advice on options that were removed. Imports no torch."""

from __future__ import annotations

import re
from pathlib import Path
from shlex import quote
from typing import Any

# options that the last version had, by command, with their replacement
REMOVED_OPTIONS: dict[str, dict[str, str]] = {
    "compare": {
        "tournament": "its winners beat no design that was named; compare the first of the order: baseline,front:6",
    },
}


def usage_message(error: Any, command: Any, name: str) -> str:
    """The parser's message; for an unknown option, with the replacement if there is one.

    ``error`` is click's usage error, ``command`` the parsed command and ``name`` its name.
    """
    message: str = error.format_message()
    word = re.match(r"No such command (['\"])(.*?)\1\.", message)
    if not name and word and Path(word[2]).exists():
        return f"{word[2]} is no command; leanify show {quote(word[2])} describes it and names the commands to run"
    if not name and word and "Did you mean" not in message:
        return f"{message} A command comes first: leanify redesign MODEL; leanify -h lists all commands"
    if name:
        message = f"{name}: {message}"
        example = re.search(r"^ +(leanify .*)$", command.help or "", re.MULTILINE)
        if message.startswith(f"{name}: Missing argument") and example is not None:
            return f"{message} For example: {example[1]}"
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
