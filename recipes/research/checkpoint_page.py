"""The page and the README's table of `checkpoints.py`, computed from recipes/results/checkpoints.csv.

    python -m recipes.research.checkpoint_page > page.md     the page, whose words before the tables stay as they are
    python -m recipes.research.checkpoint_page --readme      the block that README.md holds
    python -m recipes.research.checkpoint_page FILE          the tables of rows of one's own

Every sentence that says better, worse or no difference is the product's own answer (`comparison.statistics`: seeds in
pairs, Holm over what is asked). A test holds the page and the README against the numbers.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from leanify.comparison.statistics import ALPHA, MIN_SEEDS, Estimate, Run, RunTable, holm
from recipes.research.checkpoint_arms import OURS
from recipes.research.checkpoint_subject import SCORES
from recipes.research.checkpoints import measured

CSV = Path(__file__).parents[1] / "results" / "checkpoints.csv"
METRICS = {  # by column: how it is called, its digits, and the factor that makes more better
    "cosine": ("cosine", 3, 1),
    "nats a byte": ("−nats a byte", 3, 1),
    "top-1": ("top-1", 1, 1),
    "accuracy": ("accuracy", 1, 1),
    "Spearman": ("Spearman (100 ρ)", 1, 1),
    "neighbours": ("neighbours kept", 3, 1),
    "STS-B": ("STS-B (100 ρ)", 1, 1),
    "sst2": ("SST-2", 1, 1),
    "mrpc": ("MRPC", 1, 1),
    "cola": ("CoLA", 1, 1),
    "rte": ("RTE", 1, 1),
    "other domain": ("−nats a byte, other domain", 3, 1),
    "minutes": ("processor minutes", 1, -1),
}
MIN_PEERS = 4  # of a case in README
COUNTS = "vocabulary by counts + "  # what every peer does with texts
ASKED = (*SCORES.values(), "neighbours", "STS-B", "other domain")
BLOCK = ("<!-- written by recipes/research/checkpoint_page.py -->", "<!-- end of what is written -->")
Rows = list[dict[str, str]]


def values(rows: Rows, arm: str, stage: str, metric: str) -> dict[int, float]:
    """The measured values by seed."""
    found = {}
    for row in rows:
        if (row["arm"], row["stage"], row["metric"]) == (arm, stage, metric):
            found[int(row["seed"])] = float(row["value"])
    return found


def format_mean(by_seed: dict[int, float], metric: str) -> str:
    """The mean over seeds, in the metric's digits."""
    return f"{fmean(by_seed.values()):.{METRICS[metric][1]}f}" if by_seed else "–"


def cases(rows: Rows) -> dict[tuple[str, str], Rows]:
    """The rows of each checkpoint and budget, with those of the original; a model of pictures has no vocabulary."""
    several: dict[tuple[str, str], Rows] = {}
    of_pictures = {row["checkpoint"] for row in rows if row["metric"] == "top-1"}
    for row in rows:
        if row["checkpoint"] in of_pictures:
            row = {**row, "arm": row["arm"].removeprefix(COUNTS)}
        if row["arm"] != "original":
            several.setdefault((row["checkpoint"], row["budget"]), []).append(row)
    for (name, _), some in several.items():
        some += [row for row in rows if row["arm"] == "original" and row["checkpoint"] == name]
    return dict(sorted(several.items(), key=lambda item: (item[0][0], -float(item[0][1]))))


def at_its_best(rows: Rows, arm: str, metric: str) -> tuple[str, dict[int, float]]:
    """The values of an arm by seed, carried or healed, whichever has the better mean, and the arm's name with that."""
    carried, healed = (values(rows, arm, stage, metric) for stage in ("carried", "healed"))
    if carried and (not healed or fmean(carried.values()) > fmean(healed.values())):
        return f"{arm}, not healed", carried
    return arm, healed


def compare(rows: Rows, metric: str, ours: str) -> tuple[str, str, Estimate] | None:
    """An arm of leanify's and the best peer, each at its best, by name, and the difference."""
    arms = dict.fromkeys(row["arm"] for row in rows if row["arm"] not in ("original", *OURS))
    peers = dict(at_its_best(rows, arm, metric) for arm in arms)
    means = {name: fmean(by_seed.values()) for name, by_seed in peers.items() if by_seed}
    our_name, our_values = at_its_best(rows, ours, metric)
    if not means or not our_values:
        return None
    peer = max(means, key=means.__getitem__)
    runs = [Run(peer, seed, value) for seed, value in peers[peer].items()]
    runs += [Run(our_name, seed, value) for seed, value in our_values.items()]
    return our_name, peer, RunTable(runs).difference(our_name, peer)


def claims(rows: Rows, names_peer: bool = True, ours: str = OURS[0]) -> list[str]:
    """One sentence a metric: better, worse or no difference shown, by the product's rule."""
    asked = {metric: found for metric in ASKED if (found := compare(rows, metric, ours)) is not None}
    known = {metric: found[2] for metric, found in asked.items() if found[2].is_known and found[2].seeds >= MIN_SEEDS}
    above = [one.probability_above(0) for one in known.values()]
    corrected = dict(zip(known, holm([min(1.0, 2 * min(p, 1 - p)) for p in above]), strict=True)) if known else {}
    sentences = []
    for metric, (our_name, peer, estimate) in asked.items():
        name, digits = METRICS[metric][0] + our_name.removeprefix(ours), METRICS[metric][1]
        text = f"{name}: {estimate.mean:+.{digits}f}" + f" to the best peer, *{peer}*" * names_peer
        interval = estimate.interval()
        if metric not in known or interval is None:
            seeds = "one seed" if estimate.seeds == 1 else f"{estimate.seeds} seeds"
            sentences.append(f"- {text}: {seeds}, so nothing is shown.")
            continue
        side = "better" if estimate.mean > 0 else "worse"
        answer = side if corrected[metric] <= 2 * ALPHA else "no difference shown"
        low, high = interval
        sentences.append(f"- {text} (95% {low:+.{digits}f} … {high:+.{digits}f}): **{answer}**.")
    return sentences


def table(rows: Rows, metrics: Sequence[str], brief: bool = False) -> list[str]:
    """A line an arm: parameters, seeds, each metric carried → healed; ``brief``: the better one, starred unhealed."""
    measured_metrics = {row["metric"] for row in rows if row["arm"] != "original"}
    metrics = [metric for metric in metrics if metric in measured_metrics]
    arms = ["original", *dict.fromkeys(row["arm"] for row in rows if row["arm"] != "original")]
    heads = ["M parameters", *["seeds"] * (not brief), *(METRICS[metric][0] for metric in metrics)]
    lines = [f"| | {' | '.join(heads)} |", "|---" * (1 + len(heads)) + "|"]
    for arm in arms:
        stage = "carried" if arm == "original" else "healed"
        sizes = values(rows, arm, stage, "parameters")
        cells = [f"{sum(sizes.values()) / len(sizes) / 1e6:.2f}", *[str(len(sizes))] * (not brief)]
        for metric in metrics:
            before, after = (format_mean(values(rows, arm, step, metric), metric) for step in ("carried", "healed"))
            if arm == "original":
                cells.append(before)
            elif brief:
                name, by_seed = at_its_best(rows, arm, metric)
                cells.append(format_mean(by_seed, metric) + "\\*" * (name != arm))
            elif before == "–":
                cells.append(after)
            else:
                cells.append(f"{before} → {after}")
        lines.append(f"| {arm.removeprefix(COUNTS) if brief else arm} | {' | '.join(cells)} |")
    return lines


def read_preface() -> list[str]:
    """What the published page says before its tables."""
    return CSV.with_suffix(".md").read_text(encoding="utf-8").partition("## ")[0].splitlines()


def page(rows: Rows, preface: Sequence[str] = ()) -> list[str]:
    lines = [*preface]
    for (name, budget), some in cases(rows).items():
        lines += [f"## {name}, {float(budget):.0%} of all parameters", "", *table(some, list(METRICS)), ""]
        for ours in OURS:
            if sentences := claims(some, ours=ours):
                lines += [f"*{ours}*:", "", *sentences, ""]
    return lines[:-1]


def readme(rows: Rows) -> list[str]:
    """A table with its claims for the first checkpoint and budget that have enough seeds, and a line for such others.

    Arms with too few seeds are in the page alone, but answer to the claims.
    """
    lines, has_table = [BLOCK[0]], False
    for (name, budget), some in cases(rows).items():
        if any(row["metric"] == "top-1" for row in some):
            continue  # no public checkpoint
        # as it comes, or, where that has too few seeds, healed as its peers
        ours = OURS[1]
        if len(values(some, ours, "healed", "parameters")) < MIN_SEEDS:
            ours = OURS[0]
        sentences, seeds = claims(some, False, ours), values(some, ours, "healed", "parameters")
        peers = {row["arm"] for row in some if values(some, row["arm"], "healed", "minutes")} - {*OURS}
        if len(seeds) < MIN_SEEDS or len(peers) < MIN_PEERS:
            continue  # begun: on the page alone
        if has_table:
            answers = "; ".join(sentence.removeprefix("- ").rstrip(".") for sentence in sentences)
            lines += ["", f"{name} at {float(budget):.0%}, *{ours}*: {answers}."]
            continue
        has_table = True
        lines += ["", f"**{name} with {float(budget):.0%} of all its parameters**:", ""]
        seeds_by_arm = Counter(row["arm"] for row in some if (row["stage"], row["metric"]) == ("healed", "parameters"))
        shown = {arm for arm, count in seeds_by_arm.items() if count >= MIN_SEEDS} - {*OURS} | {"original", ours}
        sure = [row for row in some if row["arm"] in shown]
        lines += [*table(sure, ("cosine", "neighbours", "STS-B"), brief=True), ""]
        lines += [f"*{ours}* less the best peer:", "", *sentences]
    return [*lines, BLOCK[1]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--readme", action="store_true", help="the table of README alone")
    parser.add_argument("rows", type=Path, nargs="?", default=CSV, help="of checkpoints.py (default: those published)")
    options = parser.parse_args()
    rows = measured(options.rows)
    lines = readme(rows) if options.readme else page(rows, read_preface() if options.rows == CSV else ())
    print("\n".join(lines))


if __name__ == "__main__":
    main()
