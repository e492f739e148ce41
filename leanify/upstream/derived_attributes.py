"""Update everything that upstream derived from the old shape at construction, after surgery."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from torch import nn

from leanify.core.architecture import Architecture
from leanify.upstream.lean_config import carry
from leanify.upstream.origin import is_hf
from leanify.upstream.spelling import LAYER_LISTS, hf_config_keys, resize_list


def sync_derived_attributes(
    model: Any,
    old: Architecture,
    new: Architecture,
    rates: Mapping[str, list[float]],
    blocks_of: Mapping[str, Sequence[nn.Module]] | None = None,
) -> None:
    """Update in place the attributes that upstream fixed at construction.

    In transformers: the configuration (which from now on stores the shape), cache indices and rotary tables. In timm:
    feature info and the drop-path rates; ``rates`` has the rates of each stage's old blocks, ``blocks_of`` its new
    blocks.
    """
    # the configuration's own keys for the new shape
    before_surgery = model.config.to_dict() if is_hf(model) else {}
    if is_hf(model):
        for key, value in hf_config_keys(model.config, old, new).items():
            with suppress(AttributeError, NotImplementedError):  # a property computed from other keys
                setattr(model.config, key, value)
        _update_rotary_tables(model, old, new)

    # stages of another depth
    for before, after in zip(old.stages, new.stages, strict=True):
        if before.depth != after.depth:
            # layer counts, then each block's number and its drop-path rate between the old ones
            if is_hf(model):
                _update_depth(model, after.name, before.depth, after.depth)
            blocks: list[Any] = list((blocks_of or {}).get(after.name) or model.get_submodule(after.name).children())
            old_rates = rates[after.name]
            places = np.linspace(0, len(old_rates) - 1, len(blocks))
            new_rates = np.interp(places, range(len(old_rates)), old_rates).tolist()
            for index, block in enumerate(blocks):
                for module in block.modules():
                    if hasattr(module, "layer_idx"):
                        module.layer_idx = index
                    if hasattr(module, "drop_prob"):
                        module.drop_prob = new_rates[index]

            # timm's list of features has a row per block; new rows repeat the last one
            info = getattr(model, "feature_info", None)
            if isinstance(info, list) and len(info) == before.depth and all(isinstance(row, dict) for row in info):
                source_rows = [info[min(i, before.depth - 1)] for i in range(after.depth)]
                model.feature_info = [{**row, "module": f"{after.name}.{i}"} for i, row in enumerate(source_rows)]

    # configurations that count their blocks in other ways; then the shape under the key of leanify
    if is_hf(model) and old != new:
        config = model.config
        sizes = getattr(config, "block_sizes", None)
        if isinstance(sizes, list):  # Funnel's blocks
            depths = dict(enumerate(sizes))
            for stage in new.stages:
                number = re.search(r"blocks\.(\d+)$", stage.name)
                if number:
                    depths[int(number[1])] = stage.depth
            config.block_sizes = [depths[index] for index in range(len(sizes))]
        if hasattr(config, "num_layers_per_stack"):  # HRM's equal stacks
            config.num_layers_per_stack = max(stage.depth for stage in new.stages)
            config.num_hidden_layers = config.num_layers_per_stack * config.H_cycles * (config.L_cycles + 1)
        carry(config, before_surgery, new)


def leave_fast_path(model: nn.Module, attention: str) -> None:
    """Make torch's encoder layers around this attention take their plain forward.

    In eval mode without gradients they call a fused kernel instead of the attention's forward, and the kernel
    knows one shape only: inner == width.
    """
    parts = attention.split(".")
    for end in range(len(parts)):
        module: Any = model.get_submodule(".".join(parts[:end]))
        if isinstance(module, nn.TransformerEncoderLayer):
            module.activation_relu_or_gelu = 0
        elif isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = module.enable_nested_tensor = False


def _update_depth(model: Any, name: str, old: int, new: int) -> None:
    """Update the layer counts that a list's parent and its configuration loop over."""
    parent = model.get_submodule(name.rpartition(".")[0])
    for holder in (parent, getattr(parent, "config", None)):
        if holder is None or getattr(holder, "is_encoder_decoder", False):
            continue

        # keys with the old depth; the layers at the end share keys and values, and lists repeat their last value
        shared_layers = getattr(holder, "num_kv_shared_layers", None)
        keys = [key for key in ("num_hidden_layers", "num_layers") if getattr(holder, key, None) in (old, new)]
        counts: dict[str, Any] = dict.fromkeys(keys, new)
        if counts and isinstance(shared_layers, int):
            counts["num_kv_shared_layers"] = max(0, shared_layers + new - old)
        for key in LAYER_LISTS if counts else ():
            values = getattr(holder, key, None)
            if isinstance(values, list) and len(values) == old:
                counts[key] = resize_list(values, new)
        for key, value in counts.items():
            with suppress(AttributeError, NotImplementedError):
                setattr(holder, key, value)


def has_rotary_factors(model: Any) -> bool:
    """Whether a configuration lists a factor for each pair of rotated channels, made for one head_dim (LongRoPE)."""
    config = getattr(model, "config", None) if is_hf(model) else None
    parameters = [getattr(config, key, None) for key in ("rope_parameters", "rope_scaling")]
    parts = [part for part in parameters if isinstance(part, Mapping)]
    parts += [inner for part in parts for inner in part.values() if isinstance(inner, Mapping)]
    return any(isinstance(part.get(key), list) for part in parts for key in ("short_factor", "long_factor"))


def _update_rotary_tables(model: Any, old: Architecture, new: Architecture) -> None:
    """Rebuild the rotary tables for another head_dim."""
    # the tables' configuration: where upstream derives head_dim as hidden_size / heads (Falcon), a copy with the number
    # of heads that gives the right size
    sizes = {layer.head_dim for layer in new.layers()}
    is_derived = isinstance(getattr(type(model.config), "head_dim", None), property)
    config = model.config
    if is_derived and len(sizes) == 1 and sizes != {config.head_dim}:
        config = copy.deepcopy(config)
        config.num_attention_heads = config.hidden_size // min(sizes)
    is_resized = {layer.head_dim for layer in old.layers()} != sizes
    if not is_resized and config is model.config:
        return

    # each table of the model
    for path, parent in list(model.named_modules()):
        for name, table in list(parent.named_children()):
            if "RotaryEmbedding" not in type(table).__name__ or not hasattr(table, "config"):
                continue
            if not is_resized:
                table.config = config  # loading computes the tables again
                continue

            # a tower's table has the tower's configuration, and its heads' size if they have one
            inner_config = config
            if type(table.config) is not type(model.config):
                stages = [stage for stage in new.stages if stage.name.startswith(f"{path}.".lstrip("."))]
                head_dims = {layer.head_dim for layer in Architecture("", tuple(stages)).layers()}
                inner_config = copy.deepcopy(table.config)
                with suppress(Exception):  # a property computed from other keys, or each layer's own (Gemma 4)
                    if len(head_dims) == 1 and hasattr(inner_config, "head_dim"):
                        inner_config.head_dim = head_dims.pop()
            device = next(table.buffers()).device
            setattr(parent, name, type(table)(config=inner_config).to(device))


def drop_path_rates(blocks: Sequence[Any]) -> list[float]:
    """The stochastic-depth rate of each block, 0 if it has none."""
    rates = []
    for block in blocks:
        dropping = (module for module in block.modules() if hasattr(module, "drop_prob"))
        rates.append(next((float(module.drop_prob) for module in dropping), 0.0))
    return rates


def keep_runtime_settings(new: nn.Module, old: nn.Module) -> None:
    """Set in ``new`` what transformers does not save with a configuration: which kernels run, how text is generated."""
    new_modules = dict(new.named_modules())
    for path, module in old.named_modules():
        config, new_config = getattr(module, "config", None), getattr(new_modules.get(path), "config", None)
        for name in ("_attn_implementation_internal", "_experts_implementation_internal"):
            if new_config is not None and hasattr(config, name):
                setattr(new_config, name, getattr(config, name))
    if hasattr(new, "generation_config"):
        new.generation_config = copy.deepcopy(old.generation_config)
