"""Long sequences beside transformers' Trainer: the same model, samples, batch size and optimiser, turn by turn.

Both pad alike: a Nyströmformer's samples to one width, as its landmarks want it, those of another encoder to the
longest of their batch. Where batches are not the same, what counts is processor time a token of the samples' own.
"""

from __future__ import annotations

import csv
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from leanify.runs import recipe as recipes
from leanify.training import loop

pytestmark = pytest.mark.benchmark
STEPS, TURNS = 6, 9
NYSTROM = ["model.override.length=768", "data.length=768"]
BERT = ["model.source=bert", "model.class=AutoModelForSequenceClassification", "model.override=",
        "model.override.hidden_size=64", "model.override.num_hidden_layers=2", "model.override.num_attention_heads=2",
        "model.override.intermediate_size=128", "model.override.max_position_embeddings=768",
        "data.length=768"]  # fmt: skip


@pytest.fixture(scope="module")
def reviews(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts as unlike in length as reviews are, 200 bytes to more than are read."""
    folder, rng = tmp_path_factory.mktemp("reviews"), np.random.default_rng(0)
    for split in ("train", "test"):
        sizes = rng.lognormal(5.8, 0.6, 600).astype(int) + 100
        with (folder / f"{split}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("text", "label"), *(("ab c" * (size // 4), size % 2) for size in sizes)])
    return folder


class Rival(torch.nn.Module):
    """A model as Trainer takes it: with its loss."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        logits = self.model(input_ids=input_ids, attention_mask=attention_mask)
        return {"loss": cross_entropy(getattr(logits, "logits", logits), labels)}


class Rows(torch.utils.data.Dataset[dict[str, Any]]):
    """Samples one by one, without padding."""

    def __init__(self, samples: Any, order: np.ndarray) -> None:
        whole, indices = samples.whole, samples.indices[order]
        starts = np.concatenate(([0], whole.ends[:-1]))
        self.rows = [
            {
                "input_ids": torch.from_numpy(whole.symbols[starts[i] : whole.ends[i]].astype(np.int64)),
                "labels": int(whole.labels[i]),
            }
            for i in indices
        ]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.rows[index]


def padded(rows: list[dict[str, Any]], width: int | None) -> dict[str, torch.Tensor]:
    """What DataCollatorWithPadding does with max_length or longest."""
    size = width or max(len(row["input_ids"]) for row in rows)
    ids, mask = torch.zeros(len(rows), size, dtype=torch.long), torch.zeros(len(rows), size, dtype=torch.long)
    for place, row in enumerate(rows):
        ids[place, : len(row["input_ids"])], mask[place, : len(row["input_ids"])] = row["input_ids"], 1
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.tensor([row["labels"] for row in rows])}


def theirs(model: Any, rows: Rows, width: int | None, value: Any, output: Path, shuffled: bool) -> float:
    """Processor seconds of all but the first step by Trainer."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    stamps: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            stamps.append(time.process_time())

    class InOrder(Trainer):
        def _get_train_sampler(self, dataset: Any = None) -> Any:
            return super()._get_train_sampler(dataset) if shuffled else torch.utils.data.SequentialSampler(rows)

    arguments = TrainingArguments(
        output_dir=str(output),
        per_device_train_batch_size=value.schedule.batch_size,
        max_steps=STEPS,
        learning_rate=value.optim.lr,
        weight_decay=0.0,
        max_grad_norm=0.0,
        optim="adamw_torch_fused",
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        remove_unused_columns=False,
    )
    InOrder(model, arguments, lambda found: padded(found, width), rows, callbacks=[Clock()]).train()
    return stamps[-1] - stamps[0]


def ours(trainer: loop.Trainer, start: int) -> float:
    """Processor seconds of all but the first of the steps from ``start`` on."""
    batches, begun = trainer.batches(start), 0.0
    for step in range(start, start + STEPS):
        trainer.step(step, batches)
        begun = begun or time.process_time()
    return time.process_time() - begun


@pytest.mark.parametrize(
    ("model", "shuffled"),
    [("nystromformer", False), ("bert", False), ("bert", True)],
    ids=["Nyströmformer", "BERT, the same batches", "BERT, Trainer's own order"],
)
def test_at_least_as_fast_as_trainer(model: str, shuffled: bool, reviews: Path, tmp_path: Path) -> None:
    settings = [*(NYSTROM if model == "nystromformer" else BERT), f"data.path={reviews}", "data.test=",
                "schedule.batch_size=4", "run.precision=fp32"]  # fmt: skip
    value = recipes.with_settings(recipes.load("lra-text"), settings)
    trainer, rival = loop.Trainer(value), Rival(loop.Trainer(value).bare)
    samples: Any = trainer.splits.train
    width, sizes = samples.whole.width, samples.whole.sizes[samples.indices]
    turns = []
    for turn in range(TURNS):
        order = np.concatenate([trainer.order.batch(turn * STEPS + step) for step in range(STEPS)])
        rows = Rows(samples, np.arange(len(samples)) if shuffled else order)
        runs = [
            lambda rows=rows: theirs(rival, rows, width, value, tmp_path, shuffled),
            lambda n=turn: ours(trainer, n * STEPS),
        ]
        times = [run() for run in (runs if turn % 2 else runs[::-1])]  # each comes first in half of the turns
        other, mine = times if turn % 2 else times[::-1]
        if shuffled:
            other, mine = other / sizes.mean(), mine / sizes[order].mean()
        turns.append(other / mine)
    ratio = statistics.median(turns)
    print(f"\n{model}, {'own order' if shuffled else 'the same batches'}: {ratio:.3f} times Trainer; turns {turns}")
    assert ratio >= 1.0
