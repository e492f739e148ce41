"""transformers' Trainer on what a recipe says: the same model, text, batches, optimiser and schedule.

python -m recipes.research.rival_curves RUN… -o FILE.svg

trains the first run's recipe by Trainer and draws the curves.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch

from leanify.core.recipe import Recipe
from leanify.runs.run_directory import RunDirectory
from leanify.training import loop


class Windows(torch.utils.data.Dataset[dict[str, Any]]):
    """The samples of a recipe's steps, one after another, as Trainer takes them: whole windows without padding."""

    def __init__(self, samples: Any, order: np.ndarray) -> None:
        self.samples, self.order = samples, order

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        inputs, targets = self.samples.batch(self.order[index : index + 1])
        ids = inputs["input_ids"][0]
        return {"input_ids": ids, "labels": targets[0]}


def train_by_trainer(recipe: Recipe, output: Path | None) -> list[dict[str, Any]]:
    """Train by transformers' Trainer, with a checkpoint at the end where there is an output; the rows of its log."""
    from transformers import Trainer, TrainingArguments

    ours = loop.Trainer(recipe)  # the same weights to begin with
    assert recipe.optim is not None
    assert recipe.schedule is not None
    assert recipe.schedule.steps is not None
    steps = recipe.schedule.steps
    order = np.concatenate([ours.order.batch(step) for step in range(steps)])
    each = recipe.schedule.batch_size // ours.accelerator.num_processes
    batches = recipe.run.eval_batches or 10**9
    held = np.arange(min(len(ours.splits.validation), batches * recipe.schedule.batch_size))

    class InOrder(Trainer):
        def _get_train_sampler(self, dataset: Any = None) -> Any:
            return torch.utils.data.SequentialSampler(dataset or self.train_dataset)

        def compute_loss(self, model: Any, inputs: Any, *rest: Any, **words: Any) -> Any:
            shifted = {"input_ids": inputs["input_ids"], "shift_labels": inputs["labels"], "labels": inputs["labels"]}
            return super().compute_loss(model, shifted, *rest, **words)

    arguments = TrainingArguments(
        output_dir=str(output or "."),
        per_device_train_batch_size=each,
        per_device_eval_batch_size=each,
        max_steps=steps,
        learning_rate=recipe.optim.lr,
        weight_decay=recipe.optim.weight_decay,
        adam_beta1=recipe.optim.betas[0],
        adam_beta2=recipe.optim.betas[1],
        adam_epsilon=recipe.optim.eps,
        max_grad_norm=recipe.optim.clip or 0.0,
        lr_scheduler_type=recipe.schedule.kind,
        warmup_steps=int(recipe.schedule.warmup),
        logging_steps=recipe.run.log_every,
        eval_strategy="steps",
        eval_steps=recipe.run.eval_every,
        save_strategy="no" if output is None else "steps",
        save_steps=steps,
        save_total_limit=1,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        ddp_backend="gloo" if ours.accelerator.num_processes > 1 else None,
        seed=recipe.run.seed,
    )
    held_out = Windows(ours.splits.validation, held)
    trainer = InOrder(
        ours.unwrapped_model, arguments, train_dataset=Windows(ours.splits.train, order), eval_dataset=held_out
    )
    trainer.train()
    return list(trainer.state.log_history)


def main() -> None:
    import matplotlib
    import matplotlib.pyplot as plt

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("-o", "--output", type=Path, required=True)
    given = parser.parse_args()
    rows = train_by_trainer(RunDirectory.open(given.runs[0]).recipe, None)
    theirs = {row["step"]: row["loss"] for row in rows if "loss" in row}
    matplotlib.rcParams["svg.hashsalt"] = "leanify"
    _, (above, below) = plt.subplots(2, sharex=True, figsize=(7, 6), height_ratios=(2, 1))
    above.plot(theirs.keys(), theirs.values(), color="black", lw=3, alpha=0.3, label="transformers' Trainer, seed 0")
    for path in given.runs:
        run = RunDirectory.open(path)
        ours = {row["step"]: row["loss"] for row in run.rows() if row["split"] == "train"}
        [line] = above.plot(ours.keys(), ours.values(), lw=1, label=f"leanify, seed {run.recipe.run.seed}")
        apart = {step: ours[step] - theirs[step] for step in ours}
        below.plot(apart.keys(), apart.values(), lw=1, color=line.get_color())
        print(path, "largest distance", max(map(abs, apart.values())), "mean", sum(apart.values()) / len(apart))
        print(*(row for row in run.rows() if row["split"] == "validation"), sep="\n")
    print(*(row for row in rows if "eval_loss" in row), sep="\n")
    above.set_ylabel("training loss, nats a byte")
    below.set_ylabel("leanify − Trainer")
    below.set_xlabel("step")
    above.legend()
    plt.tight_layout()
    plt.savefig(given.output)


if __name__ == "__main__":
    main()
