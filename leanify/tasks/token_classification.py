"""Token classification: named entities, parts of speech, chunks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leanify.data.samples import IGNORED, Inputs, Splits
from leanify.data.texts.tagged_text import OUTSIDE
from leanify.runs.recipe import TrainingRecipe
from leanify.tasks.outputs import answer, mean
from leanify.tasks.references import Tags

Entity = tuple[str, int, int]  # kind, first token, end (exclusive)
ALONE, LAST = "SU", "ELSU"  # prefixes of single-token entities, and of tokens that end an entity (IOBES and BILOU)


def task(recipe: TrainingRecipe, splits: Splits) -> TokenClassification:
    return TokenClassification(splits.names, recipe.optim.label_smoothing)


class TokenClassification:
    """Cross-entropy per token. Entity tags (B-PER, I-PER, O) are scored by whole entities."""

    sign, best = 1, 100.0

    def __init__(self, names: Sequence[str], smoothing: float) -> None:
        self.names, self.smoothing = names, smoothing
        self.of_entities = have_entities(names)
        self.metric = "f1" if self.of_entities else "accuracy"
        self.unit = f"points of {self.metric}"
        self.reference = Tags(len(names))
        self.summed = None if self.of_entities else ("right", 100.0)

    def loss(self, model: nn.Module, inputs: Inputs, targets: Tensor) -> Tensor:
        """targets (B, N), IGNORED except at tokens' first pieces → the loss summed over tokens"""
        return self._loss(answer(model, inputs), targets, self.smoothing).sum()

    def _loss(self, logits: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        """→ the loss of every sentence, summed over its tokens, (B,)"""
        options = {"ignore_index": IGNORED, "label_smoothing": smoothing, "reduction": "none"}
        found = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), **options)  # type: ignore[arg-type]
        return found.view_as(targets).sum(1)

    def count(self, targets: Tensor) -> Tensor:
        return (targets != IGNORED).sum()

    def found(self, model: nn.Module, inputs: Inputs, targets: Tensor) -> Mapping[str, Tensor]:
        logits = answer(model, inputs)
        guesses = logits.argmax(-1)
        tally = {
            "loss": self._loss(logits, targets),
            "count": (targets != IGNORED).sum(1),
            "right": (guesses == targets).sum(1),
        }
        if self.of_entities:
            rows = []
            for guess, target in zip(guesses.tolist(), targets.tolist(), strict=True):
                kept = [place for place, tag in enumerate(target) if tag != IGNORED]
                guessed = set(entities([self.names[guess[place]] for place in kept]))
                true = set(entities([self.names[target[place]] for place in kept]))
                rows.append((len(guessed & true), len(guessed), len(true)))
            tally |= dict(zip(("both", "guessed", "true"), torch.tensor(rows).T, strict=True))
        return tally

    def metrics(self, found: Mapping[str, Tensor]) -> dict[str, float]:
        """Mean loss in nats per token, token accuracy in per cent, and for entity tags F1, precision and recall.

        A ratio without entities is 0.
        """
        loss, right = (mean(found, name) for name in ("loss", "right"))
        if not self.of_entities:
            return {"loss": loss, "accuracy": 100 * right}
        both, guessed, true = (found[name].sum().item() for name in ("both", "guessed", "true"))
        shares = {"f1": (2 * both, guessed + true), "precision": (both, guessed), "recall": (both, true)}
        percent = {name: 100 * part / whole if whole else 0.0 for name, (part, whole) in shares.items()}
        return {"loss": loss, **percent, "accuracy": 100 * right}


def have_entities(names: Sequence[str]) -> bool:
    """Whether tags mark entities: all except O have one of the prefixes B-, I-, E-, S-, L- and U-."""
    others = [name for name in names if name != OUTSIDE]
    return bool(others) and all(re.fullmatch(r"[BIESLU]-.+", name) for name in others)


def entities(tags: Sequence[str]) -> Iterator[Entity]:
    """Yield the entities in a sentence's tags by the rules of CoNLL's script (Tjong Kim Sang & De Meulder 2003).

    An entity starts at B-, S- or U-, where the kind changes, and after O or the end of another entity (E-,
    L-, S-, U-). It ends before the next entity or O. So I-PER after O also starts an entity.
    """
    start, before = 0, OUTSIDE
    for place, tag in enumerate([*tags, OUTSIDE]):
        begins = tag != OUTSIDE and (
            tag[0] in "B" + ALONE or before == OUTSIDE or before[0] in LAST or tag[2:] != before[2:]
        )
        if before != OUTSIDE and (begins or tag == OUTSIDE):
            yield before[2:], start, place
        if begins:
            start = place
        before = tag
