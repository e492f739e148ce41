"""How good a model is on the user's data: on the samples that choose, and on those that judge.

Of a sentence encoder also the share of a sentence's nearest neighbours that stay: the cosine to the original flatters
if all sentences are similar, and an encoder at a cosine of 0.987 may keep only 60% of its neighbours, which search and
clustering depend on. The share depends on the crowd among which neighbours are counted, which is therefore fixed: the
original's embeddings of `CROWD` sentences.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leanify.core.errors import DataError, LeanifyError
from leanify.core.units import format_metric, format_share
from leanify.data.common import choose_indices
from leanify.data.samples import Selection
from leanify.shrinking.original import Original
from leanify.shrinking.resolve import remedy
from leanify.sources.heads import Pooling
from leanify.sources.weights import is_headless
from leanify.tasks.sentence_embedding import embed
from leanify.upstream.libraries import reraise_as

NEAREST, CROWD = 10, 1000
MIN_SENTENCES = 5 * NEAREST  # with fewer, chance keeps more than a fifth of the neighbours
BATCH = 64
LABEL_SAMPLES = 128  # that show whether the original's outputs mean the data's labels


@dataclass(frozen=True)
class Quality:
    """The task's metric, and for a sentence encoder the share of its nearest neighbours that stay.

    chosen_on, neighbours_chosen  on the samples by which candidates are compared
    quality, neighbours           on the samples that judge, which are reported
    """

    chosen_on: float
    quality: float
    neighbours_chosen: float | None = None
    neighbours: float | None = None

    @staticmethod
    def from_finding(finding: Mapping[str, Any]) -> Quality:
        return Quality(**{key: finding.get(key) for key in Quality.__dataclass_fields__})  # type: ignore[arg-type]

    def to_finding(self) -> dict[str, float]:
        """The values that are known."""
        return {key: value for key, value in vars(self).items() if value is not None}

    def score(self, sign: int) -> float:
        """The score by which candidates are compared, higher is better; ``sign`` is the metric's.

        It is the metric, or for a sentence encoder the mean of its cosine and the share of neighbours that it keeps.
        """
        if self.neighbours_chosen is not None:
            return sign * (self.chosen_on + self.neighbours_chosen) / 2
        return sign * self.chosen_on

    def describe(self, metric: str) -> str:
        text = format_metric(metric, self.quality)
        if self.neighbours is not None:
            text += f", {format_share(self.neighbours)} of the neighbours stay"
        return text


def judge(original: Original, model: nn.Module) -> Quality:
    """Evaluate a model on the original's data. It stays on its device, in eval mode."""
    evaluator = original.evaluator
    splits = evaluator.splits
    assert splits.test is not None
    with _move_to_device(original, model):
        if original.recipe.data.task != "sentence-embedding":
            halves = splits.validation, splits.test
            values = [evaluator.metrics(model, half)[evaluator.task.metric] for half in halves]
            return Quality(*(value * original.length_ratio for value in values))
        train: Any = splits.train
        _, targets = train.batch(np.arange(min(CROWD, len(train))))
        crowd = F.normalize(targets.float(), dim=-1)
        chosen_on, neighbours_chosen = compare_embeddings(model, splits.validation, splits.pooling, crowd)
        quality, neighbours = compare_embeddings(model, splits.test, splits.pooling, crowd)
        return Quality(chosen_on, quality, neighbours_chosen, neighbours)


@contextmanager
def _move_to_device(original: Original, model: nn.Module) -> Iterator[None]:
    before = next(model.parameters()).device
    model.to(original.evaluator.accelerator.device)
    try:
        yield
    finally:
        model.to(before).eval()


def check_original(original: Original) -> None:
    """Raise LeanifyError for a model that does not run on the data, or whose head was not trained for it."""
    name, data, evaluator = original.name, original.recipe.data, original.evaluator
    if data.task != "sentence-embedding" and is_headless(original.module):
        raise LeanifyError(
            f"{name} has no trained head for {data.path} ({data.task}), so there is no quality to keep; "
            f"{remedy(name, original.recipe)}"
        )
    with _move_to_device(original, original.module), reraise_as(f"{name} cannot be judged on {data.path}", DataError):
        evaluator.try_sample(original.module)
        # the meaning of a classifier's outputs: if names do not tell it, a score does
        if data.task in ("classification", "text-classification") and evaluator.splits.labels.names:
            validation = evaluator.splits.validation
            sample = Selection(validation, choose_indices(validation, LABEL_SAMPLES, "random"))
            evaluator.splits.labels.check_score(evaluator.metrics(original.module, sample)["top1"] / 100, len(sample))


def judged_on(original: Original) -> str:
    """Describe the samples."""
    splits = original.splits
    assert splits.test is not None
    return f"{len(splits.validation):,} validation samples choose, {len(splits.test):,} others judge"


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


def _nearest(embeddings: Tensor, crowd: Tensor) -> Tensor:
    """Return a mask of the nearest neighbours of each sentence, (sentences, crowd)."""
    similarity = embeddings @ crowd.T
    places = similarity.topk(NEAREST, dim=1).indices
    return torch.zeros_like(similarity, dtype=torch.bool).scatter_(1, places, True)
