"""Run many trainings at once, each in its own process, through any engine with a ``submit`` method.

Engines (this machine, Slurm through submitit, Ray) only ever submit `execute`, which starts a process for one run
(`worker`) and waits for it, so they behave alike. Every machine of a cluster must be able to import it, and the path of
the study's folder must be on a shared file system. Processes come from the fork server of `multiprocessing`, which has
imported what runs need. No cleanup is needed after a kill: runs end with the process that started them, the next call
resumes them from their checkpoints, and ended runs are known by their outcome files.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

from leanify.comparison import worker
from leanify.comparison.folder import RUNS, Outcome, StudyFolder
from leanify.comparison.plan import Key
from leanify.core.errors import LeanifyError, TrainingError
from leanify.core.files import writing

PACKAGES = {"slurm": "submitit", "ray": "ray"}
MINUTES = 24 * 60  # a Slurm job's time limit; a run that reaches it is resumed by the next call
MAX_NAME = 60  # characters of a job's name
POLL_SECONDS = 0.05
SAVING_SECONDS = 20.0  # time for an interrupted run to write its checkpoint before it is killed
SERVER_ENDED = 255  # the exit code that multiprocessing reports then
# the environment in which the fork server starts: it imports no module of the current folder
START = {"PYTHONSAFEPATH": "1", "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE")}
LIBRARIES = re.compile(r"timm|transformers(\.models\.\w+\.modeling_\w+)?|sklearn\.datasets")

OnRow = Callable[[Key, Mapping[str, Any]], None]
OnEnd = Callable[[Key], None]


class Job(Protocol):
    """What ``submit`` returns: a `concurrent.futures.Future`, or a submitit job."""

    def done(self) -> bool: ...
    def result(self) -> Any: ...


class Engine(Protocol):
    """Any object with ``submit`` as in `concurrent.futures.Executor`."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Job: ...


def execute(study: str, design: str, seed: int, rate: float | None = None) -> None:
    """Execute one run in its own process. This is the function that engines submit."""
    with Local(StudyFolder.open(Path(study)), 1) as engine:
        job = engine.submit(execute, study, design, seed, rate)
        while not job.done():
            time.sleep(POLL_SECONDS)
        job.result()


def run_all(folder: StudyFolder, keys: Iterable[Key], engine: Engine, on_end: OnEnd) -> None:
    """Submit the runs that have not ended, and wait for them; ``on_end`` is called as each ends.

    An exception, including Ctrl-C, cancels runs that have not started.
    """
    # submit the runs without an outcome
    jobs: dict[Key, Job] = {}
    for key in keys:
        if folder.outcome(key) is None:
            jobs[key] = engine.submit(execute, str(folder.path), key.design, key.seed, key.rate)
    # poll until all have ended; on an error, cancel the ones that have not started
    try:
        while jobs:
            ended_keys = [key for key, job in jobs.items() if job.done()]
            for key in ended_keys:
                _result(key, jobs.pop(key))
                on_end(key)
            if not ended_keys:
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


class LocalRun:
    """A run that waits for a free slot, and then its process; `run_all` polls it like a job."""

    def __init__(self, engine: Local, key: Key) -> None:
        self.engine, self.key = engine, key
        self.gpu: int | None = None
        self.code: int | None = None
        self.reason = ""

    def start(self, gpu: int | None) -> None:
        """Start the process. Raises TrainingError if it cannot be started."""
        self.gpu, folder = gpu, self.engine.folder
        folder.check_folders()
        with writing.open_append(folder.path / RUNS / worker.LOG):  # refuses a link; the run opens it for itself
            pass
        self.engine.on_row(self.key, {"prepares": str(self.key)})
        environment = dict(os.environ)
        if gpu is not None:
            environment["CUDA_VISIBLE_DEVICES"] = str(gpu)
        self.receiver, sender = multiprocessing.Pipe(duplex=False)
        arguments = (str(folder.path), self.key, environment, sender)
        context = multiprocessing.get_context("forkserver")
        # the fork server imports once the modules that this process imported for the study's models
        context.set_forkserver_preload([worker.__name__, *filter(LIBRARIES.fullmatch, list(sys.modules))])
        self.process = context.Process(target=worker.main, args=arguments)
        # hide the main module's path: a run would execute a script without a main guard again, up to this call
        main = vars(sys.modules["__main__"])
        with sender, _temporarily(os.environ, START), _temporarily(main, {"__file__": None, "__spec__": None}):
            try:
                self.process.start()
            except (OSError, EOFError) as error:
                raise TrainingError(f"no process could be started for the run {self.key}: {error}") from error

    def poll(self) -> None:
        """Forward the rows that have arrived, and record the exit code once there is one."""
        code = self.process.exitcode  # read before the rows, so that the last ones are not missed
        with suppress(EOFError, OSError):  # the process has ended, maybe within a row
            while self.receiver.poll():
                row = self.receiver.recv()
                if isinstance(row, str):
                    self.reason = row
                else:
                    self.engine.on_row(self.key, row)
        if code is not None:
            self.code = code
            self.receiver.close()

    def send(self, number: int) -> None:
        assert self.process.pid  # 0 would be this whole group of processes
        with suppress(ProcessLookupError):
            os.kill(self.process.pid, number)

    def done(self) -> bool:
        self.engine.poll()
        return self.code is not None

    def result(self) -> None:
        """Record a failure if the process died without an outcome. Raises errors that end the study."""
        folder, code = self.engine.folder, self.code
        # interrupted, or no run can continue: end the study
        if code in (worker.INTERRUPTED_CODE, -signal.SIGINT, -signal.SIGTERM, -signal.SIGHUP):
            raise KeyboardInterrupt
        if code == worker.NO_ROOM:
            raise TrainingError(
                f"the run {self.key} stopped because there is no space left on the device of {folder.path}; once there "
                "is room, the same command continues"
            )
        if code == SERVER_ENDED:
            self.send(signal.SIGKILL)
            raise TrainingError(
                f"the process that starts runs was ended, and {self.key} with it; the same command continues"
            )
        # the run itself failed: record the reason
        if code and folder.outcome(self.key) is None:
            reason = self.reason or f"ended with exit code {code}"
            if code < 0:
                hint = ", probably because memory ran out" if -code == signal.SIGKILL else ""
                reason = f"killed by {signal.Signals(-code).name}{hint}"
            key, fingerprint = self.key, folder.plan.fingerprint(self.key)
            folder.record(Outcome(key.design, key.seed, fingerprint, "failed", reason, rate=key.rate))

    def cancel(self) -> None:
        self.engine.waiting.clear()


class Local:
    """The local engine: ``jobs`` runs at a time, assigned to GPUs in turn, those with most free memory first."""

    def __init__(self, folder: StudyFolder, jobs: int, on_row: OnRow | None = None) -> None:
        self.folder, self.on_row = folder, on_row or (lambda key, row: None)
        self.waiting: deque[LocalRun] = deque()
        self.running: list[LocalRun] = []
        devices: Sequence[int | None] = gpus() or [None]
        self.places = deque(devices[place % len(devices)] for place in range(max(1, jobs)))

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Job:
        assert function is execute
        _, *key = arguments
        self.waiting.append(LocalRun(self, Key(*key)))
        return self.waiting[-1]

    def poll(self) -> None:
        """Poll the runs, and start waiting ones in the slots of ended ones."""
        for run in list(self.running):
            run.poll()
            if run.code is not None:
                self.running.remove(run)
                self.places.append(run.gpu)
        while self.waiting and self.places:
            run = self.waiting.popleft()
            run.start(self.places.popleft())
            self.running.append(run)

    def __enter__(self) -> Local:
        return self

    def __exit__(self, *_: object) -> None:
        """Let unfinished runs write a checkpoint, then kill them; the next call resumes them."""
        self.waiting.clear()
        try:
            for run in self.running:
                run.send(signal.SIGTERM)
            deadline = time.monotonic() + SAVING_SECONDS
            for run in self.running:
                with suppress(EOFError, OSError):  # the process has ended
                    while run.receiver.poll(max(0.0, deadline - time.monotonic())):
                        run.receiver.recv()
        finally:  # also after another Ctrl-C
            for run in self.running:
                run.process.kill()
                run.process.join()
                run.receiver.close()


@contextmanager
def _temporarily(mapping: MutableMapping[str, Any], changes: Mapping[str, Any]) -> Iterator[None]:
    """Change some values of a mapping inside the context."""
    before = {name: mapping[name] for name in changes if name in mapping}
    mapping.update(changes)
    try:
        yield
    finally:
        for name in changes:
            del mapping[name]
        mapping.update(before)


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


# -- engines by name --------------------------------------------------------------------------------------------------


def check_engine(name: str) -> Any:
    """Return the package of an engine, None for this machine. Raises LeanifyError if the engine is not available."""
    if name == "local":
        return None
    if name not in PACKAGES:
        raise LeanifyError(f"--engine must be one of local, {', '.join(PACKAGES)}, not {name!r}")
    try:
        package = import_module(PACKAGES[name])
    except ImportError as error:
        raise LeanifyError(f"--engine {name} needs {PACKAGES[name]}: pip install 'leanify[{name}]'") from error
    if name == "slurm" and shutil.which("srun") is None:
        raise LeanifyError("--engine slurm: Slurm is not available here (srun is not on the PATH)")
    return package


@contextmanager
def open_engine(name: str, folder: StudyFolder, jobs: int, on_row: OnRow | None = None) -> Iterator[Engine]:
    """Open the engine of this name. Raises LeanifyError if it is unavailable."""
    package, plan = check_engine(name), folder.plan
    if name == "slurm":
        # submitit writes both into a shell script, where the end of a line would begin a command
        if not str(folder.path.resolve()).isprintable():
            raise LeanifyError(f"--engine slurm: {folder.path} has a control character in its path: rename it")
        name = re.sub(r"[^\w.-]", "-", plan.title)[:MAX_NAME] or "leanify"
        executor = package.AutoExecutor(folder=folder.path / "jobs")
        executor.update_parameters(name=name, cpus_per_task=plan.threads, timeout_min=MINUTES)
        yield executor
    elif name == "ray":
        try:  # the cluster at RAY_ADDRESS, or a local one
            options = {"log_to_driver": False, "configure_logging": False, "include_dashboard": False}
            session = nullcontext() if package.is_initialized() else package.init(**options)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise LeanifyError(f"--engine ray: no cluster can be reached: {error}") from error
        with session:
            remote = package.remote(num_cpus=plan.threads, max_retries=0)
            yield SimpleNamespace(submit=lambda function, *arguments: remote(function).remote(*arguments).future())
    else:
        with Local(folder, jobs, on_row) as engine:
            yield engine
