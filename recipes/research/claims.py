"""Every claim of the README and of docs/evidence.md that a design is better, worse or no different, computed.

    python -m recipes.research.claims            writes both, and recipes/results/evidence.md, from the tables below
    python -m recipes.research.claims --check    only says whether they are as they would be written

`ranking.csv` has one row a run of the sweep of commit 7667d05. A difference of two designs is that of `leanify compare`
(`leanify.comparison.statistics`: Student's paired t over the seeds that both have, at the first look), without the
samples' part, since the outcomes of single samples were not kept. Every question was asked on every task, so p is
corrected over all of them together (Holm 1979), and a difference is shown where the corrected p is below 5%.
`width.csv` has what two studies of `leanify compare` said at that commit, samples included.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from leanify.comparison import statistics
from leanify.comparison.learning import is_beaten
from leanify.comparison.statistics import MIN_SEEDS, Run, RunTable

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "recipes" / "results"
BASELINE = "baseline"
QUESTIONS = {  # (design, against) → the question; the first four are also in the README
    ("lean", "control"): "More heads in place of MLP, same layers and parameters",
    ("lean", "wide-heads"): "More heads, or wider ones",
    ("lean", BASELINE): "Lean against twice the parameters",
    ("depth-only", BASELINE): "Half of the layers dropped, nothing else",
    ("wide-heads", "control"): "Inner width in place of MLP",
    ("control", "depth-only"): "A layer more in place of MLP",
    ("lean", "depth-only"): "Lean against dropping layers alone",
    ("control", BASELINE): "Control against twice the parameters",
}
BRIEF = 4
ACCURACIES = ("vision", "long-range")  # kinds of tasks whose reference is an accuracy, not a loss
TITLES = {
    "fashion-mnist": "Fashion-MNIST", "cifar10": "CIFAR-10", "enwik8": "enwik8", "listops": "ListOps",
    "tinystories": "TinyStories", "tinystories-masked": "masked words", "digits": "the digits",
}  # fmt: skip
WIDTH_DESIGNS = {"digits": "3 × 4 heads, MLP 120, 32 wide", "tinystories": "5 × 8 heads, MLP 76, 96 wide"}
WIDTH_UNITS = {"digits": "points", "tinystories": "nats"}
MARK = "<!-- written by recipes/research/claims.py{} -->"
END = "<!-- end of what is written -->"
Rows = list[dict[str, str]]


@dataclass(frozen=True)
class Claim:
    """A difference of losses (below 0 the first design is better), or of accuracies (above 0 it is), and its answer."""

    task: str
    design: str
    against: str
    mean: float
    low: float
    high: float
    p: float
    seeds: int
    answer: str  # better, worse or not shown
    unit: str = "nats"

    @property
    def numbers(self) -> str:
        digits = 2 if self.unit == "points" else 3
        mean, low, high = (f"{value:+.{digits}f}".replace("-", "−") for value in (self.mean, self.low, self.high))
        return f"{mean}, {low} … {high}"


def read_rows(results: Path, name: str) -> Rows:
    with (results / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


# -- the sweep --------------------------------------------------------------------------------------------------------


def learnt_tasks(results: Path, rows: Rows) -> list[str]:
    """The tasks whose baseline beats a trivial model, as `compare` asks it."""
    found = []
    for reference in read_rows(results, "ranking-references.csv"):
        task, value = reference["task"], float(reference["value"])
        mine = [row for row in rows if row["task"] == task and row["design"] == BASELINE]
        is_accuracy = mine[0]["kind"] in ACCURACIES
        runs = []
        for row in mine:
            quality = float(row["metric"]) if is_accuracy else -float(row["eval_loss"])
            runs.append(Run(BASELINE, int(row["seed"]), quality))
        if is_beaten(RunTable(runs).difference_from(BASELINE, value if is_accuracy else -value, None)):
            found.append(task)
    return found


def sweep_claims(results: Path) -> list[Claim]:
    """Every question on every task that was learnt, in the order of the questions."""
    rows = read_rows(results, "ranking.csv")
    differences = []
    for task in learnt_tasks(results, rows):
        mine = [row for row in rows if row["task"] == task]
        table = RunTable([Run(row["design"], int(row["seed"]), -float(row["eval_loss"])) for row in mine])
        for design, against in QUESTIONS:
            estimate = table.difference(design, against)
            if estimate.seeds >= MIN_SEEDS:
                differences.append((task, design, against, estimate))
    ps = statistics.holm([statistics.two_sided(estimate) for *_, estimate in differences])
    claims = []
    for (task, design, against, estimate), p in zip(differences, ps, strict=True):
        low, high = estimate.interval(statistics.alpha_of(1)) or (0.0, 0.0)
        answer = "not shown"
        if p < 1 - statistics.CONFIDENCE:
            answer = "better" if estimate.mean > 0 else "worse"
        claims.append(Claim(task, design, against, -estimate.mean, -high, -low, p, estimate.seeds, answer))
    order = list(QUESTIONS)
    return sorted(claims, key=lambda claim: order.index((claim.design, claim.against)))


def width_claims(results: Path) -> list[Claim]:
    """What the studies of width.md said: a difference is shown where its interval leaves out 0."""
    claims = []
    for row in read_rows(results, "width.csv"):
        mean, low, high = (float(row[name]) for name in ("difference", "low", "high"))
        answer = "better" if low > 0 else "worse" if high < 0 else "not shown"
        unit = WIDTH_UNITS[row["task"]]
        if unit == "nats":  # as losses
            mean, low, high = -mean, -high, -low
        numbers = (mean, low, high, float(row["p"]), int(row["seeds"]))
        claims.append(Claim(row["task"], row["design"], row["against"], *numbers, answer, unit))
    return claims


# -- in words ---------------------------------------------------------------------------------------------------------


def listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def wrapped(text: str) -> str:
    return textwrap.fill(text, 118, subsequent_indent="  " if text.startswith("-") else "", break_on_hyphens=False)


def say(claims: Iterable[Claim]) -> str:
    """``better on A (…); no difference shown on B and C``"""
    parts = []
    for answer, words in (("better", "better"), ("worse", "worse"), ("not shown", "no difference shown")):
        places = []
        for claim in claims:
            if claim.answer == answer:
                numbers = "" if answer == "not shown" else f" ({claim.numbers})"
                places.append(TITLES[claim.task] + numbers)
        if places:
            parts.append(f"{words} on {listed(places)}")
    return "; ".join(parts)


def answer(results: Path) -> str:
    """The block of the README and of docs/evidence.md."""
    sweep, width = sweep_claims(results), width_claims(results)
    # questions of the sweep that have one answer share a line
    questions: dict[str, list[str]] = {}
    for (design, against), question in list(QUESTIONS.items())[:BRIEF]:
        asked = [claim for claim in sweep if (claim.design, claim.against) == (design, against)]
        several = questions.setdefault(say(asked), [])
        several.append(f"{question[0].lower()}{question[1:]}" if several else question)
    lines = [wrapped(f"- **{'; '.join(several)}**: {words}.") for words, several in questions.items()]
    for task in dict.fromkeys(claim.task for claim in width):
        mine = [claim for claim in width if claim.task == task and claim.design == "lean"]
        parts = []
        for claim in mine:
            if claim.answer != "not shown":
                parts.append(f"{claim.answer} than {claim.against} ({claim.numbers})")
        if others := [claim.against for claim in mine if claim.answer == "not shown"]:
            parts.append(f"no difference shown to {listed(others)}")
        lines.append(wrapped(f"- **Lean on {TITLES[task]}, best of three rates** ({WIDTH_DESIGNS[task]}; "
                             f"{WIDTH_UNITS[task]}): {'; '.join(parts)}."))  # fmt: skip
    seeds = ", ".join(
        f"{number} seeds on {listed([TITLES[task] for task in tasks])}" for number, tasks in seeds_of(sweep).items()
    )
    last = (
        "In brackets the difference and its 95% interval; *shown* is what Holm's correction over the sweep's "
        f"{len(sweep)} questions leaves. All of it is small (32–96 wide) and brief: {seeds}, one rate a task."
    )
    return "\n".join([*lines, "", wrapped(last), "[Every claim with its interval](LIST)."])


def seeds_of(claims: Sequence[Claim]) -> dict[int, list[str]]:
    """The tasks by their number of seeds, most seeds first."""
    seeds = {claim.task: claim.seeds for claim in claims}
    return {number: [task for task in seeds if seeds[task] == number] for number in sorted(set(seeds.values()))[::-1]}


def claim_table(claims: Sequence[Claim]) -> str:
    lines = ["| task | difference | estimate, 95% interval | p | seeds | answer |", "|---|---|---|---|---|---|"]
    for claim in claims:
        cells = (
            TITLES[claim.task],
            f"{claim.design} − {claim.against}, {claim.unit}",
            claim.numbers,
            f"{claim.p:.2g}",
            str(claim.seeds),
            claim.answer,
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def page(results: Path) -> str:
    """recipes/results/evidence.md."""
    sweep, rows = sweep_claims(results), read_rows(results, "ranking.csv")
    text = f"""# Is it heads, inner width, depth or the MLP? Five designs on small tasks

    python -m recipes.research.claims

writes this page from [`ranking.csv`](ranking.csv), whose runs were trained at commit 7667d05 and before.

Half of the baseline's parameters in the blocks, spent in four ways. *lean* has five of eight layers, half as many heads
again and a narrow MLP. *control* has lean's layers and the baseline's heads, with the difference put into the MLP.
*wide-heads* is lean with the baseline's number of heads, each 1.5 times as wide: the same inner width and the same
parameters. *depth-only* drops half of the layers and leaves the rest as they are. The tasks, the recipes and each
baseline's result are in [ranking.md](ranking.md). Small models, trained briefly, one learning rate a task.

## The questions

Losses are validation losses in nats; below 0 the first design is better. Intervals are those of `leanify compare`
(Student's paired t over seeds, first look); the outcomes of single samples were not kept, so the choice of validation
samples is not in it. p is corrected by Holm over all {len(sweep)} rows, and *better* or *worse* is said below 5%. What
is not shown may still differ by as much as its interval reaches.

{claim_table(sweep)}

## The designs

| task | design | layers × heads × dim, mlp | parameters (blocks) | seeds | loss |
|---|---|---|---|---|---|
"""
    for task in dict.fromkeys(claim.task for claim in sweep):
        for design in (BASELINE, "lean", "control", "wide-heads", "depth-only"):
            mine = [row for row in rows if (row["task"], row["design"]) == (task, design)]
            first, loss = mine[0], sum(float(row["eval_loss"]) for row in mine) / len(mine)
            shape = f"{first['depth']} × {first['heads']} × {first['head_dim']}, {first['mlp']}"
            size = f"{int(first['params']):,} ({int(first['params_body']):,})"
            text += f"| {TITLES[task]} | {design} | {shape} | {size} | {len(mine)} | {loss:.4f} |\n"
    return text


# -- the pages --------------------------------------------------------------------------------------------------------


def put(text: str, block: str, name: str = "") -> str:
    """A page with this block between its marks. Raises ValueError where there are none."""
    mark = MARK.format(name)
    pattern = re.compile(f"{re.escape(mark)}.*?{re.escape(END)}", re.DOTALL)
    if not pattern.search(text):
        raise ValueError(f"no {mark}")
    return pattern.sub(lambda _: f"{mark}\n{block}\n{END}", text)


def pages(results: Path = RESULTS) -> dict[Path, str]:
    """Every page that holds claims, as it is to be."""
    readme, evidence = ROOT / "README.md", ROOT / "docs" / "evidence.md"
    block = answer(results)
    listing = claim_table([*sweep_claims(results), *width_claims(results)])
    evidence_text = put(evidence.read_text(encoding="utf-8"), block.replace("(LIST)", "(#all-claims)"))
    return {
        readme: put(readme.read_text(encoding="utf-8"), block.replace("(LIST)", "(docs/evidence.md#all-claims)")),
        evidence: put(evidence_text, listing, ", all of them"),
        RESULTS / "evidence.md": page(results),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a page is another one")
    told = parser.parse_args()
    differing = [path for path, text in pages().items() if path.read_text(encoding="utf-8") != text]
    if told.check and differing:
        sys.exit(f"these pages differ from their tables: {', '.join(map(str, differing))}")
    for path in differing:
        path.write_text(pages()[path], encoding="utf-8")


if __name__ == "__main__":
    main()
