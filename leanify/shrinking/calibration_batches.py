"""Batches of a recipe's training split, on which weights are selected and corrected."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import nn

from leanify.core.errors import DataError
from leanify.data.samples import Reader, Splits
from leanify.lens.located import LocatedModel
from leanify.profiling.counting import token_counts
from leanify.shrinking.original import Original
from leanify.upstream.inputs import example_inputs

MIN_TOKENS, MAX_TOKENS = 8_192, 32_768  # tokens of the samples that select and correct weights
CALL_BYTES = 2**30  # that the inputs and outputs of all blocks may take, if more than those of `MIN_TOKENS`
MAX_SAMPLES = 2_048  # even if they are short
BATCH_SIZE = 8


def max_calibration_tokens(located_model: LocatedModel) -> int:
    """Return how many tokens may select and correct weights: the more, the less the fits depend on chance."""
    return int(min(MAX_TOKENS, max(MIN_TOKENS, CALL_BYTES / token_bytes(located_model))))


def token_bytes(located_model: LocatedModel) -> float:
    """Return the bytes of a token in every block's input and output, in 32 bits and with a third for copies."""
    layers = list(located_model.layers)
    return 4 / 3 * max(layer.read().width for layer in layers) * 4 * 2 * len(layers)


def calibration_batches(original: Original, splits: Splits, tokens: int) -> list[dict[str, Any]]:
    """Return batches with at least ``tokens`` tokens, if the training split has that many; at least four batches."""
    # tokens per sample: mean length of texts, patches of images, or the recipe's length
    recipe, lengths = original.recipe, getattr(splits.train, "lengths", None)
    if lengths is not None:
        length = max(1, int(lengths.mean()))
    elif recipe.data.task == "classification":
        length = min(token_counts(original.located))
    else:
        length = next(iter(example_inputs(original.shell, 1, recipe.data.length, device="meta").values())).shape[-1]
    count = max(4 * BATCH_SIZE, min(MAX_SAMPLES, -(-tokens // length)))
    return sample_batches(splits, original.shell, count, recipe.run.seed)


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
