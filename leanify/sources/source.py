"""A resolved SOURCE, a model that is known but not built, and the source that would rebuild a live model.

A module may have changed since it was built (`reset_classifier`, `resize_token_embeddings`, `set_input_size`,
`leanify.write`). So its source is derived from the module when asked for, and verified by rebuilding it on meta.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import nn

from leanify.core.architecture import Architecture
from leanify.core.errors import LeanifyError, SourceError, UnsupportedModel
from leanify.reshaping import surgery
from leanify.sources.tensors import describe_misfits, tensor_shapes
from leanify.upstream import user_modules
from leanify.upstream.build import build_model
from leanify.upstream.lean_config import KEY
from leanify.upstream.origin import Origin, get_origin, is_hf, live_options, live_origin
from leanify.upstream.spelling import respell

CACHE_SIZE = 4


@dataclass(frozen=True)
class ModelSource:
    """How to build a model, the lean shape to give it, and where its weights are.

    origin         arguments of upstream's constructor; a transformers configuration may itself carry a lean shape
    architecture   the shape that surgery gives to upstream's model; None if the origin alone is enough
    weights        a directory, a file or a hub id; None for a freshly initialised model
    tied           tied tensors, stored once: missing name → stored name
    """

    origin: Origin
    architecture: Architecture | None = None
    weights: Path | str | None = None
    tied: Mapping[str, str] = field(default_factory=dict)


def build_on_meta(source: ModelSource, must_be_read: bool = True) -> nn.Module:
    """Build the model on torch's meta device: shapes, no memory for weights.

    A user's own module is read while it can still be run. Raises UnsupportedModel if it cannot be read and must be.
    """
    if user_modules.is_user_module(source.origin):
        real = build_model(source.origin)
        with nullcontext() if must_be_read else suppress(UnsupportedModel):
            surgery.read(real)
        model = user_modules.copy_to_meta(real)
    else:
        model = build_model(source.origin, "meta")
    return model if source.architecture is None else surgery.write(model, source.architecture)


# -- the source of a live model -------------


def describe(model: nn.Module, architecture: Architecture | None = None) -> ModelSource:
    """Return a `ModelSource` that rebuilds this model without its weights: by upstream alone, or with surgery.

    ``architecture`` is the model's shape if it is known. Raises SourceError if the model did not come from a known
    library, or if the rebuilt tensors have other shapes.
    """
    origin = _origin(model)
    architecture = architecture or surgery.read(model)
    source = ModelSource(origin, architecture)
    # the user's own code rebuilds the user's module
    if user_modules.is_user_module(origin):
        return source
    # where upstream can say the shape itself, the configuration alone is enough
    native = find_expression(model, origin, architecture)
    if native is not None:
        return ModelSource(native)
    # else surgery must make the same tensors again
    check_rebuilt(
        model,
        source,
        ". If you replaced the head, tell the model its size: config.num_labels in transformers, reset_classifier in "
        "timm",
    )
    return source


def check_rebuilt(model: nn.Module, source: ModelSource, hint: str = "") -> None:
    """Raise SourceError if what upstream or a user's code builds in this shape has other tensors."""
    problems = describe_misfits(tensor_shapes(build_on_meta(source).state_dict()), tensor_shapes(model.state_dict()))
    if problems:
        raise SourceError(f"this {type(model).__name__} differs from what {source.origin} builds: {problems}{hint}")


def _origin(model: Any) -> Origin:
    """How upstream builds the model, updated with options that changed on the live module."""
    origin = get_origin(model)
    if origin is None or origin.library == user_modules.LIVE:
        raise SourceError(
            f"this {type(model).__name__} is neither a timm nor a transformers model, so no loader could rebuild it; "
            "of your own module say what builds it: leanify.save(model, directory, source='path/to/model.py:make'), or "
            "create it with leanify.load, timm.create_model or transformers"
        )
    if origin.library == "hf":
        return live_origin(model)
    if origin.library != "timm":
        return origin
    # options that changed on the live module since it was built, such as its number of classes
    was, now = build_record(origin).options, live_options(model)
    return replace(origin, options={**origin.options, **{k: v for k, v in now.items() if was.get(k) != v}})


@dataclass(frozen=True)
class BuildRecord:
    """What upstream builds on meta: shape, sizes of tensors, and timm's options that show in the module."""

    architecture: Architecture
    shapes: dict[str, tuple[int, ...]]
    options: dict[str, Any]


_last: dict[str, BuildRecord] = {}  # saving a model asks for the same two or three builds several times


def build_record(origin: Origin) -> BuildRecord:
    """Build an origin's model on meta and read it; the last few are cached. Raises what building raises."""
    key = repr(origin)
    if key not in _last:
        model = build_on_meta(ModelSource(origin))
        options = live_options(model) if origin.library == "timm" else {}
        record = BuildRecord(surgery.read(model), tensor_shapes(model.state_dict()), options)
        while len(_last) >= CACHE_SIZE:
            _last.pop(next(iter(_last)))
        _last[key] = record
    return _last[key]


def find_expression(model: Any, origin: Origin, architecture: Architecture) -> Origin | None:
    """Upstream's own options for this shape, or None if it has none.

    Each candidate is built on meta and read back, because upstream silently ignores options it does not know.
    """
    # the model's own configuration, or upstream's options said in other words
    if is_hf(model):  # surgery updates the live configuration under upstream's own keys
        config = model.config.to_dict()
        config.pop(KEY, None)
        candidates = [Origin("hf", origin.name, config, origin.cls or type(model).__name__)]
    else:
        baseline = build_record(origin).architecture
        candidates = [origin] if baseline == architecture else respell(origin, baseline, architecture)
    target_shapes = tensor_shapes(model.state_dict())
    # a candidate counts if it builds the same architecture and the same tensors
    for candidate in candidates:
        try:
            built = build_record(candidate)
            if built.architecture == architecture and built.shapes == target_shapes:
                return candidate
        except LeanifyError:
            continue
    return None
