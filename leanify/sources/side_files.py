"""Files that accompany a model's weights: tokenizer, processors, chat template, pooling.

A redesign keeps the vocabulary and the width, so they stay valid and are copied unchanged. If there is no tokenizer to
copy, transformers would silently build an *empty* one from config.json, with every word unknown. To prevent that, a
tokenizer.json that no loader accepts is written instead.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from leanify.errors import SourceError
from leanify.runs.files import read_json
from leanify.sources import hub
from leanify.sources.tensors import CHECKPOINTS
from leanify.upstream.libraries import import_transformers

PATTERNS = (
    "tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab*", "merges*", "*.model", "*.spm",
    "*.tiktoken", "*.bpe", "bpe.codes", "dict.txt", "normalizer.json", "chat_template*", "additional_chat_templates",
    "*processor_config.json", "modules.json", "config_sentence_transformers.json", "sentence_*_config.json",
)  # fmt: skip
TOKENIZER = ("tokenizer*", "vocab*", "*.model", "*.spm", "*.tiktoken")
NO_TOKENIZER = {"version": "the source of this model had no tokenizer; save one here: tokenizer.save_pretrained(DIR)"}


def carry(model: Any, folder: Path) -> None:
    """Copy a transformers model's side files from its source into ``folder``.

    A text model without a tokenizer gets a tokenizer.json that refuses to load. Raises SourceError if the tokenizer has
    ids beyond the model's embedding.
    """
    source = source_of(model)
    for file in _files(source) if source is not None else ():
        _copy(file, folder / file.name)
    if (folder / "modules.json").is_file() and source is not None:
        _copy_modules(source, folder)
    _check_vocabulary(model, folder)
    if _takes_text(model) and not any(any(folder.glob(pattern)) for pattern in TOKENIZER):
        (folder / "tokenizer.json").write_text(json.dumps(NO_TOKENIZER, indent=2) + "\n", encoding="utf-8")


def source_of(model: Any) -> Path | None:
    """The directory that the model was loaded from; for a hub id, its snapshot in the cache; None if there is none."""
    name = getattr(model.config, "_name_or_path", "") or ""
    path = Path(name).expanduser()
    if not name or path.is_dir():
        return path if name else None
    if name.startswith(("/", ".", "~")) or name in import_transformers().CONFIG_MAPPING:
        return None
    from huggingface_hub import snapshot_download

    try:
        wanted = [*PATTERNS, *(f"{number}_*" for number in range(10))]  # folders of modules.json: 0_…, 1_Pooling, …
        return Path(snapshot_download(name, allow_patterns=wanted, local_files_only=not hub.answers()))
    except Exception:  # the hub client raises from several libraries; `carry` handles a missing tokenizer
        return None


def _files(source: Path) -> Iterator[Path]:
    for path in sorted(source.iterdir()):
        if any(fnmatch(path.name, pattern) for pattern in PATTERNS) and path.suffix not in CHECKPOINTS:
            yield path


def _copy(path: Path, target: Path) -> None:
    """Copy a file or a folder, but nothing that a link to a folder leads to: that could be the whole disk."""
    if path.is_dir() and not path.is_symlink():
        shutil.copytree(path, target, dirs_exist_ok=True, ignore=_linked_folders)
    elif path.is_file():
        shutil.copyfile(path, target)


def _linked_folders(folder: str, names: list[str]) -> list[str]:
    return [name for name in names if (path := Path(folder, name)).is_symlink() and not path.is_file()]


def _copy_modules(source: Path, folder: Path) -> None:
    """The folders that sentence-transformers' modules.json names (1_Pooling, 2_Normalize, 3_Dense)."""
    modules = read_json(source / "modules.json")
    names = [str(module.get("path", "")) for module in modules if isinstance(module, dict)]
    for name in (name for name in names if name):
        inside = (source / name).resolve()
        if source.resolve() not in inside.parents:
            raise SourceError(f"{source / 'modules.json'} names {name!r}, which is outside its folder")
        if inside.is_dir():
            _copy(inside, folder / name)


def _takes_text(model: Any) -> bool:
    return model.main_input_name == "input_ids" and hasattr(model.config.get_text_config(), "vocab_size")


def _check_vocabulary(model: Any, folder: Path) -> None:
    """Refuse a tokenizer with ids beyond the embedding's rows: it would fail at the first such token."""
    file = folder / "tokenizer.json"
    if not file.is_file() or not _takes_text(model):
        return
    content = read_json(file)
    vocabulary = (content.get("model") or {}).get("vocab") if isinstance(content, dict) else None
    ids = list(vocabulary.values()) if isinstance(vocabulary, dict) else list(range(len(vocabulary or ())))
    rows = model.get_input_embeddings().weight.shape[0]
    if ids and all(isinstance(number, int) for number in ids) and max(ids) >= rows:
        raise SourceError(
            f"the tokenizer of {getattr(model.config, '_name_or_path', 'the model')} has ids up to {max(ids)}, but the "
            f"model's embedding has {rows} rows: it is the tokenizer of another model"
        )
