"""`shrink`: turn a checkpoint into a smaller model that keeps its knowledge.

    resolve → candidates → carry → judge → heal → save

The original is measured, and its weights are carried into several shapes of one budget (`carrying`). The two that keep
most are trained with the original as teacher (`healing`): both for a third of the same schedule, the better one to the
end. The best model, healed or not, is written. Half of the validation samples choose at every step; the other half
judges.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from leanify.carrying.teacher import CalibratedTeacher
from leanify.carrying.transfer import Step
from leanify.core.errors import DirectoryError, LeanifyError, ShapeError
from leanify.core.terminal import note, progress
from leanify.core.units import format_bytes, format_damage, format_metric
from leanify.data.samples import Splits
from leanify.profiling import counting
from leanify.profiling.measuring import time_latencies
from leanify.search.design import Design
from leanify.search.options import Options
from leanify.shrinking.candidates import Candidate, Prices, candidates
from leanify.shrinking.carry import Carried, calibrate, carry, weights_on_disk
from leanify.shrinking.carry import save as save_model
from leanify.shrinking.folder import MOVING, ShrinkFolder
from leanify.shrinking.healing import Healed, heal, rehearse
from leanify.shrinking.judging import CROWD, Quality, check_original, judge, judged_on
from leanify.shrinking.original import Original
from leanify.shrinking.resolve import resolve
from leanify.shrinking.time_plan import (
    HEALING_SHARE,
    PRIORITY,
    Clock,
    TimePlan,
    limit_samples,
    measure_speed,
    plan_time,
)
from leanify.shrinking.tokens import check_vocabulary_option, fewer_tokens, vocabulary_costs
from leanify.sources import find
from leanify.training import memory
from leanify.training.engine import build_accelerator
from leanify.training.reference import score_reference
from leanify.upstream.libraries import first_line
from leanify.upstream.on_disk import is_on_disk
from leanify.vocabulary.facts import describe_vocabulary

HEALED_CANDIDATES = 2  # candidates that are trained


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
    vocabulary: int | str = "auto",
    multiple: int = 1,
    shape: str = "free",
    designs: Sequence[str] = (),
    rates: Sequence[float] = (),
    seeds: int = 1,
    settings: Sequence[str] = (),
    dry_run: bool = False,
    explain: bool = False,
) -> Shrunk:
    """Shrink a checkpoint to a budget of parameters, on the user's data, and write the best model to ``output``.

    ``data`` is a folder or a file; a run may leave it out, and is shrunk on the data that it was trained on.
    ``count="body"`` excludes embeddings and classifier from the budget. ``vocabulary`` is the number of tokens that
    stay, "keep" for all, or "auto" for as many as do least damage under the budget, with their rows rounded to a
    ``multiple``. ``shape="plain"`` allows only shapes that the model's own library can build, so none whose blocks
    differ. ``minutes`` is the total time; 0 disables healing and the limit. ``designs`` are some of
    `candidates.MEANING`, ``rates`` learning rates to choose from. With several ``seeds``, the best candidate is healed
    as often, and the range of its quality is reported. ``settings`` change the recipe (``data.length=256``).

    A folder started by the same request is continued; a finished one is read. Ctrl-C keeps the findings so far. Raises
    LeanifyError.
    """
    source, place = str(checkpoint), Path(output or f"{Path(str(checkpoint)).name or 'model'}-lean")
    if minutes < 0:
        raise LeanifyError(f"--minutes {minutes:g} is below 0; 0 carries weights and heals nothing")
    if shape not in ("free", "plain"):
        raise LeanifyError(f"--shape {shape!r} is not free or plain; --designs narrow makes blocks of one size")
    if seeds < 1:
        raise LeanifyError(f"--seeds {seeds} is below 1; each seed heals the best candidate once")
    request = {
        "source": source,
        "data": None if data is None else str(data),
        "target_params": str(target_params),
        "minutes": minutes,
        "count": count,
        "vocabulary": check_vocabulary_option(str(vocabulary), count),
        "multiple": multiple,
        "shape": shape,
        "designs": list(designs),
        "rates": list(rates),
        "seeds": seeds,
        "settings": list(settings),
    }
    clock = Clock(minutes)
    with progress(f"reading {source} and its data", None):
        original = resolve(checkpoint, data, settings)
    prices = Prices(original, Options(target_params=target_params, count=count))
    folder = ShrinkFolder(place, request, clock=clock) if dry_run else ShrinkFolder.open(place, request, clock)
    if not dry_run and folder.report is not None:
        with folder.lock():  # a kill between the report and this leaves work/
            folder.clear()
        note(f"{place} is done; remove it to start again")
        return Shrunk(folder.report, place)
    with _explain_memory(original), ExitStack() as stack:
        if not dry_run:
            stack.enter_context(folder.lock())
            stack.enter_context(weights_on_disk(original, place))
        # refuse models that cannot be trained before anything is written
        prepared, time_plan = _prepare(folder, *_candidates(folder, prices))
        if dry_run:
            return Shrunk(_rehearse(prepared, prices.baseline, time_plan, minutes), None)
        folder.keep()
        return _shrink_into(folder, prepared, prices.baseline, time_plan, explain)


def _candidates(folder: ShrinkFolder, prices: Prices) -> tuple[Original, list[Candidate]]:
    """Return the original with the tokens that the budget leaves it, and its candidates."""
    request, original, options = folder.request, prices.original, prices.options
    tokens, is_alone = request["vocabulary"], request["designs"] == ["vocabulary"]
    if tokens != "keep":
        # all samples are counted, and as many as the minutes allow are split again
        sample = replace(original, splits=_limit_samples(folder, original)[0])
        counted, limit, findings = original.splits.train, prices.max_params, folder.findings
        cut = fewer_tokens(sample, counted, limit, tokens, request["multiple"], findings, is_alone)
        if cut.fewer is not None:
            note(describe_vocabulary(cut.fewer.facts))
            if is_alone and tokens != "auto":  # its budget is what these tokens leave
                options = Options(target_params=counting.parameters(cut.shell))
            elif options.count == "all":
                options = Options(target_params=limit)
            prices = Prices(cut, options)
    with progress("pricing candidates", None):
        return prices.original, candidates(prices, request["designs"], request["shape"])


def _limit_samples(folder: ShrinkFolder, original: Original) -> tuple[Splits, float]:
    """Return the samples that the minutes allow on this machine, and the seconds of a forward pass of one."""
    if "speed" not in folder.findings:
        with progress(f"timing {original.name}", None):
            folder.findings["speed"] = {"macs_per_second": measure_speed(original)}
    forward = original.sample_macs / folder.findings["speed"]["macs_per_second"]
    return limit_samples(original, folder.clock.minutes, forward), forward


def _prepare(folder: ShrinkFolder, original: Original, several: Sequence[Candidate]) -> tuple[Original, TimePlan]:
    """Time this machine, limit the samples, split the batch if memory is short, and plan the minutes.

    Results that depend on the machine's speed are findings, so that another start makes the same choices. Raises
    LeanifyError for a model that cannot be trained.
    """
    # limit the data to the sizes that the minutes allow
    clock, findings = folder.clock, folder.findings
    splits, forward = _limit_samples(folder, original)
    original = replace(original, splits=splits)

    # predict the memory of a step; a batch that is too large goes in several passes
    memory_bytes = None
    with progress("predicting the memory of a step", None):
        engine = build_accelerator(original.recipe)
        recipe, step_need = memory.split_batch(original.recipe, original.splits, original.shell, engine)
        passes, batch = recipe.run.accumulate, recipe.schedule.batch_size
        if clock.minutes:
            memory_bytes = None if step_need is None else step_need.of(-(-batch // passes))
            recipe = memory.split_to_fit(step_need, original.shell, engine, recipe)
    original = replace(original, recipe=recipe)
    if passes > 1:
        note(f"a batch of {batch} goes in {passes} passes of {-(-batch // passes)}, as memory allows")

    # plan the minutes, and leave out candidates if there are too few
    time_plan = plan_time(original, several, folder.request["designs"], clock, forward, memory_bytes)
    if "chosen shapes" in findings:
        names = findings["chosen shapes"]["names"]
        time_plan = replace(time_plan, candidates=[one for one in several if one.name in names])
    else:
        time_plan.check_minutes(clock.minutes)
        names = [one.name for one in time_plan.candidates]
        findings["chosen shapes"] = {"names": names, "tokens": time_plan.tokens}
        if clock.minutes:
            note(time_plan.description)
        if time_plan.left_out:
            note(f"left out, as {clock.minutes:g} minutes are too few: {', '.join(time_plan.left_out)}")
    check_original(original)
    return original, time_plan


@contextmanager
def _explain_memory(original: Original) -> Iterator[None]:
    """Suggest remedies if the original, its teacher or their activations do not fit into memory."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not memory.is_out_of_memory(error):
            raise
        weights = format_bytes(4 * counting.parameters(original.shell))
        raise LeanifyError(
            f"memory ran out ({first_line(error)}): the weights of {original.name} alone take {weights}, and are in "
            "memory together with a candidate's; use shorter samples, --set data.length=N, or smaller batches, "
            "--set schedule.batch_size=N"
        ) from error


def _rehearse(original: Original, baseline: Design, time_plan: TimePlan, minutes: float) -> dict[str, Any]:
    """Return the report of a dry run, from the prices of the candidates and a few training steps."""
    facts = rehearse(original)
    healing_seconds = time_plan.seconds["rates and healing"]
    return {
        "source": original.name,
        "task": original.recipe.data.task,
        "original": baseline.to_json() | vocabulary_costs(original.whole.shell),
        "candidates": [candidate.to_json() | vocabulary_costs(original.shell) for candidate in time_plan.candidates],
        "vocabulary": None if original.fewer is None else original.fewer.facts,
        "steps_predicted": original.recipe.schedule.steps or int(healing_seconds / max(facts["seconds_a_step"], 1e-6)),
        "memory_predicted_bytes": facts["memory_predicted_bytes"],
        "hours_predicted": minutes / 60,
        "plan": time_plan.to_json(),
        "judged_on": judged_on(original),
    }


def _shrink_into(
    folder: ShrinkFolder, original: Original, baseline: Design, time_plan: TimePlan, explain: bool
) -> Shrunk:
    task = original.evaluator.task
    # the original and a trivial model, on the samples that judge
    whole_original = original.whole
    costs = {"params": baseline.params, "macs": baseline.macs}
    with progress(f"judging {original.name}", None):
        finding = folder.once("original", lambda: judge(whole_original, whole_original.module).to_finding() | costs)
        recipe, splits = original.recipe, original.evaluator.splits
        trivial = folder.once("reference", lambda: score_reference(recipe, recipe.run.seed, splits).to_json())
    words = "" if trivial is None else f"; {trivial['name']}: {format_metric(task.metric, trivial['value'])}"
    note(f"original: {Quality.from_finding(finding).describe(task.metric)}{words}; {judged_on(original)}")
    if original.no_dropout and folder.clock.minutes:
        options = original.source.origin.options
        changes = ", ".join(f"{key} {options[key]:g} → {rate:g}" for key, rate in original.no_dropout.items())
        note(f"healing without noise, {changes}; the result keeps its own")

    # the candidates with the original's weights, their latencies, and the healing of those that keep most
    carried, refusals = _carry_all(folder, original, time_plan, explain)
    if not carried:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in refusals.items())
        raise ShapeError(f"no candidate can carry the weights of {original.name}: {reasons}")
    latency = folder.once("latency", lambda: _latencies(original, carried))
    candidates = sorted(carried, key=lambda one: -one.quality.score(task.sign))
    for one in candidates:
        note(f"{one.name}: carried, {one.quality.describe(task.metric)}")
    healed = heal(folder, original, candidates[:HEALED_CANDIDATES], folder.request["rates"], folder.request["seeds"])

    # the best of all, carried or healed, on the samples that choose
    results: list[Carried | Healed] = [*carried, *healed]
    best = max(results, key=lambda one: one.quality.score(task.sign))
    rows = []
    for candidate in time_plan.candidates:
        row = _row(candidate, refusals, carried, healed)
        rows.append(row | vocabulary_costs(original.shell) | latency.get(candidate.name, {}))
    report = {
        "source": original.name,
        "task": original.recipe.data.task,
        "tokens": original.length,
        "metric": task.metric,
        "reference": trivial,
        "original": {key: getattr(baseline, key) for key in ("depth", "heads", "mlp")}
        | _public(Quality.from_finding(finding))
        | costs
        | vocabulary_costs(whole_original.shell)
        | latency.get("original", {}),
        "candidates": rows,
        "chosen": best.name,
        "quality": best.quality.quality,
        "neighbours": best.quality.neighbours,
        "neighbours_among": None if best.quality.neighbours is None else min(CROWD, len(original.splits.train)),
        "healed": isinstance(best, Healed),
        "directory": str(folder.path),
        "vocabulary": None if original.fewer is None else original.fewer.facts,
        "seconds": folder.clock.seconds,
        "judged_on": judged_on(original),
    }
    return save(folder, original, best, report)


def _row(
    candidate: Candidate, refusals: Mapping[str, str], carried: Sequence[Carried], healed: Sequence[Healed]
) -> dict[str, Any]:
    """Return a candidate's row of the report: its design, and its quality after transfer and after healing."""
    row = candidate.to_json()
    if candidate.name in refusals:
        return {**row, "carried": None, "healed": None, "refused": refusals[candidate.name]}
    before = next(one for one in carried if one.name == candidate.name)
    carried_row = {**_public(before.quality), "params": before.params, "macs": before.macs}
    carried_row |= {"damage": before.damage, "unit": before.unit, "steps": list(before.steps)}
    after = next((one for one in healed if one.name == candidate.name), None)
    healed_row: dict[str, Any] | None = None
    if after is not None:
        healed_row = {**_public(after.quality), "steps": after.steps, "rate": after.rate, "stopped": after.stopped}
        if after.qualities:
            seeds = {"seeds": len(after.qualities), "low": min(after.qualities), "high": max(after.qualities)}
            healed_row |= seeds
    return {**row, **before.shape, "macs": before.macs, "carried": carried_row, "healed": healed_row}


def _public(quality: Quality) -> dict[str, Any]:
    values = {"quality": quality.quality, "neighbours": quality.neighbours}
    return {key: value for key, value in values.items() if value is not None}


def _carry_all(
    folder: ShrinkFolder, original: Original, time_plan: TimePlan, explain: bool
) -> tuple[list[Carried], dict[str, str]]:
    """Return the candidates with the original's weights, and why others could not carry them, by name.

    Those that an earlier start carried are read; of the others the best ones stay in memory to be healed.
    """
    carried, refusals, todo = list[Carried](), dict[str, str](), list[Candidate]()
    for candidate in time_plan.candidates:
        finding = folder.findings.get(f"carried {candidate.name}")
        if finding is None:
            todo.append(candidate)
        elif "refused" in finding:
            refusals[candidate.name] = finding["refused"]
        else:
            carried.append(Carried.from_finding(candidate, folder.place(candidate.name), finding))

    # the statistics that all new shapes share
    shapes, teacher = [one for one in todo if one.name != "vocabulary"], None
    if shapes:
        seconds = time_plan.seconds["moments"] + sum(time_plan.carrying.get(one.name, 0.0) for one in shapes)
        teacher = calibrate(original, shapes, folder.findings["chosen shapes"]["tokens"], seconds)

    # the candidates most likely to be best come first; two of them stay in memory
    sign = original.evaluator.task.sign
    for candidate in sorted(todo, key=lambda one: PRIORITY.index(one.name)):
        one = _carry_one(folder, original, teacher, candidate, carried, explain)
        if isinstance(one, str):
            folder.record(f"carried {candidate.name}", {"refused": one})
            refusals[candidate.name] = one
            continue
        folder.record(f"carried {one.name}", one.to_finding() | {"files": folder.files(one.name)})
        carried.append(one)
        best = sorted(carried, key=lambda one: -one.quality.score(sign))[:HEALED_CANDIDATES]
        is_healed = folder.clock.minutes > 0
        carried = [one if is_healed and one in best else replace(one, model=None) for one in carried]
    return sorted(carried, key=lambda one: time_plan.candidates.index(one.candidate)), refusals


def _carry_one(
    folder: ShrinkFolder,
    original: Original,
    teacher: CalibratedTeacher | None,
    candidate: Candidate,
    carried: Sequence[Carried],
    explain: bool,
) -> Carried | str:
    """Return the candidate with the original's weights, or the reason why it has none.

    Free shapes, which are carried first, may be those of a later design: one of them is enough.
    """
    name = candidate.name
    for other in carried:
        if other.architecture == candidate.shape:
            note(f"{name} has the shape of {other.name}")
            return f"the shape of {other.name}"
    if is_late(folder, name):
        note(f"{name}: left out, as the time for transferring is over")
        return "left out, as the time for transferring was over"

    def on_step(step: Step) -> None:
        if explain:
            unit = "" if teacher is None else teacher.outputs.unit
            note(f"{name}: {step.description}, {unit} {format_damage(step.damage)}")

    try:
        return carry(original, teacher, candidate, folder.fresh(name), folder.path.name, on_step)
    except DirectoryError:  # a full disk says nothing about the candidate
        raise
    except LeanifyError as error:
        note(f"{name}: {error}")
        return str(error)


def is_late(folder: ShrinkFolder, name: str) -> bool:
    """Whether the rest of the minutes is for healing: a candidate is carried, and the user did not name this one."""
    is_named = name in folder.request.get("designs", ())
    has_candidate = any(key.startswith("carried ") for key in folder.findings)
    return has_candidate and not is_named and folder.clock.is_over(HEALING_SHARE)


def _latencies(original: Original, carried: Sequence[Carried]) -> dict[str, Any]:
    """Return the latency of one sample on this machine: the median of the rounds, and their middle half."""
    if is_on_disk():
        note("latencies are not measured: the models do not fit into memory together")
        return {}
    shells = {"original": original.shell} | {one.name: one.shell(original) for one in carried}
    with progress("timing the candidates", None):
        timings = time_latencies(shells, original.length)
    return {name: {"latency_s": one.median, "latency_range": [one.low, one.high]} for name, one in timings.items()}


def save(folder: ShrinkFolder, original: Original, best: Carried | Healed, report: Mapping[str, Any]) -> Shrunk:
    """Write the best model and the report into the folder, and remove the work files."""
    place = folder.place(best.name)
    if isinstance(best, Healed):
        place = folder.place(f"{best.name}-best")
        if MOVING not in folder.findings:  # else an earlier start already moved some of its files
            place = folder.fresh(f"{best.name}-best")
            save_model(best.load(original), original, place, folder.path.name)
    folder.finish(place, report)
    return Shrunk(report, folder.path)
