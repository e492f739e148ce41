"""Initialise weights with upstream's initialisers."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

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
def initialise_model(model: Any) -> bool:
    """Re-initialise the whole model by upstream's initialiser; False if none can run after construction."""
    # transformers skips modules that it has marked as initialised
    if is_hf(model):
        for part in (*model.modules(), *model.parameters(), *model.buffers()):
            if hasattr(part, "_is_hf_initialized"):
                del part._is_hf_initialized
        model.initialize_weights()
        model.tie_weights()

    # timm: for the whole model, or for one module after another, inner ones first
    elif hasattr(model, "init_weights"):
        model.init_weights()
    elif hasattr(model, "_init_weights"):
        arguments = len(inspect.signature(model._init_weights).parameters)
        if arguments == 0:
            model._init_weights()
            return True
        for name, module in reversed(list(model.named_modules())):
            model._init_weights(module, name) if arguments > 1 else model._init_weights(module)
    else:
        return False
    return True


class NothingToDraw(TorchFunctionMode):
    """Skips random initialisation on meta: tensors have no values there, yet each call takes milliseconds.

    ``device`` is the default device inside the context.
    """

    draws = frozenset({"add_", "clamp_", "erfinv_", "fill_", "mul_", "normal_", "uniform_", "zero_"})

    def __init__(self, device: str | torch.device) -> None:
        super().__init__()
        # they draw on the default device, which is meta
        self.random_makers = {torch.randn, torch.rand} if str(device) == "meta" else set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # new random tensors, unless they name their device or generator
        keywords = kwargs or {}
        if func in self.random_makers and keywords.get("device") is None and keywords.get("generator") is None:
            return torch.empty(*args, **{key: value for key, value in keywords.items() if key != "generator"})

        # in-place draws on meta
        if getattr(func, "__name__", "") in self.draws:
            tensor = args[0] if args else keywords.get("tensor")  # torch.nn.init passes its tensor by name
            if isinstance(tensor, torch.Tensor) and tensor.is_meta:
                return tensor
        return func(*args, **keywords)
