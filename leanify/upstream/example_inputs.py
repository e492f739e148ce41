"""An example input that a user gives with a module, kept with the module."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from leanify.core.errors import ShapeError, SourceError
from leanify.upstream.origin import note_fact


class Given(dict[str, Any]):
    """Arguments by name, given by a user. Copies of a model share them."""

    def __deepcopy__(self, memo: Any) -> Given:
        return self


def give(model: nn.Module, inputs: Any) -> None:
    """Keep ``inputs`` with the model: a tensor, a tuple of arguments, or a dictionary by argument.

    Raises SourceError for anything else, and if the forward's arguments have no names.
    """
    note_fact(model, inputs=Given(inputs_by_name(model, inputs)))


def inputs_by_name(model: nn.Module, inputs: Any) -> dict[str, Any]:
    """Inputs by the names of the forward's arguments."""
    if isinstance(inputs, Mapping):
        return dict(inputs)

    # positional arguments get their names from the forward's signature
    args = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
    if not any(True for _ in named_tensors({"inputs": args})):
        raise SourceError(
            f"inputs are a {type(inputs).__name__} without a tensor; give what the forward takes: a tensor, a tuple of "
            "arguments, or a dictionary of arguments by name"
        )
    signature = inspect.signature(model.forward)
    kinds = {parameter.kind for parameter in signature.parameters.values()}
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        raise SourceError(
            f"{type(model).__name__}.forward takes *args, so what is given by place has no name; give inputs as a "
            "dictionary of arguments by name"
        )
    try:
        return dict(signature.bind(*args).arguments)
    except TypeError as error:
        raise SourceError(f"{type(model).__name__}.forward does not take these inputs: {error}") from error


def named_tensors(inputs: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of an example by their names, ``batch.x`` of one in a container."""
    for name, value in inputs.items():
        if isinstance(value, Tensor):
            yield f"{before}{name}", value
        elif isinstance(value, (Mapping, tuple, list)):
            inner = value if isinstance(value, Mapping) else {str(i): item for i, item in enumerate(value)}
            yield from named_tensors(inner, f"{before}{name}.")


def resize_batch(model: nn.Module, inputs: Mapping[str, Any], batch: int) -> dict[str, Any]:
    """Take the first ``batch`` samples of an example, repeated if it has fewer.

    The first axis of the first tensor counts samples; tensors of another length (masks) stay. Raises ShapeError
    for torch's layers with ``batch_first=False``, whose samples have another axis.
    """
    length = infer_batch_size(inputs)
    if length is None or length == batch:
        return dict(inputs)
    if any(isinstance(m, nn.MultiheadAttention) and not m.batch_first for m in model.modules()):
        raise ShapeError(
            f"the attentions of this {type(model).__name__} have batch_first=False, so samples do not lie along the "
            f"first axis of the inputs given: give inputs of {batch} samples, or ask for no other batch"
        )

    def resized(value: Any) -> Any:
        if isinstance(value, Tensor) and value.dim() and value.shape[0] == length:
            return value.repeat(-(-batch // length), *(1 for _ in value.shape[1:]))[:batch]
        if isinstance(value, Mapping):
            return {name: resized(item) for name, item in value.items()}
        return type(value)(map(resized, value)) if type(value) in (tuple, list) else value

    return {name: resized(value) for name, value in inputs.items()}


def infer_batch_size(inputs: Mapping[str, Any] | None) -> int | None:
    """The number of samples in an example: the length of its first tensor's first axis; None without tensors."""
    return next((len(value) for _, value in named_tensors(inputs or {}) if value.dim()), None)
