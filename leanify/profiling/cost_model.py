"""The costs of a model in any shape: read from the user's cache, or counted by the live model. Imports no torch.

Counts (facts, costs of shapes, tokens, parameters of stages) are kept in one JSON file of the user's cache, so a
redesign of a known model imports no torch. Missing counts are made and added. The key of the file consists of
everything that determines prices: the name or the bytes of the configuration, the options that change the model, and
the versions of leanify and of upstream's libraries.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from leanify.core import recipe
from leanify.core.architecture import Architecture
from leanify.core.errors import LeanifyError, RecipeError, ShapeError
from leanify.core.files.cache import home, read_value, write_value
from leanify.core.files.reading import read_text
from leanify.profiling.cost import Cost, ModelFacts

if TYPE_CHECKING:
    from torch import nn

    from leanify.profiling.live_model import LiveModel
    from leanify.sources.source import ModelSource

    Source: TypeAlias = str | Path | recipe.Recipe | ModelSource | nn.Module  # what `sources.find.find` takes

CacheFile = tuple[Path, str]  # a file of the cache, and the key that it must hold
Value = TypeVar("Value")
FORMAT = 8  # raised where what is counted, or known of a model, changes
LIBRARIES = ("leanify", "torch", "timm", "transformers")
SHAPE_FILES = ("config.json", "leanify.json", "recipe.toml", "modules.json")  # of a model's directory
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")


class ModelCosts:
    """Costs of a model in each shape, counted once.

    make   returns the live model, and whether it will be the same next time; called when a count is missing
    file   the file of the counts, with their key; None keeps nothing
    """

    def __init__(self, make: Callable[[], tuple[LiveModel, bool]], file: CacheFile | None = None) -> None:
        self._make, self._file = make, file
        self._facts: dict[str, ModelFacts] = {}
        self._costs: dict[str, Cost] = {}
        self._tokens: dict[str, list[int]] = {}
        self._params: dict[str, int] = {}
        self._sizes: dict[str, list[int] | str] = {}
        self._is_new = False
        self.is_known = file is not None and bool(read_value(*file, self._restore))

    def _restore(self, counts: Mapping[str, Any]) -> bool:
        """Take over counts from the cache, all or none."""
        facts = {"": ModelFacts.from_json(counts["facts"])}
        costs = {shape: Cost(*numbers) for shape, numbers in counts["costs"].items()}
        tokens, params, sizes = dict(counts["tokens"]), dict(counts["params"]), dict(counts.get("sizes") or {})
        self._facts, self._costs, self._tokens, self._params, self._sizes = facts, costs, tokens, params, sizes
        return True

    @cached_property
    def live(self) -> LiveModel:
        """The live model on meta. If building it warns, nothing is kept: the next plan must warn again."""
        with warnings.catch_warnings(record=True) as records:
            warnings.simplefilter("always")
            live, is_lasting = self._make()
        for record in records:
            warnings.warn_explicit(record.message, record.category, record.filename, record.lineno)
        if records or not is_lasting:
            self._file = None
        return live

    @property
    def facts(self) -> ModelFacts:
        return self._count(self._facts, "", lambda: self.live.facts)

    def cost(self, shape: Architecture) -> Cost:
        """The cost of the model in this shape. Raises UnsupportedModel if it does not run so."""
        return self._count(self._costs, str(shape), lambda: self.live.cost(shape))

    def tokens(self, shape: Architecture) -> list[int]:
        """The number of tokens N of A in each stage, in this shape."""
        return self._count(self._tokens, str(shape), lambda: self.live.tokens(shape))

    def stage_params(self, stages: Sequence[int]) -> int:
        """The parameters in the blocks of these stages, shared ones counted once."""
        return self._count(self._params, " ".join(map(str, stages)), lambda: self.live.stage_params(stages))

    def sizes(self, shape: Architecture) -> tuple[int, int]:
        """Parameters of the model and of its blocks in this shape. Raises ShapeError, also again, if none is built."""

        def count() -> list[int] | str:
            try:
                return self.live.sizes(shape)
            except LeanifyError as error:
                return str(error)

        result = self._count(self._sizes, str(shape), count)
        if isinstance(result, str):
            raise ShapeError(result)
        params, body = result
        return params, body

    def _count(self, values: dict[str, Value], key: str, count: Callable[[], Value]) -> Value:
        if key not in values:
            values[key], self._is_new = count(), True
        return values[key]

    def keep(self) -> None:
        """Write new counts to the user's cache, if it can be written."""
        if self._is_new and self._file is not None:
            costs = {shape: list(cost.numbers) for shape, cost in self._costs.items()}
            counts = {"facts": self.facts.to_json(), "costs": costs, "tokens": self._tokens, "params": self._params}
            counts["sizes"] = self._sizes
            with contextlib.suppress(OSError):
                write_value(*self._file, counts)
        self._is_new = False


# -- the file of a model ----------------------------------------------------------------------------------------------


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
