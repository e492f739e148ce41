"""Carry a plan's weights by what the model does on the user's data, and choose the design that keeps most."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from leanify.architecture import Architecture
from leanify.data.probe_inputs import data_file, feed
from leanify.data.texts import vocabulary
from leanify.design.plan import Plan
from leanify.design.redesign import redesign
from leanify.design.search.design import Design
from leanify.design.search.warnings import OLD_HEADS
from leanify.errors import BudgetError, DataError, ShapeError
from leanify.sources.weights import is_headless
from leanify.terminal import note, progress
from leanify.training.preparation import tokenizer_beside
from leanify.units import about
from leanify.units import damage as damage_words
from leanify.upstream.inputs import example_inputs
from leanify.warm.calibration import constant
from leanify.warm.carry import Carried, Step, carry
from leanify.warm.donor import Donor

BATCH = 8
TOKENS = 8_192  # of samples that choose and measure: more than an MLP has units, or its fit follows the samples
MOST_SAMPLES = 1024
MEASURING = 4  # every fourth batch measures
MEANING = {
    "lean": "fewer layers and more heads",
    "control": "fewer layers and the old heads",
    "narrow": "narrower MLPs alone",
}


def prepare(donor: Donor, shapes: Sequence[Architecture], what: str, more: float = 0.0) -> None:
    """Say what is too little data and how long carrying takes, with ``more`` passes; then find what stays."""
    for words in donor.warnings(shapes):
        note(f"warning: {words}")
    began = time.perf_counter()
    unit = donor.teacher.unit
    forecast = (donor.forecast(shapes) + more) * (time.perf_counter() - began)
    note(f"{what}, damage as {unit}; {about(forecast)} on this machine")
    with progress("what each block needs", sum(len(stage.blocks) for stage in donor.located.stages)) as advance:
        donor.prepare(shapes, advance)


class Carrying:
    """Called with a model and a shape, gives the model of that shape; remembers the steps of every design.

    Three quarters of the ``samples`` choose and correct, the rest measure the damage. By default there are so
    many that they hold `TOKENS` tokens. ``plan`` says what the designs are called and how many tokens a
    sample has.
    """

    def __init__(self, plan: Plan, data: Path, samples: int | None, tokens: int | None, weights: str | Path | None):
        self.plan, self.data, self.samples, self.tokens = plan, data_file(data), samples, tokens
        words = (tokenizer_beside(source, plan.found) for source in (weights or plan.source, plan.source))
        self.place = next((Path(folder) for folder in words if folder is not None), None)
        self.named: dict[str, Design | None] = {"lean": plan.chosen, "control": plan.control}
        self.results: dict[str, Carried] = {}
        self.chosen = "lean"
        self.words = ""
        self._batches: list[dict[str, Tensor]] = []
        self.donor: Donor | None = None

    def __call__(self, load: Callable[[], nn.Module], architecture: Architecture) -> nn.Module:
        name = next(name for name, one in self.named.items() if one is not None and one.architecture == architecture)
        if name not in self.results:
            donor = self._donor(load)
            with progress(f"carrying weights over to {name}", None):
                self.results[name] = carry(donor, architecture, lambda step: self._heard(name, step))
        return self.results[name].model

    def _donor(self, load: Callable[[], nn.Module]) -> Donor:
        """The model with weights on the data, made once for all designs, after a forecast of its time."""
        if self.donor is None:
            model = load()
            batches = self._read(model)
            choosing = [batch for i, batch in enumerate(batches) if i % MEASURING != 1]
            donor = Donor(model, choosing, batches[1::MEASURING], is_headless(model))
            shapes = [one.architecture for one in self.named.values() if one is not None]
            several = f"{len(shapes)} design{'s' * (len(shapes) != 1)}"
            prepare(donor, shapes, several)
            self.donor = donor
        return self.donor

    def _heard(self, name: str, step: Step) -> None:
        assert self.donor is not None
        note(f"{name}: {step.words}, {self.donor.teacher.unit} {damage_words(step.damage)}")

    def best(self, build: Callable[[Plan], nn.Module]) -> Plan:
        """The plan whose design keeps most before any training, all under one budget.

        They are lean, its control, and the baseline's layers and heads with narrower MLPs; lean alone where
        the user has pinned a shape.
        """
        plans = {"lean": self.plan}
        if not any(self.plan.options.pins.values()):
            plans |= dict(_others(self.plan))
        self.named = {name: plan.chosen for name, plan in plans.items()}
        for plan in plans.values():
            build(plan)
        self.chosen = min(plans, key=lambda name: self.results[name].damage)
        return plans[self.chosen]

    @property
    def sentence(self) -> str:
        """What the weights keep before any training, beside other designs, the original and a constant."""
        assert self.donor is not None
        own = self.results[self.chosen]
        kept = (
            f"{own.unit} {damage_words(own.damage)} before training, where the original has 0 and a constant answer "
            f"{damage_words(constant(self.donor.teacher))}"
        )
        others = [name for name in self.results if name != self.chosen]
        if not others:
            return f"the weights carried over: {kept}"
        beside = ", ".join(f"{MEANING[name]} {damage_words(self.results[name].damage)}" for name in others)
        most = own.damage <= min(found.damage for found in self.results.values())
        return f"{MEANING[self.chosen]} keep {'most of the weights' if most else 'of the weights'}: {kept}; {beside}"

    def _read(self, model: nn.Module) -> list[dict[str, Tensor]]:
        if not self._batches:
            if self.place is None and next(iter(example_inputs(model, 1, device="meta"))) == "input_ids":
                raise DataError(
                    f"{self.plan.source} has weights and no tokenizer beside them: its numbers for words are not "
                    f"known, so {self.data} cannot be read as it was trained; put the tokenizer's files there"
                )
            most = self.samples or MOST_SAMPLES
            size = max(1, min(BATCH, most // 2))
            found = feed(
                model,
                self.data,
                samples=most,
                batch_size=size,
                tokens=self.tokens,
                directory=self.place and Path(self.place),
            )
            read = list(found.batches if self.samples else self._enough(found.batches))
            if len(read) < 2:
                raise DataError(
                    f"{self.data} gives {len(read)} batch of {size} samples; two are needed, one to measure"
                )
            if self.place is not None and "input_ids" in read[0]:
                words = vocabulary.unknown_words(vocabulary.load(self.place), read, self.data)
                note(f"warning: {words}") if words else None
            self._batches = read
            count = sum(len(next(iter(batch.values()))) for batch in read)
            self.words = f"chosen and measured on {count} samples, {found.description}"
        return self._batches

    def _enough(self, batches: Iterable[dict[str, Tensor]]) -> Iterator[dict[str, Tensor]]:
        """Batches until there are `TOKENS` tokens, but two at least."""
        seen = 0
        for index, batch in enumerate(batches):
            if seen >= TOKENS and index >= 2:
                return
            yield batch
            mask = batch.get("attention_mask")
            seen += len(next(iter(batch.values()))) * self.plan.tokens if mask is None else int(mask.sum())

    def to_json(self) -> dict[str, Any]:
        """By design: the unit of damage, the steps with the damage after each, and why what was not paired."""
        designs = {name: found.to_json() for name, found in self.results.items()}
        return {"data": self.words, "designs": designs, "chosen": self.chosen}


def _others(plan: Plan) -> Iterator[tuple[str, Plan]]:
    """Plans of the same budget with the baseline's heads: in lean's depth, and in the baseline's."""
    old, lean = plan.baseline.architecture.stages, plan.chosen.architecture.stages
    heads = [stage.primary and stage.primary.heads for stage in old]
    for name, stages in (("control", lean), ("narrow", old)):
        depth = [stage.depth for stage in stages]
        pins: dict[str, Any] = {"depth": depth, "heads": heads}
        if len(old) == 1:
            pins = {"depth": depth[0], "heads": heads[0]}
        try:
            found = redesign(plan.given, plan.options, **pins)
        except (BudgetError, ShapeError):
            continue  # narrower MLPs alone do not save enough
        if found.chosen.architecture not in (plan.chosen.architecture, plan.baseline.architecture):
            kept = [words for words in found.warnings if words != OLD_HEADS]  # it stands beside designs with others
            yield name, replace(found, warnings=kept)
