"""Budget the minutes of a shrink: planned before the work from a timed forward pass, then enforced by the clock.

If the plan is too long, rules shorten it: candidates that are rarely the best are dropped first, then the test of
learning rates. Healing gets the time that is left when it begins, so a wrong forecast makes healing shorter, but not
the whole shrink longer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from leanify.carrying.free import PATCHES, TOKENS
from leanify.core.architecture import Architecture
from leanify.core.errors import DataError, LeanifyError
from leanify.core.recipe import TrainingRecipe
from leanify.core.terminal import note
from leanify.core.units import format_bytes
from leanify.data.common import choose_indices
from leanify.data.samples import Selection, Splits
from leanify.shrinking.candidates import Candidate
from leanify.shrinking.carry import MIN_TOKENS, calibration_samples, max_calibration_tokens
from leanify.shrinking.judging import CROWD
from leanify.shrinking.original import Original
from leanify.training.evaluation import first_sample
from leanify.upstream.inputs import example_inputs
from leanify.upstream.libraries import reraise_as

# candidates sorted by how often they were best before healing, on five checkpoints (rotated: on one); the last is
# dropped first
PRIORITY = ("vocabulary", "free", "narrow", "rotated", "paired", "heads", "dropped", "control")
HEALING_SHARE = 0.35  # share of the time reserved for healing
DEFAULT_MINUTES = 10.0  # time for which samples are counted without healing
SAMPLE_LIMITS = (64, 2_000)  # minimum and maximum number of samples for selection, and for the final measurement
ENOUGH_SAMPLES, CHEAP_SECONDS = 500, 10.0  # as many are taken if a pass over them takes at most so long
EVALUATED_SHARE = 0.01  # share of the time for the metric of one half of the validation samples
EMBEDDED_SHARE = 0.15  # share of the time for a teacher's embeddings
TIMED_SECONDS, TIMED_PASSES, TIMED_BATCH = 1.0, 20, 8  # limits of the forward passes that time this machine
CALIBRATION_PASSES = 4.0  # cost of moments and fits in passes of the calibration samples (encoders of 6, 12 layers)
TRIAL_PASSES = 5.0  # cost of removing one block, with the pairs made for it, in passes of the held-out quarter
VARIANTS = 3.0  # cost per block of free shapes: half of its variants, from the block on, twice
TOLERATED_MINUTES = 1.0  # of transfer are never refused: small models in examples have less than that


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

    candidates: list[Candidate]
    left_out: list[str]
    tokens: int  # that select and correct weights
    seconds: Mapping[str, float]  # by part: teacher, evaluations, carrying, healing
    carrying: Mapping[str, float]  # seconds by candidate, without the moments that all share
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
        names, parts = ", ".join(one.name for one in self.candidates), describe_seconds(self.seconds)
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


def measure_speed(original: Original) -> float:
    """Measure the original's multiplications per second here. Raises DataError if it does not run on the data."""
    # a sample of the data, before any work: a model of pictures and texts does not run on texts alone
    model = original.module
    sample = original.splits.scale_inputs(first_sample(original.splits)[0])
    attempt = f"{original.name}, a {type(model).__name__}, does not run on the samples of {original.recipe.data.path}"
    with reraise_as(attempt, DataError), torch.no_grad():
        model(**sample) if isinstance(sample, dict) else model(sample)

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = model.to(device)
    inputs = example_inputs(model, TIMED_BATCH, original.mean_length, device=device)

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
    model.to("cpu")
    return count * TIMED_BATCH * original.sample_macs / max(seconds, 1e-6)


def limit_samples(original: Original, minutes: float, forward: float) -> Splits:
    """Return as many samples as can be evaluated, and embedded by a teacher, in their shares of the time.

    ``forward`` are the seconds that the original takes for a sample.
    """
    splits, recipe, seconds = original.splits, original.recipe, 60 * (minutes or DEFAULT_MINUTES)
    in_share, in_seconds = int(EVALUATED_SHARE * seconds / forward), int(CHEAP_SECONDS / forward)
    max_samples = min(SAMPLE_LIMITS[1], max(SAMPLE_LIMITS[0], in_share, min(ENOUGH_SAMPLES, in_seconds)))
    parts: dict[str, Any] = {
        name: _select_samples(getattr(splits, name), max_samples, recipe) for name in ("validation", "test")
    }
    if recipe.data.task == "sentence-embedding" and recipe.data.samples is None:
        # weights are transferred by these samples, and neighbours counted among `CROWD`; healing takes more
        tokens = MIN_TOKENS if minutes else max_calibration_tokens(original.located)
        enough = max(CROWD, calibration_samples(original, tokens))
        max_embedded = max(enough, int(EMBEDDED_SHARE * seconds / forward)) if minutes else enough
        parts["train"] = _select_samples(splits.train, max_embedded, recipe)
        if minutes and len(parts["train"]) < len(splits.train):
            sample_text = f"{len(parts['train']):,} of {len(splits.train):,} samples"
            note(f"{sample_text}, to fit --minutes; --set data.samples=N uses more")
    return replace(splits, **parts)


def _select_samples(samples: Any, max_samples: int, recipe: TrainingRecipe) -> Any:
    if max_samples >= len(samples):
        return samples
    return Selection(samples, choose_indices(samples, max_samples, recipe.data.subset))


def plan_time(
    original: Original,
    candidates: Sequence[Candidate],
    names: Sequence[str],
    clock: Clock,
    forward: float,
    memory_bytes: int | None,
) -> TimePlan:
    """Forecast the time, and shorten the work until healing has its share: fewer tokens, then fewer candidates.

    Candidates that the user chose by ``names`` stay. ``forward`` are the seconds that the original takes for a sample.
    """
    splits, baseline = original.splits, original.located.architecture
    held_out = len(splits.validation) + (0 if splits.test is None else len(splits.test))
    texts = 0
    if original.recipe.data.task == "sentence-embedding":
        texts = held_out + len(splits.train)
    # the time used so far (reading, building, timing) counts too
    fixed_seconds = {"start": clock.seconds, "teacher": texts * forward}
    tokens = max_calibration_tokens(original.located)
    chosen = sorted(candidates, key=lambda candidate: PRIORITY.index(candidate.name))
    left_out: list[str] = []
    while True:
        samples = calibration_samples(original, tokens)
        carrying = {}
        for one in chosen:
            carrying[one.name] = carrying_passes(one, baseline, samples, original.mean_length) * forward
        seconds = {
            **fixed_seconds,
            "moments": CALIBRATION_PASSES * samples * forward,
            "carrying": sum(carrying.values()),
            "evaluations": (1 + len(chosen)) * held_out * forward,
        }
        total = sum(seconds.values())
        droppable = [candidate for candidate in chosen if candidate.name not in names]
        is_over = clock.minutes > 0 and total > (1 - HEALING_SHARE) * 60 * clock.minutes
        if is_over and tokens > MIN_TOKENS:
            tokens = max(MIN_TOKENS, tokens // 2)
            continue
        if not is_over or len(chosen) == 1 or not droppable:
            break
        left_out.append(droppable[-1].name)
        chosen.remove(droppable[-1])
    seconds["rates and healing"] = max(0.0, 60 * clock.minutes - total)
    return TimePlan([one for one in candidates if one in chosen], left_out, tokens, seconds, carrying, memory_bytes)


def carrying_passes(candidate: Candidate, baseline: Architecture, samples: float, tokens: int | None) -> float:
    """Return the cost of a transfer in forward passes per sample, without the moments that all shapes share."""
    held_out = samples / 4
    if candidate.shape is None:  # every variant of every block runs on some of the held-out samples
        blocks = sum(stage.depth for stage in baseline.stages)
        score_samples = min(held_out, max(8.0, TOKENS / (tokens or PATCHES)))
        return 2 * (CALIBRATION_PASSES * samples + blocks * VARIANTS * score_samples)
    if "rotate" in candidate.moves:  # the states of all blocks
        return samples + held_out
    stages = zip(baseline.stages, candidate.shape.stages, strict=True)
    lost_blocks = sum(max(0, old.depth - new.depth) for old, new in stages)
    return (TRIAL_PASSES * lost_blocks + 1) * held_out
