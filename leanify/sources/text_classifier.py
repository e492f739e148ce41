"""A head for sentences on any encoder: the body's weights carried over, the head fresh.

    leanify's own     its class with ``classes``: the first token, a hidden layer with tanh, the classes
    transformers      whatever AutoModelForSequenceClassification puts on a model of that type

The source may be a model type, an upstream directory or hub id, a checkpoint, a lean directory or a run; a shape that
upstream cannot say stays what it is.
"""

from __future__ import annotations

import inspect
import warnings
from dataclasses import replace

from torch import nn

from leanify import models
from leanify.errors import SourceError
from leanify.lens import surgery
from leanify.sources import find
from leanify.sources.find import ModelSource
from leanify.sources.recipe import ModelSection
from leanify.upstream.build import build_model
from leanify.upstream.origin import Origin, is_hf, set_origin

CLASSIFIER = "AutoModelForSequenceClassification"


def with_head(model: ModelSection, outputs: int) -> nn.Module:
    """The model of a recipe with a fresh head of so many outputs; what is not carried over is warned of.

    Raises SourceError for a model that takes no text or that no head is known for.
    """
    found = find.find(model.source, cls=model.cls)
    crowned = _crowned(found, model, outputs)
    new = build_model(crowned.origin)
    shape = surgery.read(new)
    wanted = crowned.architecture
    if wanted is not None:  # the same stages, by the names that they have under the head
        wanted = replace(
            shape, stages=tuple(replace(b, name=a.name) for a, b in zip(shape.stages, wanted.stages, strict=True))
        )
    if model.reshapes:
        wanted = model.shape(wanted or shape)
    if wanted is not None and wanted != shape:
        new = surgery.write(new, wanted, "fresh")
    if found.weights is None or model.reshapes:
        warnings.warn(f"{model.source} comes without weights: encoder and head are drawn anew", stacklevel=2)
    else:
        _carry(find.load(model.source, cls=model.cls), new, model.source)
    set_origin(new, crowned.origin)
    return new


def _crowned(found: ModelSource, model: ModelSection, outputs: int) -> ModelSource:
    """What builds the source's body under a head; overrides reach its constructor or configuration."""
    origin = found.origin
    if origin.library == "hf":
        bare = replace(found, architecture=None)
        overrides = {**model.override, "num_labels": outputs}
        return replace(find.overridden(bare, overrides, CLASSIFIER), architecture=found.architecture)
    if origin.library == "leanify" and "classes" in inspect.signature(models.model_class(origin.name)).parameters:
        options = {**origin.options, **model.override, "classes": outputs}
        return replace(found, origin=Origin("leanify", origin.name, options))
    what = "takes images" if origin.library == "timm" else "has no head for sentences"
    raise SourceError(f"{model.source} ({origin}) {what}; name an encoder of text: a BERT, or leanify/crammed-bert")


def _body(model: nn.Module) -> nn.Module:
    """The part of a model below its head."""
    body: nn.Module = model.base_model if is_hf(model) else model  # type: ignore[assignment]
    return body


def _carry(old: nn.Module, new: nn.Module, source: str) -> None:
    """Copy the body's weights, in place, and warn of what had to be left or drawn anew."""
    given, wanted = _body(old).state_dict(), _body(new).state_dict()
    head = () if is_hf(new) else ("classifier.",)  # ours has no body of its own
    shared = [name for name in wanted if name in given and not name.startswith(head)]
    odd = [f"{name} {tuple(given[name].shape)}" for name in shared if given[name].shape != wanted[name].shape]
    if odd or not shared:
        raise SourceError(
            f"{source} does not fit under a head: "
            + (f"of another shape: {', '.join(odd[:3])}" if odd else "no tensor has the name of one of its body")
        )
    _body(new).load_state_dict({name: given[name] for name in shared}, strict=False)
    kept = {tensor.data_ptr() for name, tensor in wanted.items() if name in shared}
    fresh = sorted(name for name, tensor in new.state_dict().items() if tensor.data_ptr() not in kept)
    used = {given[name].data_ptr() for name in shared}
    left = sorted(name for name, tensor in old.state_dict().items() if tensor.data_ptr() not in used)
    told = [
        f"{len(names)} tensors {what} ({_few(names)})"
        for names, what in ((fresh, "drawn anew"), (left, "left behind"))
        if names
    ]
    warnings.warn(f"{source}: {len(shared)} tensors carried over, {', '.join(told)}", stacklevel=3)


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
