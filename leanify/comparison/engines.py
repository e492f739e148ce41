"""Engines that start runs: this machine, Slurm through submitit, or Ray.

They submit `runner.execute`, which every machine of the cluster must be able to import, and the path of the study's
folder, which must be on a shared file system.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from leanify.comparison.folder import StudyFolder
from leanify.comparison.runner import Engine, Local, OnRow, check_jobs
from leanify.core.errors import LeanifyError

PACKAGES = {"slurm": "submitit", "ray": "ray"}
MINUTES = 24 * 60  # a Slurm job's time limit; a run that reaches it is resumed by the next call
MAX_NAME = 60  # characters of a job's name
JOBS = "jobs"  # submitit's own files, in the study's folder


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
    """Open the engine of this name. Raises LeanifyError if it is unavailable, or if ``jobs`` exceed local memory."""
    package, plan = check_engine(name), folder.plan
    if name == "slurm":
        # submitit writes both into a shell script, where the end of a line would begin a command
        if not str(folder.path.resolve()).isprintable():
            raise LeanifyError(f"--engine slurm: {folder.path} has a control character in its path: rename it")
        name = re.sub(r"[^\w.-]", "-", plan.title)[:MAX_NAME] or "leanify"
        executor = package.AutoExecutor(folder=folder.path / JOBS)
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
        check_jobs(plan, jobs)
        with Local(folder, jobs, on_row) as engine:
            yield engine
