"""Predict the quality of untrained designs, with uncertainty, from a study's finished runs.

The surface is a Gaussian process (Rasmussen and Williams 2006) over log depth, log inner, log head_dim and log MLP,
fitted to every finished run. Prices remain exact; only quality is predicted.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from leanify.design.plan import Plan
from leanify.design.search.design import Design
from leanify.design.search.grid import Grid
from leanify.errors import LeanifyError
from leanify.study.folder import StudyFolder
from leanify.study.plan import PlannedDesign
from leanify.study.results import Study, study_of
from leanify.study.statistics import CONFIDENCE

FEWEST = 4  # designs needed to fit a surface
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Prediction:
    """A design's predicted quality, and the 95% interval for a run of it, which is wider than one for its mean."""

    mean: float
    low: float
    high: float


class Surface:
    """Quality as a function of shape, fitted to points (n, 4) from `features` and their qualities (n,)."""

    def __init__(self, points: Array, qualities: Array, sign: int) -> None:
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

        kernel = ConstantKernel(1.0, (0.05, 20)) * RBF(np.ones(4), (0.2, 20)) + WhiteKernel(0.1, (1e-4, 2))
        self.points, self.sign = points, sign
        self.center, self.scale = float(qualities.mean()), float(qualities.std()) or 1.0
        process: Any = GaussianProcessRegressor(kernel, n_restarts_optimizer=4, random_state=0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # a length scale at its bound: the axis hardly matters
            self.process = process.fit(points, (qualities - self.center) / self.scale)
        self.reach = self._reach(qualities)

    def _reach(self, qualities: Array) -> float:
        """How many standard deviations a 95% interval takes, by how well each design is predicted from the others."""
        from sklearn.gaussian_process import GaussianProcessRegressor

        scaled, errors = (qualities - self.center) / self.scale, []
        shapes = np.unique(self.points, axis=0)
        for shape in shapes:
            out = (self.points == shape).all(1)
            if out.all():
                break
            process: Any = GaussianProcessRegressor(self.process.kernel_, optimizer=None)
            mean, deviation = process.fit(self.points[~out], scaled[~out]).predict(shape[None], return_std=True)
            errors.append(float(np.mean((scaled[out] - mean) ** 2) / deviation[0] ** 2))
        if not errors:
            return math.inf
        return float(stats.t.ppf((1 + CONFIDENCE) / 2, len(errors))) * math.sqrt(max(1.0, float(np.mean(errors))))

    def predict(self, points: Array) -> tuple[Array, Array]:
        """Mean quality (n,) and its standard deviation (n,), without the noise of individual runs."""
        mean, deviation = self.process.predict(points, return_std=True)
        noise = self.process.kernel_.k2.noise_level
        return self.center + self.scale * mean, self.scale * np.sqrt(np.maximum(deviation**2 - noise, 0))

    def of(self, depth: Any, heads: Any, head_dim: Any, mlp: Any) -> Prediction:
        """Predict one shape's quality."""
        mean, deviation = (float(column[0]) for column in self.predict(features(depth, heads, head_dim, mlp)))
        noise = self.scale**2 * self.process.kernel_.k2.noise_level
        half = self.reach * math.sqrt(deviation**2 + noise)
        return Prediction(mean, mean - half, mean + half)

    def ranking(self, designs: Grid) -> Array:
        """A score for every design of a grid, lowest is best, as `redesign` expects of a ranking."""
        return -self.sign * self.predict(of_grid(designs))[0]

    def most_telling(self, points: Array, count: int) -> list[int]:
        """Choose the most informative points greedily: each time the one with the largest remaining variance.

        This needs no results, because a Gaussian process's variance depends only on where it was observed.
        """
        kernel, known = self.process.kernel_, self.points
        chosen: list[int] = []
        for _ in range(min(count, len(points))):
            gram = kernel(known) + 1e-9 * np.eye(len(known))
            cross = kernel.k1(points, known)
            left = np.diag(kernel.k1(points)) - np.einsum("ij,ji->i", cross, np.linalg.solve(gram, cross.T))
            left[chosen] = -np.inf
            chosen.append(int(np.argmax(left)))
            known = np.vstack([known, points[chosen[-1]]])
        return chosen


def features(depth: Any, heads: Any, head_dim: Any, mlp: Any) -> Array:
    """Features (n, 4): log depth, log inner, log head_dim, log MLP, from numbers or arrays (n,)."""
    columns = (depth, np.multiply(heads, head_dim), head_dim, np.maximum(mlp, 1))
    table = np.broadcast_arrays(*(np.atleast_1d(np.asarray(column, np.float64)) for column in columns))
    return np.asarray(np.log(np.stack(table, axis=1)))


def of_grid(designs: Grid) -> Array:
    return features(designs.depth, designs.heads, designs.head_dim, designs.mlp)


def of_shape(design: Design | PlannedDesign) -> tuple[int, ...]:
    """A design's depth, heads, head_dim and MLP; for several stages, the largest value of each."""
    sizes: list[Any] = [design.depth, design.heads, design.head_dim, design.mlp]
    return tuple(size if isinstance(size, int) else max(size) for size in sizes)


def of_design(design: Design | PlannedDesign) -> Array:
    """Features (1, 4) of a design."""
    return features(*of_shape(design))


def surface_of(study: Study) -> Surface:
    """Fit the surface of a study. Raises LeanifyError if it has too few trained designs."""
    trained = [result for result in study.results if result.quality.seeds]
    if len(trained) < FEWEST:
        raise LeanifyError(
            f"{study.path} has {len(trained)} trained designs, but predicting others needs at least {FEWEST}: add some "
            f"with leanify compare {study.path} --designs front:4"
        )
    points, qualities = [], []
    for result in trained:
        for run in result.runs:
            if run.quality is not None:
                points.append(of_design(result.plan))
                qualities.append(run.quality)
    return Surface(np.concatenate(points), np.array(qualities), 1 if study.higher_is_better else -1)


def load(path: str | Path) -> tuple[Study, Surface]:
    """Read a study and fit its surface. Raises DirectoryError and LeanifyError."""
    study = study_of(StudyFolder.open(Path(path)))
    return study, surface_of(study)


def predictions(plan: Plan, study: Study, surface: Surface) -> dict[str, Any]:
    """Predicted quality of every design in a plan, as ``redesign --study --json`` prints it."""

    def of(design: Design | None) -> dict[str, float] | None:
        return None if design is None else asdict(surface.of(*of_shape(design)))

    named = {"baseline": plan.baseline, "chosen": plan.chosen, "control": plan.control}
    found: dict[str, Any] = {name: of(design) for name, design in named.items()}
    return {"study": str(study.path), "metric": study.metric, **found, "candidates": [of(d) for d in plan.candidates]}
