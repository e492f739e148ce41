"""Engines that start runs: this machine, Slurm through submitit, or Ray; thin wrappers around existing schedulers.

They submit `runner.execute`, which every machine of the cluster must be able to import, and the path of the study's
folder, which must be on a shared file system.
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
MINUTES = 24 * 60  # a Slurm job's time limit; a run that reaches it is resumed by the next call
JOBS = "jobs"  # submitit's own files, in the study's folder


def check_engine(name: str) -> None:
    """Raise LeanifyError for an engine that is unknown or not available here, before anything is written."""
    if name not in ENGINES:
        raise LeanifyError(f"--engine must be one of {', '.join(ENGINES)}, not {name!r}")
    if name == "slurm":
        _installed("submitit", name)
        if shutil.which("srun") is None:
            raise LeanifyError("--engine slurm: Slurm is not available here (srun is not on the PATH)")
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
    """Open the engine of this name. Raises LeanifyError if it is unavailable, or if ``jobs`` exceed local memory."""
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
    """submitit's executor; ``cluster="local"`` runs its jobs as processes on this machine."""
    submitit = _installed("submitit", "slurm")
    executor = submitit.AutoExecutor(folder=folder.path / JOBS, cluster=cluster)
    executor.update_parameters(name=folder.plan.title, cpus_per_task=folder.plan.threads, timeout_min=MINUTES)
    engine: Engine = executor
    return engine


class Ray:
    """A Ray cluster: the one at RAY_ADDRESS, else a local one."""

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
