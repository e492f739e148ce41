"""Facts to judge or repeat a study: data, recipe, rates, versions, machine, definitions."""

from __future__ import annotations

from typing import Any

from leanify.comparison.folder import StudyFolder
from leanify.comparison.plan import Key
from leanify.comparison.values import Findings
from leanify.core.errors import SourceError
from leanify.core.files.reading import read_json
from leanify.runs.run_directory import leaves

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


def methods(study: Findings) -> list[tuple[str, str]]:
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
        ("Learning rates", about_rates(study) or (ONE_RATE if len(plan.rates) == 1 else "not known yet")),
        ("Seeds", f"{', '.join(map(str, plan.seeds))}; designs of one seed see the same samples in the same order."),
        ("Reference", study.learnt_why),
        ("Machine", "; ".join([f"{plan.threads} threads a run", *map(str, filter(None, machine))])),
        ("Intervals and answers", INTERVALS),
        ("Terms", TERMS),
    ]
    return [(term, text) for term, text in parts if text and (study.metric or term != "Samples")]


def _run_facts(study: Findings, name: str) -> Any:
    """A JSON file of the first finished run's folder; None if there is none, or if it is damaged."""
    runs = [(result.name, run) for result in study.results for run in result.runs]
    first = next((Key(design, run.seed) for design, run in runs if run.status == "finished"), None)
    try:
        return None if first is None else read_json(StudyFolder(study.path).run(first) / name)
    except SourceError:
        return None


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def about_rates(study: Findings) -> str:
    """Describe the tried rates, the cost of a bad one, and best rates at the edge; "" if none was tried."""
    costs = []
    for result in study.results:
        qualities = [trial.quality for trial in result.trials if trial.quality is not None]
        if len(qualities) > 1:
            costs.append(f"{result.name} {max(qualities) - min(qualities):.3g}")
    if not costs or study.metric is None:
        return ""
    # a rate beyond the lowest or the highest may be better
    rates = study.plan.tried_rates
    edge = [result.name for result in study.results if result.plan.rate in (rates[0], rates[-1])]
    loss = ", ".join(costs)
    text = f"rate: the best of {len(rates)}, tried on one seed; the worst of them costs, in {study.metric}: {loss}"
    if edge:
        text += f"; at the edge of the tried rates: {', '.join(edge)}"
    return text
