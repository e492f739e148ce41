"""The file of a model's prices: one JSON file in the user's cache. Imports no torch.

The key of a file consists of everything that determines prices: the name or the bytes of the configuration, the
options that change the model, and the versions of leanify and of upstream's libraries.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from leanify.core import recipe
from leanify.core.architecture import Architecture
from leanify.core.errors import RecipeError
from leanify.core.files.cache import home
from leanify.core.files.reading import read_text

if TYPE_CHECKING:
    from torch import nn

    from leanify.sources.source import ModelSource

    Source: TypeAlias = str | Path | recipe.Recipe | ModelSource | nn.Module  # what `sources.find.find` takes

CacheFile = tuple[Path, str]  # a file of the cache, and the key that it must hold
FORMAT = 8  # raised where what is counted, or known of a model, changes
LIBRARIES = ("leanify", "torch", "timm", "transformers")
SHAPE_FILES = ("config.json", "leanify.json", "recipe.toml", "modules.json")  # of a model's directory
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")


def price_file(
    source: Source,
    overrides: Mapping[str, Any],
    tokens: int | None = None,
    context: int | None = None,
    shape: Architecture | None = None,
) -> CacheFile | None:
    """Return the file for the prices of a source and the key that it must hold; None if its prices are not kept.

    ``shape`` is the model's shape if it isn't the source's own. A model on the hub may change there, and the code of a
    user's module may do anything. LEANIFY_PRICES=off keeps no prices at all.
    """
    configuration = read_configuration(source)
    if configuration is None or os.environ.get("LEANIFY_PRICES") == "off":
        return None
    changes: list[Any] = [dict(overrides), tokens, context]
    if shape is not None:
        changes.append(shape.to_json())
    versions = [metadata.version(library).partition("+")[0] for library in LIBRARIES]
    try:
        key = json.dumps([FORMAT, configuration, changes, versions], sort_keys=True)
    except TypeError:  # an override that is not JSON
        return None
    return home() / "prices" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json", key


def read_configuration(source: Source) -> list[Any] | None:
    """The name of a source and the contents of the files that define its shape; None if others may change it."""
    # a recipe: its own text and its model's configuration
    if isinstance(source, recipe.Recipe):
        inner = read_configuration(source.model.source)
        return inner and [source.to_toml(), *inner]
    # a resolved source, unless code could make something else of it each time
    if not isinstance(source, (str, Path)):
        model_source: Any = source
        if getattr(getattr(model_source, "origin", None), "library", "live") in ("module", "live"):
            return None
        shape = model_source.architecture and model_source.architecture.to_json()
        return None if isinstance(model_source.weights, str) else [asdict(model_source.origin), shape]
    name, path = str(source), Path(source).expanduser()
    try:
        # a name counts by itself, a recipe's file by its text
        if path.suffix == ".toml" or not path.exists():
            return _read_name(name, path)
        # a directory: its configuration, and the time of its weights, because they decide on the head
        folder = path if path.is_dir() else path.parent
        files = [path] if path.suffix == ".json" else [folder / shape_file for shape_file in SHAPE_FILES]
        contents: list[Any] = [[str(file.absolute()), read_text(file)] for file in files if file.is_file()]
        if not contents:
            return None
        weights = [folder / weights_file for weights_file in WEIGHTS]
        return [name, *contents, *([file.name, file.stat().st_mtime_ns] for file in weights if file.is_file())]
    except (OSError, ValueError, RecipeError):
        return None


def _read_name(name: str, path: Path) -> list[Any] | None:
    """The configuration of a recipe, by its file or name, or of a model that upstream knows by name."""
    file = path if path.exists() else recipe.find(name)
    if file is not None:
        inner = read_configuration(recipe.load(file).model.source)
        return inner and [str(file), read_text(file), *inner]
    is_on_hub = "/" in name and name.split("/")[0] not in ("timm", "hf", "leanify")
    return None if is_on_hub or ":" in name or name.startswith((".", "/", "~")) else [name]
