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
MIN_SENTENCES = 5 * NEAREST  # with fewer, chance keeps more than a fifth of the neighbours
BATCH = 64


@torch.no_grad()
def compare_embeddings(model: nn.Module, samples: Any, pooling: Sequence[str]) -> tuple[float, float | None]:
    """Return the mean cosine to the teacher's embeddings, and the share of the nearest neighbours in them that stay.

    ``samples`` contain the teacher's embeddings as targets. Fewer than `MIN_SENTENCES` have no share.
    """
    device = next(model.parameters()).device
    model.eval()

    # embeddings of both, (sentences, width); batches of similar lengths need little padding
    order = np.arange(len(samples))
    lengths = getattr(samples, "lengths", None)
    if lengths is not None:
        order = np.asarray(lengths).argsort(kind="stable")
    students: list[Tensor] = []
    teachers: list[Tensor] = []
    for start in range(0, len(samples), BATCH):
        inputs, targets = samples.batch(order[start : start + BATCH])
        on_device = {name: value.to(device) for name, value in inputs.items()}
        students.append(F.normalize(embed(model, on_device, pooling), dim=-1))
        teachers.append(F.normalize(targets.to(device).float(), dim=-1))
    student, teacher = torch.cat(students), torch.cat(teachers)
    cosine = float((student * teacher).sum(-1).double().mean())

    # neighbours that are near in both
    if len(samples) < MIN_SENTENCES:
        return cosine, None
    kept = nearest_neighbours(student, NEAREST) & nearest_neighbours(teacher, NEAREST)
    return cosine, float(kept.sum()) / (len(samples) * NEAREST)


def nearest_neighbours(embeddings: Tensor, nearest: int) -> Tensor:
    """Return a mask of the nearest neighbours of each sentence, (sentences, sentences), without itself."""
    similarity = embeddings @ embeddings.T
    similarity.fill_diagonal_(-torch.inf)
    places = similarity.topk(nearest, dim=1).indices
    return torch.zeros_like(similarity, dtype=torch.bool).scatter_(1, places, True)
