"""The costs of a model in any shape: read from the user's cache, or counted by the live model.

Counts (facts, costs of shapes, tokens, parameters of stages) are kept in one file of the user's cache
(`cache`), so a redesign of a known model imports no torch. Missing counts are made and added.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from leanify.core.architecture import Architecture
from leanify.core.errors import LeanifyError, ShapeError
from leanify.core.files.cache import read_value, write_value
from leanify.profiling.cost import Cost, ModelFacts
from leanify.profiling.price_cache import CacheFile

if TYPE_CHECKING:
    from leanify.profiling.live_model import LiveModel

Value = TypeVar("Value")


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
