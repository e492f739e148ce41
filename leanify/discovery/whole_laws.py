"""Run a whole model and the one that it was made from: a user's forward may depend on sizes outside attentions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from leanify.core.errors import ShapeError, UnsupportedModel
from leanify.discovery.discover import make_inputs, make_twin, run
from leanify.discovery.flow import iterate_tensors
from leanify.discovery.row_laws import shorten
from leanify.upstream.example_inputs import resize_batch
from leanify.upstream.origin import get_example


def compare_models(old: nn.Module, new: nn.Module, keeps_outputs: bool) -> None:
    """Run a user's module, or any model of a new width, in its new shape. Raises UnsupportedModel if it fails where the
    old one runs: on the example, with a sample more, and with an entry less along each axis that permits it, because a
    shape may fit one batch by chance.

    A grown module must reproduce the old outputs, unless its forward draws random numbers.
    """
    if any(parameter.is_meta for parameter in new.parameters()):
        return
    before_twin, after_twin = make_twin(old), make_twin(new)  # copies without hooks
    for where, inputs in _other_inputs(old):
        try:
            before = _outputs(before_twin, inputs)
        except UnsupportedModel:
            continue
        try:
            after = _outputs(after_twin, inputs)
        except UnsupportedModel as error:
            raise UnsupportedModel(
                f"{type(old).__name__} runs as it is{where}, but not in the requested shape ({error}): something "
                "outside its attentions and MLPs depends on their sizes"
            ) from error
        if keeps_outputs and len(before) == len(after):
            again = partial(_outputs, before_twin, inputs, seed=1)
            _check_outputs(f"{type(old).__name__}{where}", before, after, again)


def _other_inputs(model: nn.Module) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (description, inputs): the example, one of another batch, and those with an entry less along one axis."""
    example = make_inputs(model)
    yield "", example
    first = next(iterate_tensors(list(example.values())), None)
    if get_example(model) is None or first is None or not first.dim():
        return
    with suppress(ShapeError):  # samples lie along another axis
        samples = first.shape[0] + 1
        yield f" on a batch of {samples}", resize_batch(model, example, samples)
    for length in dict.fromkeys(first.shape):
        if length > 1:
            yield f" on an input whose axis of {length} is {length - 1} long", shorten(example, length)


def _check_outputs(name: str, before: list[Tensor], after: list[Tensor], again: Callable[[], list[Tensor]]) -> None:
    """Raise UnsupportedModel unless outputs agree within the precision of their type, or the forward is random."""
    for a, b in zip(before, after, strict=True):
        limit = 1e-9 if a.dtype == torch.float64 else 1e-3
        is_narrow = a.dtype in (torch.float16, torch.bfloat16)
        if a.shape != b.shape or not a.is_floating_point() or is_narrow or not a.numel():
            continue
        difference, size = float((a - b).nan_to_num().abs().max()), float(a.nan_to_num().abs().max())
        if difference > limit * max(size, 1e-3) and all(map(torch.equal, before, again())):
            raise UnsupportedModel(
                f"growth changes the outputs of {name} by {difference:.1e} (they are {size:.1e} at most), "
                "although each attention alone keeps its outputs: something outside them mixes their heads"
            )


def _outputs(model: nn.Module, inputs: dict[str, Any], seed: int = 0) -> list[Tensor]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return [tensor.detach() for tensor in iterate_tensors(run(model, inputs))]
