"""What a reader needs to judge a study or to repeat it: data, recipe, rates, versions, machine, definitions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from leanify.errors import SourceError
from leanify.runs.files import read_json
from leanify.study.folder import StudyFolder
from leanify.study.plan import TRIAL, Key
from leanify.study.rates import at_the_edge, sensitivity
from leanify.study.values import Findings
from leanify.units import percent

AUGMENTED = ("crop", "flip", "color_jitter", "rand_augment", "erase")  # how pictures are read from files
UNCHANGED = ("digits", "farthest-point")  # data of no files

INTERVALS = (
    "Every interval has 95%, over seeds and validation samples together. The noise of a run is pooled over "
    "all designs by a fit of design + seed; the samples' part comes from the outcome of each sample, paired "
    "between designs; both are crossed random effects, and the runs' part is at least the noise of one run on one "
    "sample, which is known from all samples. Nothing is shown or refuted below three seeds. The first look at a "
    "study may spend 60% of the error rate, the second 24%, the third 10%, so that all "
    "looks together keep to 5%; intervals of differences and p count this. p is two-sided; those of "
    "differences marked * were not asked about before and are corrected together (Holm 1979)."
)
TERMS = (
    "depth: layers. heads × dim: attention heads of a layer, and the channels of each. MLP: hidden units of a "
    "layer. MACs: multiply-adds of a forward pass of one sample. κ: condition number of the concatenated "
    "heads, the median over layers and samples. control: lean's depth and parameters with the baseline's heads"
    " and a wider MLP. Parameters and MACs are exact. Measured costs are medians of interleaved rounds, with "
    "the middle half of the rounds in brackets."
)


def methods(study: Findings, folder: StudyFolder) -> list[tuple[str, str]]:
    """Terms and texts of the methods section."""
    parts = [
        ("Data", _data(study, folder)),
        ("Model and recipe", _recipe(study)),
        ("Learning rates", _rates(study)),
        ("Seeds", _seeds(study)),
        ("Reference", study.learnt_why),
        ("Machine", _machine(study, folder)),
        ("Intervals and answers", INTERVALS),
        ("Terms", TERMS),
    ]
    return [(term, text) for term, text in parts if text]


def _facts(study: Findings, folder: StudyFolder, name: str) -> Any:
    """A JSON file of the first finished run's folder; None if there is none."""
    for result in study.results:
        for run in result.runs:
            file = folder.run(Key(result.name, run.seed)) / name
            if run.status == "finished" and file.is_file():
                try:
                    return read_json(file)
                except SourceError:
                    return None
    return None


def _data(study: Findings, folder: StudyFolder) -> str:
    data = study.plan.recipe.data
    if data is None:
        return ""
    found = _facts(study, folder, "data.json")
    sizes = found.get("samples") if isinstance(found, dict) else None
    parts = []
    for split, count in sizes.items() if isinstance(sizes, dict) else ():
        if isinstance(count, int):
            parts.append(f"{count:,} to {'validate' if split == 'validation' else split}")
    words = f"{data.path or data.name}, {data.task}: {', '.join(parts) or 'sizes unknown'}"
    if study.metric:
        words += f"; the {study.metric} of the {study.split} split after the last step is what is compared"
    return f"{words}."


def _recipe(study: Findings) -> str:
    recipe = study.plan.recipe
    override = ", ".join(f"{key} {value}" for key, value in recipe.model.override.items())
    parts = [f"{recipe.model.source} ({override})" if override else recipe.model.source]
    for section in (recipe.optim, recipe.schedule):
        parts += [f"{key} {value}" for key, value in _set(section)]
    data = recipe.data
    if data is not None:
        pictures = data.task == "classification" and data.length is None and data.name not in UNCHANGED
        changes = ("mixup", "cutmix", "mask", "length", *(AUGMENTED if pictures else ()))
        parts += [f"{key} {value}" for key, value in _set(data) if key in changes]
    start = study.plan.weights or "random weights"
    steps = f"; {study.steps:,} steps a run" if study.steps else ""
    return f"{', '.join(parts)}; all designs start from {start}{steps}. The whole recipe is in study.toml."


def _set(section: Any) -> Iterator[tuple[str, Any]]:
    """The values of a recipe's section that are set."""
    for key, value in vars(section).items() if section is not None else ():
        if value not in (None, 0, 0.0, False, "", ()):
            yield key, list(value) if isinstance(value, tuple) else value


def _rates(study: Findings) -> str:
    factors = study.plan.rates
    if len(factors) == 1:
        return "One rate for all designs: their order may be another one at other rates (--rates 0.5,1,2)."
    listed = ", ".join(f"{factor:g}" for factor in factors)
    words = [
        f"Each design was trained once with each of {listed} times the recipe's rate, on one seed over "
        f"{percent(TRIAL)} of the schedule, and its runs took the best one."
    ]
    for result in study.results:
        cost, rate = sensitivity(result.trials), result.rate
        if cost is not None and rate is not None:
            edge = ", at the edge of what was tried" if at_the_edge(result.plan.rate, factors) else ""
            words.append(f"{result.name}: {rate:.2g}{edge}; the worst one costs {cost:.3g}.")
    return " ".join(words)


def _seeds(study: Findings) -> str:
    plan = study.plan
    seeds = ", ".join(map(str, plan.seeds))
    words = f"Seeds {seeds}; the designs of one seed see the same samples in the same order."
    if plan.winner is not None:
        words += f" {plan.winner} was the best of {len(plan.designs)} designs on seed {plan.seeds[0]};"
        words += " that seed is left out where it is compared."
    return words


def _machine(study: Findings, folder: StudyFolder) -> str:
    found = _facts(study, folder, "environment.json")
    entry: Mapping[str, Any] = found[0] if isinstance(found, list) and found and isinstance(found[0], dict) else {}
    versions = entry.get("versions")
    listed = ", ".join(f"{name} {version}" for name, version in versions.items()) if isinstance(versions, dict) else ""
    costs = next((result.costs for result in study.results if result.costs is not None), None)
    device = costs.device if costs is not None else entry.get("device", "")
    parts = [str(device), f"{study.plan.threads} threads a run", str(entry.get("platform", "")), listed]
    return f"{'; '.join(part for part in parts if part)}."
