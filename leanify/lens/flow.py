"""Follow tensors through one forward pass, to see which parameters are attentions and MLPs.

Names of classes and attributes differ from author to author; what an attention computes does not. Every call
of torch on the way of a tensor is seen (`TorchFunctionMode`), and a tensor is described by the linear maps
that it comes from without another map in between:

    product     a matrix product of two such tensors: q kᵀ is one, softmax(q kᵀ) v is two, as is a fused kernel
    attention   a linear map that takes a tensor with two products: the output projection; the maps that the tensor
                comes from are the projections to queries, keys and values
    MLP         a linear map that takes a tensor with none, which went through an activation function

No values are looked at, so it works on meta too.
"""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from leanify.lens.located import names_of
from leanify.upstream.hooked import hooked

_MAPS = "linear matmul mm bmm addmm baddbmm addbmm einsum __matmul__ __rmatmul__ tensordot conv1d conv2d conv3d"
_ACTIVATIONS = """
    relu relu_ relu6 gelu silu silu_ sigmoid sigmoid_ tanh tanh_ softplus elu elu_ selu celu leaky_relu leaky_relu_
    hardswish hardsigmoid hardtanh mish glu logsigmoid prelu rrelu erf clamp clamp_min clamp_ maximum square pow __pow__
    exp softmax softsign threshold
"""
Axes = tuple[int, ...]
DIRECT = ("linear", "conv1d", "conv2d", "conv3d")  # a weight of outputs × inputs
MAPS = frozenset(_MAPS.split())
ACTIVATIONS = frozenset(_ACTIVATIONS.split())
FUSED = frozenset({"scaled_dot_product_attention", "flex_attention", "flash_attn_func"})
OPAQUE = frozenset({"multi_head_attention_forward"})  # torch's own attention has a row


@dataclass(frozen=True, eq=False)
class Use:
    """A parameter used as a linear map: its name, and which of its axes are outputs and inputs of the map."""

    name: str
    shape: tuple[int, ...]
    outs: tuple[int, ...]
    ins: tuple[int, ...]

    @property
    def out_length(self) -> int:
        return math.prod(self.shape[axis] for axis in self.outs)

    @property
    def in_length(self) -> int:
        return math.prod(self.shape[axis] for axis in self.ins)


@dataclass(frozen=True)
class Came:
    """What a tensor comes from, since the last linear map on its way.

    maps      the linear maps; ``along`` other parameters on the way (norms, scales, tables)
    products  matrix products of two tensors on the way
    lengths   lengths of the axes of what was multiplied last, those of the values first
    active    whether an activation function lies on the way
    inner     paths of the modules in which the products were computed
    """

    maps: frozenset[Use] = frozenset()
    along: frozenset[str] = frozenset()
    products: int = 0
    lengths: tuple[int, ...] = ()
    active: bool = False
    inner: frozenset[str] = frozenset()


NOTHING = Came()


@dataclass(frozen=True)
class Frame:
    """A module that is being called, with its arguments."""

    path: str
    module: nn.Module
    args: Any
    kwargs: Any


@dataclass(frozen=True)
class Found:
    """An attention or an MLP: the last map, what led to it, and the innermost called module that holds both."""

    last: Use
    came: Came
    owner: Frame


@dataclass
class Flow:
    """What one forward pass showed; ``softmax``: the paths of modules that call softmax or a fused kernel."""

    attentions: list[Found] = field(default_factory=list)
    mlps: list[Found] = field(default_factory=list)
    softmax: list[str] = field(default_factory=list)


class Follower(TorchFunctionMode):
    """Follows tensors while it is entered; hooks tell it which module is being called."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.flow = Flow()
        self.stack: list[Frame] = []
        self._names = names_of(model)
        self._parameters = dict(model.named_parameters(remove_duplicate=False))
        self._came: Any = WeakIdKeyDictionary()
        self._weights: Any = WeakIdKeyDictionary()  # what was made of parameters alone: (name, axes or None)
        self._seen: set[str] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        result = func(*args, **named)
        name = getattr(func, "__name__", "")
        outputs = [args[0]] if name == "__setitem__" else list(tensors_in(result))
        if outputs:
            self._note(name, args, list(tensors_in((args, named))), outputs)
        return result

    def _note(self, name: str, args: Any, tensors: list[Tensor], outputs: list[Tensor]) -> None:
        """Describe the outputs of a call by the tensors that it was given."""
        weights = [self._weight(tensor) for tensor in tensors]
        came: Came | None = None
        if name in FUSED or (name in ("softmax", "_safe_softmax") and self._union(tensors[:1]).products):
            self.flow.softmax.append(self.stack[-1].path if self.stack else "")
        if name in OPAQUE or name == "embedding" or name.startswith("new_") or name.endswith("_like"):
            came = NOTHING
        elif name in FUSED:
            union, values = self._union(tensors[:3]), tensors[min(2, len(tensors) - 1)]
            came = self._multiplied(union, union.products + 2, (values.shape[-1], *values.shape[:-1]))
        elif name in MAPS and len(tensors) > 1:
            came = self._product_or_map(name, args, list(zip(tensors, weights, strict=True)))
        if came is None:
            of_parameters = [weight for weight in weights if weight is not None]
            if weights and len(of_parameters) == len(weights):  # made of parameters alone
                called = of_parameters[0][0]
                for output in outputs:
                    if id(output) not in self._names:
                        axes = self._axes(called, output) if len(weights) == 1 else None
                        self._weights[output] = called, axes
                return
            others = [tensor for tensor, weight in zip(tensors, weights, strict=True) if weight is None]
            came = self._union(others)
            along = came.along | {called for called, _ in of_parameters}
            came = replace(came, along=along, active=came.active or name in ACTIVATIONS)
        for output in outputs:
            if id(output) not in self._names:
                self._came[output] = came

    def _union(self, tensors: list[Tensor]) -> Came:
        cames: list[Came] = [self._came.get(tensor, NOTHING) for tensor in tensors]
        if not cames:
            return NOTHING
        if len(cames) == 1:
            return cames[0]
        first = max(cames, key=lambda came: came.products)
        return Came(
            frozenset().union(*(came.maps for came in cames)),
            frozenset().union(*(came.along for came in cames)),
            first.products,
            first.lengths,
            any(came.active for came in cames),
            frozenset().union(*(came.inner for came in cames)),
        )

    def _weight(self, tensor: Tensor) -> tuple[str, tuple[int, ...] | None] | None:
        """(name, axes) of a parameter or of what was made of parameters alone; None for other tensors."""
        names = self._names.get(id(tensor))
        if names is None:
            found: tuple[str, tuple[int, ...] | None] | None = self._weights.get(tensor)
            return found
        return self._nearest(names), tuple(range(tensor.dim()))

    def _nearest(self, names: list[str]) -> str:
        """Of the names of a shared parameter, the one that lies in the module being called."""
        for frame in reversed(self.stack):
            for name in names:
                if name.startswith(f"{frame.path}.") or not frame.path:
                    return name
        return names[0]

    def _axes(self, name: str, view: Tensor) -> tuple[int, ...] | None:
        """Which axes of a parameter the axes of a view are; None if they are not the same axes in another order."""
        parameter = self._parameters[name]
        pairs = zip(parameter.shape, parameter.stride(), strict=True)
        known = {pair: axis for axis, pair in enumerate(pairs)}
        axes = tuple(known.get(pair, -1) for pair in zip(view.shape, view.stride(), strict=True))
        if len(set(axes)) == len(axes) == parameter.dim() and -1 not in axes:
            return axes
        return tuple(range(parameter.dim())) if view.shape == parameter.shape else None

    def _multiplied(self, came: Came, products: int, lengths: tuple[int, ...]) -> Came:
        inner = came.inner | ({self.stack[-1].path} if self.stack else set())
        return replace(came, products=products, lengths=lengths, active=False, inner=inner)

    def _product_or_map(self, name: str, args: Any, given: list[Any]) -> Came | None:
        pairs = [pair for pair in given if pair[0].dim() > 1]
        if name in (*DIRECT, "einsum", "matmul", "__matmul__", "mm", "bmm"):
            pairs = [pair for pair in given if pair[0].dim() > 0][:2]
        if len(pairs) < 2:
            return None
        (one, first), (other, second) = pairs[-2:] if name in ("addmm", "baddbmm", "addbmm") else pairs[:2]
        beside = {each[0] for x, each in given if each is not None and x is not one and x is not other}
        if second is not None and (first is None or name in DIRECT or other.dim() > 1):
            return self._mapped(one, second, _roles(name, args, other, weight_first=False), beside)
        if first is not None:
            return self._mapped(other, first, _roles(name, args, one, weight_first=True), beside)
        a: Came = self._came.get(one, NOTHING)
        b: Came = self._came.get(other, NOTHING)
        came = self._union([one, other])
        if not (a.maps and b.maps):
            return came
        values = one if a.products < b.products else other
        return self._multiplied(came, came.products + 1, tuple(values.shape[::-1]))

    def _mapped(self, x: Tensor, weight: Any, roles: tuple[Axes, Axes], beside: set[str]) -> Came:
        """A linear map of ``x``; ``beside`` are other parameters in the call."""
        called, axes = weight
        shape = tuple(self._parameters[called].shape)
        outs, ins = roles
        if axes is not None:
            outs, ins = tuple(axes[i] for i in outs), tuple(axes[i] for i in ins)
        elif len(shape) > 1:  # a slice or a part: lengths are those of the parameter
            outs, ins = tuple(range(len(shape) - 1)), (len(shape) - 1,)
        else:
            outs, ins = (0,), ()
        use = Use(called, shape, outs, ins)
        came: Came = self._came.get(x, NOTHING)
        if came.products == 1:  # a map among logits, as of talking heads
            return replace(came, maps=came.maps | {use}, along=came.along | beside, active=False)
        if came.products and came.maps:
            self._found(self.flow.attentions, use, came)
        elif came.active and came.maps and self._is_between(came, use):
            self._found(self.flow.mlps, use, came)
        return Came(frozenset({use}), frozenset(beside))

    def _is_between(self, came: Came, last: Use) -> bool:
        """Whether what is mapped are hidden units: made from a stream as wide as the result, and not that stream."""
        return all(use.in_length == last.out_length and use.name not in self._seen for use in came.maps)

    def _found(self, kind: list[Found], last: Use, came: Came) -> None:
        if last.name in self._seen:
            return
        names = [last.name, *(use.name for use in came.maps)]
        for frame in reversed(self.stack):
            if not frame.path or all(name.startswith(f"{frame.path}.") for name in names):
                self._seen.add(last.name)
                kind.append(Found(last, came, frame))
                return


def _as_given(value: Any) -> Any:
    """Arguments as they are now: an object that the call may fill (a cache of keys and values) is copied."""
    if isinstance(value, dict):
        return {key: _as_given(item) for key, item in value.items()}
    if type(value) in (tuple, list):
        return type(value)(_as_given(item) for item in value)
    if isinstance(value, (Tensor, nn.Module)) or not hasattr(value, "__dict__") or callable(value):
        return value
    try:
        return copy.deepcopy(value)
    except Exception:  # what cannot be copied is given as it is
        return value


def _roles(name: str, args: Any, w: Tensor, weight_first: bool) -> tuple[Axes, Axes]:
    """The axes of a weight that are outputs and inputs of the map."""
    last = w.dim() - 1
    if name in DIRECT:
        return (0,), (1,)
    if name == "einsum" and isinstance(args[0], str) and "->" in args[0]:
        left, _, result = args[0].replace(" ", "").partition("->")
        terms = left.split(",")
        own, other = (terms[0], terms[1]) if weight_first else (terms[1], terms[0])
        axes: dict[tuple[bool, bool], list[int]] = defaultdict(list)  # by: is it in the other term, in the result?
        for axis, letter in enumerate(own.replace("...", "")):
            axes[letter in other, letter in result].append(axis)
        both, outs, ins = axes[True, True], axes[False, True], axes[True, False]
        return tuple(both + outs) if len(ins) == 1 else tuple(outs), tuple(ins)
    if weight_first:
        return (*range(last - 1), last - 1), (last,)
    return (*range(last - 1), last), (last - 1,)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors in arguments or results, containers included."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_in(item)


@contextmanager
def followed(model: nn.Module) -> Iterator[Follower]:
    """Follow the tensors of the forward passes of ``model`` inside the context, without gradients."""
    follower = Follower(model)

    def leave(*_: Any) -> None:
        follower.stack.pop()

    hooks = []
    for path, module in model.named_modules():

        def enter(module: nn.Module, args: Any, kwargs: Any, path: str = path) -> None:
            follower.stack.append(Frame(path, module, _as_given(args), _as_given(kwargs)))

        hooks.append(module.register_forward_pre_hook(enter, with_kwargs=True))
        hooks.append(module.register_forward_hook(leave, always_call=True))
    with hooked(hooks), torch.no_grad(), follower:
        yield follower
