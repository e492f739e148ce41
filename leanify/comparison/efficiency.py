"""Quality against cost, for several costs, because a design can win on one and lose on another.

The Pareto front of a cost has the designs that no other beats in both mean quality and that cost. Measured costs have a
range over their rounds: one that overlaps another is neither lower nor higher.
"""

from __future__ import annotations

from leanify.comparison.values import DesignResult, Findings, Range

COSTS: dict[str, str] = {  # names as printed
    "params": "parameters",
    "macs": "multiply-adds",
    "train_seconds": "training time",
    "latency_s": "latency",
}


def cost(findings: Findings, result: DesignResult, name: str) -> Range | None:
    """The lowest and highest value of one of a design's costs, equal if exact; None if it was not measured.

    ``train_seconds`` is per run.
    """
    if name in ("params", "macs"):
        exact = float(getattr(result.plan, name))
        return exact, exact
    costs = result.costs
    if costs is None:
        return None
    if name == "latency_s":
        return costs.latency_range or (costs.latency_s, costs.latency_s)
    if findings.samples is None:
        return None
    slow, fast = costs.train_range or (costs.train_per_s, costs.train_per_s)
    return findings.samples / fast, findings.samples / slow


def fronts(findings: Findings) -> dict[str, tuple[str, ...]]:
    """The Pareto front of every cost, cheapest design first."""
    return {name: _front(findings, name) for name in COSTS}


def _front(findings: Findings, name: str) -> tuple[str, ...]:
    sign = 1 if findings.higher_is_better else -1
    candidates = []
    for result in findings.results:
        price = cost(findings, result, name)
        if result.quality.mean is not None and price is not None:
            candidates.append((price, sign * result.quality.mean, result.name))
    front = []
    for (low, _), quality, design in sorted(candidates):
        if not any(better > quality and high <= low for (_, high), better, _ in candidates):
            front.append(design)
    return tuple(front)
