"""One shape with its costs: what a plan shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from leanify.architecture import Architecture, Layer, Stage
from leanify.design.prices.price_list import PriceList
from leanify.design.search.grid import Candidate
from leanify.design.search.search import score
from leanify.design.search.serving import Serving, serving


@dataclass(frozen=True)
class Design:
    """One shape with its costs. The numbers are integers, or a list with one for every stage where stages differ.

    ``mlp`` is that of one expert in a mixture; ``experts`` are its routed ones, 0 where there is none, and a token is
    sent to ``active_experts`` of them. ``params_active`` are the parameters that one token meets; ``serving`` is None
    where nothing is cached; ``score`` is what the ranking goes by, the least is the best. Latencies
    are of the line that was fitted to timed shapes, as measured, and of one more token as measured; None where nothing
    was timed.
    """

    depth: int | list[int]
    heads: int | list[int]
    head_dim: int | list[int]
    inner: int | list[int]
    mlp: int | list[int]
    experts: int | list[int]
    active_experts: int | list[int]
    params: int
    params_body: int
    params_active: int
    macs: int
    kappa_predicted: float
    score: float
    architecture: Architecture
    serving: Serving | None = None
    latency_predicted_s: float | None = None
    latency_s: float | None = None
    token_latency_s: float | None = None

    def to_json(self) -> dict[str, Any]:
        """JSON has no infinity: an infinite κ is written as the string ``inf``."""
        plain = {name: value for name, value in vars(self).items() if name not in ("architecture", "serving")}
        kappa = "inf" if self.kappa_predicted == float("inf") else self.kappa_predicted
        served = vars(self.serving) if self.serving else dict.fromkeys(Serving.__dataclass_fields__)
        return {**plain, "kappa_predicted": kappa, **served, "architecture": self.architecture.to_json()}


def designer(prices: PriceList) -> Callable[[Candidate], Design]:
    """How candidates of a price list become designs."""

    def design(candidate: Candidate) -> Design:
        architecture = candidate.applied_to(prices.architecture)
        rows = [_row(stage, stage.primary) for stage in architecture.stages if stage.primary is not None]
        depth, heads, head_dim, inner, mlp, experts, active = (
            column[0] if len(set(column)) == 1 else list(column) for column in zip(*rows, strict=True)
        )
        sizes = (depth, heads, head_dim, inner, mlp, experts, active)
        c = candidate.cost
        costs = (c.params, c.params_body, c.active, c.macs, candidate.kappa, score(prices, candidate))
        return Design(*sizes, *costs, architecture, serving(prices, candidate))

    return design


def _row(stage: Stage, primary: Layer) -> tuple[int, ...]:
    """Depth, heads, head_dim, inner, hidden units, experts and active ones of a stage."""
    mixture = stage.mixture or primary
    return stage.depth, primary.heads, primary.head_dim, primary.inner, primary.mlp, mixture.experts, mixture.active
