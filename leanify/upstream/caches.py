"""The size of an attention's key/value cache, from upstream's configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from leanify.upstream.origin import is_hf, text_config

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class CacheSize:
    """The cache of an attention.

    window   the maximum number of tokens; None for all
    latent   with latent attention, numbers per token instead of keys and values; None without
    pair     with latent attention, channels of one head's query and value; None without
    """

    window: int | None
    latent: int | None
    pair: int | None

    def cached_tokens(self, context: int) -> int:
        """The number of cached tokens after ``context`` tokens."""
        return context if self.window is None else min(context, self.window)


def cache_size(model: nn.Module, attention: Any) -> CacheSize | None:
    """The cache of an attention during generation.

    None if it is not causal (encoders, cross-attention), or reads another layer's cache.
    """
    # only causal attentions of transformers with a cache of their own
    if not is_hf(model) or getattr(attention, "layer_idx", None) is None:
        return None
    if not looks_back(attention) or getattr(attention, "is_kv_shared_layer", False):
        return None

    # the window: the attention's own, or the configuration's for the kind of this layer
    config: Any = getattr(attention, "config", None)
    if config is None:
        config = text_config(model.config)
    kinds = getattr(config, "layer_types", None)
    size = getattr(config, "sliding_window", None)
    if hasattr(attention, "sliding_window"):
        size = attention.sliding_window
    elif isinstance(kinds, list) and attention.layer_idx < len(kinds):
        kind = kinds[attention.layer_idx]
        if kind != "sliding_attention":
            size = getattr(config, "attention_chunk_size", None) if kind == "chunked_attention" else None
    window = size if isinstance(size, int) else None

    # latent attention (DeepSeek) caches one latent vector and one rotary key per token
    if getattr(attention, "kv_lora_rank", None) is None:
        return CacheSize(window, None, None)
    latent = attention.kv_lora_rank + attention.qk_rope_head_dim
    return CacheSize(window, latent, attention.qk_nope_head_dim + attention.qk_rope_head_dim + attention.v_head_dim)


def looks_back(attention: Any) -> bool:
    """Whether an attention is causal: it sees only earlier tokens."""
    names = ("is_causal", "causal", "is_decoder")
    return bool(next((getattr(attention, name) for name in names if hasattr(attention, name)), False))


def longest_context(model: Any) -> int | None:
    """The number of tokens for which a configuration has positions; None if unlimited."""
    config = model.config.get_text_config(decoder=True) if is_hf(model) else None
    names = ("max_position_embeddings", "max_target_positions", "n_positions", "n_ctx")
    positions = (getattr(config, name, None) for name in names)
    return next((number for number in positions if isinstance(number, int)), None)
