"""Adapters as PEFT writes them: a configuration and weights that are merged into a base model.

PEFT imports modules and opens files that an adapter's configuration names (`megatron_core`, `corda_config`, …), so its
keys pass an allow-list: what adds to the weights, and what says where it is added.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from leanify.errors import SourceError
from leanify.sources.files import read_json
from leanify.sources.tensors import few, read_tensors

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
# written by PEFT without being asked for; of no meaning to weights that are loaded


def read(folder: Path) -> dict[str, Any]:
    """The configuration of an adapter, without the keys that mean nothing to a merge. Raises SourceError."""
    path = folder / CONFIG
    words = read_json(path)
    if not isinstance(words, dict) or not isinstance(words.get("base_model_name_or_path"), str):
        raise SourceError(f"{path} names no base_model_name_or_path")
    if words.get("peft_type") not in KINDS:
        raise SourceError(f"{path} is of the type {words.get('peft_type')!r}; merged can be {', '.join(KINDS)}")
    told = {key: value for key, value in words.items() if value not in (None, False, {}, [])}
    if odd := sorted(told.keys() - KEYS - IDLE):
        raise SourceError(f"{path} asks for {few(odd)}: not among what leanify merges; merge it with PEFT first")
    if isinstance(words.get("init_lora_weights"), str) and words["init_lora_weights"] not in ("gaussian", "true"):
        raise SourceError(f"{path} starts from {words['init_lora_weights']!r} weights: merge it with PEFT first")
    weights = next((folder / name for name in WEIGHTS if (folder / name).exists()), None)
    if weights is None:
        raise SourceError(f"{folder} holds no weights of an adapter: looked for {' and '.join(WEIGHTS)}")
    read_tensors(weights)  # refuses a pickle that names code, in words
    return {key: value for key, value in told.items() if key in KEYS}
