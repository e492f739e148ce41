"""What a model returns for a batch: logits or hidden states; means of a tally."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from leanify.core.errors import RecipeError
from leanify.data.samples import Inputs


def answer(model: nn.Module, inputs: Inputs) -> Tensor:
    """Return the model's logits in float32 for images (a tensor) or text (tensors by argument name)."""
    output = model(**inputs) if isinstance(inputs, dict) else model(inputs)
    return get_logits(output).float()


def get_logits(output: Any) -> Tensor:
    """The logits in a model's output: the tensor, its ``logits``, or the first of several."""
    if isinstance(output, Tensor):
        return output
    if isinstance(output, (tuple, list)):  # VOLO with mixed tokens, distilled DeiT: the class token comes first
        return get_logits(output[0])
    if getattr(output, "logits", None) is None:
        raise RecipeError(
            "this model outputs no logits: it has no head for the task. Name a transformers class that has one: "
            'class = "AutoModelForCausalLM", "AutoModelForMaskedLM" or "AutoModelForImageClassification" in [model]'
        )
    logits: Tensor = output.logits
    return logits


def get_hidden(output: Any) -> Tensor:
    """The last hidden states (B, N, width) of a bare encoder. Raises RecipeError for a model with a head."""
    hidden: Tensor | None = getattr(output, "last_hidden_state", None)
    if hidden is None:
        raise RecipeError(
            "this model has a head and returns no hidden states for embeddings; use the bare encoder: "
            'class = "AutoModel" in [model]'
        )
    return hidden


def mean(tally: Mapping[str, Tensor], name: str) -> float:
    """The mean of a tally's column over all targets."""
    return (tally[name].sum() / tally["count"].sum()).item()
