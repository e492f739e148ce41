"""Execute runs of a study, each in its own process: ``python -m leanify.study.worker STUDY``.

Each line of standard input requests a run, as a JSON object of ``design``, ``seed``, ``rate`` and ``share``: with a
rate it is a trial of that multiple of the learning rate, with a share it stops after that part of the schedule, with a
checkpoint. A forked process starts or resumes the run, so that imports are paid for once and runs share no state. It
probes κ on the way and writes the outcome beside the run. Standard output has one JSON object per row of the run's log,
and at the end one with its exit code.

When standard input is closed, the worker kills the run and exits, so nothing is left running if its parent is killed.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import select
import shutil
import signal
import statistics
import sys
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray

from leanify.data.samples import Reader
from leanify.errors import LeanifyError, SourceError, UnsupportedModel
from leanify.runs import writing
from leanify.runs.files import read_json
from leanify.runs.places import is_run
from leanify.runs.recipe import Recipe
from leanify.runs.run_directory import RunDirectory
from leanify.sources.find import find
from leanify.spectra.measure import condition
from leanify.study.folder import PROBES, Outcome, StudyFolder
from leanify.study.plan import Key
from leanify.study.runner import INTERRUPTED, NO_ROOM
from leanify.tasks.outcomes import outcomes
from leanify.training.loop import Trainer
from leanify.training.start import with_tokenizer_of
from leanify.upstream.modules import is_code

PROBED = 16  # validation samples on which κ is probed
POINTS = 8  # κ is probed at the start, and about this many times during training


class Onlooker:
    """Watches a run: prints its log rows, probes κ at evaluations, and stops it at step ``stop``.

    κ is the median over samples and layers, so that one rank-deficient layer does not hide the others. The points
    depend only on the step, so a resumed run probes at the same ones.
    """

    def __init__(self, probes: bool = True) -> None:
        self.probes = probes
        self.stop: int | None = None
        self.evaluated, self.parent = False, os.getppid()
        self.file: Path | None = None
        self.trainer: Trainer | None = None
        self.kappas: dict[str, list[float | None]] = {}  # by step: κ and its bounds; no upper one if infinite

    def attend(self, trainer: Trainer, run: Path) -> None:
        self.trainer, self.file = trainer, run / PROBES
        self.kappas = _probes(self.file)

    def began(self, words: str, first: int, last: int, metric: str, sign: int) -> None:
        self.last = last
        self._print({"began": words, "step": first, "steps": last})
        self.probe(first)

    def warned(self, words: str) -> None:
        print(words, file=sys.stderr)

    def logged(self, row: Mapping[str, Any]) -> None:
        self._print(dict(row))
        self.evaluated |= row["split"] == "validation"

    def stepped(self, step: int) -> None:
        if os.getppid() != self.parent:
            os._exit(1)  # the worker was killed, so nothing waits for this run
        if self.evaluated:
            self.evaluated = False
            self.probe(step)
        if step == self.stop:
            signal.raise_signal(signal.SIGINT)

    def probe(self, step: int) -> None:
        """Probe κ at a step, unless this eighth of the run already has a value."""
        if not self.probes:
            return
        places = {int(known) * POINTS // self.last for known in self.kappas}
        if step * POINTS // self.last in places and step != self.last:
            return
        assert self.trainer is not None
        assert self.file is not None
        found = kappa(self.trainer)
        if found is not None:
            self.kappas[str(step)] = [number if number < float("inf") else None for number in found]
            writing.write(self.file, json.dumps(self.kappas) + "\n")

    def _print(self, row: dict[str, Any]) -> None:
        print(json.dumps(row), flush=True)


def _probes(file: Path) -> dict[str, list[Any]]:
    """κ and its bounds by step, as `Onlooker.probe` writes them; what anybody edited otherwise is left out."""
    try:
        written = read_json(file)
    except SourceError:  # it is missing or damaged
        return {}
    probes = {}
    for step, value in written.items() if isinstance(written, dict) else ():
        listed = value if isinstance(value, list) else [value]  # earlier versions wrote no bounds
        numbers = listed[:2] if len(listed) == 3 and listed[2] is None else listed  # the upper bound may be missing
        known = len(listed) in (1, 3) and all(type(number) in (int, float) for number in numbers)
        if known and re.fullmatch("[0-9]{1,12}", step):
            probes[step] = listed
    return probes


def kappa(trainer: Trainer) -> tuple[float, float, float] | None:
    """κ of the concatenated heads on the first validation samples, and its bounds; None if undefined or infinite.

    The bounds are medians as κ is, so they hold for it: a median grows with each of its values.
    """
    samples = trainer.splits.validation
    keys = [[(0, index) for index in range(min(PROBED, len(samples)))]]
    [batch] = Reader(samples, keys, trainer.seed, 0)
    inputs, _ = trainer.evaluator.moved(batch)
    try:
        layers = condition(trainer.state.evaluated, inputs).layers
    except (UnsupportedModel, SourceError):
        return None
    known = [layer.samples for layer in layers if not layer.is_vector]
    if not known:
        return None
    median = statistics.median
    found = median(median(sample.kappa for sample in layer) for layer in known)
    low = median(median(sample.low for sample in layer) for layer in known)
    high = median(median(sample.high for sample in layer) for layer in known)
    return (found, low, high) if found < float("inf") else None


def work(folder: StudyFolder, key: Key, share: float | None = None) -> None:
    """Train one run to its end, or for a share of it, and record its outcome. Does nothing for an ended run."""
    with folder.held(key):
        if folder.outcome(key) is not None:
            return
        try:
            trainer = _train(folder, key, share)
        except LeanifyError as error:
            if _is_full_disk(error):
                raise
            print_ = folder.plan.fingerprint(key)
            folder.record(Outcome(key.design, key.seed, print_, "failed", str(error), rate=key.rate))
            return
        if trainer is not None:
            folder.record_samples(key, _outcomes(folder, key, trainer))
            folder.record(_outcome(folder, key, trainer))


def _is_full_disk(error: BaseException | None) -> bool:
    """Whether a full disk is behind an error: then no design is to blame for it."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    return error is not None and _is_full_disk(error.__cause__)


def _train(folder: StudyFolder, key: Key, share: float | None) -> Trainer | None:
    """Train a run; return its trainer if it reached the end, None if it stopped before."""
    path = folder.run(key)
    for leftover in path.parent.glob(f".{path.name}.leanify-*"):
        if writing.is_beside(leftover):  # of a run that was killed while its folder was made
            shutil.rmtree(leftover)
    watcher = Onlooker(probes=key.rate is None)
    recipe = with_tokenizer_of(RunDirectory.open(path)) if is_run(path) else folder.recipe_of(key)
    trainer = Trainer(recipe, watcher)
    run = RunDirectory.open(path) if is_run(path) else trainer.new_run(path)
    watcher.attend(trainer, path)
    stop = None if share is None else max(1, round(share * trainer.steps))
    watcher.stop = stop
    if stop is not None and any(found.step >= stop for found in run.checkpoints()):
        return None
    try:
        trainer.fit(run)
    except KeyboardInterrupt:
        if stop is None:
            raise
        return None
    return trainer


def _outcomes(folder: StudyFolder, key: Key, trainer: Trainer) -> NDArray[np.float64]:
    """What each sample adds to the last evaluation; evaluates again where a run was killed just after it."""
    evaluator = trainer.evaluator
    if evaluator.tally is None:
        trainer.test(RunDirectory.open(folder.run(key)))
    if evaluator.tally is None:
        trainer.evaluate()
    assert evaluator.tally is not None
    return outcomes(trainer.task, evaluator.tally)


def _outcome(folder: StudyFolder, key: Key, trainer: Trainer) -> Outcome:
    rows, task = folder.rows(key), trainer.task
    last = next((row for row in reversed(rows) if row["split"] == "test"), None)
    last = last or next(row for row in reversed(rows) if row["split"] == "validation")
    probes = {int(step): value for step, value in _probes(folder.run(key) / PROBES).items()}
    probes = {step: probes[step] for step in sorted(probes) if step <= trainer.steps}
    bounds = next((found[1:] for found in reversed(probes.values()) if len(found) == 3), None)
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
        kappas=tuple((step, found[0]) for step, found in probes.items()),
        kappa_bounds=None if bounds is None else (bounds[0], bounds[1]),
    )


# -- serving ----------------------------------------------------------------------------------------------------------


def serve(folder: StudyFolder) -> None:
    """Execute the runs requested on standard input, one after another; when it is closed, kill the one that runs."""
    closed = select.poll()
    closed.register(sys.stdin, 0)  # POLLHUP is always reported, even with an empty event mask; nothing is read
    for line in sys.stdin:
        asked = json.loads(line)
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            _run(folder, Key(asked["design"], asked["seed"], asked["rate"]), asked["share"])
        waiter = threading.Thread(target=_report, args=(child,))
        waiter.start()
        while waiter.is_alive():
            if closed.poll(0):
                with contextlib.suppress(ProcessLookupError):  # the run has just ended
                    os.kill(child, signal.SIGKILL)
                os._exit(1)
            waiter.join(0.05)


def _import_libraries(recipe: Recipe) -> None:
    """Import what the runs would each import for themselves: the model's library, and the digits' one."""
    if not is_code(recipe.model.source):  # which the runs execute, each for itself
        with contextlib.suppress(LeanifyError):  # a run says what is wrong with its model
            find(recipe.model.source)
    if recipe.data is not None and recipe.data.name == "digits":
        import sklearn.datasets  # noqa: F401


def _run(folder: StudyFolder, key: Key, share: float | None) -> NoReturn:
    """Execute a run in the forked process, then exit."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        torch.set_num_threads(folder.plan.threads)
        work(folder, key, share)
        code = 0
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BaseException as error:
        traceback.print_exc()
        code = NO_ROOM if _is_full_disk(error) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _report(child: int) -> None:
    """Wait for a run and print its exit code; a signal gives a negative code."""
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(json.dumps({"ended": code}), flush=True)


def main(arguments: list[str]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C also reaches the run, which saves; the worker waits for it
    place = Path(arguments[0])
    _import_libraries(StudyFolder.open(place).plan.recipe)
    serve(StudyFolder.open(place))  # whose plan each run reads for itself, as rates are chosen meanwhile


if __name__ == "__main__":
    main(sys.argv[1:])
