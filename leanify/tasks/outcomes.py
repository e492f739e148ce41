"""Each validation sample's contribution to a metric, which gives the samples' part of its uncertainty.

The contributions to a mean are the samples' own values; to a ratio of sums (loss per token) the values of the
delta method; to any other metric (F1, correlations) the jackknife's pseudo-values (Efron and Stein 1981), over
blocks if there are many samples. Their mean always equals the metric.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    from leanify.tasks import Task

BLOCKS = 500  # maximum number of blocks that the jackknife leaves out in turn


def outcomes(task: Task, tally: Mapping[str, Tensor]) -> NDArray[np.float64]:
    """The values (N,) whose mean is the metric of a merged tally; of blocks if the metric is not a mean."""
    if task.mean_column is None:
        return jackknife(task, tally)
    column, scale = task.mean_column
    values, counts = (tally[name].double().numpy() for name in (column, "count"))
    metric = values.sum() / counts.sum()
    return np.asarray(scale * (metric + (values - metric * counts) * len(values) / counts.sum()))


def jackknife(task: Task, tally: Mapping[str, Tensor]) -> NDArray[np.float64]:
    """Pseudo-values of the delete-one jackknife, shifted so that their mean is the metric."""
    samples = len(tally["count"])
    blocks = min(samples, BLOCKS)
    block_indices = np.arange(samples) % blocks
    full_metric = task.metrics(tally)[task.metric]

    # the metric without each block
    metrics = []
    for block in range(blocks):
        rest = {name: column[block_indices != block] for name, column in tally.items()}
        metrics.append(task.metrics(rest)[task.metric])
    without = np.array(metrics)
    return np.asarray(full_metric + (blocks - 1) * (without.mean() - without))
