"""timm and transformers: imported only when a model of theirs is needed, and their exceptions."""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, TypeVar

from leanify.core.errors import LeanifyError, SourceError, memory_message

T = TypeVar("T")


def import_timm() -> ModuleType:
    """Import timm."""
    return importlib.import_module("timm")


def import_transformers() -> ModuleType:
    """Import transformers, with its advisory warnings turned off."""
    module = importlib.import_module("transformers")
    module.logging.set_verbosity_error()
    module.logging.disable_progress_bar()
    return module


def drop_type(config: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in ("model_type", "transformers_version")}


def nearest(word: str, candidates: Iterable[str], limit: int = 3) -> str:
    """The end of a message about an unknown word: "; nearest: …", or "" if no known word is similar."""
    matches = difflib.get_close_matches(word, list(candidates), n=limit)
    return f"; nearest: {', '.join(matches)}" if matches else ""


def first_line(error: BaseException) -> str:
    """An exception's message on one line, with its type if that alone is unclear (``KeyError: 'depth'``)."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", str(error))  # torch's exporter colours its messages
    lines = [line.strip() for line in plain.splitlines() if line.strip()]
    text = " ".join(lines[:2])[:400]
    if isinstance(error, (ArithmeticError, LookupError, RecursionError)) or not text:
        return f"{type(error).__name__}: {text}" if text else type(error).__name__
    return text


def format_error(error: BaseException, max_length: int = 200) -> str:
    """An exception's type and message on one line, for what other people's code raises."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:max_length]}"


@contextmanager
def reraise_as(attempt: str, error: type[LeanifyError] = SourceError) -> Iterator[None]:
    """Turn any exception inside into ``error``, whose message is ``attempt`` and the first line of the original.

    LeanifyErrors pass unchanged. Upstream's exceptions come from a dozen libraries (ZeroDivisionError from a
    patch size, ImportError from a quantiser, RecursionError from a nested file), so no list of types would be
    complete. Where memory ran out, the message says this alone. The original is the cause; with ``LEANIFY_DEBUG=1``
    the command line prints its traceback.
    """
    try:
        yield
    except (LeanifyError, Warning):  # a warning, if warnings are turned into errors
        raise
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as caught:  # a panic in a Rust extension does not derive from Exception
        raise error(memory_message(caught) or f"{attempt}: {first_line(caught)}") from caught


def reraise_in_iteration(items: Iterable[T], attempt: str, error: type[LeanifyError] = SourceError) -> Iterator[T]:
    """Iterate with `reraise_as` around the iterator only, not around the code that consumes the items."""
    with reraise_as(attempt, error):
        iterator = iter(items)
    nothing = object()
    while True:
        with reraise_as(attempt, error):
            item = next(iterator, nothing)
        if item is nothing:
            return
        yield item  # type: ignore[misc]
