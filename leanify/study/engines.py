"""Who starts the runs: this machine, Slurm by submitit, or Ray. Each is a thin coat over somebody else's scheduler.

What is submitted is `runner.execute`, which every machine of a cluster must be able to import, and the study's folder,
which all of them must see.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from leanify.errors import LeanifyError
from leanify.study.folder import StudyFolder
from leanify.study.runner import Engine, Job, Local, OnRow, check_jobs

ENGINES = ("local", "slurm", "ray")
MINUTES = 24 * 60  # a Slurm job's time limit; a run that reaches it goes on with the next call
JOBS = "jobs"  # submitit's own files, in the study's folder


def check_engine(name: str) -> None:
    """Refuse an engine that is unknown, or that cannot be reached from here, before anything is written."""
    if name not in ENGINES:
        raise LeanifyError(f"--engine {name!r} is none of {', '.join(ENGINES)}")
    if name == "slurm":
        _installed("submitit", name)
        if shutil.which("srun") is None:
            raise LeanifyError("--engine slurm: no Slurm can be reached from here (srun is not on the PATH)")
    if name == "ray":
        _installed("ray", name)


def _installed(module: str, extra: str) -> Any:
    from importlib import import_module

    try:
        return import_module(module)
    except ImportError as error:
        raise LeanifyError(f"--engine {extra} needs {module}: pip install 'leanify[{extra}]'") from error


@contextmanager
def engine_of(name: str, folder: StudyFolder, jobs: int, on_row: OnRow | None = None) -> Iterator[Engine]:
    """The engine of this name. Raises LeanifyError where it cannot be reached, or this machine is too small."""
    if name == "slurm":
        yield slurm(folder)
    elif name == "ray":
        with Ray(folder.plan.threads) as cluster:
            yield cluster
    else:
        missing = len(folder.missing())
        check_jobs(folder.plan, jobs)
        with Local(folder, max(1, min(jobs, missing)) if missing else 0, on_row) as here:
            yield here


def slurm(folder: StudyFolder, cluster: str = "slurm") -> Engine:
    """submitit's executor; ``cluster="local"`` runs its jobs here, as processes."""
    submitit = _installed("submitit", "slurm")
    executor = submitit.AutoExecutor(folder=folder.path / JOBS, cluster=cluster)
    executor.update_parameters(name=folder.plan.title, cpus_per_task=folder.plan.threads, timeout_min=MINUTES)
    engine: Engine = executor
    return engine


class Ray:
    """A Ray cluster: the one that RAY_ADDRESS names, else one on this machine."""

    def __init__(self, threads: int) -> None:
        self.ray, self.threads = _installed("ray", "ray"), threads

    def __enter__(self) -> Ray:
        self.began = not self.ray.is_initialized()
        if self.began:
            try:
                self.ray.init(log_to_driver=False, include_dashboard=False, configure_logging=False)
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise LeanifyError(f"--engine ray: no cluster can be reached: {error}") from error
        return self

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Job:
        remote = self.ray.remote(num_cpus=self.threads, max_retries=0)(function)
        future: Job = remote.remote(*arguments).future()
        return future

    def __exit__(self, *error: object) -> None:
        if self.began:
            self.ray.shutdown()
