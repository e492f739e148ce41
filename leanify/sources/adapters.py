"""PEFT adapters (LoRA, LoHa, LoKr, IA³): a configuration, and weights to merge into a base model.

PEFT imports modules and opens files named in an adapter's configuration (`megatron_core`, `corda_config`, …).
So only allow-listed keys reach it: those that define the update to the weights and the layers it applies to.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import nn

from leanify.errors import SourceError
from leanify.runs.files import read_json
from leanify.sources.tensors import few, read_tensors
from leanify.upstream.wall import wall

CONFIG = "adapter_config.json"
WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")  # in the order in which PEFT looks for them
KINDS = ("LORA", "LOHA", "LOKR", "IA3")
KEYS = frozenset({
    "peft_type", "task_type", "base_model_name_or_path", "target_modules", "exclude_modules", "modules_to_save",
    "layers_to_transform", "layers_pattern", "rank_pattern", "alpha_pattern", "target_parameters",
    "feedforward_modules", "fan_in_fan_out", "bias", "init_weights",
    "r", "lora_alpha", "lora_dropout", "lora_bias", "use_rslora", "use_dora",
    "alpha", "rank_dropout", "rank_dropout_scale", "module_dropout", "use_effective_conv2d", "decompose_both",
    "decompose_factor",
})  # fmt: skip
IDLE = frozenset({"peft_version", "auto_mapping", "revision", "inference_mode", "megatron_core", "init_lora_weights",
    "init_ia3_weights", "qalora_group_size",
})  # fmt: skip
# PEFT writes these by default; they do not affect how saved weights are merged


def read(folder: Path) -> dict[str, Any]:
    """Return an adapter's configuration, reduced to the keys that a merge needs.

    Raises SourceError for a kind or a key that leanify does not merge, and for missing or unsafe weights.
    """
    path = folder / CONFIG
    config = read_json(path)
    if not isinstance(config, dict) or not isinstance(config.get("base_model_name_or_path"), str):
        raise SourceError(f"{path} has no base_model_name_or_path, so its base model is unknown")
    base = config["base_model_name_or_path"]
    is_adapter = False
    with suppress(OSError, RuntimeError, ValueError):  # no name of a file
        is_adapter = (Path(base).expanduser() / CONFIG).exists()
    if is_adapter:  # transformers would hand its keys to PEFT, all of them
        raise SourceError(f"{path}: its base model {base} is itself an adapter; merge that one first")
    if config.get("peft_type") not in KINDS:
        raise SourceError(f"{path} has peft_type {config.get('peft_type')!r}; leanify merges {', '.join(KINDS)}")
    given = {key: value for key, value in config.items() if value not in (None, False, {}, [])}
    odd = sorted(given.keys() - KEYS - IDLE)
    if odd:
        raise SourceError(f"{path} sets {few(odd)}, which leanify does not merge; merge the adapter with PEFT first")
    if isinstance(config.get("init_lora_weights"), str) and config["init_lora_weights"] not in ("gaussian", "true"):
        raise SourceError(
            f"{path} sets init_lora_weights to {config['init_lora_weights']!r}, which leanify does not merge; "
            "merge the adapter with PEFT first"
        )
    weights = next((folder / name for name in WEIGHTS if (folder / name).exists()), None)
    if weights is None:
        raise SourceError(f"{folder} has no adapter weights: looked for {' and '.join(WEIGHTS)}")
    read_tensors(weights)  # refuses a pickle that would run code, with leanify's own message
    return {key: value for key, value in given.items() if key in KEYS}


def merged(model: nn.Module, folder: Path, keys: dict[str, Any]) -> nn.Module:
    """Return the base model with an adapter merged into it; ``keys`` is what `read` returned.

    Raises SourceError unless the adapter's tensors and the layers that it adapts correspond one to one. PEFT
    itself ignores tensors that it finds no layer for, and leaves layers without tensors as they are.
    """
    base = keys["base_model_name_or_path"]
    with wall(f"the adapter {folder} could not be merged into {base}"):
        from peft import PeftConfig, get_peft_model

        own = {key: value for key, value in keys.items() if key != "base_model_name_or_path"}
        adapted: Any = get_peft_model(model, PeftConfig.from_peft_type(**own, inference_mode=True))
        loaded = adapted.load_adapter(folder, "default")
        for names, words in (
            (loaded.missing_keys, "adapted tensors of the base model are not in it"),
            (loaded.unexpected_keys, "of its tensors belong to no layer of the base model"),
        ):
            if names:
                raise SourceError(f"the adapter {folder} does not fit {base}: {len(names)} {words} ({few(names)})")
        result: nn.Module = adapted.merge_and_unload()
    return result
