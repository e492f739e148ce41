"""Rules that rank designs of equal parameters: fixed ones, measured ones, and those fitted to other tasks."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from .table import Task, spearman

DEPTH = 8  # of the baseline

# -- rules: more is better --------------------------------------------------------------------------------------------

Rule = Callable[[dict[str, Any]], float]


def gaussian_kappa(d: dict[str, Any]) -> float:
    gap = abs(math.sqrt(d["inner"]) - math.sqrt(d["tokens"]))
    return (math.sqrt(d["inner"]) + math.sqrt(d["tokens"])) / gap if gap else 1e9


def current(d: dict[str, Any]) -> float:
    """As leanify ranked until now: first no MLP below twice the width, then the least κ/depth."""
    return -1e6 * max(0, 2 * d["width"] - d["mlp"]) - gaussian_kappa(d) / d["depth"]


def levine(d: dict[str, Any]) -> float:
    """Near the depth at which width and depth are in balance: ln width = 5.039 + 0.0555 depth (Levine et al. 2020)."""
    best = max(1.0, (math.log(d["width"]) - 5.039) / 0.0555)
    return -abs(math.log(d["depth"] / best))


def kaplan(d: dict[str, Any]) -> float:
    """Little matters; MLPs of four times the width and inner = width lie in the flat middle (Kaplan et al. 2020)."""
    return -abs(math.log(d["mlp"] / (4 * d["width"]))) - abs(math.log(d["inner"] / d["width"]))


def petty(d: dict[str, Any]) -> float:
    """Deeper, as long as the MLP is no narrower than the model; returns fall with depth (Petty et al. 2024)."""
    return math.log(d["depth"]) - 10 * max(0.0, math.log(d["width"] / d["mlp"]))


def brown(d: dict[str, Any]) -> float:
    """Wide attention: as many heads a layer, in as few layers (Brown et al. 2022)."""
    return math.log(d["heads"] / d["depth"])


def least_change(d: dict[str, Any]) -> float:
    return -sum(
        abs(math.log(ratio)) for ratio in (d["depth"] / DEPTH, d["inner"] / d["width"], d["mlp"] / (4 * d["width"]))
    )


RULES: dict[str, Rule] = {
    "κ/depth, MLP ≥ 2 width first (as it was)": current,
    "κ/depth": lambda d: -gaussian_kappa(d) / d["depth"],
    "κ predicted, least": lambda d: -gaussian_kappa(d),
    "depth": lambda d: d["depth"],
    "heads": lambda d: d["heads"],
    "inner": lambda d: d["inner"],
    "mlp": lambda d: d["mlp"],
    "mlp × depth (all hidden units)": lambda d: d["mlp"] * d["depth"],
    "inner × depth (all attention)": lambda d: d["inner"] * d["depth"],
    "mlp / inner": lambda d: d["mlp"] / d["inner"],
    "inner / depth": lambda d: d["inner"] / d["depth"],
    "mlp / depth": lambda d: d["mlp"] / d["depth"],
    "MACs": lambda d: d["macs"],
    "near 2 layers' depth (Levine 2020)": levine,
    "deep, MLP ≥ width (Petty 2024)": petty,
    "heads / depth (Brown 2022)": brown,
    "MLP near 4 width, inner near width (Kaplan 2020)": kaplan,
    "least change": least_change,
    "attention and MLP of equal size": lambda d: -abs(math.log(2 * d["inner"] / d["mlp"])),
}
MEASURED = {  # column → sign
    "κ at the beginning, least": ("kappa_init", -1),
    "κ after 50 steps, least": ("kappa_50", -1),
    "gradient's norm (first batch)": ("grad_norm", 1),
    "SNIP (first batch)": ("snip", 1),
    "Fisher (first batch)": ("fisher", 1),
    "training loss, 6–20%": ("loss_6_20", -1),
    "training loss, 20–30%": ("loss_20_30", -1),
    "training loss, 40–50%": ("loss_40_50", -1),
}


def scores(task: Task) -> dict[str, np.ndarray]:
    found = {
        name: np.array([rule(task.rows[d, task.seeds[0]]) for d in task.designs], float) for name, rule in RULES.items()
    }
    return found | {name: sign * task.column(column) for name, (column, sign) in MEASURED.items()}


# -- rules fitted to other tasks --------------------------------------------------------------------------------------


def features(task: Task) -> np.ndarray:
    rows = [task.rows[d, task.seeds[0]] for d in task.designs]
    return np.array(
        [[math.log(r["depth"]), math.log(r["inner"] / r["width"]), math.log(r["mlp"] / r["width"])] for r in rows]
    )


def standard(values: np.ndarray) -> np.ndarray:
    return (values - values.mean()) / values.std()


def models() -> dict[str, Any]:
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, WhiteKernel
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import PolynomialFeatures, StandardScaler

    kernel = RBF([1.0, 1.0, 1.0], (0.3, 30)) + WhiteKernel(0.5, (0.05, 5))
    return {
        "ridge": make_pipeline(StandardScaler(), Ridge(3.0)),
        "quadratic ridge": make_pipeline(StandardScaler(), PolynomialFeatures(2, include_bias=False), Ridge(3.0)),
        "Gaussian process": make_pipeline(StandardScaler(), GaussianProcessRegressor(kernel, normalize_y=True)),
    }


def fitted(task: Task, others: Iterable[Task]) -> dict[str, np.ndarray]:
    """Scores by what was fitted to other tasks; ``mean rank``: a design's mean standardised quality on them."""
    others = list(others)
    x = np.concatenate([features(t) for t in others])
    y = np.concatenate([standard(t.quality) for t in others])
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, model in models().items():
            found[name] = model.fit(x, y).predict(features(task))
    table = {t.name: dict(zip(t.designs, standard(t.quality), strict=True)) for t in others}
    found["the same design elsewhere"] = np.array(
        [np.mean([table[t.name].get(d, 0.0) for t in others]) for d in task.designs]
    )
    return found


def by_direction(tasks: list[Task]) -> list[tuple[int, np.ndarray]]:
    """All attention (inner × depth), with the sign that it has on the other tasks whose attention looks that way."""
    found = []
    for task in tasks:
        alike = [t for t in tasks if t is not task and is_causal(t) == is_causal(task)]
        rho = np.mean([spearman(attention_of(t), t.quality) for t in alike])
        sign = 1 if rho >= 0 else -1
        found.append((sign, sign * attention_of(task)))
    return found


# -- what redesign proposes ------------------------------------------------------------------------------------------


def attention_share(task: Task) -> np.ndarray:
    """The share of attention in a block's parameters, without biases: four maps, and an MLP of two or three (gated)."""
    rows = [task.rows[d, task.seeds[0]] for d in task.designs]
    maps = 3 if task.kind.startswith("masked") else 2  # crammed BERT's MLPs are gated
    return np.array([4 * r["inner"] / (4 * r["inner"] + maps * r["mlp"]) for r in rows])


def is_usual(task: Task) -> np.ndarray:
    """Whether a design's MLP has two widths or more, a gated one by its parameters; sizes are rounded."""
    rows = [task.rows[d, task.seeds[0]] for d in task.designs]
    maps = 3 if task.kind.startswith("masked") else 2
    return np.array([maps * r["mlp"] >= 0.99 * 4 * r["width"] for r in rows])


def depths(task: Task) -> np.ndarray:
    return np.array([float(task.rows[d, task.seeds[0]]["depth"]) for d in task.designs])


PROPOSALS: dict[str, Callable[[Task], np.ndarray]] = {  # more is better
    "most attention": attention_share,
    "most attention among MLPs of two widths and more": lambda t: attention_share(t) + 10 * is_usual(t),
    "least attention": lambda t: -attention_share(t),
    "no more attention than MLP, then most layers": lambda t: (
        -1000 * np.round(np.maximum(attention_share(t), 0.5) / 0.02) + depths(t)
    ),
}
DEFAULT = {
    False: "most attention among MLPs of two widths and more",
    True: "no more attention than MLP, then most layers",
}


def is_causal(task: Task) -> bool:
    return task.kind.startswith("causal")


def attention_of(task: Task) -> np.ndarray:
    return np.array(
        [float(task.rows[d, task.seeds[0]]["inner"] * task.rows[d, task.seeds[0]]["depth"]) for d in task.designs]
    )
