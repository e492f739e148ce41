"""The checkpoint that is shrunk: read and priced once, with the recipe and the data that judge and heal it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from leanify.core.architecture import Architecture
from leanify.core.recipe import TrainingRecipe
from leanify.data.samples import Selection, Splits
from leanify.lens.located import LocatedModel
from leanify.profiling.cost_model import ModelCosts
from leanify.profiling.counting import count_located, token_counts
from leanify.profiling.live_model import LiveModel
from leanify.reshaping import surgery
from leanify.reshaping.sites import locate
from leanify.shrinking.taught import TaughtSamples
from leanify.sources.source import ModelSource
from leanify.tasks import make_task
from leanify.training.engine import build_accelerator
from leanify.training.evaluation import Evaluator
from leanify.training.teachers import TeacherTargets, add_targets, build_teacher

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class FewerTokens:
    """An original whose vocabulary was cut: the one before, the new tokenizer, and the report.

    ``taught`` says for each token of a training text whether the original teaches it; None for samples of other kinds.
    """

    before: Original
    tokenizer: Path
    facts: Mapping[str, Any]
    taught: np.ndarray | None = None


@dataclass(frozen=True)
class Original:
    """A checkpoint with everything about it that a shrink asks for more than once.

    name         as the user named it: a run, a folder, a hub id
    source       how to build it and where its weights are, with its own dropout
    located      the model on meta, with its layers
    costs        parameters and multiplications of every shape: one price list for all candidates
    recipe       judges and heals, with the checkpoint as teacher
    splits       the samples: to train on, to choose on (``validation``), and to judge on (``test``)
    no_dropout   dropout rates, by the key of its configuration, that healing changes without a request by the user
    load         returns the model with its weights in 32 bits and the type that they had, loaded once
    reshape      returns the model on meta in another shape, made once
    fewer        the original before its vocabulary was cut, whose embeddings are the targets; None if it is whole
    """

    name: str
    source: ModelSource
    located: LocatedModel
    costs: ModelCosts
    recipe: TrainingRecipe
    splits: Splits
    no_dropout: Mapping[str, float]
    load: Callable[[], tuple[nn.Module, torch.dtype]]
    reshape: Callable[[Architecture], nn.Module]
    fewer: FewerTokens | None = None

    @property
    def shell(self) -> nn.Module:
        return self.located.model

    def with_model(
        self, shell: nn.Module, load: Callable[[], tuple[nn.Module, torch.dtype]], **changes: Any
    ) -> Original:
        """This original with another model; ``shell`` is on meta, and ``load`` returns it with its weights."""
        length, reshape = self.length, cache(partial(surgery.write, shell))
        costs = ModelCosts(lambda: (LiveModel(shell, length), False), None)
        return replace(self, located=locate(shell), costs=costs, load=cache(load), reshape=reshape, **changes)

    @cached_property
    def evaluator(self) -> Evaluator:
        """Evaluates any model on these splits, which have the teacher's embeddings if those are the targets."""
        accelerator = build_accelerator(self.recipe)
        splits = self.splits
        if self.recipe.data.task == "sentence-embedding":
            splits = self._add_targets(accelerator)
        task = make_task(self.recipe, splits)
        return Evaluator(self.recipe, splits, task, accelerator, skipped_names=set())

    def _add_targets(self, accelerator: Any) -> Splits:
        """The splits with the teacher's embeddings, which reads its own tokens."""
        if self.fewer is None:
            return add_targets(self.splits, build_teacher(self.recipe, self.module, self.teacher), accelerator)
        parts: dict[str, Any] = {}
        targets = self.whole._add_targets(accelerator)
        for name in SPLITS:
            samples = getattr(self.splits, name)
            parts[name] = samples and TeacherTargets(samples, getattr(targets, name).embeddings)
        return replace(self.splits, pooling=targets.pooling, **parts)

    @property
    def whole(self) -> Original:
        """The original before its vocabulary was cut, with the same samples; of a text, the windows that it had."""
        if self.fewer is None:
            return self
        before, parts = self.fewer.before, dict[str, Any]()
        for name in SPLITS:
            samples, old = getattr(self.splits, name), getattr(before.splits, name)
            if samples is None:
                continue
            # a split that was read by the new tokenizer sample by sample has the old one's samples
            base = old if len(base_samples(samples)) == len(old) else base_samples(old)
            if len(base_samples(samples)) == len(base):
                parts[name] = Selection(base, base_places(samples)) if isinstance(samples, Selection) else base
        return replace(before, splits=replace(before.splits, **parts))

    @property
    def healing_splits(self) -> Splits:
        """The splits that heal: of a text with fewer tokens, the samples mark the targets that the teacher knows."""
        splits, distill = self.evaluator.splits, self.recipe.distill
        if self.fewer is None or self.fewer.taught is None or distill is None or not distill.weight:
            return splits
        train = splits.train
        return replace(splits, train=TaughtSamples(train, base_samples(train), base_places(train), self.fewer.taught))

    @property
    def length_ratio(self) -> float:
        """How much longer texts are than with all tokens, by which the loss of a token is multiplied."""
        is_language = self.recipe.data.task == "causal-lm" and self.fewer is not None
        return (is_language and self.fewer and self.fewer.facts["length_ratio"]) or 1.0

    @property
    def module(self) -> nn.Module:
        """The model with its weights, in 32 bits and in eval mode; it must not be changed."""
        return self.load()[0]

    @property
    def dtype(self) -> torch.dtype:
        """The type of the checkpoint's weights, and of the result's."""
        return self.load()[1]

    @property
    def teacher(self) -> nn.Module | None:
        """The loaded model if it is the recipe's teacher, too."""
        distill = self.recipe.distill
        own = self.name if self.fewer is None else str(self.fewer.tokenizer)
        return self.module if distill is not None and distill.teacher == own else None

    @property
    def mean_length(self) -> int | None:
        """Mean tokens of the data's texts, or the recipe's length; None for pictures."""
        lengths = getattr(self.splits.train, "lengths", None)
        return self.length if lengths is None else max(2, int(lengths.mean()))

    @cached_property
    def sample_tokens(self) -> int:
        """Mean tokens of a sample, or the patches of a picture in the stage that has the fewest."""
        return self.mean_length or min(token_counts(self.located))

    @cached_property
    def sample_macs(self) -> float:
        """Multiplications of one forward pass of a sample."""
        return float(count_located(self.located, self.mean_length).macs)

    @property
    def length(self) -> int | None:
        """Tokens of a sample, by which multiplications are counted; None for pictures and texts of any length."""
        return self.recipe.data.length


def base_samples(samples: Any) -> Any:
    """The data set below selections."""
    while isinstance(samples, Selection):
        samples = samples.whole
    return samples


def base_places(samples: Any) -> np.ndarray:
    """The places of samples in the data set below selections."""
    if isinstance(samples, Selection):
        places: np.ndarray = base_places(samples.whole)[samples.indices]
        return places
    return np.arange(len(samples))
