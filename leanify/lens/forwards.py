"""Free upstream forwards from the assumption inner == width.

Upstream often writes ``B, N, C = x.shape``, takes ``C // heads`` as head_dim and reshapes the concatenated
heads to C. A row in `families` says what to replace. Everything else in the forward, including masks and
fused kernels, stays upstream's. The edit is made once per class, in the installed source, and every phrase to
be replaced must occur there: a version of upstream with other code is refused rather than guessed at. `free`
gives a module a subclass of its own class with the edited forward, so ``isinstance``, state dicts, hooks and
``deepcopy`` behave as before.
"""

from __future__ import annotations

import inspect
import linecache
import sys
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leanify.errors import UnsupportedModel
from leanify.lens.families import Reading, attached, full_name, known, reading_of


def multihead(
    self: nn.MultiheadAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Forward for torch's MultiheadAttention (Vaswani et al. 2017, eq. 1); its own requires inner == width.

    Shapes: query B, N, width (N, B, width unless ``batch_first``) → the same; weights B, N, M, or B, h, N, M.
    """
    if not self.batch_first:
        query, key, value = (x.transpose(0, 1) for x in (query, key, value))
    weights = self.in_proj_weight.chunk(3)
    biases = self.in_proj_bias.chunk(3) if self.in_proj_bias is not None else (None, None, None)
    q, k, v = (
        F.linear(x, w, b).view(*x.shape[:2], self.num_heads, -1).transpose(1, 2)
        for x, w, b in zip((query, key, value), weights, biases, strict=True)
    )
    logits = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5  # B, h, N, M
    for mask in (attn_mask, None if key_padding_mask is None else key_padding_mask[:, None, None]):
        if mask is not None:
            mask = mask.view(-1, self.num_heads, *mask.shape[1:]) if mask.dim() == 3 else mask
            logits = logits.masked_fill(mask, -torch.inf) if mask.dtype == torch.bool else logits + mask
    attention = F.dropout(logits.softmax(-1), self.dropout, self.training)
    out = self.out_proj((attention @ v).transpose(1, 2).flatten(2))
    shown = (attention.mean(1) if average_attn_weights else attention) if need_weights else None
    return (out if self.batch_first else out.transpose(0, 1)), shown


def gated(
    self: Any,
    hidden_states: Tensor,
    attention_mask: Tensor | None = None,
    position_bias: Tensor | None = None,
    index: int = 0,
    **_: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """WavLM's attention (Chen et al. 2022, eqs. 2–5): each head gates the relative bias by its slice of the input.

    If there are more heads than slices, slices are reused cyclically. Shapes: hidden_states B, N, width;
    position_bias B·h, N, N.
    """
    batch, tokens, heads = *hidden_states.shape[:2], self.num_heads
    if position_bias is None:
        position_bias = self.compute_bias(tokens, tokens).repeat(batch, 1, 1)
    slices = hidden_states.view(batch, tokens, -1, self.gru_rel_pos_linear.in_features)
    own = slices[:, :, torch.arange(heads, device=slices.device) % slices.shape[2]].transpose(1, 2)
    a, b = self.gru_rel_pos_linear(own).view(batch, heads, tokens, 2, 4).sum(-1).sigmoid().chunk(2, -1)  # B, h, N, 1
    gate = a * (b * self.gru_rel_pos_const - 1) + 2
    q, k, v = (
        project(hidden_states).view(batch, tokens, heads, -1).transpose(1, 2)
        for project in (self.q_proj, self.k_proj, self.v_proj)
    )
    logits = q @ k.transpose(-2, -1) * self.scaling + gate * position_bias.view(batch, heads, tokens, tokens)
    if attention_mask is not None:
        logits = logits.masked_fill(attention_mask.ne(1)[:, None, None], -torch.inf)
    attention = F.dropout(logits.softmax(-1), self.dropout, self.training)
    out = self.out_proj((attention @ v).transpose(1, 2).flatten(2))
    return out, attention.mean(1, keepdim=True).expand_as(attention), position_bias


_FORWARDS: dict[str, Callable[..., Any]] = {"multihead": multihead, "gated": gated}


def free(module: nn.Module) -> None:
    """Free the forwards of ``module`` and its parts in place, where their rows say so; idempotent."""
    for part in module.modules():
        reading = reading_of(part)
        if reading and (reading.edits or reading.forward) and "freed" not in vars(type(part)):
            part.__class__ = _freed_class(type(part), attached(part))


_FREED: dict[tuple[type[nn.Module], str], type[nn.Module]] = {}


def _freed_class(upstream: type[nn.Module], own: Reading | None = None) -> type[nn.Module]:
    """The freed subclass of an upstream class (cached), by a module's own row or the class's first."""
    reading = own or known()[full_name(upstream)][0]
    key = upstream, repr((reading.edits, reading.methods, reading.forward))
    if key not in _FREED:
        _FREED[key] = _make(upstream, reading)
    return _FREED[key]


def free_as(module: nn.Module, reading: Reading) -> None:
    """Free the forward of ``module`` in place by ``reading`` instead of its class's row, to try a reading."""
    if reading.edits or reading.forward:
        module.__class__ = _make(type(module), reading)


def _make(upstream: type[nn.Module], reading: Reading) -> type[nn.Module]:
    """Make the subclass with the freed forward. All rows of a class share the edits of its first row.

    A name in ``methods`` that is none is a function beside the class, which its forward calls.
    """
    if reading.forward:
        return _subclass(upstream, {"forward": _FORWARDS[reading.forward]})
    sources, scope = [], {}
    for name in reading.methods:
        if not hasattr(upstream, name):
            function = getattr(sys.modules.get(upstream.__module__), name, None)
            if not inspect.isfunction(function):
                raise UnsupportedModel(
                    f"a row edits {name} of {upstream.__qualname__}, which has no such method or function"
                )
            filename = f"<{function.__module__}.{function.__qualname__}, freed>"
            made = _compiled(_source(function, reading.edits), filename, function.__globals__)
            scope[name] = made[function.__name__]
            sources.append(function)
    own = [name for name in reading.methods if name not in scope] or ["forward"]
    methods = {name: _edited(upstream, name, reading.edits, scope) for name in own}
    sources += [getattr(upstream, name) for name in methods]
    unmet = [old for old in reading.edits if not any(old in inspect.getsource(source) for source in sources)]
    if unmet:
        raise UnsupportedModel(
            f"the row of {reading.name} replaces {unmet[0]!r} in {', '.join(methods)}, and the installed source has no "
            "such words. Correct the row's edits, or install a version of the library that leanify was tested with "
            "(leanify zoo names them)"
        )
    return _subclass(upstream, methods)


def _subclass(upstream: type[nn.Module], methods: dict[str, Callable[..., Any]]) -> type[nn.Module]:
    return type(upstream.__name__, (upstream,), {**methods, "freed": True, "__reduce__": _reduce})


def _edited(
    upstream: type[nn.Module], name: str, edits: Mapping[str, str], scope: Mapping[str, Any]
) -> Callable[..., Any]:
    """Compile one method of ``upstream`` with its edits applied, in the original's namespace and closure.

    ``scope`` are functions that stand in for those of the namespace.
    """
    method: Any = inspect.unwrap(getattr(upstream, name))
    source = _source(method, edits)
    cells = zip(method.__code__.co_freevars, method.__closure__ or (), strict=True)
    bound = {word: cell.cell_contents for word, cell in cells}
    if bound:  # names of the function around the class, and the class itself for super()
        source = f"def around({', '.join(bound)}):\n{textwrap.indent(source, '    ')}    return {name}\n"
    filename = f"<{upstream.__module__}.{upstream.__qualname__}.{name}, freed>"
    names = {**method.__globals__, **scope} if scope else method.__globals__
    made = _compiled(source, filename, names)
    freed: Callable[..., Any] = made["around"](**bound) if bound else made[name]
    freed.__qualname__ = f"{upstream.__qualname__}.{name}"
    freed.__module__ = upstream.__module__
    return freed


def _source(function: Any, edits: Mapping[str, str]) -> str:
    """The installed library's source of a function, never a file's, with edits applied."""
    source = textwrap.dedent(inspect.getsource(function))
    for old, new in edits.items():
        source = source.replace(old, new)
    return source


def _compiled(source: str, filename: str, names: dict[str, Any]) -> dict[str, Any]:
    """What a source defines, among these global names; tracebacks show its lines."""
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    made: dict[str, Any] = {}
    exec(compile(source, filename, "exec"), names, made)
    return made


def _reduce(self: nn.Module) -> tuple[object, ...]:
    return _rebuild, (type(self).__mro__[1], attached(self)), self.__dict__


def _rebuild(upstream: type[nn.Module], own: Reading | None = None) -> nn.Module:
    cls = _freed_class(upstream, own)
    return cls.__new__(cls)
