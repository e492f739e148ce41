"""Forwards freed from inner == width, for the upstream classes whose own forward takes one for the other.

Upstream writes ``B, N, C = x.shape``, takes ``C // heads`` for head_dim and reshapes the concatenated heads to C. A row
in `families` says what to replace; everything else in the forward, masks and fused kernels included, stays
upstream's. The edit is made once a class, on the installed source, and must meet every word that it replaces: another
version of upstream that computes something else is refused, not guessed at. `free` gives a module the freed forward by
giving it a subclass of its own class, so that ``isinstance``, state dicts, hooks and ``deepcopy`` stay what they were.
"""

from __future__ import annotations

import inspect
import linecache
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leanify.errors import UnsupportedModel
from leanify.lens.families import Reading, known, reading_of


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
    """Vaswani et al. 2017, eq. 1, for torch's own module, whose compiled forward insists on inner == width.

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
    """WavLM's attention (Chen et al. 2022, eqs. 2–5): a relative bias that each head gates by its slice of the input.

    Heads beyond the slices start again at the first. Shapes: hidden_states B, N, width; position_bias B·h, N, N.
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
    """Give ``module`` and its parts the forwards that their rows free, in place; one that is free already stays so."""
    for part in module.modules():
        reading = reading_of(part)
        if reading and (reading.edits or reading.forward) and "freed" not in vars(type(part)):
            part.__class__ = _freed_class(type(part))


_FREED: dict[type[nn.Module], type[nn.Module]] = {}


def _freed_class(upstream: type[nn.Module]) -> type[nn.Module]:
    """The freed subclass of an upstream class, made once."""
    if upstream not in _FREED:
        _FREED[upstream] = _make(upstream, known()[f"{upstream.__module__}.{upstream.__qualname__}"][0])
    return _FREED[upstream]


def free_as(module: nn.Module, reading: Reading) -> None:
    """Give ``module`` the forward that ``reading`` frees, in place, whatever row its class has: to try a reading."""
    module.__class__ = _make(type(module), reading)


def _make(upstream: type[nn.Module], reading: Reading) -> type[nn.Module]:
    """A subclass with the forward that ``reading`` frees: the first row of a class, which all its rows share."""
    if reading.forward:
        return _subclass(upstream, {"forward": _FORWARDS[reading.forward]})
    methods = {name: _edited(upstream, name, reading.edits) for name in reading.methods}
    unmet = [old for old in reading.edits if not any(old in inspect.getsource(getattr(upstream, m)) for m in methods)]
    if unmet:
        raise UnsupportedModel(
            f"the row of {reading.name} replaces {unmet[0]!r} in {', '.join(methods)}, and the installed source has no "
            "such words. Correct the row's edits, or install a version of the library that leanify was tested with "
            "(leanify zoo names them)"
        )
    return _subclass(upstream, methods)


def _subclass(upstream: type[nn.Module], methods: dict[str, Callable[..., Any]]) -> type[nn.Module]:
    return type(upstream.__name__, (upstream,), {**methods, "freed": True, "__reduce__": _reduce})


def _edited(upstream: type[nn.Module], name: str, edits: Mapping[str, str]) -> Callable[..., Any]:
    """One method of ``upstream`` with its edits, compiled beside the original."""
    method = inspect.unwrap(getattr(upstream, name))
    source = textwrap.dedent(inspect.getsource(method))
    for old, new in edits.items():
        source = source.replace(old, new)
    filename = f"<{upstream.__module__}.{upstream.__qualname__}.{name}, freed>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    made: dict[str, Any] = {}
    exec(compile(source, filename, "exec"), method.__globals__, made)  # upstream's installed source, never a file's
    freed: Callable[..., Any] = made[name]
    freed.__qualname__ = f"{upstream.__qualname__}.{name}"
    freed.__module__ = upstream.__module__
    return freed


def _reduce(self: nn.Module) -> tuple[object, ...]:
    return _rebuild, (type(self).__mro__[1],), self.__dict__


def _rebuild(upstream: type[nn.Module]) -> nn.Module:
    cls = _freed_class(upstream)
    return cls.__new__(cls)
