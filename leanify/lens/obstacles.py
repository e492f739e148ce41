"""Obstacles to reading or copying a model, described by the part that causes them and the line that helps."""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator

import torch
from torch import nn
from torch.nn.utils import parametrize

from leanify.core.errors import UnsupportedModel
from leanify.lens.families import upstream_class

# wrapper that changes parameters or forward → expression to pass instead
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
INSIDE = {  # the same for a part of the model
    "OptimizedModule": "model.set_submodule({path!r}, model.get_submodule({path!r})._orig_mod), and compile what "
    "leanify returns",
    "DataParallel": "model.set_submodule({path!r}, model.get_submodule({path!r}).module)",
}
OWN_BATCH = "Give it with a batch of its own: path/to/model.py:make, which returns the model and the batch"
COMPUTED = {  # parameter that stands for a weight → what computes the weight, and what makes it plain
    "weight_g": ("weight_norm", "torch.nn.utils.remove_weight_norm(module)"),
    "weight_orig": ("spectral_norm or pruning", "torch.nn.utils.remove_spectral_norm(module), or prune.remove(…)"),
}


def check_bare(model: nn.Module) -> None:
    """Raise UnsupportedModel if the model, or a part of it, is wrapped, or its forward belongs to another module."""
    for path, module in model.named_modules():
        kinds = {kind.__name__ for kind in type(module).__mro__}
        wrapper = next((name for name in UNWRAP if name in kinds), None)
        if wrapper is not None:
            where = f"{path} is" if path else "the model is"
            instead = INSIDE.get(wrapper, UNWRAP[wrapper]) if path else UNWRAP[wrapper]
            raise UnsupportedModel(f"{where} wrapped in {wrapper}; give {instead.format(path=path)}")
        if isinstance(vars(module).get("forward"), types.FunctionType):  # a copy would call this module's
            name = f"model.{path}".rstrip(".")
            raise UnsupportedModel(
                f"the forward of {path or 'the model'} was replaced by a function (torch.compile(model.forward)?), "
                f"which a copy would share: del {name}.forward, and compile what leanify returns"
            )


def check_weights(path: str, layer: nn.Module) -> None:
    """Raise UnsupportedModel if a weight of an attention or MLP is computed from other parameters.

    Other parts may have such weights, like the positional convolution of wav2vec 2.0: no redesign reshapes them.
    """
    obstacle = next(_computed_weights(path, layer), None)
    if obstacle:
        raise UnsupportedModel(obstacle)


def _computed_weights(path: str, layer: nn.Module) -> Iterator[str]:
    for name, module in layer.named_modules(prefix=path):
        how = next((COMPUTED[key] for key in COMPUTED if key in module._parameters), None)
        if parametrize.is_parametrized(module):
            key = next(iter(module.parametrizations))
            how = ("a parametrization", f"torch.nn.utils.parametrize.remove_parametrizations(module, {key!r})")
        if how is not None:
            yield (
                f"{name or 'the model'} computes its weight from other parameters ({how[0]}); remove that first, of "
                f"every such module: {how[1]}"
            )


def describe_obstacle(model: nn.Module) -> str:
    """Name what likely keeps a user's model from being read: the first such part; "" if there is none."""
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.conv._ConvNd):
            continue
        for words in _computed_weights(name, module):
            return words
        for call in sorted(_compiled_calls(module)):
            return f"{name or 'the model'} calls {call}"
        buffers = dict(module.named_buffers(recurse=False))
        integers = [key for key, buffer in buffers.items() if buffer.dtype in (torch.int8, torch.uint8, torch.int32)]
        if any(buffers[key].dim() > 1 for key in integers):
            return (
                f"{name} holds its weights as integers ({integers[0]}), from which no heads can be taken: give the "
                "model before it was quantised, and quantise what leanify returns"
            )
        matrices = [key for key, one in module.named_parameters(recurse=False) if one.dim() == 2]
        if "weight" in matrices and len(matrices) > 1 and not isinstance(module, nn.MultiheadAttention):
            return (
                f"{name} computes one map from several matrices ({', '.join(matrices)}): merge them into its weight "
                "first (peft: merge_and_unload())"
            )
    return ""


def _compiled_calls(module: nn.Module) -> Iterator[str]:
    """Describe the scripts and compiled functions that the methods of a module are or call, with what helps."""
    hides = "which shows nothing of what it does"
    for key, method in vars(upstream_class(module)).items():
        if not inspect.isfunction(method):
            continue
        global_values = {name: method.__globals__.get(name) for name in method.__code__.co_names}
        for name, function in {key: method, **global_values}.items():
            if isinstance(function, torch.jit.ScriptFunction):
                remedy = "set PYTORCH_JIT=0 in the environment, or remove the decorator"
                yield f"{name}, a torch.jit script, {hides}: {remedy}"
            elif name == "flex_attention":
                yield f"{name}, a compiled kernel, {hides}: let it call F.scaled_dot_product_attention"
            elif hasattr(function, "_torchdynamo_orig_callable"):
                remedy = "set TORCHDYNAMO_DISABLE=1 in the environment, or compile what leanify returns"
                yield f"{name}, compiled by torch.compile, {hides}: {remedy}"
