"""A head for sentences on any encoder: the body's weights carried over, the head fresh.

    leanify's own     its class with ``classes``: the first token, a hidden layer with tanh, the classes
    transformers      whatever AutoModelForSequenceClassification puts on a model of that type

The source may be a model type, an upstream directory or hub id, a checkpoint, a lean directory or a run.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from leanify import models
from leanify.errors import SourceError
from leanify.lens import surgery
from leanify.sources import weights
from leanify.sources.find import find
from leanify.sources.overrides import overridden
from leanify.sources.recipe import ModelSection
from leanify.sources.source import ModelSource, build_on_meta
from leanify.sources.tensors import few, misfits, shapes_of
from leanify.upstream.origin import Origin, set_origin

CLASSIFIER = "AutoModelForSequenceClassification"


def with_head(model: ModelSection, outputs: int, names: Sequence[str] = (), on_meta: bool = False) -> nn.Module:
    """The model of a recipe with a new head of ``outputs`` outputs; a warning lists what is not carried over.

    ``names`` are those of its classes, kept in transformers' configuration; ``on_meta``: shapes without memory.

    Raises SourceError for a model that takes no text or that no head is known for.
    """
    found = find(model.source, cls=model.cls)
    crowned = _crowned(found, model, outputs, names)
    if model.reshapes:
        crowned = replace(crowned, architecture=model.shape(surgery.read(build_on_meta(crowned))), weights=None)
    if on_meta:
        new = build_on_meta(crowned)
    elif crowned.weights is None:
        warnings.warn(f"{model.source} comes without weights: encoder and head are initialised", stacklevel=2)
        new = weights.load(crowned)
    else:
        new = weights.load(crowned) if crowned.origin.library == "hf" else _carried(found, crowned, model.source)
    set_origin(new, crowned.origin)
    return new


def _label_names(names: Sequence[str]) -> dict[str, dict[Any, Any]]:
    """transformers' keys for the names of classes; none without names."""
    return {"id2label": dict(enumerate(names)), "label2id": {n: i for i, n in enumerate(names)}} if names else {}


def _crowned(found: ModelSource, model: ModelSection, outputs: int, names: Sequence[str]) -> ModelSource:
    """What builds the source's body under a head; overrides reach its constructor or configuration."""
    origin = found.origin
    if origin.library == "hf":
        overrides = {**model.override, "num_labels": outputs, **_label_names(names)}
        return overridden(found, overrides, CLASSIFIER)
    if origin.library == "leanify" and "classes" in inspect.signature(models.model_class(origin.name)).parameters:
        options = {**origin.options, **model.override, "classes": outputs}
        return replace(found, origin=Origin("leanify", origin.name, options))
    what = "takes images" if origin.library == "timm" else "has no head for sentences"
    raise SourceError(f"{model.source} ({origin}) {what}; name an encoder of text: a BERT, or leanify/crammed-bert")


def _carried(found: ModelSource, crowned: ModelSource, source: str) -> nn.Module:
    """leanify's own model under a head, with the body's weights; what is new or left behind is warned of."""
    old = weights.load(found).state_dict()
    new = weights.load(replace(crowned, weights=None))
    wanted = new.state_dict()
    shared = [name for name in wanted if name in old and not name.startswith("classifier.")]
    ours, theirs = ({name: tensors[name] for name in shared} for tensors in (wanted, old))
    if problems := misfits(shapes_of(ours), shapes_of(theirs)) or ("" if shared else "no tensor has the name of one"):
        raise SourceError(f"{source} does not fit under a head: {problems}")
    new.load_state_dict(theirs, strict=False)
    fresh = sorted(set(wanted) - set(shared))
    left = sorted(set(old) - set(shared))
    rest = f", {len(left)} left behind ({few(left)})" if left else ""
    warnings.warn(
        f"{source}: {len(shared)} tensors carried over, {len(fresh)} re-initialised ({few(fresh)}){rest}", stacklevel=3
    )
    return new
