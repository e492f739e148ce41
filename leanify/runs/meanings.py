"""The recipe's key for a name that other libraries use, for error messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

# The names that PyTorch, timm, transformers and Lightning users type → `section.key`.
MEANINGS: Mapping[str, str] = {
    "learning_rate": "optim.lr",
    "optimizer": "optim.name",
    "max_grad_norm": "optim.clip",
    "num_train_epochs": "schedule.epochs",
    "max_steps": "schedule.steps",
    "bs": "schedule.batch_size",
    "scheduler": "schedule.kind",
    "warmup_steps": "schedule.warmup",
    "fp16": "run.precision",
    "bf16": "run.precision",
    "gradient_accumulation_steps": "run.accumulate",
    "dataset": "data.name",
    "data": "data.path",
    "data_dir": "data.path",
    "max_length": "data.length",
    "num_workers": "data.workers",
    "num_layers": "model.depth",
    "model": "model.source",
    # the model's own arguments
    "dropout": "model.override.drop_rate (timm) or model.override.hidden_dropout_prob (transformers)",
    "num_classes": "model.override.num_classes",
    "num_labels": "model.override.num_labels",
}


def meant(key: str, section: str, known: Iterable[str]) -> str | None:
    """Guess the ``section.key`` meant by an unknown key: by meaning, by name, then by spelling.

    Returns None if nothing is close, or if a key of the same section is: the caller suggests that one itself.
    """
    word = key.rpartition(".")[2].lower().replace("-", "_")
    if word in MEANINGS:
        return MEANINGS[word]
    sections: dict[str, list[str]] = {}  # of every key
    for name in known:
        where, _, last = name.rpartition(".")
        sections.setdefault(last, []).append(where)
    if word in sections:
        return " or ".join(f"{where}.{word}" for where in sections[word])
    here = [name for name, places in sections.items() if section in places]
    if section and difflib.get_close_matches(word, here, n=1):
        return None
    near = difflib.get_close_matches(word, sections, n=1, cutoff=0.7)
    return f"{sections[near[0]][0]}.{near[0]}" if near else None
