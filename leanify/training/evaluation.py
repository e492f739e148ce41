"""A task's metrics over a split, computed by all processes together."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from leanify.data.common import chosen
from leanify.data.samples import Batch, Reader, Samples, Splits
from leanify.data.sampling import in_turn
from leanify.errors import DataError
from leanify.runs.recipe import TrainingRecipe
from leanify.tasks import Tally, Task, merged
from leanify.training import sharding
from leanify.upstream.wall import wall

if TYPE_CHECKING:
    from accelerate import Accelerator


def first_sample(splits: Splits) -> Batch:
    """The first validation sample, as a batch of one."""
    [batch] = Reader(splits.validation, [[(0, 0)]], seed=0, workers=0)
    return batch


class Evaluator:
    """Evaluates models on the recipe's splits. ``skipped`` collects the samples that could not be read."""

    def __init__(
        self,
        recipe: TrainingRecipe,
        splits: Splits,
        task: Task,
        accelerator: Accelerator,
        sharded: bool,
        skipped: set[str],
    ) -> None:
        self.recipe, self.splits, self.task, self.accelerator = recipe, splits, task, accelerator
        self.sharded, self.skipped, self.first = sharded, skipped, first_sample(splits)
        self.validation: Reader | None = None  # kept between evaluations, with its workers
        self.tally: Tally | None = None  # of the last evaluation

    @torch.no_grad()
    def metrics(self, model: nn.Module, split: Samples | None = None) -> dict[str, float]:
        """Metrics over a split, else over ``run.eval_batches`` of validation. Ends in training mode."""
        from accelerate.utils import gather_object

        samples, limit = (self.splits.validation, self.recipe.run.eval_batches) if split is None else (split, None)
        size = self.recipe.schedule.batch_size
        number = min(len(samples), size * (limit or len(samples)))
        keys = in_turn(
            chosen(samples, number, self.recipe.data.subset),
            size,
            self.accelerator.process_index,
            self.accelerator.num_processes,
        )
        began, parts = time.perf_counter(), []
        model.eval()
        for batch in self._reader(samples, keys, again=split is None):
            with self.accelerator.autocast():
                found = self.task.found(model, *self.moved(batch))
            parts.append({name: value.double() for name, value in found.items()})
        if self.sharded and len(keys) < -(-number // size):  # the others gather weights once more, and this one helps
            with self.accelerator.autocast():
                self.task.found(model, *self.moved(self.first))
        sharding.drop(model.train())
        self.tally = merged(parts)
        if self.accelerator.num_processes > 1:  # the sum over all; one without samples adds nothing
            self.tally = merged(gather_object([self.tally]))
        seconds = max(time.perf_counter() - began, 1e-9)
        return self.task.metrics(self.tally) | {"samples_per_s": round(number / seconds, 1)}

    @torch.no_grad()
    def try_one(self, model: nn.Module) -> None:
        """Run one validation sample through the model, to find what does not fit before writing anything."""
        with wall(f"{self.recipe.model.source} does not run on a sample of the data", DataError):
            self.task.found(model.eval(), *self.moved(self.first))
        sharding.drop(model.train())

    def loss_of_one(self, model: nn.Module) -> Tensor:
        """The training loss of one sample, twice: a batch norm refuses a single number."""
        inputs, targets = tree_map_only(Tensor, lambda x: torch.cat([x, x]), self.first)
        return self.task.loss(model.to(self.accelerator.device).train(), *self.moved((inputs, targets)))

    def moved(self, batch: Batch) -> Batch:
        """The batch on the device, its inputs scaled as the model takes them."""
        from accelerate.utils import send_to_device

        inputs, targets = send_to_device(batch, self.accelerator.device, non_blocking=True)
        scaled = self.splits.scaled(inputs)
        if self.recipe.run.channels_last and isinstance(scaled, Tensor) and scaled.dim() == 4:
            scaled = scaled.contiguous(memory_format=torch.channels_last)
        return scaled, targets

    def _reader(self, samples: Samples, keys: list[list[tuple[int, int]]], again: bool) -> Reader:
        if again and self.validation is not None:
            return self.validation
        seed, data = self.recipe.run.seed, self.recipe.data
        pin = self.accelerator.device.type == "cuda"
        reader = Reader(
            samples, keys, seed, data.workers, pin, again=again, skipped=self.skipped, prefetch=data.prefetch
        )
        if again:
            self.validation = reader
        return reader
