"""`shrink`: a checkpoint in, a smaller model out that kept what it knew.

The original is measured, its weights are carried to several shapes of one budget (`warm.carry`), and the two that keep
most are trained with the original as their teacher (`training`). Both get a third of the same schedule; the better one
goes on to its end. The best of all, carried or healed, is written. Half of the validation samples choose at every
step, the other half judges: what is reported was chosen by nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from leanify.data.common import vocabulary_of
from leanify.data.texts import vocabulary
from leanify.design.plan import Plan
from leanify.design.prices import counting
from leanify.errors import DataError, LeanifyError, ShapeError
from leanify.lens import surgery
from leanify.runs.places import is_run
from leanify.runs.recipe import ModelSection, TrainingRecipe
from leanify.runs.run_directory import RunDirectory
from leanify.sources import find, lean_directory
from leanify.sources.weights import is_headless, with_all_layers
from leanify.study import healing
from leanify.study.healing import Bench, steps_in
from leanify.study.measure import latencies, on_meta
from leanify.study.shrink_designs import Shape, shapes_of
from leanify.study.shrink_folder import MOVING, ShrinkFolder
from leanify.study.warm_start import batches_of
from leanify.terminal import note, progress
from leanify.training import start
from leanify.training.memory import is_out_of_memory
from leanify.training.preparation import data_of, trainable
from leanify.units import binary
from leanify.units import damage as damage_words
from leanify.units import metric as metric_words
from leanify.upstream.libraries import first_line
from leanify.warm.carry import Step, carry
from leanify.warm.donor import Donor
from leanify.warm.free import free, passes
from leanify.warm.plan import prepare

HEALED = 2  # candidates that are trained
TOKENS = 8_192  # of the samples by which weights are chosen and corrected
LENGTH, BATCH = 256, 8  # of a language model: tokens of a sample, and samples of a step
MEASURING = 4  # every fourth batch measures the damage


@dataclass(frozen=True)
class Shrunk:
    """What `shrink` found. ``directory`` is the written model, None of a rehearsal."""

    report: Mapping[str, Any]
    directory: Path | None

    def to_json(self) -> dict[str, Any]:
        return dict(self.report)

    def build(self) -> nn.Module:
        """The written model."""
        if self.directory is None:
            raise LeanifyError("a rehearsal writes no model")
        return find.load(self.directory)


def shrink(
    checkpoint: str | Path,
    data: str | Path,
    target_params: float | int | str = 0.6,
    minutes: float = 30.0,
    output: str | Path | None = None,
    *,
    count: str = "all",
    shape: str = "uniform",
    designs: Sequence[str] = (),
    rates: Sequence[float] = (),
    settings: Sequence[str] = (),
    dry_run: bool = False,
) -> Shrunk:
    """Shrink a checkpoint to a budget of parameters, on the user's data, and write the best model to ``output``.

    ``count="body"`` leaves embeddings and classifier out of the budget. ``shape="free"`` adds a candidate whose blocks
    differ. ``minutes`` is what healing may take; carrying takes what it takes. ``designs`` are some of
    `shrink_designs.MEANING`, ``rates`` learning rates to choose from, ``settings`` change the recipe
    (``data.length=256``). A folder that the same request began is gone on with; one that is done is read. Ctrl-C leaves
    what was found. Raises LeanifyError.
    """
    source, place = str(checkpoint), Path(output or f"{Path(str(checkpoint)).name or 'model'}-lean")
    if minutes < 0:
        raise LeanifyError(f"--minutes {minutes:g} is below 0; 0 carries weights and heals nothing")
    recipe = _recipe(source, data, settings)
    if shape not in ("uniform", "free"):
        raise LeanifyError(f"--shape {shape!r} is neither uniform nor free")
    plan, shapes = shapes_of(source, target_params, count, designs, shape == "free")
    if dry_run:
        with _in_memory(source, plan):
            return Shrunk(_rehearsed(recipe, plan.baseline.to_json(), shapes, minutes), None)
    asked = {
        "source": source,
        "data": str(data),
        "target_params": str(target_params),
        "minutes": minutes,
        "count": count,
        "shape": shape,
        "designs": list(designs),
        "rates": list(rates),
        "settings": list(settings),
    }
    folder = ShrinkFolder.open(place, asked)
    if folder.report is not None:
        note(f"{place} is done; remove it to begin anew")
        return Shrunk(folder.report, place)
    with _in_memory(source, plan):
        bench = Bench.of(recipe, minutes)  # what cannot be trained is refused before anything is written
        folder.keep()
        return _shrunk(folder, bench, shapes, minutes, rates)


@contextmanager
def _in_memory(source: str, plan: Plan) -> Iterator[None]:
    """Say what would help where the original, its teacher or what is computed of them does not fit into memory."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        weights = binary(4 * plan.baseline.params)
        raise LeanifyError(
            f"memory ran out ({first_line(error)}): the weights of {source} alone take {weights}, and they are held "
            "beside a candidate's; shorter samples take less, --set data.length=N, and so do smaller batches, "
            "--set schedule.batch_size=N"
        ) from error


def _recipe(source: str, data: str | Path, settings: Sequence[str]) -> TrainingRecipe:
    """The usual recipe of the checkpoint on this data, with itself as its teacher."""
    if find.find(source).weights is None:
        raise LeanifyError(f"{source} has no weights: shrink keeps what a trained model knows; name a checkpoint")
    if not Path(data).expanduser().exists():
        raise LeanifyError(f"--data {data} does not exist")
    value = trainable(start.resolve(source, (f"data.path={data}", *settings), source))
    if is_run(source):  # its recipe names the model that it began with, without what it learnt
        value = replace(value, model=ModelSection(source))
        own = start.with_tokenizer_of(RunDirectory.open(Path(source))).data
        if own is not None and not any(each.startswith("data.tokenizer=") for each in settings):
            value = replace(value, data=replace(value.data, tokenizer=own.tokenizer))
    if value.data.task in ("causal-lm", "masked-lm"):
        value = _short(value, settings)
    tokenizer = data_of(value).tokenizer
    if value.data.task != "classification" and (tokenizer is None or tokenizer.startswith("wordpiece-")):
        raise DataError(
            f"{source} has no tokenizer beside its weights, so its numbers for words are not known; put the "
            "tokenizer's files there, or name another folder, --set data.tokenizer=DIR"
        )
    return replace(value, data=replace(value.data, judge=True))


def _short(recipe: TrainingRecipe, settings: Sequence[str]) -> TrainingRecipe:
    """A language model's recipe with samples and batches that a core can heal by, where the user names none."""
    data, schedule = recipe.data, recipe.schedule
    if data.length is None:
        _, positions = vocabulary_of(on_meta(recipe.model), data.task)
        data = replace(data, length=min(LENGTH, positions or LENGTH))
    if not any(each.startswith("schedule.batch_size=") for each in settings):
        schedule = replace(schedule, batch_size=min(BATCH, schedule.batch_size))
    return replace(recipe, data=data, schedule=schedule)


def _rehearsed(
    recipe: TrainingRecipe, original: Mapping[str, Any], shapes: Sequence[Shape], minutes: float
) -> dict[str, Any]:
    """What would be done, from the prices of the shapes and a few steps of training."""
    bench = Bench.of(recipe, minutes)
    facts = start.rehearse(bench.recipe, splits=bench.splits)
    return {
        "source": recipe.model.source,
        "task": bench.recipe.data.task,
        "original": original,
        "candidates": [shape.to_json() for shape in shapes],
        "steps_predicted": bench.recipe.schedule.steps or steps_in(minutes, facts["seconds_a_step"], 1),
        "memory_predicted_bytes": facts["memory_predicted_bytes"],
        "hours_predicted": minutes / 60,
        "judged_on": bench.judged_on,
    }


def _shrunk(
    folder: ShrinkFolder, bench: Bench, shapes: Sequence[Shape], minutes: float, rates: Sequence[float]
) -> Shrunk:
    began = time.perf_counter()
    source = bench.recipe.model.source
    original = folder.once("original", lambda: bench.measured() | _costs(bench.recipe))
    reference = folder.once("reference", bench.reference)
    words = "" if reference is None else f"; {reference['name']}: {metric_words(bench.metric, reference['value'])}"
    note(f"original: {bench.words(original)}{words}; {bench.judged_on}")
    _carry_all(folder, bench, shapes)
    carried = {shape.name: folder.found[f"carried {shape.name}"] for shape in shapes}
    made = {name: found for name, found in carried.items() if "refused" not in found}
    if not made:
        reasons = "; ".join(f"{name}: {found['refused']}" for name, found in carried.items())
        raise ShapeError(f"no candidate can carry the weights of {source}: {reasons}")
    latency = folder.once("latency", lambda: _latencies(folder, bench, made))
    order = sorted(made, key=lambda name: -bench.score(made[name]["chosen_on"]))
    for name in order:
        note(f"{name}: carried, {bench.words(made[name])}")
    healed = healing.healed(folder, bench, order[:HEALED], minutes, rates)
    best, found = max([*made.items(), *healed.items()], key=lambda pair: bench.score(pair[1]["chosen_on"]))
    model = folder.place(best) if "run" not in found else _as_directory(folder, best)
    report = {
        "source": source,
        "task": bench.recipe.data.task,
        "metric": bench.metric,
        "reference": reference,
        "original": _public(original) | latency.get("original", {}),
        "candidates": [_row(shape, carried, healed) | latency.get(shape.name, {}) for shape in shapes],
        "chosen": best,
        "quality": found["quality"],
        "healed": "run" in found,
        "directory": str(folder.path),
        "seconds": folder.found.get("seconds", 0.0) + time.perf_counter() - began,
        "judged_on": bench.judged_on,
    }
    folder.finish(model, report)
    return Shrunk(report, folder.path)


def _row(shape: Shape, carried: Mapping[str, Any], healed: Mapping[str, Any]) -> dict[str, Any]:
    """A candidate as the report has it: its design, what it kept and what healing made of it."""
    own, after = carried[shape.name], healed.get(shape.name)
    if "refused" in own:
        return {**shape.to_json(), "carried": None, "healed": None, "refused": own["refused"]}
    return {
        **shape.to_json(),
        **own.get("shape", {}),
        "macs": own["macs"],
        "carried": {**_public(own), "damage": own["damage"], "unit": own["unit"], "steps": own["steps"]},
        "healed": None if after is None else {key: after[key] for key in ("quality", "steps", "rate", "stopped")},
    }


def _public(found: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in found.items() if key in ("quality", "params", "macs")}


# -- carrying ---------------------------------------------------------------------------------------------------------


def _carry_all(folder: ShrinkFolder, bench: Bench, shapes: Sequence[Shape]) -> None:
    """Carry the weights to every shape that has not got them yet, each into a lean directory."""
    todo = [shape for shape in shapes if f"carried {shape.name}" not in folder.found]
    if not todo:
        return
    recipe, model = bench.recipe, bench.recipe.model
    torch.manual_seed(recipe.run.seed)
    found = find.find(model.source, overrides=model.override, cls=model.cls)
    whole = with_all_layers(lambda: find.with_weights(found, None), model.source)
    batches = batches_of(recipe, bench.splits, whole, TOKENS)
    if recipe.data.task != "classification":
        tokenizer, _ = vocabulary.tokenizer_of(data_of(recipe).tokenizer, lambda: [], "")
        words = vocabulary.unknown_words(tokenizer, batches, recipe.data.path)
        note(f"warning: {words}") if words else None
    choosing = [batch for i, batch in enumerate(batches) if i % MEASURING != 1]
    donor = Donor(whole, choosing, batches[1::MEASURING], is_headless(whole))
    several = [shape.design.architecture for shape in todo if shape.design]
    count = f"{len(todo)} shape{'s' * (len(todo) != 1)}"
    what = f"carrying weights to {count} by {donor.tokens:,} tokens, {len(batches)} batches"
    prepare(donor, several, what, passes(donor) if len(several) < len(todo) else 0)
    for shape in todo:
        folder.once(f"carried {shape.name}", partial(_carried, folder, bench, donor, shape))


def _carried(folder: ShrinkFolder, bench: Bench, donor: Donor, shape: Shape) -> dict[str, Any]:
    """What one shape keeps of the weights, and what it costs; the reason where it can carry none."""

    def heard(step: Step) -> None:
        note(f"{shape.name}: {step.words}, {donor.teacher.unit} {damage_words(step.damage)}")

    try:
        with progress(f"carrying weights over to {shape.name}", None):
            if shape.design is None:
                made = free(donor, shape.most, heard)
            else:
                made = carry(donor, shape.design.architecture, heard, shape.moves)
    except LeanifyError as error:
        note(f"{shape.name}: {error}")
        return {"refused": str(error)}
    place = folder.fresh(shape.name)
    lean_directory.save(made.model, place, title=_title(folder), name=folder.path.name)
    steps = [step.words for step in made.steps]
    facts: dict[str, Any] = {"damage": made.damage, "unit": donor.teacher.unit, "steps": steps}
    facts["files"] = folder.files(shape.name)
    if shape.design is None:  # its layers differ: a design's keys, with a value a layer
        found = surgery.read(made.model)
        layers = list(found.layers())
        sizes = {key: [getattr(layer, key) for layer in layers] for key in ("heads", "head_dim", "inner", "mlp")}
        params = sum(p.numel() for p in made.model.parameters())
        facts["shape"] = {"depth": len(layers), **sizes, "architecture": found.to_json(), "params": params}
    own = bench.at(str(place))
    return facts | own.measured() | _costs(own.recipe)


def _costs(recipe: TrainingRecipe) -> dict[str, Any]:
    """Parameters, and MACs of one sample."""
    counted = counting.count(on_meta(recipe.model), recipe.data.length)
    return {"params": counted.params, "macs": counted.macs}


def _latencies(folder: ShrinkFolder, bench: Bench, carried: Iterable[str]) -> dict[str, Any]:
    """The latency of one sample on this machine: the median of the rounds, and their middle half."""
    places = {name: folder.place(name) for name in carried}
    models = {"original": bench.recipe.model}
    models |= {name: bench.at(str(place)).recipe.model for name, place in places.items() if place.is_dir()}
    found = latencies(models, bench.recipe.data.length)
    return {name: {"latency_s": one.median, "latency_range": [one.low, one.high]} for name, one in found.items()}


def _as_directory(folder: ShrinkFolder, name: str) -> Path:
    """A run's best model as a lean directory, with the files that lay beside the carried one."""
    if MOVING in folder.found:  # some of its files have moved already
        return folder.place(f"{name}-best")
    place = folder.fresh(f"{name}-best")
    model: Any = find.load(folder.place(f"{name}-run"))
    if hasattr(model, "config"):  # a run keeps a tokenizer, but neither pooling nor processors
        model.config._name_or_path = str(folder.place(name))
    lean_directory.save(model, place, title=_title(folder), name=folder.path.name)
    return place


def _title(folder: ShrinkFolder) -> str:
    """What heads the README of a shrunk model: the checkpoint's name, without the place where it lay."""
    return f"A smaller {Path(folder.asked['source']).name}"
