"""Build models with upstream's own constructors: in memory, on meta, or as a shell to load weights into."""

from __future__ import annotations

import difflib
import inspect
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from leanify import models
from leanify.errors import SourceError
from leanify.upstream.libraries import construction_errors, first_line, import_timm, import_transformers, without_type
from leanify.upstream.origin import Origin, set_origin


def build_model(origin: Origin, device: str = "cpu") -> nn.Module:
    """The model that upstream's constructor gives, freshly drawn; on ``meta`` in no memory. It knows its origin."""
    with torch.device(device), _NothingToDraw():
        model = {"timm": _build_timm, "hf": _build_hf, "leanify": _build_own}[origin.library](origin)
    model.eval()
    set_origin(model, origin)
    return model


class _NothingToDraw(TorchFunctionMode):
    """Skips an initialiser's arithmetic on meta tensors: they have no values, yet each call costs milliseconds."""

    draws = frozenset({"add_", "clamp_", "erfinv_", "fill_", "mul_", "normal_", "uniform_", "zero_"})

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (
            args
            and getattr(func, "__name__", "") in self.draws
            and isinstance(args[0], torch.Tensor)
            and args[0].is_meta
        ):
            return args[0]
        return func(*args, **(kwargs or {}))


def _build_timm(origin: Origin) -> nn.Module:
    library = import_timm()
    try:
        model: nn.Module = library.create_model(origin.name, **origin.options)
    except (TypeError, ValueError, AssertionError) as error:
        options = ", ".join(f"{key}={value!r}" for key, value in origin.options.items()) or "no options"
        raise SourceError(
            f"timm does not build {origin.name!r} with {options}: {first_line(error)}{_nearest_argument(error)}"
        ) from error
    return model


def _nearest_argument(error: Exception) -> str:
    """For an unknown keyword argument, the nearest ones that the model's class takes."""
    found = re.search(r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'", str(error))
    modules = [module for name, module in sys.modules.items() if name.startswith("timm.models.")]
    cls = next((vars(m)[found[1]] for m in modules if found and found[1] in vars(m)), None)
    if found is None or cls is None:
        return ""
    near = difflib.get_close_matches(found[2], inspect.signature(cls).parameters)
    return f"; nearest: {', '.join(near)}" if near else ""


def _build_hf(origin: Origin) -> nn.Module:
    library = import_transformers()
    try:
        config = library.AutoConfig.for_model(origin.name, **without_type(origin.options))
        model: nn.Module = getattr(library, origin.cls)(config)
    except construction_errors() as error:
        raise SourceError(
            f"transformers does not build {origin.name!r} as {origin.cls}: {first_line(error)}"
        ) from error
    return model


def _build_own(origin: Origin) -> nn.Module:
    try:
        model: nn.Module = models.model_class(origin.name)(**origin.options)
    except KeyError:
        raise SourceError(f"leanify has no model {origin.name!r}; it has {', '.join(models.MODELS)}") from None
    except (TypeError, ValueError, RuntimeError) as error:
        raise SourceError(f"leanify does not build {origin.name!r}: {first_line(error)}") from error
    return model


def build_shell(origin: Origin) -> nn.Module:
    """The model that upstream's constructor gives, its parameters on meta where they can be, its buffers real.

    A model that makes its tables on its parameters' device (Swin v2), or runs a part of itself while it is built (a
    ViT behind a ResNet), is built with real parameters.
    """
    try:
        with parameters_on_meta():
            model = build_model(origin)
    except RuntimeError:  # NotImplementedError is one
        return build_model(origin)
    return build_model(origin) if any(buffer.is_meta for buffer in model.buffers()) else model


@contextmanager
def parameters_on_meta() -> Iterator[None]:
    """Build modules whose parameters take no memory and no time, their buffers real: a shell to load weights into."""
    register = nn.Module.register_parameter

    def register_on_meta(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        register(self, name, param)
        if param is not None and not param.is_meta:
            self._parameters[name] = nn.Parameter(param.detach().to("meta"), requires_grad=param.requires_grad)

    nn.Module.register_parameter = register_on_meta  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]
