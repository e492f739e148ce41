"""The eight GLUE tasks that the paper reports, with their metrics (Wang et al. 2019, table 1)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leanify.data.samples import Inputs, Splits
from leanify.errors import RecipeError
from leanify.runs.recipe import DataSection, TrainingRecipe
from leanify.tasks.outputs import answer, mean
from leanify.tasks.references import Linear

PAIR = ("sentence1", "sentence2")
ENTAILMENT = ("entailment", "not_entailment")


@dataclass(frozen=True)
class GlueTask:
    """``columns``: names of the text columns; ``labels``: the classes, () for a score of 0 … 5."""

    title: str
    labels: tuple[str, ...]
    columns: tuple[tuple[str, ...], ...] = (PAIR,)

    @property
    def outputs(self) -> int:
        """The number of the model's outputs per sample."""
        return len(self.labels) or 1


TASKS = {
    "cola": GlueTask("CoLA", ("unacceptable", "acceptable"), (("sentence",),)),
    "sst2": GlueTask("SST-2", ("negative", "positive"), (("sentence",),)),
    "mrpc": GlueTask("MRPC", ("not_equivalent", "equivalent")),
    "stsb": GlueTask("STS-B", ()),
    "qqp": GlueTask("QQP", ("not_duplicate", "duplicate"), (PAIR, ("question1", "question2"))),
    "mnli": GlueTask("MNLI", ("entailment", "neutral", "contradiction"), (PAIR, ("premise", "hypothesis"))),
    "qnli": GlueTask("QNLI", ENTAILMENT, (PAIR, ("question", "sentence"))),
    "rte": GlueTask("RTE", ENTAILMENT),
}


def name_of(data: DataSection) -> str:
    """The GLUE task that a recipe names, as a key of TASKS. Raises RecipeError."""
    name = plain_name(data.name)
    if name not in TASKS:
        raise RecipeError(f"data.name is {data.name!r}; GLUE's tasks are {', '.join(TASKS)}: --set data.name=sst2")
    return name


def plain_name(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


Metric = Callable[[np.ndarray, np.ndarray], float]  # labels, predictions → −1 … 1


def _of_sklearn(name: str, **options: float) -> Metric:
    """A metric of scikit-learn, which is imported when it is needed."""

    def metric(labels: np.ndarray, guesses: np.ndarray) -> float:
        from sklearn import metrics

        return float(getattr(metrics, name)(labels, guesses, **options))

    return metric


def _of_scipy(name: str) -> Metric:
    """A correlation of SciPy; 0 where a constant column leaves it undefined."""

    def metric(labels: np.ndarray, guesses: np.ndarray) -> float:
        from scipy import stats

        if len(labels) < 2 or not (np.ptp(labels) > 0 and np.ptp(guesses) > 0):
            return 0.0
        value = float(getattr(stats, name)(labels, guesses).statistic)
        return value if np.isfinite(value) else 0.0

    return metric


accuracy, matthews = _of_sklearn("accuracy_score"), _of_sklearn("matthews_corrcoef")
pearson, spearman = _of_scipy("pearsonr"), _of_scipy("spearmanr")


def f1(labels: np.ndarray, guesses: np.ndarray) -> float:
    """F1 of class 1; 0 if it is never predicted."""
    from sklearn.metrics import f1_score

    return float(f1_score(labels, guesses, zero_division=0.0))


# each task's first metric is the one printed in tables, as in Devlin et al. 2019 (table 1)
METRICS: Mapping[str, Mapping[str, Metric]] = {
    "cola": {"matthews": matthews},
    "sst2": {"accuracy": accuracy},
    "mrpc": {"f1": f1, "accuracy": accuracy},
    "stsb": {"spearman": spearman, "pearson": pearson},
    "qqp": {"f1": f1, "accuracy": accuracy},
    "mnli": {"accuracy": accuracy},
    "qnli": {"accuracy": accuracy},
    "rte": {"accuracy": accuracy},
}


def task(recipe: TrainingRecipe, splits: Splits) -> Glue:
    return Glue(name_of(recipe.data), recipe.optim.label_smoothing)


class Glue:
    """A GLUE task: classification by cross-entropy, or for STS-B regression by squared error."""

    sign, best, summed = 1, 100.0, None

    def __init__(self, name: str, smoothing: float) -> None:
        self.name, self.classes, self.smoothing = name, len(TASKS[name].labels), smoothing
        self.metric = next(iter(METRICS[name]))
        self.unit = f"points of {self.metric}"
        self.reference = Linear(self.classes)

    def loss(self, model: nn.Module, inputs: Inputs, targets: Tensor) -> Tensor:
        """targets (B,) → the loss summed over B"""
        return self._loss(answer(model, inputs), targets, self.smoothing).sum()

    def _loss(self, outputs: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        if self.classes:
            return F.cross_entropy(outputs, targets, label_smoothing=smoothing, reduction="none")
        return F.mse_loss(outputs[:, 0], targets, reduction="none")

    def count(self, targets: Tensor) -> int:
        return len(targets)

    def found(self, model: nn.Module, inputs: Inputs, targets: Tensor) -> Mapping[str, Tensor]:
        outputs = answer(model, inputs)
        label = targets % self.classes if self.classes else targets
        part = targets // self.classes if self.classes else torch.zeros_like(targets)  # MNLI: 0 matched, 1 mismatched
        return {
            "loss": self._loss(outputs, label),
            "count": torch.ones(len(targets)),
            "guess": outputs.argmax(1) if self.classes else outputs[:, 0],
            "label": label,
            "part": part,
        }

    def metrics(self, found: Mapping[str, Tensor]) -> dict[str, float]:
        """Mean loss, and the task's metrics times 100; for MNLI the mean of its two sets."""
        report = {"loss": mean(found, "loss")}
        label, guess, part = (found[name].numpy() for name in ("label", "guess", "part"))
        for name, metric in METRICS[self.name].items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # sklearn warns if the validation set lacks a class
                values = [100 * metric(label[part == one], guess[part == one]) for one in np.unique(part)]
            report[name] = sum(values) / len(values)
            if self.name == "mnli":
                report |= {f"{name}_{kind}": value for kind, value in zip(("m", "mm"), values, strict=False)}
        return report
