"""Is it heads, inner width, depth or the MLP? Differences between the evidence designs of `sweep.py`.

A difference is that of two designs' validation losses, in nats, by the least-squares fit loss = design + seed over all
runs of a task; its noise has that fit's degrees of freedom. p is corrected by Holm over the pairs of a task.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import stats

from .table import BASELINE, Task, head, line

QUESTIONS = {
    ("lean", "wide-heads"): "head count at equal inner width",
    ("wide-heads", "control"): "inner width instead of MLP",
    ("lean", "control"): "more heads instead of MLP",
    ("control", "depth-only"): "a layer more instead of MLP",
    ("lean", "depth-only"): "lean against dropping layers alone",
    ("lean", BASELINE): "lean against twice the parameters",
    ("control", BASELINE): "control against twice the parameters",
    ("depth-only", BASELINE): "half of the layers, nothing else",
}
NAMES = (BASELINE, "lean", "control", "wide-heads", "depth-only")
TITLES = {
    "fashion-mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
    "enwik8": "enwik8",
    "listops": "ListOps",
    "tinystories": "TinyStories",
    "tinystories-masked": "masked words",
}
LEVEL = 0.05


@dataclass(frozen=True)
class Effect:
    """The loss of one design less that of another: below 0 the first is better. ``each``: seed by seed."""

    task: Task
    pair: tuple[str, str]
    apart: float
    error: float
    p: float

    @property
    def half(self) -> float:
        return float(stats.t.ppf(1 - LEVEL / 2, self.task.fit[2])) * self.error

    @property
    def verdict(self) -> str:
        return "open" if self.p >= LEVEL else "better" if self.apart < 0 else "worse"

    @property
    def percent(self) -> float:
        """Of the baseline's loss."""
        return 100 * self.apart / float(self.task.fit[0][-1])

    @property
    def points(self) -> float:
        """The difference of the task's metric, over the seeds that both designs have."""
        a, b = self.pair
        rows = self.task.rows
        return float(np.mean([float(rows[a, s]["metric"]) - float(rows[b, s]["metric"]) for s in self.seeds]))

    @property
    def seeds(self) -> list[int]:
        every = sorted({s for _, s in self.task.rows})
        return [s for s in every if all((design, s) in self.task.rows for design in self.pair)]

    @property
    def each(self) -> list[float]:
        a, b = self.pair
        return [self.task.loss(a, s) - self.task.loss(b, s) for s in self.seeds]

    @property
    def words(self) -> str:
        """``CIFAR-10 (−0.050, −0.072 … −0.028)``"""
        span = f"{signed(self.apart - self.half)} … {signed(self.apart + self.half)}"
        return f"{TITLES[self.task.name]} ({signed(self.apart)}, {span})"


def signed(value: float) -> str:
    return f"{value:+.3f}".replace("-", "−")


def effects(task: Task) -> list[Effect]:
    """One a question, corrected together."""
    losses, noise, free, spread = task.fit
    places, found = [*task.designs, BASELINE], []
    for a, b in QUESTIONS:
        i, j = places.index(a), places.index(b)
        error = noise * math.sqrt(spread[i, i] + spread[j, j] - 2 * spread[i, j])
        found.append((float(losses[i] - losses[j]), error))
    corrected = holm([float(2 * stats.t.sf(abs(apart) / error, free)) for apart, error in found])
    return [Effect(task, q, *parts, p) for q, parts, p in zip(QUESTIONS, found, corrected, strict=True)]


def holm(p: Sequence[float]) -> list[float]:
    order, found, worst = np.argsort(p), [0.0] * len(p), 0.0
    for place, i in enumerate(order):
        worst = max(worst, min(1.0, (len(p) - place) * p[i]))
        found[i] = worst
    return found


class Evidence:
    """All effects of all tasks, and what can be said of a question over them."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        order = list(TITLES)
        self.tasks = sorted(tasks, key=lambda task: order.index(task.name))

    @cached_property
    def effects(self) -> dict[tuple[str, str], list[Effect]]:
        every = [effects(task) for task in self.tasks]
        return {question: [found[i] for found in every] for i, question in enumerate(QUESTIONS)}

    def shown(self, a: str, b: str, verdict: str) -> list[Effect]:
        return [effect for effect in self.effects[a, b] if effect.verdict == verdict]

    def overall(self, a: str, b: str) -> tuple[float, float, float]:
        """The mean over tasks in percent of the baseline's loss, with its 95% interval over tasks."""
        found = np.array([effect.percent for effect in self.effects[a, b]])
        half = float(stats.t.ppf(0.975, len(found) - 1)) * found.std(ddof=1) / math.sqrt(len(found))
        return float(found.mean()), float(found.mean() - half), float(found.mean() + half)

    def said(self, a: str, b: str) -> str:
        """``better on A (…); worse on none; not told apart on B (…)``: verdicts with sizes."""
        parts = []
        for verdict, words in (("better", "better on"), ("worse", "worse on"), ("open", "not told apart on")):
            found = self.shown(a, b, verdict)
            if found or verdict != "open":
                parts.append(f"{words} {listed([e.words for e in found]) if found else 'none'}")
        return "; ".join(parts)

    def matters(self, a: str, b: str) -> str:
        """``3 of 6 tasks (2 better, 1 worse), 1.4 noises of a run in the middle``"""
        found = self.effects[a, b]
        better, worse = (len(self.shown(a, b, verdict)) for verdict in ("better", "worse"))
        middle = float(np.median([abs(e.apart) / e.task.noise for e in found]))
        return f"{better + worse} of {len(found)} tasks ({better} better, {worse} worse), {middle:.1f} noises of a run"

    @property
    def seeds(self) -> dict[int, list[str]]:
        """Tasks by the number of seeds that all evidence designs have."""
        found: dict[int, list[str]] = {}
        for task in self.tasks:
            number = min(sum(design == name for design, _ in task.rows) for name in NAMES)
            found.setdefault(number, []).append(TITLES[task.name])
        return dict(sorted(found.items(), reverse=True))


def listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


# -- tables -----------------------------------------------------------------------------------------------------------


def print_answer(tasks: Sequence[Task]) -> None:
    """Question by task; what is shown after correction stands in bold."""
    evidence = Evidence(tasks)
    head("loss, first less second", *(TITLES[t.name] for t in evidence.tasks), "all, % of the baseline's loss")
    for (a, b), words in QUESTIONS.items():
        cells = [
            signed(e.apart) if e.verdict == "open" else f"**{signed(e.apart)}** {e.verdict}"
            for e in evidence.effects[a, b]
        ]
        mean, low, high = evidence.overall(a, b)
        line(f"{words}: {a} − {b}", *cells, f"{mean:+.1f} ({low:+.1f} … {high:+.1f})".replace("-", "−"))


def print_evidence(tasks: Sequence[Task]) -> None:
    for number, t in enumerate(Evidence(tasks).tasks):
        mark = "" if t.learnt else ": not learnt, and left out above"
        print(f"{chr(10) if number else ''}### {TITLES[t.name]}{mark}\n")
        print(f"Noise of a run {t.noise:.4f} nats, {t.fit[2]} degrees of freedom.\n")
        print_designs(t)
        print()
        print_pairs(t)


def print_designs(t: Task) -> None:
    metric = t.rows[BASELINE, 0]["metric_name"]
    head("design", "layers × heads × dim, mlp", "parameters (blocks)", "MMACs", "seeds", "loss", "95%", metric)
    places = [*t.designs, BASELINE]
    for name in NAMES:
        rows = [row for (design, _), row in t.rows.items() if design == name]
        r, i = rows[0], places.index(name)
        half = stats.t.ppf(0.975, t.fit[2]) * t.noise / math.sqrt(len(rows))
        line(
            name,
            f"{r['depth']} × {r['heads']} × {r['head_dim']}, {r['mlp']}",
            f"{r['params']:,} ({r['params_body']:,})",
            f"{r['macs'] / 1e6:.1f}",
            str(len(rows)),
            f"{t.fit[0][i]:.4f}",
            f"± {half:.4f}",
            f"{np.mean([float(row['metric']) for row in rows]):.2f}",
        )


def print_pairs(t: Task) -> None:
    """Differences by the fit over all runs of the task, and seed by seed where both designs have the seed."""
    metric = t.rows[BASELINE, 0]["metric_name"]
    head("difference of losses", "mean", "95%", "p, Holm", "in noise of a run", f"of {metric}", "seed by seed")
    for e in effects(t):
        line(
            f"{e.pair[0]} − {e.pair[1]}",
            f"{e.apart:+.4f}",
            f"{e.apart - e.half:+.4f} … {e.apart + e.half:+.4f}",
            f"{e.p:.3f}",
            f"{e.apart / t.noise:+.1f}",
            f"{e.points:+.2f}",
            ", ".join(f"{value:+.4f}" for value in e.each),
        )
