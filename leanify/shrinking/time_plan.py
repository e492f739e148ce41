"""Budget the minutes of a shrink: planned before the work from a timed forward pass, then enforced by the clock.

If the plan is too long, rules shorten it: candidates that are rarely the best are dropped first, then the test of
learning rates. Healing gets the time that is left when it begins, so a wrong forecast makes healing shorter, but not
the whole shrink longer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from leanify.core.architecture import Architecture
from leanify.core.errors import LeanifyError
from leanify.core.recipe import TrainingRecipe
from leanify.core.units import format_bytes
from leanify.data.samples import Splits
from leanify.profiling import counting
from leanify.shrinking.calibration_batches import MAX_SAMPLES, TOKENS
from leanify.shrinking.designs import Shape
from leanify.sources import find, weights
from leanify.training.master_weights import to_master_weights
from leanify.training.preparation import model_on_meta
from leanify.upstream.inputs import example_inputs

# candidates sorted by how often they were best before healing, on five checkpoints (rotated: on one); the last is
# dropped first
PRIORITY = ("free", "narrow", "rotated", "paired", "heads", "dropped", "control")
HEALING_SHARE = 0.35  # share of the time reserved for healing
EVALUATED_SHARE = 0.01  # share of the time for the metric of one half of the validation samples
EMBEDDED_SHARE = 0.15  # share of the time for a teacher's embeddings
TIMED_SECONDS, TIMED_PASSES, TIMED_BATCH = 1.0, 20, 8  # limits of the forward passes that time this machine
CALIBRATION_PASSES = 4.0  # cost of moments and fits in passes of the calibration samples (`teacher.PASSES`)
TRIAL_PASSES = 5.0  # cost of removing one block in passes of the held-out quarter (`teacher.TRIALS`)
VARIANTS = 3.0  # cost per block of free shapes: half of its variants, from the block on, twice
FREE_TOKENS, PATCHES = 1_024, 50  # tokens that score variants; tokens of an image
TOLERATED_MINUTES = 1.0  # of transfer are never refused: small models in examples have less than that
STEP_PASSES = 3.0  # cost of a training step in forward passes: a backward pass costs two


@dataclass
class Clock:
    """The seconds that a command may take, summed over all its starts; no limit at 0 minutes."""

    minutes: float
    seconds_before: float = 0.0
    began: float = field(default_factory=time.perf_counter)

    @property
    def seconds(self) -> float:
        """The seconds used so far."""
        return self.seconds_before + time.perf_counter() - self.began

    @property
    def left(self) -> float:
        return max(0.0, 60 * self.minutes - self.seconds)

    def is_over(self, share: float) -> bool:
        """Whether only this share of the minutes, or less, is left."""
        return self.minutes > TOLERATED_MINUTES and self.left <= share * 60 * self.minutes


@dataclass(frozen=True)
class TimePlan:
    """The forecast of a shrink, in seconds, and the candidates that fit into its minutes."""

    shapes: list[Shape]
    left_out: list[str]
    seconds: Mapping[str, float]  # by part: teacher, evaluations, carrying, healing
    memory_bytes: int | None

    @property
    def description(self) -> str:
        memory = "" if self.memory_bytes is None else f"; a step of healing takes {format_bytes(self.memory_bytes)}"
        return f"plan: {sum(self.seconds.values()) / 60:.1f} minutes ({describe_seconds(self.seconds)}){memory}"

    def check_minutes(self, minutes: float) -> None:
        """Raise LeanifyError, with minutes that suffice, if not even the remaining candidates fit into these."""
        total = sum(self.seconds.values()) / 60
        if not minutes or total - self.seconds["start"] / 60 <= max(minutes, TOLERATED_MINUTES):
            return
        # with more minutes, more samples are embedded and evaluated
        enough = math.ceil(minutes + (total - minutes) / (1 - 2 * EMBEDDED_SHARE))
        names, parts = ", ".join(shape.name for shape in self.shapes), describe_seconds(self.seconds)
        raise LeanifyError(
            f"--minutes {minutes:g} are too few: {names} would take {total:.1f} before any healing ({parts}); give "
            f"--minutes {enough}, or --minutes 0 to heal nothing and take what it takes"
        )

    def to_json(self) -> dict[str, Any]:
        minutes = {name: seconds / 60 for name, seconds in self.seconds.items()}
        return {"minutes": minutes, "left_out": self.left_out, "memory_bytes": self.memory_bytes}


def describe_seconds(seconds: Mapping[str, float]) -> str:
    """Describe the minutes of each part that takes at least a second."""
    return ", ".join(f"{name} {value / 60:.1f}" for name, value in seconds.items() if value >= 1)


def mean_tokens(recipe: TrainingRecipe, splits: Splits) -> int | None:
    """Return the mean length of the data's texts, or the recipe's length for images and samples of one length."""
    lengths = getattr(splits.validation, "lengths", None)
    return recipe.data.length if lengths is None else max(2, round(float(lengths.mean())))


def sample_macs(recipe: TrainingRecipe, splits: Splits) -> float:
    """Return the multiplications of one forward pass of a sample of the data."""
    return float(counting.count(model_on_meta(recipe.model), mean_tokens(recipe, splits)).macs)


def measure_speed(recipe: TrainingRecipe, splits: Splits) -> float:
    """Measure the multiplications per second of the original on this machine, on random samples."""
    model = weights.load(find.section_source(recipe.model))
    to_master_weights(model)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = model.to(device).eval()
    inputs = example_inputs(model, TIMED_BATCH, mean_tokens(recipe, splits), device=device)

    # the first pass warms up; the mean of the others has the share of the machine that other processes leave
    count = 0
    with torch.no_grad():
        model(**inputs)
        began = time.perf_counter()
        while count < TIMED_PASSES and time.perf_counter() - began < TIMED_SECONDS:
            model(**inputs)
            if device.type == "cuda":
                torch.cuda.synchronize()
            count += 1
    seconds = time.perf_counter() - began
    return count * TIMED_BATCH * sample_macs(recipe, splits) / max(seconds, 1e-6)


def plan_time(
    recipe: TrainingRecipe,
    splits: Splits,
    baseline: Architecture,
    shapes: Sequence[Shape],
    named: Sequence[str],
    clock: Clock,
    macs_per_second: float,
    memory_bytes: int | None,
) -> TimePlan:
    """Forecast the time, and drop candidates until healing has its share; the user's ``named`` candidates stay."""
    forward = sample_macs(recipe, splits) / macs_per_second  # seconds per sample
    evaluated = len(splits.validation) + (0 if splits.test is None else len(splits.test))
    embedded = 0
    if recipe.data.task == "sentence-embedding":
        embedded = evaluated + len(splits.train)
    calibrated = calibration_samples(recipe, splits)
    # the time used so far (reading, building, timing) counts too
    moments = CALIBRATION_PASSES * calibrated * forward
    fixed = {"start": clock.seconds, "teacher": embedded * forward, "moments": moments}

    chosen = sorted(shapes, key=lambda shape: PRIORITY.index(shape.name))
    left_out: list[str] = []
    while True:
        passes = [carrying_passes(shape, baseline, calibrated, mean_tokens(recipe, splits)) for shape in chosen]
        carrying = sum(passes) * forward
        evaluations = (1 + len(chosen)) * evaluated * forward
        total = sum(fixed.values()) + carrying + evaluations
        droppable = [shape for shape in chosen if shape.name not in named]
        is_over = clock.minutes > 0 and total > (1 - HEALING_SHARE) * 60 * clock.minutes
        if not is_over or len(chosen) == 1 or not droppable:
            break
        left_out.append(droppable[-1].name)
        chosen.remove(droppable[-1])
    healing = max(0.0, 60 * clock.minutes - total)
    seconds = {**fixed, "carrying": carrying, "evaluations": evaluations, "rates and healing": healing}
    ordered = [shape for shape in shapes if shape in chosen]
    return TimePlan(ordered, left_out, seconds, memory_bytes)


def calibration_samples(recipe: TrainingRecipe, splits: Splits) -> int:
    """Estimate the number of samples that select and measure during transfer."""
    tokens = mean_tokens(recipe, splits)
    count = MAX_SAMPLES if not tokens else min(MAX_SAMPLES, -(-TOKENS // tokens))
    return min(max(32, count), len(splits.train))


def carrying_passes(shape: Shape, baseline: Architecture, calibrated: float, tokens: int | None) -> float:
    """Return the cost of a transfer in forward passes per sample, without the moments that all shapes share."""
    held_out = calibrated / 4
    if shape.design is None:  # every variant of every block runs on some of the held-out samples
        blocks = sum(stage.depth for stage in baseline.stages)
        scored = min(held_out, max(8.0, FREE_TOKENS / (tokens or PATCHES)))
        return 2 * (CALIBRATION_PASSES * calibrated + blocks * VARIANTS * scored)
    if "rotate" in shape.moves:  # the states of all blocks
        return calibrated + held_out
    lost_blocks = 0
    for old, new in zip(baseline.stages, shape.design.architecture.stages, strict=True):
        lost_blocks += max(0, old.depth - new.depth)
    return (TRIAL_PASSES * lost_blocks + 1) * held_out
