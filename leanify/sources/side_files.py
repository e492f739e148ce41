"""Files that accompany a model's weights: tokenizer, processors, chat template, pooling.

A redesign keeps the vocabulary and the width, so they stay valid and are copied unchanged. If there is no
tokenizer to copy, transformers would silently build an *empty* one from config.json, with every word unknown.
To prevent that, a tokenizer.json that no loader accepts is written instead.
"""

from __future__ import annotations

import json
import os
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from leanify.core.errors import SourceError
from leanify.core.files import writing
from leanify.core.files.reading import open_file, read_json, read_object, resolve_inside
from leanify.core.path_kinds import WEIGHTS
from leanify.sources.names import snapshot
from leanify.upstream.libraries import import_transformers
from leanify.upstream.origin import text_config

PATTERNS = (
    "tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab*", "merges*", "*.model", "*.spm",
    "*.tiktoken", "*.bpe", "bpe.codes", "dict.txt", "normalizer.json", "chat_template*", "additional_chat_templates",
    "*processor_config.json", "modules.json", "config_sentence_transformers.json", "sentence_*_config.json",
)  # fmt: skip
TOKENIZER = ("tokenizer*", "vocab*", "*.model", "*.spm", "*.tiktoken")
NO_TOKENIZER = {"version": "the source of this model had no tokenizer; save one here: tokenizer.save_pretrained(DIR)"}


def copy_side_files(model: Any, folder: Path) -> None:
    """Copy a transformers model's side files from its source into ``folder``, with the folders that
    sentence-transformers' modules.json names (1_Pooling, 2_Normalize, 3_Dense).

    A text model without a tokenizer gets a tokenizer.json that refuses to load. Raises SourceError if the
    tokenizer has ids beyond the model's embedding.
    """
    source = side_file_folder(model)
    copies: dict[tuple[int, int], Path] = {}
    if source is not None:
        # the checkpoint's other files, by name; links that leave the folder are refused
        for path in sorted(source.iterdir()):
            if any(fnmatch(path.name, pattern) for pattern in PATTERNS) and path.suffix not in WEIGHTS:
                _copy(path, folder / path.name, _home(source), copies)
        # folders of sentence-transformers' modules, such as 1_Pooling
        if (folder / "modules.json").is_file():
            for module in read_json(source / "modules.json"):
                name = str(module.get("path", "")) if isinstance(module, dict) else ""
                target = resolve_inside(source, name) if name else None
                if target is not None and target.is_dir():
                    (folder / name).parent.mkdir(parents=True, exist_ok=True)
                    _copy(target, folder / name, _home(source), copies)
    check_vocabulary(model, folder)
    # without one, transformers would look the tokenizer up elsewhere
    if _takes_text(model) and not any(any(folder.glob(pattern)) for pattern in TOKENIZER):
        writing.write(folder / "tokenizer.json", json.dumps(NO_TOKENIZER, indent=2) + "\n")


def side_file_folder(model: Any) -> Path | None:
    """The directory that the model was loaded from, for a hub id its cached snapshot; None if there is none."""
    # the folder or hub id that transformers noted when it loaded the model
    name = getattr(model.config, "_name_or_path", "") or ""
    path = Path(name).expanduser()
    if not name or path.is_dir():
        return path if name else None
    if name.startswith(("/", ".", "~")) or name in import_transformers().CONFIG_MAPPING:
        return None
    try:
        # with folders of modules.json: 0_…, 1_Pooling, …
        return snapshot(name, [*PATTERNS, *(f"{number}_*" for number in range(10))])
    except Exception:  # the hub client raises from several libraries; `carry` handles a missing tokenizer
        return None


def _copy(path: Path, target: Path, home: Path, copies: dict[tuple[int, int], Path]) -> None:
    """Copy a file or a folder, but no linked folder: that could be the whole disk.

    A file of several names is copied once: ``copies`` are by device and inode. Raises SourceError for a link to a file
    outside ``home``, which must not be passed on.
    """
    if path.is_dir() and not path.is_symlink():
        target.mkdir(exist_ok=True)
        for entry in sorted(path.iterdir()):
            _copy(entry, target / entry.name, home, copies)
    elif path.is_file():
        if home not in path.resolve().parents:
            raise SourceError(
                f"{path} is a link to {path.resolve()}, outside the model's folder; put the file itself there "
                "(cp -rL copies a folder without its links)"
            )
        with open_file(path) as file:
            about = os.fstat(file.fileno())
            first = copies.setdefault((about.st_dev, about.st_ino), target)
            if first == target or not writing.add_name(first, target):
                writing.copy(file, target)


def _home(source: Path) -> Path:
    """The folder that links may lead to: the model's own, or the hub client's copy of a repository."""
    source = source.resolve()
    return source.parent.parent if source.parent.name == "snapshots" else source


def _takes_text(model: Any) -> bool:
    return model.main_input_name == "input_ids" and hasattr(text_config(model.config), "vocab_size")


def check_vocabulary(model: Any, folder: Path) -> None:
    """Raise SourceError for a tokenizer with ids beyond the embedding's rows, which would fail at the first of them."""
    # only vocabularies that transformers would use with these weights
    file = folder / "tokenizer.json"
    if not file.is_file() or not _takes_text(model):
        return
    vocabulary = (read_object(file).get("model") or {}).get("vocab")
    ids = list(vocabulary.values()) if isinstance(vocabulary, dict) else list(range(len(vocabulary or ())))
    # the embedding has one row for each id
    rows = text_config(model.config).vocab_size
    if ids and all(isinstance(number, int) for number in ids) and max(ids) >= rows:
        raise SourceError(
            f"the tokenizer of {getattr(model.config, '_name_or_path', 'the model')} has ids up to {max(ids)}, but the "
            f"model's embedding has {rows} rows: it is the tokenizer of another model"
        )
