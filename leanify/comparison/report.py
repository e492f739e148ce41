"""A study as one self-contained HTML page with text, tables and figures, from the template ``page.html.j2``.

The figures are matplotlib SVGs that use the page's text colour, so they suit light and dark themes. A design has the
same colour and marker in all of them; the colours are Okabe and Ito's colour-blind-safe palette.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from leanify.comparison import tables
from leanify.comparison.folder import StudyFolder
from leanify.comparison.plan import Key
from leanify.core.errors import DirectoryError, SourceError
from leanify.core.files import writing
from leanify.core.files.reading import read_json
from leanify.core.plotting import plot_settings, show_texts_literally
from leanify.runs.run_directory import leaves
from leanify.training.overview import data_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from leanify.comparison.values import Study

TEMPLATE = "page.html.j2"
HINT = "hint: "  # prefix for ids of figure elements with a tooltip
INK = "#010203"  # a placeholder, replaced by currentColor: the page's text colour
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a7f00", "#7f7f7f")
MARKERS = "os^Dv*PX"
MAX_MARKERS = 20  # on a curve
SIZE = (6.4, 3.8)  # inches
ONE_RATE = "One rate for all designs: their order may be another one at other rates (--rates 0.5,1,2)."
INTERVALS = (
    "Every interval has 95%, over seeds and validation samples together. Designs of one seed share samples, order and "
    "luck: a difference has the variance of its differences seed by seed (Student's paired t). Accuracies are skewed, "
    "so their variance is that at the value in question (as in Wilson 1927), never below the observed one. The "
    "samples' part comes from the outcome of each sample, paired between designs; both are crossed random effects, "
    "and the runs' part is at least the noise of one run on one sample, which is known from all samples. Nothing is "
    "shown or refuted below three seeds, nor with a run that failed or diverged: it counts in no mean. The first look "
    "at a study may spend 60% of the error rate, the second 24%, the third 10%, so that all looks together keep to "
    "5%; intervals of differences and p count this. p is two-sided; differences marked * had no question in advance: "
    "their p are corrected together (Holm 1979), and so are their intervals (Bonferroni)."
)
TERMS = (
    "depth: layers. heads × dim: attention heads of a layer, and the channels of each. MLP: hidden units of a layer. "
    "MACs: multiply-adds of a forward pass of one sample. κ: condition number of the concatenated heads, the median "
    "over layers and samples. control: lean's depth and parameters with the baseline's heads and a wider MLP. narrow: "
    "the baseline's depth and lean's parameters in a smaller residual width. Parameters and MACs are exact. Measured "
    "costs are medians of interleaved rounds, with the middle half of the rounds in brackets."
)


def write(study: Study, path: Path) -> Path:
    """Write the page. Raises DirectoryError if it cannot be written."""
    try:
        writing.write(path, render(study))
    except OSError as error:
        raise DirectoryError(f"{path} could not be written: {error.strerror or error}") from error
    return path


def render(study: Study) -> str:
    """The page as HTML. Each run's number links to the run's folder, relative to the study's folder."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    page_tables = [tables.designs(study, "page"), tables.costs(study, page=True), tables.pairs(study)]
    loader = PackageLoader("leanify.comparison", "")
    engine = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    return engine.get_template(TEMPLATE).render(
        title=study.plan.title,
        about=about(study),
        not_learnt="" if study.learnt else f"{study.learnt_why}.",
        verdicts=study.verdicts,
        methods=methods(study),
        notes=_notes(study),
        tables=[table for table in page_tables if table.rows],
        figures=figures(study),
        command=f"leanify compare {study.path}",
    )


def about(study: Study) -> str:
    """One line about the comparison: data, metric, budget, designs and seeds."""
    data = study.plan.recipe.data
    where = f"{data_name(data)}, {data.task}" if data else ""
    split = f"{study.metric} of the {study.split} split after training" if study.metric else "no run has finished yet"
    missing = f" · {study.describe_missing()}" if study.missing else ""
    budget_text = study.plan.budget or "none"
    budget = f"{int(budget_text):,} parameters" if budget_text.isdecimal() else budget_text
    designs = f"{len(study.results)} designs × {len(study.plan.seeds)} seeds"
    return f"{where} · {split} · budget {budget} · {designs}{missing}"


def _notes(study: Study) -> list[str]:
    """The Pareto front of each cost, and runs that failed or diverged."""
    notes = []
    fronts = {tables.COSTS[cost]: ", ".join(names) for cost, names in tables.fronts(study).items() if names}
    if fronts:
        words = "; ".join(f"by {cost}: {names}" for cost, names in fronts.items())
        notes.append(
            f"Designs that no other beats in both mean and cost: {words}. Costs whose ranges overlap count as equal."
        )
    for result in study.results:
        for run in result.runs:
            if run.status != "finished":
                notes.append(f"{result.name}, seed {run.seed}, {run.status}: {run.reason}")
    return notes


# -- methods ----------------------------------------------------------------------------------------------------------


def methods(study: Study) -> list[tuple[str, str]]:
    """Terms and texts of the methods section."""
    plan = study.plan
    settings = ", ".join(f"{key} {value}" for key, value in leaves(plan.recipe.to_dict()))
    steps = f"; {study.steps:,} steps a run" if study.steps else ""

    # facts about data and machine from the first finished run
    samples = _dict(_dict(_run_facts(study, "data.json")).get("samples"))
    sizes = ", ".join(f"{split} {count:,}" for split, count in samples.items() if isinstance(count, int))
    sessions = _run_facts(study, "environment.json")
    environment = _dict(sessions[0]) if isinstance(sessions, list) and sessions else {}
    versions = ", ".join(f"{name} {version}" for name, version in _dict(environment.get("versions")).items())
    devices = [result.costs.device for result in study.results if result.costs is not None]
    machine = (devices[0] if devices else environment.get("device", ""), environment.get("platform", ""), versions)
    parts = [
        ("Samples", f"{sizes or 'unknown'}; the {study.metric} of the {study.split} split after the last step counts."),
        ("Recipe", f"{settings}; all designs start from {plan.weights or 'random weights'}{steps}."),
        ("Learning rates", tables.about_rates(study) or (ONE_RATE if len(plan.rates) == 1 else "not known yet")),
        ("Seeds", f"{', '.join(map(str, plan.seeds))}; designs of one seed see the same samples in the same order."),
        ("Reference", study.learnt_why),
        ("Machine", "; ".join([f"{plan.threads} threads a run", *map(str, filter(None, machine))])),
        ("Intervals and answers", INTERVALS),
        ("Terms", TERMS),
    ]
    return [(term, text) for term, text in parts if text and (study.metric or term != "Samples")]


def _run_facts(study: Study, name: str) -> Any:
    """A JSON file of the first finished run's folder; {} if there is none, or if it is damaged."""
    folder = StudyFolder(study.path)
    for result in study.results:
        for run in result.runs:
            if run.status == "finished":
                try:
                    return read_json(folder.run(Key(result.name, run.seed)) / name)
                except SourceError:
                    return {}
    return {}


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


# -- figures ----------------------------------------------------------------------------------------------------------


def figures(study: Study) -> list[tuple[str, str, str]]:
    """Return (title, caption, SVG) of every figure with data."""
    # matplotlib settings, and (title, caption, function) of each figure
    style: dict[Any, Any] = {f"{name}color": INK for name in ("text.", "axes.label", "axes.edge", "xtick.", "ytick.")}
    style |= {"svg.fonttype": "none", "svg.hashsalt": "leanify", "font.size": 9.5}
    style |= {"axes.spines.top": False, "axes.spines.right": False}
    seeds = "Mean over seeds; the band is their range."
    better = "Up" if study.higher_is_better else "Down"
    label = f"{study.metric} of the validation split"
    loss_curves = partial(_plot_curves, split="train", metric="loss", label="training loss")
    metric_curves = partial(_plot_curves, split="validation", metric=str(study.metric), label=label)
    plots: list[tuple[str, str, Callable[[Axes, Study], bool]]] = [
        ("Paired differences", "A dot is a seed, the bar the mean with its 95% interval, the dotted line the margin.",
         plot_differences),
        ("Quality against parameters", f"{better} and left is better.", plot_quality),
        ("Training loss", seeds, loss_curves),
        ("Learning curves", seeds, metric_curves),
        ("Costs of the designs", "Latency, training time and memory are measured in turn on one machine.", plot_costs),
    ]  # fmt: skip
    # draw, save as SVG, then insert tooltips and the page's text colour
    pages = []
    with plot_settings(style):
        from matplotlib.figure import Figure

        for title, caption, plot in plots:
            figure = Figure(figsize=SIZE, layout="constrained")
            axes = figure.subplots()
            axes.grid(True, color=INK, alpha=0.12, linewidth=0.7)
            axes.set_axisbelow(True)
            if not plot(axes, study):
                continue
            if axes.get_legend_handles_labels()[0]:  # above the axes, to keep the data visible
                place: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0.0, 1.0), "borderaxespad": 0.2}
                axes.legend(**place, frameon=False, fontsize=8.5, labelcolor=INK, ncols=4)
            show_texts_literally(figure)
            out = io.StringIO()
            figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
            text = re.sub(f'<g id="{HINT}([^"]*)">', r"<g><title>\1</title>", out.getvalue())
            pages.append((title, caption, text[text.index("<svg") :].replace(INK, "currentColor")))
    return pages


def _style(study: Study, name: str) -> dict[str, Any]:
    place = [result.name for result in study.results].index(name)
    return {"color": COLORS[place % len(COLORS)], "marker": MARKERS[place % len(MARKERS)]}


def _add_hint(text: str, *artists: Any) -> None:
    """Set the tooltip that browsers show for these parts of a figure."""
    for artist in artists:
        artist.set_gid(HINT + text)


def plot_quality(axes: Axes, study: Study) -> bool:
    """Quality with its interval against the parameters, one point per design."""
    from matplotlib.ticker import EngFormatter

    results = [result for result in study.results if result.quality.mean is not None]
    for result in results:
        params, quality = result.plan.params, result.quality
        mean = quality.mean or 0.0
        low, high = _ends(mean, quality.low, quality.high)
        style = _style(study, result.name) | {"capsize": 3, "linestyle": "none", "label": result.name}
        bar = axes.errorbar(params, mean, yerr=[[mean - low], [high - mean]], **style)
        text = f"{result.name}: {params:,} parameters, {study.metric} {mean:.4g} ({low:.4g} to {high:.4g})"
        _add_hint(text, bar[0], *bar[2])
    axes.set(xlabel="parameters", ylabel=f"{study.metric}, mean and 95% interval")
    axes.xaxis.set_major_formatter("{x:,.4g}" if axes.get_xlim()[1] < 1e4 else EngFormatter(sep=" "))
    return bool(results)


def _ends(mean: float, low: float | None, high: float | None) -> tuple[float, float]:
    """The ends of an interval; the mean itself where they are unknown."""
    return mean if low is None else low, mean if high is None else high


def plot_differences(axes: Axes, study: Study) -> bool:
    """Paired differences: one dot per seed, the mean with its interval, and the margin."""
    # per pair: a dot per seed, and the mean with its interval above
    for place, pair in enumerate(reversed(study.pairs)):
        style = _style(study, pair.design)
        values = [value for _, value in pair.seeds]
        [dots] = axes.plot(values, [place] * len(values), linestyle="none", alpha=0.45, **style)
        _add_hint(", ".join(f"seed {seed}: {value:+.3g}" for seed, value in pair.seeds), dots)
        low, high = _ends(pair.difference, pair.low, pair.high)
        mean = {"fmt": "|", "capsize": 4, "color": style["color"], "markersize": 12}
        bar = axes.errorbar(
            pair.difference, place + 0.22, xerr=[[pair.difference - low], [high - pair.difference]], **mean
        )
        _add_hint(
            f"{pair.design} − {pair.against}: {pair.difference:+.3g} ({low:+.3g} to {high:+.3g})", bar[0], *bar[2]
        )
    axes.axvline(0, color=INK, linewidth=1)
    if study.margin is not None:
        axes.axvline(-study.margin, color=INK, linewidth=1, linestyle=":")
    axes.set_ylim(-0.5, max(len(study.pairs), 1) - 0.5)  # without this, one pair's dots and bar lie on the edges
    axes.set_yticks(range(len(study.pairs)), [f"{pair.design} − {pair.against}" for pair in reversed(study.pairs)])
    better = "more" if study.higher_is_better else "less"
    axes.set(xlabel=f"difference in {study.metric}; right is better ({better} {study.metric})")
    return bool(study.pairs)


def _plot_curves(axes: Axes, study: Study, split: str, metric: str, label: str) -> bool:
    """A metric over training: the mean over seeds, with their range as a band. False where no run has two values."""
    axes.set(xlabel="step", ylabel=label)
    folder = StudyFolder(study.path)
    for result in study.results:
        curves = []
        for run in result.runs:
            rows = [row for row in folder.rows(Key(result.name, run.seed)) if row["split"] == split and metric in row]
            if run.status == "finished":
                curves.append({row["step"]: row[metric] for row in rows})
        # mean and range at the steps that all runs logged, (seeds, steps)
        steps = sorted(set.intersection(*map(set, curves))) if curves else []
        if len(steps) < 2:
            continue
        values = np.array([itemgetter(*steps)(curve) for curve in curves])  # (seeds, steps)
        style = _style(study, result.name) | {"markersize": 3.5, "markevery": math.ceil(len(steps) / MAX_MARKERS)}
        axes.plot(steps, values.mean(0), label=result.name, linewidth=1.4, **style)
        if len(curves) > 1:
            axes.fill_between(steps, values.min(0), values.max(0), color=style["color"], alpha=0.12, linewidth=0)
    return bool(axes.lines)


def plot_costs(axes: Axes, study: Study) -> bool:
    """Plot each cost relative to the first design's."""
    pairs = [(result, result.costs) for result in study.results if result.costs is not None]
    names = ("parameters", "multiply-adds", "latency", "training time", "training memory")
    baseline: list[float] = []
    height = 0.8 / max(len(pairs), 1)
    for place, (result, costs) in enumerate(pairs):
        # one group of bars per cost, one bar per design
        plan, peak = result.plan, costs.train_peak_bytes or 0
        values = [plan.params, plan.macs, costs.latency_s, 1 / costs.train_per_s, peak]
        baseline = baseline or values
        ratios = [value / (base or 1) for value, base in zip(values, baseline, strict=True)]
        rows = np.arange(len(names)) + (place - (len(pairs) - 1) / 2) * height
        axes.barh(rows, ratios, height * 0.9, color=_style(study, result.name)["color"], label=result.name)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.axvline(1, color=INK, linewidth=0.8)
    axes.set(xlabel=f"relative to {pairs[0][0].name if pairs else ''}; lower is better")
    return bool(pairs)
