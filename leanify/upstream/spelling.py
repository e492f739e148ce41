"""Express a shape as upstream's constructor arguments or configuration keys."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from leanify.architecture import Architecture, Stage, primary_of
from leanify.upstream import diffusion
from leanify.upstream.origin import Origin
from leanify.upstream.timm_head_dims import HEAD_DIM_LAYER

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_ACTIVE_KEYS = ("num_experts_per_tok", "moe_topk", "moe_k", "moe_top_k", "top_k_experts")
_EXPERT_KEYS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_MLP_KEYS = ("intermediate_size", "n_inner", "ffn_dim", "d_ff")


def respell(origin: Origin, old: Architecture, new: Architecture) -> list[Origin]:
    """Origins that might build ``new`` from upstream's options alone, best first; the caller builds to verify."""
    if origin.library == "hf":
        config = copy.deepcopy(origin.options)
        for key, value in hf_words(config, old, new).items():
            config[key] = value
        return [Origin("hf", origin.name, config, origin.cls)]
    words_of = {"timm": _timm_words, "diffusers": diffusion.words_of}.get(origin.library, _leanify_words)
    return [Origin(origin.library, origin.name, {**origin.options, **keys}) for keys in words_of(old, new)]


def _timm_words(old: Architecture, new: Architecture) -> Iterator[dict[str, Any]]:
    keys: dict[str, Any] = {}
    before, after = _one_of(old), _one_of(new)
    if before is None or after is None:
        return
    if before.depth != after.depth:
        keys["depth"] = after.depth
    layer_before, layer = before.primary, after.primary
    assert layer_before is not None
    assert layer is not None
    if layer_before.heads != layer.heads:
        keys["num_heads"] = layer.heads
    if layer.inner != layer.width:
        keys["attn_layer"] = HEAD_DIM_LAYER.format(layer.head_dim)
    if layer_before.mlp == layer.mlp:
        yield keys
        return
    for hidden in (layer.mlp, 2 * layer.mlp):  # a packed gate counts both halves
        exact = hidden / layer.width
        yield {**keys, "mlp_ratio": exact if int(layer.width * exact) == hidden else (hidden + 0.5) / layer.width}


def _leanify_words(old: Architecture, new: Architecture) -> Iterator[dict[str, Any]]:
    stage = _one_of(new)
    if stage is not None and stage.primary is not None:
        layer = stage.primary
        yield {"depth": stage.depth, "heads": layer.heads, "head_dim": layer.head_dim, "mlp": layer.mlp}


def _one_of(architecture: Architecture) -> Stage | None:
    """The first varied stage, if upstream has one option for all of them."""
    stages = [architecture.stages[i] for i in architecture.varied]
    return stages[0] if stages and all(len(set(stage.blocks)) == 1 for stage in stages) else None


def hf_words(config: PretrainedConfig, old: Architecture, new: Architecture) -> dict[str, Any]:
    """The configuration keys that a new shape changes, with their new values.

    A key applies to all stages that had its old value, and is changed if they change alike. Only stages whose
    blocks all have the same attention are considered.
    """
    pairs = [pair for pair in zip(old.stages, new.stages, strict=True) if pair[0].primary]
    for stage in (stage for pair in pairs for stage in pair):
        attentions = {tuple(replace(x, mlp=0, experts=0, active=0) for x in block) for block in stage.blocks}
        if len(attentions) != 1:  # MLPs may differ: a mixture's first layers are often dense
            return {}
    if not pairs:
        return {}
    is_dict = isinstance(config, dict)
    keys = set(config) if is_dict else set(dir(config))

    def get(key: str) -> Any:
        return config.get(key) if is_dict else getattr(config, key, None)

    changed: dict[str, Any] = {}

    def express(
        names: tuple[str, ...], measure: Callable[[Stage], int | None], pairs: list[tuple[Stage, Stage]] = pairs
    ) -> None:
        key = next((name for name in names if name in keys), None)
        current = get(key) if key else 0
        news = {measure(after) for before, after in pairs if current is None or measure(before) == current} - {None}
        if key and len(news) == 1 and news != {current} and any(measure(a) != measure(b) for a, b in pairs):
            changed[key] = news.pop()

    express(("num_hidden_layers", "n_layer", "num_layers"), lambda stage: stage.depth)
    express(("num_attention_heads", "n_head", "num_heads"), lambda stage: primary_of(stage).heads)
    express(("num_key_value_heads",), lambda stage: primary_of(stage).kv_heads)
    express(_MLP_KEYS, _units)
    express(("moe_intermediate_size",), lambda stage: _units(stage, experts=True))
    express(_EXPERT_KEYS, lambda stage: _of_mixtures(stage)[0])
    express(_ACTIVE_KEYS, lambda stage: _of_mixtures(stage)[1])
    for side in ("encoder", "decoder"):
        own = [pair for pair in pairs if side in pair[0].name.split(".")]
        express((f"{side}_layers", f"num_{side}_layers"), lambda stage: stage.depth, own)
        express((f"{side}_ffn_dim",), _units, own)
    before, after = pairs[0]
    layer_before, layer = primary_of(before), primary_of(after)
    differs = layer.inner != layer.width or layer.head_dim != layer_before.head_dim
    if differs and get("head_dim") in (None, layer_before.head_dim):  # DeepSeek's is that of its rotary part
        changed["head_dim"] = layer.head_dim
    kinds = get("layer_types")
    if before.depth != after.depth and isinstance(kinds, list) and len(pairs) == 1:
        changed["layer_types"] = kinds[: after.depth] + kinds[-1:] * (after.depth - before.depth)
    return changed


def _units(stage: Stage, experts: bool = False) -> int | None:
    """The hidden units of all dense MLPs, or of all routed experts, if they are equal; else None."""
    dense = {layer.mlp for layer in stage.primaries if layer.mlp and not layer.experts}
    mixtures = {layer.mlp for layer in stage.primaries if layer.mlp and layer.experts}
    units = mixtures if experts or not dense else dense
    return units.pop() if len(units) == 1 else None


def _of_mixtures(stage: Stage) -> tuple[int | None, int | None]:
    """The routed experts of all mixtures, and how many are active, if they are one number each."""
    pairs = {(layer.experts, layer.active) for layer in stage.primaries if layer.experts}
    return pairs.pop() if len(pairs) == 1 else (None, None)


def experts_per_token(model: Any) -> int:
    """The number of experts per token in a mixture; 0 if the configuration does not specify it."""
    config: Any = getattr(model, "config", None)
    configs = (config, config.get_text_config()) if hasattr(config, "get_text_config") else ()
    found = (getattr(one, key, None) for one in configs for key in _ACTIVE_KEYS)
    return next((value for value in found if isinstance(value, int)), 0)
