"""The exceptions that callers can catch.

    LeanifyError
     ├─ SourceError         a name, path or checkpoint that does not lead to a model
     ├─ UnsupportedModel    a model whose attention cannot be redesigned, with the reason
     ├─ ShapeError          a shape that this model cannot take (heads that break key/value groups, …)
     ├─ RecipeError         a recipe with an unknown key or a wrong type, or an unknown recipe
     ├─ BudgetError         a budget that is malformed or that no design meets
     ├─ DataError           data that cannot be read or does not fit the model
     ├─ TrainingError       training that cannot continue: the loss is not finite, the disk is full
     └─ DirectoryError      an output directory that cannot be written, or an input directory without a model

Every message says what was asked, what was found and what would work. The command line prints it and exits 2.
Messages name options as the command line spells them; what ``import leanify`` offers spells them as Python
does.
"""

import re
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

NAMES = {"class": "cls", "compile": "compiled", "override": "overrides", "no-measure": "measure=False"}
COMMAND = re.compile(r"(leanify [a-z]+ [^;,)]*)")  # to be typed into a shell: left as it is
OPTION = re.compile(r"--([a-z][a-z-]*[a-z])(?: ('[^']*'|nan|inf|-?\d[\w.%]*(?<!\.)|[\w.]+=[\w.%,=]*\w|[A-Z]\w+))?")
SETTING = re.compile(r"--set ('[^']+'|[\w.]+=(?:\[[^\]]*\]|[\w./-]*\w))")


class LeanifyError(Exception):
    """Base class of all errors that leanify raises deliberately.

    ``shared`` errors are raised by every process of a launch, so only the first process prints them.
    """

    shared = False


class SourceError(LeanifyError):
    """A SOURCE that is not a model, or cannot be loaded."""


class UnsupportedModel(LeanifyError):
    """A model that cannot be redesigned; the message says why."""


class ShapeError(LeanifyError):
    """A shape that the model cannot have."""


class RecipeError(LeanifyError):
    """A recipe that is malformed or does not exist."""


class BudgetError(LeanifyError):
    """A budget that is malformed, or that no design meets.

    ``flags`` ends the message: the flags of ``leanify redesign`` that would reach a design.
    """

    def __init__(self, message: str, flags: str = "") -> None:
        super().__init__(message + flags)
        self.message, self.flags = message, flags


class DataError(LeanifyError):
    """Data that cannot be read, does not fit the model, or is empty.

    ``setting`` ends the message: the key of a recipe that would do without the data in question.
    """

    def __init__(self, message: str, setting: str = "") -> None:
        super().__init__(message + setting)
        self.message = message


class DirectoryError(LeanifyError):
    """An output directory that cannot be written, or an input directory without a model."""


class TrainingError(LeanifyError):
    """Training cannot continue; the message says how to resume it."""


def in_python(message: str) -> str:
    """A message with options as keyword arguments: ``--target-params 'lots'`` → ``target_params='lots'``."""
    parts = COMMAND.split(message)
    for place in range(0, len(parts), 2):
        part = SETTING.sub(lambda match: f"settings=[{match[1].strip(chr(39))!r}]", parts[place])
        parts[place] = OPTION.sub(_argument, part)
    return "".join(parts)


def _argument(match: re.Match[str]) -> str:
    name, value = NAMES.get(match[1], match[1].replace("-", "_")), match[2]
    if value is None or "=" in name:
        return name
    if name == "overrides":
        key, _, word = value.partition("=")
        return f"overrides={{{key!r}: {word!r}}}"
    plain = re.fullmatch(r"'.*'|nan|inf|-?\d+(\.\d+)?", value) is not None
    return f"{name}={value if plain else repr(value)}"


def spoken(function: Callable[P, T]) -> Callable[P, T]:
    """The function, with the messages of its errors in Python's words."""

    @wraps(function)
    def called(*arguments: P.args, **words: P.kwargs) -> T:
        try:
            return function(*arguments, **words)
        except LeanifyError as error:
            error.args = (in_python(str(error)),)
            raise

    return called
