"""A lean model as another type of transformers that says the same shape exactly.

A Llama whose width is not a multiple of its heads is refused by Llama's own configuration, but it is a Mistral without
a sliding window. What only knows upstream's types (vLLM, llama.cpp's converter) then takes it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from leanify.errors import SourceError
from leanify.lens import surgery
from leanify.sources.overrides import full_config
from leanify.sources.tensors import misfits, shapes_of
from leanify.upstream.build import build_shell
from leanify.upstream.inputs import example_inputs
from leanify.upstream.lean_config import KEY
from leanify.upstream.libraries import import_transformers
from leanify.upstream.origin import Origin, is_hf

AUTO = ("AutoModelForCausalLM", "AutoModel", "AutoModelForSequenceClassification", "AutoModelForTokenClassification")


def as_type(model: nn.Module, model_type: str) -> nn.Module:
    """The model's weights under another transformers type, proved by equal outputs on random inputs.

    Raises SourceError where the type has no such class, other tensors, or computes something else.
    """
    if not is_hf(model):
        raise SourceError(f"{type(model).__name__} is not a transformers model, so it is not a {model_type}")
    other = build_shell(_origin(model, model_type))
    problems = misfits(shapes_of(other.state_dict()), shapes_of(model.state_dict()))
    if problems or surgery.read(other).stages != surgery.read(model).stages:
        raise SourceError(f"{type(model).__name__} is not a {model_type}: {problems or 'the shapes read differently'}")
    other.load_state_dict(model.state_dict(), assign=True)
    other.tie_weights()  # type: ignore[operator]
    other.eval()
    inputs = example_inputs(model, 1, 8, next(model.parameters()).device)
    with torch.no_grad():
        ours, theirs = model.eval()(**inputs)[0], other(**inputs)[0]
    if not torch.equal(ours, theirs):
        worst = float((ours - theirs).abs().max())
        raise SourceError(f"{type(model).__name__} is not a {model_type}: outputs differ by up to {worst:.2g}")
    return other


def _origin(model: Any, model_type: str) -> Origin:
    library = import_transformers()
    if model_type not in library.CONFIG_MAPPING:
        raise SourceError(f"transformers has no model type {model_type!r}")
    known = library.CONFIG_MAPPING[model_type]().to_dict()
    apart = {KEY, "model_type", "architectures", "transformers_version", "sliding_window", "layer_types"}
    words = {key: value for key, value in model.config.to_dict().items() if key in known and key not in apart}
    if "sliding_window" in known:
        words["sliding_window"] = None
    full = full_config(model_type, words)
    return Origin("hf", model_type, full.to_dict(), _class_of(model, full))


def _class_of(model: Any, config: Any) -> str:
    """The other type's class for the same task: of the Auto class that knows both."""
    library = import_transformers()
    for auto in AUTO:
        mapping = getattr(library, auto)._model_mapping
        if type(model.config) in mapping and type(config) in mapping and mapping[type(model.config)] is type(model):
            return str(mapping[type(config)].__name__)
    raise SourceError(f"{config.model_type} has no class for what {type(model).__name__} does")
