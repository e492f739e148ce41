"""What was published: lean models, and the families in which makers divide a smaller budget between layers and width.

`published.toml` has a row for each lean model; a tower of a model follows the nearest one. In a family
(`families.toml`) width grows with the parameters of the blocks as width ∝ params^a. With heads and MLP in proportion to
the width, a block has width² parameters, so depth grows with params^(1 − 2a).
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import linear_regression
from typing import Any, NamedTuple

from leanify.core.architecture import Layer, primary_layer
from leanify.profiling.cost import ModelFacts
from leanify.profiling.price_list import PriceList
from leanify.search.towers import Tower, tower_stages, towers

READERS = ("vision", "encoder", "decoder")  # kinds by input type; other kinds are parts of a model name
SAME_WIDTH, SAME_DEPTH = 1.5, 2.0  # a row applies to models within these factors of its size


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name(name).read_text(encoding="utf-8"))


# -- lean models -------------------------------------------------------------------------------------------------------


class Sizes(NamedTuple):
    """The shape of the leading stage."""

    depth: int
    heads: int
    head_dim: int
    mlp: int


@dataclass(frozen=True)
class Row:
    """One published lean model and its baseline. `published.toml` explains the fields."""

    name: str
    kind: str
    width: int
    baseline: Sizes
    lean: Sizes

    @property
    def is_split(self) -> bool:
        """Whether its heads are smaller than the baseline's."""
        return self.lean.head_dim < self.baseline.head_dim

    @property
    def shape(self) -> str:
        """Its layers, heads and hidden units, such as ``7 × 16, 1536``."""
        return f"{self.lean.depth} × {self.lean.heads}{' split' * self.is_split}, {self.lean.mlp}"

    def is_baseline(self, layer: Layer, depth: int) -> bool:
        """Whether a model is exactly this row's baseline."""
        return (layer.width, Sizes(depth, layer.heads, layer.head_dim, layer.mlp)) == (self.width, self.baseline)


@cache
def rows() -> tuple[Row, ...]:
    """Return all published rows."""
    tables = _read("published.toml")["row"]
    return tuple(Row(**{**row, "baseline": Sizes(*row["baseline"]), "lean": Sizes(*row["lean"])}) for row in tables)


def nearest_row(prices: PriceList, tower: Tower) -> Row | None:
    """Return the row of a tower's kind with the nearest width; None if none has about its width and depth, or if the
    model has another width than its source.
    """
    if not prices.has_own_width:
        return None
    facts = prices.facts
    kind = tower_kind(facts, tower)
    lead = facts.architecture.stages[tower.lead]
    primary = primary_layer(lead)
    candidates = []
    for row in rows():
        width_off = abs(math.log(primary.width / row.width))
        is_as_deep = abs(math.log(lead.depth / row.baseline.depth)) <= math.log(SAME_DEPTH)
        if row.kind == kind and is_as_deep and width_off <= math.log(SAME_WIDTH):
            mlp_off = abs(primary.mlp / primary.width - row.baseline.mlp / row.width)  # tie-break for equal widths
            candidates.append((width_off, mlp_off, row))
    return min(candidates, key=lambda candidate: candidate[:2])[2] if candidates else None


def tower_kind(facts: ModelFacts, tower: Tower) -> str | None:
    """Return the kind of a tower as named by the rows; None if no row was published for such models."""
    stages = tower_stages(facts.architecture, tower)
    lead = facts.architecture.stages[tower.lead]
    # 1. By upstream's name: families with rows for their number of stages.
    for row in rows():
        if row.kind not in READERS and re.search(rf"(^|[:/]){row.kind}", facts.name.lower()):
            return row.kind
    if len(stages) > 1 or lead.mixture is not None:
        return None
    # 2. By input type, for models with equal layers.
    reads_text = "token ids" in facts.inputs
    if "vision" in lead.name or "visual" in lead.name or ("image" in facts.inputs and not reads_text):
        return "vision"
    has_one_tower = sum(not stage.is_fixed for stage in facts.architecture.stages) == 1
    if reads_text and "image" not in facts.inputs and has_one_tower:
        return "decoder" if facts.causal[tower.lead] else "encoder"
    return None


# -- families ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Family:
    """The published members of one series, each with depth, width, heads, key/value heads, head_dim and MLP."""

    name: str
    kind: str
    source: str
    gated: bool
    members: tuple[tuple[int, int, int, int, int, int], ...]

    @property
    def body_params(self) -> list[int]:
        """The parameters of each member's blocks, without biases and norms."""
        params = []
        for depth, width, heads, kv_heads, head_dim, mlp in self.members:
            attention = 2 * width * head_dim * (heads + kv_heads)
            params.append(depth * (attention + (3 if self.gated else 2) * width * mlp))
        return params

    @property
    def exponent(self) -> float:
        """The slope of ln width in ln parameters of the blocks, by least squares."""
        widths = [math.log(member[1]) for member in self.members]
        return linear_regression([math.log(params) for params in self.body_params], widths).slope


@cache
def families() -> tuple[Family, ...]:
    """Return all published families."""
    rows = _read("families.toml")["family"]
    return tuple(Family(**{**row, "members": tuple(map(tuple, row["members"]))}) for row in rows)


def families_like(prices: PriceList) -> Sequence[Family]:
    """Return the families of a model's kind: by its inputs, and whether it is causal."""
    inputs = prices.facts.inputs
    causal = {prices.facts.causal[tower.lead] for tower in towers(prices.architecture, prices.stage_indices)}
    if causal == {True}:
        kind = "decoder"
    elif "sound" in inputs or "features" in inputs:
        kind = "audio"
    elif "token ids" not in inputs and ("image" in inputs or "patches" in inputs):
        kind = "vision"
    elif causal == {True, False} and "image" not in inputs:
        kind = "encoder-decoder"
    else:
        kind = "encoder"
    return [family for family in families() if family.kind == kind]
