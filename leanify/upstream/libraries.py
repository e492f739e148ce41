"""Import timm and transformers only when a model of theirs is needed."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable
from types import ModuleType
from typing import Any


def import_timm() -> ModuleType:
    """Import timm."""
    return importlib.import_module("timm")


def import_transformers() -> ModuleType:
    """Import transformers, with its advisory warnings turned off."""
    module = importlib.import_module("transformers")
    module.logging.set_verbosity_error()
    module.logging.disable_progress_bar()
    return module


def without_type(config: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in ("model_type", "transformers_version")}


def nearest(word: str, known: Iterable[str], most: int = 3) -> str:
    """The end of a message on an unknown word: the nearest known ones, or nothing."""
    near = difflib.get_close_matches(word, list(known), n=most)
    return f"; nearest: {', '.join(near)}" if near else ""


def first_line(error: BaseException) -> str:
    """An exception's message on one line, with its type if that alone is unclear (``KeyError: 'depth'``)."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = " ".join(lines[:2])[:400]
    if isinstance(error, (ArithmeticError, LookupError, RecursionError)) or not text:
        return f"{type(error).__name__}: {text}" if text else type(error).__name__
    return text


def in_words(error: BaseException, most: int = 200) -> str:
    """An exception's type and message on one line, for what other people's code raises."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:most]}"
