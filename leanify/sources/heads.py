"""Whether a transformers checkpoint has the head that its configuration names.

A folder of sentence-transformers, and a checkpoint saved without its head, often keep ``"architectures":
["BertForMaskedLM"]``. Loading that class would draw a random head, whose outputs mean nothing. Both are the bare model.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from leanify.core.errors import SourceError
from leanify.sources import pooling
from leanify.sources.overrides import class_name, full_config, override_source
from leanify.sources.source import ModelSource, build_on_meta
from leanify.sources.tensors import tensor_names
from leanify.upstream.libraries import import_transformers

OTHER_HEADS = re.compile(  # of transformers' classes, whose outputs no task here learns or judges
    r"For(Token\w+|QuestionAnswering|MultipleChoice|NextSentence\w+|\w*(Detection|Segmentation|Estimation))$"
)


def match_stored_head(source: ModelSource, folder: Path, weights: Path) -> ModelSource:
    """The source with the class that is stored in ``folder``: the bare model if ``weights`` have no head."""
    origin = source.origin
    if origin.library != "hf":
        return source
    # a sentence encoder is the bare model, whatever its architectures say; so is a checkpoint without a head's tensors
    if pooling.is_encoder(folder):
        return bare_encoder(source)
    bare = class_name("AutoModel", full_config(origin.name, origin.options))
    try:
        names = tensor_names(weights)
    except SourceError:  # loading reports the damage
        return source
    if origin.cls == bare or not names or _has_head(source, bare, names):
        return source
    return replace(source, origin=replace(origin, cls=bare))


def bare_encoder(source: ModelSource) -> ModelSource:
    """The model without a head, for the hidden states of a text; of an encoder–decoder the encoder alone."""
    return override_source(source, {}, encoder_class(source)) if source.origin.library == "hf" else source


def encoder_class(source: ModelSource) -> str:
    """The Auto class that sentence-transformers would use for a transformers model."""
    config = full_config(source.origin.name, source.origin.options)
    with suppress(SourceError):
        encoder = class_name("AutoModelForTextEncoding", config)
        # the configuration of T5's encoder alone does not say that T5 has a decoder
        is_encoder_alone = source.origin.cls == encoder and encoder != class_name("AutoModel", config)
        if is_encoder_alone or getattr(config, "is_encoder_decoder", False):
            return "AutoModelForTextEncoding"
    return "AutoModel"


def _has_head(source: ModelSource, bare: str, names: Collection[str]) -> bool:
    """Whether some of a class's own tensors are among ``names``, or it has none that are not tied to the model's.

    Tensors whose names neither the model nor its head has may be a head under an older name, and count as one.
    """
    cls: Any = getattr(import_transformers(), source.origin.cls)
    prefix = f"{cls.base_model_prefix}."
    starts = [name.startswith(prefix) for name in names]
    if any(starts) and not all(starts):
        return True
    model: Any = build_on_meta(source)
    without = build_on_meta(replace(source, origin=replace(source.origin, cls=bare)))
    base = set(without.state_dict()) | {n.removeprefix(prefix) for n in model.state_dict() if n.startswith(prefix)}
    tied = getattr(model, "all_tied_weights_keys", None) or {}
    head = {name for name in model.state_dict() if name.removeprefix(prefix) not in base and name not in tied}
    return not head or not {name.removeprefix(prefix) for name in names} <= base
