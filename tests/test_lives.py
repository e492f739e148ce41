"""A redesigned model is a model like any other: it trains, exports, is copied and pickled, and compiles."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from zoo import running, table, tiny

import leanify

SAMPLE = [  # seconds each
    ("timm", "vit_base_patch16_224"), ("timm", "xcit_nano_12_p16_224"), ("timm", "swin_tiny_patch4_window7_224"),
    ("timm", "davit_tiny"), ("timm", "volo_d1_224"), ("timm", "tnt_s_patch16_224"), ("timm", "cait_xxs24_224"),
    ("timm", "eva02_tiny_patch14_224"), ("hf", "bert"), ("hf", "gpt2"), ("hf", "llama"), ("hf", "t5"),
    ("hf", "nystromformer"),
]  # fmt: skip


def everything() -> list[tuple[str, str]]:
    """Every model that the zoo's table calls supported."""
    return [(library, name) for library in tiny.LIBRARIES for name in table.supported_models(library)]


CASES = [pytest.param(*case, id="/".join(case), marks=pytest.mark.slow) for case in SAMPLE]
LONG = [pytest.param(*case, id="/".join(case), marks=pytest.mark.long) for case in everything() if case not in SAMPLE]


def redesigned(library: str, name: str) -> tuple[nn.Module, nn.Module, tuple[Any, ...], dict[str, Any]]:
    """A small model in float32, the same grown, and the arguments that they are run with."""
    torch.manual_seed(0)
    model, call = tiny.build(library, name)
    taken: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    class Recorder(nn.Module):
        def forward(self, *args: Any, **kwargs: Any) -> None:
            taken.append((args, kwargs))

    with suppress(AttributeError):  # it has no towers
        call(Recorder())
    args, kwargs = (single(x) for x in taken[0])
    return model.eval(), leanify.grow(model, factor=2).eval(), args, kwargs


def single(inputs: Any) -> Any:
    """The same arguments, floating-point tensors in single precision."""
    if isinstance(inputs, Tensor):
        return inputs.float() if inputs.is_floating_point() else inputs
    if isinstance(inputs, dict):
        return {key: single(value) for key, value in inputs.items()}
    return type(inputs)(single(value) for value in inputs) if isinstance(inputs, (tuple, list)) else inputs


def given(outputs: Any) -> list[Tensor]:
    return [x for x in running.result_tensors(outputs) if x.is_floating_point()]


@pytest.mark.parametrize(("library", "name"), CASES + LONG)
@pytest.mark.filterwarnings("ignore")
def test_model_trains_exports_copies_compiles(library: str, name: str) -> None:
    original, model, args, kwargs = redesigned(library, name)
    for ability in (is_copied, is_pickled, is_exported, is_compiled):
        if (library, name) in SAMPLE:
            ability(model, args, kwargs)
        else:
            can = works(ability, model, args, kwargs) or not works(ability, original, args, kwargs)
            assert can, f"not {ability.__name__}, as upstream's own model is"
    assert reached(model, args, kwargs) == reached(original, args, kwargs)


def works(ability: Callable[..., None], *arguments: Any) -> bool:
    try:
        ability(*arguments)
    except Exception:
        return False
    return True


@torch.no_grad()
def is_copied(model: nn.Module, args: Any, kwargs: Any) -> None:
    assert_equal(copy.deepcopy(model)(*args, **kwargs), model(*args, **kwargs))


@torch.no_grad()
def is_pickled(model: nn.Module, args: Any, kwargs: Any) -> None:
    assert_equal(pickle.loads(pickle.dumps(model))(*args, **kwargs), model(*args, **kwargs))


@torch.no_grad()
def is_exported(model: nn.Module, args: Any, kwargs: Any) -> None:
    exported = torch.export.export(model, args, kwargs, strict=False).module()
    assert_close(exported(*args, **kwargs), model(*args, **kwargs))


@torch.no_grad()
def is_compiled(model: nn.Module, args: Any, kwargs: Any) -> None:
    compiled = torch.compile(copy.deepcopy(model), backend="aot_eager", dynamic=False)
    assert_close(compiled(*args, **kwargs), model(*args, **kwargs))
    torch.compiler.reset()


def assert_equal(found: Any, expected: Any) -> None:
    torch.testing.assert_close(given(found), given(expected), atol=0, rtol=0)


def assert_close(found: Any, expected: Any) -> None:
    torch.testing.assert_close(given(found), given(expected), atol=1e-4, rtol=1e-3)


def reached(model: nn.Module, args: Any, kwargs: Any) -> set[str]:
    """The parameters that one training step's gradient reaches, all of it finite (upstream leaves a few unused)."""
    torch.manual_seed(0)
    sum(x.square().mean() for x in given(model.train()(*args, **kwargs))).backward()
    gradients = {path: parameter.grad for path, parameter in model.named_parameters() if parameter.grad is not None}
    assert all(gradient.isfinite().all() for gradient in gradients.values())
    assert len(gradients) > 10
    return set(gradients)
