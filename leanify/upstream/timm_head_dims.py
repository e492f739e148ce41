"""Attention layers of any head_dim for timm, registered under names that saved configurations can contain."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

HEAD_DIM_LAYER = "leanify_head_dim_{}"  # the name under which timm finds an attention with this head_dim


HEAD_DIMS = range(1, 257)


def register_head_dims(vision_transformer: Any) -> None:
    """Make timm's vision_transformer accept attentions of any head_dim by name; called when its module is imported.

    timm's Attention has ``attn_head_dim``, but VisionTransformer does not pass it on. A name in
    ``attn_layer`` is saved in ``model_args`` and resolved here by ``create_model("local-dir:…")``.
    """
    attention = vision_transformer.Attention
    layers = getattr(vision_transformer, "ATTN_LAYERS", None)
    if layers is None or "attn_head_dim" not in inspect.signature(attention.__init__).parameters:
        return  # this timm cannot express it, but leanify.load still can
    for head_dim in HEAD_DIMS:
        layers.setdefault(HEAD_DIM_LAYER.format(head_dim), _make_attention_class(attention, head_dim))


def _make_attention_class(attention: type[nn.Module], head_dim: int) -> type[nn.Module]:
    def __init__(self: nn.Module, dim: int, num_heads: int = 8, **options: Any) -> None:
        attention.__init__(self, dim, num_heads=num_heads, attn_head_dim=head_dim, **options)

    return type(attention.__name__, (attention,), {"__init__": __init__, "freed": True})
