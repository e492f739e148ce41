"""A run's card, leanify.json: how upstream builds its model, and its shape."""

from __future__ import annotations

import json
from collections.abc import Sequence

from torch import nn

from leanify.errors import SourceError
from leanify.lens import surgery
from leanify.runs.recipe import Recipe
from leanify.sources import lean_directory
from leanify.upstream.origin import origin_of


def card_of(recipe: Recipe, model: nn.Module, classes: Sequence[str] = ()) -> str:
    """The text of a run's leanify.json. Raises SourceError for a model that did not come from a known library."""
    origin = origin_of(model)
    if origin is None:
        raise SourceError(f"this {type(model).__name__} was not created by leanify, timm or transformers")
    card = {
        "format": lean_directory.FORMAT,
        "origin": vars(origin),
        "architecture": surgery.read(model).to_json(),
        "params": sum(parameter.numel() for parameter in model.parameters()),
        "tied": lean_directory.untied(model)[1],
        "requires": lean_directory.requirements(origin),
        "recipe": recipe.to_dict(),
        "classes": list(classes),
    }
    return json.dumps(card, indent=2) + "\n"
