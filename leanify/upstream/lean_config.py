"""Store a shape that a transformers configuration's own keys cannot express, under the key ``leanify``.

In memory, ``config.leanify`` is a dictionary with
    architecture   the lean shape, as JSON
    old, new       the other keys that surgery changed: their old values, and the names of added keys. The live values
                   describe the lean model, whose forward and cache read them. The old values are for upstream's
                   constructor, after which surgery makes the lean shape.

In a file, the other keys have the values for upstream's constructor, but the model type is ``leanify_bert``
and the architecture ``leanify_BertModel``; the real ones are shape under ``leanify``. Without leanify,
transformers and other tools do not know such a type and refuse it. A class called by name
(``BertModel.from_pretrained``) ignores the type and might build a wrong shape that happens to fit. To prevent
that, ``dtype`` holds a message: every configuration looks its dtype up in torch, which then fails.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from leanify.core.architecture import Architecture

if TYPE_CHECKING:
    from transformers import PretrainedConfig

KEY = "leanify"
PREFIX = "leanify_"
NOTICE = "import leanify, then load"
CODE_KEYS = ("auto_map", "lean")  # for transformers without leanify: the modelling file, and its arguments


def stored_shape(config: PretrainedConfig) -> Architecture | None:
    """The lean shape in a configuration, or None."""
    shape = getattr(config, KEY, None)
    return Architecture.from_json(shape["architecture"]) if isinstance(shape, dict) else None


def carry(config: PretrainedConfig, before: dict[str, Any], architecture: Architecture) -> None:
    """Store a model's lean shape in its configuration, in place; ``before`` is the configuration before surgery."""
    shape = getattr(config, KEY, None) or {}
    known_old, known_new = shape.get("old", {}), shape.get("new", [])

    # the changes of this surgery, added to earlier changes
    now = config.to_dict()
    new_keys = [key for key in now if key not in before and key not in known_old and key != KEY]
    old_values = _merge_differences(_config_differences(before, now), known_old)
    new_shape = {"architecture": architecture.to_json(), "old": old_values, "new": sorted({*known_new, *new_keys})}
    setattr(config, KEY, new_shape)


def _config_differences(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """The old values of changed keys, recursively for nested configurations."""
    differences = {}
    for key, old in before.items():
        new = now.get(key)
        if isinstance(old, dict) and isinstance(new, dict) and "model_type" in old:
            inner = _config_differences(old, new)
            if inner:
                differences[key] = inner
        elif old != new and key != KEY:
            differences[key] = old
    return differences


def _merge_differences(later: dict[str, Any], first: dict[str, Any]) -> dict[str, Any]:
    """Merge old values of two successive changes; the first change takes precedence."""
    both = {**later, **first}
    for key in later.keys() & first.keys():
        if isinstance(later[key], dict) and isinstance(first[key], dict):
            both[key] = _merge_differences(later[key], first[key])
    return both


def buildable(config: PretrainedConfig) -> Any:
    """A copy with the values for upstream's constructor, still with the lean shape if there is one."""
    plain = copy.deepcopy(config)
    shape = getattr(plain, KEY, None)
    if isinstance(shape, dict):
        for key in shape.get("new", ()):
            vars(plain).pop(key, None)
        _put_back(plain, shape.get("old", {}))
        setattr(plain, KEY, {"architecture": shape["architecture"]})
    return plain


def _put_back(config: PretrainedConfig, old: dict[str, Any]) -> None:
    for key, value in old.items():
        inner = getattr(config, key, None)
        if isinstance(value, dict) and hasattr(inner, "model_type"):
            _put_back(inner, value)
        else:
            setattr(config, key, copy.deepcopy(value))


def drop(config: PretrainedConfig) -> None:
    """Remove the shape in place, because upstream's own keys express it."""
    vars(config).pop(KEY, None)


def to_file(keys: dict[str, Any]) -> dict[str, Any]:
    """Convert a buildable configuration's dictionary to the file's form, which only leanify can read."""
    hidden = {
        "model_type": PREFIX + keys["model_type"],
        "architectures": [PREFIX + name for name in keys.get("architectures") or []],
        "dtype": NOTICE,
        "torch_dtype": NOTICE,  # before transformers 5
    }
    return {**keys, **hidden, KEY: {**keys[KEY], "hidden": {key: keys.get(key) for key in hidden}}}


def from_file(keys: dict[str, Any]) -> dict[str, Any]:
    """The inverse of `to_file`; other dictionaries are returned unchanged."""
    shape = keys.get(KEY)
    if not str(keys.get("model_type", "")).startswith(PREFIX) or not isinstance(shape, dict):
        return keys
    hidden = shape.get("hidden") or {}
    visible_keys = {key: value for key, value in keys.items() if key not in hidden and key not in CODE_KEYS}
    hidden_keys = {key: value for key, value in hidden.items() if value is not None}
    return {**visible_keys, **hidden_keys, KEY: {"architecture": shape.get("architecture")}}
