"""Trivial models beside which a trained one must show that it has learnt: linear models, counts and means.

A reference is fitted to batches of the training split and then called like a model, so that the task
evaluates it as it evaluates any other. The linear models and TF-IDF are scikit-learn's.

majority the most frequent class
linear   logistic regression (or ridge regression) on small pixels, or on the TF-IDF of a text's tokens
n-gram   the next token by how often it followed the last one (Witten and Bell 1991), or a masked one by its left
         neighbour; by its frequency alone for large vocabularies
tags     the most frequent tag of a token
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
    """A trivial model; ``name`` says in words what it is."""

    name: str

    def fit(self, batches: Sequence[Batch]) -> None: ...

    def __call__(self, *args: Any, **inputs: Any) -> Tensor: ...


class Linear:
    """Linear regression of classes, of several labels, or of a number, on pixels or on words.

    ``classes`` is their number, 0 for a number; larger targets are taken modulo it (MNLI numbers its two sets
    so).
    """

    def __init__(self, classes: int = 0, labels: bool = False) -> None:
        self.classes, self.labels = classes, labels
        self.name = "linear regression"
        self.scaler: Any = None

    def fit(self, batches: Sequence[Batch]) -> None:
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.linear_model import LogisticRegression, Ridge
        from sklearn.multiclass import OneVsRestClassifier

        pictures = isinstance(batches[0][0], Tensor)
        kind = "logistic regression" if self.classes or self.labels else "ridge regression"
        first = batches[0][0]
        small = " × ".join(map(str, sides_of(first))) if isinstance(first, Tensor) else ""
        self.name = f"{kind} on {f'{small} pixels' if pictures else 'words (TF-IDF)'}"
        features = self._scaled([inputs for inputs, _ in batches], pictures)
        targets = torch.cat([targets for _, targets in batches]).numpy()
        if self.labels:
            self.model: Any = OneVsRestClassifier(LogisticRegression(C=10.0, max_iter=200))
        elif self.classes:
            self.model = LogisticRegression(C=0.1 if pictures else 10.0, max_iter=200)
            targets = targets % self.classes
        else:
            self.model = Ridge()
        with warnings.catch_warnings():  # one that stops before its optimum is a reference all the same
            warnings.simplefilter("ignore", ConvergenceWarning)
            self.model.fit(features, targets)

    def _scaled(self, inputs: Sequence[Inputs], pictures: bool) -> Any:
        """Features of all samples, standardised or weighted as those of training."""
        if pictures:
            small = []
            for some in inputs:
                assert isinstance(some, Tensor)
                small.append(F.adaptive_avg_pool2d(some.float(), sides_of(some)).flatten(1).numpy())
            table: Any = np.concatenate(small)
        else:
            from scipy.sparse import vstack

            if self.scaler is None:
                self.words = 1 + max(int(some["input_ids"].max()) for some in inputs if isinstance(some, dict))
            table = vstack([counts_of(some, self.words) for some in inputs if isinstance(some, dict)])
        if self.scaler is None:
            from sklearn.feature_extraction.text import TfidfTransformer
            from sklearn.preprocessing import StandardScaler

            self.scaler = (StandardScaler() if pictures else TfidfTransformer(sublinear_tf=True)).fit(table)
        return self.scaler.transform(table)

    def __call__(self, *args: Any, **inputs: Any) -> Tensor:
        given: Inputs = args[0] if args else inputs
        features = self._scaled([given], isinstance(given, Tensor))
        if self.labels:
            return torch.from_numpy(np.asarray(self.model.decision_function(features), np.float32))
        if not self.classes:
            return torch.from_numpy(self.model.predict(features).astype(np.float32))[:, None]
        logits = np.full((features.shape[0], self.classes), NEVER, np.float32)
        logits[:, self.model.classes_.astype(int)] = self.model.predict_log_proba(features).clip(NEVER)
        return torch.from_numpy(logits)


def trivial(reference: Reference) -> list[Reference]:
    """The models of which the best counts: a linear one can be worse than naming the most frequent class."""
    if isinstance(reference, Linear) and reference.classes:
        return [reference, Majority(reference.classes)]
    return [reference]


def sides_of(pictures: Tensor) -> tuple[int, int]:
    height, width = (max(1, min(SIDE, size // 2)) for size in pictures.shape[2:])
    return height, width


def counts_of(inputs: dict[str, Tensor], words: int) -> Any:
    """How often each token occurs in each text: a sparse matrix (B, words); unknown ids are left out."""
    from scipy.sparse import coo_matrix

    ids = inputs["input_ids"]
    there = inputs.get("attention_mask", torch.ones_like(ids)).bool() & (ids < words)
    rows = torch.arange(len(ids))[:, None].expand_as(ids)[there].numpy()
    columns = ids[there].numpy()
    return coo_matrix((np.ones(len(rows)), (rows, columns)), shape=(len(ids), words)).tocsr()


class Grams:
    """The next token, or a masked one, by how often it follows the token before it."""

    def __init__(self, masked: bool) -> None:
        self.masked, self.name = masked, "bigram counts"

    def fit(self, batches: Sequence[Batch]) -> None:
        pairs = [self._pairs(inputs["input_ids"], targets) for inputs, targets in batches if isinstance(inputs, dict)]
        before, after = (torch.cat(column) for column in zip(*pairs, strict=True))
        self.size = 1 + int(max(before.max(), after.max()))
        counts = torch.bincount(after, minlength=self.size).double() + 1
        self.single = (counts / counts.sum()).log().float()
        self.double: Tensor | None = None
        if self.size > BIGRAMS:
            self.name = "unigram counts"
            return
        table = torch.bincount(before * self.size + after, minlength=self.size**2).view(self.size, self.size).float()
        kinds = (table > 0).sum(1, keepdim=True).float().clamp(min=1)
        self.double = ((table + kinds * self.single.exp()) / (table.sum(1, keepdim=True) + kinds)).log()

    def _pairs(self, ids: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens and those that follow them."""
        if self.masked:
            whole = torch.where(targets != IGNORED, targets, ids)
            return ids[:, :-1].flatten(), whole[:, 1:].flatten()
        there = targets != IGNORED
        return ids[there], targets[there]

    def __call__(self, *args: Any, **inputs: Any) -> Tensor:
        ids = inputs["input_ids"].clamp(max=self.size - 1)
        if self.double is None:
            return self.single.expand(*ids.shape, -1)
        if not self.masked:
            return self.double[ids]
        first = self.single.expand(len(ids), 1, -1)
        return torch.cat([first, self.double[ids[:, :-1]]], 1)


class Tags:
    """The most frequent tag of a token."""

    def __init__(self, tags: int) -> None:
        self.tags, self.name = tags, "the most frequent tag of a word"

    def fit(self, batches: Sequence[Batch]) -> None:
        pairs = [
            (inputs["input_ids"][targets != IGNORED], targets[targets != IGNORED])
            for inputs, targets in batches
            if isinstance(inputs, dict)
        ]
        ids, tags = (torch.cat(column) for column in zip(*pairs, strict=True))
        self.size = 1 + int(ids.max())
        counts = torch.bincount(ids * self.tags + tags, minlength=self.size * self.tags).view(self.size, self.tags)
        everywhere = counts.sum(0).double()
        self.logits = (counts + 0.01 * everywhere / everywhere.sum()).log().float()

    def __call__(self, *args: Any, **inputs: Any) -> Tensor:
        ids = inputs["input_ids"]
        unknown = self.logits.exp().sum(0).log()
        return torch.where((ids < self.size)[..., None], self.logits[ids.clamp(max=self.size - 1)], unknown)


class Majority:
    """The most frequent class of training; classes as in `Linear`."""

    def __init__(self, classes: int) -> None:
        self.classes, self.name = classes, "the most frequent class"

    def fit(self, batches: Sequence[Batch]) -> None:
        counts = torch.bincount(torch.cat([targets for _, targets in batches]) % self.classes, minlength=self.classes)
        self.logits = ((counts + 1) / (counts + 1).sum()).log()

    def __call__(self, *args: Any, **inputs: Any) -> Tensor:
        given = args[0] if args else next(iter(inputs.values()))
        return self.logits.expand(len(given), -1)


class Mean:
    """The mean of all targets."""

    def __init__(self) -> None:
        self.name = "the mean"

    def fit(self, batches: Sequence[Batch]) -> None:
        self.mean = torch.cat([targets.flatten(0, -2) for _, targets in batches]).mean(0)

    def __call__(self, *args: Any, **inputs: Any) -> Tensor:
        given = args[0] if args else next(iter(inputs.values()))
        return self.mean.expand(*given.shape[:2], -1)
