"""The operators on ``meta``, answered from the sizes of what they are given.

torch's own answers for ``meta`` are mostly programs in Python (``torch._refs``): 0.1 to 2 ms an operator, and the first
of them imports sympy. A count of a model asks some thousand times, in every block the same. A rule gives the size,
dtype and strides that torch would give, or None where it does not know; then torch is asked, and its answer is kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

Rule = Callable[..., Any]


class _Size(NamedTuple):
    """All that an operator which makes a new tensor can know of one without values."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype

    def tensor(self) -> Tensor:
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device="meta")


class Sizes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Answers operators by RULES, and by what torch answered before, where all tensors are on ``meta``."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._known: dict[Any, _Size | tuple[_Size, ...]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        asked = _words(func, args, kwargs or {})
        known = None if asked is None else self._known.get(asked)
        if known is not None:
            return known.tensor() if isinstance(known, _Size) else tuple(size.tensor() for size in known)
        found = self._answer(func, args, kwargs or {})
        if asked is not None:
            if _is_new(found):
                self._known[asked] = _size(found)
            elif isinstance(found, tuple) and found and all(map(_is_new, found)):
                self._known[asked] = tuple(map(_size, found))
        return found

    @staticmethod
    def _answer(func: Any, args: Any, kwargs: Any) -> Any:
        rule = RULES.get(func)
        if rule is not None and not kwargs and all(arg.is_meta for arg in args if isinstance(arg, Tensor)):
            found = rule(*args)
            if found is not None:
                return found
        return func(*args, **kwargs)


def _words(func: Any, args: Any, kwargs: Any) -> Any:
    """What the size of an operator's result depends on; None where that is more than sizes."""
    if not _makes_new(func):
        return None
    try:
        asked = func, torch.get_default_dtype(), _word(args), _word(tuple(kwargs.items()))
        hash(asked)
    except TypeError:  # a tensor with values, or something else that is no number, word or flag
        return None
    return asked


def _word(value: Any) -> Any:
    if isinstance(value, Tensor):
        if type(value) not in (Tensor, torch.nn.Parameter) or not value.is_meta or value.is_complex():
            raise TypeError
        return _size(value)
    if isinstance(value, (tuple, list)):
        return tuple(map(_word, value))
    return type(value), value  # 1, 1.0 and True are equal, and give other types


def _size(value: Tensor) -> _Size:
    return _Size(value.shape, value.stride(), value.dtype)


def _is_new(value: Any) -> bool:
    return type(value) is Tensor and value.is_meta and not value.storage_offset() and not value.is_complex()


@cache
def _makes_new(func: Any) -> bool:
    """Whether an operator's results share no memory with what it is given, and do not depend on values."""
    words = func._schema
    shared = any(each.alias_info is not None for each in (*words.arguments, *words.returns))
    return not shared and not {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output} & set(func.tags)


def _new(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _like(given: Tensor, dtype: torch.dtype) -> Tensor | None:
    """An elementwise result: without gaps, its axes in the order of those of what it was made from."""
    sizes, strides = given.shape, given.stride()
    if 0 in strides or 0 in sizes:
        return None
    numbers, dense = 1, [1] * len(sizes)
    for _, axis in sorted((stride, -axis) for axis, stride in enumerate(strides)):
        dense[-axis] = numbers
        numbers *= sizes[-axis]
    return torch.empty_strided(sizes, dense, dtype=dtype, device="meta")


def _broadcast(*shapes: torch.Size) -> torch.Size:
    found: torch.Size = torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
    return found


def _unary(given: Tensor, *_: Any) -> Tensor | None:
    return _like(given, given.dtype) if given.dtype.is_floating_point else None


def _binary(one: Tensor, other: Any, *_: Any) -> Tensor | None:
    """Of floating-point numbers."""
    dtype = torch.result_type(one, other)
    if not dtype.is_floating_point:
        return None
    if not isinstance(other, Tensor) or other.dim() == 0 or one.shape == other.shape:
        return _like(one, dtype)
    if one.dim() == 0:
        return _like(other, dtype)
    shape = _broadcast(one.shape, other.shape)
    return _new(shape, dtype) if one.is_contiguous() and other.is_contiguous() else None


def _same(given: Tensor, *_: Any) -> Tensor | None:
    """Of any type, for operators that keep it."""
    return _like(given, given.dtype) if given.is_contiguous() else None


def _masked(given: Tensor, mask: Tensor, *_: Any) -> Tensor | None:
    fits = _broadcast(given.shape, mask.shape) == given.shape
    fits = fits and given.is_contiguous() and mask.is_contiguous() and mask.dtype is torch.bool
    return _unary(given) if fits else None


def _in_place(given: Tensor, other: Any = 0, *_: Any) -> Tensor | None:
    fits = not isinstance(other, Tensor) or _broadcast(given.shape, other.shape) == given.shape
    return given if fits and given.dtype.is_floating_point else None


def _softmax(given: Tensor, _: int, other: Any = None) -> Tensor | None:
    """``other`` asks for another output type (a flag in ``_softmax``, the type itself in ``_safe_softmax``)."""
    known = given.dtype.is_floating_point and given.is_contiguous() and not other
    return _new(given.shape, given.dtype) if known else None


def _layer_norm(given: Tensor, shape: Sequence[int], *_: Any) -> tuple[Tensor, Tensor, Tensor] | None:
    if given.dtype is not torch.float32:  # the statistics of others are float32 on one device, not on another
        return None
    rows = [*given.shape[: given.dim() - len(shape)], *(1 for _ in shape)]
    return _new(given.shape, given.dtype), _new(rows, given.dtype), _new(rows, given.dtype)


def _mm(one: Tensor, other: Tensor) -> Tensor | None:
    fits = one.dim() == other.dim() == 2 and one.shape[1] == other.shape[0] and one.dtype == other.dtype
    return _new((one.shape[0], other.shape[1]), one.dtype) if fits else None


def _addmm(bias: Tensor, one: Tensor, other: Tensor) -> Tensor | None:
    made = _mm(one, other)
    fits = made is not None and bias.dtype == made.dtype and bias.shape in (made.shape, made.shape[1:])
    return made if fits else None


def _bmm(one: Tensor, other: Tensor) -> Tensor | None:
    fits = one.dim() == other.dim() == 3 and one.dtype == other.dtype
    fits = fits and one.shape[0] == other.shape[0] and one.shape[2] == other.shape[1]
    return _new((*one.shape[:2], other.shape[2]), one.dtype) if fits else None


def _convolution(
    given: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any, turned: bool, *_: Any
) -> Tensor | None:
    axes = weight.dim() - 2
    if turned or given.dim() != weight.dim() or not given.is_contiguous() or given.dtype != weight.dtype:
        return None
    steps = (list(value) * axes if len(value) == 1 else list(value) for value in (stride, padding, dilation))
    sizes = [
        (size + 2 * p - d * (kernel - 1) - 1) // s + 1
        for size, kernel, s, p, d in zip(given.shape[2:], weight.shape[2:], *steps, strict=True)
    ]
    return _new((given.shape[0], weight.shape[0], *sizes), given.dtype) if min(sizes) > 0 else None


def _embedding(weight: Tensor, indices: Tensor, *_: Any) -> Tensor:
    return _new((*indices.shape, weight.shape[1]), weight.dtype)


def _mean(given: Tensor, axes: Sequence[int] | None, keep: bool = False) -> Tensor | None:
    if not axes or not given.is_contiguous() or not given.dtype.is_floating_point:
        return None
    gone = {axis % given.dim() for axis in axes}
    shape = [1 if axis in gone else size for axis, size in enumerate(given.shape) if keep or axis not in gone]
    return _new(shape, given.dtype)


def _cat(parts: Sequence[Tensor], axis: int = 0) -> Tensor | None:
    first = parts[0]
    axis %= max(first.dim(), 1)
    others = [part.shape[:axis] + part.shape[axis + 1 :] for part in parts if part.dim() == first.dim()]
    alike = len(others) == len(parts) and len(set(others)) == 1 and first.dim() > 0
    odd = (not p.is_meta or p.dtype != first.dtype or not (p.is_contiguous() or p.dim() < 4) for p in parts)
    if not alike or any(odd):
        return None
    shape = list(first.shape)
    shape[axis] = sum(part.shape[axis] for part in parts)
    return _new(shape, first.dtype) if math.prod(shape) else None


def _operator(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload)


_NAMES: dict[Rule, str] = {
    _mm: "mm.default",
    _addmm: "addmm.default",
    _bmm: "bmm.default",
    _convolution: "convolution.default",
    _layer_norm: "native_layer_norm.default",
    _softmax: "_softmax.default _safe_softmax.default",
    _embedding: "embedding.default",
    _cat: "cat.default",
    _mean: "mean.dim sum.dim_IntList",
    _binary: "add.Tensor sub.Tensor mul.Tensor div.Tensor add.Scalar sub.Scalar mul.Scalar div.Scalar",
    _in_place: "add_.Tensor sub_.Tensor mul_.Tensor div_.Tensor add_.Scalar mul_.Scalar",
    _unary: "gelu.default silu.default relu.default tanh.default sigmoid.default exp.default rsqrt.default "
    "sqrt.default neg.default cos.default sin.default pow.Tensor_Scalar softplus.default clamp.default",
    _same: "tril.default triu.default bitwise_not.default",
    _masked: "masked_fill.Scalar",
}
RULES: dict[Any, Rule] = {_operator(name): rule for rule, names in _NAMES.items() for name in names.split()}
