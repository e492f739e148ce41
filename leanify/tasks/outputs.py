"""Call a model on a batch and take its logits."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from leanify.data.samples import Inputs
from leanify.errors import RecipeError


def answer(model: nn.Module, inputs: Inputs) -> Tensor:
    """The model's logits in float32: images go in as they are, token ids by their names."""
    output = model(**inputs) if isinstance(inputs, dict) else model(inputs)
    return logits_of(output).float()


def logits_of(output: Any) -> Tensor:
    """The logits in what a model gives: a tensor, transformers' ``logits``, or the first of several heads."""
    if isinstance(output, Tensor):
        return output
    if isinstance(output, (tuple, list)):  # VOLO with mixed tokens, distilled DeiT: the class token first, as in timm
        return logits_of(output[0])
    if getattr(output, "logits", None) is None:
        raise RecipeError(
            "this model gives no logits: it has no head for the task. Name a transformers class that has one, "
            'class = "AutoModelForCausalLM", "AutoModelForMaskedLM" or "AutoModelForImageClassification" in [model]'
        )
    logits: Tensor = output.logits
    return logits
