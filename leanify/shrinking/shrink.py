"""`shrink`: turn a checkpoint into a smaller model that keeps its knowledge.

The original is measured, and its weights are transferred to several shapes of one budget (`shrinking.transfer`). The
two that keep most are trained with the original as teacher (`training`): both for a third of the same schedule, the
better one to the end. The best model, healed or not, is written. Half of the validation samples select at every step;
the other half measures the reported results.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from leanify.core import machine
from leanify.core.errors import DataError, LeanifyError, ShapeError
from leanify.core.path_kinds import is_run
from leanify.core.recipe import ModelSection, TrainingRecipe
from leanify.core.terminal import note, progress
from leanify.core.units import format_bytes
from leanify.core.units import format_damage as damage_words
from leanify.core.units import format_metric as metric_words
from leanify.data.common import vocabulary_size
from leanify.data.splits import load_splits
from leanify.data.texts import tokenizers
from leanify.lens import surgery
from leanify.profiling import counting
from leanify.profiling.timing import time_latencies
from leanify.runs.run_directory import RunDirectory
from leanify.search.plan import Plan
from leanify.shrinking import healing
from leanify.shrinking.calibration_batches import TOKENS, calibration_batches
from leanify.shrinking.designs import Shape, plan_shapes
from leanify.shrinking.folder import MOVING, ShrinkFolder
from leanify.shrinking.free import passes, transfer_free
from leanify.shrinking.healing import Evaluator
from leanify.shrinking.larger_machine import carrying_memory, forecast_device
from leanify.shrinking.plan_transfer import prepare
from leanify.shrinking.rotation import rotate
from leanify.shrinking.teacher import CalibratedTeacher
from leanify.shrinking.time_plan import HEALING_SHARE, PRIORITY, Clock, TimePlan, measure_speed, plan_time
from leanify.shrinking.transfer import Step, transfer_weights
from leanify.sources import find, lean_directory, side_files
from leanify.sources.weights import is_headless, require_all_layers
from leanify.training import start
from leanify.training.engine import split_batch
from leanify.training.master_weights import to_master_weights, to_stored_weights
from leanify.training.memory import is_out_of_memory
from leanify.training.preparation import data_section, model_on_meta, trainable
from leanify.upstream.libraries import first_line
from leanify.upstream.on_disk import is_on_disk, on_disk
from leanify.upstream.origin import is_hf

HEALED_CANDIDATES = 2  # candidates that are trained
LENGTH, BATCH = 256, 8  # for a language model: tokens per sample, and samples per step
# keys of a healed candidate in the report
HEALED_KEYS = ("quality", "neighbours", "steps", "rate", "stopped", "seeds", "low", "high")
MEASURING = 4  # every fourth batch measures the damage


@dataclass(frozen=True)
class Shrunk:
    """The report of a `shrink`, and the directory of the written model; None after a dry run."""

    report: Mapping[str, Any]
    directory: Path | None

    def to_json(self) -> dict[str, Any]:
        return dict(self.report)

    def build(self) -> nn.Module:
        """Load the written model."""
        if self.directory is None:
            raise LeanifyError("a rehearsal writes no model")
        return find.load(self.directory)


def shrink(
    checkpoint: str | Path,
    data: str | Path | None = None,
    target_params: float | int | str = 0.6,
    minutes: float = 30.0,
    output: str | Path | None = None,
    *,
    count: str = "all",
    shape: str = "uniform",
    designs: Sequence[str] = (),
    rates: Sequence[float] = (),
    seeds: int = 1,
    settings: Sequence[str] = (),
    dry_run: bool = False,
    device_memory: str | None = None,
    explain: bool = False,
) -> Shrunk:
    """Shrink a checkpoint to a budget of parameters, on the user's data, and write the best model to ``output``.

    ``data`` is a folder or a file; a run may leave it out, and is shrunk on the data that it was trained on.
    ``count="body"`` excludes embeddings and classifier from the budget. ``shape="free"`` adds a candidate whose blocks
    differ; ``"plain"`` allows only shapes that the model's own library can build. ``minutes`` is the total time; 0
    disables healing and the limit. ``designs`` are some of `designs.MEANING`, ``rates`` learning rates to choose from.
    With several ``seeds``, the best candidate is healed as often, and the range of its quality is reported.
    ``settings`` change the recipe (``data.length=256``). ``device_memory`` ("80GB"), with ``dry_run``, forecasts the
    requirements on a machine with this memory; then the checkpoint may lack its weights, and the data is not read.

    A folder started by the same request is continued; a finished one is read. Ctrl-C keeps the findings so far. Raises
    LeanifyError.
    """
    source, place = str(checkpoint), Path(output or f"{Path(str(checkpoint)).name or 'model'}-lean")
    if minutes < 0:
        raise LeanifyError(f"--minutes {minutes:g} is below 0; 0 carries weights and heals nothing")
    if shape not in ("uniform", "free", "plain"):
        raise LeanifyError(f"--shape {shape!r} is not one of uniform, free, plain")
    if seeds < 1:
        raise LeanifyError(f"--seeds {seeds} is below 1; each seed heals the best candidate once")
    if device_memory is not None:
        if not dry_run:
            raise LeanifyError("--device-memory asks what a larger machine needs: add --dry-run")
        plan, shapes = plan_shapes(source, target_params, count, designs, shape)
        return Shrunk(_forecast_report(source, plan, shapes, device_memory, settings), None)
    recipe = shrink_recipe(source, data, settings)
    plan, shapes = plan_shapes(source, target_params, count, designs, shape)
    requested = [*designs, *(["free"] if shape == "free" else [])]
    if dry_run:
        clock = Clock(minutes)
        with _explain_memory(source, plan):
            bench, time_plan = _prepare(recipe, plan, shapes, requested, clock, {})
            return Shrunk(_rehearse(bench, plan.baseline.to_json(), time_plan, minutes), None)
    request = {
        "source": source,
        "data": None if data is None else str(data),
        "target_params": str(target_params),
        "minutes": minutes,
        "count": count,
        "shape": shape,
        "designs": list(designs),
        "rates": list(rates),
        "seeds": seeds,
        "settings": list(settings),
    }
    folder = ShrinkFolder.open(place, request)
    if folder.report is not None:
        with folder.lock():  # a kill between the report and this leaves work/
            folder.clear()
        note(f"{place} is done; remove it to start again")
        return Shrunk(folder.report, place)
    with _explain_memory(source, plan), folder.lock(), _weights_on_disk(source, place):
        # refuse models that cannot be trained before anything is written
        bench, time_plan = _prepare(recipe, plan, shapes, requested, folder.clock, folder.findings)
        folder.keep()
        return _shrink_in(folder, bench, plan, time_plan.shapes, rates, seeds, explain)


def _prepare(
    recipe: TrainingRecipe,
    plan: Plan,
    shapes: Sequence[Shape],
    requested: Sequence[str],
    clock: Clock,
    findings: dict[str, Any],
) -> tuple[Evaluator, TimePlan]:
    """Read the data, time this machine, split the batch if memory is short, and plan the minutes.

    Results that depend on the machine's speed are stored in ``findings``, so that another start makes the same choices.
    Raises LeanifyError for a model that cannot be trained.
    """
    # limit the data to the sizes that the minutes allow
    splits = load_splits(data_section(recipe), model_on_meta(recipe.model))
    if "speed" not in findings:
        findings["speed"] = {"macs_per_second": measure_speed(recipe, splits)}
    speed = findings["speed"]["macs_per_second"]
    splits = healing.limit_samples(splits, recipe, clock.minutes, speed)

    # predict the memory of a step; a batch that is too large goes in several passes
    recipe, step_need = split_batch(recipe, splits)
    passes, batch = recipe.run.accumulate, recipe.schedule.batch_size
    memory_bytes = None if step_need is None or not clock.minutes else step_need.of(-(-batch // passes))
    if passes > 1:
        note(f"a batch of {batch} goes in {passes} passes of {-(-batch // passes)}, as memory allows")

    # plan the minutes, and leave out candidates if there are too few
    time_plan = plan_time(recipe, splits, plan.baseline.architecture, shapes, requested, clock, speed, memory_bytes)
    if "chosen shapes" in findings:
        time_plan = replace(time_plan, shapes=[one for one in shapes if one.name in findings["chosen shapes"]["names"]])
    else:
        time_plan.check_minutes(clock.minutes)
        findings["chosen shapes"] = {"names": [shape.name for shape in time_plan.shapes]}
        if clock.minutes:
            note(time_plan.description)
        if time_plan.left_out:
            note(f"left out, as {clock.minutes:g} minutes are too few: {', '.join(time_plan.left_out)}")
    return Evaluator.create(recipe, clock.minutes, splits), time_plan


@contextmanager
def _weights_on_disk(source: str, place: Path) -> Iterator[None]:
    """Keep the weights in files on the disk of the result if they are too large to be transferred in memory."""
    need, free = carrying_memory(find.build_on_meta(find.find(source))), machine.free_memory()
    if free is None or need <= free:
        yield
        return
    folder = next(path for path in (place, *place.absolute().parents) if path.is_dir())
    note(
        f"transferring needs {format_bytes(need)} and {format_bytes(free)} of memory are free: the weights lie in "
        f"files on the disk of {folder}, which takes longer"
    )
    with on_disk(folder):
        yield


@contextmanager
def _explain_memory(source: str, plan: Plan) -> Iterator[None]:
    """Suggest remedies if the original, its teacher or their activations do not fit into memory."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        weights = format_bytes(4 * plan.baseline.params)
        raise LeanifyError(
            f"memory ran out ({first_line(error)}): the weights of {source} alone take {weights}, and are in memory "
            "together with a candidate's; use shorter samples, --set data.length=N, or smaller batches, "
            "--set schedule.batch_size=N"
        ) from error


def shrink_recipe(source: str, data: str | Path | None, settings: Sequence[str]) -> TrainingRecipe:
    """Return the usual recipe of the checkpoint on this data, with the checkpoint as its own teacher.

    Without data, it is the run's own recipe.
    """
    # what shrink needs: weights and data
    if find.find(source).weights is None:
        raise LeanifyError(f"{source} has no weights: shrink keeps what a trained model knows; name a checkpoint")
    if data is None and not is_run(source):
        raise LeanifyError(f"--data is missing: a run knows its data, and {source} is no run; name a folder of yours")
    if data is not None and not Path(data).expanduser().exists():
        raise LeanifyError(f"--data {data} does not exist")
    # the recipe; a run's names the initial model, without the trained weights
    path = [] if data is None else [f"data.path={data}"]
    value = trainable(start.resolve(source, (*path, *settings), source))
    if is_run(source):
        value = replace(value, model=ModelSection(source))
        run_data = start.recorded_recipe(RunDirectory.open(Path(source))).data
        if run_data is not None and not any(setting.startswith("data.tokenizer=") for setting in settings):
            value = replace(value, data=replace(value.data, tokenizer=run_data.tokenizer))
    if not any(setting.startswith("schedule.steps=") for setting in settings):  # the minutes limit the healing
        schedule = replace(value.schedule, epochs=1.0, steps=None, tokens=None, warmup=0.0, cooldown=0.0)
        value = replace(value, schedule=schedule)
    if value.data.task in ("causal-lm", "masked-lm"):
        value = _short(value, settings)
    # the checkpoint's own vocabulary
    tokenizer = data_section(value).tokenizer
    if value.data.task != "classification" and (tokenizer is None or tokenizer.startswith("wordpiece-")):
        raise DataError(
            f"{source} has no tokenizer next to its weights, so its token ids are unknown; put the "
            "tokenizer's files there, or name another folder, --set data.tokenizer=DIR"
        )
    model = model_on_meta(value.model)
    if is_hf(model) and Path(source).is_dir():
        side_files.check_vocabulary(model, Path(source))  # else refused when the first candidate is written
    return replace(value, data=replace(value.data, judge=True))


def _short(recipe: TrainingRecipe, settings: Sequence[str]) -> TrainingRecipe:
    """Return a language model's recipe with samples and batches small enough for one core, unless the user set them."""
    data, schedule = recipe.data, recipe.schedule
    if data.length is None:
        _, positions = vocabulary_size(model_on_meta(recipe.model), data.task)
        data = replace(data, length=min(LENGTH, positions or LENGTH))
    if not any(setting.startswith("schedule.batch_size=") for setting in settings):
        schedule = replace(schedule, batch_size=min(BATCH, schedule.batch_size))
    return replace(recipe, data=data, schedule=schedule)


def _rehearse(bench: Evaluator, original: Mapping[str, Any], time_plan: TimePlan, minutes: float) -> dict[str, Any]:
    """Return the report of a dry run, from the prices of the shapes and a few training steps."""
    facts = start.rehearse(bench.recipe, splits=bench.splits)
    healing_seconds = time_plan.seconds["rates and healing"]
    return {
        "source": bench.recipe.model.source,
        "task": bench.recipe.data.task,
        "original": original,
        "candidates": [shape.to_json() for shape in time_plan.shapes],
        "steps_predicted": bench.recipe.schedule.steps or int(healing_seconds / max(facts["seconds_a_step"], 1e-6)),
        "memory_predicted_bytes": facts["memory_predicted_bytes"],
        "hours_predicted": minutes / 60,
        "plan": time_plan.to_json(),
        "judged_on": bench.judged_on,
    }


def _forecast_report(
    source: str, plan: Plan, shapes: Sequence[Shape], device_memory: str, settings: Sequence[str]
) -> dict[str, Any]:
    """Return a forecast of the requirements on another machine."""
    return {
        "source": source,
        "task": None,
        "original": plan.baseline.to_json(),
        "candidates": [shape.to_json() for shape in shapes],
        "device": forecast_device(source, plan, shapes, device_memory, settings),
    }


def _shrink_in(
    folder: ShrinkFolder,
    bench: Evaluator,
    plan: Plan,
    shapes: Sequence[Shape],
    rates: Sequence[float],
    seeds: int,
    explain: bool,
) -> Shrunk:
    source = bench.recipe.model.source
    sizes = {key: getattr(plan.baseline, key) for key in ("depth", "heads", "mlp")}
    # the original and a trivial model, on the final samples
    original = folder.once("original", lambda: bench.evaluate() | _costs(bench.recipe))
    reference = folder.once("reference", bench.reference)
    words = "" if reference is None else f"; {reference['name']}: {metric_words(bench.metric, reference['value'])}"
    note(f"original: {bench.format_quality(original)}{words}; {bench.judged_on}")
    # the candidates after transfer, and those to which transfer failed
    _note_dropout(folder, bench.recipe)
    _transfer_all(folder, bench, shapes, explain)
    transferred = {shape.name: folder.findings[f"carried {shape.name}"] for shape in shapes}
    candidates = {name: found for name, found in transferred.items() if "refused" not in found}
    if not candidates:
        reasons = "; ".join(f"{name}: {found['refused']}" for name, found in transferred.items())
        raise ShapeError(f"no candidate can carry the weights of {source}: {reasons}")
    # latencies, then healing of the candidates that keep most
    latency = folder.once("latency", lambda: _latencies(folder, bench, candidates))
    order = sorted(candidates, key=lambda name: -bench.score(candidates[name]))
    for name in order:
        note(f"{name}: carried, {bench.format_quality(candidates[name])}")
    healed_candidates = healing.heal_candidates(folder, bench, order[:HEALED_CANDIDATES], rates, seeds)
    # the best of all, transferred or healed, on the samples for selection
    best, found = max([*candidates.items(), *healed_candidates.items()], key=lambda pair: bench.score(pair[1]))
    model = folder.place(best) if "run" not in found else _write_healed(folder, bench, best, Path(found["run"]).name)
    report = {
        "source": source,
        "task": bench.recipe.data.task,
        "tokens": bench.recipe.data.length,
        "metric": bench.metric,
        "reference": reference,
        "original": sizes | _public(original) | latency.get("original", {}),
        "candidates": [_row(shape, transferred, healed_candidates) | latency.get(shape.name, {}) for shape in shapes],
        "chosen": best,
        "quality": found["quality"],
        "neighbours": found.get("neighbours"),
        "healed": "run" in found,
        "directory": str(folder.path),
        "seconds": folder.clock.seconds,
        "judged_on": bench.judged_on,
    }
    folder.finish(model, report)
    return Shrunk(report, folder.path)


def _row(shape: Shape, transferred: Mapping[str, Any], healed_candidates: Mapping[str, Any]) -> dict[str, Any]:
    """Return a candidate's row of the report: its design, and its quality after transfer and after healing."""
    finding, after = transferred[shape.name], healed_candidates.get(shape.name)
    if "refused" in finding:
        return {**shape.to_json(), "carried": None, "healed": None, "refused": finding["refused"]}
    return {
        **shape.to_json(),
        **finding.get("shape", {}),
        "macs": finding["macs"],
        "carried": {
            **_public(finding),
            "damage": finding["damage"],
            "unit": finding["unit"],
            "steps": finding["steps"],
        },
        "healed": None if after is None else {key: after[key] for key in HEALED_KEYS if key in after},
    }


def _public(finding: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in finding.items() if key in ("quality", "neighbours", "params", "macs")}


# -- transfer --------------------------------------------------------------------------------------------------------


def _transfer_all(folder: ShrinkFolder, bench: Evaluator, shapes: Sequence[Shape], explain: bool) -> None:
    """Transfer the weights to every shape that is still missing, each into a lean directory."""
    todo = [shape for shape in shapes if f"carried {shape.name}" not in folder.findings]
    if not todo:
        return
    # load the original with its weights, and batches of the training split
    recipe, model = bench.recipe, bench.recipe.model
    torch.manual_seed(recipe.run.seed)
    model_source = find.section_source(model)
    original = require_all_layers(lambda: find.load_with_weights(model_source, None), model.source)
    to_master_weights(original)  # moments and least squares need more precision than 16-bit activations
    batches = calibration_batches(recipe, bench.splits, original, TOKENS)
    if recipe.data.task != "classification":
        tokenizer, _ = tokenizers.make_tokenizer(data_section(recipe).tokenizer, lambda: [], "")
        words = tokenizers.unknown_words(tokenizer, batches, recipe.data.path)
        note(f"warning: {words}") if words else None
    # three of four batches select and correct, the others measure the damage
    choosing = [batch for i, batch in enumerate(batches) if i % MEASURING != 1]
    teacher = CalibratedTeacher(original, choosing, batches[1::MEASURING], is_headless(original))
    several = [shape.design.architecture for shape in todo if shape.design and "rotate" not in shape.moves]
    paired = [shape.design.architecture for shape in todo if shape.design and "pair" in shape.moves]
    count = f"{len(todo)} shape{'s' * (len(todo) != 1)}"
    what = f"transferring weights to {count} by {teacher.tokens:,} tokens, {len(batches)} batches"
    prepare(teacher, several, what, passes(teacher) if any(shape.design is None for shape in todo) else 0, paired)
    for shape in sorted(todo, key=lambda shape: PRIORITY.index(shape.name)):
        folder.once(f"carried {shape.name}", partial(_transfer_shape, folder, bench, teacher, shape, explain))


def _transfer_shape(
    folder: ShrinkFolder, bench: Evaluator, teacher: CalibratedTeacher, shape: Shape, explain: bool
) -> dict[str, Any]:
    """Transfer the weights to one shape: return its quality and costs, or the reason why it failed."""

    def on_step(step: Step) -> None:
        if explain:
            note(f"{shape.name}: {step.description}, {teacher.outputs.unit} {damage_words(step.damage)}")

    if is_late(folder, shape.name):
        note(f"{shape.name}: left out, as the time for transferring is over")
        return {"refused": "left out, as the time for transferring was over"}
    # the weights in the new shape
    try:
        with progress(f"transferring weights to {shape.name}", None):
            if shape.design is None:
                result = transfer_free(teacher, shape.max_params, on_step)
            elif "rotate" in shape.moves:
                result = rotate(teacher, shape.design.architecture, on_step)
            else:
                result = transfer_weights(teacher, shape.design.architecture, on_step, shape.moves)
    except LeanifyError as error:
        note(f"{shape.name}: {error}")
        return {"refused": str(error)}
    # write the candidate's directory, with the checkpoint's configuration
    place = folder.fresh(shape.name)
    restore_dropout(result.model, folder, bench.recipe)
    to_stored_weights(result.model, bench.dtype)
    lean_directory.save(result.model, place, title=_title(folder), name=folder.path.name)
    steps = [step.description for step in result.steps]
    facts: dict[str, Any] = {"damage": result.damage, "unit": teacher.outputs.unit, "steps": steps}
    facts["files"] = folder.files(shape.name)
    if shape.design is None:  # its layers differ: the keys of a design, with one value per layer
        shape_read = surgery.read(result.model)
        layers = list(shape_read.layers())
        sizes = {key: [getattr(layer, key) for layer in layers] for key in ("heads", "head_dim", "inner", "mlp")}
        params = sum(p.numel() for p in result.model.parameters())
        facts["shape"] = {"depth": len(layers), **sizes, "architecture": shape_read.to_json(), "params": params}
    elif "rotate" in shape.moves:  # with a head of its own, which the design's prices may lack
        facts["shape"] = {"params": counting.parameters(result.model)}
    evaluator = bench.with_model(str(place))
    return facts | evaluator.evaluate() | _costs(evaluator.recipe)


def is_late(folder: ShrinkFolder, name: str) -> bool:
    """Whether the rest of the minutes is for healing: a candidate is carried, and the user did not name this one."""
    is_named = name in [*folder.request.get("designs", ()), folder.request.get("shape")]
    has_candidate = any(key.startswith("carried ") for key in folder.findings)
    return has_candidate and not is_named and folder.clock.is_over(HEALING_SHARE)


def _dropout_changes(folder: ShrinkFolder, recipe: TrainingRecipe) -> dict[str, float]:
    """Return the checkpoint's dropout rates that healing changes without a request by the user."""
    named = {setting.partition("=")[0].strip() for setting in folder.request.get("settings", ())}
    own = find.find(folder.request["source"]).origin.options
    changes = {}
    for key, value in recipe.model.override.items():
        if "drop" in key and f"model.override.{key}" not in named and own.get(key, value) != value:
            changes[key] = own[key]
    return changes


def _note_dropout(folder: ShrinkFolder, recipe: TrainingRecipe) -> None:
    changes = _dropout_changes(folder, recipe)
    if changes:
        parts = ", ".join(f"{key} {value:g} → {recipe.model.override[key]:g}" for key, value in changes.items())
        note(f"healing without noise, {parts}; the result keeps its own")


def restore_dropout(model: Any, folder: ShrinkFolder, recipe: TrainingRecipe) -> None:
    """Restore the checkpoint's dropout rates in a configuration."""
    for key, value in _dropout_changes(folder, recipe).items():
        if hasattr(getattr(model, "config", None), key):
            setattr(model.config, key, value)


def _costs(recipe: TrainingRecipe) -> dict[str, Any]:
    """Return parameters, and MACs of one sample."""
    cost = counting.count(model_on_meta(recipe.model), recipe.data.length)
    return {"params": cost.params, "macs": cost.macs}


def _latencies(folder: ShrinkFolder, bench: Evaluator, names: Iterable[str]) -> dict[str, Any]:
    """Return the latency of one sample on this machine: the median of the rounds, and their middle half."""
    if is_on_disk():
        note("latencies are not measured: the models do not fit into memory together")
        return {}
    places = {name: folder.place(name) for name in names}
    models = {"original": bench.recipe.model}
    models |= {name: bench.with_model(str(place)).recipe.model for name, place in places.items() if place.is_dir()}
    shells = {name: model_on_meta(section) for name, section in models.items()}
    timings = time_latencies(shells, bench.recipe.data.length)
    rows = {}
    for name, timing in timings.items():
        rows[name] = {"latency_s": timing.median, "latency_range": [timing.low, timing.high]}
    return rows


def _write_healed(folder: ShrinkFolder, bench: Evaluator, name: str, run_name: str) -> Path:
    """Write a run's best model as a lean directory, with the files that accompany the transferred one."""
    if MOVING in folder.findings:  # an earlier start already moved some of its files
        return folder.place(f"{name}-best")
    place = folder.fresh(f"{name}-best")
    model: Any = find.load(folder.place(run_name))
    if hasattr(model, "config"):  # a run stores a tokenizer, but not pooling or processors
        model.config._name_or_path = str(folder.place(name))
    restore_dropout(model, folder, bench.recipe)
    to_stored_weights(model, bench.dtype)
    lean_directory.save(model, place, title=_title(folder), name=folder.path.name)
    return place


def _title(folder: ShrinkFolder) -> str:
    """Return the title of a shrunk model's README: the checkpoint's name, without its directory."""
    return f"A smaller {Path(folder.request['source']).name}"
