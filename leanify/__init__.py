"""leanify redesigns transformers: it trades layers for attention heads under a parameter budget.

    model = leanify.load("vit_base")                 any SOURCE → a module
    arch  = leanify.read(model)                      its shape, as a value
    lean  = leanify.write(model, arch2)              another shape; the old model untouched
    big   = leanify.grow(model, factor=2)            more heads, same outputs
    plan  = leanify.redesign("vit_base", target_params=0.5)
    facts = leanify.profile("vit_base")
    run   = leanify.train("digits")                  a recipe → the folder of its run
    study = leanify.compare("digits", target_params=0.5, seeds=5)   trained side by side, with uncertainty
    small = leanify.shrink("checkpoint", data="reviews", target_params=0.6, output="small")
    probe = leanify.condition(model, inputs)         spectra and κ of every layer's concatenated heads
    leanify.save(lean, "lean/")

Names are loaded when they are first used: importing leanify imports neither torch nor timm.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from leanify.core.errors import (
    BudgetError,
    DataError,
    DirectoryError,
    LeanifyError,
    RecipeError,
    ShapeError,
    SourceError,
    TrainingError,
    UnsupportedModel,
    respell_errors,
)
from leanify.upstream import hooks

if TYPE_CHECKING:
    from leanify.comparison.comparing import compare
    from leanify.core.architecture import Architecture, Layer, Stage
    from leanify.exporting.export import export
    from leanify.profiling.profile import profile
    from leanify.reshaping.surgery import grow, read, write
    from leanify.search.redesign import redesign
    from leanify.shrinking.shrink import shrink
    from leanify.sources.find import load
    from leanify.sources.lean_directory import save
    from leanify.spectra.measure import condition
    from leanify.training.start import train

__version__ = "0.2.0"

_HOMES = {
    "Architecture": "core.architecture",
    "Layer": "core.architecture",
    "Stage": "core.architecture",
    "compare": "comparison.comparing",
    "condition": "spectra.measure",
    "export": "exporting.export",
    "grow": "reshaping.surgery",
    "load": "sources.find",
    "profile": "profiling.profile",
    "read": "reshaping.surgery",
    "redesign": "search.redesign",
    "save": "sources.lean_directory",
    "shrink": "shrinking.shrink",
    "train": "training.start",
    "write": "reshaping.surgery",
}

__all__ = [
    "Architecture",
    "BudgetError",
    "DataError",
    "DirectoryError",
    "Layer",
    "LeanifyError",
    "RecipeError",
    "ShapeError",
    "SourceError",
    "Stage",
    "TrainingError",
    "UnsupportedModel",
    "compare",
    "condition",
    "export",
    "grow",
    "load",
    "profile",
    "read",
    "redesign",
    "save",
    "shrink",
    "train",
    "write",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'leanify' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"leanify.{_HOMES[name]}"), name)
    value = value if isinstance(value, type) else respell_errors(value)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


hooks.install()
