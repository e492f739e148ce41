"""Upstream's constructor arguments and configuration keys: a shape in their words, and facts that they hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from leanify.core.architecture import Architecture, Stage, primary_layer
from leanify.upstream.origin import Origin, is_hf, text_config

if TYPE_CHECKING:
    from torch import nn
    from transformers import PretrainedConfig

_ACTIVE_KEYS = ("num_experts_per_tok", "moe_topk", "moe_k", "moe_top_k", "top_k_experts")
_SIZE_LISTS = {  # a size for each layer
    "intermediate_size": lambda layer: layer.mlp,
    "num_attention_heads_per_layer": lambda layer: layer.heads,
    "num_key_value_heads_per_layer": lambda layer: layer.kv_heads,
}
LAYER_LISTS = (  # a value for each layer
    "layer_types", "mlp_layer_types", "no_rope_layers", "layers_block_type", "indexer_types", "attention_layers",
    "layer_rope_theta", "rope_scaling_layers", "sliding_windows", "activation_sparsity_pattern", *_SIZE_LISTS,
)  # fmt: skip
_EXPERT_KEYS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_MLP_KEYS = ("intermediate_size", "n_inner", "ffn_dim", "d_ff")
HEAD_DIM_LAYER = "leanify_head_dim_{}"  # the name under which timm finds an attention with this head_dim
HEAD_DIMS = range(1, 257)


def respell(origin: Origin, old: Architecture, new: Architecture) -> list[Origin]:
    """Origins that might build ``new`` from upstream's options alone, best first; the caller builds to verify."""
    make_options = _timm_options if origin.library == "timm" else _own_model_options
    return [replace(origin, options={**origin.options, **keys}) for keys in make_options(old, new)]


def _timm_options(old: Architecture, new: Architecture) -> Iterator[dict[str, Any]]:
    keys: dict[str, Any] = {}
    before, after = _single_stage(old), _single_stage(new)
    if before is None or after is None:
        return
    if before.depth != after.depth:
        keys["depth"] = after.depth

    # depth, heads and head_dim, which timm takes from the name of an attention class
    layer_before, layer = before.primary, after.primary
    assert layer_before is not None
    assert layer is not None
    if layer_before.heads != layer.heads:
        keys["num_heads"] = layer.heads
    if layer.inner != layer.width:
        keys["attn_layer"] = HEAD_DIM_LAYER.format(layer.head_dim)

    # the MLP, as a ratio that gives its units after rounding down
    if layer_before.mlp == layer.mlp:
        yield keys
        return
    for hidden in (layer.mlp, 2 * layer.mlp):  # a packed gate counts both halves
        ratio = hidden / layer.width
        if int(layer.width * ratio) != hidden:
            ratio = (hidden + 0.5) / layer.width
        yield {**keys, "mlp_ratio": ratio}


def register_head_dims(vision_transformer: Any) -> None:
    """Make timm's vision_transformer accept attentions of any head_dim by name; called when its module is imported.

    timm's Attention has ``attn_head_dim``, but VisionTransformer does not pass it on. A name in
    ``attn_layer`` is saved in ``model_args`` and resolved here by ``create_model("local-dir:…")``.
    """
    attention = vision_transformer.Attention

    def make_class(head_dim: int) -> type:
        def __init__(self: Any, dim: int, num_heads: int = 8, **options: Any) -> None:
            attention.__init__(self, dim, num_heads=num_heads, attn_head_dim=head_dim, **options)

        return type(attention.__name__, (attention,), {"__init__": __init__, "freed": True})

    for head_dim in HEAD_DIMS:
        vision_transformer.ATTN_LAYERS.setdefault(HEAD_DIM_LAYER.format(head_dim), make_class(head_dim))


def _own_model_options(old: Architecture, new: Architecture) -> Iterator[dict[str, Any]]:
    stage = _single_stage(new)
    if stage is not None and stage.primary is not None:
        layer = stage.primary
        yield {"depth": stage.depth, "heads": layer.heads, "head_dim": layer.head_dim, "mlp": layer.mlp}


def _single_stage(architecture: Architecture) -> Stage | None:
    """The first varied stage, if upstream has one option for all of them."""
    stages = [architecture.stages[i] for i in architecture.variable_stages]
    return stages[0] if stages and all(len(set(stage.blocks)) == 1 for stage in stages) else None


def hf_config_keys(config: PretrainedConfig, old: Architecture, new: Architecture) -> dict[str, Any]:
    """The configuration keys that a new shape changes, with their new values.

    A key applies to all stages that had its old value, and is changed if they change alike. Only stages whose
    blocks all have the same attention are considered.
    """
    # (old, new) stages with attention; MLPs of their blocks may differ: a mixture's first layers are often dense
    pairs = [pair for pair in zip(old.stages, new.stages, strict=True) if pair[0].primary]
    for pair in pairs:
        for stage in pair:
            attentions = {tuple(replace(x, mlp=0, experts=0, active=0) for x in block) for block in stage.blocks}
            if len(attentions) != 1:
                return {}
    if not pairs:
        return {}
    keys = set(dir(config))
    config_keys: dict[str, Any] = {}

    # set the first key of these names if the stages with its value all change to one other value
    def express(
        names: tuple[str, ...], measure: Callable[[Stage], int | None], pairs: list[tuple[Stage, Stage]] = pairs
    ) -> None:
        key = next((name for name in names if name in keys), None)
        current = getattr(config, key, None) if key else 0
        news = {measure(after) for before, after in pairs if current is None or measure(before) == current} - {None}
        if key and len(news) == 1 and news != {current} and any(measure(a) != measure(b) for a, b in pairs):
            config_keys[key] = news.pop()

    express(("num_hidden_layers", "n_layer", "num_layers"), lambda stage: stage.depth)
    express(("num_attention_heads", "n_head", "num_heads"), lambda stage: primary_layer(stage).heads)
    express(("num_key_value_heads",), lambda stage: primary_layer(stage).kv_heads)
    express(_MLP_KEYS, _units)
    express(("moe_intermediate_size",), lambda stage: _units(stage, experts=True))
    express(_EXPERT_KEYS, lambda stage: _expert_counts(stage)[0])
    express(_ACTIVE_KEYS, lambda stage: _expert_counts(stage)[1])
    for side in ("encoder", "decoder"):
        side_pairs = [pair for pair in pairs if side in pair[0].name.split(".")]
        express((f"{side}_layers", f"num_{side}_layers"), lambda stage: stage.depth, side_pairs)
        express((f"{side}_ffn_dim",), _units, side_pairs)

    # head_dim, which in DeepSeek's configuration describes the rotary part only
    before, after = pairs[0]
    layer_before, layer = primary_layer(before), primary_layer(after)
    differs = layer.inner != layer.width or layer.head_dim != layer_before.head_dim
    if differs and getattr(config, "head_dim", None) in (None, layer_before.head_dim):
        config_keys["head_dim"] = layer.head_dim

    # a value for each layer: new layers repeat the last one
    for key in LAYER_LISTS if len(pairs) == 1 else ():
        values = getattr(config, key, None)
        if not isinstance(values, list) or len(values) != before.depth:
            continue
        measure = _SIZE_LISTS.get(key)
        sizes = [measure(layer) for layer in after.primaries] if measure else []
        if measure and values == [measure(layer) for layer in before.primaries] and len(sizes) == after.depth:
            values = sizes
        config_keys[key] = resize_list(values, after.depth)
    return config_keys


def resize_list(values: list[Any], length: int) -> list[Any]:
    """The first ``length`` values; the last one is repeated if they are fewer."""
    return values[:length] + values[-1:] * (length - len(values))


def _units(stage: Stage, experts: bool = False) -> int | None:
    """The hidden units of all dense MLPs, or of all routed experts; None if they differ."""
    dense = {layer.mlp for layer in stage.primaries if layer.mlp and not layer.experts}
    mixtures = {layer.mlp for layer in stage.primaries if layer.mlp and layer.experts}
    units = mixtures if experts or not dense else dense
    return units.pop() if len(units) == 1 else None


def _expert_counts(stage: Stage) -> tuple[int | None, int | None]:
    """The numbers of routed and of active experts in all mixtures; None if they differ."""
    pairs = {(layer.experts, layer.active) for layer in stage.primaries if layer.experts}
    return pairs.pop() if len(pairs) == 1 else (None, None)


def experts_per_token(model: Any) -> int:
    """The number of experts per token in a mixture; 0 if the configuration does not specify it."""
    config: Any = getattr(model, "config", None)
    configs = (config, text_config(config)) if hasattr(config, "get_text_config") else ()
    for part in configs:
        for key in _ACTIVE_KEYS:
            if isinstance(value := getattr(part, key, None), int):
                return value
    return 0


# -- the cache of generation -------------


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
