"""The training loop: one step after another, on one CPU, one GPU, or as many processes as a launcher starts.

Hugging Face Accelerate places, casts and synchronises; optimisers, mixing of images and averaged weights are
timm's. Everything random is a function of (seed, step), and so is the learning rate (see `data.sampling` and
`schedule`). A checkpoint therefore holds weights, moments and the step, and a resumed run draws what an
unbroken one would have drawn. On one CPU with the same number of threads, weights and metrics are equal bit
for bit; rows differ in samples_per_s alone, which comes from a clock.

A step's gradient is that of the mean loss over all its targets, whatever the number of processes and passes
they are spread over: each pass is weighted by its share.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leanify.data import fingerprint
from leanify.data.samples import Batch, Inputs, Reader, Samples, Splits
from leanify.data.sampling import MODEL, STEP, Order, Passes, seed_everything, seed_mixing
from leanify.data.splits import splits_of
from leanify.errors import DataError, DirectoryError, RecipeError, TrainingError
from leanify.runs.checkpoints import WEIGHTS, Checkpoint
from leanify.runs.recipe import Recipe
from leanify.runs.run_directory import RunDirectory
from leanify.sources import lean_directory
from leanify.tasks import check_fit, task_of
from leanify.training import distillation, engine, guards, memory, sharding, teachers
from leanify.training.engine import accelerator_of, memory_of, tracked
from leanify.training.evaluation import Evaluator, first_sample
from leanify.training.interrupts import Interrupted, Interrupts
from leanify.training.preparation import build, card_of, data_of, has_weights, trainable
from leanify.training.saver import Saver
from leanify.training.schedule import ramp_of, rate_of, steps_of
from leanify.training.state import State, put_file
from leanify.training.taught import taught
from leanify.training.watcher import Silent as Silent
from leanify.training.watcher import Watcher as Watcher
from leanify.training.window import Window
from leanify.upstream.wall import wall

Metrics = dict[str, float]


class Trainer:
    """A recipe's model, data, task and optimiser, built and checked before anything is written.

    ``splits`` are the recipe's, where they are read already. ``trains``: False skips the check of a step's
    memory.
    """

    @wall("this recipe cannot be trained", RecipeError)
    def __init__(
        self, recipe: Recipe, watcher: Watcher | None = None, splits: Splits | None = None, trains: bool = True
    ) -> None:
        recipe = self.recipe = trainable(recipe)
        data, optim, schedule = recipe.data, recipe.optim, recipe.schedule
        self.accelerator = accelerator_of(recipe)
        self.main: bool = self.accelerator.is_main_process
        self.watcher: Watcher = watcher if watcher is not None and self.main else Silent()
        self.seed = recipe.run.seed

        seed_everything(MODEL, self.seed)
        self.sharded = sharding.asked(recipe)
        # only the first process holds the weights of a sharded model, but for a teacher all need them
        on_meta = self.sharded and not self.main and recipe.distill is None
        self.bare = build(recipe, on_meta=on_meta)  # the module that checkpoints name; self.model may wrap it
        names = self.broadcast(list(lean_directory.untied(self.bare)[0]) if self.main else [])
        self.splits = splits or splits_of(data_of(recipe), self.bare)
        self.skipped: set[str] = set(self.splits.skipped)
        check_fit(self.bare, self.splits)
        distill, teacher = recipe.distill, None
        if distill is not None:
            teacher = teachers.teacher_of(distill, data.task == "sentence-embedding")
            teachers.check_alike(self.bare, teacher, distill.teacher, data_of(recipe).tokenizer)
            if data.task == "sentence-embedding":
                if not self.splits.pooling:
                    self.splits = taught(self.splits, teacher, teachers.pooling_of(teacher), self.accelerator)
                distill, teacher = teachers.of_layers(distill, teacher)
        self.task = task_of(recipe, self.splits)
        world, rank = self.accelerator.num_processes, self.accelerator.process_index
        guards.check_processes(world, len(self.splits.train), schedule.batch_size)
        order = Order(len(self.splits.train), schedule.batch_size, self.seed, rank, world, recipe.run.accumulate)
        order = replace(order, lengths=getattr(self.splits.train, "lengths", None))
        self.rate = rate_of(schedule, optim, steps_of(schedule, order.steps_per_epoch, order.samples, data.length))
        together = 2 if data.mixup or data.cutmix else 1
        self.order = replace(order, ramp=ramp_of(schedule, self.rate.steps), together=together)
        self.steps = self.rate.steps if schedule.steps is not None else self.order.step_at(self.rate.steps)

        self.learner: distillation.Learner | None = None
        if distill is not None and teacher is not None:
            sample = self.splits.scaled(first_sample(self.splits)[0])
            begun = distillation.begin(distill, self.task, self.bare, teacher, sample, self.seed, self.accelerator)
            self.task, self.learner = begun, begun.learner
        self.need = memory_of(recipe, self.bare, self.accelerator, teacher) if trains else None
        guards.check_memory(self.need, self.bare, self.accelerator, order.batch_size, recipe.run.accumulate)
        average = None if optim.ema is None else engine.average_of(self.bare, optim.ema)
        maps = None if self.learner is None else self.learner.maps
        if self.sharded:
            parts = [self.bare, *(maps or []), teacher, None if average is None else average.module]
            engine.spread([part for part in parts if part is not None], recipe, self.accelerator)
        learning = self.learner or self.bare
        self.evaluator = Evaluator(recipe, self.splits, self.task, self.accelerator, self.sharded, self.skipped)
        self.model, optimizer = engine.prepared(
            learning, self.bare, maps, recipe, self.accelerator, self.sharded, self.evaluator.loss_of_one
        )
        self.average = average if average is None or self.sharded else average.to(self.accelerator.device)
        behind = None if average is None else average.module
        scaler = self.accelerator.scaler
        self.state = State(self.bare, behind, learning, maps, optimizer, scaler, names)
        self.optimizer = optimizer
        self.window = Window()
        self.saver = Saver()
        self.evaluator.try_one(self.bare)

    def broadcast(self, value: Any) -> Any:
        """Broadcast a value from the first process to all."""
        if self.accelerator.num_processes == 1:
            return value
        from accelerate.utils import broadcast_object_list

        return broadcast_object_list([value])[0]

    def lr(self, step: int) -> float:
        """The learning rate of a step, by steps if the run's length is in steps, else by samples seen."""
        return self.rate(step if self.recipe.schedule.steps is not None else self.order.position(step))

    # -- the run ----------

    def new_run(self, folder: Path) -> RunDirectory:
        """Create the run's folder, in the first process only."""
        if self.main:
            facts = fingerprint.taken(self.recipe.data, self.splits)
            card = card_of(self.recipe, self.bare, self.splits.names)
            RunDirectory.create(folder, self.recipe, card, self.splits.tokenizer, facts)
        self.accelerator.wait_for_everyone()
        return RunDirectory.open(folder)

    def fit(self, run: RunDirectory, accept_changed_data: bool = False) -> RunDirectory:
        """Train from the newest intact checkpoint to the end. Raises Interrupted and DataError."""
        if self.main:
            guards.check_data(run, self.recipe.data, self.splits, accept_changed_data, self.watcher.warned)
            guards.check_arithmetic(self.accelerator, self.watcher.warned)
        with (
            run.held() if self.main else nullcontext(),
            tracked(self.accelerator, self.recipe, run),
            engine.heap_kept(),
        ):
            try:
                self.steps_from(self.begin(run), run)
            finally:
                self.saver.wait()
            self.accelerator.wait_for_everyone()
            self.test(run)
            if self.main:
                self.told(run)
                guards.note_skipped(run, self.skipped, self.watcher.warned)
        self.accelerator.wait_for_everyone()
        return run

    def steps_from(self, start: int, run: RunDirectory) -> None:
        """Run all steps from ``start`` on, with logging, evaluation and checkpoints."""
        batches, size, world = self.batches(start), self.order.batch_size, self.order.world
        with Interrupts() as interrupts:
            for step in range(start, self.steps):
                asked = f"step {step + 1} failed; what is saved goes on with: {run.resume_line}"
                try:
                    with wall(asked, TrainingError), memory.spoken_of(asked, size, world, self.order.accumulate):
                        self.step(step, batches)
                except DataError:
                    if self.accelerator.num_processes == 1:  # with several processes the others would wait for ever
                        self.save(run, step)
                        if interrupts.asked is not None:  # it reached a worker too, which ended
                            raise self.interrupted(run, step, interrupts.asked) from None
                    raise
                self.after(run, step + 1)
                self.saver.check()
                self.watcher.stepped(step + 1)
                if self.agreed(interrupts.asked is not None, step + 1):
                    self.save(run, step + 1)
                    raise self.interrupted(run, step + 1, interrupts.asked or signal.SIGINT)

    def interrupted(self, run: RunDirectory, step: int, number: int) -> Interrupted:
        """What a signal's end raises once the checkpoint of a step is written."""
        self.saver.wait()
        return Interrupted(f"saved at step {step}; go on with: {run.resume_line}" if self.main else "", number)

    def test(self, run: RunDirectory) -> None:
        """Evaluate the best checkpoint on the test split, if there is one, and log the row."""
        best = run.best()
        if self.splits.test is None or best is None:
            return
        wrong = self.broadcast(best.broken() if self.main else None)
        with guards.raised_by_all():
            if wrong is not None:
                raise DirectoryError(
                    f"the best checkpoint, of step {best.step}, is damaged ({wrong}), so the test split is not "
                    f"evaluated; remove {best.path}, and {run.resume_line} takes the next best"
                )
            with wall(f"{best.path / WEIGHTS} cannot be read", DirectoryError):
                put_file(self.state.evaluated, best.path / WEIGHTS, self.state.names)
        self.write(run, best.step, "test", self.evaluate(self.splits.test))

    def begin(self, run: RunDirectory) -> int:
        """Restore the newest intact checkpoint, report where the run resumes, and return the next step."""
        found, complaints = self.broadcast(run.newest() if self.main else None)  # reading it all is one process's work
        for words in complaints:
            self.watcher.warned(f"{words}; going on from step {found.step if found else 0}")
        self.accelerator.wait_for_everyone()
        if found is not None:
            self.restore(found)
        if self.main:
            for words in run.forget_after(found):
                self.watcher.warned(words)
            device, processes = str(self.accelerator.device), self.accelerator.num_processes
            for words in run.note_environment(device=device, processes=processes, steps=self.steps):
                self.watcher.warned(words)
            if mended := run.mend_card(lambda recipe: card_of(recipe, self.bare, self.splits.names)):
                self.watcher.warned(mended)
        start = found.step if found is not None else 0
        self.watcher.began(self.words(), start, self.steps, self.task.metric, self.task.sign)
        self.window.began = time.perf_counter()
        if found is None:
            self.save(run, 0, self.first(run))
        return start

    def first(self, run: RunDirectory) -> Metrics | None:
        """The metrics of a model that comes with weights, before any step: they compete for the best."""
        if not has_weights(self.recipe):
            return None
        metrics = self.evaluate()
        self.write(run, 0, "validation", metrics)
        self.window.began = time.perf_counter()
        return metrics

    def told(self, run: RunDirectory) -> None:
        """Warn where no step was better than the weights that the run started from."""
        best = run.best()
        if best is not None and best.step == 0 and best.score is not None and self.steps:
            name = self.task.metric
            self.watcher.warned(
                f"no step was better than the weights that it started from ({name} {best.metrics[name]:.4g}): they "
                f"are kept as the best; a lower rate may do better, --set optim.lr={self.recipe.optim.lr / 10:.1g}"
            )

    def words(self) -> str:
        """One line: model, parameters, data, steps, devices."""
        parameters = sum(p.numel() for p in self.bare.parameters())
        where = f"{self.accelerator.num_processes} × {self.accelerator.device.type}"
        return (
            f"{self.recipe.model.source}, {parameters:,} parameters · {self.splits.description} · {self.steps:,} steps "
            f"of {self.order.batch_size} · {where}"
        )

    def batches(self, start: int) -> Iterator[Batch]:
        """This process's batches from step ``start`` on, one per forward pass."""
        passes = Passes(self.order, start, self.steps)
        pin, data = self.accelerator.device.type == "cuda", self.recipe.data
        train, ready = self.splits.train, data.prefetch
        return iter(Reader(train, passes, self.seed, data.workers, pin, skipped=self.skipped, prefetch=ready))

    def agreed(self, asked: bool, step: int) -> bool:
        """Whether any process was interrupted. Several ask only at logging steps, where they sync."""
        if self.accelerator.num_processes == 1:
            return asked
        if step % self.recipe.run.log_every:
            return False
        flag = torch.tensor([float(asked)], device=self.accelerator.device)
        return bool(self.accelerator.reduce(flag).item())

    # -- a step ----------

    def step(self, step: int, batches: Iterator[Batch]) -> None:
        """One optimiser step, by all processes together."""
        everyones = self.order.batch(step)
        targets = self.splits.train.targets
        share = (len(everyones) if targets is None else int(targets[everyones].sum())) ** -1
        full = self.accelerator.num_processes * share  # DDP and FSDP take the mean
        counted = self.order.counted(step)
        number = len(self.order.passes(step))
        weights = [full] * counted + [0.0] * (number - counted)
        passes = [self.evaluator.moved(next(batches)) for _ in range(number)]
        seed_everything(STEP, self.seed, step, self.accelerator.process_index)
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr(step)
        for (inputs, wanted), weight in zip(passes[:-1], weights, strict=False):
            with self.accelerator.no_sync(self.model):  # of FSDP there is none: gradients are added up in parts
                self.descend(step, inputs, wanted, weight)
        self.descend(step, *passes[-1], weights[-1])
        if self.recipe.optim.clip is not None:
            self.accelerator.clip_grad_norm_(self.model.parameters(), self.recipe.optim.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.average is not None:
            self.average.update(self.bare)
        self.window.samples += len(everyones)

    def descend(self, step: int, inputs: Inputs, targets: Tensor, weight: float) -> None:
        """Forward and backward of one pass."""
        seed_mixing(self.seed, step)
        loss = self.task.loss(self.model, inputs, targets)
        self.accelerator.backward(loss * weight)
        self.window.add(step + 1, loss.detach(), self.task.count(targets) if weight else 0)

    # -- after a step ----------

    def after(self, run: RunDirectory, step: int) -> None:
        """Log, evaluate and save when due; ``step`` is the number of updates done."""
        last = step == self.steps
        every = self.recipe.run.eval_every
        if last or step % self.recipe.run.log_every == 0:
            self.log(run, step)
        metrics: Metrics = {}
        if last or (step % every == 0 if every else self.order.place(step)[1] == 0):
            metrics = self.evaluate()
            self.write(run, step, "validation", metrics)
            self.window.began = time.perf_counter()
        due = step % self.recipe.run.checkpoint_every == 0 if self.recipe.run.checkpoint_every else bool(metrics)
        if due or last:
            self.save(run, step, metrics)

    def log(self, run: RunDirectory, step: int) -> None:
        """Log the mean training loss since the last row."""
        loss, targets = self.summed(run)
        if not targets:
            return
        speed = self.window.samples / max(time.perf_counter() - self.window.began, 1e-9)
        self.window.clear()
        row = {"loss": loss / targets, "lr": self.lr(step - 1)}
        self.write(run, step, "train", row | {"samples_per_s": round(speed, 1)})

    def summed(self, run: RunDirectory) -> tuple[float, float]:
        """Summed loss and targets of all processes since the last row. Raises where a loss was not finite."""
        mine = torch.tensor(self.window.read(), dtype=torch.float64, device=self.accelerator.device)
        everyones = self.accelerator.gather(mine[None])
        broken = everyones[:, 2].min().item()
        if math.isfinite(broken):
            self.saver.wait()
            last = max((found.step for found in run.checkpoints()), default=0)
            raise TrainingError(
                f"the loss of step {int(broken)} is not finite; the last good checkpoint is that of step {last} in "
                f"{run.path}. A smaller optim.lr, a longer schedule.warmup, optim.clip=1.0 or run.precision=bf16 "
                "(fp32) usually help"
            )
        loss, targets = everyones[:, :2].sum(0).tolist()
        return loss, targets

    def write(self, run: RunDirectory, step: int, split: str, metrics: Mapping[str, float]) -> None:
        if self.main:
            row = {"step": step, "epoch": round(self.order.epochs(step), 4), "split": split, **metrics}
            run.append(row)
            self.watcher.logged(row)
            if self.recipe.run.trackers:
                self.accelerator.log({f"{split}/{name}": value for name, value in metrics.items()}, step=step)

    def evaluate(self, split: Samples | None = None) -> Metrics:
        """Metrics over a split, else over ``eval_batches`` of validation; of averaged weights if any."""
        return self.evaluator.metrics(self.state.evaluated, split)

    # -- state ----------

    def save(self, run: RunDirectory, step: int, metrics: Mapping[str, float] | None = None) -> None:
        """Write a checkpoint in the background, unless the loss is not finite any more."""
        loss, targets = self.summed(run)
        if not (self.main or self.sharded):
            return
        score = self.task.sign * metrics[self.task.metric] if metrics else None
        kept = {name: value for name, value in (metrics or {}).items() if name != "samples_per_s"}
        self.saver.wait()
        rows, window = run.length, [loss, targets, self.window.samples]
        if self.sharded:
            rest = {"window": window}
            run.save(step, self.state.weights(), rest, score, kept, rows, parts=self.state.parts())
            run.prune(self.recipe.run.keep) if self.main else None
            return

        def write(tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
            run.save(step, tensors, state, score, kept, rows)
            run.prune(self.recipe.run.keep)

        self.saver.save(write, self.state.weights(), self.state.rest(window))

    def restore(self, found: Checkpoint) -> None:
        """Weights, moments, averages and sums as they were at a checkpoint."""
        with guards.raised_by_all(), wall(f"the checkpoint {found.path} cannot be restored", DirectoryError):
            loss, targets, samples = self.state.restore(found)
        self.window = Window(samples=int(samples))
        if self.main:
            self.window.loss, self.window.targets = loss, targets
