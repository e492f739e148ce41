"""Writes what the ranking study found, from its table: ranking.md, evidence.md, ranking.png and the short answer.

    python -m recipes.research.ranking.pages recipes/results --answer README.md docs/evidence.md

Every number and every verdict in them is computed here. The templates lie beside this file.
"""

from __future__ import annotations

import argparse
import io
import re
import textwrap
import tomllib
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from . import evidence as evidence_tables
from . import rules
from .evidence import QUESTIONS, TITLES, Evidence, listed, signed
from .picture import draw
from .rule import the_rule
from .runs import print_early, print_tournament, trusted_from
from .scores import MEASURED, RULES, by_direction, fitted, is_causal, scores
from .table import BASELINE, Task, behind, head, line, read, spearman

HERE = Path(__file__).parent
OLD, KAPPA = "κ/depth, MLP ≥ 2 width first (as it was)", "κ/depth"
SHOWN = {
    "κ/depth behind an MLP floor, as leanify ranked": OLD,
    "κ/depth": KAPPA,
    "most heads": "heads",
    "most depth": "depth",
    "most attention (inner × depth)": "inner × depth (all attention)",
    "widest MLP": "mlp",
    "least change": "least change",
    "least κ measured at the beginning": "κ at the beginning, least",
    "least κ measured after 50 steps": "κ after 50 steps, least",
    "training loss at 20–30%": "training loss, 20–30%",
    "training loss at 40–50%": "training loss, 40–50%",
}
SHOWN_FITTED = {"fitted to the other tasks": "ridge", "most attention, its sign by direction": "by direction"}
MODELS = {
    "fashion-mnist": "ViT, 64 wide, patches of 7",
    "cifar10": "ViT, 64 wide, patches of 8",
    "tinystories-masked": "Crammed BERT, 64 wide, 256 pieces",
    "listops": "Nyströmformer, 64 wide, exact",
    "enwik8": "GPT-2, 64 wide, bytes",
    "tinystories": "GPT-2, 96 wide, bytes",
}


class Found(NamedTuple):
    """A rule on all tasks, in words: ρ to two digits."""

    name: str
    mean: str
    span: str
    each: str
    negative: int


def found(tasks: Sequence[Task], name: str, scored: list[np.ndarray]) -> Found:
    rho = [spearman(s, t.quality) for t, s in zip(tasks, scored, strict=True)]
    low, high = rules.interval(list(tasks), scored)
    each = ", ".join(f"{TITLES[t.name]} {two(r)}" for t, r in zip(tasks, rho, strict=True))
    return Found(name, two(np.mean(rho)), f"95% {two(low)} … {two(high)}", each, sum(r < 0 for r in rho))


def two(value: Any) -> str:
    return f"{float(value):.2f}".replace("-", "−")


def printed(function: Callable[[Any], None], argument: Any) -> str:
    text = io.StringIO()
    with redirect_stdout(text):
        function(argument)
    return text.getvalue().strip()


# -- facts ------------------------------------------------------------------------------------------------------------


def facts_of_ranking(tasks: list[Task], checks: list[Task]) -> dict[str, Any]:
    every = [scores(t) for t in tasks]
    rated = {name: [s[name] for s in every] for name in (*RULES, *MEASURED)}
    means = {n: np.mean([spearman(s, t.quality) for t, s in zip(tasks, rated[n], strict=True)]) for n in RULES}
    signs = [signed_scores for _, signed_scores in by_direction(tasks)]
    corrected = [
        f'"{n}"' for n, s in [*rated.items(), ("all attention, by direction", signs)]
        if len(rated) * rules.by_chance(tasks, s) < 0.05
    ]  # fmt: skip
    learnt, unlearnt = [t for t in tasks if t.learnt], [TITLES[t.name] for t in tasks if not t.learnt]
    lean = {e.task.name: e for e in Evidence(learnt).effects["lean", "control"]}
    noisy = [TITLES[t.name] for t in tasks if t.noise > t.quality.std(ddof=1) / 2]
    return {
        "tasks": tasks,
        "runs": sum(len(t.rows) for t in [*tasks, *checks]),
        "best": found(tasks, *max(((n, rated[n]) for n in RULES), key=lambda pair: means[pair[0]])),
        "picked": two(np.mean(rules.picked(tasks, every)[1])),
        "old": found(tasks, OLD, rated[OLD]),
        "kappa": found(tasks, KAPPA, rated[KAPPA]),
        "direction": found(tasks, "by direction", signs),
        "regrets": regrets(learnt),
        "unlearnt": unlearnt,
        "fifty": found(tasks, "", rated["κ after 50 steps, least"]),
        "loss_20": found(tasks, "", rated["training loss, 20–30%"]),
        "loss_40": found(tasks, "", rated["training loss, 40–50%"]),
        "rules": len(rated),
        "corrected": corrected or ["none"],
        "noisy": f"The noise is more than half of the spread on {listed(noisy)}: there the order is partly chance."
        if noisy
        else "On no task is the noise more than half of the spread.",
        "check_masked": two(attention_rho(next(c for c in checks if not is_causal(c)))),
        "check_causal": two(attention_rho(next(c for c in checks if is_causal(c)))),
        "vision": [f"{signed(-lean[t.name].apart)} ({TITLES[t.name]})" for t in learnt if t.kind == "vision"],
        "trusted": [f"{TITLES[t.name]} {trusted_from(t)}" for t in tasks],
    }


def attention_rho(check: Task) -> float:
    amount = [float(check.rows[d, 0]["inner"] * check.rows[d, 0]["depth"]) for d in check.designs]
    return spearman(np.array(amount), np.array([-check.loss(d, 0) for d in check.designs]))


def regrets(tasks: Sequence[Task]) -> dict[bool, tuple[str, str]]:
    """By whether attention is causal: the mean regret of the default rule, and of one chosen on the other tasks."""
    means = {}
    for causal in (False, True):
        group = [one for one in rules.proposed(list(tasks)) if is_causal(one.task) == causal]
        means[causal] = two(np.mean([one.default for one in group])), two(np.mean([one.held_out for one in group]))
    return means


def print_recipes(tasks: list[Task]) -> None:
    head("task", "model", "tokens", "steps × batch", "the baseline", "a trivial model", "has it learnt?")
    for t in tasks:
        schedule = tomllib.loads((HERE / f"{t.name}.toml").read_text(encoding="utf-8"))["schedule"]
        base = [row for (design, _), row in t.rows.items() if design == BASELINE]
        metric = np.mean([float(row["metric"]) for row in base])
        loss = np.mean([float(row["eval_loss"]) for row in base])
        reached = f"{metric:.1f} {base[0]['metric_name'].replace('_', ' ')}, {loss:.3f} nats"
        steps = f"{schedule['steps']:,} × {schedule['batch_size']}"
        trivial = "–"
        if t.reference is not None:
            value = f"{t.reference.value:.1f}" if t.is_of_classes else f"{t.reference.value:.3f} nats"
            trivial = f"{t.reference.name}: {value}"
        learnt = "yes" if t.learnt else "**no**"
        line(t.name, MODELS[t.name], str(base[0]["tokens"]), steps, reached, trivial, learnt)


def print_vit(_: Any) -> None:
    """What the ranking proposes for a model far outside of what was measured."""
    import leanify

    plan = leanify.redesign("vit_base", target_params=0.5)
    named = {"baseline": plan.baseline, "lean": plan.chosen, "control": plan.control, plan.plain_name: plan.plain}
    head("design", "depth", "heads × dim", "MLP", "parameters", "share of attention in a block")
    for name, d in named.items():
        if d is not None:
            share = 2 * d.inner / (2 * d.inner + d.mlp)
            line(str(name), str(d.depth), f"{d.heads} × {d.head_dim}", str(d.mlp), f"{d.params:,}", float(share))


# -- pages ------------------------------------------------------------------------------------------------------------


def write(results: Path) -> Evidence:
    tasks, checks = read(results / "ranking.csv")
    learnt = [task for task in tasks if task.learnt]
    evidence = Evidence(learnt)
    tables = {
        "answer": printed(evidence_tables.print_answer, learnt),
        "evidence": printed(evidence_tables.print_evidence, tasks),
        "recipes": printed(print_recipes, tasks),
        "tasks": printed(rules.print_tasks, tasks),
        "losses": printed(rules.print_losses, tasks),
        "fixed": printed(rules.print_fixed, tasks),
        "left_out": printed(rules.print_left_out, tasks),
        "proposed": printed(rules.print_proposed, learnt),
        "groups": printed(rules.print_groups, tasks),
        "agreement": printed(rules.print_agreement, tasks),
        "weights": printed(rules.print_weights, tasks),
        "checks": printed(lambda both: rules.print_checks(*both), (tasks, checks)),
        "early": printed(print_early, tasks),
        "halving": printed(print_tournament, tasks),
        "vit": printed(print_vit, None),
    }
    engine = Environment(loader=FileSystemLoader(HERE), undefined=StrictUndefined, trim_blocks=True)
    known = facts_of_ranking(tasks, checks) | {
        "tables": tables,
        "evidence": evidence,
        "questions": QUESTIONS,
        "listed": listed,
    }
    for page in ("ranking.md", "evidence.md"):
        text = engine.get_template(f"{page}.j2").render(known)
        (results / page).write_text(text.rstrip() + "\n", encoding="utf-8")
    picture(tasks, results / "ranking.png")
    return evidence


def picture(tasks: list[Task], file: Path) -> None:
    every = [scores(t) for t in tasks]
    left_out = [fitted(t, [o for o in tasks if o is not t]) for t in tasks]
    for found_, (_, signed_scores) in zip(left_out, by_direction(tasks), strict=True):
        found_["by direction"] = signed_scores
    shown = []
    for words, name, among in (
        *((words, name, every) for words, name in SHOWN.items()),
        *((words, name, left_out) for words, name in SHOWN_FITTED.items()),
    ):
        scored = [s[name] for s in among]
        rho = [spearman(s, t.quality) for t, s in zip(tasks, scored, strict=True)]
        shown.append((words, rho, rules.interval(tasks, scored)))
    draw(tasks, file, shown)


# -- the short answer, in the README and in docs/evidence.md ----------------------------------------------------------

MARKS = ("<!-- written by recipes/research/ranking/pages.py -->", "<!-- end of what is written -->")


def short_answer(results: Path) -> str:
    """Five lines, each of them a verdict with its sizes, on the tasks whose baselines have learnt."""
    tasks, _ = read(results / "ranking.csv")
    learnt, unlearnt = [task for task in tasks if task.learnt], [TITLES[task.name] for task in tasks if not task.learnt]
    evidence = Evidence(learnt)
    seeds = ", ".join(f"{number} on {listed(names)}" for number, names in evidence.seeds.items())
    lines = {
        "More heads in place of MLP, same layers and parameters": said_briefly(evidence, "lean", "control"),
        "More heads, or wider ones": said_briefly(evidence, "lean", "wide-heads"),
        "Lean against twice the parameters": said_briefly(evidence, "lean", "baseline"),
        "Half of the layers dropped, nothing else": said_briefly(evidence, "depth-only", "baseline"),
        "No rule forecasts quality": "redesign follows published practice and recommends nothing; its rule has a "
        f"mean regret of {two(np.mean(rule_regrets(learnt)))} on the four tasks that were learnt (0 the best of ten "
        "designs, 1 a random one), and at 256 wide its first choice was the last of four",
    }
    last = f"All of this is small (64–96 wide), brief, one learning rate a task. Seeds: {seeds}."
    if unlearnt:
        last += f" Left out: {listed(unlearnt)}, where the baseline does not beat a trivial model."
    return "\n".join([*(wrapped(f"- **{words}**: {verdict}.") for words, verdict in lines.items()), "", wrapped(last)])


def rule_regrets(tasks: Sequence[Task]) -> list[float]:
    """The regret of what `redesign` proposes first, for each task."""
    return [behind(task, [the_rule(task)]) for task in tasks]


def wrapped(text: str) -> str:
    return textwrap.fill(text, 118, subsequent_indent="  " if text.startswith("-") else "")


def said_briefly(evidence: Evidence, a: str, b: str) -> str:
    """``better on A (−0.050 nats), no clear difference on B and C; −1.2% of the loss over all tasks (−3.2 … +0.8)``"""
    parts = []
    for verdict, words in (("better", "better on"), ("worse", "worse on")):
        shown = evidence.shown(a, b, verdict)
        if shown:
            parts.append(f"{words} {listed([f'{TITLES[e.task.name]} ({signed(e.apart)} nats)' for e in shown])}")
    rest = [TITLES[e.task.name] for e in evidence.shown(a, b, "open")]
    if not parts:
        parts = ["no clear difference on any task"]
    elif rest:
        parts.append(f"no clear difference on {listed(rest)}")
    mean, low, high = (f"{value:+.1f}".replace("-", "−") for value in evidence.overall(a, b))
    return f"{', '.join(parts)}; {mean}% of the loss over all tasks (95% {low} … {high})"


def put(page: Path, text: str) -> None:
    """The text between the marks. Raises ValueError where there are none."""
    before = page.read_text(encoding="utf-8")
    pattern = re.compile(re.escape(MARKS[0]) + ".*?" + re.escape(MARKS[1]), re.DOTALL)
    if not pattern.search(before):
        raise ValueError(f"{page} has no {MARKS[0]}")
    after = pattern.sub(lambda _: f"{MARKS[0]}\n{text}\n{MARKS[1]}", before)
    page.write_text(after, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="where ranking.csv lies and the pages go")
    parser.add_argument("--answer", type=Path, nargs="+", metavar="FILE", help="write the short answer into them, too")
    told = parser.parse_args()
    write(told.results)
    for page in told.answer or []:
        put(page, short_answer(told.results))


if __name__ == "__main__":
    main()
