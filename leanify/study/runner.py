"""Run many trainings at once, each in its own process, through any engine with a ``submit`` method.

Engines only ever submit `execute`, which starts one worker and waits for it; so local threads, Slurm jobs and Ray tasks
behave alike. No cleanup is needed after a kill: workers end with their parent, the next call resumes runs from their
checkpoints, and ended runs are known by their outcome files.
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
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

from leanify import machine
from leanify.errors import DirectoryError, LeanifyError, RecipeError, TrainingError
from leanify.runs import writing
from leanify.runs.files import opened_text
from leanify.study.folder import RUNS, Outcome, StudyFolder
from leanify.study.measure import on_meta
from leanify.study.plan import Key, StudyPlan
from leanify.training import memory
from leanify.training.preparation import checkpoint_gradients
from leanify.units import binary

PROCESS_BYTES = 700 << 20  # memory of a worker before it has a model: Python, torch, timm or transformers
POLL_SECONDS = 0.05
INTERRUPTED = 130  # a run's exit code after Ctrl-C; it can be resumed
NO_ROOM = 74  # and after a full disk, where it can be, too; EX_IOERR of sysexits.h
LOG = "worker.log"  # the workers' standard error, in the study's folder of runs

OnRow = Callable[[Key, Mapping[str, Any]], None]
OnEnd = Callable[[Key], None]


class Job(Protocol):
    """What ``submit`` returns: a `concurrent.futures.Future`, or a submitit job."""

    def done(self) -> bool: ...
    def result(self) -> Any: ...


class Engine(Protocol):
    """Any object with ``submit`` as in `concurrent.futures.Executor`."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Job: ...


class Worker:
    """A process that executes runs one after another (`leanify.study.worker`), so that imports are paid for once."""

    def __init__(self, folder: StudyFolder, gpu: int | None = None) -> None:
        threads = str(folder.plan.threads)
        environment = {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        environment.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # spinning threads would slow down concurrent runs
        environment |= {} if gpu is None else {"CUDA_VISIBLE_DEVICES": str(gpu)}
        self.folder, self.closed = folder, False
        folder.check_folders()
        with writing.appending(folder.path / RUNS / LOG) as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "leanify.study.worker", str(folder.path)],  # -P: no module of this folder
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
            )

    def run(self, key: Key, share: float | None, on_row: OnRow | None) -> int:
        """Execute a run and return its exit code, or the worker's if the worker itself died.

        ``on_row`` receives that it is prepared, that it began, and the rows of its log.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        if on_row is not None:
            on_row(key, {"prepares": str(key)})
        asked = {"design": key.design, "seed": key.seed, "rate": key.rate, "share": share}
        print(json.dumps(asked), file=self.process.stdin, flush=True)
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


def execute(study: str, design: str, seed: int, share: float | None = None, rate: float | None = None) -> None:
    """Execute one run in its own process. This is the function that engines submit."""
    folder = StudyFolder.open(Path(study))
    with contextlib.closing(Worker(folder)) as worker:
        perform(worker, Key(design, seed, rate), share)


def perform(worker: Worker, key: Key, share: float | None = None, on_row: OnRow | None = None) -> None:
    """Execute one run in a worker; record a failure if the process died without an outcome."""
    folder = worker.folder
    code = worker.run(key, share, on_row)
    if code == INTERRUPTED:
        raise KeyboardInterrupt
    if code == NO_ROOM:
        raise TrainingError(
            f"the run {key} stopped because there is no space left on the device of {folder.path}; once there is room, "
            "the same command goes on"
        )
    if code and not worker.closed and folder.outcome(key) is None:  # a run stopped by `close` has not failed
        reason = _death(code, folder.path / RUNS / LOG)
        folder.record(Outcome(key.design, key.seed, folder.plan.fingerprint(key), "failed", reason, rate=key.rate))


def _death(code: int, log: Path) -> str:
    """Explain a run's death from its exit code and the last line of the log."""
    if code < 0:
        name = signal.Signals(-code).name
        hint = ", probably because memory ran out" if -code == signal.SIGKILL else ""
        return f"killed by {name}{hint}"
    with opened_text(log, DirectoryError, errors="replace") as file:
        lines = file.read().strip().splitlines()
    return f"ended with exit code {code}: {lines[-1] if lines else 'no message'}"


def run_all(
    folder: StudyFolder, keys: Iterable[Key], engine: Engine, on_end: OnEnd, share: float | None = None
) -> None:
    """Submit the runs that have not ended, and wait for them; ``on_end`` is called as each ends.

    An exception, including Ctrl-C, cancels runs that have not started.
    """
    jobs: dict[Key, Job] = {}
    for key in keys:
        if folder.outcome(key) is None:
            jobs[key] = engine.submit(execute, str(folder.path), key.design, key.seed, share, key.rate)
    try:
        while jobs:
            ended = [key for key, job in jobs.items() if job.done()]
            for key in ended:
                _result(key, jobs.pop(key))
                on_end(key)
            if not ended:
                time.sleep(POLL_SECONDS)
    finally:
        for job in jobs.values():
            if hasattr(job, "cancel"):
                job.cancel()


def _result(key: Key, job: Job) -> None:
    """Raise a job's error: LeanifyError as it is, an engine's (time limit, lost node) as TrainingError."""
    try:
        job.result()
    except LeanifyError:
        raise
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        raise TrainingError(f"the engine stopped the run {key}: {reason}; the same command resumes it") from error


# -- this machine -----------------------------------------------------------------------------------------------------


class Local:
    """The local engine: ``jobs`` workers at a time, assigned to GPUs in turn, those with most free memory first."""

    def __init__(self, folder: StudyFolder, jobs: int, on_row: OnRow | None = None) -> None:
        self.folder, self.on_row, self.pool = folder, on_row, ThreadPoolExecutor(max(1, jobs))
        self.closing = False
        self.idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        found: Sequence[int | None] = gpus() or [None]
        self.workers = [Worker(folder, found[place % len(found)]) for place in range(jobs)]
        for worker in self.workers:
            self.idle.put(worker)

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Job:
        """Run `execute` in an existing worker."""
        assert function is execute
        _, design, seed, share, *rate = arguments
        return self.pool.submit(self._perform, Key(design, seed, *rate), share)

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
        """Stop all workers. Unfinished runs are killed and can be resumed from their checkpoints."""
        self.closing = True
        for worker in self.workers:
            worker.close()
        self.pool.shutdown(wait=True, cancel_futures=True)
        for worker in self.workers:  # close workers that `_perform` has replaced meanwhile
            if not worker.closed:
                worker.close()


def gpus() -> list[int]:
    """This machine's GPUs, most free memory first; [] without NVML or if CUDA_VISIBLE_DEVICES already selects some."""
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
    """CPU threads per run when ``jobs`` runs share this machine's cores."""
    return max(1, len(os.sched_getaffinity(0)) // jobs)


def check_jobs(plan: StudyPlan, jobs: int) -> None:
    """Raise RecipeError, naming the number that fits, if ``jobs`` runs need more memory than is available."""
    available = machine.free_memory()
    if available is None:
        return
    each, design = max((PROCESS_BYTES + needed(plan, design.name), design.name) for design in plan.designs)
    if each > available:
        raise RecipeError(
            f"a run of {design} needs about {binary(each)} of memory, but only {binary(available)} are available; it "
            "needs less with --set run.accumulate=N, the same batch in more passes, with --set "
            "run.gradient_checkpointing=true, or of a smaller model"
        )
    if jobs * each > available:
        raise RecipeError(
            f"--jobs {jobs} needs about {binary(jobs * each)} of memory, {binary(each)} per run, but only "
            f"{binary(available)} are available: --jobs {available // each} fits"
        )


def needed(plan: StudyPlan, design: str) -> int:
    """Predict the bytes that a run of a design needs in addition to its process; 0 if it does not run on meta.

    On a GPU this is GPU memory, and only the processes themselves use the machine's memory.
    """
    recipe = plan.recipe_of(Key(design, plan.seeds[0]))
    assert recipe.optim is not None
    assert recipe.schedule is not None
    model = on_meta(recipe.model)
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
