"""Initialise weights with upstream's initialisers."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from leanify.upstream.diffusion import is_diffusers
from leanify.upstream.origin import is_hf


@torch.no_grad()
def initialise_module(model: Any, name: str, module: Any) -> None:
    """Initialise one module by upstream's initialiser, or by torch's default if upstream has none."""
    if hasattr(module, "reset_parameters"):
        module.reset_parameters()
    initialiser = getattr(model, "_init_weights", None)
    if initialiser is not None:
        arguments = len(inspect.signature(initialiser).parameters)
        if arguments:  # torchvision's MaxViT has one of this name for the whole model
            initialiser(module, name) if arguments > 1 else initialiser(module)
    elif hasattr(model, "weight_init_mode"):
        from timm.models.vision_transformer import get_init_weights_vit

        get_init_weights_vit(model.weight_init_mode)(module, name)


@torch.no_grad()
def initialise_model(model: Any) -> None:
    """Re-initialise the whole model by upstream's initialiser, if one can run after construction."""
    if is_hf(model):
        for thing in (*model.modules(), *model.parameters(), *model.buffers()):
            if hasattr(thing, "_is_hf_initialized"):
                del thing._is_hf_initialized
        model.initialize_weights()
        model.tie_weights()
    elif is_diffusers(model):  # diffusers leaves its layers as torch draws them
        for module in model.modules():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
    elif hasattr(model, "init_weights"):
        model.init_weights()
    elif hasattr(model, "_init_weights") and not inspect.signature(model._init_weights).parameters:
        model._init_weights()
    elif hasattr(model, "_init_weights"):
        named = len(inspect.signature(model._init_weights).parameters) > 1  # GCViT's asks for the module's name
        for name, module in reversed(list(model.named_modules())):
            model._init_weights(module, name) if named else model._init_weights(module)


def has_initialiser(model: nn.Module) -> bool:
    """Whether a model can be initialised again after construction."""
    return is_hf(model) or is_diffusers(model) or hasattr(model, "init_weights") or hasattr(model, "_init_weights")


class NothingToDraw(TorchFunctionMode):
    """Skips random initialisation on meta, where tensors have no values although each call costs milliseconds.

    ``device`` is the default device inside the context.
    """

    draws = frozenset({"add_", "clamp_", "erfinv_", "fill_", "mul_", "normal_", "uniform_", "zero_"})

    def __init__(self, device: str | torch.device) -> None:
        super().__init__()
        self.made = {torch.randn, torch.rand} if str(device) == "meta" else set()  # on the default device, so on meta

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if func in self.made and named.get("device") is None and named.get("generator") is None:
            return torch.empty(*args, **{key: value for key, value in named.items() if key != "generator"})
        if getattr(func, "__name__", "") in self.draws:
            drawn = args[0] if args else named.get("tensor")  # torch.nn.init passes its tensor by name
            if isinstance(drawn, torch.Tensor) and drawn.is_meta:
                return drawn
        return func(*args, **named)
