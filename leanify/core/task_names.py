"""The tasks, by the names that a recipe gives them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class TaskFiles(NamedTuple):
    """The modules of a task."""

    loss: str  # its file in `leanify.tasks`, with ``task(recipe, splits)``
    data: str | None = None  # the module that reads the user's own data for it, with ``splits(data, model)``


IMAGES, SENTENCES = "data.images.folder", "data.texts.own_texts"

TASKS: Mapping[str, TaskFiles] = {
    "classification": TaskFiles("classification", IMAGES),
    "text-classification": TaskFiles("classification", SENTENCES),
    "text-regression": TaskFiles("regression", SENTENCES),
    "pair-classification": TaskFiles("classification"),
    "masked-lm": TaskFiles("language_modelling", "data.texts.masked"),
    "causal-lm": TaskFiles("language_modelling", "data.texts.corpus"),
    "regression": TaskFiles("regression"),
    "sentence-embedding": TaskFiles("sentence_embedding", "data.texts.sentences"),
}


def can_be_applied(task: str) -> bool:
    """Whether `leanify predict` applies a model of this task to more of the user's own data."""
    return TASKS[task].data in (IMAGES, SENTENCES)
