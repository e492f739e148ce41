"""A checkpoint that `checkpoints.py` brings to a budget: its samples, its answers to them, and another model's."""

from __future__ import annotations

import copy
import csv
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leanify.core.errors import LeanifyError
from leanify.data.samples import Keyed, Splits
from leanify.data.texts import corpus, own_texts, sentences, tokenizers
from leanify.data.texts.encoded import takes_types
from leanify.layouts.faults import Faults
from leanify.shrinking.resolve import resolve
from leanify.sources.heads import read_pooling
from leanify.tasks import answer
from leanify.tasks.regression import correlation
from leanify.tasks.sentence_embedding import embed
from leanify.training.preparation import data_section

SCORES = {  # what the score of a task is called in the table; more is better
    "sentence-embedding": "cosine",
    "causal-lm": "nats a byte",
    "masked-lm": "nats a byte",
    "classification": "top-1",
    "text-classification": "accuracy",
    "text-regression": "Spearman",
}
TRAINED = 20_000  # samples at most that an arm may see
LENGTH, CROWD = 128, 1000  # tokens of a text; embeddings among which neighbours are counted
MASK_EVERY = 7  # of so many tokens one is masked, about BERT's 15%
Sample = tuple[tuple[Any, ...], Any]  # its texts, or a picture's split and index; and its label


@dataclass(frozen=True)
class Small:
    """A model with what reads its samples: a tokenizer, which no longer splits texts as the original's, or splits."""

    model: nn.Module
    reader: Any

    def inputs(self, samples: Sequence[Sample]) -> dict[str, Tensor] | Tensor:
        if isinstance(self.reader, Splits):
            return self.reader.scale_inputs(read_pictures(self.reader, samples)[0])
        columns = [list(column) for column in zip(*(texts for texts, _ in samples), strict=True)]
        if self.reader.pad_token_id is None:
            self.reader.pad_token = self.reader.eos_token
        length = min(LENGTH, self.reader.model_max_length)
        encoded = self.reader(*columns, truncation=True, max_length=length, padding=True, return_tensors="pt")
        names = ("input_ids", "attention_mask", *["token_type_ids"] * takes_types(self.model))
        return {key: value for key, value in encoded.items() if key in names}


def read_pictures(splits: Splits, samples: Sequence[Sample]) -> Any:
    """The pictures (B, C, H, W) of one split, not yet scaled, and their labels (B,)."""
    split = samples[0][0][0]
    return Keyed(getattr(splits, split), 0).__getitems__([(0, index) for (_, index), _ in samples])[:2]


class Subject:
    """A checkpoint, its samples, what its answers are, and how well another model gives them."""

    def __init__(self, source: Path, data: Path, small: bool) -> None:
        original = resolve(source, data, [])
        self.source, self.data, self.task = source, data, original.recipe.data.task
        if self.task not in SCORES:
            raise LeanifyError(f"{source} on {data} is {self.task}; compared are {', '.join(SCORES)}")
        self.is_language_model = self.task.endswith("-lm")
        self.section, self.pooling = data_section(original.recipe), read_pooling(source)
        self.steps, self.batch = (3, 4) if small else (30, 4) if self.is_language_model else (60, 32)
        self.rates = (3e-4, 1e-3) if self.task == "sentence-embedding" else (5e-5, 2e-4)
        judged = 16 if small else 120 if self.is_language_model else CROWD
        if self.task == "classification":
            splits = original.splits
            self.original = Small(original.module, replace(splits, train=splits.unchanged or splits.train))
            self.train, self.choosing, self.judging = (
                self._draw(split, count)
                for split, count in (("train", TRAINED), ("validation", judged // 4), ("test", judged))
            )
            return
        self.original = Small(original.module, tokenizers.load(source))
        rows = list(self._read())
        random.Random(0).shuffle(rows)
        judged = min(judged, len(rows) // 4)
        self.judging, self.choosing = rows[:judged], rows[judged : judged + judged // 4]
        self.train = rows[2 * judged :][:TRAINED]

    def _draw(self, split: str, count: int) -> list[Sample]:
        """Some pictures of a split as `leanify shrink` reads it, with their labels but for training."""
        splits = self.original.reader
        total = len(getattr(splits, split))
        indices = random.Random(0).sample(range(total), min(count, total))
        samples: list[Sample] = [((split, index), None) for index in indices]
        if split == "train":  # the original's answers are learnt
            return samples
        return [(place, int(read_pictures(splits, [(place, None)])[1])) for place, _ in samples]

    def _read(self) -> Iterable[Sample]:
        """All samples of the data's own training split."""
        faults = Faults(skip=True)
        if self.task == "sentence-embedding":
            file = sentences.find_file(self.data, "train")
            assert file is not None
            return [((text,), 0) for text in sentences.read_sentences(file, self.section, faults)]
        if self.is_language_model:
            texts, _ = corpus.find_texts(self.section, faults)
            whole = texts[0] if isinstance(texts[0], str) else texts[0].read()
            pieces = [whole[start : start + 4 * LENGTH] for start in range(0, len(whole), 4 * LENGTH)]
            return [((piece,), 0) for piece in pieces if piece.strip()]
        table = own_texts.read_split_table(self.section, self.section.train, faults)
        if self.task == "text-regression":
            return [(texts, float(label)) for texts, label in table.rows]
        names = self.original.model.config.label2id
        by_name = {str(index): index for index in names.values()}  # a table may number the classes
        by_name |= {str(name).lower(): index for name, index in names.items()}
        return [(texts, by_name[label.lower()]) for texts, label in table.rows if label.lower() in by_name]

    def write(self, file: Path, rows: Sequence[Sample]) -> None:
        """Write texts as `leanify shrink` reads them: a text file for a language model, otherwise a table."""
        if self.is_language_model:
            file.with_suffix(".txt").write_text("\n".join(texts[0] for texts, _ in rows), encoding="utf-8")
            return
        columns = ["text"] if len(rows[0][0]) == 1 else ["text1", "text2"]
        with file.with_suffix(".csv").open("w", newline="", encoding="utf-8") as lines:
            writer = csv.writer(lines)
            if self.task == "sentence-embedding":
                writer.writerows([columns, *(texts for texts, _ in rows)])
                return
            names = getattr(self.original.model.config, "id2label", {})
            writer.writerows([[*columns, "label"], *([*texts, names.get(label, label)] for texts, label in rows)])

    def answer(self, small: Small, samples: Sequence[Sample]) -> Tensor:
        """Embeddings (B, width), logits of classes (B, classes), or the loss of each text in nats a byte (B,)."""
        inputs: Any = small.inputs(samples)
        if self.task == "sentence-embedding":
            return embed(small.model, inputs, self.pooling)
        if not self.is_language_model:
            return answer(small.model, inputs)
        # each token from those before it; of a masked model every seventh, which stands for seven
        ids = inputs["input_ids"]
        counted, weight = inputs["attention_mask"].bool(), 1
        if self.task == "masked-lm":
            special = torch.isin(ids, torch.tensor(small.reader.all_special_ids))
            counted, weight = counted & ~special & (torch.arange(ids.shape[1]) % MASK_EVERY == 1), MASK_EVERY
            inputs["input_ids"] = torch.where(counted, small.reader.mask_token_id, ids)
        logits = answer(small.model, inputs)
        if self.task == "causal-lm":
            logits, ids, counted = logits[:, :-1], ids[:, 1:], counted[:, 1:]
        loss = F.cross_entropy(logits.transpose(1, 2), ids, reduction="none")
        size = torch.tensor([len(texts[0].encode()) for texts, _ in samples])
        return weight * (loss * counted).sum(1) / size

    def loss(self, small: Small, samples: Sequence[Sample], noise: float = 0.0) -> Tensor:
        """Towards the original's answers to the same texts; of a language model, of the texts themselves.

        ``noise`` is a dropout on the answers: at the original itself the gradient would be 0.
        """
        answers = F.dropout(self.answer(small, samples), noise)
        if self.is_language_model:
            return answers.mean()
        with torch.no_grad():
            target = self.answer(self.original, samples)
        if self.task == "sentence-embedding":
            return (1 - F.cosine_similarity(answers, target)).mean()
        if self.task == "text-regression":
            return F.mse_loss(answers, target)
        return F.kl_div(answers.log_softmax(-1), target.log_softmax(-1), reduction="batchmean", log_target=True)

    @torch.no_grad()
    def answers(self, small: Small, samples: Sequence[Sample]) -> Tensor:
        """All answers, in the order of the samples."""
        small.model.eval()
        order = list(range(len(samples)))
        if self.task != "classification":  # texts of similar length are padded least
            order.sort(key=lambda i: sum(map(len, samples[i][0])))
        rows: list[Any] = [None] * len(samples)
        for start in range(0, len(order), 32):
            some = order[start : start + 32]
            for i, row in zip(some, self.answer(small, [samples[i] for i in some]), strict=True):
                rows[i] = row
        return torch.stack(rows)

    def score(self, small: Small, samples: Sequence[Sample]) -> float:
        """Cosine to the original's embeddings, right classes or correlation in percent, or −(nats a byte)."""
        answers = self.answers(small, samples)
        if self.task == "sentence-embedding":
            return float(F.cosine_similarity(answers, self.answers(self.original, samples)).mean())
        if self.is_language_model:
            return -float(answers.mean())
        labels = torch.tensor([label for _, label in samples])
        if self.task == "text-regression":
            return 100 * correlation("spearmanr", labels.numpy(), answers[:, 0].numpy())
        return 100 * float((answers.argmax(-1) == labels).float().mean())

    def best(self, candidates: Iterable[Small]) -> Small:
        """The best on the choosing samples; one is held at a time beside the best."""
        scored = max(((self.score(small, self.choosing), i, small) for i, small in enumerate(candidates)), default=None)
        if scored is None:
            raise LeanifyError("no candidate meets the budget")
        return scored[2]

    def heal(self, small: Small, seed: int) -> Iterator[Small]:
        """Yield the model after equal steps at each rate."""
        for rate in self.rates:
            student = Small(copy.deepcopy(small.model).train(), small.reader)
            for module in student.model.modules():
                if isinstance(module, nn.Dropout):
                    module.p = 0.0
            optimiser = torch.optim.AdamW(student.model.parameters(), rate, weight_decay=0.0)
            drawn = random.Random(seed)
            for step in range(self.steps):
                warm = min(1.0, (step + 1) / (0.1 * self.steps))
                for group in optimiser.param_groups:
                    group["lr"] = rate * warm * 0.5 * (1 + math.cos(math.pi * step / self.steps))
                optimiser.zero_grad()
                self.loss(student, drawn.sample(self.train, min(self.batch, len(self.train)))).backward()
                nn.utils.clip_grad_norm_(student.model.parameters(), 1.0)
                optimiser.step()
            yield student
