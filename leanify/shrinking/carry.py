"""Carry the original's weights into a candidate's shape, by calibration data, and measure the quality that is left."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from leanify.carrying.free import passes_of_free, transfer_free
from leanify.carrying.rotation import rotate
from leanify.carrying.teacher import CalibratedTeacher
from leanify.carrying.transfer import Step, TransferResult, transfer_weights
from leanify.core.architecture import Architecture
from leanify.core.terminal import note, progress
from leanify.core.units import format_forecast
from leanify.profiling import counting
from leanify.reshaping import surgery
from leanify.shrinking.calibration_batches import calibration_batches
from leanify.shrinking.candidates import Candidate
from leanify.shrinking.judging import Quality, judge
from leanify.shrinking.original import Original
from leanify.sources import find, lean_directory
from leanify.sources.weights import is_headless
from leanify.training.master_weights import round_weights, to_master_weights, to_stored_weights
from leanify.upstream.on_disk import deep_copy

MEASURING = 4  # every fourth batch measures the damage


@dataclass(frozen=True)
class Carried:
    """A candidate with the original's weights.

    model    in memory, in 32 bits; None if only its directory holds it
    place    its lean directory, from which a shrink continues after a kill
    damage   how far its outputs are from the original's, in ``unit``, after the ``steps``
    params   its parameters, and ``macs`` its multiplications for one sample
    shape    what its design does not say: the sizes of blocks that differ
    """

    candidate: Candidate
    model: nn.Module | None
    place: Path
    damage: float
    unit: str
    steps: Sequence[str]
    quality: Quality
    params: int
    macs: float
    shape: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.candidate.name

    def load(self) -> nn.Module:
        """Return the model, in 32 bits and in eval mode; it must not be changed."""
        if self.model is not None:
            return self.model
        model = find.load(self.place)
        to_master_weights(model)
        return model

    def to_finding(self) -> dict[str, Any]:
        facts = {"damage": self.damage, "unit": self.unit, "steps": list(self.steps)}
        shape = {"shape": dict(self.shape)} if self.shape else {}
        return {**facts, **shape, **self.quality.to_finding(), "params": self.params, "macs": self.macs}

    @staticmethod
    def from_finding(candidate: Candidate, place: Path, finding: Mapping[str, Any]) -> Carried:
        facts = {key: finding[key] for key in ("damage", "unit", "steps", "params", "macs")}
        quality = Quality.from_finding(finding)
        return Carried(candidate, None, place, quality=quality, shape=finding.get("shape", {}), **facts)

    @property
    def architecture(self) -> Architecture:
        return self.candidate.shape or Architecture.from_json(self.shape["architecture"])

    def shell(self, original: Original) -> nn.Module:
        """The model on meta."""
        return original.reshape(self.architecture)


def calibrate(original: Original, several: Sequence[Candidate], tokens: int) -> CalibratedTeacher:
    """Return the original with its outputs on calibration data, and the statistics of each block for the candidates."""
    recipe, splits = original.recipe, original.evaluator.splits
    torch.manual_seed(recipe.run.seed)
    batches = calibration_batches(original, splits, tokens)
    # three of four batches select and correct, the others measure the damage
    choosing = [batch for i, batch in enumerate(batches) if i % MEASURING != 1]
    teacher = CalibratedTeacher(original.module, choosing, batches[1::MEASURING], is_headless(original.module))
    shapes = [one.shape for one in several if one.shape and "rotate" not in one.moves]
    pair_shapes = [one.shape for one in several if one.shape and "pair" in one.moves]
    for words in teacher.warnings(shapes):
        note(f"warning: {words}")

    # how long it takes, and then the heads and units to keep
    began = time.perf_counter()
    unit = teacher.outputs.unit
    passes = teacher.forecast(shapes) + (passes_of_free(teacher) if any(one.shape is None for one in several) else 0)
    forecast = format_forecast(passes * (time.perf_counter() - began))
    count = f"{len(several)} shape{'s' * (len(several) != 1)}"
    note(
        f"transferring weights to {count} by {teacher.tokens:,} tokens, {len(batches)} batches, damage as {unit}; "
        f"{forecast} on this machine"
    )
    with progress("what each block needs", sum(len(stage.blocks) for stage in teacher.located_model.stages)) as advance:
        teacher.prepare(shapes, advance, pair_shapes)
    return teacher


def carry(
    original: Original,
    teacher: CalibratedTeacher | None,
    candidate: Candidate,
    place: Path,
    title: str,
    name: str,
    on_step: Callable[[Step], None] = lambda step: None,
) -> Carried:
    """Return the candidate with the original's weights, written to ``place`` and judged.

    Without a ``teacher`` its blocks are the original's. ``title`` heads its README, and ``name`` is its name there.
    Raises LeanifyError if the weights cannot be carried.
    """
    if teacher is None:  # its blocks are the original's
        result = TransferResult(deep_copy(original.module), [Step("fewer tokens", "", (), 0.0)], "relative error", {})
    else:
        result = _transfer(teacher, candidate, on_step)
    model = result.model
    round_weights(model, original.dtype)  # measure the weights as they are written
    save(model, original, place, title, name)
    params, macs, shape = _costs(original, candidate, model)
    quality = judge(original, model)
    steps = [step.description for step in result.steps]
    return Carried(candidate, model, place, result.damage, result.unit, steps, quality, params, macs, shape)


def _transfer(teacher: CalibratedTeacher, candidate: Candidate, on_step: Callable[[Step], None]) -> TransferResult:
    with progress(f"transferring weights to {candidate.name}", None):
        if candidate.shape is None:
            return transfer_free(teacher, candidate.max_params, on_step)
        if "rotate" in candidate.moves:
            return rotate(teacher, candidate.shape, on_step)
        return transfer_weights(teacher, candidate.shape, on_step, candidate.moves)


def save(model: nn.Module, original: Original, place: Path, title: str, name: str) -> None:
    """Write a model of 32 bits as a lean directory, in the type of the checkpoint's weights."""
    to_stored_weights(model, original.dtype)
    lean_directory.save(model, place, title=title, name=name)
    to_master_weights(model)


def _costs(original: Original, candidate: Candidate, model: nn.Module) -> tuple[int, float, dict[str, Any]]:
    """Return parameters, multiplications of one sample, and the sizes that the design does not say."""
    if candidate.design is not None and "rotate" not in candidate.moves:
        return candidate.design.params, candidate.design.macs, {}
    params, shape = counting.parameters(model), candidate.shape or surgery.read(model)
    macs = counting.count(original.reshape(shape), original.length).macs
    if candidate.design is not None:  # with a head of its own, which the design's prices may lack
        return params, macs, {"params": params}
    # the keys of a design, with one value per layer
    layers = list(shape.layers())
    sizes = {key: [getattr(layer, key) for layer in layers] for key in ("heads", "head_dim", "inner", "mlp")}
    return params, macs, {"depth": len(layers), **sizes, "architecture": shape.to_json(), "params": params}
