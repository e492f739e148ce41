"""The candidates for a checkpoint's weights: shapes within one budget, all priced by one list."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from leanify.carrying.rotation import widest_rotation
from leanify.core.architecture import Architecture
from leanify.core.errors import BudgetError, LeanifyError, ShapeError
from leanify.core.terminal import note
from leanify.core.units import format_count, format_share
from leanify.profiling.price_list import PriceList
from leanify.search import search
from leanify.search.control import control
from leanify.search.design import Design, design_of_architecture, make_design
from leanify.search.options import Options
from leanify.search.redesign import price_list
from leanify.search.request import Request, make_request
from leanify.shrinking.original import Original
from leanify.sources.source import describe

BOTH = ("drop", "pair")
# The bounds of proposals do not apply to the other candidates: data decides about them.
NO_BOUNDS: Mapping[str, Any] = {"min_depth": 1, "min_mlp": 0.25}
MEANING = {
    "vocabulary": "all blocks as they were, fewer tokens",
    "heads": "fewer layers, more heads",
    "control": "fewer layers, the old heads, wider MLPs",
    "narrow": "all layers, narrower MLPs",
    "dropped": "fewer layers as they were, the others dropped",
    "paired": "half as many layers fewer, neighbours paired",
    "rotated": "a narrower residual stream, in its principal components (by name)",
    "free": "every block its own shape, by measured damage",
}
OPENERS = {  # how shapes that a library cannot build open there
    "hf": "in transformers with trust_remote_code=True, with the code stored next to the weights",
    "timm": "in timm after `import leanify` alone",
}
USUAL = ("vocabulary", "narrow", "free")  # that were best on some checkpoint; the others have to be named
OTHERS = ("heads", "control", "dropped", "paired")  # taken where no narrow shape is within the budget


@dataclass(frozen=True)
class Candidate:
    """A shape within the budget.

    design      its sizes and its cost; None if every block gets its own, by measured damage
    moves       the allowed moves to remove layers, or "rotate"
    max_params  the parameters that it may have at most, if it has no design
    """

    name: str
    design: Design | None
    moves: tuple[str, ...] = BOTH
    max_params: int = 0

    @property
    def shape(self) -> Architecture | None:
        return None if self.design is None else self.design.architecture

    def to_json(self) -> dict[str, Any]:
        sizes = {"params": self.max_params} if self.design is None else self.design.to_json()
        return {"name": self.name, **sizes}


@dataclass(frozen=True)
class Prices:
    """The original's price list, and the best designs of a budget of all parameters, or of the blocks, by it."""

    original: Original
    options: Options

    @cached_property
    def list(self) -> PriceList:
        """The prices of the stages that vary."""
        return price_list(self.original.name, self.original.costs, self.options)

    @cached_property
    def baseline(self) -> Design:
        return search.baseline_design(self.list)

    @cached_property
    def request(self) -> Request:
        return make_request(self.list, self.options, self.baseline.cost)

    @property
    def limit(self) -> int:
        """The largest number of parameters, of all or of the blocks."""
        return self.request.limits[self.request.params_cost]

    @property
    def max_params(self) -> int:
        """The largest number of all parameters."""
        baseline_params = self.baseline.params if self.options.count == "all" else self.baseline.params_body
        return self.limit + self.baseline.params - baseline_params

    @cached_property
    def grown(self) -> tuple[Design | None, Design | None]:
        """The best design with more heads, and its control; None if it does not exist."""
        lean = search.search(self.list, self.request, self.options.top).lean
        if lean is None:
            return None, None
        shape = control(self.list, lean.shape, self.request.rules, self.request.limits)
        return lean, None if shape is None else make_design(self.list, shape)

    def pinned(self, **sizes: Sequence[Any]) -> Design | None:
        """The best design with some of the original's sizes, one per stage; None if none is within the budget."""
        pins: dict[str, Any] = {name: values[0] if len(values) == 1 else values for name, values in sizes.items()}
        options = replace(self.options, **NO_BOUNDS, **pins)
        with suppress(BudgetError, ShapeError):
            prices = price_list(self.original.name, self.original.costs, options)
            result = search.search(prices, make_request(prices, options, self.baseline.cost), options.top)
            return result.front[0] if result.front else None
        return None


def candidates(prices: Prices, names: Sequence[str] = (), kind: str = "free") -> list[Candidate]:
    """Return the usual candidates of a budget, or the named ones.

    ``kind`` "plain" removes shapes that the model's own library cannot build, as blocks that differ. A note names
    shapes that need more than that library before any work begins.

    Raises BudgetError if no candidate fits, and LeanifyError for a name that is not a candidate's.
    """
    if unknown := [name for name in names if name not in MEANING]:
        raise LeanifyError(f"--designs {unknown[0]!r} is not one of {', '.join(MEANING)}")
    original = prices.original
    # fewer tokens alone, where these save enough
    if original.fewer is not None and prices.baseline.params <= prices.max_params:
        if names and "vocabulary" not in names:
            raise BudgetError("the smaller vocabulary alone is within the budget; --designs vocabulary takes it")
        return [Candidate("vocabulary", prices.baseline, ())]
    outside_params = prices.baseline.params - prices.baseline.params_body
    if prices.max_params <= outside_params:
        raise BudgetError(
            f"target_params={prices.options.target_params} is a budget of {prices.max_params:,} parameters, and "
            f"{outside_params:,} are outside the blocks, in embeddings and heads; only a larger budget helps"
        )
    moves = {"dropped": ("drop",), "paired": ("pair",), "rotated": ("rotate",)}
    candidate_names = list(names or USUAL)
    if not names and original.source.origin.library not in ("hf", "timm"):
        candidate_names.remove("free")  # no library would open it

    # one candidate per shape that differs from the baseline and from earlier ones
    several: list[Candidate] = []
    shapes = {prices.baseline.architecture}
    designs = dict(_designs(prices, candidate_names))
    if not names and not designs:
        designs = dict(_designs(prices, OTHERS))
    for name in MEANING:
        design = designs.get(name)
        if design is not None and design.architecture not in shapes:
            shapes.add(design.architecture)
            several.append(Candidate(name, design, moves.get(name, BOTH)))

    # shapes that the model's own library cannot build; free shapes are always such
    needs_more = set()
    for one in several:
        description = describe(original.reshape(one.shape), one.shape) if one.shape else None
        if description and (description.architecture is not None or "attn_layer" in description.origin.options):
            needs_more.add(one.name)
    if kind == "plain":
        several = [one for one in several if one.name not in needs_more]
    elif "free" in candidate_names:
        several.append(Candidate("free", None, (), prices.max_params))
        needs_more.add("free")
    original.costs.keep()
    if not several:
        free = "--designs free with --shape free" if kind == "plain" else "--designs free"
        raise BudgetError(
            f"no candidate of {', '.join(candidate_names)} has a separate shape of at most "
            f"{format_count(prices.max_params)} parameters. A larger budget helps, and so does {free}"
        )

    # of a small encoder most is embeddings: a share of all leaves its blocks less than half of that share
    all_share = prices.limit / prices.baseline.params
    block_share = (prices.limit - outside_params) / prices.baseline.params_body
    if prices.options.count == "all" and original.fewer is None and block_share < all_share / 2:
        note(
            f"{format_count(outside_params)} of the {format_count(prices.baseline.params)} parameters are embeddings "
            f"and heads and stay, so the blocks keep {format_share(block_share)} of theirs; --count body applies the "
            "budget to the blocks alone"
        )
    # folders that the model's own library does not open by itself
    how = OPENERS.get(original.source.origin.library)
    openers = [one.name for one in several if one.name in needs_more]
    if openers and how is not None:
        plural = "s" * (len(openers) == 1)
        note(f"{', '.join(openers)} open{plural} {how}; --shape plain gives a model that opens anywhere")
    return several


def _designs(prices: Prices, names: Sequence[str]) -> Iterator[tuple[str, Design]]:
    """Yield the designs of the named candidates that fit the budget."""
    options, stages = prices.options, prices.baseline.architecture.stages
    heads = [stage.primary and stage.primary.heads for stage in stages]
    mlp = [stage.primary and stage.primary.mlp for stage in stages]
    grown, shorter = None, None
    if {"heads", "control", "paired"} & set(names):
        grown, shorter = prices.grown
        if grown is None:
            note("no design with more heads fits the budget; the other candidates are used")
            shorter = prices.pinned(heads=heads)
    designs = {"heads": grown, "control": shorter}
    if "narrow" in names:
        designs["narrow"] = prices.pinned(depth=[stage.depth for stage in stages], heads=heads)
    if "dropped" in names:
        designs["dropped"] = prices.pinned(heads=heads, mlp=mlp)
    if "paired" in names and shorter is not None:
        depth = [-(-(old.depth + new.depth) // 2) for old, new in zip(stages, shorter.architecture.stages, strict=True)]
        designs["paired"] = prices.pinned(depth=depth, heads=heads)
    if "rotated" in names:
        shape = widest_rotation(prices.original.shell, prices.baseline.architecture, prices.limit, options.count)
        designs["rotated"] = design_of_architecture(prices.list, shape)
    for name, design in designs.items():
        if design is not None and name in names:
            yield name, design
