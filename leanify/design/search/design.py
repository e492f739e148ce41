"""A design: one shape of a model with its exact costs."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from leanify.architecture import Architecture
from leanify.design.prices.cost import Cost
from leanify.design.prices.price_list import PriceList
from leanify.design.prices.shapes import Shape, applied
from leanify.design.search.ranking import score
from leanify.design.search.serving import Serving, serving

Sizes = int | list[int]  # one number, or one for each stage if stages differ


@dataclass(frozen=True)
class Design:
    """One shape of a model with its costs.

    shape            what each stage becomes; None leaves it as it is
    cost             parameters, MACs, cache; `params`, `macs` … read them
    kappa_predicted  the largest predicted κ of the changed stages (Theorem 3.2)
    score            the ranking's score, lowest is best
    serving          costs of a decoder in service; None if nothing is cached
    latency_s        measured; ``token_latency_s`` for one more token, ``latency_predicted_s`` by the fitted line;
                     None if nothing was timed
    """

    architecture: Architecture
    cost: Cost
    kappa_predicted: float
    score: float
    serving: Serving | None = None
    latency_predicted_s: float | None = None
    latency_s: float | None = None
    token_latency_s: float | None = None
    shape: Shape = field(default=(), repr=False)

    @cached_property
    def sizes(self) -> dict[str, Sizes]:
        """Depth, heads, head_dim, inner, hidden units, experts and active experts.

        ``mlp`` is that of one expert in a mixture; ``experts`` are its routed ones, 0 if there are none.
        """
        rows = []
        for stage in self.architecture.stages:
            if (primary := stage.primary) is not None:
                mixture = stage.mixture or primary
                row = (stage.depth, primary.heads, primary.head_dim, primary.inner, primary.mlp)
                rows.append((*row, mixture.experts, mixture.active))
        names = ("depth", "heads", "head_dim", "inner", "mlp", "experts", "active_experts")
        columns = zip(*rows, strict=True)
        return {n: c[0] if len(set(c)) == 1 else list(c) for n, c in zip(names, columns, strict=True)}

    @property
    def depth(self) -> Sizes:
        return self.sizes["depth"]

    @property
    def heads(self) -> Sizes:
        return self.sizes["heads"]

    @property
    def head_dim(self) -> Sizes:
        return self.sizes["head_dim"]

    @property
    def inner(self) -> Sizes:
        return self.sizes["inner"]

    @property
    def mlp(self) -> Sizes:
        return self.sizes["mlp"]

    @property
    def experts(self) -> Sizes:
        return self.sizes["experts"]

    @property
    def active_experts(self) -> Sizes:
        return self.sizes["active_experts"]

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
    served = serving(prices, architecture, cost)
    return Design(architecture, cost, prices.kappa(shape), score(prices, shape), served, shape=shape)
