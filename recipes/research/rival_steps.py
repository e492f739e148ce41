"""Training steps on texts beside transformers' Trainer: the same model, data, batch size and optimiser, turn by turn.

    python -m recipes.research.rival_steps [CASE…]
    python -m recipes.research.rival_steps --small      one short turn of each: whether it runs

masked           masked words; Trainer masks with its own collator, each token with the same probability
fine-tuning      sentences of 5 to 60 words; both pad to the longest of a batch
long             the same with a BERT on texts of up to 768 bytes
nystromformer    the same with a Nyströmformer, which wants every sample padded to one width

Turns alternate on one thread, and each is timed from the end of its first step to the end of its last, so that nobody
pays for setting up. All but ``masked`` run twice: on the same batches, and with Trainer in its own random order, where
what counts is the processor time of a token: padding is nobody's merit.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from leanify.core import recipe as recipes
from leanify.training import loop

BERT = ["model.source=bert", "model.override=", "model.override.hidden_size=128", "model.override.num_hidden_layers=4",
        "model.override.num_attention_heads=2", "model.override.intermediate_size=512"]  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A recipe's trainer, Trainer's samples one by one without padding, and how Trainer makes a batch of them."""

    trainer: loop.Trainer
    rows: list[dict[str, Any]]
    collate: Callable[[list[dict[str, Any]]], Any]

    @property
    def lengths(self) -> np.ndarray:
        return np.array([len(row["input_ids"]) for row in self.rows])


# -- the cases --------------------------------------------------------------------------------------------------------


def masked(folder: Path) -> Case:
    from transformers import DataCollatorForLanguageModeling

    settings = [*BERT, "model.override.vocab_size=4096", "model.class=AutoModelForMaskedLM", "schedule.batch_size=32",
                "schedule.batch_ramp=", "schedule.tokens=1500000"]  # fmt: skip
    trainer = loop.Trainer(recipes.apply_settings(recipes.load("masked-small"), settings))
    samples: Any = trainer.splits.train
    rows = [{"input_ids": row.astype(np.int64).tolist()} for row in samples.rows]
    return Case(trainer, rows, DataCollatorForLanguageModeling(trainer.splits.tokenizer, mlm_probability=0.25))


def fine_tuning(folder: Path) -> Case:
    draw = np.random.default_rng(0)
    words = [f"w{i}" for i in range(300)]
    for split, number in (("train", 3000), ("validation", 16)):
        sizes = np.minimum(60, 5 + draw.exponential(12, number)).astype(int)
        write_rows(folder / f"{split}.csv", [(" ".join(draw.choice(words, size)), size % 2) for size in sizes])
    settings = [*BERT, "model.override.vocab_size=2048", f"data.path={folder}", "schedule.batch_size=16"]
    return labelled(loop.Trainer(recipes.apply_settings(recipes.load("own-sentences"), settings)), 0)


def long(folder: Path) -> Case:
    settings = [*BERT, "model.class=AutoModelForSequenceClassification", "model.override.hidden_size=64",
                "model.override.num_hidden_layers=2", "model.override.intermediate_size=128",
                "model.override.max_position_embeddings=768"]  # fmt: skip
    return reviews(folder, settings)


def nystromformer(folder: Path) -> Case:
    return reviews(folder, ["model.override.length=768"], 768)


CASES = {"masked": masked, "fine-tuning": fine_tuning, "long": long, "nystromformer": nystromformer}


def write_rows(file: Path, rows: list[tuple[str, int]]) -> None:
    with file.open("w", newline="", encoding="utf-8") as out:
        csv.writer(out).writerows([("text", "label"), *rows])


def reviews(folder: Path, settings: list[str], width: int = 0) -> Case:
    """Texts as unlike in length as reviews are, 200 bytes to more than are read."""
    draw = np.random.default_rng(0)
    for split in ("train", "test"):
        sizes = draw.lognormal(5.8, 0.6, 600).astype(int) + 100
        write_rows(folder / f"{split}.csv", [("ab c" * (size // 4), size % 2) for size in sizes])
    more = ["data.length=768", f"data.path={folder}", "data.test=", "schedule.batch_size=4", "run.precision=fp32"]
    return labelled(loop.Trainer(recipes.apply_settings(recipes.load("lra-text"), [*settings, *more])), width)


def labelled(trainer: loop.Trainer, width: int) -> Case:
    """``width``: to which all samples are padded; 0 pads to the longest of a batch."""
    samples: Any = trainer.splits.train
    rows = []
    for index in range(len(samples)):
        inputs, label = samples.batch(np.array([index]))
        ids = inputs["input_ids"][0]
        if "attention_mask" in inputs:  # there is none where nothing is padded
            ids = ids[inputs["attention_mask"][0].bool()]
        rows.append({"input_ids": ids, "labels": int(label[0])})

    def collate(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
        """What DataCollatorWithPadding does with max_length or longest."""
        size = width or max(len(row["input_ids"]) for row in rows)
        ids, mask = torch.zeros(len(rows), size, dtype=torch.long), torch.zeros(len(rows), size, dtype=torch.long)
        for place, row in enumerate(rows):
            ids[place, : len(row["input_ids"])], mask[place, : len(row["input_ids"])] = row["input_ids"], 1
        return {"input_ids": ids, "attention_mask": mask, "labels": torch.tensor([row["labels"] for row in rows])}

    return Case(trainer, rows, collate)


# -- both sides -------------------------------------------------------------------------------------------------------


class Classifier(torch.nn.Module):
    """A model as Trainer takes it: with its loss."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.model(input_ids=input_ids, attention_mask=attention_mask)
        return {"loss": cross_entropy(getattr(logits, "logits", logits), labels)}


class Ordered(torch.utils.data.Dataset[Any]):
    """Samples in a given order."""

    def __init__(self, rows: list[dict[str, Any]], order: np.ndarray) -> None:
        self.rows, self.order = rows, order

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.rows[self.order[index]]


def ours(trainer: loop.Trainer, first: int, steps: int) -> float:
    """Processor seconds of the steps after ``first``."""
    batches, start = trainer.batches(first), 0.0
    for step in range(first, first + steps):
        trainer.step(step, batches)
        start = start or time.process_time()
    return time.process_time() - start


def theirs(model: Any, data: Ordered, case: Case, steps: int, shuffled: bool, folder: Path) -> float:
    """Processor seconds of all but the first step by Trainer."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    stamps: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            stamps.append(time.process_time())

    class InOrder(Trainer):
        def _get_train_sampler(self, dataset: Any = None) -> Any:
            return super()._get_train_sampler(dataset) if shuffled else torch.utils.data.SequentialSampler(data)

    recipe = case.trainer.recipe
    arguments = TrainingArguments(
        output_dir=str(folder / "trainer"),
        per_device_train_batch_size=recipe.schedule.batch_size,
        max_steps=steps,
        learning_rate=recipe.optim.lr,
        max_grad_norm=recipe.optim.clip or 0.0,
        optim="adamw_torch_fused",
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        remove_unused_columns=False,
    )
    InOrder(model, arguments, case.collate, data, callbacks=[Clock()]).train()
    return stamps[-1] - stamps[0]


def compare(case: Case, turns: int, steps: int, shuffled: bool, folder: Path) -> float:
    """How many times as fast ours is, by the medians of the turns; each side comes first in half of them."""
    model: Any = loop.Trainer(case.trainer.recipe).unwrapped_model  # another of the same
    if "labels" in case.rows[0]:
        model = Classifier(model)
    pairs = []
    for turn in range(turns):
        first = turn * steps
        order = np.concatenate([case.trainer.order.batch(step) for step in range(first, first + steps)])
        data = Ordered(case.rows, np.arange(len(case.rows)) if shuffled else order)
        sides = [
            lambda data=data: theirs(model, data, case, steps, shuffled, folder),
            lambda first=first: ours(case.trainer, first, steps),
        ]
        times = [side() for side in (sides if turn % 2 else sides[::-1])]
        other, mine = times if turn % 2 else times[::-1]
        if shuffled:  # not the same samples: a token of their own
            other, mine = other / case.lengths.mean(), mine / case.lengths[order].mean()
        pairs.append((other, mine))
    other, mine = (statistics.median(column) for column in zip(*pairs, strict=True))
    return other / mine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--steps", type=int, default=9, help="of a turn")
    parser.add_argument("--small", action="store_true", help="one turn of two steps")
    options = parser.parse_args()
    turns, steps = (1, 2) if options.small else (options.turns, options.steps)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print("| case | Trainer's order | times Trainer's throughput |\n|---|---|---|")
    for name in options.cases or CASES:
        with tempfile.TemporaryDirectory() as folder:
            case = CASES[name](Path(folder))
            for shuffled in (False,) if name == "masked" else (False, True):
                ratio = compare(case, turns, steps, shuffled, Path(folder))
                print(f"| {name} | {'its own' if shuffled else 'the same batches'} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
