"""Messages for a mistyped command line: what the option parser refused, and what would work. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from shlex import quote
from typing import Any

from leanify.errors import LeanifyError

DEVICE = "CUDA_VISIBLE_DEVICES in the environment chooses the GPUs (empty: the CPU)"
PROCESSES = "torchrun --nproc-per-node 2 --no-python leanify train, or accelerate launch --no_python leanify train"
SHELL = "the shell finds a line: leanify {command} | grep -i WORD"
MANY = 12  # options; a command with more of them refers to its --help

# Commands ("" is any), options that people type because other tools have them, and what works here.
REDIRECTIONS: tuple[tuple[str, str, str], ...] = (
    ("redesign compare", "budget params ratio half", "it is --target-params 0.5"),
    ("redesign compare", "flops macs max-flops", "it is --max-macs, in redesign"),
    ("redesign", "layers num-layers", "it is --depth"),
    ("redesign", "num-heads n-heads", "it is --heads"),
    ("train", "target-params budget", "leanify redesign SOURCE --target-params 0.5 -o DIR makes a lean model"),
    ("train compare", "override", "it is --set model.override.KEY=VALUE"),
    ("train", "gpus num-gpus devices nproc-per-node", f"several processes are started by {PROCESSES}"),
    ("compare", "gpus num-gpus devices", "--jobs N runs N at a time, and divides the GPUs among them"),
    ("compare glue", "resume", "the same command goes on with what is unfinished"),
    ("redesign profile condition", "set", "it is --override KEY=VALUE"),
    ("train", "wandb tensorboard", "it is --set 'run.trackers=[\"wandb\"]' (or tensorboard)"),
    ("train profile condition", "gpu cuda cpu", "it is --device"),
    ("compare glue predict show export", "device gpu cuda cpu", DEVICE),
    ("zoo recipes", "search filter grep family model name", "words are looked for: leanify {command} WORD"),
    ("runs", "search filter grep family model name", SHELL),
    ("", "out output-dir save", "it is --output, where a command writes files"),
    ("", "model source recipe config", "it is named without one: leanify {command} NAME"),
    ("", "csv markdown", "it is --format csv, markdown or table"),
    ("", "verbose v debug", "LEANIFY_DEBUG=1 in the environment prints what is behind an error"),
    ("", "version", "it is leanify --version"),
)


def explained(error: Any, parsed: Any, command: str, arguments: Sequence[str]) -> LeanifyError:
    """Turn the parser's usage error into a message that says what to type instead; ``parsed`` is the typer command."""
    options: dict[str, Any] = {}
    for option in parsed.params:
        options |= {name: option for name in (*option.opts, *option.secondary_opts) if name.startswith("-")}
    parameter = getattr(error, "param", None)
    if hasattr(error, "possibilities"):
        return LeanifyError(_unknown_option(error.option_name, options, command, arguments))
    if parameter is not None and type(error).__name__ == "MissingParameter":
        long = next((f"{name} " for name in parameter.opts if name.startswith("--")), "")
        return LeanifyError(f"{long}{parameter.metavar} is missing: {parameter.help}")
    option = options.get(getattr(error, "option_name", ""))
    if option is not None:
        return LeanifyError(f"{error.option_name} takes {option.metavar or 'a value'}: {option.help}")
    if parameter is not None:
        name = max(parameter.opts, key=len)
        value = _value_of(name, arguments)
        if value == "VALUE":  # the next option stands where its value should
            return LeanifyError(f"{name} takes {parameter.metavar or 'a value'}: {parameter.help}")
        return LeanifyError(f"{name} is {value}: {error.message}")
    return LeanifyError(f"leanify {command}: {error.format_message()}{_about_words(command, options, arguments)}")


def redirected(key: str, command: str = "") -> str | None:
    """What works instead of an option that other tools have; None if that is not known."""
    for commands, names, words in REDIRECTIONS:
        if key in names.split() and command in (commands.split() or [command]):
            return words.format(command=command)
    return None


def check_budget(command: str, arguments: Sequence[str]) -> None:
    """Raise LeanifyError for a share where a model is named: leanify redesign vit_base 0.5."""
    if command != "redesign" or any(word.startswith(("--target-params", "--max-")) for word in arguments):
        return
    for before, word in zip(["", *arguments], arguments, strict=False):
        if re.fullmatch(r"0?\.\d+|\d+%", word) and not before.startswith("-"):
            raise LeanifyError(f"{word} is not the name of a model; a budget is --target-params {word}")


def _unknown_option(name: str, options: dict[str, Any], command: str, arguments: Sequence[str]) -> str:
    key = name.lstrip("-").replace("_", "-")
    for word in arguments:
        if re.match(r"-\w", word) and f"-{word.partition('=')[0]}" in options:
            return f"an option begins with two dashes: -{word}"
    long = [option for option in options if option.startswith("--")]
    redirection = redirected(key, command)
    if redirection is not None:
        return f"leanify {command} has no option {name}; {redirection}"
    if near := get_close_matches(f"--{key}", long, n=1, cutoff=0.9):
        return f"leanify {command} has no option {name}; nearest: {near[0]}"
    if "--set" in options and (setting := _recipe_key(key.replace("-", "_"))) is not None:
        if " " in setting:
            return f"leanify {command} has no option {name}; it is {setting}"
        return f"{name} is a key of the recipe: --set {setting}={_value_of(name, arguments)}"
    if near := get_close_matches(f"--{key}", long, n=3, cutoff=0.7):
        return f"leanify {command} has no option {name}; nearest: {', '.join(near)}"
    known = f"it has {', '.join(long)}" if len(long) <= MANY else f"leanify {command} -h lists those that it has"
    return f"leanify {command} has no option {name}; {known}"


def _recipe_key(word: str) -> str | None:
    """The recipe's key of this name, such as ``lr`` → ``optim.lr``; None if there is none."""
    from leanify.runs import meanings, recipe

    known = recipe.keys()
    meant = meanings.meant(word, "", known)
    return meant if meant in known or str(meant).startswith("model.override.") else None


def _value_of(option: str, arguments: Sequence[str]) -> str:
    for place, word in enumerate(arguments):
        if word.startswith(f"{option}="):
            return quote(word.partition("=")[2])
        if word == option and place + 1 < len(arguments) and not arguments[place + 1].startswith("-"):
            return quote(arguments[place + 1])
    return "VALUE"


def _about_words(command: str, options: dict[str, Any], arguments: Sequence[str]) -> str:
    """A hint for a word that a command has no place for."""
    for before, word in zip(["", *arguments], arguments, strict=False):
        if "=" in word and "--set" in options and before != "--set" and not word.startswith("-"):
            return f" A setting comes after --set: --set {quote(word)}"
        if "=" in before and "=" not in word and not Path(word).exists() and not word.startswith("-"):
            return f" A value with blanks is quoted: --set {quote(f'{before} {word}')}"
    return ""
