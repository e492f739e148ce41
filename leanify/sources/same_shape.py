"""Save a lean model as another transformers type that expresses the same shape.

Llama's configuration refuses a width that is not a multiple of the number of heads, but such a model is also a Mistral
without a sliding window. As a Mistral it runs in tools that know only upstream's types (vLLM, llama.cpp's converter).
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
    """Return the model's weights as another transformers type, after checking equal outputs on random inputs.

    Raises SourceError if the type has no class for the same task, has other tensors, or computes other outputs.
    """
    if not is_hf(model):
        raise SourceError(
            f"{type(model).__name__} is not a transformers model, so it cannot be saved as one of type {model_type!r}"
        )
    other = build_shell(_origin(model, model_type))
    problems = misfits(shapes_of(other.state_dict()), shapes_of(model.state_dict()))
    if problems or surgery.read(other).stages != surgery.read(model).stages:
        raise SourceError(
            f"{type(model).__name__} cannot be saved as {model_type}: "
            + (problems or "its stages read back with another shape")
        )
    other.load_state_dict(model.state_dict(), assign=True)
    other.tie_weights()  # type: ignore[operator]
    other.eval()
    inputs = example_inputs(model, 1, 8, next(model.parameters()).device)
    with torch.no_grad():
        wanted, found = model.eval()(**inputs)[0], other(**inputs)[0]
    if not torch.equal(wanted, found):
        worst = float((wanted - found).abs().max())
        raise SourceError(
            f"{type(model).__name__} cannot be saved as {model_type}: outputs differ by up to {worst:.2g}"
        )
    return other


def _origin(model: Any, model_type: str) -> Origin:
    """The other type with the model's sizes, and its class for the same task, by an Auto class of both."""
    library = import_transformers()
    if model_type not in library.CONFIG_MAPPING:
        raise SourceError(f"transformers has no model type {model_type!r}")
    known = library.CONFIG_MAPPING[model_type]().to_dict()
    own = {KEY, "model_type", "architectures", "transformers_version", "sliding_window", "layer_types"}
    config = {key: value for key, value in model.config.to_dict().items() if key in known and key not in own}
    if "sliding_window" in known:
        config["sliding_window"] = None
    full, here = full_config(model_type, config), type(model.config)
    for auto in AUTO:
        mapping = getattr(library, auto)._model_mapping
        if here in mapping and type(full) in mapping and mapping[here] is type(model):
            return Origin("hf", model_type, full.to_dict(), str(mapping[type(full)].__name__))
    raise SourceError(f"{full.model_type} has no class for the same task as {type(model).__name__}")
