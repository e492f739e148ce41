"""The page and the README's table of `checkpoints.py`, computed from recipes/results/checkpoints.csv.

    python -m recipes.research.checkpoint_page > recipes/results/checkpoints.md
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
    "neighbours": ("neighbours that stay", 3, 1),
    "STS-B": ("STS-B (100 ρ)", 1, 1),
    "sst2": ("SST-2", 1, 1),
    "mrpc": ("MRPC", 1, 1),
    "cola": ("CoLA", 1, 1),
    "rte": ("RTE", 1, 1),
    "other domain": ("−nats a byte, other domain", 3, 1),
    "minutes": ("processor minutes", 1, -1),
}
COUNTS = "vocabulary by counts + "  # what every peer does with texts
ASKED = (*SCORES.values(), "neighbours", "STS-B", "other domain")
BLOCK = ("<!-- written by recipes/research/checkpoint_page.py -->", "<!-- end of what is written -->")
PREFACE = """\
# Public checkpoints at a share of all parameters

Each arm gets the same checkpoint, texts and budget of ALL parameters, and is then trained by the same steps
at the better of the same two rates; the original's answers to the same texts are the targets (a language
model learns the texts). *Healed by itself* is leanify's own healing in as many steps at the first rate: it
also learns the state of each token. The texts that choose and those that judge are seen by no arm. Cells:
*carried → healed*, the mean over seeds; a seed draws the calibration samples and the order of healing. GLUE:
a logistic regression on the embeddings (first seed). A cell of minutes is what carrying and healing took of
one core. Rows that are missing were not measured; latencies are in the csv, under changing load. *leanify shrink*
with `--vocabulary keep` is no arm: MiniLM's embeddings alone exceed half of it; on SmolLM2 it was not measured.

**Where leanify is not first, and why.** STS-B is another domain than the reviews that heal. At 35% of MiniLM
carrying keeps 74.8 of it, more than any healed arm has; healing for the reviews' embeddings loses 2.9 of
that, healing by states of tokens 0.7. Its lead of 1.7 on the middle layers dropped is not shown by three
seeds. Looked into at 50%, one seed (cosine, neighbours, STS-B; 60 steps at 3e-4): *free* carried 0.879,
0.510, 78.0; healed by embeddings 0.890, 0.509, 77.0; with the states at weight 1 0.893, 0.526, 77.4, at 3
(the default) 0.893, 0.531, 77.7, at 10 0.890, 0.532, 78.0; by the states alone 0.884, 0.527, 78.2. Frozen
embeddings (77.0) and parts of sentences (77.1) change nothing. With 13,400 and 7,704 instead of 10,556 tokens
of the same budget: 0.897, 0.539, 77.7 and 0.872, 0.517, 76.5. An average of carried and healed weights is no
way out (*narrow*, healed share 0, ¼, ½, ¾, 1: cosine 0.859, 0.869, 0.875, 0.879, 0.880; STS-B 78.1, 78.0,
77.8, 77.5, 77.1), nor are texts of random tokens beside the user's (75.6 instead of 74.3, less than the lower
rate keeps).

MiniLM was measured at 5824771 on one draw of the sentences, but for the peers' seeds 1 and 2 (5499175) and
*healed by itself* at 50% (ae5e7eb), both on that draw, and what is of 858064e and before, on another draw of the
same sentences: at 50% Torch-Pruning, the best run and seed 2 of *leanify shrink*, at 35% its seeds 1 and 2.
SmolLM2: IMDb's train.csv and test.csv as they lie, seeds 3 to 5, at 04456ac; healed 30 steps of 4 reviews at 5e-5
and 2e-4, judged by 120; the other domain is TinyStories; minutes of a busy machine. On an older draw of the
reviews, which can no longer be made, *leanify shrink* was better than the middle layers dropped on both, by three
seeds (11fc0051).

The ViT is no public checkpoint: 678,730 parameters, 17 tokens, 85.8% of Fashion-MNIST's test set, made by the
line below (0.4 hours of one core). It has no vocabulary. *leanify shrink* chooses on 5,000 pictures of the validation
split, the others on 250 of them; 1,000 of the other half judge. Layers are whole, so 51% is the budget that three
of six meet. There Torch-Pruning comes as far once it is healed, both within a point of the original. At 35% MLP units
alone do not meet the budget. Measured at 2c5dded.

Looked into again at 50% of MiniLM, other sentences, healed by itself, one seed: 10,556 tokens, which are chosen,
and 13,400 come to a cosine of 0.904 and 0.905, 0.548 and 0.541 of the neighbours, 77.6 and 77.5 of STS-B, from
0.890 and 0.881 before healing: more tokens are no way to more of another domain.

```sh
# each line of checkpoints with -o recipes/results/checkpoints.csv
python -m recipes.research.checkpoints CHECKPOINT --data FOLDER --glue GLUE
python -m recipes.research.checkpoints CHECKPOINT --name SmolLM2 --data FOLDER --other TEXT --budget 0.75 --seeds 3 4 5
python -m recipes.research.checkpoint_page > recipes/results/checkpoints.md
leanify train fashion-mnist --set data.path=FOLDER --set schedule.epochs=4 --set optim.lr=1e-3 \\
  --set model.source=vit_tiny_patch16_224 --set 'model.override={img_size=28, patch_size=7, in_chans=1, \\
  num_classes=10, embed_dim=96, depth=6, num_heads=3}' -o fashion-vit
python -m recipes.research.checkpoints fashion-vit --data FOLDER --budget 0.51 0.35
```
"""
Rows = list[dict[str, str]]


def values(rows: Rows, arm: str, stage: str, metric: str) -> dict[int, float]:
    """The measured values by seed."""
    found = {}
    for row in rows:
        if (row["arm"], row["stage"], row["metric"]) == (arm, stage, metric):
            found[int(row["seed"])] = float(row["value"])
    return found


def cell(rows: Rows, arm: str, stage: str, metric: str) -> str:
    """The mean over seeds."""
    found, digits = values(rows, arm, stage, metric), METRICS[metric][1]
    if not found:
        return "–"
    return f"{sum(found.values()) / len(found):.{digits}f}"


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


def compare(rows: Rows, metric: str, ours: str) -> tuple[str, Estimate] | None:
    """The best peer by its mean, and the difference of an arm of leanify's to it after healing."""
    arms = dict.fromkeys(row["arm"] for row in rows if row["arm"] not in ("original", *OURS))
    known = {arm: values(rows, arm, "healed", metric) for arm in arms}
    means = {arm: sum(found.values()) / len(found) for arm, found in known.items() if found}
    if not means or not values(rows, ours, "healed", metric):
        return None
    peer = max(means, key=means.__getitem__)
    runs = [Run(peer, seed, value) for seed, value in known[peer].items()]
    runs += [Run(ours, seed, value) for seed, value in values(rows, ours, "healed", metric).items()]
    return peer, RunTable(runs).difference(ours, peer)


def claims(rows: Rows, names_peer: bool = True, ours: str = OURS[0]) -> list[str]:
    """One sentence a metric: better, worse or no difference shown, by the product's rule."""
    asked = {metric: found for metric in ASKED if (found := compare(rows, metric, ours)) is not None}
    known = {metric: found for metric, found in asked.items() if found[1].is_known and found[1].seeds >= MIN_SEEDS}
    above = [one.probability_above(0) for _, one in known.values()]
    corrected = dict(zip(known, holm([min(1.0, 2 * min(p, 1 - p)) for p in above]), strict=True)) if known else {}
    sentences = []
    for metric, (peer, estimate) in asked.items():
        name, digits = METRICS[metric][0], METRICS[metric][1]
        text = f"{name}{' after healing' * names_peer}: {estimate.mean:+.{digits}f}"
        text += f" to the best peer, *{peer}*" if names_peer else ""
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
    """A line an arm: parameters, seeds, each metric carried → healed; ``brief`` leaves out seeds and carried ones."""
    metrics = [metric for metric in metrics if any(row["metric"] == metric for row in rows)]
    arms = ["original", *dict.fromkeys(row["arm"] for row in rows if row["arm"] != "original")]
    heads = ["M parameters", *["seeds"] * (not brief), *(METRICS[metric][0] for metric in metrics)]
    lines = [f"| | {' | '.join(heads)} |", "|---" * (1 + len(heads)) + "|"]
    for arm in arms:
        stage = "carried" if arm == "original" else "healed"
        sizes = values(rows, arm, stage, "parameters")
        cells = [f"{sum(sizes.values()) / len(sizes) / 1e6:.2f}", *[str(len(sizes))] * (not brief)]
        for metric in metrics:
            before, after = cell(rows, arm, "carried", metric), cell(rows, arm, "healed", metric)
            if arm == "original":
                cells.append(before)
            elif brief or before == "–":
                cells.append(after)
            else:
                cells.append(f"{before} → {after}")
        lines.append(f"| {arm.removeprefix(COUNTS) if brief else arm} | {' | '.join(cells)} |")
    return lines


def page(rows: Rows, preface: str = PREFACE) -> list[str]:
    lines = preface.split("\n") if preface else []
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
        if len(seeds) < MIN_SEEDS:
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
    lines = readme(rows) if options.readme else page(rows, PREFACE if options.rows == CSV else "")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
