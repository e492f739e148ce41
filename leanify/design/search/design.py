"""A design: one shape of a model with its exact costs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from leanify.architecture import Architecture
from leanify.design.prices.price_list import PriceList
from leanify.design.prices.shapes import Cost, Shape, StageShape, applied
from leanify.design.search.ranking import score

Sizes = int | list[int]
SIZES = ("depth", "heads", "head_dim", "inner", "mlp", "experts", "active_experts")


@dataclass(frozen=True)
class Serving:
    """Costs of one sequence at a context of N tokens.

    kv_bytes_per_token  bytes of cache divided by N, at two bytes a number
    prefill_macs        multiply-adds of a forward pass over N tokens, masked pairs included (`counting.generation`)
    decode_macs         multiply-adds of one token with N cached ones, or with those in a layer's window
    """

    context: int
    kv_bytes_per_token: float
    prefill_macs: int | None
    decode_macs: int | None


def serving(prices: PriceList, architecture: Architecture, cost: Cost) -> Serving | None:
    """What the model costs in service in this shape; None if no layer keeps a cache.

    A decoder takes F(T) = aT + bT² MACs for T tokens, b in its attention maps; so F at one length gives all lengths.
    """
    if not cost.kv:
        return None
    n = prices.facts.context
    per_token = cost.kv / n
    if any(len(block) > 1 for stage in prices.architecture.stages for block in stage.blocks):
        return Serving(n, per_token, cost.prefill or None, cost.decode or None)
    quadratic = row = 0  # MACs of queries with one key and its value, and with those of all tokens that layers keep
    for stage, known in zip(architecture.stages, prices.facts.kept, strict=True):
        for i, block in enumerate(stage.blocks):
            for layer, kept in zip(block, known[min(i, len(known) - 1)], strict=True):
                pair = layer.heads * ((kept and kept.pair) or 2 * layer.head_dim)
                quadratic += pair
                row += pair * (kept.seen(n) if kept else n)
    tokens = prices.tokens[prices.changed[0]]
    linear = cost.macs - tokens**2 * quadratic
    return Serving(n, per_token, n * linear // tokens + n**2 * quadratic, linear // tokens + row)


@dataclass(frozen=True)
class Design:
    """One shape of a model with its costs.

    cost             parameters, MACs, cache; `params`, `macs` … read them
    kappa_predicted  the largest predicted κ of the changed stages (Theorem 3.2)
    score            the ranking's score, lowest is best
    depth, heads …   one number, or one for each stage if stages differ
    mlp              in a mixture that of one expert; ``experts`` are its routed ones, 0 if there are none
    shape            what each stage becomes; None leaves it as it is
    serving          costs of a decoder in service; None if nothing is cached
    latency_s        measured; ``token_latency_s`` for one more token, ``latency_predicted_s`` by the fitted line;
                     None if nothing was timed
    """

    architecture: Architecture
    cost: Cost
    kappa_predicted: float
    score: float
    depth: Sizes
    heads: Sizes
    head_dim: Sizes
    inner: Sizes
    mlp: Sizes
    experts: Sizes
    active_experts: Sizes
    shape: Shape = field(repr=False)
    serving: Serving | None = None
    latency_predicted_s: float | None = None
    latency_s: float | None = None
    token_latency_s: float | None = None

    @property
    def sizes(self) -> dict[str, Sizes]:
        """Depth, heads, head_dim, inner, hidden units, experts and active experts."""
        return {name: getattr(self, name) for name in SIZES}

    @property
    def params(self) -> int:
        return int(self.cost.params)

    @property
    def params_body(self) -> int:
        return int(self.cost.params_body)

    @property
    def params_active(self) -> int:
        return int(self.cost.active)

    @property
    def macs(self) -> int:
        return int(self.cost.macs)

    def to_json(self) -> dict[str, Any]:
        """JSON has no infinity: an infinite κ is written as the string ``inf``."""
        served = vars(self.serving) if self.serving else dict.fromkeys(Serving.__dataclass_fields__)
        return {
            **self.sizes,
            "params": self.params,
            "params_body": self.params_body,
            "params_active": self.params_active,
            "macs": self.macs,
            "kappa_predicted": "inf" if self.kappa_predicted == float("inf") else self.kappa_predicted,
            "score": self.score,
            "latency_predicted_s": self.latency_predicted_s,
            "latency_s": self.latency_s,
            "token_latency_s": self.token_latency_s,
            **served,
            "architecture": self.architecture.to_json(),
        }


def design_of(prices: PriceList, shape: Shape) -> Design:
    """The design of this shape, priced."""
    architecture, cost = applied(shape, prices.architecture), prices.total(shape)
    rows = []
    for stage in architecture.stages:
        primary = stage.primary
        if primary is not None:
            mixture = stage.mixture or primary
            row = (stage.depth, primary.heads, primary.head_dim, primary.inner, primary.mlp)
            rows.append((*row, mixture.experts, mixture.active))
    sizes: dict[str, Any] = {}
    for name, values in zip(SIZES, zip(*rows, strict=True), strict=True):
        sizes[name] = values[0] if len(set(values)) == 1 else list(values)
    served = serving(prices, architecture, cost)
    return Design(architecture, cost, prices.kappa(shape), score(prices, shape), **sizes, shape=shape, serving=served)


def changes(old: Design, new: Design) -> list[tuple[StageShape, StageShape]]:
    """(old, new) of every stage that may change."""
    stages = zip(old.shape, new.shape, strict=True)
    return [(before, after) for before, after in stages if before is not None and after is not None]
