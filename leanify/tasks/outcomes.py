"""What each validation sample adds to a metric, so that the samples' part of its uncertainty can be computed.

A metric that is a mean has the samples' own values; a ratio of sums (loss per token) the values that make its
delta method; any other (F1, correlations) the jackknife's pseudo-values (Efron and Stein 1981), over blocks
of samples where there are many. Their mean is the metric in every case.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    from leanify.tasks import Task

BLOCKS = 500  # at most this many are left out in turn by the jackknife


def outcomes(task: Task, found: Mapping[str, Tensor]) -> NDArray[np.float64]:
    """The values (N,) whose mean is the metric of a merged tally; of blocks where it is no mean."""
    if task.summed is None:
        return jackknifed(task, found)
    column, scale = task.summed
    values, counts = (found[name].double().numpy() for name in (column, "count"))
    metric = values.sum() / counts.sum()
    return np.asarray(scale * (metric + (values - metric * counts) * len(values) / counts.sum()))


def jackknifed(task: Task, found: Mapping[str, Tensor]) -> NDArray[np.float64]:
    """Pseudo-values of the delete-one jackknife, shifted so that their mean is the metric."""
    samples = len(found["count"])
    blocks = min(samples, BLOCKS)
    block = np.arange(samples) % blocks
    whole = task.metrics(found)[task.metric]
    rest = ({name: column[block != one] for name, column in found.items()} for one in range(blocks))
    without = np.array([task.metrics(tally)[task.metric] for tally in rest])
    return np.asarray(whole + (blocks - 1) * (without.mean() - without))
