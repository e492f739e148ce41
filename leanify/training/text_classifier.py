"""Put a new head on a text encoder and keep the encoder's weights.

    a module of the user's   its ``make(classes=…)``
    transformers             the head that AutoModelForSequenceClassification gives a model of its type

The source may be a model type, an upstream directory or hub id, a checkpoint, a lean directory or a run.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace

from torch import nn

from leanify.core.errors import SourceError
from leanify.core.files.reading import preview
from leanify.core.recipe import ModelSection
from leanify.reshaping import surgery
from leanify.sources import weights
from leanify.sources.find import find, recorded_source
from leanify.sources.overrides import override_source
from leanify.sources.source import ModelSource, build_on_meta
from leanify.sources.tensors import describe_misfits, tensor_shapes
from leanify.upstream import user_modules
from leanify.upstream.origin import set_origin


def add_head(model: ModelSection, outputs: int, names: Sequence[str] = (), on_meta: bool = False) -> nn.Module:
    """Return a recipe's model with a new head of ``outputs`` outputs; warn about tensors that it does not take over.

    ``names`` are class names, stored in transformers' configuration; with ``on_meta`` the model has shapes only.
    Raises SourceError for a model that takes no text or has no known head.
    """
    # the source of the model with a head, in the recipe's shape
    encoder = find(recorded_source(model.source), cls=model.cls)
    classifier = _classifier_source(encoder, model, outputs, names)
    if model.reshapes:
        architecture = model.shape(surgery.read(build_on_meta(classifier)))
        classifier = replace(classifier, architecture=architecture, weights=None)

    # transformers loads the encoder's weights by itself
    if on_meta:
        built = build_on_meta(classifier)
    elif classifier.weights is not None and classifier.origin.library != "hf":
        built = _transfer_weights(encoder, classifier, model.source)
    else:
        if classifier.weights is None:
            warnings.warn(f"{model.source} has no weights: encoder and head are randomly initialised", stacklevel=2)
        built = weights.load(classifier)
    set_origin(built, classifier.origin)
    return built


def _classifier_source(encoder: ModelSource, model: ModelSection, outputs: int, names: Sequence[str]) -> ModelSource:
    """The encoder's source with a head; overrides go to its constructor or configuration."""
    origin = encoder.origin
    if origin.library == "hf":
        overrides = {**model.override, "num_labels": outputs}
        if names:
            overrides |= {"id2label": dict(enumerate(names)), "label2id": {name: i for i, name in enumerate(names)}}
        return override_source(encoder, overrides, "AutoModelForSequenceClassification")
    if user_modules.takes_argument(origin, "classes"):
        options = {**origin.options, **model.override, "classes": outputs}
        return replace(encoder, origin=replace(origin, options=options))
    reason = "takes images" if origin.library == "timm" else "has no head for text classification"
    raise SourceError(
        f"{model.source} ({origin}) {reason}; name a text encoder: a BERT, or own code whose make() takes classes"
    )


def _transfer_weights(encoder: ModelSource, classifier: ModelSource, name: str) -> nn.Module:
    """Build the user's module with a head and load the encoder's weights; warns about new and unused tensors."""
    source_tensors = weights.load(encoder).state_dict()
    built = weights.load(replace(classifier, weights=None))
    tensors = built.state_dict()

    # the tensors that both have, except the head's, in equal shapes
    shared_keys = [key for key in tensors if key in source_tensors and not key.startswith("classifier.")]
    loaded_tensors = {key: source_tensors[key] for key in shared_keys}
    problems = describe_misfits(
        tensor_shapes({key: tensors[key] for key in shared_keys}), tensor_shapes(loaded_tensors)
    )
    if not shared_keys:
        problems = problems or "no tensor name in common"
    if problems:
        raise SourceError(f"{name} does not fit the model with a head: {problems}")
    built.load_state_dict(loaded_tensors, strict=False)

    # report the rest
    fresh_keys, unused_keys = sorted(set(tensors) - set(shared_keys)), sorted(set(source_tensors) - set(shared_keys))
    unused = f", {len(unused_keys)} unused ({preview(unused_keys)})" if unused_keys else ""
    fresh = f"{len(fresh_keys)} re-initialised ({preview(fresh_keys)})"
    warnings.warn(f"{name}: {len(shared_keys)} tensors carried over, {fresh}{unused}", stacklevel=3)
    return built
