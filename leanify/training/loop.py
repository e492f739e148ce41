"""The training loop: one step after another, on one CPU, one GPU, or as many processes as a launcher starts.

Hugging Face Accelerate places, casts and synchronises; optimisers, mixing of images and averaged weights are
timm's. Everything random is a function of (seed, step), and so is the learning rate (see `data.sampling` and
`schedule`). A checkpoint therefore holds weights, moments and the step, and a resumed run draws the same
numbers as an unbroken one. On one CPU with the same number of threads, weights and metrics are equal bit
for bit; rows differ in samples_per_s alone, which comes from a clock.

A step follows the gradient of the mean loss over all its targets, for any number of processes and passes: each
pass is weighted by its share of the targets.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from leanify.core.errors import DataError, DirectoryError, RecipeError, TrainingError, raised_by_all
from leanify.core.recipe import Recipe
from leanify.data.samples import Batch, Inputs, Samples, Splits
from leanify.data.sampling import MODEL, STEP, seed_everything, seed_mixing
from leanify.runs.run_directory import RunDirectory
from leanify.sources import lean_directory
from leanify.training import memory, records, sharding
from leanify.training.callbacks import Callback
from leanify.training.distillation import build_task
from leanify.training.engine import (
    build_accelerator,
    build_optimizer,
    check_arithmetic,
    disable_malloc_trim,
    track_metrics,
)
from leanify.training.evaluation import Evaluator
from leanify.training.interrupts import Interrupted, Interrupts
from leanify.training.master_weights import to_master_weights
from leanify.training.preparation import build_data, build_model, has_weights, prepare_model, trainable
from leanify.training.schedule import build_schedule
from leanify.training.state import Saver, Window
from leanify.training.teachers import add_targets, build_teacher
from leanify.upstream.libraries import reraise_as

Metrics = dict[str, float]


class Trainer:
    """A recipe's model, data, task and optimiser, built and checked before anything is written.

    ``model``, ``splits`` and ``teacher`` are the recipe's, if they are in memory already: a model with weights, which
    is trained in place; the data; the teacher.
    """

    @reraise_as("this recipe cannot be trained", RecipeError)
    def __init__(
        self,
        recipe: Recipe,
        callback: Callback | None = None,
        *,
        model: nn.Module | None = None,
        splits: Splits | None = None,
        teacher: nn.Module | None = None,
    ) -> None:
        recipe = self.recipe = trainable(recipe)
        self.accelerator = build_accelerator(recipe)
        self.main: bool = self.accelerator.is_main_process
        self.callback = callback if callback is not None and self.main else Callback()
        self.seed = recipe.run.seed
        world, rank = self.accelerator.num_processes, self.accelerator.process_index

        # the model; of a sharded one only the first process holds weights, unless a teacher needs them in all
        seed_everything(MODEL, self.seed)
        self.is_sharded = sharding.is_requested(recipe)
        on_meta = self.is_sharded and not self.main and recipe.distill is None
        self.starts_from_weights = model is not None or has_weights(recipe)
        self.unwrapped_model = build_model(recipe, on_meta) if model is None else prepare_model(recipe, model)
        to_master_weights(self.unwrapped_model)
        names = self.broadcast(list(lean_directory.untie_tensors(self.unwrapped_model)[0]) if self.main else [])

        # the data in the model's format, and the teacher
        data = splits or build_data(recipe, self.unwrapped_model)
        if data.decoding:  # a run keeps how its pictures were decoded
            recipe = self.recipe = replace(recipe, data=replace(recipe.data, **data.decoding))
        taught = build_teacher(recipe, self.unwrapped_model, teacher)

        # the memory of a step, predicted before a teacher embeds and before anything is placed on the device
        called_teacher = taught.model if taught is not None and taught.is_called else None
        tokens, passes_before = memory.longest_sample(data, recipe.data.length), recipe.run.accumulate
        recipe, self.need = memory.fit_memory(recipe, self.unwrapped_model, self.accelerator, called_teacher, tokens)
        self.recipe = recipe
        if recipe.run.accumulate != passes_before:
            self.callback.on_warning(
                f"a batch of {recipe.schedule.batch_size:,} does not fit in memory at once: each step takes it in "
                f"{recipe.run.accumulate:,} passes (run.accumulate)"
            )

        # the order of samples and the schedule
        self.schedule = build_schedule(recipe, data.train, rank, world)
        self.order, self.steps = self.schedule.order, self.schedule.steps

        # the targets that a teacher gives, and the loss
        self.splits = add_targets(data, taught, self.accelerator)
        self.skipped_names = set(self.splits.skipped)  # names of samples that could not be read
        self.task = build_task(recipe, self.splits, self.unwrapped_model, taught, self.accelerator)

        # the evaluator; the wrapped model, averaged weights, and everything that a checkpoint holds
        self.evaluator = Evaluator(recipe, self.splits, self.task, self.accelerator, self.skipped_names)
        self.state, self.model, self.ema = build_optimizer(
            recipe, self.unwrapped_model, names, self.task, self.accelerator, self.evaluator.sample_loss
        )
        self.optimizer = self.state.optimizer

        # the log's window and the thread that writes checkpoints
        self.window, self.saver = Window(), Saver()

        # one sample through the model, so that a misfit is reported before a folder is created
        self.evaluator.try_sample(self.unwrapped_model)

    def broadcast(self, value: Any) -> Any:
        """Broadcast a value from the first process to all."""
        from accelerate.utils import broadcast_object_list

        return broadcast_object_list([value])[0]

    # -- the run ----------

    def new_run(self, folder: Path) -> RunDirectory:
        """Create the run's folder, in the first process only."""
        if self.main:
            records.create_run(folder, self.recipe, self.unwrapped_model, self.splits)
        self.accelerator.wait_for_everyone()
        return RunDirectory.open(folder)

    def fit(self, run: RunDirectory, accept_changed_data: bool = False, until: int | None = None) -> RunDirectory:
        """Train from the newest intact checkpoint to the end, or ``until`` a step and its checkpoint.

        Raises Interrupted and DataError.
        """
        if self.main:
            records.check_data(run, self.recipe.data, self.splits, accept_changed_data, self.callback.on_warning)
            check_arithmetic(self.accelerator, self.callback.on_warning)

        # the lock tells other processes that the run is in progress; the first process holds it for all
        with (
            run.lock() if self.main else nullcontext(),
            track_metrics(self.accelerator, self.recipe, run),
            disable_malloc_trim(),
        ):
            try:
                self.steps_from(self.restore_newest(run), run, self.steps if until is None else until)
                if until is not None:
                    self.save(run, until)
            finally:
                self.saver.wait()  # the last checkpoint is complete even after an error
            self.accelerator.wait_for_everyone()
            if until is not None:
                return run

            # the test split judges the best checkpoint, which is on disk now
            self.test(run)
            if self.main:
                best, metric = run.best(), self.task.metric
                if best is not None and best.step == 0 and best.score is not None and self.steps:
                    value, rate = best.metrics[metric], self.recipe.optim.lr / 10
                    self.callback.on_warning(
                        f"no step was better than the weights that it started from ({metric} {value:.4g}): they are "
                        f"kept as the best; a lower rate may do better, --set optim.lr={rate:.1g}"
                    )
                records.note_skipped(run, self.skipped_names, self.callback.on_warning)
        self.accelerator.wait_for_everyone()
        return run

    def steps_from(self, start: int, run: RunDirectory, end: int) -> None:
        """Run the steps from ``start`` to ``end``, with logging, evaluation and checkpoints."""
        batches, size, world = self.batches(start), self.order.batch_size, self.order.world
        with Interrupts() as interrupts:
            for step in range(start, end):
                # the update; any failure names the command that resumes the run
                failure = f"step {step + 1} failed; continue from the last checkpoint with: {run.resume_line}"
                with_advice = memory.explain_out_of_memory(failure, size, world, self.order.accumulate)
                try:
                    with reraise_as(failure, TrainingError), with_advice:
                        self.step(step, batches)
                except DataError:
                    # save before an unreadable sample ends the run; of several processes the others would wait
                    if self.accelerator.num_processes == 1:
                        self.save(run, step)
                        if interrupts.signal is not None:  # the signal ended the worker that reads samples, too
                            raise self.interruption(run, step, interrupts.signal) from None
                    raise

                # log, evaluate and save if due; a failure of the writing thread is raised here
                self.after_step(run, step + 1)
                self.saver.check()
                self.callback.on_step_end(step + 1)

                # a signal ends the run after the step, with a checkpoint
                if self.is_interrupted(interrupts.signal is not None, step + 1):
                    self.save(run, step + 1)
                    raise self.interruption(run, step + 1, interrupts.signal or signal.SIGINT)

    def interruption(self, run: RunDirectory, step: int, number: int) -> Interrupted:
        """The exception for a run that a signal ended, once the checkpoint of its step is written."""
        self.saver.wait()
        return Interrupted(f"saved at step {step}; continue with: {run.resume_line}" if self.main else "", number)

    def test(self, run: RunDirectory) -> None:
        """Evaluate the best checkpoint on the test split, if there is one, and log the row."""
        best = run.best()
        if self.splits.test is None or best is None:
            return

        # the first process verifies the files, and all raise the same error or load the same weights
        damage = self.broadcast(best.find_damage() if self.main else None)
        with raised_by_all():
            if damage is not None:
                raise DirectoryError(
                    f"the best checkpoint, from step {best.step}, is damaged ({damage}), so the test split is not "
                    f"evaluated; remove {best.path}, and {run.resume_line} takes the next best"
                )
            self.state.load_weights(best)
        self.write(run, best.step, "test", self.evaluate(self.splits.test))

    def restore_newest(self, run: RunDirectory) -> int:
        """Restore the newest intact checkpoint, report where the run resumes, and return the next step."""
        # one process reads and verifies the checkpoints, all restore the newest intact one
        checkpoint, complaints = self.broadcast(run.newest() if self.main else None)
        start = 0 if checkpoint is None else checkpoint.step
        for complaint in complaints:
            self.callback.on_warning(f"{complaint}; continuing from step {start}")
        self.accelerator.wait_for_everyone()
        if checkpoint is not None:
            with raised_by_all(), reraise_as(f"the checkpoint {checkpoint.path} cannot be restored", DirectoryError):
                loss, targets, samples = self.state.restore(checkpoint)
            # the sums of the log's open row belong to the first process, so that they are counted once
            self.window = Window(samples=int(samples))
            if self.main:
                self.window.loss, self.window.targets = loss, targets

        # remove later rows and checkpoints; record this process's environment
        if self.main:
            device, processes = str(self.accelerator.device), self.accelerator.num_processes
            warnings = run.discard_later_rows(checkpoint)
            warnings += run.note_environment(device=device, processes=processes, steps=self.steps)
            if message := run.mend_card(
                lambda recipe: records.describe_model(recipe, self.unwrapped_model, self.splits.names)
            ):
                warnings.append(message)
            for warning in warnings:
                self.callback.on_warning(warning)

        self.callback.on_train_begin(self.summary(), start, self.steps, self.task.metric, self.task.sign)
        self.window.began = time.perf_counter()
        if checkpoint is None:  # weights that a model comes with compete for the best
            self.save(run, 0, self.validate(run, 0) if self.starts_from_weights else None)
        return start

    def summary(self) -> str:
        """One line: model, parameters, data, steps, devices."""
        parameters = sum(p.numel() for p in self.unwrapped_model.parameters())
        where = f"{self.accelerator.num_processes} × {self.accelerator.device.type}"
        return (
            f"{self.recipe.model.source}, {parameters:,} parameters · {self.splits.description} · {self.steps:,} steps "
            f"of {self.order.batch_size} · {where}"
        )

    def batches(self, start: int) -> Iterator[Batch]:
        """This process's batches from step ``start`` on, one per forward pass."""
        passes = chain.from_iterable(map(self.order.passes, range(start, self.steps)))
        return iter(self.evaluator.reader(self.splits.train, passes))

    def is_interrupted(self, is_requested: bool, step: int) -> bool:
        """Whether any process was interrupted. Several processes check only at logging steps, which they share."""
        if self.accelerator.num_processes == 1:
            return is_requested
        if step % self.recipe.run.log_every:
            return False
        flag = torch.tensor([float(is_requested)], device=self.accelerator.device)
        return bool(self.accelerator.reduce(flag).item())

    # -- a step ----------

    def step(self, step: int, batches: Iterator[Batch]) -> None:
        """One optimiser step, by all processes together."""
        # the weight of each pass in the mean loss over all targets of all processes; DDP and FSDP take the mean
        indices = self.order.batch(step)
        targets = self.splits.train.targets
        count = len(indices) if targets is None else int(targets[indices].sum())
        weight = self.accelerator.num_processes * count**-1
        counted_passes = self.order.counted(step)
        num_passes = len(self.order.passes(step))
        weights = [weight] * counted_passes + [0.0] * (num_passes - counted_passes)

        # forward and backward; gradients are exchanged after the last pass alone
        passes = [self.evaluator.to_device(next(batches)) for _ in range(num_passes)]
        seed_everything(STEP, self.seed, step, self.accelerator.process_index)
        for group in self.optimizer.param_groups:
            group["lr"] = self.schedule.lr(step)
        for batch, weight in zip(passes[:-1], weights, strict=False):
            with self.accelerator.no_sync(self.model):  # does nothing for FSDP: gradients are added up in parts
                self.descend(step, *batch, weight)
        self.descend(step, *passes[-1], weights[-1])

        # update
        if self.recipe.optim.clip is not None:
            self.accelerator.clip_grad_norm_(self.model.parameters(), self.recipe.optim.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.ema is not None:
            self.ema.update(self.unwrapped_model)
        self.window.samples += len(indices)

    def descend(self, step: int, inputs: Inputs, targets: Tensor, weight: float) -> None:
        """Forward and backward of one pass."""
        seed_mixing(self.seed, step)
        loss = self.task.loss(self.model, inputs, targets)
        self.accelerator.backward(loss * weight)
        self.window.add(step + 1, loss.detach(), self.task.count(targets) if weight else 0)

    # -- after a step ----------

    def after_step(self, run: RunDirectory, step: int) -> None:
        """Log, evaluate and save when due; ``step`` is the number of updates done."""
        section, last = self.recipe.run, step == self.steps
        if last or step % section.log_every == 0:
            loss, targets = self.summed_loss(run)
            if targets:
                speed = self.window.samples / max(time.perf_counter() - self.window.began, 1e-9)
                self.window.clear()
                row = {"loss": loss / targets, "lr": self.schedule.lr(step - 1), "samples_per_s": round(speed, 1)}
                self.write(run, step, "train", row)

        # evaluate at the recipe's interval, or at the end of each epoch
        evaluation_due = self.order.place(step)[1] == 0
        if section.eval_every:
            evaluation_due = step % section.eval_every == 0
        metrics = self.validate(run, step) if evaluation_due or last else None

        # save at the recipe's interval, or after each evaluation
        save_due = metrics is not None
        if section.checkpoint_every:
            save_due = step % section.checkpoint_every == 0
        if save_due or last:
            self.save(run, step, metrics)

    def validate(self, run: RunDirectory, step: int) -> Metrics:
        """Evaluate and log the row; the log's speed excludes this time."""
        metrics = self.evaluate()
        self.write(run, step, "validation", metrics)
        self.window.began = time.perf_counter()
        return metrics

    def summed_loss(self, run: RunDirectory) -> tuple[float, float]:
        """Loss and targets of all processes since the last row. Raises TrainingError if a loss was not finite."""
        # (3,) of this process
        local = torch.tensor(self.window.read(), dtype=torch.float64, device=self.accelerator.device)
        sums = self.accelerator.gather(local[None])  # (processes, 3): loss, targets, first step of infinite loss
        first_broken = sums[:, 2].min().item()
        if math.isfinite(first_broken):
            self.saver.wait()
            last = max((checkpoint.step for checkpoint in run.checkpoints()), default=0)
            raise TrainingError(
                f"the loss of step {int(first_broken)} is not finite; the last good checkpoint is from step {last} "
                f"in {run.path}. A smaller optim.lr, a longer schedule.warmup, optim.clip=1.0 or run.precision=bf16 "
                "(fp32) usually help"
            )
        loss, targets = sums[:, :2].sum(0).tolist()
        return loss, targets

    def write(self, run: RunDirectory, step: int, split: str, metrics: Mapping[str, float]) -> None:
        if self.main:
            row = {"step": step, "epoch": round(self.order.epochs(step), 4), "split": split, **metrics}
            run.append(row)
            self.callback.on_log(row)
            if self.recipe.run.trackers:
                self.accelerator.log({f"{split}/{name}": value for name, value in metrics.items()}, step=step)

    def evaluate(self, split: Samples | None = None) -> Metrics:
        """Metrics over a split, by default ``eval_batches`` of validation; with averaged weights if there are any."""
        return self.evaluator.metrics(self.state.eval_model, split)

    # -- state ----------

    def save(self, run: RunDirectory, step: int, metrics: Mapping[str, float] | None = None) -> None:
        """Write a checkpoint in the background, unless the loss is not finite any more."""
        loss, targets = self.summed_loss(run)
        if not (self.main or self.is_sharded):
            return

        # the score is higher for better checkpoints; the speed does not belong to a checkpoint
        score = self.task.sign * metrics[self.task.metric] if metrics else None
        saved_metrics = {name: value for name, value in (metrics or {}).items() if name != "samples_per_s"}
        self.saver.wait()
        rows, window = run.length, [loss, targets, self.window.samples]

        # every process with a sharded model writes its own rows, in this thread
        if self.is_sharded:
            rest = {"window": window}
            run.save(step, self.state.weights(), rest, score, saved_metrics, rows, shards=self.state.shards())
            run.prune(self.recipe.run.keep) if self.main else None
            return

        # one process writes full tensors in the background
        def write(tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
            run.save(step, tensors, state, score, saved_metrics, rows)
            run.prune(self.recipe.run.keep)

        self.saver.save(write, self.state.weights(), self.state.rest(window))
