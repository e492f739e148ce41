"""A live model → what builds it again: the inverse of loading, taken from the module as it stands.

A module outlives what was known when it was built: `reset_classifier`, `resize_token_embeddings`, `set_input_size` and
`leanify.write` all change it. So the description is derived when it is asked for, and proved by building it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import nn

from leanify.architecture import Architecture
from leanify.errors import LeanifyError, SourceError
from leanify.lens import surgery
from leanify.sources.source import ModelSource, build_on_meta
from leanify.sources.tensors import misfits, shapes_of
from leanify.upstream.build import build_model
from leanify.upstream.lean_config import KEY
from leanify.upstream.origin import Origin, is_hf, live_options, origin_of, plain_words
from leanify.upstream.spelling import respell


def describe(model: nn.Module) -> ModelSource:
    """What builds this model again, without its weights: upstream alone, else upstream and then surgery.

    Raises SourceError where nothing is known of how upstream built it, or where what is known builds another model.
    """
    origin = _origin(model)
    architecture = surgery.read(model)
    native = expressed(model, origin, architecture)
    if native is not None:
        return ModelSource(native)
    found = ModelSource(origin, architecture)
    problems = misfits(shapes_of(build_on_meta(found).state_dict()), shapes_of(model.state_dict()))
    if problems:
        raise SourceError(
            f"this {type(model).__name__} is not what {origin} builds: {problems}. A head of another size must be "
            "known to the model: config.num_labels in transformers, reset_classifier in timm"
        )
    return found


def _origin(model: Any) -> Origin:
    """How upstream builds the model, brought in line with the live module."""
    origin = origin_of(model)
    if origin is None:
        raise SourceError(
            f"this {type(model).__name__} is neither a timm nor a transformers model, so no loader could build it "
            "again; build it with leanify.load, timm.create_model or transformers"
        )
    if origin.library == "hf":
        return Origin("hf", model.config.model_type, plain_words(model.config), type(model).__name__)
    if origin.library != "timm":
        return origin
    was, now = live_options(build_model(origin, "meta")), live_options(model)
    return replace(origin, options={**origin.options, **{k: v for k, v in now.items() if was.get(k) != v}})


def expressed(model: Any, origin: Origin, architecture: Architecture) -> Origin | None:
    """Upstream's own words for this shape, or None. Found by building: what upstream ignores does not read back."""
    if is_hf(model):  # surgery keeps the live configuration in upstream's words
        words = model.config.to_dict()
        words.pop(KEY, None)
        candidates = [Origin("hf", origin.name, words, origin.cls or type(model).__name__)]
    else:
        baseline = surgery.read(build_model(origin, "meta"))
        candidates = [origin] if baseline == architecture else respell(origin, baseline, architecture)
    wanted = shapes_of(model.state_dict())
    for candidate in candidates:
        try:
            built = build_model(candidate, "meta")
            if surgery.read(built) == architecture and shapes_of(built.state_dict()) == wanted:
                return candidate
        except LeanifyError:
            continue
    return None
