"""Where a model comes from: what upstream would need to build it again."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from leanify import models


@dataclass(frozen=True)
class Origin:
    """How upstream builds a model.

    library   "timm", "hf", or "leanify" for a model of our own
    name      timm's model name, transformers' model type, or ours
    options   timm: keyword arguments of ``create_model``; hf: the whole configuration; ours: keyword arguments
    cls       hf: the class in transformers
    """

    library: str
    name: str
    options: dict[str, Any] = field(default_factory=dict)
    cls: str = ""

    def __str__(self) -> str:
        return f"{self.library}/{self.name}"


def set_origin(model: nn.Module, origin: Origin | None) -> None:
    """Remember in the model how upstream built it."""
    model.__dict__["_leanify_origin"] = origin


def origin_of(model: Any) -> Origin | None:
    """How upstream built this model: as stamped, or as the library remembers; None for a module of neither."""
    if "_leanify_origin" in model.__dict__:
        stamped: Origin | None = model.__dict__["_leanify_origin"]
        return stamped
    if is_hf(model):
        return Origin("hf", model.config.model_type, model.config.to_dict(), type(model).__name__)
    if is_own(model):
        return Origin("leanify", str(models.name_of(type(model))), dict(model.options))
    architecture = (getattr(model, "pretrained_cfg", None) or {}).get("architecture")
    if architecture:
        return Origin("timm", architecture, _timm_options(model))
    return None


def _timm_options(model: nn.Module) -> dict[str, Any]:
    try:
        from timm.models._input import get_model_args
    except ImportError:  # timm before 1.0.31 does not remember its arguments
        known = {"num_classes": getattr(model, "num_classes", None), "in_chans": getattr(model, "in_chans", None)}
        return {key: value for key, value in known.items() if value is not None}
    options: dict[str, Any] = get_model_args(model)
    return {key: list(value) if isinstance(value, tuple) else value for key, value in options.items()}


def is_hf(model: nn.Module) -> bool:
    return "transformers" in sys.modules and isinstance(model, sys.modules["transformers"].PreTrainedModel)


def is_own(model: nn.Module) -> bool:
    return models.name_of(type(model)) is not None
