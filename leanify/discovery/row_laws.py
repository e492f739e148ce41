"""Test a row on the module that it describes.

The test uses a float64 copy of the module with random parameters, because zeros and constants could hide a wrong row.

    growth        with twice the heads (or hidden units) and zero output columns the outputs are unchanged; with other
                  output columns they change
    alike         they are also unchanged if the new heads are as large as the old ones
    independence  one head's share of the outputs does not change if all other heads get new random values
    permutation   they are unchanged if the heads are reordered in all tensors; the heads of a key/value group move
                  together, and are reordered among themselves. Maps over heads (talking heads) obey this law instead of
                  independence, heads with a constant of their own (ALiBi's slopes) only independence
    other inputs  growth also holds with one sample less, and with one token less

That is sufficient, because the rest of the model sees only the module's outputs.
"""

from __future__ import annotations

import copy
import random
import re
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from leanify.discovery.flow import Candidate, follow, iterate_tensors
from leanify.lens.axes import described_axes
from leanify.lens.families import Row
from leanify.lens.forwards import make_freed_class
from leanify.lens.located import relative_path
from leanify.lens.notation import pick_positions, symbols
from leanify.lens.resize import clear_caches, get_attribute, get_fields, repeat_rows, resize, solve_sizes
from leanify.upstream.libraries import format_error
from leanify.upstream.origin import in_mode

PACKAGE = Path(__file__).parents[1]
TOLERANCE = 1e-10
MARK = 2.0**40  # numbering of a copy's entries starts here, far above any random weight
NESTED = 3  # levels of configurations in configurations that are watched
MOVED_MAPS = 8  # number of projections that are changed to detect heads
Sizes = dict[str, int]
NARROW = {torch.float32, torch.float16, torch.bfloat16}


class InDouble(TorchFunctionMode):
    """Replaces a narrower type that a forward asks for (``x.float()``, ``dtype=torch.float32``) by float64."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (Tensor.float, Tensor.half, Tensor.bfloat16):
            return args[0].double()
        if func is torch._weight_norm:  # its kernel reads past the end of a tensor of the wrong size
            return _weight_norm(*args, **(kwargs or {}))
        wide = [_widen(arg) for arg in args]
        return func(*wide, **{name: _widen(value) for name, value in (kwargs or {}).items()})


def _widen(value: Any) -> Any:
    return torch.float64 if isinstance(value, torch.dtype) and value in NARROW else value


def _weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    """Weight normalization (Salimans and Kingma 2016, equation 2) with operations that check their sizes."""
    return v * (g / torch.norm_except_dim(v, 2, dim))


class Trial:
    """A module on its own, with the arguments of one call. ``error`` is empty, or the reason why it cannot run."""

    def __init__(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        self.args, self.kwargs = to_float64(args), to_float64(kwargs)
        self.error = ""
        self.obstacle = ""  # why the first row failed
        self.count = 0  # rows that were tried for this module alone
        self.numbers: dict[str, int] = {}
        self.seconds = 0.0  # processor time of one run
        self.widens_inputs = False  # whether inputs with an axis of heads (a bias that the model makes) grow too
        self._shorter: list[tuple[Any, Any, list[Tensor]]] | None = None
        try:
            self.module_copy = isolate(module)
            start = time.process_time()
            with record_integers(self.module_copy) as numbers:
                self.before = self._outputs(self.module_copy)
            self.numbers = numbers
            self.seconds = time.process_time() - start
        except Exception as error:  # the user's code may fail in any way outside its model
            self.error = format_error(error, 160)
        if not self.error and not self.before:
            self.error = "it returns no tensor"

    @torch.no_grad()
    def holds(self, reading: Row) -> bool | None:
        """Whether the module obeys every law under a row; None if it does not run with more heads or units."""
        try:
            sizes = solve_sizes("", self.module_copy, reading)
            grown_sizes = dict(sizes)
            for name, size in sizes.items():
                if name in "hm" or (name == "g" and size > 1):
                    grown_sizes[name] = 2 * size
            big = self._grow(self.module_copy, reading, sizes, grown_sizes)
            same = self._outputs(big, *self._widened((self.args, self.kwargs), sizes, grown_sizes))
        except Exception as error:  # a wrong row can fail anywhere: in a reshape, an index, a kernel
            self.obstacle = self.obstacle or describe_failure(error)
            return None
        if not _outputs_match(same, self.before):
            self.obstacle = self.obstacle or "with twice as many its outputs change"
            return False
        return self._is_proven(big, reading, sizes, grown_sizes)

    def _grow(self, module: nn.Module, reading: Row, sizes: Sizes, grown_sizes: Sizes) -> nn.Module:
        big = copy.deepcopy(module)
        resize(big, "", big, reading, sizes, grown_sizes)
        if reading.mixing:  # copies of the old heads leave the mean square of all as it is
            repeat_rows(module, big, reading, sizes, grown_sizes)
        if reading.edits:
            big.__class__ = make_freed_class(type(big), reading)
        return big

    def _is_proven(self, big: nn.Module, reading: Row, sizes: Sizes, grown_sizes: Sizes) -> bool:
        """Whether a row under which growth keeps the outputs obeys the other laws too."""
        # new heads as large as the old ones: a wrong row must not pass because they are small
        self._draw_alike(big, reading, sizes, grown_sizes)
        wide_inputs = self._widened((self.args, self.kwargs), sizes, grown_sizes)
        if not _outputs_match(self._outputs(big, *wide_inputs), self.before):
            self.obstacle = "with more heads as large as the old ones its outputs change: something mixes all heads"
            return False
        if reading.is_attention:
            self.obstacle = self._describe_dependence(reading, sizes)
            if self.obstacle:
                return False
        # a sample less, a token less
        for args, kwargs, outputs in self._shorter_inputs():
            try:
                if not _outputs_match(self._outputs(big, *self._widened((args, kwargs), sizes, grown_sizes)), outputs):
                    self.obstacle = "with a sample or a token less its outputs change"
                    return False
            except Exception as error:
                self.obstacle = f"with a sample or a token less it does not run: {describe_failure(error)}"
                return False
        # other output columns must change the outputs
        last = get_attribute(big, next(iter(reading.columns)))
        weight = last if isinstance(last, Tensor) else last.weight
        weight.copy_(torch.randn_like(weight))
        return not _outputs_match(self._outputs(big, *wide_inputs), self.before)

    @property
    def has_inputs_of_heads(self) -> bool:
        """Whether there are further floating-point inputs, which may have an axis of heads."""
        return sum(x.is_floating_point() and x.dim() > 2 for x in iterate_tensors((self.args, self.kwargs))) > 1

    def _widened(self, inputs: tuple[Any, Any], sizes: Sizes, grown_sizes: Sizes) -> tuple[Any, Any]:
        """Return args and kwargs for more heads: in all tensors but the first, the inputs of old heads are repeated.

        Heads lie on the third axis from the end: … × heads × tokens × tokens, or channels.
        """
        stream = next(iterate_tensors(inputs), None)

        def repeat(tensor: Tensor) -> Tensor:
            for name in ("h", "g") if tensor is not stream and tensor.dim() > 2 else ():
                if tensor.shape[-3] == sizes.get(name):
                    return tensor.index_select(-3, torch.arange(grown_sizes[name]) % sizes[name])
            return tensor

        if not self.widens_inputs or "h" not in sizes:
            return inputs
        widened: tuple[Any, Any] = tree_map_only(Tensor, repeat, inputs)
        return widened

    def _describe_dependence(self, reading: Row, sizes: Sizes) -> str:
        """Return how the heads depend on each other or on their order; "" if they do not."""
        try:
            # with new random values in the other heads, the first, the middle and the last head stay the same
            over_heads = any(symbols(how) == {"h"} and "d" not in how for how in reading.columns.values())
            if not over_heads and not reading.mixing:
                for head in sorted({0, sizes["h"] // 2, sizes["h"] - 1}):
                    twins = (isolate_head(self.module_copy, reading, sizes, head, seed) for seed in (0, 1))
                    one, other = map(self._outputs, twins)
                    if not _outputs_match(one[:1], other[:1]):
                        return f"head {head} of {sizes['h']} changes with the other heads: something mixes all heads"
                return ""
            # maps and norms over heads mix them: the same heads in another order
            twin = copy.deepcopy(self.module_copy)
            reorder_heads(twin, reading, sizes, head_order(reading, sizes))
            outputs = self._outputs(twin)
        except (IndexError, RuntimeError) as error:
            return f"its heads could not be told apart: {format_error(error, 120)}"
        return "" if _outputs_match(outputs, self.before) else "with its heads in another order its outputs change"

    def _draw_alike(self, big: nn.Module, reading: Row, sizes: Sizes, grown_sizes: Sizes) -> None:
        """Fill the entries that growth added and did not set to zero, twice as large as the old ones, in place."""
        # grow a copy with numbered entries to see which entries of the grown parameters are old
        numbered_copy = copy.deepcopy(self.module_copy)
        for parameter in numbered_copy.parameters():
            if parameter.is_floating_point():
                numbers = torch.arange(parameter.numel(), dtype=parameter.dtype)
                parameter.copy_(MARK + numbers.view(parameter.shape))
        numbered_copy = self._grow(numbered_copy, reading, sizes, grown_sizes)
        # noise for all other entries that are not zero
        generator = torch.Generator().manual_seed(1)
        for parameter, marks in zip(big.parameters(), numbered_copy.parameters(), strict=True):
            if not parameter.is_floating_point() or not parameter.numel():
                continue
            is_old = (marks >= MARK) & (marks == marks.round())
            noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            noise = 2 * noise * max(parameter[0].numel(), 1) ** -0.5 if parameter.dim() > 1 else 1 + 0.3 * noise
            parameter.copy_(torch.where(is_old | (parameter == 0), parameter, noise))

    def _shorter_inputs(self) -> list[tuple[Any, Any, list[Tensor]]]:
        """Return (args, kwargs, outputs) with one entry less along an axis, for each axis that permits it."""
        if self._shorter is None:
            self._shorter = []
            tensors = list(iterate_tensors((self.args, self.kwargs)))
            for length in dict.fromkeys(tensors[0].shape if tensors else ()):
                if length > 1:
                    args, kwargs = shorten(self.args, length), shorten(self.kwargs, length)
                    try:
                        self._shorter.append((args, kwargs, self._outputs(self.module_copy, args, kwargs)))
                    except Exception:  # the axis has a fixed length: channels, or tokens
                        continue
        return self._shorter

    def watch(self, last: str) -> Tensor:
        """Return the inputs of a map in one run, rows × channels. Raises ValueError if they cannot be observed."""
        with follow(self.module_copy) as follower:
            follower.watched_map = last
            self._outputs(self.module_copy)
        if not follower.watched_inputs:
            raise ValueError(f"{last} takes no input that can be seen")
        return torch.cat(follower.watched_inputs)

    def _outputs(self, module: nn.Module, args: Any = None, kwargs: Any = None) -> list[Tensor]:
        args, kwargs = (self.args, self.kwargs) if args is None else (args, kwargs)
        default_dtype, state = torch.get_default_dtype(), random.getstate()
        try:
            with torch.random.fork_rng(devices=[]), torch.no_grad(), InDouble():
                torch.manual_seed(0)
                random.seed(0)
                torch.set_default_dtype(torch.float64)
                result = module(*copy.deepcopy(args), **copy.deepcopy(kwargs))
        finally:
            torch.set_default_dtype(default_dtype)
            random.setstate(state)
        if not isinstance(result, (Tensor, dict, tuple, list)):  # a dataclass, a ModelOutput
            result = dict(getattr(result, "__dict__", {}))
        return [tensor for tensor in iterate_tensors(result) if tensor.is_floating_point()]


def isolate_head(module: nn.Module, reading: Row, sizes: Sizes, head: int, seed: int) -> nn.Module:
    """Return a copy in which only one head reaches the outputs and all other heads have new random values.

    Layouts that store a whole key/value group in order keep the group of this head.
    """
    group = head * sizes.get("g", sizes["h"]) // sizes["h"]
    picks = {"h": torch.tensor([head]), "g": torch.tensor([group])}
    twin = copy.deepcopy(module)
    generator = torch.Generator().manual_seed(seed)
    # which entries of each tensor belong to the head
    masks: dict[int, tuple[Tensor, Tensor]] = {}  # id → (tensor, entries of other heads)
    outputs: set[int] = set()
    for tensor, axis, how, is_output in _head_axes(twin, reading):
        if not (isinstance(tensor, nn.Parameter) and tensor.is_floating_point()):
            continue
        others = torch.ones(tensor.shape[axis], dtype=torch.bool)
        others[pick_positions(how, sizes, picks)] = False
        shape = [1] * tensor.dim()
        shape[axis] = -1
        mask = masks.get(id(tensor), (tensor, torch.zeros(tensor.shape, dtype=torch.bool)))[1]
        masks[id(tensor)] = tensor, mask | others.view(shape)
        if is_output:
            outputs.add(id(tensor))
    for key, (tensor, mask) in masks.items():
        noise = torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)
        tensor.data[mask] = 0 if key in outputs else noise[mask]
    # lists with one module per head
    for part in reading.lists:
        for index, one in enumerate(twin.get_submodule(part).children()):
            if index == head:
                continue
            for parameter in one.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
    return twin


def _head_axes(module: nn.Module, reading: Row) -> Iterator[tuple[Tensor, int, str, bool]]:
    """Yield (tensor, axis, layout, whether it takes the concatenated heads) for every axis with heads."""
    for axes in described_axes(module, reading):
        for axis, how in axes.layouts.items():
            if symbols(how) & {"h", "g"}:
                yield getattr(axes.owner, axes.name), axis, how, axes.part in reading.columns


def head_order(reading: Row, sizes: Sizes) -> dict[str, Tensor]:
    """Return an order of heads (h) and of their groups (g): groups reversed, heads rotated by one in their group."""
    heads, groups = sizes["h"], sizes.get("g", sizes["h"])
    order = torch.arange(heads).view(groups, -1).flip(0)
    layouts = [*reading.rows.values(), *reading.columns.values()]
    for axes in reading.tensors.values():
        layouts += axes
    if not any("(" in how for how in layouts):  # a layout with a sum of sizes stores a whole group, in order
        order = order.roll(1, dims=1)
    return {"h": order.flatten(), "g": torch.arange(groups).flip(0)}


def reorder_heads(module: nn.Module, reading: Row, sizes: Sizes, order: dict[str, Tensor]) -> None:
    """Put the heads of a module in another order, in place."""
    for tensor, axis, how, _ in _head_axes(module, reading):
        places = pick_positions(how, sizes, order)
        tensor.data.copy_(tensor.data.index_select(axis, places).clone())
    # lists with one module per head
    for part in reading.lists:
        modules = list(module.get_submodule(part).children())
        for place, index in enumerate(order["h"].tolist()):
            module.get_submodule(part)._modules[str(place)] = modules[index]
    clear_caches(module, reading)


def shorten(value: Any, length: int) -> Any:
    """Return arguments without the last entry of every axis of this length."""

    def cut(tensor: Tensor) -> Tensor:
        for axis, size in enumerate(tensor.shape):
            tensor = tensor.narrow(axis, 0, size - 1) if size == length else tensor
        return tensor

    return tree_map_only(Tensor, cut, value)


def describe_failure(error: Exception) -> str:
    """Return an error's message with the line of the user's code that raised it."""
    where = ""
    for frame in traceback.extract_tb(error.__traceback__):
        path = Path(frame.filename)
        # neither leanify's nor of a library that carries out a forward, wherever it lies
        is_library = re.search(r"/site-packages/(timm|transformers)/", path.as_posix())
        if not is_library and not any(map(path.is_relative_to, (PACKAGE, Path(torch.__file__).parent))):
            where = f"{path.name}, line {frame.lineno}, `{frame.line}`: "
    return f"{where}{format_error(error, 160)}"


@torch.no_grad()
def count_moved_channels(bench: Trial, candidate: Candidate, path: str) -> list[int]:
    """Count the channels of the concatenated heads that change with one output of a projection, for several outputs.

    One output of the queries moves the channels of its head, one of the keys the channels of its group, one of
    the values one channel per head of the group. Returns an empty list if the concatenated heads cannot be observed.
    """
    last = relative_path(candidate.last.name, path)
    uses = candidate.projections
    parameters = dict(bench.module_copy.named_parameters(remove_duplicate=False))
    counts: list[int] = []
    generator = torch.Generator().manual_seed(2)
    try:
        # change up to 8 outputs of each projection, one at a time
        before = bench.watch(last)
        for use in uses[:MOVED_MAPS]:
            parameter = parameters[relative_path(use.name, path)]
            outputs = parameter.data.movedim(use.outs, tuple(range(len(use.outs))))
            lengths = outputs.shape[: len(use.outs)]
            tries = 3 if len(uses) > 1 and use.out_length <= candidate.last.input_size else 8
            for number in dict.fromkeys((use.out_length - 1) * i // (tries - 1) for i in range(tries)):
                row = outputs[tuple(torch.unravel_index(torch.tensor(number), lengths))]
                original_row = row.clone()
                row.copy_(torch.randn(row.shape, generator=generator, dtype=row.dtype) * 2)
                after = bench.watch(last)
                row.copy_(original_row)
                change = (after - before).nan_to_num().abs().amax(0)
                counts.append(int((change > TOLERANCE * max(float(before.nan_to_num().abs().max()), 1e-3)).sum()))
    except Exception:  # if it cannot be observed, the rows are tried without these counts
        return []
    return counts


def _outputs_match(one: list[Tensor], other: list[Tensor]) -> bool:
    """Whether the tensors agree to 1e-10 of the largest entry; attention maps may have more heads.

    Maps of tokens × tokens behind the first tensor may change: they are averages over heads.
    """
    pairs = [(a, b) for a, b in zip(one, other, strict=False) if a.shape == b.shape]
    pairs = pairs[:1] + [(a, b) for a, b in pairs[1:] if a.dim() < 2 or a.shape[-1] != a.shape[-2]]
    if len(one) != len(other) or not pairs or one[0].shape != other[0].shape:
        return False
    return all(float((a - b).abs().max()) < TOLERANCE * max(float(b.abs().max()), 1e-3) for a, b in pairs if a.numel())


def to_float64(value: Any) -> Any:
    """Return arguments with float64 tensors on the CPU; meta tensors get values, containers keep their type."""

    def convert(tensor: Tensor) -> Tensor:
        tensor = tensor.detach()
        if tensor.is_meta and tensor.is_floating_point():
            return torch.randn(tensor.shape, dtype=torch.float64)
        if tensor.is_meta:
            return tensor.new_ones(tensor.shape, device="cpu")
        kind = torch.complex128 if tensor.is_complex() else tensor.dtype
        return tensor.to("cpu", torch.float64 if tensor.is_floating_point() else kind, copy=True)

    return tree_map_only(Tensor, convert, value)


@torch.no_grad()
def isolate(module: nn.Module) -> nn.Module:
    """Return a copy of the module in float64 on the CPU, with random parameters and without hooks of the user."""
    twin = copy.deepcopy(module)
    remove_hooks(twin)
    if any(p.is_meta for p in twin.parameters()):
        twin.to_empty(device="cpu")
    twin.cpu().double()
    generator = torch.Generator().manual_seed(0)
    for parameter in twin.parameters():
        if parameter.is_floating_point() and parameter.numel():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(noise * max(parameter[0].numel(), 1) ** -0.5 if parameter.dim() > 1 else 1 + 0.3 * noise)
    return in_mode(twin)


def read_on_meta(module: nn.Module, args: Any, kwargs: Any) -> dict[str, int] | None:
    """The integers that the forward of a module on meta reads, without values; None if it does not run so.

    A large module takes no time there, while its trial needs weights.
    """
    if not all(tensor.is_meta for tensor in (*module.parameters(), *module.buffers())):
        return None
    twin = in_mode(copy.deepcopy(module))
    remove_hooks(twin)
    try:
        with record_integers(twin) as numbers, torch.no_grad():
            twin(*copy.deepcopy(args), **copy.deepcopy(kwargs))
    except Exception:  # on meta, code may read values
        return None
    return numbers


def remove_hooks(model: nn.Module) -> None:
    """Remove hooks from a copy, which were not written for trials; torch's own hooks stay."""
    for module in model.modules():
        for kind in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"):
            hooks = vars(module).get(kind) or {}
            for key, hook in list(hooks.items()):
                is_of_torch = str(getattr(hook, "__module__", "")).startswith("torch.nn.utils")
                if not is_of_torch and not (type(hook).__module__ or "").startswith("torch."):
                    del hooks[key]


@contextmanager
def record_integers(module: nn.Module, assumes_read: bool = True) -> Iterator[dict[str, int]]:
    """Record the integers that the forwards of a module and its submodules read, by path.

    Integers in a configuration stored in the module are included; ``assumes_read`` includes all of one that cannot be
    watched (a named tuple, a mapping). The module must be a copy: its submodules temporarily get subclasses of their
    classes.
    """
    # replace dictionaries by watched ones, and classes by watched subclasses
    integers: dict[str, int] = {}
    assumed_integers: dict[str, int] = integers if assumes_read else {}
    original_classes: dict[int, tuple[Any, type]] = {}
    for path, part in module.named_modules():
        for name, value in list(vars(part).items()):
            if type(value) is dict and not name.startswith("_"):
                part.__dict__[name] = _WatchedDict(value, f"{path}.{name}".lstrip("."), integers)
            elif not (name.startswith("_leanify") or (name.startswith("_") and isinstance(value, Mapping))):
                _watch_config(value, f"{path}.{name}".lstrip("."), integers, assumed_integers, original_classes)
        _watch(part, path, integers, original_classes)
    try:
        yield integers
        for path, part in module.named_modules():  # einops' layers keep lengths that they read when they are made
            lengths = getattr(part, "axes_lengths", None)
            if isinstance(lengths, dict):
                integers.update({f"{path}.axes_lengths.{name}": value for name, value in lengths.items()})
    # restore both
    finally:
        for thing, kind in original_classes.values():
            object.__setattr__(thing, "__class__", kind)
        for part in module.modules():
            for name, value in list(vars(part).items()):
                if isinstance(value, _WatchedDict):
                    part.__dict__[name] = dict(value)


def _watch_config(
    value: Any,
    path: str,
    integers: dict[str, int],
    assumed_integers: dict[str, int],
    original_classes: dict[int, tuple[Any, type]],
    level: int = 0,
) -> None:
    """Watch a configuration and those nested in it; ``assumed_integers`` gets integers of unwatched classes."""
    if isinstance(value, (nn.Module, Tensor, type, str)) or callable(value) or id(value) in original_classes:
        return
    fields = {name: field for name, field in get_fields(value).items() if isinstance(name, str) and name[:1] != "_"}
    if not fields or level > NESTED:
        return
    if isinstance(value, Mapping) or not _watch(value, path, integers, original_classes):
        assumed_integers.update({f"{path}.{name}": number for name, number in fields.items() if type(number) is int})
    for name, inner in fields.items():
        if not isinstance(inner, (int, float)):
            _watch_config(inner, f"{path}.{name}", integers, assumed_integers, original_classes, level + 1)


def _watch(thing: Any, path: str, integers: dict[str, int], original_classes: dict[int, tuple[Any, type]]) -> bool:
    """Give an object a subclass of its class that records the integers read. Returns whether that was possible."""
    kind: Any = type(thing)
    if id(thing) in original_classes:
        return True

    def get(self: Any, name: str) -> Any:
        value = kind.__getattribute__(self, name)
        if type(value) is int and name[:2] != "__" and not isinstance(getattr(kind, name, None), property):
            integers[f"{path}.{name}".lstrip(".")] = value
        return value

    try:
        watched_class = type(kind.__name__, (kind,), {"__getattribute__": get, "__slots__": ()})
        object.__setattr__(thing, "__class__", watched_class)  # a frozen dataclass forbids to set attributes
    except Exception:  # a named tuple, a class written in C, one with rules for its subclasses
        return False
    original_classes[id(thing)] = thing, kind
    return True


class _WatchedDict(dict[Any, Any]):
    def __init__(self, content: dict[Any, Any], path: str, integers: dict[str, int]) -> None:
        super().__init__(content)
        self._path, self._integers = path, integers

    def __getitem__(self, key: Any) -> Any:
        value = super().__getitem__(key)
        if type(value) is int and isinstance(key, str):
            self._integers[f"{self._path}.{key}"] = value
        return value

    def get(self, key: Any, default: Any = None) -> Any:
        return self[key] if key in self else default  # noqa: SIM401 - not itself
