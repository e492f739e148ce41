"""The costs of a model in any shape: what is known from the user's cache, and what the live model is asked for.

Answers (facts, costs of shapes, tokens, parameters of stages) are kept as JSON in the user's cache, one file
for a SOURCE with its overrides, class, tokens and context (`cache`). A redesign whose answers are all known
imports no torch. What is missing is counted by the live model and kept too. A model on the hub is not kept,
because its configuration may change there. ``LEANIFY_PRICES=off`` counts everything anew and keeps nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from leanify.architecture import Architecture
from leanify.design.prices.cache import CacheFile, heard, keep, kept
from leanify.design.prices.shapes import Cost, Facts

if TYPE_CHECKING:
    from torch import nn


class Live(Protocol):
    """A model on meta that counts what each shape costs: `prices.live.LiveModel`."""

    model: nn.Module

    @property
    def facts(self) -> Facts: ...

    def cost(self, shape: Architecture) -> Cost: ...

    def tokens(self, shape: Architecture) -> list[int]: ...

    def params_of(self, stages: Sequence[int]) -> int: ...


Make = Callable[[], tuple[Live, bool]]  # the live model, and whether it will be the same next time


class ModelCosts:
    """What a model costs in each shape, counted once.

    make   builds the live model; called when something must be counted
    file   where answers are kept, with the key that they are kept under; None keeps nothing
    """

    def __init__(self, make: Make, file: CacheFile | None = None) -> None:
        self._make, self._file = make, file
        self._facts: Facts | None = None
        self._costs: dict[str, Cost] = {}
        self._tokens: dict[str, list[int]] = {}
        self._held: dict[str, int] = {}
        self._is_new = False
        self.is_known = kept(file, self._take) is not None

    def _take(self, answers: Mapping[str, Any]) -> bool:
        """Take over what was kept, all or nothing."""
        costs = {shape: Cost(*numbers) for shape, numbers in answers["costs"].items()}
        facts, tokens, held = Facts.from_json(answers["facts"]), dict(answers["tokens"]), dict(answers["held"])
        self._facts, self._costs, self._tokens, self._held = facts, costs, tokens, held
        return True

    @cached_property
    def live(self) -> Live:
        """The live model on meta. If building it warns, nothing is kept: the next plan must warn again."""
        (live, is_lasting), warned = heard(self._make)
        if warned or not is_lasting:
            self._file = None
        return live

    @property
    def key(self) -> str | None:
        """The key of the cache; None if nothing is kept."""
        return None if self._file is None else self._file[1]

    @property
    def model(self) -> nn.Module:
        """The model itself, on meta."""
        return self.live.model

    @property
    def facts(self) -> Facts:
        if self._facts is None:
            self._facts, self._is_new = self.live.facts, True
        return self._facts

    def cost(self, shape: Architecture) -> Cost:
        """The cost of the model in this shape. Raises UnsupportedModel if it does not run so."""
        key = str(shape)
        if key not in self._costs:
            self._costs[key], self._is_new = self.live.cost(shape), True
        return self._costs[key]

    def tokens(self, shape: Architecture) -> list[int]:
        """The number of tokens N of A in each stage, in this shape."""
        key = str(shape)
        if key not in self._tokens:
            self._tokens[key], self._is_new = self.live.tokens(shape), True
        return self._tokens[key]

    def params_of(self, stages: Sequence[int]) -> int:
        """The parameters in the blocks of these stages, shared ones counted once."""
        key = " ".join(map(str, stages))
        if key not in self._held:
            self._held[key], self._is_new = self.live.params_of(stages), True
        return self._held[key]

    def keep(self) -> None:
        """Write new answers to the user's cache, if it can be written."""
        if self._is_new:
            costs = {shape: list(cost.numbers) for shape, cost in self._costs.items()}
            answers = {"facts": self.facts.to_json(), "costs": costs, "tokens": self._tokens, "held": self._held}
            keep(self._file, answers)
        self._is_new = False
