"""Transformers that somebody wrote: read from one example of their input, grown and written without a change."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from own_modules import DEPTH, HEADS, MADE, UNITS, WIDTH, Made, gpt, torch_attention, torch_encoder
from torch import Tensor, nn

import leanify
from leanify.lens import families
from leanify.lens.trials import InDouble
from leanify.upstream.given import named

MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "train": torch.enable_grad,
    "eval": torch.enable_grad,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
}


def made(make: Callable[[], Made]) -> tuple[nn.Module, dict[str, Any]]:
    torch.manual_seed(0)
    model, inputs = make()
    return model.eval(), named(model, inputs)


def outputs(model: nn.Module, inputs: dict[str, Any], mode: str = "no_grad") -> list[Tensor]:
    """The floating-point tensors that a model returns, in float64."""
    model.train(mode == "train")
    wide = {name: x.double() if x.is_floating_point() else x for name, x in inputs.items()}
    with MODES[mode](), InDouble():
        result = model(**wide)
    found = result if isinstance(result, (tuple, list)) else [result]
    return [tensor.detach() for tensor in found if tensor is not None]


def difference(one: list[Tensor], other: list[Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("make", MADE, ids=lambda make: make.__name__)
def test_a_module_of_ones_own_is_read_with_its_mlp(make: Callable[[], Made]) -> None:
    model, inputs = made(make)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    shape = leanify.read(model, inputs=inputs)
    for stage in shape.stages:
        primary = stage.primary
        assert primary is not None
        assert (stage.depth, stage.fixed, primary.heads, primary.head_dim, primary.mlp) == (
            DEPTH,
            False,
            HEADS,
            WIDTH // HEADS,
            UNITS,
        )
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert leanify.read(model) == shape  # what was found is kept with the model


@pytest.mark.parametrize("make", MADE, ids=lambda make: make.__name__)
def test_growth_keeps_what_it_computes_in_every_mode(make: Callable[[], Made]) -> None:
    model, inputs = made(make)
    model = model.double()
    grown = leanify.grow(model, factor=2, inputs=inputs)
    assert all(layer.heads == 2 * HEADS for layer in leanify.read(grown).layers())
    for mode in MODES:
        assert difference(outputs(model, inputs, mode), outputs(grown, inputs, mode)) < 1e-13, mode
    heads = [module for module in grown.modules() if (row := families.reading_of(module)) and row.is_attention]
    with torch.no_grad():
        for parameter in (parameter for module in heads for parameter in module.parameters()):
            parameter.normal_()
    assert difference(outputs(model, inputs), outputs(grown, inputs)) > 1e-6  # the new heads are alive


@pytest.mark.parametrize("make", MADE, ids=lambda make: make.__name__)
def test_another_shape_is_written_and_read_back(make: Callable[[], Made]) -> None:
    model, inputs = made(make)
    shape = leanify.read(model, inputs=inputs)
    lean = type(shape)(
        shape.source, tuple(stage.reshape(depth=2, heads=HEADS + 2, mlp=UNITS // 2) for stage in shape.stages)
    )
    written = leanify.write(model, lean)
    assert leanify.read(written) == lean
    assert difference(outputs(written.double(), inputs), outputs(copy.deepcopy(written), inputs)) == 0
    same = leanify.write(model, shape)
    assert difference(outputs(model.double(), inputs), outputs(same.double(), inputs)) == 0


def test_what_was_found_prints_as_a_row_and_can_be_given() -> None:
    model, inputs = made(gpt)
    shape = leanify.read(model, inputs=inputs)
    rows = {families.toml(row) for module in model.modules() if (row := families.attached(module)) is not None}
    attention, mlp = sorted(rows, key=lambda row: "c_fc" in row)
    assert 'rows = { c_attn = "3 h d" }' in attention
    assert 'columns = { c_proj = "h d" }' in attention
    assert 'rows = { "mlp.c_fc" = "m" }' in mlp
    fresh, _ = made(gpt)
    assert leanify.read(fresh, rows=attention + mlp) == shape


def test_a_model_says_that_an_example_input_is_missing() -> None:
    model, _ = made(gpt)
    with pytest.raises(leanify.UnsupportedModel, match=r"inputs=batch"):
        leanify.read(model)


def test_a_block_without_an_mlp_is_warned_of() -> None:
    class Only(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attn = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
            self.other = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.other(self.attn(x, x, x)[0])

    with pytest.warns(UserWarning, match="no MLP was found"):
        leanify.read(nn.Sequential(*(Only() for _ in range(2))), inputs=torch.randn(2, 5, WIDTH))


def test_reading_one_model_changes_nothing_for_the_next() -> None:
    table = dict(families.known())
    first, inputs = made(torch_attention)
    leanify.read(first, inputs=inputs)
    assert families.known() == table
    other, _ = made(torch_attention)
    assert not any(families.attached(module) for module in other.modules())


def test_reading_costs_at_most_five_forwards() -> None:
    for make in MADE:
        model, inputs = made(make)
        kind = type(model)
        calls = 0

        def counted(self: nn.Module, *args: Any, _of: Any = kind.forward, **kwargs: Any) -> Any:
            nonlocal calls
            calls += self._leanify_root if hasattr(self, "_leanify_root") else 0
            return _of(self, *args, **kwargs)

        model.__dict__["_leanify_root"] = 1
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(kind, "forward", counted)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                leanify.read(model, inputs=inputs)
        assert calls <= 5, make


@pytest.mark.filterwarnings("ignore")  # torch's own, of what it imports to compile
@pytest.mark.parametrize("wrap", ["compiled", "parametrized", "parallel"])
def test_a_wrapper_is_refused_before_anything_changes(wrap: str) -> None:
    model, inputs = made(torch_encoder)
    if wrap == "parametrized":
        torch.nn.utils.parametrizations.weight_norm(model.layers[0].linear1)  # type: ignore[union-attr, index]
        wrapped: Any = model
    else:
        wrapped = torch.compile(model) if wrap == "compiled" else nn.DataParallel(model)
    with pytest.raises(leanify.UnsupportedModel, match=r"_orig_mod|remove_parametrizations|model\.module"):
        leanify.grow(wrapped, factor=2, inputs=inputs)
