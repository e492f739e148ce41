"""The libraries themselves, imported only when a model of theirs is asked for."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any


def import_timm() -> ModuleType:
    """timm, imported when it is first asked for."""
    return importlib.import_module("timm")


def import_transformers() -> ModuleType:
    """transformers, imported when it is first asked for, without its advice."""
    module = importlib.import_module("transformers")
    module.logging.set_verbosity_error()
    module.logging.disable_progress_bar()
    return module


def construction_errors() -> tuple[type[Exception], ...]:
    """What transformers raises for a configuration or a class that it does not take."""
    from huggingface_hub import errors

    strict = getattr(errors, "StrictDataclassError", ValueError)
    return (TypeError, ValueError, AttributeError, KeyError, ImportError, strict)


def without_type(config: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in ("model_type", "transformers_version")}


def first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2]) or type(error).__name__
