"""The origin of a model: what upstream needs to build it again."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from leanify.upstream import own_models
from leanify.upstream.diffusion import is_diffusers, options_of
from leanify.upstream.lean_config import KEY, buildable

if TYPE_CHECKING:
    from torch import nn
    from transformers import PretrainedConfig


@dataclass(frozen=True)
class Origin:
    """How upstream builds a model.

    library   "timm", "hf" (transformers), "diffusers", "leanify" for its own models, "module" for a user's code, "live"
              for a module that the caller holds
    name      timm's model name, transformers' model type, diffusers' class, leanify's model name, or ``model.py:make``
    options   keyword arguments of the constructor; hf: the whole configuration
    cls       hf: the class in transformers; module: the SHA-256 of the file
    live      live: the module itself
    """

    library: str
    name: str
    options: dict[str, Any] = field(default_factory=dict)
    cls: str = ""
    live: Any = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        if self.library in ("module", "live"):
            return self.name
        return f"{self.library}/{self.name}"

    def __deepcopy__(self, memo: Any) -> Origin:
        return self


def set_origin(model: nn.Module, origin: Origin | None) -> None:
    """Record in the model how upstream built it."""
    model.__dict__["_leanify_origin"] = origin


def is_stamped(model: nn.Module) -> bool:
    """Whether leanify built or reshaped this model."""
    return "_leanify_origin" in model.__dict__


def origin_of(model: Any) -> Origin | None:
    """How upstream built this model: as stamped, else as the library records it; None for any other module."""
    if "_leanify_origin" in model.__dict__:
        stamped: Origin | None = model.__dict__["_leanify_origin"]
        return stamped
    if is_hf(model):
        return Origin("hf", model.config.model_type, plain_words(model.config), type(model).__name__)
    if is_diffusers(model):
        return Origin("diffusers", type(model).__name__, options_of(model.config))
    if is_own(model):
        return Origin("leanify", str(own_models.name_of(type(model))), dict(model.options))
    architecture = (getattr(model, "pretrained_cfg", None) or {}).get("architecture")
    if architecture:
        return Origin("timm", architecture, _timm_options(model))
    return None


def plain_words(config: PretrainedConfig) -> dict[str, Any]:
    """A configuration's dictionary with the values for upstream's constructor, without the lean shape."""
    words: dict[str, Any] = buildable(config).to_dict()
    words.pop(KEY, None)
    return words


def live_options(model: nn.Module) -> dict[str, Any]:
    """The ``create_model`` arguments of a live timm model: classes, channels, pooling, image size."""
    names = ("num_classes", "in_chans", "global_pool", "img_size")
    return {key: value for key, value in _timm_options(model).items() if key in names}


def _timm_options(model: nn.Module) -> dict[str, Any]:
    try:
        from timm.models._input import get_model_args
    except ImportError:  # timm before 1.0.31 does not record its arguments
        known = {"num_classes": getattr(model, "num_classes", None), "in_chans": getattr(model, "in_chans", None)}
        return {key: value for key, value in known.items() if value is not None}
    options: dict[str, Any] = get_model_args(model)
    return {key: list(value) if isinstance(value, tuple) else value for key, value in options.items()}


def is_hf(model: nn.Module) -> bool:
    return "transformers" in sys.modules and isinstance(model, sys.modules["transformers"].PreTrainedModel)


def is_own(model: nn.Module) -> bool:
    return own_models.name_of(type(model)) is not None
