"""How the hidden states of a text become one vector: what sentence-transformers keeps beside a checkpoint.

``modules.json`` names a Transformer, a Pooling and perhaps more (Normalize, Dense). Their order and what follows the
pooling do not change whether two embeddings point the same way, as long as both models share it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from leanify.errors import SourceError
from leanify.sources.files import read_json

MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}  # the older spelling: a truth for each; the newer one is ``pooling_mode``: a name
MODULES = "modules.json"


def has_modules(folder: Path) -> bool:
    """Whether sentence-transformers would load a folder as its own."""
    return (folder / MODULES).is_file()


def pooling_of(folder: Path) -> tuple[str, ...]:
    """The modes whose vectors are strung together; the mean where nothing is said. Raises SourceError."""
    if not has_modules(folder):
        return ("mean",)
    modules = read_json(folder / MODULES)
    entries = [entry for entry in modules if isinstance(entry, dict)] if isinstance(modules, list) else []
    found = next((entry for entry in entries if str(entry.get("type", "")).endswith("Pooling")), None)
    if found is None:
        raise SourceError(f"{folder / MODULES} names no pooling, so its embeddings are none of a text")
    file = folder / str(found.get("path", "")) / "config.json"
    if folder.resolve() not in file.resolve().parents:
        raise SourceError(f"{folder / MODULES} names {found.get('path')!r}, which lies outside of it")
    return _modes(file, read_json(file))


def _modes(file: Path, words: Any) -> tuple[str, ...]:
    if not isinstance(words, dict):
        raise SourceError(f"{file} is damaged: a JSON object was expected")
    named = words.get("pooling_mode")
    modes = tuple(named) if isinstance(named, list) else (named,) if isinstance(named, str) else ()
    modes = modes or tuple(mode for key, mode in MODES.items() if words.get(key))
    if not modes or any(mode not in MODES.values() for mode in modes):
        raise SourceError(f"{file} names the pooling {list(modes)}; known are {', '.join(MODES.values())}")
    return modes


def longest_of(folder: Path) -> int | None:
    """The tokens that sentence-transformers cuts a text to; None where it does not say."""
    file = folder / "sentence_bert_config.json"
    words = read_json(file) if file.is_file() else {}
    length = words.get("max_seq_length") if isinstance(words, dict) else None
    return length if isinstance(length, int) and length > 0 else None
