"""Small versions of transformers' models, and a fixed random input for each. Their sizes are in `tiny_shapes.toml`."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from leanify.core.errors import SourceError
from leanify.sources.overrides import class_name
from leanify.upstream.inputs import example_inputs
from leanify.upstream.libraries import drop_type, first_line, import_transformers

if TYPE_CHECKING:
    from transformers import PretrainedConfig

SIZES = tomllib.loads(Path(__file__).with_name("tiny_shapes.toml").read_text("utf-8"))
EXACT, LIST_ITEMS, WIDTH_KEYS = SIZES["exact"], SIZES["listed"], SIZES["width_keys"]
OVERRIDES = {kind: changes for kinds, changes in SIZES["overrides"].items() for kind in kinds.split()}
WIDTH, HEADS, KV_HEADS, HIDDEN, LAYERS, VOCABULARY = 48, 6, 3, 40, 3, 99
KINDS = ("layer_types", "layers_block_type", "mlp_layer_types")  # lists of what each layer is

Inputs = Callable[[Any], dict[str, Any]]  # of a configuration


def _noise(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


def _ones(*shape: int) -> torch.Tensor:
    return torch.ones(*shape, dtype=torch.long)


def _ids(*shape: int) -> torch.Tensor:
    return torch.randint(5, VOCABULARY - 2, shape)


def _csm(config: Any) -> dict[str, Any]:
    ids = torch.randint(1, 60, (2, 12, config.num_codebooks))
    return {"input_ids": ids, "labels": ids, "attention_mask": None}


def _speech(config: Any) -> dict[str, Any]:
    return {"input_features": _noise(2, 16, config.feature_projection_input_dim)}


def _semantic(config: Any) -> dict[str, Any]:
    return {"input_features": _noise(2, 10, 160)}


INPUTS: dict[str, Inputs] = {  # in addition to, or instead of, the inputs of upstream.inputs
    "csm": _csm,
    "fun_asr_nano_encoder": lambda c: {
        "input_features": _noise(2, 12, c.num_mel_bins * c.num_stacked_frames),
        "input_features_mask": _ones(2, 12),
    },
    "tvp": lambda c: {
        "input_ids": _ids(1, 12),
        "attention_mask": _ones(1, 12),
        "pixel_values": _noise(1, c.num_frames, 3, 64, 64),
    },
    "bridgetower": lambda c: {"pixel_values": _noise(2, 3, 32, 32), "pixel_mask": _ones(2, 32, 32)},
    "mask2former": lambda c: {"pixel_values": _noise(2, 3, 64, 64)},
}
# towers that the model's forward does not run, or hides behind discrete codes: path → their own inputs
TOWERS: dict[str, dict[str, Inputs]] = {
    "csm": {"codec_model": lambda c: {"input_values": _noise(2, 1, 4000)}},
    "phi4_multimodal": {
        "embed_tokens_extend.image_embed.img_processor": lambda c: {
            "pixel_values": _noise(2, 3, 32, 32),
            "patch_attention_mask": _ones(2, 4, 4).bool(),
        },
        "embed_tokens_extend.audio_embed.encoder": lambda c: {
            "hidden_states": _noise(2, 32, c.audio_config.input_size),
            "mask": _ones(2, 32).bool(),
        },
    },
    "neucodec": {"semantic_encoder": _semantic},
    "xcodec2": {"semantic_encoder": _semantic},
    "seamless_m4t": {
        "speech_encoder": _speech,
        "t2u_model": lambda c: {"inputs_embeds": _noise(2, 6, WIDTH), "decoder_input_ids": _ids(2, 6)},
    },
    "seamless_m4t_v2": {
        "speech_encoder": _speech,
        "t2u_model": lambda c: {
            "inputs_embeds": _noise(2, 6, WIDTH),
            "char_input_ids": _ids(2, 12),
            "char_count_per_id": torch.full((2, 6), 2),
        },
    },
}


@functools.cache
def names() -> list[str]:
    """Every transformers model type with a base model and with layers and heads in its configuration."""
    library = import_transformers()
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    kinds = []
    for kind in MODEL_MAPPING_NAMES:
        try:
            config = library.AutoConfig.for_model(kind)
            if config.num_attention_heads is None or config.num_hidden_layers is None:
                continue
        except AttributeError:
            continue
        except Exception:  # what its default lacks is found when it is built
            pass
        kinds.append(kind)
    return kinds


def _widths(config: PretrainedConfig) -> set[int]:
    if not isinstance(config, dict):
        return set()
    widths = {config[key] for key in WIDTH_KEYS if type(config.get(key)) is int}
    return widths.union(*(_widths(value) for value in config.values()))


def tiny(config: PretrainedConfig, widths: set[int], key: str = "") -> Any:
    """A configuration's dictionary with every size reduced, key by key."""
    if isinstance(config, dict):
        return {k: tiny(v, widths, str(k)) for k, v in config.items() if k not in SIZES["dropped"]}
    if isinstance(config, bool) and key != "use_cache":
        return config
    if config is None or isinstance(config, (bool, str, float)):
        return EXACT.get(key, config)
    if isinstance(config, (list, tuple)):
        if key in (*KINDS, "block_types"):
            kinds = list(dict.fromkeys(config))
            return (kinds * LAYERS)[: max(LAYERS, len(kinds))]
        return [LIST_ITEMS.get(key, item) if type(item) is int else tiny(item, widths) for item in config]
    if key in EXACT:
        return EXACT[key]
    if key.endswith(tuple(SIZES["kv_keys"])):
        return KV_HEADS if config > 1 else 1
    if key.endswith(tuple(SIZES["head_keys"])):
        return HEADS
    if key.endswith(tuple(SIZES["layer_keys"])):
        return LAYERS if config > 1 else config
    if key.endswith(tuple(SIZES["hidden_keys"])):
        return HIDDEN
    says_width = any(word in key for word in ("size", "dim", "embd", "d_model", "width"))
    if key in WIDTH_KEYS or (config in widths and config >= 64 and says_width):
        return WIDTH
    if key.endswith("_token_id") and config >= VOCABULARY:
        return VOCABULARY - 1
    return config


def tiny_config(kind: str) -> Any:
    config = import_transformers().AutoConfig.for_model(kind)
    full = config.to_dict()
    small = tiny(full, _widths(full))
    if small.get("kv_lora_rank") is not None:  # latent attention has no key/value groups
        small["num_key_value_heads"] = HEADS
    small = _merge_config(small, OVERRIDES.get(kind, {}))
    lengths = [len(small[key]) for key in KINDS if isinstance(small.get(key), list)]
    if lengths and small.get("num_hidden_layers"):
        small["num_hidden_layers"] = max(lengths)
    if isinstance(getattr(type(config), "layers_block_type", None), property):  # computed from other keys
        small.pop("layer_types", None)
        small.pop("layers_block_type", None)
    return type(config)(**drop_type(small))


def _merge_config(config: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """A configuration with changes, merged recursively into nested configurations."""
    inner = {k: _merge_config(config[k], v) if k.endswith("_config") else v for k, v in changes.items()}
    return {**config, **inner}


def build(kind: str) -> tuple[nn.Module, Any]:
    """Return a tiny base model of a transformers type, and a call on random inputs. Raises SourceError.

    The call gives the model's outputs, and those of towers that its forward does not run.
    """
    library = import_transformers()
    config = tiny_config(kind)
    torch.manual_seed(0)
    has_experts = any("expert" in key for key in config.to_dict())
    experts = {"experts_implementation": "eager"} if has_experts else {}
    try:
        model = getattr(library, class_name("AutoModel", config))._from_config(config, **experts).eval()
    except ImportError as error:
        raise SourceError(f"transformers does not build it here: {first_line(error)}") from error
    for path, buffer in model.named_buffers():
        if path.endswith("embed_sum"):  # an untrained codebook, in which all codes are equal
            buffer.normal_()
    inputs: dict[str, Any] = example_inputs(model, 2, tokens=12)
    if kind in INPUTS:
        inputs |= INPUTS[kind](config)
    inputs = _double(inputs)
    towers = {path: _double(make(config)) for path, make in TOWERS.get(kind, {}).items()}

    def run(model: nn.Module) -> Any:
        result = model(**inputs)
        if not towers:
            return result
        return (result, *(model.get_submodule(path)(**tower_inputs) for path, tower_inputs in towers.items()))

    return model, run


def _double(inputs: dict[str, Any]) -> dict[str, Any]:
    return {k: v.double() if v is not None and v.is_floating_point() else v for k, v in inputs.items()}
