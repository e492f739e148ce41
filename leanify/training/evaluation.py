"""A task's metrics over a split, computed by all processes together."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from leanify.core.errors import DataError
from leanify.core.recipe import TrainingRecipe
from leanify.data.common import choose_indices
from leanify.data.samples import Batch, Reader, Samples, Splits
from leanify.data.sampling import Key, evaluation_batches
from leanify.tasks import Tally, Task, merge_tallies
from leanify.training import sharding
from leanify.upstream.libraries import reraise_as
from leanify.upstream.origin import in_mode

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
        skipped_names: set[str],
    ) -> None:
        self.recipe, self.splits, self.task, self.accelerator = recipe, splits, task, accelerator
        self.skipped_names, self.first = skipped_names, first_sample(splits)
        self.validation: Reader | None = None  # kept between evaluations, with its workers
        self.tally: Tally | None = None  # of the last evaluation

    @torch.no_grad()
    def metrics(self, model: nn.Module, split: Samples | None = None) -> dict[str, float]:
        """Metrics over a split, by default over ``run.eval_batches`` of validation. Ends in training mode."""
        from accelerate.utils import gather_object

        # this process's share of the samples: each in one process and once
        samples, limit = (self.splits.validation, self.recipe.run.eval_batches) if split is None else (split, None)
        size = self.recipe.schedule.batch_size
        number = min(len(samples), size * (limit or len(samples)))
        keys = evaluation_batches(
            choose_indices(samples, number, self.recipe.data.subset),
            size,
            self.accelerator.process_index,
            self.accelerator.num_processes,
        )
        start_time, parts = time.perf_counter(), []
        if split is not None:
            reader = self.reader(samples, keys)
        else:
            reader = self.validation = self.validation or self.reader(samples, keys, again=True)
        model.eval()
        for batch in reader:
            with self.accelerator.autocast():
                tally = self.task.tally_batch(model, *self.to_device(batch))
            parts.append({name: value.double() for name, value in tally.items()})

        # a process without a last batch runs one all the same: the others need its rows of a sharded model
        most_batches = -(-number // size)
        if sharding.is_sharded(model) and len(keys) < most_batches:
            with self.accelerator.autocast():
                self.task.tally_batch(model, *self.to_device(self.first))
        sharding.reshard(in_mode(model, True))

        # the sum over all processes; a process without samples adds nothing
        self.tally = merge_tallies(parts)
        if self.accelerator.num_processes > 1:
            self.tally = merge_tallies(gather_object([self.tally]))
        seconds = max(time.perf_counter() - start_time, 1e-9)
        return self.task.metrics(self.tally) | {"samples_per_s": round(number / seconds, 1)}

    @torch.no_grad()
    def try_sample(self, model: nn.Module) -> None:
        """Run one validation sample through the model. Raises DataError if they do not fit."""
        with reraise_as(f"{self.recipe.model.source} does not run on a sample of the data", DataError):
            self.task.tally_batch(in_mode(model), *self.to_device(self.first))
        sharding.reshard(in_mode(model, True))

    def sample_loss(self, model: nn.Module) -> Tensor:
        """The training loss of the first sample, repeated: a batch norm refuses a single number."""
        inputs, targets = tree_map_only(Tensor, lambda x: torch.cat([x, x]), self.first)
        return self.task.loss(in_mode(model.to(self.accelerator.device), True), *self.to_device((inputs, targets)))

    def to_device(self, batch: Batch) -> Batch:
        """The batch on the device, its inputs scaled as the model takes them."""
        from accelerate.utils import send_to_device

        inputs, targets = send_to_device(batch, self.accelerator.device, non_blocking=True)
        on_device = self.splits.scale_inputs(inputs)
        if self.recipe.run.channels_last and isinstance(on_device, Tensor) and on_device.dim() == 4:
            on_device = on_device.contiguous(memory_format=torch.channels_last)
        return on_device, targets

    def reader(self, samples: Samples, keys: Iterable[list[Key]], again: bool = False) -> Reader:
        """A reader of samples as the recipe sets it."""
        seed, data = self.recipe.run.seed, self.recipe.data
        pin = self.accelerator.device.type == "cuda"
        return Reader(
            samples, keys, seed, data.workers, pin, again=again, skipped=self.skipped_names, prefetch=data.prefetch
        )
