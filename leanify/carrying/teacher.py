"""A trained model on calibration data, with results computed once for all target shapes.

The calls of its blocks are recorded (`calibration`), so a block's second moments are computed by running that block
alone. The moments of an MLP are (units + 1)² numbers: all requested widths are computed from them at once, and they are
not stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import torch
from torch import Tensor, nn

from leanify.carrying.blocks import stage_blocks
from leanify.carrying.calibration import (
    Batch,
    Call,
    CallTrace,
    Moments,
    TeacherOutputs,
    accumulate_moments,
    collect_outputs,
    moments,
    record,
    replay,
)
from leanify.carrying.choose import Weights, choose_units, correct_output, output_projection
from leanify.core.architecture import Architecture, Block, Layer
from leanify.core.errors import DataError
from leanify.lens.axes import Picks
from leanify.lens.located import LocatedLayer, LocatedModel, LocatedStage, Site
from leanify.reshaping.sites import locate
from leanify.upstream import on_disk

Slot = tuple[int, ...]  # indices of the original blocks in one new block


@dataclass(frozen=True)
class Cut:
    """The heads or units of a site to keep, and the weight and bias of its output projection for them."""

    picks: Picks
    weights: Weights | None


@dataclass
class CalibratedTeacher:
    """A model with weights, and data. Raises DataError without data."""

    model: nn.Module
    batches: Sequence[Batch]  # to select and correct
    held_out: Sequence[Batch]  # to measure the damage
    headless: bool = False  # the head is new, so damage is measured on hidden states
    _located: LocatedModel | None = None
    _heads: dict[str, Moments] = field(default_factory=dict)
    _cuts: dict[tuple[str, str, int], Cut] = field(default_factory=dict)

    def for_model(self, new: LocatedModel) -> CalibratedTeacher:
        """Another model on the same data: nothing about it is measured yet."""
        return CalibratedTeacher(new.model, self.batches, self.held_out, self.headless, new)

    def __post_init__(self) -> None:
        if not self.batches or not self.held_out:
            raise DataError("weights are transferred by the model's behaviour on data: at least two batches are needed")
        self.model.eval()

    @cached_property
    def located_model(self) -> LocatedModel:
        return self._located or locate(self.model)

    @property
    def architecture(self) -> Architecture:
        return self.located_model.architecture

    @cached_property
    def outputs(self) -> TeacherOutputs:
        return collect_outputs(self.model, self.held_out, self.headless)

    @cached_property
    def call_traces(self) -> dict[str, CallTrace | None]:
        """The calls of every stage's blocks on ``batches``; None for stages whose blocks cannot run alone."""
        tapes = {}
        for stage in self.located_model.stages:
            blocks = stage_blocks(self.located_model, stage.name)
            tapes[stage.name] = record(self.model, blocks, self.batches) if blocks else None
        return tapes

    def calls(self, stage: str, block: int) -> Iterator[tuple[Tensor | None, Call]]:
        """Yield the recorded calls of a block, each with the mask of its tokens."""
        call_trace = self.call_traces[stage]
        assert call_trace is not None
        for batch, calls in zip(self.batches, call_trace, strict=True):
            yield batch.get("attention_mask"), calls[block]

    # -- selection ----------

    def prepare(
        self,
        shapes: Sequence[Architecture],
        on_block: Callable[[int], None] = lambda count: None,
        paired: Sequence[Architecture] | None = None,
    ) -> None:
        """Select heads and units for all sizes of some shapes, block by block; ``on_block`` is called after each.

        ``paired`` are the shapes whose blocks may be paired, by default all.
        """
        # each shape at the old depth, and its blocks before two of them are paired
        targets = [keep_depth(self.architecture, shape) for shape in shapes]
        halves = [self._before_pairing(shape) for shape in (shapes if paired is None else paired)]
        block_count = 0
        for i, stage in enumerate(self.located_model.stages):
            for block in range(len(stage.blocks)):
                several = [shape.stages[i].blocks[block] for shape in targets]
                plain = [shape.stages[i].blocks[block] for shape in halves]
                self.measure_block(stage, block, several, plain)
                block_count += 1
                on_block(block_count)

    def measure_block(
        self, stage: LocatedStage, block: int, shapes: Sequence[Block], plain: Sequence[Block] = ()
    ) -> None:
        """Select the heads and units of a block for several shapes; for ``plain`` see `_measure_block`."""
        layers = stage.blocks[block]
        self._measure_block(stage, block, _counts(layers, shapes), _counts(layers, plain))

    def _before_pairing(self, shape: Architecture) -> Architecture:
        """Return the blocks before pairing in stages that lose blocks; elsewhere the old ones."""
        stages = []
        target = keep_depth(self.architecture, shape)
        for old, wide, new in zip(self.architecture.stages, target.stages, shape.stages, strict=True):
            blocks = old.blocks
            if new.depth < old.depth:
                pairs = zip(old.blocks, wide.blocks, strict=True)
                blocks = tuple(tuple(map(self.intermediate_layer, block, other)) for block, other in pairs)
            stages.append(replace(old, blocks=blocks))
        return replace(shape, stages=tuple(stages))

    def intermediate_layer(self, old: Layer, target: Layer) -> Layer:
        """Return the shape of a layer before pairing: at least half of the target, all of it if the tokens allow it.

        A fit of twice the units needs twice as many tokens. Experts keep their width.
        """
        mlp = old.mlp if old.experts else max(-(-target.mlp // 2), min(target.mlp, self.tokens // 4))
        heads, groups = min(old.heads, target.heads), min(old.kv_heads, target.kv_heads)
        return replace(old, heads=heads, kv_heads=groups, mlp=min(old.mlp, mlp))

    @cached_property
    def tokens(self) -> int:
        """The number of tokens that select and correct."""
        return sum(map(self.count, self.batches))

    def count(self, batch: Batch) -> int:
        """Return the tokens of a batch, without padding."""
        mask, ids = batch.get("attention_mask"), batch.get("input_ids")
        if mask is not None:
            return int(mask.sum())
        return len(next(iter(batch.values()))) * self.patches if ids is None else ids.numel()

    @cached_property
    def patches(self) -> int:
        """The tokens of an image or sound, in the stage that has the fewest."""
        batch = self.batches[0]
        rows = []
        for stage in self.located_model.stages:
            blocks = stage_blocks(self.located_model, stage.name)
            call_trace = record(self.model, blocks, [batch]) if blocks else None
            if call_trace is not None:
                rows.append(call_trace[0][0].state[..., 0].numel() // len(next(iter(batch.values()))))
        return max(1, min(rows, default=1))

    def cut(self, site: Site, symbol: str, target: Layer, picks: Picks | None = None) -> Cut:
        """Return the cut of a site's heads or units; ``picks`` if other layers determine it."""
        key = site.path, symbol, target_count(site, symbol, target)
        if picks is None and key in self._cuts:
            return self._cuts[key]
        if picks is None and site.path not in self._heads:
            stage, block = self._place(site)
            self._measure_block(stage, block, {(site.path, symbol): {key[2]}})
            return self._cuts[key]
        path, _ = output_projection(site, symbol)
        moments = {path: self._heads[site.path]} if site.path in self._heads else {}
        kept_picks = picks if picks is not None else choose_units(site, symbol, [key[2]], moments)[key[2]]
        return Cut(kept_picks, correct_output(site, symbol, kept_picks, moments))

    def heads(self, layer: LocatedLayer) -> dict[str, Moments]:
        """Return the moments of a layer's heads, by the path of its output projection."""
        if layer.attention.path not in self._heads:
            stage, block = self._place(layer.attention)
            self._measure_block(stage, block, {(layer.attention.path, "h"): set()})
        moments = self._heads.get(layer.attention.path)
        return {} if moments is None else {output_projection(layer.attention, "h")[0]: moments}

    def _place(self, site: Site) -> tuple[LocatedStage, int]:
        for stage in self.located_model.stages:
            for block, layers in enumerate(stage.blocks):
                if any(site.path == other.path for layer in layers for other in layer.sites):
                    return stage, block
        raise KeyError(site.path)

    @torch.no_grad()
    def _measure_block(
        self,
        stage: LocatedStage,
        block: int,
        counts: Mapping[tuple[str, str], set[int]],
        plain: Mapping[tuple[str, str], set[int]] | None = None,
    ) -> None:
        """Measure a block's projections, and store the selection at some counts.

        Cuts at ``plain`` counts have no correction, because their results are fitted later.
        """
        # projections whose moments are needed: new counts, and heads that are not measured yet
        plain = plain or {}
        sites = {site.path: site for layer in stage.blocks[block] for site in layer.sites}
        todo, modules = {}, {}
        for path, symbol in {**counts, **plain}:
            all_counts = counts.get((path, symbol), set()) | plain.get((path, symbol), set())
            new_counts = [count for count in all_counts if (path, symbol, count) not in self._cuts]
            if new_counts or (symbol == "h" and path not in self._heads):
                output, module = output_projection(sites[path], symbol)
                todo[path, symbol] = new_counts, output
                if module is not None:
                    modules[output] = module
        # the selection at every count, and the least-squares output projection unless it is fitted later
        moments_by_path = self.block_moments(self.located_model, stage.name, block, modules)
        for (path, symbol), (new_counts, output) in todo.items():
            site_moments = {output: moments_by_path[output]} if output in moments_by_path else {}
            if symbol == "h" and site_moments:
                self._heads[path] = Moments(tuple(map(on_disk.place, site_moments[output].sums)))
            for count, picks in (
                choose_units(sites[path], symbol, new_counts, site_moments).items() if new_counts else ()
            ):
                corrects = count in counts.get((path, symbol), ())  # others are fitted later
                weights = correct_output(sites[path], symbol, picks, site_moments) if corrects else None
                if weights is not None:
                    weights = on_disk.place(weights[0]), weights[1]
                self._cuts[path, symbol, count] = Cut(picks, weights)

    def block_moments(
        self, located_model: LocatedModel, stage: str, block: int, modules: Mapping[str, nn.Module]
    ) -> dict[str, Moments]:
        """Return the moments of projections in a block of the teacher, or of a model with equal blocks before it."""
        if not modules:
            return {}
        if self.call_traces[stage] is None:
            return moments(located_model.model, modules, self.batches)
        module = stage_blocks(located_model, stage)[block]
        calls = self.calls(stage, block)
        return accumulate_moments(modules, ((mask, partial(replay, module, call)) for mask, call in calls))


def target_count(site: Site, symbol: str, target: Layer) -> int:
    """Return the target number of heads or units of a site; of key/value heads if several heads share one."""
    if symbol == "m":
        return target.mlp
    return target.kv_heads if site.sizes.get("g", 1) > 1 else target.heads


def loses_units(site: Site, symbol: str, target: Layer) -> bool:
    """Whether a site loses heads or units."""
    return site.sizes.get(symbol, 0) > (target.mlp if symbol == "m" else target.heads)


def _counts(layers: Sequence[LocatedLayer], shapes: Sequence[Block]) -> dict[tuple[str, str], set[int]]:
    """Return {(path, symbol): target counts} for a block's heads and units."""
    counts_by_site: dict[tuple[str, str], set[int]] = {}
    for i, layer in enumerate(layers):
        targets = [shape[i] for shape in shapes]
        for site in layer.sites:
            for symbol in ("h", "m"):
                counts = {target_count(site, symbol, target) for target in targets if loses_units(site, symbol, target)}
                if counts:
                    counts_by_site[site.path, symbol] = counts
    return counts_by_site


def keep_depth(old: Architecture, new: Architecture) -> Architecture:
    """Return the new heads and units at the old depth."""
    stages = []
    for before, after in zip(old.stages, new.stages, strict=True):
        blocks = tuple(after.blocks[min(i, after.depth - 1)] for i in range(before.depth))
        stages.append(replace(after, blocks=blocks))
    return replace(new, stages=tuple(stages))
