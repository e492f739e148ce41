"""Live models: their origin, which is what upstream needs to build them again, their record, mode and hooks.

One record holds what leanify knows about a model as a whole: an attribute of the model that copies inherit. Facts of
single modules stay with them: the row that reads a module (`lens.families`), how many experts process a token
(`lens.mlps`), and why the depth of its blocks is fixed (`lens.blocks`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from leanify.upstream.lean_config import KEY, buildable

if TYPE_CHECKING:
    from torch import nn
    from transformers import PretrainedConfig

_RECORD = "_leanify"
M = TypeVar("M", bound="nn.Module")


@dataclass(frozen=True)
class Origin:
    """How upstream builds a model.

    library   "timm", "hf" (transformers), "module" for code that is named, "live" for a module that the caller holds
    name      timm's model name, transformers' model type, or ``model.py:make``
    options   keyword arguments of the constructor; hf: the whole configuration
    cls       hf: the class in transformers; module: the SHA-256 of the file
    live      live: the module itself
    pictures  timm: the facts about pictures in the model's folder (`timm_data`); empty for the architecture's defaults
    """

    library: str
    name: str
    options: dict[str, Any] = field(default_factory=dict)
    cls: str = ""
    live: Any = field(default=None, repr=False, compare=False)
    pictures: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        if self.library in ("module", "live"):
            return self.name
        return f"{self.library}/{self.name}"

    def to_json(self) -> dict[str, Any]:
        """As a card stores it."""
        fields = {"library": self.library, "name": self.name, "options": self.options, "cls": self.cls}
        return {**fields, "pictures": self.pictures} if self.pictures else fields

    def __deepcopy__(self, memo: Any) -> Origin:
        return self


@dataclass(frozen=True)
class ModelRecord:
    """The facts of one model. A record never changes: `note_fact` replaces it, so copies of a model share none."""

    origin: Origin | None = None  # how upstream builds the model
    is_stamped: bool = False  # leanify built or reshaped it: ``origin`` holds, even None
    inputs: Mapping[str, Any] | None = None  # the example that a user gave, by argument
    new_tensors: tuple[str, ...] = ()  # initialised while loading, because the checkpoint lacks them
    stages: tuple[str, ...] = ()  # their names before a cut to one block, after which a list is none
    is_read: bool = False  # trials have read every attention (`discovery.discover`)
    is_depth_checked: bool = False  # it has run with one block less (`discovery.check_depth`)


def get_record(model: Any) -> ModelRecord:
    """Return the record of a model; an empty one where leanify has noted nothing."""
    record: ModelRecord = vars(model).get(_RECORD, ModelRecord())
    return record


def get_example(model: Any) -> Mapping[str, Any] | None:
    """The arguments of the model's forward that a user gave with it, by name; None without."""
    return get_record(model).inputs


def note_fact(model: nn.Module, **facts: Any) -> None:
    """Note facts in the record of a model, by the names of its fields."""
    model.__dict__[_RECORD] = replace(get_record(model), **facts)


def set_origin(model: nn.Module, origin: Origin | None) -> None:
    """Record in the model how upstream built it."""
    note_fact(model, origin=origin, is_stamped=True)


def get_origin(model: Any) -> Origin | None:
    """How upstream built this model, by leanify's stamp or the library's record; None for any other module."""
    record = get_record(model)
    if record.is_stamped:
        return record.origin
    if is_hf(model):
        return live_origin(model)
    architecture = (getattr(model, "pretrained_cfg", None) or {}).get("architecture")
    if architecture:
        return Origin("timm", architecture, _timm_options(model))
    return None


def live_origin(model: Any) -> Origin:
    """How transformers builds a live model of its own, by the configuration that the model has now."""
    return Origin("hf", model.config.model_type, plain_keys(model.config), type(model).__name__)


def plain_keys(config: PretrainedConfig) -> dict[str, Any]:
    """A configuration's dictionary with the values for upstream's constructor, without the lean shape."""
    keys: dict[str, Any] = buildable(config).to_dict()
    keys.pop(KEY, None)
    return keys


def live_options(model: nn.Module) -> dict[str, Any]:
    """The ``create_model`` arguments of a live timm model: classes, channels, pooling, image size."""
    names = ("num_classes", "in_chans", "global_pool", "img_size")
    return {key: value for key, value in _timm_options(model).items() if key in names}


def _timm_options(model: nn.Module) -> dict[str, Any]:
    from timm.models._input import get_model_args

    options: dict[str, Any] = get_model_args(model)
    return {key: list(value) if isinstance(value, tuple) else value for key, value in options.items()}


def text_config(config: Any) -> Any:
    """The part of a transformers configuration that describes the text; of several, the decoder's (MusicGen)."""
    try:
        return config.get_text_config()
    except ValueError:
        return config.get_text_config(decoder=True)


def is_hf(model: nn.Module) -> bool:
    return "transformers" in sys.modules and isinstance(model, sys.modules["transformers"].PreTrainedModel)


@contextmanager
def remove_on_exit(handles: Iterable[Any]) -> Iterator[None]:
    """Remove these hooks (the handles that ``register_forward_hook`` returns) at the end, also after an exception."""
    with ExitStack() as stack:
        for handle in handles:
            stack.enter_context(handle)
        yield


def in_mode(model: M, training: bool = False) -> M:
    """The model in evaluation or training mode; the ``train`` of many a module returns nothing."""
    model.train(training)
    return model
