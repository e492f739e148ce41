"""The example of its input that a user gives with a module of his own, kept with the module."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from leanify.errors import ShapeError, SourceError

_KEY = "_leanify_inputs"


def give(model: nn.Module, inputs: Any) -> None:
    """Keep ``inputs`` with the model: a tensor, a tuple of arguments, or a dictionary by argument.

    Raises SourceError for anything else, and where the forward's arguments have no names.
    """
    model.__dict__[_KEY] = named(model, inputs)


def given_to(model: nn.Module) -> dict[str, Any] | None:
    """The arguments of the model's forward that were given, by name; None where none were."""
    found: dict[str, Any] | None = vars(model).get(_KEY)
    return found


def named(model: nn.Module, inputs: Any) -> dict[str, Any]:
    """Inputs by the names of the forward's arguments."""
    if isinstance(inputs, Mapping):
        return dict(inputs)
    args = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
    if not any(isinstance(each, Tensor) for each in args):
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


def batch_of(inputs: Mapping[str, Any], batch: int) -> dict[str, Any]:
    """As many samples of what was given as asked: its first ones, repeated where there are fewer.

    Raises ShapeError where the tensors' first axes differ, so that it is not known which axis holds samples.
    """
    lengths = {value.shape[0] for value in inputs.values() if isinstance(value, Tensor) and value.dim()}
    if lengths == {batch}:
        return dict(inputs)
    if len(lengths) != 1:
        raise ShapeError(
            f"the inputs given hold {' and '.join(map(str, sorted(lengths)))} entries on their first axes, so which of "
            f"them are samples is not known; give inputs of {batch} samples, or ask for no other batch"
        )
    (length,) = lengths

    def taken(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.dim():
            return value
        times = -(-batch // length)
        return value.repeat(times, *(1 for _ in value.shape[1:]))[:batch]

    return {name: taken(value) for name, value in inputs.items()}


def words_of_given(inputs: Mapping[str, Any]) -> str:
    """Such as "x 2 × 3 × 32 × 32, as given"."""
    shown = [
        f"{name} {' × '.join(map(str, value.shape)) or 'a number'}"
        for name, value in inputs.items()
        if isinstance(value, Tensor)
    ]
    return f"{', '.join(shown)}, as given"
