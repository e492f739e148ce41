"""The example of its input that a user gives with a module of his own, kept with the module."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from leanify.errors import ShapeError, SourceError

_KEY = "_leanify_inputs"


class Given(dict[str, Any]):
    """Arguments by name that a user gave, not made here. Copies of a model share them."""

    def __deepcopy__(self, memo: Any) -> Given:
        return self


def give(model: nn.Module, inputs: Any) -> None:
    """Keep ``inputs`` with the model: a tensor, a tuple of arguments, or a dictionary by argument.

    Raises SourceError for anything else, and where the forward's arguments have no names.
    """
    model.__dict__[_KEY] = Given(named(model, inputs))


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


def batch_of(model: nn.Module, inputs: Mapping[str, Any], batch: int) -> dict[str, Any]:
    """As many samples of what was given as asked: its first ones, repeated where there are fewer.

    Samples lie along the first axis of the first tensor; tensors of another length there (masks) stay. Raises
    ShapeError for torch's layers with ``batch_first=False``, where it is another axis.
    """
    length = samples_in(inputs)
    if length is None or length == batch:
        return dict(inputs)
    if any(isinstance(m, nn.MultiheadAttention) and not m.batch_first for m in model.modules()):
        raise ShapeError(
            f"the attentions of this {type(model).__name__} have batch_first=False, so samples do not lie along the "
            f"first axis of the inputs given: give inputs of {batch} samples, or ask for no other batch"
        )
    taken = dict(inputs)
    for name, value in inputs.items():
        if isinstance(value, Tensor) and value.dim() and value.shape[0] == length:
            times = -(-batch // length)
            taken[name] = value.repeat(times, *(1 for _ in value.shape[1:]))[:batch]
    return taken


def samples_in(inputs: Mapping[str, Any] | None) -> int | None:
    """How many samples an example holds: the length of its first tensor's first axis; None without one."""
    for value in (inputs or {}).values():
        if isinstance(value, Tensor) and value.dim():
            return int(value.shape[0])
    return None


def words_of_given(inputs: Mapping[str, Any]) -> str:
    """Such as "x 2 × 3 × 32 × 32, as given"."""
    tensors = {name: value for name, value in inputs.items() if isinstance(value, Tensor)}
    shown = [f"{name} {' × '.join(map(str, value.shape)) or 'a number'}" for name, value in tensors.items()]
    return f"{', '.join(shown)}, as given"
