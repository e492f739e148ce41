"""Transfer weights to a plan's designs with the user's data, and choose the design that keeps most."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from leanify.core.architecture import Architecture
from leanify.core.errors import BudgetError, DataError, ShapeError
from leanify.core.terminal import note, progress
from leanify.core.units import format_damage as damage_words
from leanify.core.units import format_forecast
from leanify.data.probe_inputs import data_file, feed
from leanify.data.texts import tokenizers
from leanify.search.design import Design
from leanify.search.plan import Plan
from leanify.search.redesign import redesign
from leanify.search.warnings import OLD_HEADS
from leanify.shrinking.calibration import constant_divergence
from leanify.shrinking.designs import NO_BOUNDS
from leanify.shrinking.teacher import CalibratedTeacher
from leanify.shrinking.transfer import Step, TransferResult, transfer_weights
from leanify.sources.weights import is_headless
from leanify.training.preparation import find_tokenizer
from leanify.upstream.inputs import example_inputs

BATCH = 8
TOKENS = 8_192  # tokens of the samples: more than an MLP's units, because fits would otherwise overfit
MOST_SAMPLES = 1024
MEASURING = 4  # every fourth batch measures the damage
MEANING = {
    "lean": "fewer layers and more heads",
    "control": "fewer layers and the old heads",
    "narrow": "narrower MLPs alone",
}


def prepare(
    teacher: CalibratedTeacher,
    shapes: Sequence[Architecture],
    what: str,
    extra_passes: float = 0.0,
    paired: Sequence[Architecture] | None = None,
) -> None:
    """Warn about too little data, forecast the time with ``extra_passes``, and then select heads and units.

    ``paired`` are the shapes whose blocks may be paired, by default all.
    """
    for words in teacher.warnings(shapes):
        note(f"warning: {words}")
    began = time.perf_counter()
    unit = teacher.outputs.unit
    forecast = (teacher.forecast(shapes) + extra_passes) * (time.perf_counter() - began)
    note(f"{what}, damage as {unit}; {format_forecast(forecast)} on this machine")
    with progress("what each block needs", sum(len(stage.blocks) for stage in teacher.located_model.stages)) as advance:
        teacher.prepare(shapes, advance, paired)


class PlanTransfer:
    """Called with a model and a shape, returns the model in that shape; records the steps of every design.

    Three quarters of the ``samples`` select and correct, the rest measure the damage. By default there are enough
    samples for `TOKENS` tokens. ``plan`` provides the names of the designs and the tokens of a sample.
    """

    def __init__(self, plan: Plan, data: Path, samples: int | None, tokens: int | None, weights: str | Path | None):
        self.plan, self.data, self.samples, self.tokens = plan, data_file(data), samples, tokens
        words = (find_tokenizer(source, plan.model_source) for source in (weights or plan.source, plan.source))
        self.place = next((Path(folder) for folder in words if folder is not None), None)
        self.designs: dict[str, Design | None] = {"lean": plan.chosen, "control": plan.control}
        self.results: dict[str, TransferResult] = {}
        self.chosen = "lean"
        self.words = ""
        self._batches: list[dict[str, Tensor]] = []
        self.teacher: CalibratedTeacher | None = None

    def __call__(self, load: Callable[[], nn.Module], architecture: Architecture) -> nn.Module:
        name = next(name for name, one in self.designs.items() if one is not None and one.architecture == architecture)
        if name not in self.results:
            teacher = self._donor(load)
            with progress(f"transferring weights to {name}", None):
                self.results[name] = transfer_weights(teacher, architecture, lambda step: self._on_step(name, step))
        return self.results[name].model

    def _donor(self, load: Callable[[], nn.Module]) -> CalibratedTeacher:
        """Return the trained model on the data, created once for all designs after a forecast of the time."""
        if self.teacher is None:
            # three of four batches select, the others measure
            model = load()
            batches = self._read(model)
            choosing = [batch for i, batch in enumerate(batches) if i % MEASURING != 1]
            teacher = CalibratedTeacher(model, choosing, batches[1::MEASURING], is_headless(model))
            shapes = [one.architecture for one in self.designs.values() if one is not None]
            several = f"{len(shapes)} design{'s' * (len(shapes) != 1)}"
            prepare(teacher, shapes, several)
            self.teacher = teacher
        return self.teacher

    def _on_step(self, name: str, step: Step) -> None:
        assert self.teacher is not None
        note(f"{name}: {step.description}, {self.teacher.outputs.unit} {damage_words(step.damage)}")

    def best(self, build: Callable[[Plan], nn.Module]) -> Plan:
        """Return the plan with the design that keeps most before training, all under one budget.

        The designs are lean, its control, and the baseline's layers and heads with narrower MLPs; only lean if the user
        has pinned a shape.
        """
        # build each competing design once
        plans = {"lean": self.plan}
        if not any(self.plan.options.pins.values()):
            plans |= dict(_others(self.plan))
        self.designs = {name: plan.chosen for name, plan in plans.items()}
        for plan in plans.values():
            build(plan)
        self.chosen = min(plans, key=lambda name: self.results[name].damage)
        return plans[self.chosen]

    @property
    def sentence(self) -> str:
        """Describe how much the weights keep before training, compared with other designs and a constant answer."""
        assert self.teacher is not None
        best_result = self.results[self.chosen]
        kept_text = (
            f"{best_result.unit} {damage_words(best_result.damage)} before training, where the original has 0 and "
            f"a constant answer "
            f"{damage_words(constant_divergence(self.teacher.outputs))}"
        )
        others = [name for name in self.results if name != self.chosen]
        if not others:
            return f"the transferred weights: {kept_text}"
        others_text = ", ".join(f"{MEANING[name]} {damage_words(self.results[name].damage)}" for name in others)
        is_best = best_result.damage <= min(result.damage for result in self.results.values())
        share = "most of the weights" if is_best else "of the weights"
        return f"{MEANING[self.chosen]} keep {share}: {kept_text}; {others_text}"

    def _read(self, model: nn.Module) -> list[dict[str, Tensor]]:
        if not self._batches:
            if self.place is None and next(iter(example_inputs(model, 1, device="meta"))) == "input_ids":
                raise DataError(
                    f"{self.plan.source} has weights but no tokenizer next to them: its token ids are not "
                    f"known, so {self.data} cannot be read as it was trained; put the tokenizer's files there"
                )
            max_samples = self.samples or MOST_SAMPLES
            size = max(1, min(BATCH, max_samples // 2))
            # batches with the plan's tokenizer, until they contain enough tokens
            data_feed = feed(
                model,
                self.data,
                samples=max_samples,
                batch_size=size,
                tokens=self.tokens,
                directory=self.place and Path(self.place),
            )
            read = list(data_feed.batches if self.samples else self._enough(data_feed.batches))
            if len(read) < 2:
                raise DataError(
                    f"{self.data} gives {len(read)} batch of {size} samples; at least two are needed, one to measure"
                )
            if self.place is not None and "input_ids" in read[0]:
                words = tokenizers.unknown_words(tokenizers.load(self.place), read, self.data)
                note(f"warning: {words}") if words else None
            self._batches = read
            count = sum(len(next(iter(batch.values()))) for batch in read)
            self.words = f"chosen and measured on {count} samples, {data_feed.description}"
        return self._batches

    def _enough(self, batches: Iterable[dict[str, Tensor]]) -> Iterator[dict[str, Tensor]]:
        """Yield batches until they contain `TOKENS` tokens, but at least two."""
        token_count = 0
        for index, batch in enumerate(batches):
            if token_count >= TOKENS and index >= 2:
                return
            yield batch
            mask = batch.get("attention_mask")
            token_count += len(next(iter(batch.values()))) * self.plan.tokens if mask is None else int(mask.sum())

    def to_json(self) -> dict[str, Any]:
        """Return per design the unit of damage, the steps and their damage, and why blocks were not paired."""
        designs = {name: result.to_json() for name, result in self.results.items()}
        return {"data": self.words, "designs": designs, "chosen": self.chosen}


def _others(plan: Plan) -> Iterator[tuple[str, Plan]]:
    """Yield plans of the same budget with the baseline's heads: at lean's depth, and at the baseline's."""
    old, lean = plan.baseline.architecture.stages, plan.chosen.architecture.stages
    heads = [stage.primary and stage.primary.heads for stage in old]
    for name, stages in (("control", lean), ("narrow", old)):
        depth = [stage.depth for stage in stages]
        pins: dict[str, Any] = {"depth": depth, "heads": heads}
        if len(old) == 1:
            pins = {"depth": depth[0], "heads": heads[0]}
        try:
            other_plan = redesign(plan.source_value, plan.options, **pins, **NO_BOUNDS)
        except (BudgetError, ShapeError):
            continue  # narrower MLPs alone cannot save enough
        if other_plan.chosen.architecture not in (plan.chosen.architecture, plan.baseline.architecture):
            # it is compared with designs with other heads
            yield name, replace(other_plan, warnings=[words for words in other_plan.warnings if words != OLD_HEADS])
