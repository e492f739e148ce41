"""Wrappers around a module that change what its parameters and forward are: refused, with how to take them off."""

from __future__ import annotations

from torch import nn
from torch.nn.utils import parametrize

from leanify.errors import UnsupportedModel

UNWRAP = {
    "DataParallel": "model.module",
    "DistributedDataParallel": "model.module",
    "FullyShardedDataParallel": "the module before it was sharded",
    "OptimizedModule": "model._orig_mod, and compile what leanify returns",
    "PeftModel": "model.merge_and_unload()",
    "PeftMixedModel": "model.merge_and_unload()",
    "RecursiveScriptModule": "the module before it was scripted",
    "ScriptModule": "the module before it was scripted",
    "TopLevelTracedModule": "the module before it was traced",
    "GraphModule": "the module before it was traced",
}


def check_bare(model: nn.Module) -> None:
    """Raise UnsupportedModel if the model, or a part of it, is wrapped."""
    for path, module in model.named_modules():
        kinds = {kind.__name__ for kind in type(module).__mro__}
        wrapper = next((name for name in UNWRAP if name in kinds), None)
        if wrapper is not None:
            where = f"{path} is" if path else "the model is"
            raise UnsupportedModel(f"{where} wrapped in {wrapper}; give {UNWRAP[wrapper]}")


def check_weights(path: str, layer: nn.Module) -> None:
    """Raise UnsupportedModel if a weight of an attention or MLP is computed from other parameters.

    Other parts may have such weights, as the positional convolution of wav2vec 2.0 has: no redesign reshapes them.
    """
    for name, module in layer.named_modules(prefix=path):
        if parametrize.is_parametrized(module) or "weight_g" in module._parameters:
            raise UnsupportedModel(
                f"{name} computes its weight from other parameters (weight_norm, a parametrization); remove that first "
                "(torch.nn.utils.parametrize.remove_parametrizations, torch.nn.utils.remove_weight_norm)"
            )
