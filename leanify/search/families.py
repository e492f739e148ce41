"""How makers divide a smaller budget between layers and width: the exponent of width in published families.

In a family of models (`families.toml`) width grows with the parameters of the blocks as width ∝ params^a. With heads
and MLP in proportion to the width, a block has width² parameters, so depth grows with params^(1 − 2a).
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import linear_regression

from leanify.profiling.price_list import PriceList
from leanify.search.towers import towers

FILE = Path(__file__).with_suffix(".toml")


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
    rows = tomllib.loads(FILE.read_text(encoding="utf-8"))["family"]
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
