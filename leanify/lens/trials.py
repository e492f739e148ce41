"""Hold a reading against the module that it describes.

The module is copied, in float64, with random parameters, because zeros and constants could hide a wrong reading. With
twice its heads (or hidden units) and zero output columns its outputs must stay the same; with other output columns they
must change. That is sufficient, because the rest of the model sees only the module's outputs.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from leanify.lens.families import Reading
from leanify.lens.flow import tensors_in
from leanify.lens.forwards import free_as
from leanify.lens.resize import attribute_of, resize, sizes_of
from leanify.upstream.libraries import in_words

TOLERANCE = 1e-10
NARROW = {torch.float32, torch.float16, torch.bfloat16}


class InDouble(TorchFunctionMode):
    """A forward that asks for a narrower type (``x.float()``, ``dtype=torch.float32``) gets float64."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (Tensor.float, Tensor.half, Tensor.bfloat16):
            return args[0].double()
        if func is torch._weight_norm:  # its kernel reads past the end of a tensor whose size is wrong
            return _weight_norm(*args, **(kwargs or {}))
        wide = [_widened(arg) for arg in args]
        return func(*wide, **{name: _widened(value) for name, value in (kwargs or {}).items()})


def _widened(value: Any) -> Any:
    return torch.float64 if isinstance(value, torch.dtype) and value in NARROW else value


def _weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    """Weight normalization (Salimans and Kingma 2016, equation 2) by operations that check their sizes."""
    return v * (g / torch.norm_except_dim(v, 2, dim))


class Bench:
    """A module alone, with the arguments of one call. ``error`` says why it could not be run, or is empty."""

    def __init__(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        self.args, self.kwargs = in_double(args), in_double(kwargs)
        self.error = ""
        self.numbers: dict[str, int] = {}
        try:
            self.alone = alone(module)
            with _watched(self.alone) as numbers:
                self.before = self._outputs(self.alone)
            self.numbers = numbers
        except Exception as error:  # the user's code may fail in any way outside its model
            self.error = in_words(error, 160)
        if not self.error and not self.before:
            self.error = "it returns no tensor"

    @torch.no_grad()
    def holds(self, reading: Reading) -> bool | None:
        """Whether more heads or units keep the outputs; None if the module with more of them does not run at all."""
        try:
            sizes = sizes_of("", self.alone, reading)
            more = dict(sizes)
            for name, size in sizes.items():
                if name in "hm" or (name == "g" and size > 1):
                    more[name] = 2 * size
            big = copy.deepcopy(self.alone)
            resize(big, "", big, reading, sizes, more)
            if reading.edits:
                free_as(big, reading)
            same = self._outputs(big)
        except Exception:  # a wrong reading can fail in any way: in a reshape, an index, a kernel
            return None
        if not _alike(same, self.before):
            return False
        last = attribute_of(big, next(iter(reading.columns)))
        weight = last if isinstance(last, Tensor) else last.weight
        weight.copy_(torch.randn_like(weight))
        return not _alike(self._outputs(big), self.before)

    def _outputs(self, module: nn.Module) -> list[Tensor]:
        with _same_random_numbers(), torch.no_grad(), InDouble():
            result = module(*copy.deepcopy(self.args), **copy.deepcopy(self.kwargs))
        if not isinstance(result, (Tensor, dict, tuple, list)):  # a dataclass, a ModelOutput
            result = dict(getattr(result, "__dict__", {}))
        return [tensor for tensor in tensors_in(result) if tensor.is_floating_point()]


@contextmanager
def _same_random_numbers() -> Iterator[None]:
    kept = torch.get_default_dtype()
    state = random.getstate()
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            random.seed(0)
            torch.set_default_dtype(torch.float64)
            yield
    finally:
        torch.set_default_dtype(kept)
        random.setstate(state)


def _alike(one: list[Tensor], other: list[Tensor]) -> bool:
    """Whether the tensors are the same to 1e-10 of the largest entry; attention maps may have more heads."""
    pairs = [(a, b) for a, b in zip(one, other, strict=False) if a.shape == b.shape]
    if len(one) != len(other) or not pairs or one[0].shape != other[0].shape:
        return False
    return all(float((a - b).abs().max()) < TOLERANCE * max(float(b.abs().max()), 1e-3) for a, b in pairs if a.numel())


def in_double(value: Any) -> Any:
    """Arguments with tensors replaced by real float64 ones on the CPU; a container keeps its type."""
    if isinstance(value, dict):
        return {key: in_double(item) for key, item in value.items()}
    if type(value) in (tuple, list):
        return type(value)(in_double(item) for item in value)
    if not isinstance(value, Tensor):
        return value
    value = value.detach()
    if value.is_meta and value.is_floating_point():
        return torch.randn(value.shape, dtype=torch.float64)
    if value.is_meta:
        return value.new_ones(value.shape, device="cpu")
    kind = value.dtype
    if value.is_floating_point():
        kind = torch.float64
    elif value.is_complex():
        kind = torch.complex128
    return value.to("cpu", kind, copy=True)


@torch.no_grad()
def alone(module: nn.Module) -> nn.Module:
    """A copy of the module in float64 on the CPU, with random parameters and without anybody's hooks."""
    copied = copy.deepcopy(module)
    without_hooks(copied)
    made = (copied.to_empty(device="cpu") if any(p.is_meta for p in copied.parameters()) else copied.cpu()).double()
    generator = torch.Generator().manual_seed(0)
    for parameter in made.parameters():
        if parameter.is_floating_point() and parameter.numel():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(noise * max(parameter[0].numel(), 1) ** -0.5 if parameter.dim() > 1 else 1 + 0.3 * noise)
    return made.eval()


def without_hooks(model: nn.Module) -> None:
    """Remove the hooks of a copy, which would see trials that they were not made for; torch's own stay."""
    for module in model.modules():
        for kind in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"):
            hooks = vars(module).get(kind) or {}
            for key, hook in list(hooks.items()):
                is_of_torch = str(getattr(hook, "__module__", "")).startswith("torch.nn.utils")
                if not is_of_torch and not (type(hook).__module__ or "").startswith("torch."):
                    del hooks[key]


@contextmanager
def _watched(module: nn.Module) -> Iterator[dict[str, int]]:
    """Record the integers that the forwards of a module and its parts read, by path.

    Those of an object or dictionary that is kept in the module (a configuration) are recorded too. The module
    must be a copy: its parts get subclasses of their classes in the meantime.
    """
    found: dict[str, int] = {}
    changed: dict[int, tuple[Any, type]] = {}
    for path, part in module.named_modules():
        for name, value in list(vars(part).items()):
            if type(value) is dict and not name.startswith("_"):
                part.__dict__[name] = _WatchedDict(value, f"{path}.{name}".lstrip("."), found)
            elif hasattr(value, "__dict__") and not isinstance(value, (nn.Module, Tensor, type)):
                _watch(value, f"{path}.{name}".lstrip("."), found, changed)
        _watch(part, path, found, changed)
    try:
        yield found
    finally:
        for thing, kind in changed.values():
            thing.__class__ = kind
        for part in module.modules():
            for name, value in list(vars(part).items()):
                if isinstance(value, _WatchedDict):
                    part.__dict__[name] = dict(value)


def _watch(thing: Any, path: str, found: dict[str, int], changed: dict[int, tuple[Any, type]]) -> None:
    kind: Any = type(thing)
    if id(thing) in changed or (callable(thing) and not isinstance(thing, nn.Module)):
        return

    def get(self: Any, name: str) -> Any:
        value = kind.__getattribute__(self, name)
        if type(value) is int and not name.startswith("__"):
            found[f"{path}.{name}".lstrip(".")] = value
        return value

    try:
        thing.__class__ = type(kind.__name__, (kind,), {"__getattribute__": get, "__slots__": ()})
    except TypeError:  # a class that cannot be replaced: a named tuple, one of C
        return
    changed[id(thing)] = thing, kind


class _WatchedDict(dict[Any, Any]):
    def __init__(self, content: dict[Any, Any], path: str, found: dict[str, int]) -> None:
        super().__init__(content)
        self._path, self._found = path, found

    def __getitem__(self, key: Any) -> Any:
        value = super().__getitem__(key)
        if type(value) is int and isinstance(key, str):
            self._found[f"{self._path}.{key}"] = value
        return value

    def get(self, key: Any, default: Any = None) -> Any:
        return self[key] if key in self else default  # noqa: SIM401 - not itself
