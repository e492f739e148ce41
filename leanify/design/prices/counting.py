"""What a model costs: parameters and multiply-adds, counted on ``meta``.

Nothing is estimated: upstream's own forward runs, on ``meta`` where possible, and torch counts.
"""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from leanify import machine
from leanify.design.prices.shapes import Cost
from leanify.errors import LeanifyError, UnsupportedModel
from leanify.lens.located import LocatedLayer, LocatedModel
from leanify.lens.sites import locate
from leanify.lens.surgery import tie
from leanify.units import binary
from leanify.upstream import diffusion, modules
from leanify.upstream.build import build_shell
from leanify.upstream.caches import kept_by
from leanify.upstream.diffusion import is_diffusers
from leanify.upstream.given import Given, given_to
from leanify.upstream.hooked import hooked
from leanify.upstream.inputs import example_inputs
from leanify.upstream.libraries import in_words
from leanify.upstream.origin import is_hf, origin_of

Result = TypeVar("Result")
Observe = Callable[[nn.Module, dict[str, Tensor]], Result]
UNCHECKED = "TRANSFORMERS_DISABLE_TORCH_CHECK"
CACHED_BYTES = 2  # a number: bfloat16 or float16


def parameters(module: nn.Module) -> int:
    """The number of parameters, shared ones once."""
    return sum(parameter.numel() for parameter in module.parameters())


def body(located: LocatedModel) -> int:
    """The parameters of the blocks: everything but embeddings, final norms and classifier."""
    return sum({id(p): p.numel() for block in located.blocks for p in block.parameters()}.values())


def call(model: nn.Module, inputs: dict[str, Tensor]) -> object:
    """One forward pass; timm takes its image by position."""
    if is_diffusers(model):
        return model(**diffusion.arguments(inputs))
    return model(inputs["x"]) if set(inputs) == {"x"} and given_to(model) is None else model(**inputs)


class Positional(nn.Module):
    """A model that takes inputs by position and gives the tensors ``of`` its output, as tracers need it."""

    def __init__(self, model: nn.Module, names: list[str], of: Callable[[Any], Sequence[Tensor]]) -> None:
        super().__init__()
        self.model, self.names, self.of = model, names, of

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.of(call(self.model, dict(zip(self.names, inputs, strict=True)))))


class Flops(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts FLOPs by torch's own formulas in ``total``; an operator that is made of others is counted as those.

    torch's `FlopCounterMode` gives a total at the end only; here it can be read between two modules.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total: int = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _is_made_of_others(func):
            with self:
                return func.decompose(*args, **(kwargs or {}))
        result = func(*args, **(kwargs or {}))
        formula = flop_registry.get(func._overloadpacket)
        if formula is not None:
            self.total += formula(*args, **(kwargs or {}), out_val=result)
        return result


@cache
def _is_made_of_others(operator: Any) -> bool:
    return bool(operator._can_decompose())


def macs(model: nn.Module, inputs: dict[str, Tensor]) -> int:
    """Multiply-adds of one forward pass (half of its FLOPs), by torch's formulas; exact if nothing is fused."""
    with plain(model), Countable(), Flops() as flops:
        call(model, inputs)
    return int(flops.total) // 2


def macs_by_module(model: nn.Module, inputs: dict[str, Tensor]) -> dict[str, int]:
    """Multiply-adds of one forward pass in each module that takes any, by its path; the whole is at ``""``."""
    flops = Flops()
    before: dict[str, list[int]] = {}
    inside: dict[str, int] = {}
    hooks = []
    for path, module in model.named_modules():

        def enter(_: nn.Module, args: Any, path: str = path) -> None:
            before.setdefault(path, []).append(flops.total)

        def leave(_: nn.Module, args: Any, result: Any, path: str = path) -> None:
            began = before[path].pop()
            if not before[path]:  # not in a call of itself
                inside[path] = inside.get(path, 0) + flops.total - began

        hooks += [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]
    with hooked(hooks), plain(model), Countable(), flops:
        call(model, inputs)
    return {**{path: count // 2 for path, count in inside.items() if count}, "": flops.total // 2}


@contextmanager
def plain(model: nn.Module) -> Iterator[None]:
    """Without gradients: torch's counter trips over views of parameters that want one."""
    wanting = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        for parameter in wanting:
            parameter.requires_grad_(False)
        with torch.no_grad():
            yield
    finally:
        for parameter in wanting:
            parameter.requires_grad_(True)


class Countable(TorchFunctionMode):
    """Makes upstream's forward run on ``meta`` and countable.

    All tokens go to the first expert: experts have one size, so the counts are the same. Questions about
    values are answered as for a sample without padding: masks are true everywhere, and searches find nothing.
    A tensor with values (a grid of patches) moves to ``meta`` when it meets one without.
    """

    answers: Mapping[Any, Callable[[Tensor], Any]] = {
        Tensor.all: lambda mask: torch.tensor(True),
        Tensor.any: lambda found: torch.tensor(False),
        torch.any: lambda found: torch.tensor(False),
        Tensor.sum: lambda mask: torch.tensor(mask.numel()) if mask.dtype is torch.bool else mask.sum(),
    }

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") == "_grouped_mm":
            return torch.mm(args[0], args[1][0])
        if len(args) == 1 and _has_no_values(args[0]):
            if func in (Tensor.nonzero, torch.where):
                asking = sys._getframe(1).f_locals.get("self")
                if type(asking).__name__.endswith("Experts"):
                    return self._chosen(func, args[0])
            if func in self.answers and not kwargs:
                return self.answers[func](args[0])
        if func is torch.Tensor.__contains__ and _has_no_values(args[0]):
            return False
        try:
            return func(*args, **(kwargs or {}))
        except RuntimeError:
            if not any(isinstance(one, Tensor) and one.is_meta for one in args):
                raise
            on_meta = [one.to("meta") if isinstance(one, Tensor) else one for one in args]
            return func(*on_meta, **(kwargs or {}))

    def _chosen(self, func: Any, mask: Tensor) -> Any:
        """The rows of an expert: all of them; the experts that have rows: the first."""
        if func is torch.where:
            return (mask.new_zeros(mask.numel(), dtype=torch.long),) * mask.dim()
        return torch.zeros(1, mask.dim(), dtype=torch.long, device="cpu")


def _has_no_values(value: Any) -> bool:
    """Whether a tensor has a size alone: on ``meta``, or torch's FakeTensor (whose module is slow to import)."""
    return isinstance(value, Tensor) and (value.is_meta or type(value).__name__ == "FakeTensor")


def unmasked_inputs(
    model: nn.Module, tokens: int | None = None, device: str = "meta", batch: int | None = None
) -> dict[str, Tensor]:
    """A batch without a mask: upstream would look into it, and on ``meta`` there is nothing to see."""
    inputs = example_inputs(model, batch, tokens, device)
    if isinstance(inputs, Given):
        return inputs
    return {name: value for name, value in inputs.items() if name != "attention_mask"}


def zeros(model: nn.Module, device: str | torch.device = "cpu") -> nn.Module:
    """The meta model in memory: its parameters zero, its buffers as upstream makes them where they keep their shape.

    No expert turns a token away, though all choose the first.
    """
    real: nn.Module = copy.deepcopy(model).to_empty(device=device)
    modules.empty_attributes(real, device)
    tie(real, model)  # `to_empty` makes a parameter for each name
    origin = origin_of(model)
    made: dict[str, Tensor] = {}
    if origin is not None and any(True for _ in real.buffers()):
        made = dict(build_shell(origin).named_buffers())
    with torch.no_grad():
        for parameter in real.parameters():
            parameter.zero_()
        for path, buffer in real.named_buffers():
            known = made.get(path)
            if known is not None and known.shape == buffer.shape:
                buffer.copy_(known)
            else:
                buffer.zero_()
    for module in real.modules():
        if isinstance(getattr(module, "expert_capacity", None), int):
            module.expert_capacity = 1 << 30  # type: ignore[assignment]
    return real.eval()


def observed(model: nn.Module, tokens: int | None, observe: Observe[Result]) -> Result:
    """The result of ``observe`` in a forward pass on ``meta``, or, if upstream's code needs values (it branches on
    them, or makes CPU tensors of its own), with zeros on the CPU. Raises UnsupportedModel if neither runs.
    """
    found = observed_on_meta(model, tokens, observe)
    return observed_on_cpu(model, tokens, observe) if found is None else found


def observed_on_meta(
    model: nn.Module, tokens: int | None, observe: Observe[Result], batch: int | None = None
) -> Result | None:
    """The result of ``observe`` in a forward pass on ``meta``; None if that fails.

    transformers' own checks of values (as many image tokens as features) are off: meta tensors cannot pass them.
    """
    before = os.environ.get(UNCHECKED)
    os.environ[UNCHECKED] = "1"
    try:
        return observe(model, unmasked_inputs(model, tokens, batch=batch))
    except LeanifyError:
        raise
    except Exception:  # whatever upstream's code raises where it was never tried
        return None
    finally:
        os.environ.pop(UNCHECKED)
        if before is not None:
            os.environ[UNCHECKED] = before


def observed_on_cpu(model: nn.Module, tokens: int | None, observe: Observe[Result], batch: int | None = None) -> Result:
    """The result of ``observe`` in a forward pass of zeros in memory. Raises UnsupportedModel if that fails.

    Attention is not fused: torch's counter cannot see into the CPU's fused kernels.
    """
    size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    free = machine.available(torch.device("cpu"))
    fast = torch.backends.mha.get_fastpath_enabled()
    try:
        if free is not None and size > free:
            raise MemoryError(f"it takes {binary(size)} of memory, {binary(free)} are available")
        torch.backends.mha.set_fastpath_enabled(False)
        with sdpa_kernel(SDPBackend.MATH):
            return observe(zeros(model), unmasked_inputs(model, tokens, "cpu", batch))
    except LeanifyError:
        raise
    except Exception as error:
        origin = origin_of(model)
        hint = ""
        if origin is not None and origin.library == "hf" and "vision_config" in origin.options:
            hint = (
                "; if these are default sizes, those of its parts may not fit each other: "
                "name a checkpoint or its config.json"
            )
        raise UnsupportedModel(
            f"{type(model).__name__} cannot be priced: a forward pass of zeros failed with {in_words(error)}{hint}. "
            "leanify.read, write and grow may still do for it"
        ) from error
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def count(model: nn.Module, tokens: int | None = None, context: int = 0) -> Cost:
    """The cost of a model on ``meta``. Raises UnsupportedModel where upstream's forward does not run."""
    return count_located(locate(model), tokens, context)


def count_located(located: LocatedModel, tokens: int | None = None, context: int = 0) -> Cost:
    """`count` for a model that is located already."""
    every = parameters(located.model)
    forward = observed(located.model, tokens, macs)
    prefill, decode = generation(located, context)
    kv, active = cache_bytes(located, context), every - idle_parameters(located)
    return Cost(every, body(located), forward, active, kv, prefill=prefill, decode=decode)


def idle_parameters(located: LocatedModel) -> int:
    """The parameters of the experts that a token is not sent to, also in blocks without attention."""
    idle: dict[type, tuple[int, int]] = {}
    for layer in located.layers:
        shape = layer.read()
        if shape.experts and shape.active and layer.mlp is not None:  # 0 active: the configuration does not say
            idle[type(layer.mlp.module)] = (shape.experts - shape.active, shape.experts)
    every = {module: idle[type(module)] for module in located.model.modules() if type(module) in idle}
    return sum(parameters(module) * unused // experts for module, (unused, experts) in every.items())


def cache_bytes(located: LocatedModel, context: int) -> int:
    """Bytes of the key/value caches after ``context`` tokens of one sequence, as servers keep them.

    Keys and values of every key/value head, up to the layer's window; under latent attention the latent and the rotary
    part only (DeepSeek-V2, §2.1). Cross-attention does not count: its cache does not grow with the context.
    """
    numbers = 0
    for layer in located.layers:
        kept = kept_by(located.model, layer.attention.module) if context else None
        if kept is not None:
            shape = layer.read()
            numbers += kept.seen(context) * (kept.latent or 2 * shape.kv_heads * shape.head_dim)
    return CACHED_BYTES * numbers


def generation(located: LocatedModel, context: int) -> tuple[int, int]:
    """(prefill, decode) of an encoder-decoder in multiply-adds; zeros for other models, or if it does not run on meta.

    prefill  the encoder reads ``context`` tokens (or its sound or image), the decoder its first token
    decode   one more token of the decoder, with ``context`` cached ones

    They follow from two forward passes, with one and with two decoder tokens: keys and values of the encoder's output
    are computed once and cancel; the decoder's own attention maps have one entry for one token and four for two.
    """
    model: Any = located.model
    if not context or not is_hf(model) or not getattr(model.config, "is_encoder_decoder", False):
        return 0, 0

    def with_decoder_tokens(number: int) -> int | None:
        def observe(model: nn.Module, inputs: dict[str, Tensor]) -> int:
            return macs(model, {**inputs, "decoder_input_ids": inputs["decoder_input_ids"][:, :number]})

        return observed_on_meta(model, context, observe)

    one, two = with_decoder_tokens(1), with_decoder_tokens(2)
    if one is None or two is None:
        return 0, 0
    row = rows = 0  # MACs of a query with one key and its value, and with those of all tokens that its layer keeps
    for layer in located.layers:
        kept = kept_by(model, layer.attention.module)
        if kept is not None:
            shape = layer.read()
            pair = shape.heads * (kept.pair or 2 * shape.head_dim)
            row, rows = row + pair, rows + pair * kept.seen(context)
    return one, two - one - 3 * row + rows


def token_counts(located: LocatedModel, tokens: int | None = None) -> list[int]:
    """The number of tokens N of A in each stage: the rows of the input of its primary output projection."""
    layers: dict[str, LocatedLayer] = {}
    for stage in located.stages:
        block = next(block for block in stage.blocks if block)
        layers[stage.name] = max(block, key=lambda layer: layer.read().width)

    def rows_of_layers(model: nn.Module, inputs: dict[str, Tensor]) -> list[int]:
        seen: dict[str, int] = {}
        hooks = []
        for stage, layer in layers.items():

            def note(_: nn.Module, args: tuple[Tensor, ...], name: str = stage) -> None:
                seen[name] = _rows(args[0])

            def note_behind(_: nn.Module, args: Any, result: Any, name: str = stage) -> None:
                for tensor in result if isinstance(result, (tuple, list)) else (result,):
                    if isinstance(tensor, Tensor) and tensor.dim() > 1:
                        seen.setdefault(name, _rows(tensor))  # torch's own attention takes the weights alone

            if layer.is_observable:
                hooks.append(model.get_submodule(layer.output_path).register_forward_pre_hook(note))
            hooks.append(model.get_submodule(layer.attention.path).register_forward_hook(note_behind))
        with hooked(hooks), plain(model), Countable():
            call(model, inputs)
        return [seen.get(stage, 1) for stage in layers]

    return observed(located.model, tokens, rows_of_layers)


def _rows(tensor: Tensor) -> int:
    """The tokens of one sample: (…, N, C), (…, H, W, C), or (N, 1, C)."""
    shape = tensor.shape
    tokens_first = len(shape) == 3 and shape[-2] == 1
    return shape[-2] * shape[-3] if len(shape) > 3 or tokens_first else shape[-2]
