"""Trivial models that a trained model must beat to have learnt: linear models, counts and means.

A reference is fitted to batches of the training split and then called like a model, so that the task
evaluates it as it evaluates any other. The linear models and TF-IDF are scikit-learn's.

majority the most frequent class
linear   logistic regression (or ridge regression) on small pixels, or on the TF-IDF of a text's tokens
n-gram   the next token by how often it followed the last one (Witten and Bell 1991), or a masked one by its left
         neighbour; by its frequency alone for large vocabularies
mean     the mean of all targets
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from leanify.data.samples import IGNORED, Batch, Inputs

SIDE = 16  # pictures are averaged to half of their size, and to at most this many pixels a side
BIGRAMS = 4096  # largest vocabulary for which pairs of tokens are counted
NEVER = -30.0  # the logit of a class that training lacks


class Reference(Protocol):
    """A trivial model; ``name`` describes it."""

    name: str

    def fit(self, batches: Sequence[Batch]) -> None: ...

    def __call__(self, *args: Any, **inputs: Any) -> Tensor: ...


class Linear:
    """Linear regression of classes, or of a number, on pixels or on words.

    ``classes`` is their number, 0 for a number; larger targets are taken modulo it (MNLI numbers its two sets
    so).
    """

    def __init__(self, classes: int = 0) -> None:
        self.classes = classes
        self.name = "linear regression"

    def fit(self, batches: Sequence[Batch]) -> None:
        from scipy.sparse import vstack
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.feature_extraction.text import TfidfTransformer
        from sklearn.linear_model import LogisticRegression, Ridge
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        # features (samples, D), which also fit their scaler: small pictures, or counts of words
        kind, first = "logistic regression" if self.classes else "ridge regression", batches[0][0]
        if isinstance(first, Tensor):
            self.name = f"{kind} on {' × '.join(map(str, picture_sides(first)))} pixels"
            features: Any = np.concatenate([self._features(inputs) for inputs, _ in batches])
            scaler, C = StandardScaler(), 0.1
        else:
            self.name = f"{kind} on words (TF-IDF)"
            texts = [inputs for inputs, _ in batches if isinstance(inputs, dict)]
            self.vocabulary_size = 1 + max(int(inputs["input_ids"].max()) for inputs in texts)
            features = vstack([self._features(inputs) for inputs in texts])
            scaler, C = TfidfTransformer(sublinear_tf=True), 10.0
        # a linear model: classes by their number, or one number a sample
        targets = torch.cat([targets for _, targets in batches]).numpy()
        linear = Ridge()
        if self.classes:
            linear, targets = LogisticRegression(C=C, max_iter=200), targets % self.classes
        self.model: Any = make_pipeline(scaler, linear)
        with warnings.catch_warnings():  # one that stops before its optimum is a reference all the same
            warnings.simplefilter("ignore", ConvergenceWarning)
            self.model.fit(features, targets)

    def _features(self, batch: Inputs) -> Any:
        """The mean of pictures (B, C, H, W) in a few cells, flattened; or counts of words (B, vocabulary), sparse."""
        from scipy.sparse import coo_matrix

        if isinstance(batch, Tensor):
            return F.adaptive_avg_pool2d(batch.float(), picture_sides(batch)).flatten(1).numpy()

        # how often each token occurs in each text; unknown ids are left out
        ids = batch["input_ids"]
        is_known = batch.get("attention_mask", torch.ones_like(ids)).bool() & (ids < self.vocabulary_size)
        rows = torch.arange(len(ids))[:, None].expand_as(ids)[is_known].numpy()
        columns = ids[is_known].numpy()
        return coo_matrix((np.ones(len(rows)), (rows, columns)), shape=(len(ids), self.vocabulary_size)).tocsr()

    def __call__(self, *args: Any, **inputs: Any) -> Tensor:
        features = self._features(args[0] if args else inputs)
        if not self.classes:
            return torch.from_numpy(self.model.predict(features).astype(np.float32))[:, None]
        logits = np.full((features.shape[0], self.classes), NEVER, np.float32)
        logits[:, self.model.classes_.astype(int)] = self.model.predict_log_proba(features).clip(NEVER)
        return torch.from_numpy(logits)


def trivial(reference: Reference) -> list[Reference]:
    """The trivial models, of which the best one counts: a linear model can be worse than the most frequent class."""
    if isinstance(reference, Linear) and reference.classes:
        return [reference, Majority(reference.classes)]
    return [reference]


def picture_sides(pictures: Tensor) -> tuple[int, int]:
    height, width = (max(1, min(SIDE, size // 2)) for size in pictures.shape[2:])
    return height, width


class Grams:
    """The next token, or a masked one, by how often it follows the token before it."""

    def __init__(self, is_masked: bool) -> None:
        self.is_masked, self.name = is_masked, "bigram counts"

    def fit(self, batches: Sequence[Batch]) -> None:
        # neighbouring tokens (pairs,), first and second
        pairs = [self._pairs(inputs["input_ids"], targets) for inputs, targets in batches if isinstance(inputs, dict)]
        before, after = (torch.cat(column) for column in zip(*pairs, strict=True))
        self.size = 1 + int(max(before.max(), after.max()))
        # unigrams with one added to each count, as log-probabilities (vocabulary,)
        counts = torch.bincount(after, minlength=self.size).double() + 1
        self.single = (counts / counts.sum()).log().float()
        self.double: Tensor | None = None
        # a table of pairs of a large vocabulary would not fit
        if self.size > BIGRAMS:
            self.name = "unigram counts"
            return
        # bigrams (vocabulary, vocabulary), smoothed with the unigrams (Witten and Bell 1991)
        table = torch.bincount(before * self.size + after, minlength=self.size**2).view(self.size, self.size).float()
        kinds = (table > 0).sum(1, keepdim=True).float().clamp(min=1)
        self.double = ((table + kinds * self.single.exp()) / (table.sum(1, keepdim=True) + kinds)).log()

    def _pairs(self, ids: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens and their successors, both (pairs,)."""
        if self.is_masked:
            filled_ids = torch.where(targets != IGNORED, targets, ids)
            return ids[:, :-1].flatten(), filled_ids[:, 1:].flatten()
        is_target = targets != IGNORED
        return ids[is_target], targets[is_target]

    def __call__(self, *args: Any, **inputs: Any) -> Tensor:
        ids = inputs["input_ids"].clamp(max=self.size - 1)
        if self.double is None:
            return self.single.expand(*ids.shape, -1)
        if not self.is_masked:
            return self.double[ids]
        first = self.single.expand(len(ids), 1, -1)
        return torch.cat([first, self.double[ids[:, :-1]]], 1)


class Majority:
    """The most frequent class of training; classes as in `Linear`."""

    def __init__(self, classes: int) -> None:
        self.classes, self.name = classes, "the most frequent class"

    def fit(self, batches: Sequence[Batch]) -> None:
        counts = torch.bincount(torch.cat([targets for _, targets in batches]) % self.classes, minlength=self.classes)
        self.logits = ((counts + 1) / (counts + 1).sum()).log()

    def __call__(self, *args: Any, **inputs: Any) -> Tensor:
        batch = args[0] if args else next(iter(inputs.values()))
        return self.logits.expand(len(batch), -1)


class Mean:
    """The mean of all targets, (B, width) or (B, N, width); of embeddings the constant with the highest cosine."""

    def __init__(self, name: str = "the mean") -> None:
        self.name = name

    def fit(self, batches: Sequence[Batch]) -> None:
        self.mean = torch.cat([targets.flatten(0, -2) for _, targets in batches]).mean(0)
        self.axes = batches[0][1].ndim - 1  # that inputs and targets share

    def __call__(self, *args: Any, **inputs: Any) -> Tensor:
        batch = args[0] if args else next(iter(inputs.values()))
        return self.mean.expand(*batch.shape[: self.axes], -1)
