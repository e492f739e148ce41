"""A design: one shape of a model with its exact costs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from leanify.core.architecture import Architecture
from leanify.profiling.cost import Cost, Shape, StageShape, apply_shape, read_shape
from leanify.profiling.price_list import PriceList
from leanify.search.ranking import score

Sizes = int | list[int]
SIZES = ("depth", "width", "heads", "head_dim", "inner", "mlp", "experts", "active_experts")


@dataclass(frozen=True)
class Serving:
    """Costs of one sequence at a context of N tokens.

    kv_bytes_per_token  bytes of cache divided by N, at two bytes per number
    prefill_macs        multiply-adds of a forward pass over N tokens, masked pairs included (`counting.generation`)
    decode_macs         multiply-adds of one token with N cached tokens, or with the tokens in a layer's window
    """

    context: int
    kv_bytes_per_token: float
    prefill_macs: int | None
    decode_macs: int | None


def serving(prices: PriceList, architecture: Architecture, cost: Cost) -> Serving | None:
    """Return the serving costs of the model in this shape; None if no layer has a cache.

    A decoder takes F(T) = aT + bT² MACs for T tokens, with b in its attention maps, so F at one length gives all
    lengths.
    """
    if not cost.kv:
        return None
    # with layers of several kinds only the counted costs are known
    n = prices.facts.context
    per_token = cost.kv / n
    if any(len(block) > 1 for stage in prices.architecture.stages for block in stage.blocks):
        return Serving(n, per_token, cost.prefill or None, cost.decode or None)
    # MACs of the products of queries with keys and values
    quadratic = row = 0  # MACs of a query with one key and its value; with all cached keys and values
    for stage, stage_caches in zip(architecture.stages, prices.facts.caches, strict=True):
        for i, block in enumerate(stage.blocks):
            for layer, cache in zip(block, stage_caches[min(i, len(stage_caches) - 1)], strict=True):
                pair = layer.heads * ((cache and cache.pair) or 2 * layer.head_dim)
                quadratic += pair
                row += pair * (cache.cached_tokens(n) if cache else n)
    # all other MACs are linear in the tokens
    tokens = prices.tokens[prices.stage_indices[0]]
    linear = cost.macs - tokens**2 * quadratic
    return Serving(n, per_token, n * linear // tokens + n**2 * quadratic, linear // tokens + row)


@dataclass(frozen=True)
class Design:
    """One shape of a model with its costs.

    cost             parameters, MACs and cache; properties such as `params` and `macs` read them
    kappa_predicted  the largest predicted κ of the changed stages (Theorem 3.2)
    score            the ranking's score, lowest is best
    depth, heads …   one number, or one per stage if stages differ
    mlp              hidden units; of one expert in a mixture. ``experts`` counts routed experts, 0 without a mixture
    shape            the new shape of each stage; None if it is unchanged
    serving          serving costs of a decoder; None if nothing is cached
    latency_s        measured latency of a forward pass of one sample; None if it was not timed
    """

    architecture: Architecture
    cost: Cost
    kappa_predicted: float
    score: float
    depth: Sizes
    width: Sizes
    heads: Sizes
    head_dim: Sizes
    inner: Sizes
    mlp: Sizes
    experts: Sizes
    active_experts: Sizes
    shape: Shape = field(repr=False)
    serving: Serving | None = None
    latency_s: float | None = None

    @property
    def sizes(self) -> dict[str, Sizes]:
        """Depth, width, heads, head_dim, inner, hidden units, experts and active experts."""
        return {name: getattr(self, name) for name in SIZES}

    @property
    def params(self) -> int:
        return int(self.cost.params)

    @property
    def params_body(self) -> int:
        return int(self.cost.params_body)

    @property
    def params_embeddings(self) -> int | None:
        """Parameters of tables with a row for each token; None without any."""
        return int(self.cost.embeddings) or None

    @property
    def params_active(self) -> int:
        return int(self.cost.active)

    @property
    def macs(self) -> int:
        return int(self.cost.macs)

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary for JSON, which has no infinity: an infinite κ becomes the string ``inf``."""
        serving_fields = vars(self.serving) if self.serving else dict.fromkeys(Serving.__dataclass_fields__)
        kappa = "inf" if self.kappa_predicted == float("inf") else self.kappa_predicted
        return {
            **self.sizes,
            "params": self.params,
            "params_body": self.params_body,
            "params_active": self.params_active,
            "macs": self.macs,
            "kappa_predicted": kappa,
            "score": self.score,
            "latency_s": self.latency_s,
            **serving_fields,
            "params_embeddings": self.params_embeddings,  # behind the others: columns of a table keep their places
            "architecture": self.architecture.to_json(),
        }


def make_design(prices: PriceList, shape: Shape) -> Design:
    """Return the design with this shape and its costs."""
    return _make(prices, apply_shape(shape, prices.architecture), prices.total(shape), shape)


def design_of_architecture(prices: PriceList, architecture: Architecture) -> Design:
    """Return the design of an architecture, counted on meta: its width may differ, and price lists have one width."""
    shape = read_shape(architecture, prices.stage_indices)
    return _make(prices, architecture, prices.costs.cost(architecture), shape)


def _make(prices: PriceList, architecture: Architecture, cost: Cost, shape: Shape) -> Design:
    # a row of sizes for each stage that has attention
    rows = []
    for stage in architecture.stages:
        primary = stage.primary
        if primary is not None:
            mixture = stage.mixture or primary
            row = (stage.depth, primary.width, primary.heads, primary.head_dim, primary.inner, primary.mlp)
            rows.append((*row, mixture.experts, mixture.active))
    # one number where all stages agree, otherwise one for each stage
    sizes: dict[str, Any] = {}
    for name, values in zip(SIZES, zip(*rows, strict=True), strict=True):
        sizes[name] = values[0] if len(set(values)) == 1 else list(values)
    serving_cost = serving(prices, architecture, cost)
    return Design(
        architecture, cost, prices.kappa(shape), score(prices, shape), **sizes, shape=shape, serving=serving_cost
    )


def changes(old: Design, new: Design) -> list[tuple[StageShape, StageShape]]:
    """Return (old, new) for every stage that may change."""
    stages = zip(old.shape, new.shape, strict=True)
    return [(before, after) for before, after in stages if before is not None and after is not None]
