"""What a checkpoint has behind its last layer: transformers' head, or the pooling of sentence-transformers.

A folder of sentence-transformers, and a checkpoint saved without its head, often keep ``"architectures":
["BertForMaskedLM"]``. Loading that class would draw a random head, whose outputs mean nothing. Both are the bare model.
In ``modules.json`` sentence-transformers lists a Transformer, a Pooling and perhaps dense layers. A last Normalize
changes no direction.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from leanify.core.errors import SourceError
from leanify.core.files.reading import read_json, read_object
from leanify.sources.overrides import class_name, full_config, override_source
from leanify.sources.source import ModelSource, build_on_meta
from leanify.sources.tensors import read_tensors, tensor_names
from leanify.upstream.libraries import import_transformers

OTHER_HEADS = re.compile(  # of transformers' classes, whose outputs no task here learns or judges
    r"For(Token\w+|QuestionAnswering|MultipleChoice|NextSentence\w+|\w*(Detection|Segmentation|Estimation))$"
)
MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}  # older files have one boolean per mode; newer ones have ``pooling_mode``, a name or a list
MODULES = "modules.json"
# Functions behind a dense layer, by the last part of their names: code that a file names is not imported.
ACTIVATIONS = {
    "Identity": lambda vectors: vectors, "Tanh": torch.tanh, "ReLU": F.relu, "GELU": F.gelu, "SiLU": F.silu,
    "Sigmoid": torch.sigmoid,
}  # fmt: skip


def match_stored_head(source: ModelSource, folder: Path, weights: Path) -> ModelSource:
    """The source with the class that is stored in ``folder``: the bare model if ``weights`` have no head."""
    origin = source.origin
    if origin.library != "hf":
        return source
    # a sentence encoder is the bare model, whatever its architectures say; so is a checkpoint without a head's tensors
    if is_encoder(folder):
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
    """Whether some of a class's own tensors are among ``names``, perhaps under an older name, or it has none untied."""
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


# -- sentence-transformers -------------


@dataclass(frozen=True, eq=False)
class Dense:
    """A layer behind the pooling: activation(W x + b), of vectors of length 1 if they are normalised before it."""

    weight: Tensor  # (outputs, inputs), float32
    bias: Tensor | None  # (outputs,)
    activation: str
    is_normalised: bool

    def __call__(self, vectors: Tensor) -> Tensor:
        """(B, inputs) → (B, outputs)"""
        vectors = F.normalize(vectors, dim=-1) if self.is_normalised else vectors
        bias = None if self.bias is None else self.bias.to(vectors)
        outputs: Tensor = ACTIVATIONS[self.activation](F.linear(vectors, self.weight.to(vectors), bias))
        return outputs

    def __str__(self) -> str:
        """A name that no other layer has."""
        tensors = [tensor.numpy().tobytes() for tensor in (self.weight, self.bias) if tensor is not None]
        digest = hashlib.blake2b(b"".join(tensors), digest_size=16).hexdigest()
        return f"{self.activation} {self.is_normalised} {digest}"


Pooling = tuple["str | Dense", ...]  # modes, whose vectors are concatenated, and layers behind them


def is_encoder(folder: Path) -> bool:
    """Whether the first of sentence-transformers' modules is a model without a head (SPLADE's has one)."""
    modules = _read_modules(folder)
    return bool(modules) and modules[0][0] == "Transformer"


def _read_modules(folder: Path) -> list[tuple[str, str]]:
    """The kind and the folder of each of sentence-transformers' modules."""
    modules = read_json(folder / MODULES) if (folder / MODULES).is_file() else None
    entries = [entry for entry in modules if isinstance(entry, dict)] if isinstance(modules, list) else []
    return [(str(entry.get("type", "")).rpartition(".")[2], str(entry.get("path", ""))) for entry in entries]


def read_pooling(folder: Path) -> Pooling:
    """Return the pooling modes whose vectors are concatenated, and the layers behind; the mean if nothing is specified.

    Raises SourceError for a damaged file, an unknown mode or an unknown module.
    """
    # a folder of transformers alone has no pooling: the mean is sentence-transformers' default
    if not (folder / MODULES).is_file():
        return ("mean",)
    modules = _read_modules(folder)
    if "Pooling" not in [kind for kind, _ in modules]:
        raise SourceError(f"{folder / MODULES} has no Pooling module, so it yields no embedding of a whole text")
    # the modes of the first Pooling, then dense layers
    modes: Sequence[str] = ()
    layers, is_normalised = [], False
    for kind, place in modules:
        file = folder / place / "config.json"
        try:
            inside = file.parent.resolve()  # the file itself may be a link: the hub's cache consists of links
        except (OSError, RuntimeError, ValueError) as caught:  # links in a circle, a NUL
            raise SourceError(f"{folder / MODULES} names {place!r}, which cannot be followed: {caught}") from caught
        if folder.resolve() not in (inside, *inside.parents):
            raise SourceError(f"{folder / MODULES} names {place!r}, which is outside its folder")
        if kind == "Pooling" and not modes:
            modes = _read_modes(file)
        elif kind == "Dense" and modes:
            layers.append(_read_dense(file, is_normalised))
        elif kind not in ("Transformer", "Normalize", "Dropout"):
            raise SourceError(f"{folder / MODULES} has a module {kind[:40]!r}; supported: Pooling, Dense, Normalize")
        is_normalised = kind == "Normalize"
    return (*modes, *layers)


def _read_modes(file: Path) -> tuple[str, ...]:
    config = read_json(file)
    if not isinstance(config, dict):
        raise SourceError(f"{file} is damaged: expected a JSON object")
    # the mode's name (newer), or a flag for each mode (older)
    mode_name = config.get("pooling_mode")
    modes = tuple(mode for key, mode in MODES.items() if config.get(key))
    if mode_name:
        modes = tuple(mode_name) if isinstance(mode_name, list) else (mode_name,)
    if not modes or any(mode not in MODES.values() for mode in modes):
        raise SourceError(f"{file} has the pooling mode {list(modes)}; supported: {', '.join(MODES.values())}")
    return modes


def _read_dense(file: Path, is_normalised: bool) -> Dense:
    config = read_object(file)
    activation = str(config.get("activation_function", "Tanh")).rpartition(".")[2].partition("(")[0]
    if activation not in ACTIVATIONS:
        raise SourceError(f"{file} has the activation {activation[:40]!r}; supported: {', '.join(ACTIVATIONS)}")
    if config.get("module_input_name", "sentence_embedding") != "sentence_embedding":
        raise SourceError(f"{file} is a layer of single tokens, so it yields no embedding of a whole text")
    names = ("model.safetensors", "pytorch_model.bin")
    weights = next((file.parent / name for name in names if (file.parent / name).is_file()), None)
    tensors = {} if weights is None else read_tensors(weights)
    weight, bias = tensors.get("linear.weight"), tensors.get("linear.bias")
    if weight is None or weight.ndim != 2 or (bias is not None and bias.shape != weight.shape[:1]):
        raise SourceError(f"{file.parent} has no weights of a dense layer: linear.weight in {' or '.join(names)}")
    return Dense(weight.float(), None if bias is None else bias.float(), activation, is_normalised)


def read_max_length(folder: Path) -> int | None:
    """The length in tokens to which sentence-transformers truncates a text; None if not specified."""
    length = read_object(folder / "sentence_bert_config.json").get("max_seq_length")
    return length if isinstance(length, int) and length > 0 else None
