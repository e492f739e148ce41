"""Carry the original's weights into a candidate's shape, by calibration data, and measure the quality that is left."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from leanify.carrying.calibration import MAX_NUMBERS
from leanify.carrying.free import transfer_free
from leanify.carrying.rotation import rotate
from leanify.carrying.teacher import CalibratedTeacher
from leanify.carrying.transfer import Step, TransferResult, transfer_weights
from leanify.core import machine
from leanify.core.architecture import Architecture
from leanify.core.errors import DataError
from leanify.core.terminal import note, progress
from leanify.core.units import format_bytes, format_forecast
from leanify.data.samples import Reader, Splits
from leanify.lens.located import LocatedModel
from leanify.profiling import counting
from leanify.reshaping import surgery
from leanify.shrinking.candidates import Candidate
from leanify.shrinking.judging import Quality, judge
from leanify.shrinking.original import Original
from leanify.sources import find, lean_directory
from leanify.sources.weights import is_headless
from leanify.training.master_weights import round_weights, to_master_weights, to_stored_weights
from leanify.upstream.inputs import example_inputs
from leanify.upstream.on_disk import deep_copy, on_disk

MEASURING = 4  # every fourth batch measures the damage
MIN_TOKENS, MAX_TOKENS = 8_192, 32_768  # tokens of the samples that select and correct weights
CALL_BYTES = 2**30  # that the inputs and outputs of all blocks may take, if more than those of `MIN_TOKENS`
MAX_SAMPLES = 2_048  # even if they are short
BATCH_SIZE = 8


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


def max_calibration_tokens(located_model: LocatedModel) -> int:
    """Return how many tokens may select and correct weights: the more, the less the fits depend on chance."""
    return int(min(MAX_TOKENS, max(MIN_TOKENS, CALL_BYTES / token_bytes(located_model))))


def token_bytes(located_model: LocatedModel) -> float:
    """Return the bytes of a token in every block's input and output, in 32 bits and with a third for copies."""
    layers = list(located_model.layers)
    return 4 / 3 * max(layer.read().width for layer in layers) * 4 * 2 * len(layers)


def calibration_samples(original: Original, tokens: int) -> int:
    """Return the number of training samples with at least ``tokens`` tokens, if there are as many; four batches."""
    count = min(MAX_SAMPLES, -(-tokens // original.sample_tokens))
    return min(max(4 * BATCH_SIZE, count), len(original.splits.train))


@contextmanager
def weights_on_disk(original: Original, place: Path) -> Iterator[None]:
    """Keep the weights in files on the disk of the result if they are too large to be transferred in memory."""
    # original, narrowed copy and trial, calls of blocks, moments (two halves and their solution, float64), outputs
    located = original.located
    calls = max_calibration_tokens(located) * token_bytes(located)
    moments = 3 * (max(layer.read().mlp for layer in located.layers) + 1) ** 2 * 8
    need = 3 * 4 * counting.parameters(located.model) + calls + moments + 4 * MAX_NUMBERS
    free = machine.free_memory()
    if free is None or need <= free:
        yield
        return
    folder = next(path for path in (place, *place.absolute().parents) if path.is_dir())
    note(
        f"transferring needs {format_bytes(need)} and {format_bytes(free)} of memory are free: the weights lie in "
        f"files on the disk of {folder}, which takes longer"
    )
    with on_disk(folder):
        yield


def sample_batches(splits: Splits, model: nn.Module, count: int, seed: int) -> list[dict[str, Any]]:
    """Return batches of model inputs with at most ``count`` training samples, selected by the seed."""
    # samples drawn with the seed, in batches of about equal size; texts of one batch have about the same length
    count, generator = min(count, len(splits.train)), np.random.default_rng(seed)
    if count < 2:
        raise DataError("one sample is left to train on, and shrink corrects weights on one and checks them on another")
    indices = generator.choice(len(splits.train), count, replace=False)
    lengths = getattr(splits.train, "lengths", None)
    if lengths is not None:
        indices = indices[np.asarray(lengths)[indices].argsort(kind="stable")]
    parts = np.array_split(indices, max(2, count // BATCH_SIZE))
    keys = []
    for number in range(len(parts)) if lengths is None else generator.permutation(len(parts)):
        keys.append([(0, int(index)) for index in parts[number]])
    # scale each batch and name its tensors after the model's arguments
    main_input = next(iter(example_inputs(model, 1, device="meta")))
    batches = []
    for inputs, _ in Reader(splits.train, keys, seed, 0):
        model_inputs = splits.scale_inputs(inputs)
        batches.append(dict(model_inputs) if isinstance(model_inputs, dict) else {main_input: model_inputs})
    return batches


def calibrate(original: Original, several: Sequence[Candidate], tokens: int, seconds: float) -> CalibratedTeacher:
    """Return the original with its outputs on calibration data, and the statistics of each block for the candidates.

    ``seconds`` is the forecast of all that follows.
    """
    seed = original.recipe.run.seed
    torch.manual_seed(seed)
    count = calibration_samples(original, tokens)
    batches = sample_batches(original.evaluator.splits, original.shell, count, seed)
    # three of four batches select and correct, the others measure the damage
    choosing = [batch for i, batch in enumerate(batches) if i % MEASURING != 1]
    teacher = CalibratedTeacher(original.module, choosing, batches[1::MEASURING], is_headless(original.module))
    shapes = [one.shape for one in several if one.shape and "rotate" not in one.moves]
    pair_shapes = [one.shape for one in several if one.shape and "pair" in one.moves]
    widest = max((layer.mlp for shape in shapes for layer in shape.layers()), default=0)
    if teacher.tokens < 2 * widest:
        note(
            f"warning: {teacher.tokens:,} tokens choose and correct, fewer than twice the {widest:,} inputs of the "
            "widest fit: a fit that other batches do not confirm is left out; more data would keep more"
        )
    note(
        f"transferring weights to {len(several)} shape{'s' * (len(several) != 1)} by {teacher.tokens:,} tokens, "
        f"{len(batches)} batches, damage as {teacher.outputs.unit}; {format_forecast(seconds)} on this machine"
    )
    with progress("what each block needs", sum(len(stage.blocks) for stage in teacher.located_model.stages)) as advance:
        teacher.prepare(shapes, advance, pair_shapes)
    return teacher


def carry(
    original: Original,
    teacher: CalibratedTeacher | None,
    candidate: Candidate,
    place: Path,
    name: str,
    on_step: Callable[[Step], None] = lambda step: None,
) -> Carried:
    """Return the candidate with the original's weights, written to ``place`` and judged.

    Without a ``teacher`` its blocks are the original's. ``name`` is its name in its README.
    Raises LeanifyError if the weights cannot be carried.
    """
    with progress(f"transferring weights to {candidate.name}", None):
        if teacher is None:
            step = Step("fewer tokens", "", (), 0.0)
            result = TransferResult(deep_copy(original.module), [step], "relative error")
        elif candidate.shape is None:
            result = transfer_free(teacher, candidate.max_params, on_step)
        elif "rotate" in candidate.moves:
            result = rotate(teacher, candidate.shape, on_step)
        else:
            result = transfer_weights(teacher, candidate.shape, on_step, candidate.moves)
    model = result.model
    round_weights(model, original.dtype)  # measure the weights as they are written
    save(model, original, place, name)
    params, macs, shape = _costs(original, candidate, model)
    quality = judge(original, model)
    steps = [step.description for step in result.steps]
    return Carried(candidate, model, place, result.damage, result.unit, steps, quality, params, macs, shape)


def save(model: nn.Module, original: Original, place: Path, name: str) -> None:
    """Write a model of 32 bits as a lean directory, in the type of the checkpoint's weights."""
    to_stored_weights(model, original.dtype)
    lean_directory.save(model, place, title=f"A smaller {Path(original.name).name}", name=name)
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
