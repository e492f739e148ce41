"""Small versions of transformers' models, and a fixed random input for each."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from leanify.errors import SourceError
from leanify.sources.overrides import class_name
from leanify.upstream.inputs import example_inputs
from leanify.upstream.libraries import first_line, import_transformers
from leanify.zoo.tiny_inputs import INPUTS, TOWERS
from leanify.zoo.tiny_shapes import (
    DROPPED,
    EXACT,
    HEAD_KEYS,
    HEADS,
    HIDDEN,
    HIDDEN_KEYS,
    KV_HEADS,
    KV_KEYS,
    LAYER_KEYS,
    LAYERS,
    LISTED,
    OVERRIDES,
    VOCABULARY,
    WIDTH,
    WIDTH_KEYS,
)

if TYPE_CHECKING:
    from transformers import PretrainedConfig


@functools.cache
def names() -> list[str]:
    """Every transformers model type with a base model and with layers and heads in its configuration."""
    library = import_transformers()
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    return [kind for kind in MODEL_MAPPING_NAMES if _counts(library, kind)]


def _counts(library: Any, kind: str) -> bool:
    try:
        config = library.AutoConfig.for_model(kind)
        return config.num_attention_heads is not None and config.num_hidden_layers is not None
    except AttributeError:
        return False
    except Exception:
        return True


def _widths(config: PretrainedConfig) -> set[int]:
    if isinstance(config, dict):
        own = {config[key] for key in WIDTH_KEYS if type(config.get(key)) is int}
        return own.union(*(_widths(value) for value in config.values()))
    return set()


def tiny(config: PretrainedConfig, widths: set[int], key: str = "") -> Any:
    """A configuration's dictionary with every size reduced, key by key."""
    if isinstance(config, dict):
        return {k: tiny(v, widths, str(k)) for k, v in config.items() if k not in DROPPED}
    if isinstance(config, bool) or config is None or isinstance(config, (str, float)):
        return EXACT.get(key, config) if not isinstance(config, bool) or key == "use_cache" else config
    if isinstance(config, (list, tuple)):
        if key in ("layer_types", "layers_block_type", "block_types", "mlp_layer_types"):
            kinds = list(dict.fromkeys(config))
            return (kinds * LAYERS)[: max(LAYERS, len(kinds))]
        return [LISTED.get(key, item) if type(item) is int else tiny(item, widths) for item in config]
    if key in EXACT:
        return EXACT[key]
    if any(key.endswith(name) for name in KV_KEYS):
        return KV_HEADS if config > 1 else 1
    if any(key.endswith(name) for name in HEAD_KEYS):
        return HEADS
    if any(key.endswith(name) for name in LAYER_KEYS):
        return LAYERS if config > 1 else config
    if any(key.endswith(name) for name in HIDDEN_KEYS):
        return HIDDEN
    if key in WIDTH_KEYS or (
        config in widths and config >= 64 and any(w in key for w in ("size", "dim", "embd", "d_model", "width"))
    ):
        return WIDTH
    if key.endswith("_token_id") and config >= VOCABULARY:
        return VOCABULARY - 1
    return config


def tiny_config(kind: str) -> Any:
    library = import_transformers()
    config = library.AutoConfig.for_model(kind)
    full = config.to_dict()
    small = tiny(full, _widths(full))
    if small.get("kv_lora_rank") is not None:  # latent attention has no key/value groups
        small["num_key_value_heads"] = HEADS
    small = _merged(small, OVERRIDES.get(kind, {}))
    layers = small.get("num_hidden_layers")
    kinds = [
        len(small[k]) for k in ("layer_types", "layers_block_type", "mlp_layer_types") if isinstance(small.get(k), list)
    ]
    if kinds and layers:
        small["num_hidden_layers"] = max(kinds)
    if isinstance(getattr(type(config), "layers_block_type", None), property):  # a property computed from other keys
        small.pop("layer_types", None)
        small.pop("layers_block_type", None)
    return type(config)(**{k: v for k, v in small.items() if k not in ("model_type", "transformers_version")})


def _merged(config: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """A configuration with changes, merged recursively into nested configurations."""
    inner = {k: _merged(config[k], v) if k.endswith("_config") else v for k, v in changes.items()}
    return {**config, **inner}


def build(kind: str) -> tuple[nn.Module, Any]:
    """Return a tiny base model of a transformers type, and a call on random inputs. Raises SourceError."""
    library = import_transformers()
    config = tiny_config(kind)
    torch.manual_seed(0)
    experts = {"experts_implementation": "eager"} if _has_experts(config) else {}
    try:
        model = getattr(library, class_name("AutoModel", config))._from_config(config, **experts).eval()
    except ImportError as error:
        raise SourceError(f"transformers does not build it here: {first_line(error)}") from error
    for path, buffer in model.named_buffers():
        if path.endswith("embed_sum"):  # an untrained codebook, in which all codes are equal
            buffer.normal_()
    inputs: dict[str, Any] = {**example_inputs(model, 2, tokens=12), **INPUTS.get(kind, lambda config: {})(config)}
    towers = {path: make(config) for path, make in TOWERS.get(kind, {}).items()}
    return model, functools.partial(_run, inputs=_double(inputs), towers={k: _double(v) for k, v in towers.items()})


def _double(inputs: dict[str, Any]) -> dict[str, Any]:
    return {k: v.double() if v is not None and v.is_floating_point() else v for k, v in inputs.items()}


def _run(model: nn.Module, inputs: dict[str, Any], towers: dict[str, dict[str, Any]]) -> Any:
    """The model's outputs, and those of towers that its forward does not run."""
    result = model(**inputs)
    return (result, *(model.get_submodule(path)(**given) for path, given in towers.items())) if towers else result


def _has_experts(config: PretrainedConfig) -> bool:
    return any("expert" in key for key in config.to_dict())
