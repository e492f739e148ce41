"""Adapt upstream forwards that assume inner == width.

Upstream often writes ``B, N, C = x.shape``, takes ``C // heads`` as head_dim and reshapes the concatenated
heads to C. A row in `families` lists the replacements. The rest of the forward, including masks and fused kernels,
stays upstream's. The edit is made once per class, in the installed source, and every replaced fragment must occur
there: another version of upstream's code is refused. `free` gives a module a subclass of its class with the edited
forward, so ``isinstance``, state dicts, hooks and ``deepcopy`` behave as before.
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

from leanify.core.errors import UnsupportedModel
from leanify.lens.families import Row, all_rows, attached_row, find_row, full_name


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
    """Forward of torch's MultiheadAttention (Vaswani et al. 2017, eq. 1); torch's version requires inner == width.

    Shapes: query B, N, width (N, B, width unless ``batch_first``) → the same; weights B, N, M, or B, h, N, M.
    """
    # projections: B, h, N, head_dim
    if not self.batch_first:
        query, key, value = (x.transpose(0, 1) for x in (query, key, value))
    weights = self.in_proj_weight.chunk(3)
    biases = self.in_proj_bias.chunk(3) if self.in_proj_bias is not None else (None, None, None)
    projections = []
    for x, w, b in zip((query, key, value), weights, biases, strict=True):
        projections.append(F.linear(x, w, b).view(*x.shape[:2], self.num_heads, -1).transpose(1, 2))
    q, k, v = projections
    # a further key and value: learnt ones, zeros
    if self.bias_k is not None and self.bias_v is not None:
        further = (
            bias.view(1, self.num_heads, 1, -1).expand(len(k), -1, -1, -1) for bias in (self.bias_k, self.bias_v)
        )
        k, v = (torch.cat([x, one], 2) for x, one in zip((k, v), further, strict=True))
    if self.add_zero_attn:
        k, v = F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1))
    # masks: booleans exclude positions, numbers are added to the logits
    logits = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5  # B, h, N, M
    if key_padding_mask is not None:
        key_padding_mask = key_padding_mask[:, None, None]
    for mask in (attn_mask, key_padding_mask):
        if mask is not None:
            mask = F.pad(mask, (0, k.shape[2] - mask.shape[-1]))
            if mask.dim() == 3:  # for each sample and head; never fewer samples, which would be broadcast
                mask = mask.view(len(q), self.num_heads, *mask.shape[1:])
            logits = logits.masked_fill(mask, -torch.inf) if mask.dtype == torch.bool else logits + mask
    attention = F.dropout(logits.softmax(-1), self.dropout, self.training)
    out = self.out_proj((attention @ v).transpose(1, 2).flatten(2))
    if not self.batch_first:
        out = out.transpose(0, 1)
    if not need_weights:
        return out, None
    return out, (attention.mean(1) if average_attn_weights else attention)


def gated_attention(
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
    # gate of each head and token: B, h, N, 1
    slices = hidden_states.view(batch, tokens, -1, self.gru_rel_pos_linear.in_features)
    head_gates = slices[:, :, torch.arange(heads, device=slices.device) % slices.shape[2]].transpose(1, 2)
    sums = self.gru_rel_pos_linear(head_gates).view(batch, heads, tokens, 2, 4).sum(-1)
    a, b = sums.sigmoid().chunk(2, -1)  # B, h, N, 1
    gate = a * (b * self.gru_rel_pos_const - 1) + 2
    # attention with the gated bias
    q = self.q_proj(hidden_states).view(batch, tokens, heads, -1).transpose(1, 2)
    k = self.k_proj(hidden_states).view(batch, tokens, heads, -1).transpose(1, 2)
    v = self.v_proj(hidden_states).view(batch, tokens, heads, -1).transpose(1, 2)
    logits = q @ k.transpose(-2, -1) * self.scaling + gate * position_bias.view(batch, heads, tokens, tokens)
    if attention_mask is not None:
        logits = logits.masked_fill(attention_mask.ne(1)[:, None, None], -torch.inf)
    attention = F.dropout(logits.softmax(-1), self.dropout, self.training)
    out = self.out_proj((attention @ v).transpose(1, 2).flatten(2))
    return out, attention.mean(1, keepdim=True).expand_as(attention), position_bias


_FORWARDS: dict[str, Callable[..., Any]] = {"multihead": multihead, "gated": gated_attention}


def free(module: nn.Module) -> None:
    """Adapt the forwards of ``module`` and its submodules in place, if their rows demand it; idempotent."""
    for part in module.modules():
        reading = find_row(part)
        if reading and (reading.edits or reading.forward) and "freed" not in vars(type(part)):
            part.__class__ = _freed_class(type(part), attached_row(part))


FREED_CLASSES: dict[tuple[type[nn.Module], str], type[nn.Module]] = {}


def _freed_class(upstream: type[nn.Module], row: Row | None) -> type[nn.Module]:
    """Return the adapted subclass of an upstream class (cached), by the module's own row or the class's first row."""
    reading = row or all_rows()[full_name(upstream)][0]
    key = upstream, repr((reading.edits, reading.methods, reading.forward))
    if key not in FREED_CLASSES:
        FREED_CLASSES[key] = make_freed_class(upstream, reading)
    return FREED_CLASSES[key]


def make_freed_class(upstream: type[nn.Module], reading: Row) -> type[nn.Module]:
    """Make the subclass with the adapted forward. All rows of a class share the edits of its first row.

    A name in ``methods`` that is not a method is a function in the class's module, which its forward calls.
    """
    if reading.forward:
        return _subclass(upstream, {"forward": _FORWARDS[reading.forward]})
    # functions of the class's module, edited; the methods below see them instead of the originals
    sources, scope = [], {}
    for name in reading.methods:
        if not hasattr(upstream, name):
            function = getattr(sys.modules.get(upstream.__module__), name, None)
            if not inspect.isfunction(function):
                raise UnsupportedModel(
                    f"a row edits {name} of {upstream.__qualname__}, which has no such method or function"
                )
            scope[name] = _compile(function, f"{function.__module__}.{name}", reading.edits, {})
            sources.append(function)
    # methods of the class, edited
    method_names = [name for name in reading.methods if name not in scope] or ["forward"]
    methods = {}
    for name in method_names:
        method = getattr(upstream, name)
        methods[name] = _compile(method, f"{full_name(upstream)}.{name}", reading.edits, scope)
        methods[name].__qualname__ = f"{upstream.__qualname__}.{name}"
        methods[name].__module__ = upstream.__module__
        sources.append(method)
    # every edit must apply to the installed source
    installed_sources = "\0".join(inspect.getsource(source) for source in sources)
    unmet = [old for old in reading.edits if old not in installed_sources]
    if unmet:
        raise UnsupportedModel(
            f"the row of {reading.name} replaces {unmet[0]!r} in {', '.join(methods)}, and the installed source has no "
            "such words. Correct the row's edits, or install a version of the library that leanify was tested with "
            "(leanify zoo names them)"
        )
    return _subclass(upstream, methods)


def _subclass(upstream: type[nn.Module], methods: dict[str, Callable[..., Any]]) -> type[nn.Module]:
    return type(upstream.__name__, (upstream,), {**methods, "freed": True, "__reduce__": _reduce})


def _compile(function: Any, label: str, edits: Mapping[str, str], scope: Mapping[str, Any]) -> Callable[..., Any]:
    """Compile a function of an installed library with the edits applied, in its own namespace and closure.

    ``label`` is its dotted path, and ``scope`` maps names to what replaces them in the namespace. No file is changed.
    """
    function = inspect.unwrap(function)
    source = textwrap.dedent(inspect.getsource(function))
    for old, new in edits.items():
        source = source.replace(old, new)
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    bound = {word: cell.cell_contents for word, cell in cells}
    name = function.__name__
    if bound:  # variables of the enclosing function, and the class itself for super()
        source = f"def around({', '.join(bound)}):\n{textwrap.indent(source, '    ')}    return {name}\n"
    # tracebacks show the edited lines
    filename = f"<{label}, freed>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    names = {**function.__globals__, **scope} if scope else function.__globals__
    namespace: dict[str, Any] = {}
    exec(compile(source, filename, "exec"), names, namespace)  # noqa: S102  upstream's own source, edited
    freed: Callable[..., Any] = namespace["around"](**bound) if bound else namespace[name]
    return freed


def _reduce(self: nn.Module) -> tuple[object, ...]:
    return _rebuild, (type(self).__mro__[1], attached_row(self)), self.__dict__


def _rebuild(upstream: type[nn.Module], row: Row | None) -> nn.Module:
    cls = _freed_class(upstream, row)
    return cls.__new__(cls)
