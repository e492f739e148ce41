"""Put a new head, for texts or for their tokens, on a text encoder and keep the encoder's weights.

    leanify's own     its class with ``classes``: first token → hidden layer with tanh → classes
    transformers      the head that AutoModelForSequenceClassification (…TokenClassification) gives a model of its type

The source may be a model type, an upstream directory or hub id, a checkpoint, a lean directory or a run.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Sequence
from dataclasses import replace

from torch import nn

from leanify.errors import SourceError
from leanify.lens import surgery
from leanify.runs.recipe import ModelSection
from leanify.sources import weights
from leanify.sources.find import find
from leanify.sources.overrides import overridden
from leanify.sources.source import ModelSource, build_on_meta
from leanify.sources.tensors import few, misfits, shapes_of
from leanify.upstream import own_models
from leanify.upstream.origin import Origin, set_origin

CLASSIFIER = "AutoModelForSequenceClassification"
TAGGER = "AutoModelForTokenClassification"


def with_head(
    model: ModelSection,
    outputs: int,
    names: Sequence[str] = (),
    on_meta: bool = False,
    task: str = "text-classification",
) -> nn.Module:
    """Return a recipe's model with a new head of ``outputs`` outputs; warn about tensors that were not carried over.

    ``names`` are class names, stored in transformers' configuration; with ``on_meta`` the model has shapes
    only. ``task`` is the recipe's and decides the head.

    Raises SourceError for a model that takes no text or has no known head.
    """
    found = find(model.source, cls=model.cls)
    headed = _headed(found, model, outputs, names, task)
    if model.reshapes:
        headed = replace(headed, architecture=model.shape(surgery.read(build_on_meta(headed))), weights=None)
    if on_meta:
        new = build_on_meta(headed)
    elif headed.weights is None:
        warnings.warn(f"{model.source} has no weights: encoder and head are randomly initialised", stacklevel=2)
        new = weights.load(headed)
    else:
        new = weights.load(headed) if headed.origin.library == "hf" else _carried(found, headed, model.source)
    set_origin(new, headed.origin)
    return new


def _headed(found: ModelSource, model: ModelSection, outputs: int, names: Sequence[str], task: str) -> ModelSource:
    """The source as a model with a head; overrides go to its constructor or configuration."""
    origin = found.origin
    if origin.library == "hf":
        overrides = {**model.override, "num_labels": outputs}
        if names:
            overrides |= {"id2label": dict(enumerate(names)), "label2id": {name: i for i, name in enumerate(names)}}
            if task == "multi-label-classification":
                overrides["problem_type"] = "multi_label_classification"
        return overridden(found, overrides, TAGGER if task == "token-classification" else CLASSIFIER)
    if task == "token-classification":
        raise SourceError(f"{model.source} ({origin}) has no head for tokens; name a transformers text model: bert")
    if origin.library == "leanify" and "classes" in inspect.signature(own_models.model_class(origin.name)).parameters:
        options = {**origin.options, **model.override, "classes": outputs}
        return replace(found, origin=Origin("leanify", origin.name, options))
    what = "takes images" if origin.library == "timm" else "has no head for text classification"
    raise SourceError(f"{model.source} ({origin}) {what}; name a text encoder: a BERT, or leanify/crammed-bert")


def _carried(found: ModelSource, headed: ModelSource, source: str) -> nn.Module:
    """leanify's own model with a head and the encoder's weights; warns about new and unused tensors."""
    old = weights.load(found).state_dict()
    new = weights.load(replace(headed, weights=None))
    wanted = new.state_dict()
    shared = [name for name in wanted if name in old and not name.startswith("classifier.")]
    expected = {name: wanted[name] for name in shared}
    given = {name: old[name] for name in shared}
    problems = misfits(shapes_of(expected), shapes_of(given))
    if not shared:
        problems = problems or "no tensor name in common"
    if problems:
        raise SourceError(f"{source} does not fit the model with a head: {problems}")
    new.load_state_dict(given, strict=False)
    fresh = sorted(set(wanted) - set(shared))
    left = sorted(set(old) - set(shared))
    rest = f", {len(left)} unused ({few(left)})" if left else ""
    warnings.warn(
        f"{source}: {len(shared)} tensors carried over, {len(fresh)} re-initialised ({few(fresh)}){rest}", stacklevel=3
    )
    return new
