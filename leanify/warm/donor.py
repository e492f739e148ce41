"""A trained model on calibration data: what is computed once for all shapes that its weights are carried to.

The calls of its blocks are kept (`tape`), so that a block's second moments are found by running that block
alone. The moments of an MLP are (units + 1)² numbers: they serve all widths that are asked for at once, and
are not kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import torch
from torch import Tensor, nn

from leanify.architecture import Architecture, Block, Layer
from leanify.errors import DataError
from leanify.lens.located import LocatedLayer, LocatedModel, LocatedStage, Site
from leanify.lens.sites import locate
from leanify.warm.axes import Picks, sites_of
from leanify.warm.blocks import list_of
from leanify.warm.calibration import Answers, Batch, Moments, answers, moments, moments_in
from leanify.warm.choose import chosen, output_of
from leanify.warm.correction import Weights, corrected
from leanify.warm.tape import Call, Tape, record, replay

PASSES = 4  # forward passes that the moments of all projections cost: measured on encoders of 6 and 12 layers
TRIALS = 5  # forward passes that a step costs, with the pairs that are made for it
Slot = tuple[int, ...]  # the original blocks that one new block is made of, counted from 0


@dataclass(frozen=True)
class Cut:
    """Which heads or units of a site stay, and the weight and bias of its output projection for them."""

    picks: Picks
    weights: Weights | None


@dataclass
class Donor:
    """A model with weights, and data. Raises DataError without any."""

    model: nn.Module
    batches: Sequence[Batch]  # choose and correct
    held_out: Sequence[Batch]  # measure the damage
    headless: bool = False  # its head is new, so that damage is measured on hidden states
    correct: bool = True
    _heads: dict[str, Moments] = field(default_factory=dict)
    _cuts: dict[tuple[str, str, int], Cut] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.batches or not self.held_out:
            raise DataError("weights are carried over by what the model does on data: two batches at least are needed")
        self.model.eval()

    @cached_property
    def located(self) -> LocatedModel:
        return locate(self.model)

    @property
    def architecture(self) -> Architecture:
        return self.located.architecture

    @cached_property
    def teacher(self) -> Answers:
        return answers(self.model, self.held_out, self.headless)

    @cached_property
    def tapes(self) -> dict[str, Tape | None]:
        """The calls of every stage's blocks on ``batches``; None where they cannot run alone."""
        tapes = {}
        for stage in self.located.stages:
            blocks = list_of(self.located, stage.name)
            tapes[stage.name] = record(self.model, blocks, self.batches) if blocks else None
        return tapes

    def calls(self, stage: str, block: int) -> Iterator[tuple[Tensor | None, Call]]:
        """The calls of a block of a stage with a tape, each with the mask of its tokens."""
        tape = self.tapes[stage]
        assert tape is not None
        for batch, calls in zip(self.batches, tape, strict=True):
            yield batch.get("attention_mask"), calls[block]

    def warnings(self, shapes: Sequence[Architecture]) -> Iterator[str]:
        """What the data is too small for."""
        widest = max((layer.mlp for shape in shapes for layer in shape.layers()), default=0)
        if self.tokens < 2 * widest:
            yield (
                f"{self.tokens:,} tokens choose and correct, fewer than twice the {widest:,} inputs of the widest fit: "
                "a fit that other batches do not confirm is left out; more data would keep more"
            )

    def forecast(self, shapes: Sequence[Architecture]) -> float:
        """About how often the model runs on the held-out batches, to carry its weights to all of these."""
        measured = sum(map(self.count, self.held_out))
        steps = 0
        for shape in shapes:
            for old, new in zip(self.architecture.stages, shape.stages, strict=True):
                steps += max(0, old.depth - new.depth)
        return PASSES * self.tokens / max(1, measured) + TRIALS * steps + len(shapes)

    # -- what stays ----------

    def prepare(self, shapes: Sequence[Architecture], tried: Callable[[int], None] = lambda count: None) -> None:
        """Find what stays at all sizes of some shapes, block by block; ``tried`` hears of each."""
        wanted = [list(at_old_depth(self.architecture, shape).layers()) for shape in shapes]
        pared = [self._pared(shape) for shape in shapes]
        place = done = 0
        for stage in self.located.stages:
            for block, layers in enumerate(stage.blocks):
                several = [[shape[place + i] for shape in wanted] for i in range(len(layers))]
                halves = [[shape[place + i] for shape in pared] for i in range(len(layers))]
                self._look(stage, block, _counts(layers, several), _counts(layers, halves))
                place, done = place + len(layers), done + 1
                tried(done)

    def look(self, stage: LocatedStage, block: int, shapes: Sequence[Block]) -> None:
        """Find what stays of a block at several shapes."""
        layers = stage.blocks[block]
        self._look(stage, block, _counts(layers, [[shape[i] for shape in shapes] for i in range(len(layers))]))

    def _pared(self, shape: Architecture) -> list[Layer]:
        """The layers as they are before two are paired, in stages that lose blocks; else as they are."""
        found: list[Layer] = []
        for old, new in zip(self.architecture.stages, shape.stages, strict=True):
            for i, block in enumerate(old.blocks):
                if new.depth >= old.depth:
                    found += block
                    continue
                wanted = new.blocks[min(i, new.depth - 1)]
                found += [self.pared(layer, other) for layer, other in zip(block, wanted, strict=True)]
        return found

    def pared(self, old: Layer, wanted: Layer) -> Layer:
        """One of two layers that become one: at least half of what that holds, all where the tokens allow it.

        A fit of twice the units needs twice as many tokens. Experts stay as wide as they are.
        """
        mlp = old.mlp if old.experts else max(-(-wanted.mlp // 2), min(wanted.mlp, self.tokens // 4))
        heads, groups = min(old.heads, wanted.heads), min(old.kv_heads, wanted.kv_heads)
        return replace(old, heads=heads, kv_heads=groups, mlp=min(old.mlp, mlp))

    @cached_property
    def tokens(self) -> int:
        """Tokens that choose and correct."""
        return sum(map(self.count, self.batches))

    def count(self, batch: Batch) -> int:
        """Tokens of a batch, without padding."""
        mask, ids = batch.get("attention_mask"), batch.get("input_ids")
        if mask is not None:
            return int(mask.sum())
        return len(next(iter(batch.values()))) * self.patches if ids is None else ids.numel()

    @cached_property
    def patches(self) -> int:
        """Tokens of a picture, or of a sound: in the stage that has fewest of them."""
        batch = self.batches[0]
        rows = []
        for stage in self.located.stages:
            blocks = list_of(self.located, stage.name)
            tape = record(self.model, blocks, [batch]) if blocks else None
            if tape is not None:
                rows.append(tape[0][0].state[..., 0].numel() // len(next(iter(batch.values()))))
        return max(1, min(rows, default=1))

    def cut(self, site: Site, symbol: str, wanted: Layer, picks: Picks | None = None) -> Cut:
        """What stays of a site's heads or units; ``picks`` where other layers have decided that."""
        key = site.path, symbol, count_of(site, symbol, wanted)
        if picks is None and key in self._cuts:
            return self._cuts[key]
        if picks is None and site.path not in self._heads:
            stage, block = self._place(site)
            self._look(stage, block, {(site.path, symbol): {key[2]}})
            return self._cuts[key]
        path, _ = output_of(site, symbol)
        found = {path: self._heads[site.path]} if site.path in self._heads else {}
        kept = picks if picks is not None else chosen(site, symbol, [key[2]], found)[key[2]]
        return Cut(kept, corrected(site, symbol, kept, found) if self.correct else None)

    def heads(self, layer: LocatedLayer) -> dict[str, Moments]:
        """The moments of a layer's heads, by the path of its output projection."""
        if layer.attention.path not in self._heads:
            stage, block = self._place(layer.attention)
            self._look(stage, block, {(layer.attention.path, "h"): set()})
        found = self._heads.get(layer.attention.path)
        return {} if found is None else {output_of(layer.attention, "h")[0]: found}

    def _place(self, site: Site) -> tuple[LocatedStage, int]:
        for stage in self.located.stages:
            for block, layers in enumerate(stage.blocks):
                if any(site.path == other.path for layer in layers for other in sites_of(layer)):
                    return stage, block
        raise KeyError(site.path)

    @torch.no_grad()
    def _look(
        self,
        stage: LocatedStage,
        block: int,
        counts: Mapping[tuple[str, str], set[int]],
        plain: Mapping[tuple[str, str], set[int]] | None = None,
    ) -> None:
        """Measure a block's projections, and keep what stays at some counts.

        At ``plain`` counts without a correction, as what comes of them is fitted.
        """
        plain = plain or {}
        sites = {site.path: site for layer in stage.blocks[block] for site in sites_of(layer)}
        todo, modules = {}, {}
        for path, symbol in {**counts, **plain}:
            asked = counts.get((path, symbol), set()) | plain.get((path, symbol), set())
            left = [count for count in asked if (path, symbol, count) not in self._cuts]
            if left or (symbol == "h" and path not in self._heads):
                output, module = output_of(sites[path], symbol)
                todo[path, symbol] = left, output
                if module is not None:
                    modules[output] = module
        found = self._moments(stage, block, modules)
        for (path, symbol), (left, output) in todo.items():
            known = {output: found[output]} if output in found else {}
            if symbol == "h" and known:
                self._heads[path] = known[output]
            for count, picks in chosen(sites[path], symbol, left, known).items() if left else ():
                corrects = self.correct and (
                    count in counts.get((path, symbol), ()) or count not in plain.get((path, symbol), ())
                )
                weights = corrected(sites[path], symbol, picks, known) if corrects else None
                self._cuts[path, symbol, count] = Cut(picks, weights)

    def _moments(self, stage: LocatedStage, block: int, modules: Mapping[str, nn.Module]) -> dict[str, Moments]:
        if not modules:
            return {}
        if self.tapes[stage.name] is None:
            return moments(self.model, modules, self.batches)
        module = list_of(self.located, stage.name)[block]
        calls = self.calls(stage.name, block)
        return moments_in(modules, ((mask, partial(replay, module, call)) for mask, call in calls))


def count_of(site: Site, symbol: str, wanted: Layer) -> int:
    """How many heads or units a site is to keep; key/value heads, where several heads share one."""
    if symbol == "m":
        return wanted.mlp
    return wanted.kv_heads if site.sizes.get("g", 1) > 1 else wanted.heads


def fewer(site: Site, symbol: str, wanted: Layer) -> bool:
    """Whether a site is to lose heads or units."""
    return site.sizes.get(symbol, 0) > (wanted.mlp if symbol == "m" else wanted.heads)


def _counts(layers: Sequence[LocatedLayer], wanted: Sequence[Sequence[Layer]]) -> dict[tuple[str, str], set[int]]:
    """Path and symbol → the counts to which a block's heads and units are reduced."""
    found: dict[tuple[str, str], set[int]] = {}
    for layer, several in zip(layers, wanted, strict=True):
        for site in sites_of(layer):
            for symbol in ("h", "m"):
                counts = {count_of(site, symbol, shape) for shape in several if fewer(site, symbol, shape)}
                if counts:
                    found[site.path, symbol] = counts
    return found


def at_old_depth(old: Architecture, new: Architecture) -> Architecture:
    """The new heads and units at the old depth."""
    stages = []
    for before, after in zip(old.stages, new.stages, strict=True):
        blocks = tuple(after.blocks[min(i, after.depth - 1)] for i in range(before.depth))
        stages.append(replace(after, blocks=blocks))
    return replace(new, stages=tuple(stages))
