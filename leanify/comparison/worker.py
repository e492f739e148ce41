"""Execute one run of a study in a separate process, started by `runner`.

The run starts, or resumes from its checkpoint. κ is probed during training, and the outcome is written next to the run.
Rows of the run's log are sent to the parent process. When the parent ends, this process is killed, so that no process
remains.
"""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import re
import signal
import statistics
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from threadpoolctl import threadpool_limits

from leanify.comparison.folder import PROBES, RUNS, Outcome, StudyFolder
from leanify.comparison.plan import Key
from leanify.core.errors import LeanifyError, SourceError, UnsupportedModel
from leanify.core.files import writing
from leanify.core.files.reading import read_object
from leanify.core.path_kinds import is_run
from leanify.data.samples import Reader, end_workers
from leanify.runs.run_directory import RunDirectory
from leanify.spectra.measure import condition
from leanify.tasks import outcomes
from leanify.training.callbacks import Callback
from leanify.training.loop import Trainer
from leanify.training.start import recorded_recipe
from leanify.upstream.libraries import first_line

INTERRUPTED_CODE = 130  # a run's exit code after Ctrl-C or SIGTERM; it can be resumed
NO_ROOM = 74  # and after a full disk; the run can be resumed as well; EX_IOERR of sysexits.h
LOG = "worker.log"  # what runs print, in the study's folder of runs
PROBE_SAMPLES = 16  # validation samples on which κ is probed
POINTS = 8  # κ is probed at the start, and about this many times during training

OnRow = Callable[[dict[str, Any]], None]


class RunCallback(Callback):
    """Follows a run: forwards its log rows, and probes κ at evaluations.

    κ is the median over samples and layers, so that one rank-deficient layer does not hide the others. The probe points
    depend only on the step, so a resumed run probes at the same ones.
    """

    def __init__(self, on_row: OnRow, probes: bool) -> None:
        self.on_row, self.probes = on_row, probes
        self.has_evaluated = False

    def attend(self, trainer: Trainer, run: RunDirectory) -> None:
        self.trainer, self.run = trainer, run
        self.kappas = _probes(run.path / PROBES)  # by step: κ and its bounds; no upper one if infinite

    def on_train_begin(self, summary: str, first_step: int, last_step: int, metric: str, sign: int) -> None:
        self.last = last_step
        self.on_row({"began": summary, "step": first_step, "steps": last_step})
        # the run may have been killed after an evaluation, before its probe
        if first_step == 0 or (first_step, "validation") in {(row["step"], row["split"]) for row in self.run.rows()}:
            self.probe(first_step)

    def on_warning(self, message: str) -> None:
        print(message, file=sys.stderr)

    def on_log(self, row: Mapping[str, Any]) -> None:
        self.on_row(dict(row))
        self.has_evaluated |= row["split"] == "validation"

    def on_step_end(self, step: int) -> None:
        if self.has_evaluated:
            self.has_evaluated = False
            self.probe(step)

    def probe(self, step: int) -> None:
        """Probe κ at a step, unless this eighth of the run already has a value."""
        if not self.probes:
            return
        places = {int(probe_step) * POINTS // self.last for probe_step in self.kappas}
        if step * POINTS // self.last in places and step != self.last:
            return
        bounds = kappa(self.trainer)
        if bounds is not None:
            self.kappas[str(step)] = [number if number < float("inf") else None for number in bounds]
            writing.write(self.run.path / PROBES, json.dumps(self.kappas) + "\n")


def _probes(file: Path) -> dict[str, list[Any]]:
    """Return κ and its bounds by step, as written by `RunCallback.probe`; entries edited by a user are ignored."""
    try:
        content = read_object(file)
    except SourceError:  # it is damaged
        return {}
    probes = {}
    for step, value in content.items():
        entry = value if isinstance(value, list) else []
        numbers = entry[:2] if len(entry) == 3 and entry[2] is None else entry  # the upper bound may be missing
        is_valid = len(entry) == 3 and all(type(number) in (int, float) for number in numbers)
        if is_valid and re.fullmatch("[0-9]{1,12}", step):
            probes[step] = entry
    return probes


def kappa(trainer: Trainer) -> tuple[float, float, float] | None:
    """Return κ of the concatenated heads on the first validation samples, and its bounds; None if not finite.

    The bounds are medians like κ, so they are valid for it: a median grows with each of its values.
    """
    samples = trainer.splits.validation
    # κ of each layer and sample on one batch
    keys = [[(0, index) for index in range(min(PROBE_SAMPLES, len(samples)))]]
    [batch] = Reader(samples, keys, trainer.seed, 0)
    inputs, _ = trainer.evaluator.to_device(batch)
    try:
        layers = condition(trainer.state.eval_model, inputs).layers
    except (UnsupportedModel, SourceError):
        return None
    layer_samples = [layer.samples for layer in layers if not layer.is_vector]
    if not layer_samples:
        return None
    # medians over samples, then over layers
    bounds = []
    for name in ("kappa", "low", "high"):
        medians = [statistics.median(getattr(sample, name) for sample in layer) for layer in layer_samples]
        bounds.append(statistics.median(medians))
    value, low, high = bounds
    return (value, low, high) if value < float("inf") else None


def execute_run(folder: StudyFolder, key: Key, on_row: OnRow = lambda row: None) -> None:
    """Train one run to its end, and record its outcome. Does nothing for an ended run."""
    with folder.lock_run(key):
        if folder.outcome(key) is not None:
            return
        try:
            trainer = _train(folder, key, on_row)
        except LeanifyError as error:
            if _is_full_disk(error):
                raise
            fingerprint = folder.plan.fingerprint(key)
            folder.record(Outcome(key.design, key.seed, fingerprint, "failed", str(error), rate=key.rate))
            return
        # each sample's contribution to the last evaluation, made again if a run was killed just after it
        evaluator = trainer.evaluator
        if evaluator.tally is None:
            trainer.test(RunDirectory.open(folder.run(key)))
        if evaluator.tally is None:
            trainer.evaluate()
        assert evaluator.tally is not None
        folder.record_samples(key, outcomes(trainer.task, evaluator.tally))
        folder.record(_outcome(folder, key, trainer))


def _is_full_disk(error: BaseException | None) -> bool:
    """Whether a full disk caused an error, so that no design is responsible for it."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    return error is not None and _is_full_disk(error.__cause__)


def _train(folder: StudyFolder, key: Key, on_row: OnRow) -> Trainer:
    path = folder.run(key)
    # a new run, or the interrupted one from its checkpoint
    callback = RunCallback(on_row, probes=key.rate is None)
    recipe = recorded_recipe(RunDirectory.open(path)) if is_run(path) else folder.run_recipe(key)
    trainer = Trainer(recipe, callback)
    run = RunDirectory.open(path) if is_run(path) else trainer.new_run(path)
    callback.attend(trainer, run)
    trainer.fit(run)
    return trainer


def _outcome(folder: StudyFolder, key: Key, trainer: Trainer) -> Outcome:
    # the final metric, on the test split if the data have one
    task, last_rows = trainer.task, {row["split"]: row for row in folder.rows(key)}
    last = last_rows["test" if "test" in last_rows else "validation"]
    # κ by step, and the bounds of the last one
    probes = {int(step): value for step, value in _probes(folder.run(key) / PROBES).items()}
    steps = sorted(step for step in probes if step <= trainer.steps)
    kappas = tuple((step, probes[step][0]) for step in steps)
    bounds = tuple(probes[steps[-1]][1:]) if steps else None
    return Outcome(
        design=key.design,
        seed=key.seed,
        fingerprint=folder.plan.fingerprint(key),
        status="finished",
        metric=task.metric,
        split=last["split"],
        sign=task.sign,
        rate=key.rate,
        best=task.best,
        unit=task.unit,
        quality=last[task.metric],
        step=trainer.steps,
        kappas=kappas,
        kappa_bounds=bounds,
    )


# -- the process ------------------------------------------------------------------------------------------------------


def main(study: str, key: Key, environment: Mapping[str, str], rows: Connection) -> None:
    """Execute one run in this process, and end it with INTERRUPTED, NO_ROOM or 1 if the run has no outcome."""
    _end_with_parent()
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # nohup ignores it
    # start data readers as in `train`: children of the fork server would have no parent here
    multiprocessing.set_start_method("fork" if sys.platform == "linux" else "spawn", force=True)
    folder = StudyFolder.open(Path(study))
    with writing.open_append(folder.path / RUNS / LOG) as log:
        os.dup2(log.fileno(), 1)  # only results of the command are printed
        os.dup2(log.fileno(), 2)
    threadpool_limits(folder.plan.threads)
    torch.set_num_threads(folder.plan.threads)

    def send(row: dict[str, Any] | str) -> None:
        with suppress(OSError):  # the reader has gone: `_end_with_parent` ends this process
            rows.send(row)

    try:
        execute_run(folder, key, send)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED_CODE)
    except BaseException as error:
        traceback.print_exc()
        send(first_line(error))
        sys.exit(NO_ROOM if _is_full_disk(error) else 1)
    finally:
        end_workers()  # otherwise this process would wait for data readers that have no more work


def _end_with_parent() -> None:
    """Kill this process as soon as its parent has ended, for whatever reason."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()
