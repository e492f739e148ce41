"""Share of a sentence's nearest neighbours that stay: the cosine to the original flatters if all sentences are similar.

An encoder at a cosine of 0.987 may keep only 60% of its neighbours, which search and clustering depend on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leanify.tasks.sentence_embedding import embed

NEAREST = 10
BATCH = 64
MAX_SENTENCES = 2_000  # maximum number of sentences to compare; the memory grows with its square


@torch.no_grad()
def neighbours_kept(model: nn.Module, samples: Any, pooling: Sequence[str]) -> float | None:
    """Return the share of each sentence's nearest teacher neighbours that are also nearest in the model's embeddings.

    ``samples`` contain the teacher's embeddings as targets. Returns None for fewer than three sentences.
    """
    count = min(len(samples), MAX_SENTENCES)
    nearest = min(NEAREST, count - 2)
    if nearest < 1:
        return None
    device = next(model.parameters()).device
    model.eval()

    # embeddings of both, (sentences, width); batches of similar lengths need little padding
    order = np.arange(count)
    lengths = getattr(samples, "lengths", None)
    if lengths is not None:
        order = np.asarray(lengths)[:count].argsort(kind="stable")
    students: list[Tensor] = []
    teachers: list[Tensor] = []
    for start in range(0, count, BATCH):
        inputs, targets = samples.batch(order[start : start + BATCH])
        on_device = {name: value.to(device) for name, value in inputs.items()}
        students.append(F.normalize(embed(model, on_device, pooling), dim=-1))
        teachers.append(F.normalize(targets.to(device).float(), dim=-1))
    kept = nearest_neighbours(torch.cat(students), nearest) & nearest_neighbours(torch.cat(teachers), nearest)
    return float(kept.sum()) / (count * nearest)


def nearest_neighbours(embeddings: Tensor, nearest: int) -> Tensor:
    """Return a mask of the nearest neighbours of each sentence, (sentences, sentences), without itself."""
    similarity = embeddings @ embeddings.T
    similarity.fill_diagonal_(-torch.inf)
    places = similarity.topk(nearest, dim=1).indices
    return torch.zeros_like(similarity, dtype=torch.bool).scatter_(1, places, True)
