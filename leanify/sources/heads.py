"""Whether a transformers checkpoint has the head that its configuration names.

A folder of sentence-transformers, and a checkpoint saved without its head, often keep ``"architectures":
["BertForMaskedLM"]``. Loading that class would draw a random head, whose outputs mean nothing. Both are the bare model.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from leanify.errors import SourceError
from leanify.sources import pooling
from leanify.sources.overrides import class_name, full_config, overridden
from leanify.sources.source import ModelSource, build_on_meta
from leanify.sources.tensors import names_in
from leanify.upstream.libraries import import_transformers


def as_stored(found: ModelSource, folder: Path, weights: Path) -> ModelSource:
    """The source with the class that is stored in ``folder``: the bare model if ``weights`` have no head."""
    origin = found.origin
    if origin.library != "hf":
        return found
    bare = class_name("AutoModel", full_config(origin.name, origin.options))
    if pooling.is_encoder(folder):
        return bare_encoder(found)
    try:
        names = names_in(weights)
    except SourceError:  # loading says what is wrong with the file
        return found
    if origin.cls == bare or not names or _has_head(found, bare, names):
        return found
    return replace(found, origin=replace(origin, cls=bare))


def bare_encoder(found: ModelSource) -> ModelSource:
    """The model without a head, for the hidden states of a text; of an encoder–decoder the encoder alone."""
    return overridden(found, {}, encoder_class(found)) if found.origin.library == "hf" else found


def encoder_class(found: ModelSource) -> str:
    """The Auto class that sentence-transformers would use for a transformers model."""
    config = full_config(found.origin.name, found.origin.options)
    with suppress(SourceError):
        if getattr(config, "is_encoder_decoder", False) and class_name("AutoModelForTextEncoding", config):
            return "AutoModelForTextEncoding"
    return "AutoModel"


def _has_head(found: ModelSource, bare: str, names: Collection[str]) -> bool:
    """Whether some of a class's own tensors are among ``names``, or it has none that are not tied to the model's.

    What is stored under names that neither the model nor its head has may be a head under an older name: it is one.
    """
    cls: Any = getattr(import_transformers(), found.origin.cls)
    prefix = f"{cls.base_model_prefix}."
    starts = [name.startswith(prefix) for name in names]
    if any(starts) and not all(starts):
        return True
    model: Any = build_on_meta(found)
    without = build_on_meta(replace(found, origin=replace(found.origin, cls=bare)))
    base = set(without.state_dict()) | {n.removeprefix(prefix) for n in model.state_dict() if n.startswith(prefix)}
    tied = getattr(model, "all_tied_weights_keys", None) or {}
    head = {name for name in model.state_dict() if name.removeprefix(prefix) not in base and name not in tied}
    return not head or not {name.removeprefix(prefix) for name in names} <= base
