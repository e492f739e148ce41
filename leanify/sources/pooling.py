"""Pooling of a text's hidden states into one vector, as sentence-transformers stores it with a checkpoint.

``modules.json`` lists a Transformer, a Pooling and perhaps more (Normalize, Dense). Modules after the pooling
are ignored: they do not change whether two embeddings point the same way, as long as both models share them.
"""

from __future__ import annotations

from pathlib import Path

from leanify.core.errors import SourceError
from leanify.core.files.reading import read_json, read_object

MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}  # older files have one boolean per mode; newer ones have ``pooling_mode``, a name or a list
MODULES = "modules.json"


def has_modules(folder: Path) -> bool:
    """Whether a folder is in sentence-transformers' layout."""
    return (folder / MODULES).is_file()


def is_encoder(folder: Path) -> bool:
    """Whether the first of sentence-transformers' modules is a model without a head (SPLADE's has one)."""
    if not has_modules(folder):
        return False
    modules = read_json(folder / MODULES)
    first = modules[0] if isinstance(modules, list) and modules else {}
    return isinstance(first, dict) and str(first.get("type", "")).rpartition(".")[2] == "Transformer"


def read_pooling(folder: Path) -> tuple[str, ...]:
    """Return the pooling modes whose vectors are concatenated; the mean if the folder does not specify any.

    Raises SourceError for a damaged file or an unknown mode.
    """
    # a folder of transformers alone has no pooling: the mean is sentence-transformers' default
    if not has_modules(folder):
        return ("mean",)
    modules = read_json(folder / MODULES)
    # the first module of type Pooling, and its own configuration inside the folder
    entries = [entry for entry in modules if isinstance(entry, dict)] if isinstance(modules, list) else []
    pooling_entry = next((entry for entry in entries if str(entry.get("type", "")).endswith("Pooling")), None)
    if pooling_entry is None:
        raise SourceError(f"{folder / MODULES} has no Pooling module, so it yields no embedding of a whole text")
    file = folder / str(pooling_entry.get("path", "")) / "config.json"
    place = file.parent.resolve()  # the file itself may be a link: the hub's cache consists of links
    if folder.resolve() not in (place, *place.parents):
        raise SourceError(f"{folder / MODULES} names {pooling_entry.get('path')!r}, which is outside its folder")
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


def read_max_length(folder: Path) -> int | None:
    """The length in tokens to which sentence-transformers truncates a text; None if not specified."""
    length = read_object(folder / "sentence_bert_config.json").get("max_seq_length")
    return length if isinstance(length, int) and length > 0 else None
