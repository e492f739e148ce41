"""Quality against cost, for several costs, because a design can win on one and lose on another.

fronts       for each cost, the Pareto front: designs that no other beats in both mean quality and that cost
quality_per  quality divided by cost; for lower-is-better metrics, 1 / quality divided by cost
"""

from __future__ import annotations

import math
from collections.abc import Callable

from leanify.study.values import DesignResult, Findings

COSTS: dict[str, str] = {  # names as printed
    "params": "parameters",
    "macs": "multiply-adds",
    "train_seconds": "training time",
    "latency_s": "latency",
}
UNITS: dict[str, float] = {"params": 1e6, "macs": 1e9, "train_seconds": 1.0}  # divisors in `quality_per`


def cost(findings: Findings, name: str) -> Callable[[DesignResult], float | None]:
    """Return a function from a design to one of its costs, None if not measured. ``train_seconds`` is per run."""
    samples = findings.samples

    def seconds(result: DesignResult) -> float | None:
        return None if result.costs is None or samples is None else samples / result.costs.train_per_s

    known: dict[str, Callable[[DesignResult], float | None]] = {
        "params": lambda result: result.plan.params,
        "macs": lambda result: result.plan.macs,
        "train_seconds": seconds,
        "latency_s": lambda result: None if result.costs is None else result.costs.latency_s,
    }
    return known[name]


def fronts(findings: Findings) -> dict[str, tuple[str, ...]]:
    """The Pareto front of every cost, cheapest design first."""
    return {name: _front(findings, cost(findings, name)) for name in COSTS}


def _front(findings: Findings, price_of: Callable[[DesignResult], float | None]) -> tuple[str, ...]:
    sign = 1 if findings.higher_is_better else -1
    known = []
    for result in findings.results:
        price = price_of(result)
        if result.quality.mean is not None and price is not None:
            known.append((price, -sign * result.quality.mean, result.name))
    best, front = math.inf, []
    for _, shortfall, name in sorted(known):
        if shortfall < best:
            best = shortfall
            front.append(name)
    return tuple(front)


def quality_per(findings: Findings) -> dict[str, dict[str, float | None]]:
    """For each design, mean quality per million parameters, per GMAC and per second of training; None if unknown."""
    return {
        result.name: {name: _per(findings, result, name) for name in UNITS} for result in findings.results
    }  # fmt: skip


def _per(findings: Findings, result: DesignResult, name: str) -> float | None:
    mean, price = result.quality.mean, cost(findings, name)(result)
    if mean is None or mean <= 0 or not price:
        return None
    return (mean if findings.higher_is_better else 1 / mean) / (price / UNITS[name])


def most_for(findings: Findings) -> dict[str, str]:
    """For each cost, the design with the highest quality per cost."""
    per = quality_per(findings)
    best = {}
    for name in UNITS:
        known = {design: value for design, found in per.items() if (value := found[name]) is not None}
        if known:
            best[name] = max(known, key=known.__getitem__)
    return best
