"""Import timm and transformers only when a model of theirs is needed."""

from __future__ import annotations

import difflib
import importlib
import re
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
