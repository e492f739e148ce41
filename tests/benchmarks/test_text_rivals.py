"""Masked language modelling and fine-tuning beside transformers' Trainer: the same model, data, batch and optimiser.

Turns alternate. A turn is timed from the end of its first step to the end of its last, so that nobody pays for setting
up; what counts are samples a second, and within a sample only its own tokens: padding is nobody's merit.
"""

from __future__ import annotations

import statistics
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from leanify.data.texts import vocabulary
from leanify.runs import recipe as recipes
from leanify.runs.recipe import Recipe
from leanify.training import loop

pytestmark = pytest.mark.benchmark
STEPS, TURNS = 9, 7
BERT = ["model.override.hidden_size=128", "model.override.num_hidden_layers=4", "model.override.num_attention_heads=2",
        "model.override.intermediate_size=512", "model.override.vocab_size=4096"]  # fmt: skip


def ours(trainer: loop.Trainer, start: int) -> float:
    """Seconds of the steps after ``start``."""
    batches, begun = trainer.batches(start), 0.0
    for step in range(start, start + STEPS):
        trainer.step(step, batches)
        begun = begun or time.perf_counter()
    return time.perf_counter() - begun


class Ordered(torch.utils.data.Dataset[Any]):
    """Samples in the order in which ours come."""

    def __init__(self, samples: list[dict[str, Any]], order: np.ndarray) -> None:
        self.samples, self.order = samples, order

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.samples[self.order[index]]


def theirs(model: Any, data: Ordered, collator: Any, recipe: Recipe, shuffled: bool) -> float:
    """Seconds of the same steps by Trainer."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    stamps: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            stamps.append(time.perf_counter())

    class InOrder(Trainer):
        def _get_train_sampler(self, dataset: Any = None) -> Any:
            chosen = dataset or self.train_dataset
            return super()._get_train_sampler(dataset) if shuffled else torch.utils.data.SequentialSampler(chosen)

    assert recipe.optim is not None
    assert recipe.schedule is not None
    arguments = TrainingArguments(
        output_dir="/tmp/nothing",
        per_device_train_batch_size=recipe.schedule.batch_size,
        max_steps=STEPS,
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
    InOrder(model, arguments, collator, data, callbacks=[Clock()]).train()
    return stamps[-1] - stamps[0]


def ratio(name: str, pairs: list[tuple[float, float]]) -> float:
    """How many times as fast ours is, by the medians of the turns."""
    mine, other = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(f"{name}: {other / mine:.2f} times Trainer's throughput")
    return other / mine


def test_masked_language_modelling() -> None:
    """Trainer masks with its own collator, which chooses each token with the same probability."""
    from transformers import DataCollatorForLanguageModeling

    settings = ["model.source=bert", "model.class=AutoModelForMaskedLM", "model.override=", *BERT,
                "schedule.batch_size=32", "schedule.batch_ramp=", "schedule.tokens=1500000"]  # fmt: skip
    trainer = loop.Trainer(recipes.with_settings(recipes.load("masked-small"), settings))
    rival = loop.Trainer(trainer.recipe).bare  # another of the same
    samples = trainer.splits.train
    rows = [{"input_ids": row.astype(np.int64).tolist()} for row in samples.rows]  # type: ignore[attr-defined]
    collator = DataCollatorForLanguageModeling(trainer.splits.tokenizer, mlm_probability=0.25)
    pairs = []
    for turn in range(TURNS):
        steps = range(turn * STEPS, (turn + 1) * STEPS)
        order = np.concatenate([trainer.order.batch(step) for step in steps])
        other = theirs(rival, Ordered(rows, order), collator, trainer.recipe, shuffled=False)
        pairs.append((ours(trainer, steps.start), other))
    assert ratio("masked language modelling", pairs) >= 1.0


@pytest.fixture(scope="module")
def sentences(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sentences of 5 to 60 words, as unlike in length as GLUE's."""
    folder, rng = tmp_path_factory.mktemp("glue"), np.random.default_rng(0)
    words = [f"w{i}" for i in range(300)]
    for split, number in (("train", 3000), ("validation", 16)):
        lengths = np.minimum(60, 5 + rng.exponential(12, number)).astype(int)
        lines = [f"{' '.join(rng.choice(words, length))}\t{length % 2}" for length in lengths]
        (folder / "sst2").mkdir(exist_ok=True)
        (folder / f"sst2/{split}.tsv").write_text("\n".join(["sentence\tlabel", *lines]) + "\n")
    made = vocabulary._dressed(vocabulary._trained(2000, (folder / "sst2/train.tsv").read_text().splitlines))
    made.save_pretrained(folder / "tokenizer")
    return folder


@pytest.mark.parametrize("shuffled", [False, True], ids=["the same batches", "Trainer's own order"])
def test_fine_tuning(shuffled: bool, sentences: Path) -> None:
    """Trainer pads to the longest of a batch too; in its own order, a batch has sentences of any length."""
    from transformers import DataCollatorWithPadding

    settings = ["model.source=bert", *BERT, f"data.path={sentences}", f"data.tokenizer={sentences / 'tokenizer'}"]
    value = recipes.with_settings(recipes.load("glue"), settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        trainer = loop.Trainer(value)
        rival = loop.Trainer(value).bare
    samples: Any = trainer.splits.train
    rows = [
        {name: values[0].tolist() for name, values in inputs.items()} | {"labels": int(label[0])}
        for inputs, label in (samples.batch(np.array([i])) for i in range(len(samples)))
    ]
    collator = DataCollatorWithPadding(trainer.splits.tokenizer)
    pairs = []
    for turn in range(TURNS):
        steps = range(turn * STEPS, (turn + 1) * STEPS)
        order = np.concatenate([trainer.order.batch(step) for step in steps])
        data = Ordered(rows, np.arange(len(rows)) if shuffled else order)
        other = theirs(rival, data, collator, value, shuffled)
        mine = ours(trainer, steps.start)
        if shuffled:  # not the same sentences: per token of their own
            mine /= samples.lengths[order].sum()
            other /= samples.lengths.mean() * len(order)
        pairs.append((mine, other))
    name = "Trainer's own order" if shuffled else "the same batches"
    assert ratio(f"fine-tuning, {name}", pairs) >= 1.0
