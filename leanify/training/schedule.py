"""The learning rate as a function of the step, so that a resumed run needs no schedule's state.

cosine      linear warm-up, then half a cosine over the whole run to 0, as timm's CosineLRScheduler by updates
linear      linear warm-up, then a line to 0
constant    linear warm-up, then flat
triangular  linear warm-up, flat, and a line to 0 over the last ``cooldown``
one-cycle   torch's OneCycleLR with lines: from lr/25 up to lr over the warm-up, then down to lr/250,000
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

from leanify.core.errors import RecipeError
from leanify.core.recipe import OptimSection, ScheduleSection, TrainingRecipe
from leanify.data.sampling import Order


@dataclass(frozen=True)
class Rate:
    """Learning rate by step; ``warmup`` and ``cooldown`` are in steps."""

    kind: Literal["constant", "cosine", "linear", "triangular", "one-cycle"]
    lr: float
    steps: int
    warmup: float
    warmup_lr: float
    cooldown: float

    def __call__(self, step: float) -> float:
        """The learning rate of a step, counted from 0; fractions occur while the batch grows."""
        # torch's OneCycleLR: up to lr over the warm-up, then down, never below the lowest rate
        if self.kind == "one-cycle":
            low, lowest, top = self.lr / 25, self.lr / 25e4, self.warmup - 1
            if step <= top:
                return low + (self.lr - low) * step / top
            return max(lowest, self.lr + (lowest - self.lr) * (step - top) / (self.steps - 1 - top))

        # all others: a line up, then a fall from 1 to 0
        if step < self.warmup:
            return self.warmup_lr + (self.lr - self.warmup_lr) * step / self.warmup
        fall = 1.0
        if self.kind == "cosine":
            fall = 0.5 * (1 + math.cos(math.pi * step / self.steps))
        elif self.kind == "linear":
            fall = (self.steps - step) / (self.steps - self.warmup)
        elif self.kind == "triangular" and self.cooldown:
            fall = min(1.0, (self.steps - step) / self.cooldown)
        return self.lr * fall


def steps_per_unit(schedule: ScheduleSection, steps_per_epoch: int, samples: int, tokens: int | None) -> float:
    """Steps per unit of the schedule: per epoch of ``samples``, per step, or per token."""
    if schedule.epochs is not None:
        return steps_per_epoch
    if schedule.steps is not None:
        return 1
    if tokens is None:
        raise RecipeError("[schedule] tokens counts text, and this task has none: give epochs or steps")
    return steps_per_epoch / (samples * tokens)


def ramp_steps(schedule: ScheduleSection, steps: int) -> int:
    """Over how many steps the batch grows; ``steps`` is the length of the run in steps of full batches."""
    if not 0 <= schedule.batch_ramp < 1:
        raise RecipeError(f"[schedule] batch_ramp is {schedule.batch_ramp:g}; it is a share of the run, 0 … 1")
    if schedule.steps is None:  # a share of the samples: batches that grow are half as large on average
        steps *= 2
    return round(schedule.batch_ramp * steps)


def build_rate(schedule: ScheduleSection, optim: OptimSection, unit: float) -> Rate:
    """The learning rate of a recipe. Raises RecipeError if warm-up and cool-down do not fit into the run."""
    # the three lengths in steps, which must fit together
    length = next(x for x in (schedule.epochs, schedule.steps, schedule.tokens) if x is not None)
    steps, warmup, cooldown = round(length * unit), schedule.warmup * unit, schedule.cooldown * unit
    if steps < 1:
        raise RecipeError(f"[schedule] a length of {length:g} is less than one step")
    if warmup + cooldown > steps:
        raise RecipeError(f"[schedule] warmup {schedule.warmup:g} and cooldown {schedule.cooldown:g} exceed {length:g}")
    if schedule.kind == "one-cycle" and warmup < 2:
        raise RecipeError("[schedule] a one-cycle rises over its warmup: give it one of at least two steps")
    if cooldown and schedule.kind != "triangular":
        raise RecipeError(f"[schedule] cooldown belongs to kind triangular; this is {schedule.kind}")
    return Rate(schedule.kind, optim.lr, steps, warmup, schedule.warmup_lr, cooldown)


@dataclass(frozen=True)
class Schedule:
    """The samples and the learning rate of every step of a run."""

    order: Order
    rate: Rate
    steps: int
    counts_samples: bool  # the run's length is in epochs or tokens, so the rate follows the samples seen

    def lr(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        return self.rate(self.order.position(step) if self.counts_samples else step)


def check_processes(world: int, samples: int, batch: int) -> None:
    """Raise RecipeError where processes would have nothing to do, in every step or in some."""
    if world > min(samples, batch):
        share = f"{samples} samples to train" if samples < batch else f"a batch of {batch} samples"
        raise RecipeError(
            f"{world} processes share {share}: at least one has none. Start at most {min(samples, batch)}"
        )
    if batch % world:
        lower, upper = batch // world * world, -(-batch // world) * world
        sizes = f"{upper} or {lower}" if lower else f"{upper}"
        raise RecipeError(
            f"schedule.batch_size is {batch}, which {world} processes do not divide: some would wait for others in "
            f"every step. --set schedule.batch_size={sizes}, or start another number"
        )


def build_schedule(recipe: TrainingRecipe, samples: Any, rank: int, world: int) -> Schedule:
    """The schedule of a recipe over a training split, for one of ``world`` processes. Raises RecipeError."""
    section, data = recipe.schedule, recipe.data
    check_processes(world, len(samples), section.batch_size)

    # the samples of each step; mixing takes them in pairs
    order = Order(
        len(samples),
        section.batch_size,
        recipe.run.seed,
        rank,
        world,
        recipe.run.accumulate,
        together=2 if data.mixup or data.cutmix else 1,
        lengths=getattr(samples, "lengths", None),
    )

    # the rate in steps of full batches; smaller batches at the beginning make the run longer in steps
    rate = build_rate(section, recipe.optim, steps_per_unit(section, order.steps_per_epoch, order.samples, data.length))
    order = replace(order, ramp=ramp_steps(section, rate.steps))
    counts_samples = section.steps is None
    return Schedule(order, rate, order.step_at(rate.steps) if counts_samples else rate.steps, counts_samples)
