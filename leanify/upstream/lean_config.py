"""How a transformers configuration carries a shape that its own keys cannot express: under one key, ``leanify``.

In memory, ``config.leanify`` is a dictionary of
    architecture   the lean shape, as JSON
    old, new       what surgery changed in the other keys: their old values, and the names of keys that were not there.
                   The live values describe the lean model (its forward and its cache read them); the old ones are what
                   upstream's constructor takes, and surgery makes the lean shape of that.

In a file, the other keys are those that upstream's constructor takes, but the model type is ``leanify_bert``, the
architecture ``leanify_BertModel``, and the true ones are hidden under ``leanify``. Without leanify, transformers and
other readers do not know such a type. A class asked for by name (``BertModel.from_pretrained``) ignores the type and
would build another shape where every tensor happens to fit; but every configuration looks its ``dtype`` up in torch,
so it stops at the words that are written there.
"""

from __future__ import annotations

import copy
from typing import Any

from leanify.architecture import Architecture

KEY = "leanify"
PREFIX = "leanify_"
NOTICE = "import leanify, then load"


def shape_in(config: Any) -> Architecture | None:
    """The lean shape that a configuration carries, None where it has none."""
    carried = config.get(KEY) if isinstance(config, dict) else getattr(config, KEY, None)
    return Architecture.from_json(carried["architecture"]) if isinstance(carried, dict) else None


def carry(config: Any, before: dict[str, Any], architecture: Architecture) -> None:
    """Let a configuration carry the shape that surgery gave its model, in place; ``before`` is what it was."""
    carried = getattr(config, KEY, None) or {}
    known_old, known_new = carried.get("old", {}), carried.get("new", [])
    now = config.to_dict()
    added = [key for key in now if key not in before and key not in known_old and key != KEY]
    setattr(
        config,
        KEY,
        {
            "architecture": architecture.to_json(),
            "old": _merged(_changed(before, now), known_old),
            "new": sorted({*known_new, *added}),
        },
    )


def _changed(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """The old values of what differs; of configurations inside the configuration, key by key."""
    found = {}
    for key, old in before.items():
        new = now.get(key)
        if isinstance(old, dict) and isinstance(new, dict) and "model_type" in old:
            if inner := _changed(old, new):
                found[key] = inner
        elif old != new and key != KEY:
            found[key] = old
    return found


def _merged(later: dict[str, Any], first: dict[str, Any]) -> dict[str, Any]:
    """Both, the first change's old values winning."""
    both = {**later, **first}
    for key in later.keys() & first.keys():
        if isinstance(later[key], dict) and isinstance(first[key], dict):
            both[key] = _merged(later[key], first[key])
    return both


def buildable(config: Any) -> Any:
    """A copy with the values that upstream's constructor takes; it carries the shape alone, where there is one."""
    plain = copy.deepcopy(config)
    carried = getattr(plain, KEY, None)
    if isinstance(carried, dict):
        for key in carried.get("new", ()):
            vars(plain).pop(key, None)
        _put_back(plain, carried.get("old", {}))
        setattr(plain, KEY, {"architecture": carried["architecture"]})
    return plain


def _put_back(config: Any, old: dict[str, Any]) -> None:
    for key, value in old.items():
        inner = getattr(config, key, None)
        if isinstance(value, dict) and hasattr(inner, "model_type"):
            _put_back(inner, value)
        else:
            setattr(config, key, copy.deepcopy(value))


def drop(config: Any) -> None:
    """Forget the shape, in place: upstream's own keys say it."""
    vars(config).pop(KEY, None)


def to_file(words: dict[str, Any]) -> dict[str, Any]:
    """A buildable configuration's dictionary as it is written: only leanify reads it."""
    hidden = {
        "model_type": PREFIX + words["model_type"],
        "architectures": [PREFIX + name for name in words.get("architectures") or []],
        "dtype": NOTICE,
        "torch_dtype": NOTICE,  # before transformers 5
    }
    return {**words, **hidden, KEY: {**words[KEY], "hidden": {key: words.get(key) for key in hidden}}}


def from_file(words: dict[str, Any]) -> dict[str, Any]:
    """The inverse of `to_file`; other dictionaries come back as they are."""
    inside = words.get(KEY)
    if not str(words.get("model_type", "")).startswith(PREFIX) or not isinstance(inside, dict):
        return words
    hidden = inside.get("hidden") or {}
    shown = {key: value for key, value in words.items() if key not in hidden}
    known = {key: value for key, value in hidden.items() if value is not None}
    return {**shown, **known, KEY: {"architecture": inside.get("architecture")}}
