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

Every message names the request, the finding and a way that works. The command line prints it and exits 2.
Messages name options as the command line spells them; what ``import leanify`` offers spells them as Python
does.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

NAMES = {"class": "cls", "override": "overrides", "no-measure": "measure=False"}
COMMAND = re.compile(r"(leanify [a-z]+ [^;,)]*)")  # to be typed into a shell: left as it is
OPTION = re.compile(r"--([a-z][a-z-]*[a-z])(?: ('[^']*'|nan|inf|-?\d[\w.%]*(?<!\.)|[\w.]+=[\w.%,=]*\w|[A-Z]\w+|body))?")
SETTING = re.compile(r"--set ('[^']+'|[\w.]+=(?:\[[^\]]*\]|[\w./-]*\w))")


MEMORY_TEXTS = (  # of torch's allocator, C++, the dynamic linker and the kernel, of threads that find no stack
    "DefaultCPUAllocator",
    "std::bad_alloc",
    "Cannot allocate memory",
    "failed to map segment",
    "can't start new thread",
)


class LeanifyError(Exception):
    """Base class of all errors that leanify raises deliberately.

    Every process of a launch raises an error with ``every_rank``, so only the first process prints it.
    """

    every_rank = False


@contextmanager
def raised_by_all() -> Iterator[None]:
    """Mark the errors of a step that every process of a launch takes."""
    try:
        yield
    except LeanifyError as error:
        error.every_rank = True
        raise


class SourceError(LeanifyError):
    """A SOURCE that is not a model, or cannot be loaded."""


class UnsupportedModel(LeanifyError):
    """A model that cannot be redesigned; the message says why."""


class ShapeError(LeanifyError):
    """A shape that the model cannot have."""


class RecipeError(LeanifyError):
    """A recipe that is malformed or does not exist."""


class BudgetError(LeanifyError):
    """A budget that is malformed, or that no design meets."""


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


def python_spelling(message: str) -> str:
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


def respell_errors(function: Callable[P, T]) -> Callable[P, T]:
    """Wrap a function so that the messages of its errors spell options as Python does."""

    @wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except LeanifyError as error:
            error.args = (python_spelling(str(error)),)
            raise

    return wrapper


def memory_message(error: BaseException) -> str | None:
    """One line for an exception of a machine whose memory ran out, None for any other.

    A plain MemoryError with a text is a check of leanify's own, and says more than this line would.
    """
    text = " ".join(str(error).split())
    checked_before = type(error) is MemoryError and text
    from_memory = isinstance(error, MemoryError) or any(part in text for part in MEMORY_TEXTS)
    if checked_before or not from_memory:
        return None
    reason = f" ({text[:200]})" if text else ""
    return f"memory ran out{reason}: end other programs, or raise the limit that `ulimit -v` prints"
