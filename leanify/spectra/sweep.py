"""Probe one model many times: for different numbers of heads at initialisation (Figure 2), or during a training run."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from operator import attrgetter
from pathlib import Path

import torch
from torch import nn

from leanify.core.architecture import primary_layer
from leanify.core.errors import LeanifyError, ShapeError, SourceError
from leanify.core.files.tensor_files import open_tensors
from leanify.reshaping import surgery
from leanify.sources.tensors import describe_misfits
from leanify.spectra.measure import ModelInputs, condition
from leanify.spectra.report import figures
from leanify.spectra.results import LayerProbe, Mode, Point, Probe, quartiles

MOST_HEADS = 256  # twice the heads of the widest model in use; memory and time grow with them
MIN_HEADS = 4  # heads: stacked square maps have κ = (√h + 1)/(√h − 1), 3 at h = 4 and falling slowly


def shapes(model: nn.Module, heads: Sequence[int]) -> tuple[list[tuple[Mode, int, int]], list[str]]:
    """(mode, heads, head_dim) of every model to initialise, and reasons for omitted combinations.

    ``grow`` keeps head_dim; ``split`` keeps inner = heads · head_dim, so heads must divide it. Raises
    ShapeError for heads that neither mode allows.
    """
    arch = surgery.read(model)
    primary = primary_layer(arch.stages[arch.variable_stages[0]])
    head_shapes: list[tuple[Mode, int, int]] = []
    left_out = []
    rotary = any("Rotary" in type(module).__name__ for module in model.modules())
    # each number of heads both ways: of the same head_dim (grow), and of the same inner width (split)
    for count in sorted(set(heads)):
        if count < 1:
            raise ShapeError(f"the number of heads is {count}; it must be at least 1")
        if count > MOST_HEADS:
            raise ShapeError(f"the number of heads is {count:,}; at most {MOST_HEADS} are initialised")
        primary.set_heads(count)  # refuses broken key/value groups
        head_shapes.append(("grow", count, primary.head_dim))
        if primary.inner % count:
            left_out.append(f"split into {count} heads: they do not divide the inner width of {primary.inner}")
        elif rotary and primary.inner // count % 2:
            left_out.append(f"split into {count} heads: rotary positions need an even head_dim")
        else:
            head_shapes.append(("split", count, primary.inner // count))
    return head_shapes, left_out


def over_heads(
    model: nn.Module,
    inputs: Sequence[ModelInputs],
    shapes: Sequence[tuple[Mode, int, int]],
    *,
    seed: int,
    seeds: int,
    on_model: Callable[[int], None],
) -> list[Point]:
    """κ against heads at initialisation, each shape initialised ``seeds`` times by upstream's initialiser."""
    points: list[Point] = []
    arch = surgery.read(model)
    for mode, heads, head_dim in shapes:
        # every stage that may change gets the same heads
        stages = list(arch.stages)
        layers: list[list[LayerProbe]] = []  # those that are re-initialised, of each model
        for index in arch.variable_stages:
            stages[index] = stages[index].reshape(heads=heads, head_dim=head_dim)
        # upstream's initialiser, with other random numbers each time
        for again in range(seeds):
            torch.manual_seed(seed + again)
            new = surgery.write(model, replace(arch, stages=tuple(stages)), weights="fresh")
            probe = condition(new, inputs)
            layers.append([layer for layer in probe.matrices if layer.heads == heads])
            on_model(len(points) * seeds + again + 1)
        # means over samples and seeds, of each layer and of all
        by_layer = tuple(statistics.fmean(layer.kappa for layer in same) for same in zip(*layers, strict=True))
        kappas = [kappa for layer in chain.from_iterable(layers) for kappa in layer.kappas]
        mean, tokens = statistics.fmean(kappas), layers[0][0].tokens
        points.append(Point(mode, heads, head_dim, tokens, mean, quartiles(kappas), by_layer, seeds))
    return points


def verdict(points: Sequence[Point]) -> list[str]:
    """Sentences that compare the points with the claim that more heads lower κ (Theorem 3.2, Figure 2)."""
    grown = [point for point in points if point.mode == "grow"]
    split = [point for point in points if point.mode == "split"]
    sentences = [_growth_sentence(grown)] if len(grown) > 1 else []
    return [*sentences, _split_sentence(split)] if len(split) > 1 else sentences


def _growth_sentence(points: list[Point]) -> str:
    # the first, the last and the highest median, which tell a rise and fall from a monotone curve
    first, last, peak = points[0], points[-1], max(points, key=attrgetter("median"))
    start, end, top = (figures(point.median) for point in (first, last, peak))
    span = f"Grow (head_dim {peak.head_dim}, {peak.tokens} tokens): median κ "
    if peak in (first, last):
        return (
            f"{span}is {start} at {first.heads} heads and {end} at {last.heads}; theory has its peak where "
            f"inner = tokens, at {peak.tokens / peak.head_dim:.1f} heads."
        )
    return (
        f"{span}is not monotone in heads. It rises from {start} at {first.heads} to {top} at {peak.heads} (inner "
        f"{peak.inner}, {peak.tokens} tokens: A is nearly square) and falls to {end} at {last.heads}. Theorem 3.2 "
        "assumes inner far above the number of tokens: only past the peak do more heads lower κ, and they do so by "
        "widening A, which adds parameters."
    )


def _split_sentence(split: list[Point]) -> str:
    low, high = min(split, key=attrgetter("median")), max(split, key=attrgetter("median"))
    sentence = (
        f"Split (inner {low.inner} throughout): A has the same shape whatever the number of heads, so the theorem "
        f"predicts a flat line. Measured, median κ lies between {figures(low.median)} at {low.heads} heads and "
        f"{figures(high.median)} at {high.heads}"
    )
    # the part of the curve in which no single attention map dominates
    tail = [point for point in split if point.heads >= MIN_HEADS]
    if len(tail) in (0, 1, len(split)):
        return sentence + "."
    medians = [point.median for point in tail]
    factor = max(medians) / min(medians)
    return (
        f"{sentence}, and within a factor of {factor:.2g} from {tail[0].heads} heads on. Below that the attention "
        "maps matter, not the width of A: a single map of tokens × tokens is square, several side by side are not."
    )


def checkpoints(run: Path) -> list[tuple[int, Path]]:
    """(step, file) of .safetensors files with a number in their path, sorted. Raises SourceError if none."""
    if not run.is_dir():
        raise SourceError(f"{run} is not a directory; --checkpoints needs the directory of a run")

    # the step is the last number in the file's name, or in a parent folder's, innermost first
    steps = []
    for path in run.rglob("*.safetensors"):
        inner = path.relative_to(run).with_suffix("")
        numbers = next(filter(None, (re.findall(r"\d+", part) for part in reversed(inner.parts))), None)
        if numbers is not None:
            steps.append((int(numbers[-1]), path))
    if not steps:
        raise SourceError(f"{run} has no checkpoints: looked for .safetensors files with a step in their path")
    return sorted(steps)


def over_training(
    model: nn.Module, inputs: Sequence[ModelInputs], steps: Sequence[tuple[int, Path]]
) -> Iterator[tuple[int, Probe]]:
    """Probe every checkpoint, and its weights, read one tensor at a time into ``model``, in place."""
    for step, path in steps:
        read_into(model, path)
        try:
            yield step, condition(model, inputs, weights=True)
        except LeanifyError as error:
            raise type(error)(f"step {step} ({path}): {error}") from error


@torch.no_grad()
def read_into(model: nn.Module, path: Path) -> None:
    """Copy a safetensors file into a model, tensor by tensor. Raises SourceError for what does not fit."""
    targets = model.state_dict()
    with open_tensors(path) as file:
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        # tied tensors are stored once, under one of their names
        read_addresses = {targets[name].data_ptr() for name in shapes if name in targets}
        expected_shapes = {}
        for name, tensor in targets.items():
            if name in shapes or tensor.data_ptr() not in read_addresses:
                expected_shapes[name] = tuple(tensor.shape)
        if problems := describe_misfits(expected_shapes, shapes):
            raise SourceError(f"the checkpoint {path} does not fit the model: {problems}")
        for name in shapes:
            targets[name].copy_(file.get_tensor(name))
