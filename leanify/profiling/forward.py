"""Run a model's own forward on ``meta``, or on zeros in memory where upstream's code needs values."""

from __future__ import annotations

import copy
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from leanify.core import machine
from leanify.core.errors import LeanifyError, UnsupportedModel
from leanify.core.units import format_bytes
from leanify.lens.obstacles import OWN_BATCH, describe_obstacle
from leanify.reshaping.surgery import tie
from leanify.upstream import user_modules
from leanify.upstream.build import build_shell
from leanify.upstream.example_inputs import Given
from leanify.upstream.inputs import describe_made, example_inputs
from leanify.upstream.libraries import format_error
from leanify.upstream.origin import get_example, get_origin, in_mode, is_hf

Result = TypeVar("Result")
Observe = Callable[[nn.Module, dict[str, Tensor]], Result]
CHECK_VARIABLE = "TRANSFORMERS_DISABLE_TORCH_CHECK"
_CHECK_LOCK = threading.RLock()  # an environment belongs to all threads


def call(model: nn.Module, inputs: dict[str, Tensor]) -> object:
    """One forward pass; timm takes its image by position."""
    return model(inputs["x"]) if set(inputs) == {"x"} and get_example(model) is None else model(**inputs)


def signature(model: nn.Module) -> tuple[dict[str, tuple[int, ...]], tuple[int, ...]]:
    """The shapes of a meta model's inputs, by name, and of its first output, for one sample."""
    inputs = example_inputs(model, 1, device="meta")
    with disable_gradients(model), Countable():
        outputs: Any = call(model, inputs)
    if not hasattr(outputs, "shape"):
        outputs = next(value for value in outputs.values() if hasattr(value, "shape"))
    return {name: tuple(value.shape) for name, value in inputs.items()}, tuple(outputs.shape)


class Positional(nn.Module):
    """A model for tracers: it takes inputs by position and returns the tensors that ``select`` takes."""

    def __init__(self, model: nn.Module, names: list[str], select: Callable[[Any], Sequence[Tensor]]) -> None:
        super().__init__()
        self.model, self.names, self.select = model, names, select

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.select(call(self.model, dict(zip(self.names, inputs, strict=True)))))


@contextmanager
def disable_gradients(model: nn.Module) -> Iterator[None]:
    """Disable gradients, also of parameters: torch's counter fails on views of parameters that require one."""
    trained_parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        for parameter in trained_parameters:
            parameter.requires_grad_(False)
        with torch.no_grad():
            yield
    finally:
        for parameter in trained_parameters:
            parameter.requires_grad_(True)


class Countable(TorchFunctionMode):
    """Makes upstream's forward run on ``meta`` and countable.

    All tokens go to the first expert: experts have one size, so the counts are the same. Questions about
    values are answered as for a sample without padding: masks are true everywhere, and searches find nothing.
    A tensor with values (a grid of patches) moves to ``meta`` in an operation with a tensor on ``meta``.
    """

    answers: Mapping[Any, Callable[[Tensor], Any]] = {
        Tensor.all: lambda mask: torch.tensor(True),
        Tensor.any: lambda mask: torch.tensor(False),
        torch.any: lambda mask: torch.tensor(False),
        Tensor.sum: lambda mask: torch.tensor(mask.numel()) if mask.dtype is torch.bool else mask.sum(),
    }

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # grouped products of experts: of all tokens with one expert's weights each
        if getattr(func, "__name__", "") == "_grouped_mm":
            return torch.mm(args[0], args[1][0])
        # questions about values that tensors on meta do not have get the answer of an unmasked input
        if len(args) == 1 and _has_no_values(args[0]):
            if func in (Tensor.nonzero, torch.where):
                asking = sys._getframe(1).f_locals.get("self")
                if type(asking).__name__.endswith("Experts"):
                    # the rows of an expert: all of them; the experts that have rows: the first
                    if func is torch.where:
                        return (args[0].new_zeros(args[0].numel(), dtype=torch.long),) * args[0].dim()
                    return torch.zeros(1, args[0].dim(), dtype=torch.long, device="cpu")
            if func in self.answers and not kwargs:
                return self.answers[func](args[0])
        if func is torch.Tensor.__contains__ and _has_no_values(args[0]):
            return False
        # constants in memory are moved to meta
        try:
            return func(*args, **(kwargs or {}))
        except RuntimeError:
            if not any(isinstance(arg, Tensor) and arg.is_meta for arg in args):
                raise
            on_meta = [arg.to("meta") if isinstance(arg, Tensor) else arg for arg in args]
            return func(*on_meta, **(kwargs or {}))


def _has_no_values(value: Any) -> bool:
    """Whether a tensor has no values: on ``meta``, or torch's FakeTensor (whose module is slow to import)."""
    return isinstance(value, Tensor) and (value.is_meta or type(value).__name__ == "FakeTensor")


def unmasked_inputs(
    model: nn.Module, tokens: int | None = None, device: str = "meta", batch: int | None = None
) -> dict[str, Tensor]:
    """A batch without a mask: upstream would read its values, which do not exist on ``meta``."""
    inputs = example_inputs(model, batch, tokens, device)
    if isinstance(inputs, Given):
        return inputs
    return {name: value for name, value in inputs.items() if name != "attention_mask"}


def zeros(model: nn.Module, device: str | torch.device = "cpu") -> nn.Module:
    """The meta model in memory: its parameters zero, its buffers as upstream makes them where shapes are the same."""
    real = drop_values(model, device)
    with torch.no_grad():
        for parameter in real.parameters():
            parameter.zero_()
    return real


def drop_values(model: nn.Module, device: str | torch.device = "cpu") -> nn.Module:
    """The meta model in memory, as `zeros`, but with parameters that have no values yet."""
    real: nn.Module = copy.deepcopy(model).to_empty(device=device)
    user_modules.empty_attributes(real, device)
    tie(real, model)

    # upstream's buffers: tables of positions and windows decide on the way through the model
    origin = get_origin(model)
    tensors: dict[str, Tensor] = {}
    if origin is not None and any(True for _ in real.buffers()):
        tensors = dict(build_shell(origin).named_buffers())
    with torch.no_grad():
        for path, buffer in real.named_buffers():
            tensor = tensors.get(path)
            if tensor is not None and tensor.shape == buffer.shape:
                buffer.copy_(tensor)
            else:
                buffer.zero_()

    # experts take all tokens: a limited capacity would drop some, depending on values
    for module in real.modules():
        if isinstance(getattr(module, "expert_capacity", None), int):
            module.expert_capacity = 1 << 30  # type: ignore[assignment]
    return in_mode(real)


def observe_forward(model: nn.Module, tokens: int | None, observe: Observe[Result]) -> Result:
    """The result of ``observe`` in a forward pass on ``meta``, or, if upstream's code needs values, of zeros in memory.

    Raises UnsupportedModel if neither runs.
    """
    result = observe_on_meta(model, tokens, observe)
    return observe_on_cpu(model, tokens, observe) if result is None else result


def observe_on_meta(model: nn.Module, tokens: int | None, observe: Observe[Result]) -> Result | None:
    """The result of ``observe`` in a forward pass on ``meta``; None if that fails.

    transformers' own checks of values (as many image tokens as features) are off: meta tensors cannot pass them.
    """
    with _CHECK_LOCK:
        before = os.environ.get(CHECK_VARIABLE)
        os.environ[CHECK_VARIABLE] = "1"
        try:
            return observe(model, unmasked_inputs(model, tokens))
        except LeanifyError:
            raise
        except Exception:  # upstream's code may raise anything on meta
            return None
        finally:
            os.environ.pop(CHECK_VARIABLE)
            if before is not None:
                os.environ[CHECK_VARIABLE] = before


def observe_on_cpu(model: nn.Module, tokens: int | None, observe: Observe[Result]) -> Result:
    """The result of ``observe`` in a forward pass of zeros in memory. Raises UnsupportedModel if that fails.

    Attention is not fused: torch's counter cannot see into the CPU's fused kernels.
    """
    # only if the weights fit in memory
    size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    free = machine.available_memory(torch.device("cpu"))
    fast = torch.backends.mha.get_fastpath_enabled()
    try:
        if free is not None and size > free:
            raise MemoryError(f"it takes {format_bytes(size)} of memory, {format_bytes(free)} are available")
        torch.backends.mha.set_fastpath_enabled(False)
        with sdpa_kernel(SDPBackend.MATH):
            return observe(zeros(model), unmasked_inputs(model, tokens, "cpu"))
    except LeanifyError:
        raise
    except Exception as error:
        # default configurations of several parts may not fit each other
        origin = get_origin(model)
        hint = ""
        if origin is not None and origin.library == "hf" and "vision_config" in origin.options:
            hint = "; its parts may have default sizes that do not fit each other: name a checkpoint or its config.json"
        elif get_example(model) is None:
            hint = f". {OWN_BATCH}"
        if obstacle := describe_obstacle(model):
            hint = f"; {obstacle}"
        why = f"a forward pass of zeros failed with {format_error(error)}"
        if is_hf(model) and not isinstance(error, MemoryError):
            why = f"it does not run on {describe_made(model, error)}"
        raise UnsupportedModel(
            f"{type(model).__name__} cannot be priced: {why}{hint}. leanify.read, write and grow may still do for it"
        ) from error
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
