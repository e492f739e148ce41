"""After surgery, update what upstream derived from the old shape at construction."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from torch import nn

from leanify.architecture import Architecture, Stage
from leanify.upstream.lean_config import carry
from leanify.upstream.origin import is_hf
from leanify.upstream.spelling import _hf_words

if TYPE_CHECKING:
    from transformers import PretrainedConfig


def settle(
    model: Any,
    old: Architecture,
    new: Architecture,
    rates: Mapping[str, list[float]],
    blocks_of: Mapping[str, Sequence[nn.Module]] | None = None,
) -> None:
    """Update in place what upstream fixed at construction.

    In transformers: the configuration (which from now on stores the shape), cache indices and rotary tables. In timm:
    feature info and the drop-path rates; ``rates`` are those of each stage's old blocks, ``blocks_of`` its new ones.
    """
    before_surgery = model.config.to_dict() if is_hf(model) else {}
    if is_hf(model):
        for key, value in _hf_words(model.config, old, new).items():
            with suppress(AttributeError, NotImplementedError):  # a property computed from other keys
                setattr(model.config, key, value)
        sizes = {layer.head_dim for layer in new.layers()}
        config = _rotary_config(model.config, sizes)
        if {layer.head_dim for layer in old.layers()} != sizes:
            _rebuild_rotary_tables(model, config, new)
        elif config is not model.config:
            for _, _, table in _rotary_tables(model):
                table.config = config  # loading computes the tables again
    for before, after in zip(old.stages, new.stages, strict=True):
        if before.depth != after.depth:
            if is_hf(model):
                _update_depth(model, after.name, before.depth, after.depth)
            blocks: list[Any] = list((blocks_of or {}).get(after.name) or model.get_submodule(after.name).children())
            for index, block in enumerate(blocks):
                for module in block.modules():
                    if hasattr(module, "layer_idx"):
                        module.layer_idx = index
            _spread_drop_path(blocks, rates[after.name])
            _trim_feature_info(model, before, after)
    if is_hf(model) and old != new:
        _update_lists(model.config, new)
        carry(model.config, before_surgery, new)


def leave_fast_path(model: nn.Module, attention: str) -> None:
    """Make torch's encoder layers around this attention take their plain forward.

    In eval mode without gradients they call a fused kernel instead of the attention's forward, and the kernel knows
    one shape only: inner == width.
    """
    parts = attention.split(".")
    for end in range(len(parts)):
        module: Any = model.get_submodule(".".join(parts[:end]))
        if isinstance(module, nn.TransformerEncoderLayer):
            module.activation_relu_or_gelu = 0
        elif isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = module.enable_nested_tensor = False


def _update_depth(model: Any, name: str, old: int, new: int) -> None:
    """Update the layer counts that the parent module and its configuration loop over."""
    around = model.get_submodule(name.rpartition(".")[0])
    for holder in (around, getattr(around, "config", None)) if is_hf(model) else ():
        if holder is None or getattr(holder, "is_encoder_decoder", False):
            continue
        shared = getattr(holder, "num_kv_shared_layers", None)
        kinds = getattr(holder, "layer_types", None)
        counts: dict[str, Any] = {
            key: new for key in ("num_hidden_layers", "num_layers") if getattr(holder, key, None) in (old, new)
        }
        if counts and isinstance(shared, int):
            counts["num_kv_shared_layers"] = max(0, shared + new - old)
        if counts and isinstance(kinds, list) and len(kinds) == old:
            counts["layer_types"] = kinds[:new] + kinds[-1:] * (new - old)
        for key, value in counts.items():
            with suppress(AttributeError, NotImplementedError):
                setattr(holder, key, value)


def _update_lists(config: PretrainedConfig, new: Architecture) -> None:
    """Update configuration keys that describe several lists at once: Funnel's blocks, HRM's equal stacks."""
    if isinstance(sizes := getattr(config, "block_sizes", None), list):
        depths = {}
        for stage in new.stages:
            place = re.search(r"blocks\.(\d+)$", stage.name)
            if place:
                depths[int(place[1])] = stage.depth
        config.block_sizes = [depths.get(index, size) for index, size in enumerate(sizes)]
    if hasattr(config, "num_layers_per_stack"):
        config.num_layers_per_stack = max(stage.depth for stage in new.stages)
        config.num_hidden_layers = config.num_layers_per_stack * config.H_cycles * (config.L_cycles + 1)


def _rotary_config(config: PretrainedConfig, sizes: set[int]) -> Any:
    """The configuration to compute rotary tables from.

    Where upstream derives head_dim as hidden_size / heads (Falcon), more heads would shrink it: then it is a copy with
    as many heads as give the size that the heads have.
    """
    derived = isinstance(getattr(type(config), "head_dim", None), property)
    if not derived or sizes in ({config.head_dim}, set()) or len(sizes) > 1:
        return config
    own: Any = copy.deepcopy(config)
    own.num_attention_heads = own.hidden_size // min(sizes)
    return own


def _rotary_tables(model: Any) -> list[tuple[Any, str, Any]]:
    """Every module of rotary tables that keeps a configuration, with its parent and its name there."""
    return [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if "RotaryEmbedding" in type(child).__name__ and hasattr(child, "config")
    ]


def _rebuild_rotary_tables(model: Any, config: PretrainedConfig, new: Architecture) -> None:
    paths = {id(module): path for path, module in model.named_modules()}
    for parent, name, child in _rotary_tables(model):
        device = next(child.buffers()).device
        own = config
        if type(child.config) is not type(model.config):  # that of an encoder, a decoder, the text beside images
            stages = [stage for stage in new.stages if stage.name.startswith(f"{paths[id(parent)]}.".lstrip("."))]
            sizes = {layer.head_dim for stage in stages for block in stage.blocks for layer in block}
            own = copy.deepcopy(child.config)
            if len(sizes) == 1 and hasattr(own, "head_dim"):
                with suppress(AttributeError, NotImplementedError):  # a property computed from other keys
                    own.head_dim = sizes.pop()
        setattr(parent, name, type(child)(config=own).to(device))


def drop_path_rates(blocks: Sequence[Any]) -> list[float]:
    """The stochastic-depth rate of each block, 0 if it has none."""
    rates = []
    for block in blocks:
        dropping = (module for module in block.modules() if hasattr(module, "drop_prob"))
        rates.append(next((float(module.drop_prob) for module in dropping), 0.0))
    return rates


def _spread_drop_path(blocks: Sequence[Any], rates: list[float]) -> None:
    """Interpolate the stochastic-depth rates, which rise from the first block to the last, to the new depth."""
    for index, block in enumerate(blocks):
        place = index * (len(rates) - 1) / max(len(blocks) - 1, 1)
        low = int(place)
        high = min(low + 1, len(rates) - 1)
        rate = rates[low] + (rates[high] - rates[low]) * (place - low)
        for module in block.modules():
            if hasattr(module, "drop_prob"):
                module.drop_prob = rate


def _trim_feature_info(model: Any, old: Stage, new: Stage) -> None:
    info = getattr(model, "feature_info", None)
    if isinstance(info, list) and len(info) == old.depth and all(isinstance(entry, dict) for entry in info):
        model.feature_info = [{**info[min(i, old.depth - 1)], "module": f"{new.name}.{i}"} for i in range(new.depth)]
