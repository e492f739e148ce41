"""Runs of several processes, forked from one that has paid for the imports, as a launcher would start them.

    commands.start("launches:main", RECIPE.toml, PHASE, …)
    PHASE   RUN:WORLD           to the end, going on with the run where it is there
            RUN:WORLD:STEP      every process is killed by SIGKILL when it would begin this step, counted from 0

Prints one line a phase: the exit code of each process.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any


def run_phase(recipe: Path, phase: str) -> list[int]:
    """The exit codes of all processes of a phase."""
    run, world, *kill = phase.split(":")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    children = []
    for rank in range(int(world)):
        child = os.fork()
        if child == 0:
            numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
            os.environ.update({name: str(value) for name, value in numbers.items()} if int(world) > 1 else {})
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
            train_and_exit(recipe, recipe.with_name(run), int(kill[0]) if kill else -1)
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def train_and_exit(recipe: Path, run: Path, kill_step: int) -> None:
    from leanify.training import start as training
    from leanify.training.loop import Trainer

    step = Trainer.step

    def step_or_die(self: Any, number: int, batches: Any) -> None:
        if number == kill_step:
            os.kill(os.getpid(), signal.SIGKILL)
        step(self, number, batches)

    Trainer.step = step_or_die  # type: ignore[method-assign]
    try:
        if run.exists():
            training.train(resume=run)
        else:
            training.train(recipe, run)
    except BaseException as error:
        print(repr(error), file=sys.stderr)
        os._exit(1)
    os._exit(0)


def main(recipe: str, *phases: str) -> None:
    for phase in phases:
        print(json.dumps(run_phase(Path(recipe), phase)), flush=True)
