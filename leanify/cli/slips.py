"""Slips in typing that the option parser would only call unknown: say what works. Imports no torch."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from leanify.cli import unknown
from leanify.errors import LeanifyError

OTHERS = {  # names that other tools have for an option; which of several is the command's own is looked up
    "budget": ("--target-params",),
    "params": ("--target-params", "--max-params"),
    "out": ("--output",),
    "output-dir": ("--output",),
    "dir": ("--output",),
    "save": ("--output",),
    "name": ("--output",),
    "layers": ("--depth",),
    "batch": ("--batch-size",),
    "length": ("--tokens",),
    "seed": ("--seeds", "--seed"),
    "runs": ("--seeds",),
    "workers": ("--jobs",),
    "checkpoint": ("--resume", "--weights"),
    **dict.fromkeys(
        ("ratio", "share", "fraction", "size", "compression", "max-param"), ("--target-params", "--max-params")
    ),
    **dict.fromkeys(("flops", "max-flops", "macs", "gmacs", "gflops"), ("--max-macs",)),
    **dict.fromkeys(("speed", "latency", "max-time"), ("--max-latency",)),
    **dict.fromkeys(("memory", "vram", "ram", "max-ram"), ("--max-memory",)),
    **dict.fromkeys(("num-heads", "n-heads", "num-attention-heads"), ("--heads",)),
    **dict.fromkeys(("num-layers", "n-layers", "blocks", "num-hidden-layers"), ("--depth",)),
    **dict.fromkeys(("n-samples", "num-samples"), ("--samples",)),
    **dict.fromkeys(("n-seeds", "num-seeds"), ("--seeds",)),
    **dict.fromkeys(("image-size", "resolution", "input-size"), ("--img-size",)),
    **dict.fromkeys(("gpu", "gpus", "cuda", "cpu"), ("--device",)),
    **dict.fromkeys(("to", "type", "kind", "as"), ("--format",)),
    **dict.fromkeys(("task", "dataset"), ("--tasks", "--data")),
}

PLAIN = ("model", "source", "recipe", "config", "run", "study", "input", "files", "show")  # words without an option
NUMBERS = {"N": ("a whole number", int), "X": ("a number", float)}  # by metavar
DTYPES = {"fp16": "float16", "half": "float16", "bf16": "bfloat16", "fp32": "float32", "float": "float32"}
EVERYWHERE = ("-h", "--help", "-")


def check(command: Any, arguments: Sequence[str], name: str) -> None:
    """Raise LeanifyError for a slip, with the words that work; what else is wrong is left to the parser."""
    options = {
        name: option
        for option in command.params
        for name in (*option.opts, *option.secondary_opts)
        if name.startswith("-")
    }
    places = [one for one in command.params if not any(name.startswith("-") for name in one.opts)]
    most = math.inf if any(one.nargs < 0 for one in places) else len(places)
    free = any("FILES" in str(one.metavar) for one in places)  # any words: texts to predict
    asked = any(argument.startswith("--target-params") for argument in arguments)
    words = 0
    given = set()
    before = ""  # the value of a --set
    for word, value in _walked(options, arguments):
        if word == "--set" and value is not None and "=" not in value:
            raise LeanifyError(
                f"--set takes a key and its value with = between: --set {value}={_after(value, arguments)}"
            )
        if word in EVERYWHERE:
            return
        if word.startswith("-"):
            if word not in options:
                return _check_option(word, options, _after(word, arguments), places, name)
            if value is None and not options[word].is_flag:
                raise LeanifyError(f"{word} takes {options[word].metavar or 'a value'}: {options[word].help}")
            _check_value(word, value, options[word].metavar)
            given.add(options[word].name)
        elif (words := words + 1) and not free:
            _check_word(word, options, words > most, before)
            if not asked and re.fullmatch(r"0?\.\d+|\d+%", word) and "--count" in options:
                raise LeanifyError(f"{word} is no name of a model; a budget is given as --target-params {word}")
            if most == math.inf and re.fullmatch(r"[\w.-]+(,[\w.-]+)+", word) and not Path(word).exists():
                raise LeanifyError(f"several sources have blanks between: {word.replace(',', ' ')}")
        before = value or "" if word == "--set" else ""
    if "--" not in arguments and words < sum(one.required for one in places):
        raise LeanifyError(f"{places[words].metavar} is missing: {places[words].help}")
    for long, option in options.items():
        if option.required and option.name not in given:
            raise LeanifyError(f"{long} {option.metavar} is missing: {option.help}")


def _check_value(word: str, value: str | None, metavar: str | None) -> None:
    if word == "--dtype" and (meant := DTYPES.get(str(value))) is not None:
        raise LeanifyError(f"--dtype {value} is called {meant}: --dtype {meant}")
    words, kind = NUMBERS.get(str(metavar), ("", str))
    try:
        kind(value or 0)
    except ValueError:
        raise LeanifyError(f"{word} takes {words}, not {value!r}") from None


def _walked(options: dict[str, Any], arguments: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Yield every option with its value, and every other word; stop at ``--``."""
    words = iter(arguments)
    for word in words:
        if word == "--":
            return
        name, equals, value = word.partition("=")
        if not word.startswith("-") or word == "-":
            yield word, None
        elif name in options:
            takes = not (options[name].is_flag or equals)
            yield name, value if equals else next(words, None) if takes else None
        else:
            yield word, None


def _after(word: str, arguments: Sequence[str]) -> str:
    """The value behind ``=`` or in the next argument; VALUE if there is none."""
    behind = arguments[list(arguments).index(word) + 1 :] if word in arguments else []
    value = word.partition("=")[2] or next(iter(behind), "")
    return quote(value) if value and not value.startswith("-") else "VALUE"


def _check_option(word: str, options: dict[str, Any], value: str, places: Sequence[Any], command: str) -> None:
    name = word.partition("=")[0]
    if name in EVERYWHERE:
        return
    if f"-{name}" in options:
        raise LeanifyError(f"an option begins with two dashes: -{word}")
    key = name.lstrip("-").replace("_", "-")
    own = next((one for one in OTHERS.get(key, ()) if one in options), None)
    if own is not None:
        raise LeanifyError(f"there is no option {name}; it is {own}")
    if key in PLAIN and places and value != "VALUE":
        raise LeanifyError(f"there is no option {name}; {places[0].metavar} is named without one: {value}")
    unknown.refuse_known(command, name, value)
    if (
        name.startswith("--")
        and "--set" in options
        and f"--{key}" not in options
        and (meant := _meant(key.replace("-", "_"))) is not None
    ):
        if " " in meant:
            raise LeanifyError(f"there is no option {name}; it is {meant}")
        raise LeanifyError(f"{name} is a key of the recipe: --set {meant}={value}")
    unknown.refuse(command, name, options, OTHERS.get(key.removesuffix("s"), OTHERS.get(key, ())))


def _meant(key: str) -> str | None:
    """What a word means: the recipe's key, ``lr`` → ``optim.lr``, or words of what has none."""
    from leanify.runs import meanings, recipe

    known = set(recipe.keys())
    found = meanings.meant(key, "", known)
    return found if found in known or key in meanings.UPSTREAM else None


def _check_word(word: str, options: dict[str, Any], surplus: bool, before: str) -> None:
    if Path(word).exists():
        return
    if " --" in word:
        raise LeanifyError(f"{word!r} is one word for leanify; leave out the quotes")
    key, equals, _ = word.partition("=")
    if equals and f"--{key}" in options:
        raise LeanifyError(f"an option begins with two dashes: --{word}")
    if equals and "--set" in options and re.fullmatch(r"[a-z_]+(\.[\w.-]+)?", key):
        raise LeanifyError(f"a setting comes after --set: --set {quote(word)}")
    if surplus and "--check" in options:
        raise LeanifyError(f"leanify zoo lists all models; to try one: leanify zoo --check {quote(word)}")
    if surplus and "=" in before and "--set" in options:
        raise LeanifyError(f"{word!r} stands alone; a value with blanks is quoted: --set {quote(f'{before} {word}')}")
