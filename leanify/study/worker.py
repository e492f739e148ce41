"""Runs of a study, each in a process of its own: ``python -m leanify.study.worker STUDY``.

Each line of its standard input asks for a run: ``DESIGN SEED``, or ``DESIGN SEED SHARE`` to stop there, saved. A forked
process begins the run or goes on with it, so that the imports are paid once and no run inherits anything from another.
κ is probed on the way, and the outcome is left beside the run. Standard output has one JSON object for each row of a
run's log, and one with its exit code at its end.

When its standard input is closed it kills the run and ends: nothing is left behind where whoever started it was killed.
"""

from __future__ import annotations

import contextlib
import json
import os
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

import torch

from leanify.data.samples import Reader
from leanify.errors import LeanifyError, SourceError, UnsupportedModel
from leanify.sources.checkpoints import write_small
from leanify.sources.run_directory import RunDirectory, is_run
from leanify.spectra.measure import condition
from leanify.study.folder import PROBES, Outcome, StudyFolder
from leanify.study.plan import Key
from leanify.training import with_tokenizer_of
from leanify.training.loop import Trainer

PROBED = 16  # samples of the validation split
INTERRUPTED = 130  # the exit code of a run that was stopped by Ctrl-C and can go on
POINTS = 8  # κ is probed at the start, and about so many times on the way


class Onlooker:
    """Prints the rows of a run, probes κ where it evaluates, and stops it where it is to stop.

    κ is the median over samples and layers: one of deficient rank does not hide the others. The points depend on the
    step alone, so a run that was resumed has the same ones.
    """

    def __init__(self) -> None:
        self.stop: int | None = None
        self.evaluated, self.parent = False, os.getppid()
        self.file: Path | None = None
        self.trainer: Trainer | None = None
        self.kappas: dict[str, float] = {}

    def attend(self, trainer: Trainer, run: Path) -> None:
        self.trainer, self.file = trainer, run / PROBES
        if self.file.exists():
            self.kappas = json.loads(self.file.read_text(encoding="utf-8"))

    def began(self, words: str, first: int, last: int) -> None:
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
            os._exit(1)  # whoever waits for this run was killed
        if self.evaluated:
            self.evaluated = False
            self.probe(step)
        if step == self.stop:
            signal.raise_signal(signal.SIGINT)

    def probe(self, step: int) -> None:
        """κ at a step, unless its share of the run has one."""
        places = {int(known) * POINTS // self.last for known in self.kappas}
        if step * POINTS // self.last in places and step != self.last:
            return
        assert self.trainer is not None
        assert self.file is not None
        found = kappa(self.trainer)
        if found is not None:
            self.kappas[str(step)] = found
            write_small(self.file, json.dumps(self.kappas) + "\n")

    def _print(self, row: dict[str, Any]) -> None:
        print(json.dumps(row), flush=True)


def kappa(trainer: Trainer) -> float | None:
    """κ of the concatenated heads on the first validation samples; None where the model has none that is finite."""
    samples = trainer.splits.validation
    keys = [[(0, index) for index in range(min(PROBED, len(samples)))]]
    [batch] = Reader(samples, keys, trainer.seed, 0)
    inputs, _ = trainer.evaluator.moved(batch)
    try:
        layers = condition(trainer.state.evaluated, inputs).layers
    except (UnsupportedModel, SourceError):
        return None
    medians = [layer.quartiles[1] for layer in layers if not layer.is_vector]
    found = statistics.median(medians) if medians else float("inf")
    return found if found < float("inf") else None


def work(folder: StudyFolder, key: Key, share: float | None = None) -> None:
    """Train one run to its end, or for a share of it; leave its outcome. A run that has ended is left alone."""
    with folder.held(key):
        if folder.outcome(key) is not None:
            return
        try:
            trainer = _train(folder, key, share)
        except LeanifyError as error:
            folder.record(Outcome(key.design, key.seed, folder.plan.fingerprint(key), "failed", str(error)))
            return
        if trainer is not None:
            folder.record(_outcome(folder, key, trainer))


def _train(folder: StudyFolder, key: Key, share: float | None) -> Trainer | None:
    """The trainer of a run that is trained to its end; None where it stopped before."""
    path = folder.run(key)
    for leftover in path.parent.glob(f".{path.name}.*"):
        if leftover.is_dir():  # a run that was killed while its folder was made
            shutil.rmtree(leftover)
    watcher = Onlooker()
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


def _outcome(folder: StudyFolder, key: Key, trainer: Trainer) -> Outcome:
    rows, task = folder.rows(key), trainer.task
    last = next((row for row in reversed(rows) if row["split"] == "test"), None)
    last = last or next(row for row in reversed(rows) if row["split"] == "validation")
    kappas = json.loads((folder.run(key) / PROBES).read_text()) if (folder.run(key) / PROBES).exists() else {}
    return Outcome(
        design=key.design,
        seed=key.seed,
        fingerprint=folder.plan.fingerprint(key),
        status="finished",
        metric=task.metric,
        split=last["split"],
        sign=task.sign,
        margin=task.margin,
        quality=last[task.metric],
        step=trainer.steps,
        kappas=tuple(sorted((int(step), value) for step, value in kappas.items() if int(step) <= trainer.steps)),
    )


# -- serving ----------------------------------------------------------------------------------------------------------


def serve(folder: StudyFolder) -> None:
    """One run after another, as standard input asks for them."""
    for line in sys.stdin:
        design, seed, *share = line.split()
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            _run(folder, Key(design, int(seed)), float(share[0]) if share else None)
        waiter = threading.Thread(target=_report, args=(child,))
        waiter.start()
        if not _waited(waiter):
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(child, signal.SIGKILL)
            os._exit(1)


def _run(folder: StudyFolder, key: Key, share: float | None) -> NoReturn:
    """The forked process: never returns."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        torch.set_num_threads(folder.plan.threads)
        work(folder, key, share)
        code = 0
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _report(child: int) -> None:
    """Wait for a run and say how it ended; a signal is a negative code."""
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(json.dumps({"ended": code}), flush=True)


def _waited(waiter: threading.Thread) -> bool:
    """Whether the run ended before the other end of standard input was closed; nothing is read of it meanwhile."""
    closed = select.poll()
    closed.register(sys.stdin, 0)  # a hang-up is told in any case
    while waiter.is_alive():
        if closed.poll(0):
            return False
        waiter.join(0.05)
    return True


def main(arguments: list[str]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the runs, which save; the server waits for them
    serve(StudyFolder.open(Path(arguments[0])))


if __name__ == "__main__":
    main(sys.argv[1:])
