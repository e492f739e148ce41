"""What people measure of sentence embeddings: neighbours, STS-B, and a logistic regression on GLUE's tasks.

``embed`` gives the embeddings (N, width) of a list of texts.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from scipy.stats import spearmanr
from torch import Tensor

PROBED, ASKED = 600, 1000  # texts that a logistic regression on embeddings learns from, and answers
TASKS = ("sst2", "mrpc", "cola", "rte")
Embed = Callable[[Sequence[str]], Tensor]


def nearest(rows: Tensor, count: int) -> Tensor:
    """(N, width) → (N, N) whether a row is among the ``count`` nearest of another, by cosine."""
    rows = F.normalize(rows, dim=-1)
    likeness = (rows @ rows.T).fill_diagonal_(-2)
    return torch.zeros_like(likeness, dtype=torch.bool).scatter_(1, likeness.topk(count).indices, True)


def read_table(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))


def features(embed: Embed, rows: Sequence[dict[str, str]]) -> Tensor:
    """Embeddings of single texts, or |u − v| and u·v of pairs, as SentEval has them."""
    names = [name for name in rows[0] if name not in ("label", "index", "idx", "score")]
    columns = [F.normalize(embed([row[name] for row in rows]), dim=-1) for name in names]
    if len(columns) == 1:
        return columns[0]
    return torch.cat([(columns[0] - columns[1]).abs(), columns[0] * columns[1]], -1)


def sts(embed: Embed, rows: Sequence[dict[str, str]]) -> float:
    """Spearman's ρ × 100 between the cosines of pairs and people's scores."""
    both = features(embed, rows)
    cosines = both[:, both.shape[-1] // 2 :].sum(-1)
    return 100 * float(spearmanr(cosines.numpy(), [float(row["label"]) for row in rows]).statistic)


def probe(embed: Embed, folder: Path) -> float:
    """Accuracy in percent of a logistic regression on frozen embeddings."""
    from sklearn.linear_model import LogisticRegression

    held_out = folder / ("validation.tsv" if (folder / "validation.tsv").is_file() else "test.tsv")
    train, test = read_table(folder / "train.tsv"), read_table(held_out)
    random.Random(0).shuffle(train)
    train, test = train[:PROBED], test[:ASKED]
    classifier = LogisticRegression(max_iter=1000).fit(features(embed, train), [row["label"] for row in train])
    return 100 * float(classifier.score(features(embed, test), [row["label"] for row in test]))
