"""The facts about pictures in a timm folder: size, mean, standard deviation, crop, interpolation, classes.

timm keeps this in ``pretrained_cfg`` of config.json. It is part of the model: with the defaults of its architecture, a
fine-tuned ViT of 73.1% was measured at 67.5%. Only keys of this kind are passed on to timm, and only values of their
type, because others name files and addresses that timm would open.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leanify.core.errors import SourceError

MAX_SIDE = 16_384  # pixels
SIZES = ("input_size", "test_input_size", "min_input_size")
CHOICES = {
    "interpolation": ("nearest", "bilinear", "bicubic", "box", "hamming", "lanczos"),
    "crop_mode": ("center", "squash", "border"),
}
KEYS = (
    *SIZES, *CHOICES, "crop_pct", "test_crop_pct", "mean", "std", "num_classes", "fixed_input_size", "first_conv",
    "classifier", "pool_size", "test_pool_size", "label_names", "label_descriptions", "label_offset", "license",
    "description", "origin_url", "paper_name", "paper_ids", "notes", "tag",
)  # fmt: skip


def read_pretrained_cfg(config: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of a folder's config.json, as timm reads them; sources of weights are left out.

    Older files have one level, with facts and architecture together. Raises SourceError for a damaged value.
    """
    # the known keys; classes at the top level take precedence
    pretrained_cfg = config.get("pretrained_cfg", config)
    if not isinstance(pretrained_cfg, Mapping):
        raise SourceError("pretrained_cfg must be an object")
    facts = {key: pretrained_cfg[key] for key in KEYS if pretrained_cfg.get(key) is not None}
    for key in ("num_classes", "label_names", "label_descriptions"):
        if config.get(key) is not None:
            facts[key] = config[key]
    if "labels" in pretrained_cfg and "label_names" not in facts:
        facts["label_names"] = pretrained_cfg["labels"]

    # sizes follow the arguments that the model was built with, as in timm
    arguments = config.get("model_args") or {}
    channels, side = arguments.get("in_chans"), arguments.get("img_size")
    for key in SIZES:
        is_shape = isinstance(facts.get(key), list | tuple) and len(facts[key]) == 3
        if is_shape and isinstance(channels, int):
            facts[key] = [channels, *facts[key][1:]]
    if side is not None and facts.get("fixed_input_size") is True and "input_size" in facts:
        sides = [side, side] if isinstance(side, int) else side
        facts["input_size"] = [facts["input_size"][0], *sides]
    return check_pretrained_cfg(facts)


def check_pretrained_cfg(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts whose keys are known. Raises SourceError for a value of another type."""
    known_facts = {key: value for key, value in facts.items() if key in KEYS}
    for key, value in known_facts.items():
        if not _is_sound(key, value):
            raise SourceError(f"pretrained_cfg has {key}={value!r:.60}, which timm does not take")
    return known_facts


def _is_sound(key: str, value: Any) -> bool:
    numbers = value if isinstance(value, list | tuple) else []
    if key in SIZES:
        return len(numbers) == 3 and all(type(side) is int and 0 < side <= MAX_SIDE for side in numbers)
    if key in ("mean", "std"):
        return len(numbers) > 0 and all(isinstance(number, int | float) for number in numbers)
    if key in ("crop_pct", "test_crop_pct"):
        return isinstance(value, int | float) and 0 < value <= 4
    if key in CHOICES:
        return value in CHOICES[key]
    if key == "num_classes":
        return type(value) is int and value >= 0
    if key == "fixed_input_size":
        return isinstance(value, bool)
    return isinstance(value, str | int | list | tuple | dict)
