"""Describe a live model so that it can be rebuilt: the inverse of loading.

A module may have changed since it was built (`reset_classifier`, `resize_token_embeddings`, `set_input_size`,
`leanify.write`). So the description is derived from the module when asked for, and verified by rebuilding it on meta.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from leanify.architecture import Architecture
from leanify.errors import LeanifyError, SourceError
from leanify.lens import surgery
from leanify.sources.source import ModelSource, build_on_meta
from leanify.sources.tensors import misfits, shapes_of
from leanify.upstream import modules
from leanify.upstream.build import build_model
from leanify.upstream.lean_config import KEY
from leanify.upstream.origin import Origin, is_hf, live_options, origin_of, plain_words
from leanify.upstream.spelling import respell

REMEMBERED = 4


def describe(model: nn.Module) -> ModelSource:
    """Return a `ModelSource` that rebuilds this model without its weights: by upstream alone, else with surgery.

    Raises SourceError if the model did not come from a known library, or if the rebuilt tensors have other shapes.
    """
    origin = _origin(model)
    architecture = surgery.read(model)
    found = ModelSource(origin, architecture)
    if origin.library == modules.LIBRARY:
        return found
    native = expressed(model, origin, architecture)
    if native is not None:
        return ModelSource(native)
    check_rebuilt(
        model,
        found,
        ". If you replaced the head, tell the model its size: config.num_labels in transformers, reset_classifier in "
        "timm",
    )
    return found


def check_rebuilt(model: nn.Module, found: ModelSource, hint: str = "") -> None:
    """Raise SourceError if what upstream or a user's code builds in this shape has other tensors."""
    problems = misfits(shapes_of(build_on_meta(found).state_dict()), shapes_of(model.state_dict()))
    if problems:
        raise SourceError(f"this {type(model).__name__} differs from what {found.origin} builds: {problems}{hint}")


def _origin(model: Any) -> Origin:
    """How upstream builds the model, updated with options that changed on the live module."""
    origin = origin_of(model)
    if origin is None or origin.library == modules.LIVE:
        raise SourceError(
            f"this {type(model).__name__} is neither a timm nor a transformers model, so no loader could rebuild it; "
            "of your own module say what builds it: leanify.save(model, directory, source='path/to/model.py:make'), or "
            "create it with leanify.load, timm.create_model or transformers"
        )
    if origin.library == "hf":
        return Origin("hf", model.config.model_type, plain_words(model.config), type(model).__name__)
    if origin.library != "timm":
        return origin
    was, now = as_built(origin).options, live_options(model)
    return replace(origin, options={**origin.options, **{k: v for k, v in now.items() if was.get(k) != v}})


@dataclass(frozen=True)
class AsBuilt:
    """What upstream builds on meta: shape, sizes of tensors, and timm's options that show in the module."""

    architecture: Architecture
    shapes: dict[str, tuple[int, ...]]
    options: dict[str, Any]


_last: dict[str, AsBuilt] = {}  # saving a model asks for the same two or three builds several times


def as_built(origin: Origin) -> AsBuilt:
    """Build an origin's model on meta and read it; the last few are cached. Raises what building raises."""
    key = repr(origin)
    if key not in _last:
        model = build_model(origin, "meta")
        options = live_options(model) if origin.library == "timm" else {}
        found = AsBuilt(surgery.read(model), shapes_of(model.state_dict()), options)
        while len(_last) >= REMEMBERED:
            _last.pop(next(iter(_last)))
        _last[key] = found
    return _last[key]


def expressed(model: Any, origin: Origin, architecture: Architecture) -> Origin | None:
    """Upstream's own options for this shape, or None if it has none.

    Each candidate is built on meta and read back, because upstream silently ignores options it does not know.
    """
    if is_hf(model):  # surgery updates the live configuration under upstream's own keys
        config = model.config.to_dict()
        config.pop(KEY, None)
        candidates = [Origin("hf", origin.name, config, origin.cls or type(model).__name__)]
    else:
        baseline = as_built(origin).architecture
        candidates = [origin] if baseline == architecture else respell(origin, baseline, architecture)
    wanted = shapes_of(model.state_dict())
    for candidate in candidates:
        try:
            built = as_built(candidate)
            if built.architecture == architecture and built.shapes == wanted:
                return candidate
        except LeanifyError:
            continue
    return None
