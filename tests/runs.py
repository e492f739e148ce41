"""Small runs for the tests of training, in processes of their own that can be killed: forks, which import nothing anew.

    commands.start("runs:main", RECIPE, RUN, MODE, …)
    MODE   whole      to the end
           event:N    killed by SIGKILL at the N-th time it opens, makes, renames, truncates or removes a file
           time:T     killed by SIGKILL after T seconds
           aim:N      killed at its N-th such event below checkpoints/: writing, renaming and pruning
           write:N    killed inside its N-th write to a checkpoint's files
           int:N      interrupted by SIGINT in its N-th step; term:N and hup:N by SIGTERM and SIGHUP
           kill:N     killed by SIGKILL in its N-th step
           stop:N     stopped by SIGSTOP in its N-th step, and let go on

Each mode goes on with the run that the one before it left; prints one line a mode: the exit code and the last step.

    commands.start("runs:launch", RECIPE, PHASE, …)    as a launcher would start several processes
    PHASE   RUN:WORLD           to the end, going on with the run beside the recipe where it is there
            RUN:WORLD:STEP      every process is killed by SIGKILL in this step, counted from 1

Prints one line a phase: the exit code of each process.
"""

from __future__ import annotations

import io
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import commands
from PIL import Image

from leanify.core import recipe as recipes
from leanify.training.callbacks import Callback

SIGNALS = {"int": signal.SIGINT, "term": signal.SIGTERM, "hup": signal.SIGHUP} | {
    "stop": signal.SIGSTOP, "kill": signal.SIGKILL
}  # fmt: skip
FILE_EVENTS = ("open", "os.mkdir", "os.rename", "os.truncate", "os.rmdir", "os.remove", "shutil.rmtree")

# every kind of randomness that a run has, and checkpoints, rows and evaluations that do not coincide
DIGITS = """
[model]
source = "vit_tiny_patch16_224"
[model.override]
img_size = 8
patch_size = 2
in_chans = 1
num_classes = 10
embed_dim = 16
depth = 2
num_heads = 2
drop_path_rate = 0.1
proj_drop_rate = 0.1
[data]
name = "digits"
task = "classification"
samples = 500
holdout = 0.1
mixup = 0.8
cutmix = 1.0
[optim]
lr = 2e-3
weight_decay = 0.05
clip = 1.0
ema = 0.9
[schedule]
epochs = 3
batch_size = 64
warmup = 1
[run]
log_every = 3
eval_every = 5
checkpoint_every = 2
keep = 2
"""


def digits(*settings: str) -> recipes.Recipe:
    """This recipe with settings."""
    return recipes.apply_settings(recipes.parse(DIGITS), settings)


SHORT = digits("data.samples=200", "schedule.epochs=2", "run.eval_every=2")


class Warnings(Callback):
    """What the user of a run is told."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def on_warning(self, message: str) -> None:
        self.warnings.append(message)


def final_state(run: Path) -> dict[str, Any]:
    """What must be equal: rows without what was read from a clock, and every tensor of the last checkpoint."""
    import torch

    from leanify.runs.run_directory import RunDirectory

    rows = [{k: v for k, v in row.items() if k != "samples_per_s"} for row in RunDirectory.open(run).rows()]
    last = RunDirectory.open(run).checkpoints()[-1]
    assert last.find_damage() is None
    tensors = flatten({"weights": last.weights(), "state": last.state()})
    return {"rows": rows, "step": last.step} | {
        name: value.tolist() if isinstance(value, torch.Tensor) else value for name, value in tensors.items()
    }


@contextmanager
def refused(error: type[Exception] | tuple[type[Exception], ...], words: str, *places: Path) -> Iterator[None]:
    """An error of one line with these words, which leaves none of these places behind."""
    import pytest

    with pytest.raises(error, match=words) as caught:
        yield
    assert "\n" not in str(caught.value)
    assert not [place for place in places if place.exists()]


def make_pictures(data: Path, classes: Iterable[str] = "ab", size: int = 8, **splits: int) -> Path:
    """A folder of images: so many of every class in each split, told apart by their grey."""
    for split, count in splits.items():
        for name in classes:
            (data / split / name).mkdir(parents=True)
            for number in range(count):
                Image.new("RGB", (size, size), (10 * number % 256,) * 3).save(data / split / name / f"{number}.png")
    return data


def git(*arguments: str) -> None:
    """A command of git in the current directory."""
    subprocess.run(["git", "-c", "user.name=x", "-c", "user.email=x", *arguments], check=True, capture_output=True)


def change_json(file: Path, **values: Any) -> None:
    """Write other values of these keys to a file, which need not be there."""
    known = json.loads(file.read_text("utf-8")) if file.exists() else {}
    file.write_text(json.dumps(known | values), "utf-8")


def write_shard(file: Path, samples: Iterable[tuple[bytes, bytes]]) -> None:
    """A tar shard of numbered pictures, each with its class."""
    with tarfile.open(file, "w") as shard:
        for number, contents in enumerate(samples):
            for suffix, content in zip(("png", "cls"), contents, strict=True):
                member = tarfile.TarInfo(f"{number}.{suffix}")
                member.size = len(content)
                shard.addfile(member, io.BytesIO(content))


def make_documents(folder: Path, **names: str) -> None:
    """Data of the documents, by the makers that stand there: ``sentences="reviews"`` for the folder ``reviews``."""
    import torch

    before = sys.argv
    with torch.random.fork_rng():
        torch.manual_seed(torch.Generator().initial_seed())  # that of a new process
        for kind, name in names.items():
            sys.argv = ["", str(folder / name)]
            runpy.run_path(str(Path(__file__).parent / "fixtures" / "documents" / f"make_{kind}.py"))
    sys.argv = before


def add_pooling(folder: Path, **config: Any) -> Path:
    """What sentence-transformers keeps beside an encoder: its modules, and how tokens are pooled."""
    kinds = ("", "Transformer"), ("1_Pooling", "Pooling")
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(config))
    return folder


def nothing_left(run: Path) -> None:
    """Of killed processes: neither litter nor half a checkpoint."""
    assert [path.name for path in run.rglob(".*")] == []
    for folder in (run / "checkpoints").iterdir():
        assert sorted(path.name for path in folder.iterdir()) == ["checkpoint.json", "model.safetensors", "state.pt"]


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    if isinstance(value, dict):
        return {k: v for key, item in value.items() for k, v in flatten(item, f"{prefix}/{key}").items()}
    return {prefix: value}


def run_modes(run: Path, *modes: str, recipe: str = DIGITS) -> list[tuple[int, int]]:
    """(exit code, last checkpoint's step) of each mode; a signal is a negative code."""
    file = run.with_suffix(".toml")
    file.write_text(recipe)
    result = commands.start("runs:main", str(file), str(run), *modes).wait()
    assert result.returncode == 0, result.stderr
    return [tuple(json.loads(line)) for line in result.stdout.splitlines()]


def main(recipe: str, path: str, *modes: str) -> None:
    run = Path(path)
    for mode in modes:
        kind, _, amount = mode.partition(":")
        child = os.fork()
        if child == 0:
            train_and_exit(Path(recipe), run, kind, int(amount) if kind not in ("whole", "time") else 0)
        if kind == "time":
            time.sleep(float(amount))
            os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, os.WUNTRACED)[1]
        assert os.WIFSTOPPED(status) == (kind == "stop")
        if kind == "stop":
            os.kill(child, signal.SIGCONT)
            status = os.waitpid(child, 0)[1]
        code = os.waitstatus_to_exitcode(status)
        steps = [int(path.name) for path in run.glob("checkpoints/*") if path.name.isdigit()]
        print(json.dumps([code, max(steps, default=-1)]), flush=True)


def launch(recipe: str, *phases: str) -> None:
    for phase in phases:
        run, world, *step = phase.split(":")
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
                place = Path(recipe).with_name(run)
                train_and_exit(Path(recipe), place, "kill" if step else "whole", int(step[0]) if step else 0)
            children.append(child)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        print(json.dumps(codes), flush=True)


def train_and_exit(recipe: Path, run: Path, kind: str, amount: int) -> None:
    from leanify.runs.checkpoint_writing import HashedFile
    from leanify.training import start as training
    from leanify.training.loop import Trainer

    remaining = [amount]
    write, step = HashedFile.write, Trainer.step

    def count(event: str, arguments: tuple[Any, ...]) -> None:
        place = f"{run.name}/checkpoints/" if kind == "aim" else run.name
        if event in FILE_EVENTS and place in str(arguments[0]):
            count_down()

    def count_down() -> None:
        remaining[0] -= 1
        if remaining[0] <= 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def write_half(self: Any, data: Any) -> int:
        if remaining[0] == 1:
            write(self, memoryview(data).cast("B")[: len(data) // 2])
            self.flush()
        count_down()
        return write(self, data)

    def step_with_signal(self: Any, number: int, batches: Any) -> None:
        if number + 1 == amount:
            os.kill(os.getpid(), SIGNALS[kind])
        step(self, number, batches)

    if kind in ("event", "aim"):
        sys.addaudithook(count)
    if kind == "write":
        HashedFile.write = write_half
    if kind in SIGNALS:
        Trainer.step = step_with_signal
    try:
        if run.exists():
            training.train(resume=run)
        else:
            training.train(recipe, run)
    except KeyboardInterrupt as error:
        os._exit(getattr(error, "code", 130))
    except BaseException as error:
        print(repr(error), file=sys.stderr)
        os._exit(1)
    os._exit(0)


def launched(*arguments: str, processes: int = 2) -> subprocess.Popen[str]:
    """The command line in processes that torch's launcher starts."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"]
    command = [*launcher, "--no-python", sys.executable, "-c", commands.CODE, *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
