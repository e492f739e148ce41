"""Runs side by side: each in a process of its own, started by whatever has a ``submit``.

`execute` is all that is ever submitted: it starts one worker and waits for it, so threads here, Slurm's jobs and Ray's
tasks do the same thing. Who was killed and where is found out on the next start: workers end with whoever started
them, runs go on from their checkpoints, and those that have ended are known.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

from leanify import machine
from leanify.errors import LeanifyError, RecipeError, TrainingError
from leanify.lens import surgery
from leanify.sources import find
from leanify.study.folder import RUNS, Outcome, StudyFolder
from leanify.study.plan import Key, StudyPlan
from leanify.training import memory
from leanify.training.preparation import checkpoint_gradients
from leanify.units import binary

PROCESS_BYTES = 700 << 20  # what a worker takes before it has a model: Python, torch, timm or transformers
POLL_SECONDS = 0.05
INTERRUPTED = 130  # a worker's exit code after Ctrl-C
LOG = "worker.log"  # what the workers said, in the study's folder of runs

OnRow = Callable[[Key, Mapping[str, Any]], None]


class Job(Protocol):
    """What an engine gives back: a `concurrent.futures.Future`, a job of submitit."""

    def done(self) -> bool: ...
    def result(self) -> Any: ...


class Engine(Protocol):
    """Anything with a ``submit`` like that of `concurrent.futures.Executor`."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Job: ...


class Worker:
    """A process that runs what it is asked for, one after another (`leanify.study.worker`); imports are paid once."""

    def __init__(self, folder: StudyFolder, gpu: int | None = None) -> None:
        threads = str(folder.plan.threads)
        environment = {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        environment.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that spin slow down the runs beside them
        environment |= {} if gpu is None else {"CUDA_VISIBLE_DEVICES": str(gpu)}
        self.folder, self.closed = folder, False
        with (folder.path / RUNS / LOG).open("a", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "leanify.study.worker", str(folder.path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
            )

    def run(self, key: Key, share: float | None, on_row: OnRow | None) -> int:
        """Do a run and return its exit code; that of the worker where it died itself."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(key.design, key.seed, "" if share is None else share, file=self.process.stdin, flush=True)
        for line in self.process.stdout:
            row = json.loads(line)
            if "ended" in row:
                return int(row["ended"])
            if on_row is not None:
                on_row(key, row)
        return self.process.wait()

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.closed = True
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def execute(study: str, design: str, seed: int, share: float | None = None) -> None:
    """One run in a process of its own: what is submitted to an engine."""
    folder = StudyFolder.open(Path(study))
    with contextlib.closing(Worker(folder)) as worker:
        perform(worker, Key(design, seed), share)


def perform(worker: Worker, key: Key, share: float | None = None, on_row: OnRow | None = None) -> None:
    """One run by a worker. A death without an outcome is recorded as the run's failure."""
    folder = worker.folder
    code = worker.run(key, share, on_row)
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    if code and not worker.closed and folder.outcome(key) is None:  # what was given up has not failed
        reason = _death(code, folder.path / RUNS / LOG)
        folder.record(Outcome(key.design, key.seed, folder.plan.fingerprint(key), "failed", reason))


def _death(code: int, log: Path) -> str:
    """Why a run ended, from its exit code and the last thing it said."""
    if code < 0:
        name = signal.Signals(-code).name
        hint = ": out of memory, if nobody did it on purpose" if -code == signal.SIGKILL else ""
        return f"killed by {name}{hint}"
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return f"ended with code {code}: {lines[-1] if lines else 'it said nothing'}"


def run_all(folder: StudyFolder, keys: Sequence[Key], engine: Engine, share: float | None = None) -> Iterator[Key]:
    """Submit runs and yield each as it ends. An exception here, Ctrl-C among them, cancels what has not begun."""
    jobs = {key: engine.submit(execute, str(folder.path), key.design, key.seed, share) for key in keys}
    try:
        while jobs:
            ended = [key for key, job in jobs.items() if job.done()]
            for key in ended:
                _result(key, jobs.pop(key))
                yield key
            if not ended:
                time.sleep(POLL_SECONDS)
    finally:
        for job in jobs.values():
            if hasattr(job, "cancel"):
                job.cancel()


def _result(key: Key, job: Job) -> None:
    """Raise what ended a job: our own errors as they are, an engine's (a time limit, a lost node) as TrainingError."""
    try:
        job.result()
    except LeanifyError:
        raise
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        raise TrainingError(f"the run {key} was given up by its engine: {reason}; the same command goes on") from error


# -- this machine -----------------------------------------------------------------------------------------------------


class Local:
    """So many runs at a time on this machine; GPUs go round, those with the most free memory first."""

    def __init__(self, folder: StudyFolder, jobs: int, on_row: OnRow | None = None) -> None:
        self.folder, self.on_row, self.pool = folder, on_row, ThreadPoolExecutor(max(1, jobs))
        self.closing = False
        self.idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        found: Sequence[int | None] = gpus() or [None]
        self.workers = [Worker(folder, found[place % len(found)]) for place in range(jobs)]
        for worker in self.workers:
            self.idle.put(worker)

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Job:
        """`execute` by a worker that is there already."""
        assert function is execute
        _, design, seed, share = arguments
        return self.pool.submit(self._perform, Key(design, seed), share)

    def _perform(self, key: Key, share: float | None) -> None:
        worker = self.idle.get()
        try:
            perform(worker, key, share, self.on_row)
        finally:
            if worker.process.poll() is not None and not self.closing:
                worker.close()
                worker = Worker(self.folder)
                self.workers.append(worker)
            self.idle.put(worker)

    def __enter__(self) -> Local:
        return self

    def __exit__(self, *error: object) -> None:
        """Runs that go on are killed where this ends early; they go on from their checkpoints another time."""
        self.closing = True
        for worker in self.workers:
            worker.close()
        self.pool.shutdown(wait=True, cancel_futures=True)
        for worker in self.workers:  # one may have been replaced just before
            if not worker.closed:
                worker.close()


def gpus() -> list[int]:
    """This machine's GPUs, those with the most free memory first; none where NVML finds none, or some are chosen."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") is not None:
        return []
    import pynvml

    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        free = [int(pynvml.nvmlDeviceGetMemoryInfo(handle).free) for handle in handles]
    except pynvml.NVMLError:
        return []
    return sorted(range(len(free)), key=free.__getitem__, reverse=True)


def threads_for(jobs: int) -> int:
    """The threads of each run where so many share this machine's cores."""
    return max(1, len(os.sched_getaffinity(0)) // jobs)


def check_jobs(plan: StudyPlan, jobs: int) -> None:
    """Refuse more runs at a time than this machine's memory holds. Raises RecipeError with the number that fits."""
    available = machine.memory("MemAvailable")
    if available is None:
        return
    each = PROCESS_BYTES + max(needed(plan, design.name) for design in plan.designs)
    if jobs * each > available:
        raise RecipeError(
            f"--jobs {jobs} needs about {binary(jobs * each)} of memory, {binary(each)} a run, and {binary(available)} "
            f"are available: --jobs {max(1, available // each)} fits"
        )


def needed(plan: StudyPlan, design: str) -> int:
    """Bytes that a run of a design takes beside the process itself, predicted; 0 where the model does not run on meta.

    On a GPU too, where they lie there: the processes' own memory is then what counts here.
    """
    recipe = plan.recipe_of(Key(design, plan.seeds[0]))
    assert recipe.optim is not None
    assert recipe.schedule is not None
    found = find.find(recipe.model.source, overrides=recipe.model.override, cls=recipe.model.cls)
    model = find.build_on_meta(found)
    if recipe.model.reshapes:
        model = surgery.write(model, recipe.model.shape(surgery.read(model)))
    if recipe.run.gradient_checkpointing:
        checkpoint_gradients(model)
    need = memory.need(
        model,
        None if recipe.data is None else recipe.data.length,
        optimiser=recipe.optim.name,
        average=recipe.optim.ema is not None,
        kept=recipe.run.accumulate > 1,
    )
    return 0 if need is None else need.of(-(-recipe.schedule.batch_size // recipe.run.accumulate))
