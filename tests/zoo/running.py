"""Run models in float64 with random parameters and compare their outputs, for the laws."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from leanify.core.errors import LeanifyError
from leanify.discovery.row_laws import InDouble
from leanify.lens.located import is_inside
from leanify.reshaping import sites
from leanify.upstream.libraries import format_error
from leanify.upstream.origin import remove_on_exit

Call = Callable[[nn.Module], Any]


class LawBroken(AssertionError):
    """A law does not hold; the message names the law."""


def require(holds: bool, law: str, what: str) -> None:
    if not holds:
        raise LawBroken(f"{law}: {what}")


@contextmanager
def holding(law: str) -> Iterator[None]:
    """Turn any exception inside into LawBroken, except a refusal."""
    try:
        yield
    except (LawBroken, LeanifyError):
        raise
    except Exception as error:
        raise LawBroken(f"{law}: {format_error(error)}") from error


@torch.no_grad()
def randomise(model: nn.Module, seed: int = 0) -> nn.Module:
    """Put ``model`` in eval mode and float64 with random parameters and running statistics, in place.

    Upstream initialises many parameters to zero or a constant, which could hide a wrong reading.
    """
    generator = torch.Generator().manual_seed(seed)
    model.double().eval()
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        if parameter.dim() > 1:
            parameter.copy_(noise * (max(parameter.numel(), 1) / max(parameter.shape[0], 1)) ** -0.5)
        else:
            parameter.copy_(torch.ones_like(parameter) * (parameter.mean() > 0.5) + 0.3 * noise)
    for name, buffer in model.named_buffers():
        if name.endswith("running_mean"):
            buffer.copy_(torch.randn(buffer.shape, generator=generator))
        if name.endswith("running_var"):
            buffer.copy_(0.5 + torch.rand(buffer.shape, generator=generator))
    return model


def keep_experts(new: nn.Module, old: nn.Module) -> None:
    """Let ``new`` compute experts as ``old`` does: a runtime setting of transformers, not part of a configuration."""
    experts = getattr(getattr(old, "config", None), "_experts_implementation", None)
    for module in new.modules():
        config: Any = getattr(module, "config", None)
        if hasattr(config, "_experts_implementation"):
            config._experts_implementation = experts


def outputs(model: nn.Module, call: Call, grad: bool = False) -> list[Tensor]:
    """Every floating-point tensor in a run's outputs, except caches and attention maps.

    Tensors that upstream creates during the forward (masks, zero queries) are float64 like the model.
    """
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with InDouble(), torch.set_grad_enabled(grad):
            tensors = list(result_tensors(call(model)))
    finally:
        torch.set_default_dtype(before)
    return [tensor for tensor in tensors if tensor.is_floating_point() and tensor.numel()]


def result_tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            if not any(word in str(key) for word in ("past_key_values", "attentions", "cache", "rnn_state")):
                yield from result_tensors(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from result_tensors(item)


def difference(a: list[Tensor], b: list[Tensor]) -> float:
    """The largest difference between two lists of outputs, relative to the second's magnitude."""
    if [x.shape for x in a] != [x.shape for x in b] or not b:
        return float("inf")
    require(all(torch.isfinite(y).any() for y in b), "finite", "an output has no finite number")
    ratios = []
    for x, y in zip(a, b, strict=True):
        size = max(float(y.detach().abs().nan_to_num(posinf=0).max()), 1e-300)
        max_error = (x.detach().nan_to_num() - y.detach().nan_to_num()).abs().max()
        ratios.append(float(max_error) / size)
    return max(ratios)


class _Softmaxes(TorchFunctionMode):
    """Records softmaxes over three or more axes outside ``known`` paths, except over experts or words."""

    names = ("scaled_dot_product_attention", "softmax", "_softmax", "multi_head_attention_forward")

    def __init__(self, known_paths: set[str], paths: dict[int, str], vocabulary: int) -> None:
        super().__init__()
        self.known_paths, self.paths, self.vocabulary = known_paths, paths, vocabulary
        self.running: list[nn.Module] = []
        self.unknown: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        is_softmax = getattr(func, "__name__", "") in self.names and args
        if is_softmax and args[0].dim() > 2 and args[0].shape[-1] != self.vocabulary:
            where = self.running[-1] if self.running else None
            routes = re.search(r"Router|Gate|Expert|MoE|Moe|TopK", type(where).__name__)
            enclosing_paths = [self.paths.get(id(module), "?") for module in self.running]
            if not routes and not any(is_inside(path, known) for path in enclosing_paths for known in self.known_paths):
                self.unknown.append(f"{self.paths.get(id(where), '?')} ({type(where).__name__})")
        return func(*args, **(kwargs or {}))


def check_complete(model: nn.Module, call: Call) -> list[Tensor]:
    """Law `complete`. Returns the outputs; raises LawBroken if an attention runs that was not found."""
    all_sites = sites.find_sites(model)
    known_paths = {site.path for site in all_sites if site.reading.is_attention or site.reading.kept}
    vocabulary = getattr(getattr(model, "config", None), "vocab_size", 0)
    modes = _Softmaxes(known_paths, {id(module): path for path, module in model.named_modules()}, vocabulary)

    def leave(*_: Any) -> None:
        modes.running.pop()

    enter = register_module_forward_pre_hook(lambda module, _: modes.running.append(module))
    with remove_on_exit([enter, register_module_forward_hook(leave, always_call=True)]), modes:
        result = outputs(model, call)
    unknown = list(dict.fromkeys(modes.unknown))
    require(not unknown, "complete", f"softmax outside every known attention: {', '.join(unknown[:3])}")
    return result
