"""What predicts which of several designs of equal parameters trains best? Tables of `sweep.py`'s results.

A design's quality is minus its validation loss, the mean over its seeds (where designs have different seeds, by least
squares of loss = design + seed). A rule gives a design a score; ρ is Spearman's between score and quality over the ten
designs of equal parameters (not the baseline). Only bootstrap and permutations draw numbers, by fixed seeds.
`pages.py` writes the pages that these tables stand on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats

from .scores import (
    DEFAULT,
    MEASURED,
    PROPOSALS,
    RULES,
    by_direction,
    features,
    fitted,
    is_causal,
    models,
    scores,
    standard,
)
from .table import BASELINE, Task, head, line, regret, spearman

DRAWS = 4000


def rows_spearman(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Row by row."""
    ra, rb = (stats.rankdata(x, axis=1) for x in (a, b))
    ra, rb = (r - r.mean(1, keepdims=True) for r in (ra, rb))
    scale = np.sqrt((ra**2).sum(1) * (rb**2).sum(1))
    return np.divide((ra * rb).sum(1), scale, out=np.zeros(len(a)), where=scale > 0)


def interval(tasks: list[Task], scored: list[np.ndarray]) -> tuple[float, float]:
    """95% of the mean ρ: designs drawn with replacement, the same ones for all tasks, and tasks drawn, too."""
    rng = np.random.default_rng(0)
    number = len(tasks[0].designs)
    drawn = rng.integers(0, number, (DRAWS, number))
    each = np.stack([rows_spearman(s[drawn], t.quality[drawn]) for t, s in zip(tasks, scored, strict=True)], 1)
    which = rng.integers(0, len(tasks), (DRAWS, len(tasks)))
    low, high = np.percentile(np.take_along_axis(each, which, 1).mean(1), [2.5, 97.5])
    return float(low), float(high)


def by_chance(tasks: list[Task], scored: list[np.ndarray]) -> float:
    """How often designs with their names shuffled, alike in all tasks, give a mean ρ at least as large."""
    rng = np.random.default_rng(1)
    number = len(tasks[0].designs)
    orders = np.array([rng.permutation(number) for _ in range(DRAWS)])
    found = np.mean([spearman(s, t.quality) for t, s in zip(tasks, scored, strict=True)])
    shuffled = np.mean(
        [rows_spearman(s[orders], np.tile(t.quality, (DRAWS, 1))) for t, s in zip(tasks, scored, strict=True)], 0
    )
    return float((1 + (shuffled >= found - 1e-12).sum()) / (1 + DRAWS))


# -- tables -----------------------------------------------------------------------------------------------------------

RULE_COLUMNS = ("mean", "95%", "p", "least", "regret")


def print_tasks(tasks: list[Task]) -> None:
    words = ("task", "kind", "runs a design", "baseline", "loss", "best design", "worst", "noise (degrees)")
    head(*words, "spread of designs", "ρ, seeds 0 and 1")
    for t in tasks:
        base = [row for (design, _), row in t.rows.items() if design == BASELINE]
        order = np.argsort(-t.quality)
        runs = [sum(d == design for d, _ in t.rows) for design in t.designs]
        line(
            t.name,
            t.kind,
            f"{min(runs)}–{max(runs)}",
            f"{np.mean([float(row['metric']) for row in base]):.2f} {base[0]['metric_name']}",
            f"{np.mean([float(row['eval_loss']) for row in base]):.4f}",
            f"{t.designs[order[0]]} {-t.quality.max():.4f}",
            f"{t.designs[order[-1]]} {-t.quality.min():.4f}",
            f"{t.noise:.4f} ({t.fit[2]})",
            f"{t.quality.std(ddof=1):.4f}",
            t.again(),
        )


def print_losses(tasks: list[Task]) -> None:
    for t in tasks:
        print(f"- {t.name}: " + ", ".join(f"{t.designs[i]} {-t.quality[i]:.4f}" for i in np.argsort(-t.quality)))


def print_fixed(tasks: list[Task]) -> None:
    """Every fixed rule, best first, then what is measured."""
    all_scores = [scores(t) for t in tasks]
    head("rule", *(t.name for t in tasks), *RULE_COLUMNS)
    means = {n: np.mean([spearman(s[n], t.quality) for t, s in zip(tasks, all_scores, strict=True)]) for n in RULES}
    for name in [*sorted(RULES, key=lambda n: -means[n]), *MEASURED]:
        print_rule(tasks, name, [s[name] for s in all_scores])


def print_left_out(tasks: list[Task]) -> None:
    """What is fitted to the other tasks, held against the one left out."""
    head("rule", *(t.name for t in tasks), *RULE_COLUMNS)
    left_out = [fitted(t, [o for o in tasks if o is not t]) for t in tasks]
    for name in left_out[0]:
        print_rule(tasks, name, [s[name] for s in left_out])
    print_rule(tasks, "all attention, by direction", [s for _, s in by_direction(tasks)])
    print_picked(tasks, [scores(t) for t in tasks])


@dataclass(frozen=True)
class Proposed:
    """Regret of a rule's first choice on one task, and of the rule that is best on the others of its direction."""

    task: Task
    default: float
    held_out: float
    picked: str
    rho: float


def proposed(tasks: list[Task]) -> list[Proposed]:
    """For every task what `redesign` would propose, and what it would if the task had no part in choosing the rule."""
    found = []
    for task in tasks:
        others = [t for t in tasks if t is not task and is_causal(t) == is_causal(task)]
        mean = {name: np.mean([regret(t, rule(t)) for t in others]) for name, rule in PROPOSALS.items()}
        picked = min(PROPOSALS, key=lambda name: mean[name])
        rule = PROPOSALS[DEFAULT[is_causal(task)]]
        rho = spearman(rule(task), task.quality)
        found.append(Proposed(task, regret(task, rule(task)), regret(task, PROPOSALS[picked](task)), picked, rho))
    return found


def print_proposed(tasks: list[Task]) -> None:
    head("task", "attention", "ρ of the default rule", "its regret", "regret, rule chosen on the others", "that rule")
    every = proposed(tasks)
    for one in every:
        direction = "causal" if is_causal(one.task) else "both directions"
        line(one.task.name, direction, one.rho, one.default, one.held_out, one.picked)
    for words, causal in (("both directions", False), ("causal", True)):
        group = [one for one in every if is_causal(one.task) == causal]
        means = [float(np.mean([getattr(one, name) for one in group])) for name in ("rho", "default", "held_out")]
        line("**mean**", words, *means, "")


def print_groups(tasks: list[Task]) -> None:
    """The same within a group of tasks."""
    groups = [
        ("vision", [t for t in tasks if t.kind == "vision"]),
        ("text", [t for t in tasks if t.kind != "vision"]),
        ("bidirectional", [t for t in tasks if not is_causal(t)]),
        ("causal", [t for t in tasks if is_causal(t)]),
    ]
    for words, group in groups:
        if len(group) < 2:
            continue
        head(f"rule, {words}", *(t.name for t in group), "mean")
        own = [fitted(t, [o for o in group if o is not t]) for t in group]
        for name in own[0]:
            rho = [spearman(s[name], t.quality) for t, s in zip(group, own, strict=True)]
            line(name, *rho, float(np.mean(rho)))
        print()


def print_agreement(tasks: list[Task]) -> None:
    """ρ between the orders of two tasks."""
    head("", *(t.name for t in tasks))
    for a in tasks:
        line(a.name, *(spearman(a.quality, b.quality) for b in tasks))


def print_rule(tasks: list[Task], name: str, scored: list[np.ndarray]) -> None:
    rho = [spearman(s, t.quality) for t, s in zip(tasks, scored, strict=True)]
    low, high = interval(tasks, scored)
    behind = np.mean([regret(t, s) for t, s in zip(tasks, scored, strict=True)])
    line(
        name,
        *rho,
        f"**{np.mean(rho):.2f}**",
        f"{low:.2f} … {high:.2f}",
        f"{by_chance(tasks, scored):.4f}",
        min(rho),
        f"{behind:.1f}",
    )


def picked(tasks: list[Task], all_scores: list[dict[str, np.ndarray]]) -> tuple[list[str], list[float]]:
    """For each task the fixed rule that is best on the others, and its ρ on that task."""
    names, rho = [], []
    for i, task in enumerate(tasks):
        others = [j for j in range(len(tasks)) if j != i]
        best = max(RULES, key=lambda n: np.mean([spearman(all_scores[j][n], tasks[j].quality) for j in others]))
        names.append(best)
        rho.append(spearman(all_scores[i][best], task.quality))
    return names, rho


def print_picked(tasks: list[Task], all_scores: list[dict[str, np.ndarray]]) -> None:
    names, rho = picked(tasks, all_scores)
    mean = f"**{np.mean(rho):.2f}**"
    line("the fixed rule that is best on the others", *rho, mean, "", "", min(rho), "")
    print("\nPicked: " + "; ".join(f"{t.name}: {name}" for t, name in zip(tasks, names, strict=True)))


def print_weights(tasks: list[Task]) -> None:
    """Of the ridge on standardised log depth, log inner/width, log mlp/width: all tasks, and each kind."""
    head("fitted to", "depth", "inner", "mlp")
    groups = {
        "all": tasks,
        "bidirectional": [t for t in tasks if not is_causal(t)],
        "causal": [t for t in tasks if is_causal(t)],
    }
    groups |= {t.name: [t] for t in tasks}
    for name, group in groups.items():
        if group:
            model = models()["ridge"].fit(
                np.concatenate([features(t) for t in group]), np.concatenate([standard(t.quality) for t in group])
            )
            line(name, *map(float, model[-1].coef_))


def print_checks(tasks: list[Task], checks: list[Task]) -> None:
    """Tasks of which only the length of samples was changed, beside those that they were made of."""
    if not checks:
        return
    designs = [d for d in tasks[0].designs if all(d in c.designs for c in checks)]
    designs.sort(key=lambda d: tasks[0].rows[d, 0]["inner"] * tasks[0].rows[d, 0]["depth"])
    head("loss, seed 0", "tokens", BASELINE, *designs, "ρ of all attention")
    for task in sorted([t for t in [*tasks, *checks] if any(t.name in c.name for c in checks)], key=lambda t: t.name):
        losses = np.array([task.loss(d, 0) for d in designs])
        amount = np.array([float(task.rows[d, 0]["inner"] * task.rows[d, 0]["depth"]) for d in designs])
        base = f"{task.loss(BASELINE, 0):.4f}" if (BASELINE, 0) in task.rows else ""
        tokens = str(task.rows[designs[0], 0]["tokens"])
        line(task.name, tokens, base, *(f"{loss:.4f}" for loss in losses), spearman(amount, -losses))
