"""Share of a sentence's nearest neighbours that stay: the cosine to the original flatters if all sentences are similar.

An encoder at a cosine of 0.987 may keep only 60% of its neighbours, which search and clustering depend on. The share
depends on the crowd among which neighbours are counted, which is therefore fixed: the original's embeddings of `CROWD`
sentences.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leanify.sources.heads import Pooling
from leanify.tasks.sentence_embedding import embed

NEAREST, CROWD = 10, 1000
MIN_SENTENCES = 5 * NEAREST  # with fewer, chance keeps more than a fifth of the neighbours
BATCH = 64


@torch.no_grad()
def compare_embeddings(
    model: nn.Module, samples: Any, pooling: Pooling, crowd: Tensor | None = None
) -> tuple[float, float | None]:
    """Return the mean cosine to the teacher's embeddings, and the share of the nearest neighbours in them that stay.

    ``samples`` contain the teacher's embeddings as targets; ``crowd`` (sentences, width) are others of its embeddings,
    of length 1, among which neighbours are counted. Fewer than `MIN_SENTENCES` of these have no share.
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

    # neighbours in the crowd that are near in both
    if crowd is None or len(crowd) < MIN_SENTENCES:
        return cosine, None
    common = _nearest(student, crowd.to(device)) & _nearest(teacher, crowd.to(device))
    return cosine, float(common.sum()) / (len(samples) * NEAREST)


def take_crowd(samples: Any) -> Tensor:
    """The teacher's embeddings of the first `CROWD` samples, of length 1."""
    _, targets = samples.batch(np.arange(min(CROWD, len(samples))))
    return F.normalize(targets.float(), dim=-1)


def _nearest(embeddings: Tensor, crowd: Tensor) -> Tensor:
    """Return a mask of the nearest neighbours of each sentence, (sentences, crowd)."""
    similarity = embeddings @ crowd.T
    places = similarity.topk(NEAREST, dim=1).indices
    return torch.zeros_like(similarity, dtype=torch.bool).scatter_(1, places, True)
