"""Designs of equal parameters on six tasks: trains them, measures them, keeps one row a run in a table.

    python -m recipes.research.ranking.sweep RUNS --fashion-mnist DIR --cifar10 DIR --enwik8 DIR --tinystories DIR \
        [--only enwik8,listops] [--minutes 60]
    python -m recipes.research.ranking.sweep RUNS --table recipes/results/ranking.csv
    python -m recipes.research.ranking.sweep RUNS … --rates 0.5,1,2     the same designs at several learning rates
    python -m recipes.research.ranking.sweep RUNS --rates 0.5,1,2 --table recipes/results/ranking-rates.csv
    … --kept recipes/results/ranking.csv recipes/results/ranking-rates.csv    rows of these are not trained again
    … --small     60 steps of two designs with one seed, of the tasks whose data is named: whether it runs

Every run is an ordinary run of ``leanify train`` by a recipe beside this file: RUNS/TASK/DESIGN-SEED.
The baseline has 8 layers of 4 heads; all other designs have half of the parameters in its blocks, to within 1%: the
MLP is what makes them equal. Run the first command again and it goes on; run it twice at the same time and the two
share the work. One thread a process is what the kept table was made with: OMP_NUM_THREADS=1.

Beside what a run logs anyway, a run's folder gets ``measured.json``: κ of every layer on the run's first batch, at the
beginning and after 50 steps, and three sums of the first batch's gradient (zero-cost proxies).
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import math
import os
import shutil
import statistics
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

import leanify
from leanify.training.callbacks import Callback

HERE = Path(__file__).parent
SHARE = 0.5  # of the parameters in the baseline's blocks
PROBED_STEP = 50
SMALL_STEPS = 60
PROBED_SAMPLES = 8
ROWS = 50  # rows of training loss a run


class Task(NamedTuple):
    kind: str
    tokens: int
    data: str | None  # the option that names its folder
    metric: str


TASKS = {
    "fashion-mnist": Task("vision", 17, "fashion-mnist", "top1"),
    "enwik8": Task("causal language", 112, "enwik8", "bits_per_byte"),
    "listops": Task("long-range", 40, None, "accuracy"),
    "tinystories": Task("causal language", 128, "tinystories", "bits_per_byte"),
    "cifar10": Task("vision", 17, "cifar10", "top1"),
    "tinystories-masked": Task("masked language", 56, "tinystories", "accuracy"),
}
IN_TURN = (
    "enwik8",
    "fashion-mnist",
    "listops",
    "tinystories",
    "tinystories-masked",
    "cifar10",
)  # of the sweep by rates
CHECKS = {  # the length of samples changed and nothing else, a few designs: is it the length that tells tasks apart?
    "enwik8-short": Task("causal language", 16, "enwik8", "bits_per_byte"),
    "tinystories-masked-long": Task("masked language", 128, "tinystories", "accuracy"),
}
KNOWN = TASKS | CHECKS
CHECKED = ("2x4", "5x8", "lean", "depth-only", "3x12", "baseline")


class Shape(NamedTuple):
    """``wider`` is head_dim as a multiple of the baseline's; the MLP follows from the budget."""

    depth: int
    heads: int
    wider: float = 1.0


DESIGNS = {
    "baseline": Shape(8, 4),
    "lean": Shape(5, 6),
    "control": Shape(5, 4),
    "depth-only": Shape(4, 4),
    "wide-heads": Shape(5, 4, 1.5),
    "2x4": Shape(2, 4),
    "3x12": Shape(3, 12),
    "5x8": Shape(5, 8),
    "2x12": Shape(2, 12),
    "3x8": Shape(3, 8),
    "6x4": Shape(6, 4),
}
EVIDENCE = ("baseline", "lean", "control", "depth-only", "wide-heads")
MOST_SEEDS = ("fashion-mnist", "enwik8")  # the tasks on which the designs of EVIDENCE have five seeds; three elsewhere


class Job(NamedTuple):
    task: str
    design: str
    seed: int
    rate: float = 1.0  # a multiple of the recipe's learning rate

    @property
    def name(self) -> str:
        rate = "" if self.rate == 1 else f"-rate{self.rate:g}"
        return f"{self.task}/{self.design}-{self.seed}{rate}"


def jobs() -> Iterator[Job]:
    """The whole plan, what matters most first: text is quicker than images."""
    slow = [name for name, task in TASKS.items() if task.kind == "vision"]
    quick = [name for name in TASKS if name not in slow]
    others = [design for design in DESIGNS if design not in EVIDENCE]
    yield from (Job(task, design, 0) for design in CHECKED for task in CHECKS)
    yield from (Job(task, design, 0) for design in DESIGNS for task in TASKS)
    for seed in (1, 2):
        yield from (Job(task, design, seed) for task in TASKS for design in EVIDENCE)
    for seed in (3, 4):
        yield from (Job(task, design, seed) for task in MOST_SEEDS for design in EVIDENCE)
    yield from (Job(task, design, 1) for tasks in (quick, slow) for design in others for task in tasks)
    yield from (Job(task, design, seed) for seed in (3, 4) for design in EVIDENCE for task in TASKS)


def jobs_of_rates(rates: list[float]) -> Iterator[Job]:
    """Ten designs and their baseline at every rate, seed by seed; task by task, so that an end leaves whole tasks."""
    for seed in (0, 1):
        for task in IN_TURN:
            yield from (Job(task, design, seed, rate) for design in DESIGNS for rate in rates)


def kept_rows(files: list[Path]) -> dict[Job, dict[str, str]]:
    """The rows of earlier tables by their jobs. A table without a column of rates has the recipes' own."""
    found = {}
    for path in files:
        if not path.exists():
            continue
        with path.open(encoding="utf-8") as file:
            for row in csv.DictReader(file):
                row.setdefault("rate", "1.0")
                found[Job(row["task"], row["design"], int(row["seed"]), float(row["rate"]))] = row
    return found


# -- designs ----------------------------------------------------------------------------------------------------------


def recipe(task: str) -> dict[str, Any]:
    return tomllib.loads((HERE / f"{task}.toml").read_text(encoding="utf-8"))


def steps_of(task: str, small: bool) -> int:
    return SMALL_STEPS if small else int(recipe(task)["schedule"]["steps"])


def priced(task: str, **pins: int) -> Any:
    """Exactly this shape with its costs."""
    model = recipe(task)["model"]
    overrides = {**model["override"], **({"class": model["class"]} if "class" in model else {})}
    return leanify.redesign(model["source"], overrides=overrides, **pins).chosen


def design_of(task: str, name: str) -> Any:
    """The design with the MLP that spends the budget most nearly."""
    shape, base = DESIGNS[name], priced(task, depth=DESIGNS["baseline"].depth)
    if name == "baseline":
        return base
    pins = {"depth": shape.depth, "heads": shape.heads, "head_dim": round(shape.wider * base.head_dim)}
    one, two = (priced(task, **pins, mlp=mlp).params_body for mlp in (32, 64))
    unit = (two - one) / 32
    mlp = round(32 + (SHARE * base.params_body - one) / unit)
    return priced(task, **pins, mlp=mlp)


# -- a run ------------------------------------------------------------------------------------------------------------


class Measuring(Callback):
    """A callback of a run that probes its model. The model and its first batch are taken by hooks of torch's, so that
    the run is that of the command to the last bit.
    """

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}
        self.sums: dict[str, list[float]] = {"grad_norm": [], "snip": [], "fisher": []}
        self.model: Any = None
        self.handles: list[Any] = [torch.nn.modules.module.register_module_forward_pre_hook(self.seen)]

    def seen(self, module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        """Every module before a run is tried on one sample; a hook of its own is told keyword arguments, too."""
        first = next(module.parameters(), None)
        if first is not None and not first.is_meta:
            self.handles.append(module.register_forward_pre_hook(self.first_call, with_kwargs=True))

    def first_call(self, module: torch.nn.Module, args: tuple[Any, ...], words: dict[str, Any]) -> None:
        """The first one in training is the whole model on its first batch."""
        if not module.training or self.model is not None:
            return
        self.close()
        self.model = module
        batch = words or args[0]
        cut = slice(0, PROBED_SAMPLES)
        if words:
            self.batch = {k: v[cut].clone() for k, v in batch.items() if k in ("input_ids", "attention_mask")}
        else:
            self.batch = batch[cut].clone()
        self.found["kappa_init"] = self.kappas()
        for weight in module.parameters():
            if weight.requires_grad:
                self.handles.append(weight.register_post_accumulate_grad_hook(self.first_gradient))

    def first_gradient(self, weight: torch.Tensor) -> None:
        assert weight.grad is not None
        grad, with_weight = weight.grad.double(), weight.grad.double() * weight.detach().double()
        self.sums["grad_norm"].append(float(grad.square().sum()))
        self.sums["snip"].append(float(with_weight.abs().sum()))
        self.sums["fisher"].append(float(with_weight.square().sum()))

    def on_step_end(self, step: int) -> None:
        if step == 1:
            self.close()
            self.found |= {name: math.fsum(parts) for name, parts in self.sums.items()}
            self.found["grad_norm"] = math.sqrt(self.found["grad_norm"])
        if step == PROBED_STEP:
            self.found["kappa_50"] = self.kappas()

    def kappas(self) -> list[float]:
        return [layer.kappa for layer in leanify.condition(self.model, self.batch).layers]

    def close(self) -> None:
        for handle in self.handles:
            handle.remove()
        self.handles = []


def shape_of(job: Job, runs: Path) -> dict[str, Any]:
    """The numbers of a run's design; they are found once and kept beside the runs."""
    kept = runs / "designs" / f"{job.task}-{job.design}.json"
    if not kept.exists():
        design = design_of(job.task, job.design)
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.with_suffix(f".{os.getpid()}").write_text(json.dumps({name: getattr(design, name) for name in COSTS}))
        kept.with_suffix(f".{os.getpid()}").rename(kept)
    found: dict[str, Any] = json.loads(kept.read_text())
    return found


def train(job: Job, runs: Path, data: str | None, small: bool) -> None:
    folder, cost, told = runs / job.name, shape_of(job, runs), recipe(job.task)
    steps = steps_of(job.task, small)
    settings = [f"run.seed={job.seed}", f"run.log_every={steps // ROWS}", f"run.eval_every={steps}", "run.keep=1"]
    if small:
        settings += [f"schedule.steps={steps}", "schedule.warmup=6", "run.eval_batches=2"]
    if data is not None:
        settings.append(f"data.path={data}")
    if job.rate != 1:
        settings.append(f"optim.lr={told['optim']['lr'] * job.rate:g}")
    if job.design != "baseline":
        settings += [f"model.{name}={cost[name]}" for name in ("depth", "heads", "head_dim", "mlp")]
    callback, begun, used = Measuring(), time.perf_counter(), time.process_time()
    leanify.train(HERE / f"{job.task}.toml", folder, settings=settings, callback=callback)
    wall, cpu = time.perf_counter() - begun, time.process_time() - used
    found = {"seconds": round(wall, 2), "cpu_seconds": round(cpu, 2), **cost, **callback.found}
    beside = folder / "measured.json.new"
    beside.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    beside.rename(folder / "measured.json")  # now the run counts as done
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)  # a table of 200 runs needs no weights


# -- the work, shared -------------------------------------------------------------------------------------------------


def claimed(place: Path) -> bool:
    """Whether the job is now ours: a file with our process in it, taken from a process that is gone."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError, ValueError, ProcessLookupError):
        os.kill(int(place.read_text()), 0)
        return False
    place.unlink(missing_ok=True)
    try:
        with place.open("x") as file:
            file.write(str(os.getpid()))
    except FileExistsError:
        return False
    return True


def work(
    plan: list[Job], runs: Path, folders: dict[str, str | None], only: list[str], until: float, small: bool
) -> None:
    failed: set[Job] = set()
    while time.time() < until:
        for job in plan:
            folder, option = runs / job.name, KNOWN[job.task].data
            if job in failed or job.task not in only or (folder / "measured.json").exists():
                continue
            if option is not None and folders[option] is None:
                continue
            if claimed(runs / "claims" / job.name.replace("/", "_")):
                break
        else:
            return
        shutil.rmtree(folder, ignore_errors=True)
        try:
            train(job, runs, None if option is None else folders[option], small)
            loss = row_of(job, folder, small)["eval_loss"]
            print(f"{time.strftime('%H:%M:%S')} {job.name} {loss:.4f}", flush=True)
        except leanify.LeanifyError as error:
            failed.add(job)
            print(f"{time.strftime('%H:%M:%S')} {job.name} failed: {error}", flush=True)
        (runs / "claims" / job.name.replace("/", "_")).unlink(missing_ok=True)


# -- the table --------------------------------------------------------------------------------------------------------

COSTS = ("depth", "heads", "head_dim", "inner", "mlp", "params", "params_body", "macs", "kappa_predicted")
EARLY = {"loss_6_20": (0.06, 0.2), "loss_20_30": (0.2, 0.3), "loss_40_50": (0.4, 0.5), "loss_70_80": (0.7, 0.8)}


def row_of(job: Job, folder: Path, small: bool) -> dict[str, Any]:
    """One row of the table. κ are geometric means over layers."""
    measured = json.loads((folder / "measured.json").read_text(encoding="utf-8"))
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    task, told = KNOWN[job.task], recipe(job.task)
    steps, last = steps_of(job.task, small), [row for row in rows if row["split"] == "validation"][-1]
    losses = [(row["step"] / steps, row["loss"]) for row in rows if row["split"] == "train"]
    override = told["model"]["override"]
    width = next(override[name] for name in ("width", "embed_dim", "n_embd") if name in override)

    def geometric(values: list[float]) -> float:
        return math.exp(statistics.fmean(math.log(value) for value in values))

    return {
        "task": job.task,
        "kind": task.kind,
        "width": width,
        "tokens": task.tokens,
        "design": job.design,
        **{name: measured[name] for name in COSTS[:-1]},
        "seed": job.seed,
        "rate": job.rate,
        "metric_name": task.metric,
        "metric": round(last[task.metric], 5),
        "eval_loss": round(last["loss"], 6),
        **{
            name: round(statistics.fmean(loss for at, loss in losses if low < at <= high), 6)
            for name, (low, high) in EARLY.items()
        },
        "kappa_predicted": round(float(measured["kappa_predicted"]), 4),
        "kappa_init": f"{geometric(measured['kappa_init']):.5g}",
        "kappa_50": f"{geometric(measured['kappa_50']):.5g}",
        **{name: f"{measured[name]:.5g}" for name in ("grad_norm", "snip", "fisher")},
        "train_seconds": measured["seconds"],
        "cpu_seconds": measured["cpu_seconds"],
        "curve": " ".join(f"{loss:.4f}" for _, loss in losses),
    }


def table(plan: list[Job], runs: Path, file: Path, kept: dict[Job, dict[str, str]], small: bool) -> int:
    """Write the rows of the plan's jobs: those that were kept, else those of the runs that have ended."""
    rows = []
    for job in sorted(plan, key=lambda j: (j.task, list(DESIGNS).index(j.design), j.seed, j.rate)):
        if job in kept:
            rows.append(kept[job])
        elif (runs / job.name / "measured.json").exists():
            rows.append(row_of(job, runs / job.name, small))
    with file.open("w", newline="", encoding="utf-8") as out:
        columns = max((list(row) for row in rows), key=len)
        if "rate" in columns:  # a table that was kept may have none, and gets it last
            columns.remove("rate")
            columns.insert(columns.index("seed") + 1, "rate")
        writer = csv.DictWriter(out, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return len(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    options = sorted({task.data for task in TASKS.values() if task.data is not None})
    for option in options:
        parser.add_argument(f"--{option}", metavar="DIR")
    parser.add_argument("--only", default=",".join(KNOWN), metavar="TASK,…")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no run after so many")
    parser.add_argument("--table", type=Path, metavar="FILE.csv", help="write the table of what is done, train nothing")
    parser.add_argument(
        "--rates", metavar="X,X,…", help="multiples of the recipes' learning rates, for a table of rates"
    )
    parser.add_argument("--kept", type=Path, nargs="+", default=[], metavar="FILE.csv")
    parser.add_argument("--small", action="store_true", help="few steps of two designs: whether it runs")
    parser.add_argument("--list", action="store_true", help="print the designs with their costs, train nothing")
    told = vars(parser.parse_args())
    only = told["only"].split(",")
    rates, kept = told["rates"], kept_rows(told["kept"])
    plan = list(dict.fromkeys(jobs()))
    if rates is not None:
        plan = list(jobs_of_rates([float(rate) for rate in rates.split(",")]))
    small = told["small"]
    if small:
        plan = [job for job in plan if job.design in ("baseline", "lean") and job.seed == 0]
    if told["list"]:
        for task in only:
            for name in DESIGNS:
                d = design_of(task, name)
                shape = f"{d.depth} × {d.heads} × {d.head_dim}, mlp {d.mlp}"
                print(f"{task:20}{name:12}{shape}: {d.params_body:,} {d.macs:,} κ {d.kappa_predicted:.2f}")
    elif told["table"] is not None:
        print(f"{table(plan, told['runs'], told['table'], kept, small)} runs")
    else:
        folders = {option: told[option.replace("-", "_")] for option in options}
        left = [job for job in plan if job not in kept]
        work(left, told["runs"], folders, only, time.time() + 60 * told["minutes"], small)


if __name__ == "__main__":
    main()
