"""Narrower shapes of a model within a budget: which widths makers would choose, and the MLP that fills the budget."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from statistics import mean

from leanify.core.architecture import Architecture, primary_layer
from leanify.core.errors import ShapeError
from leanify.profiling.cost import Shape, apply_shape
from leanify.profiling.price_list import PriceList
from leanify.search.narrow_shape import WidthScale, keeps_proportions, narrow_layer
from leanify.search.published import families_like
from leanify.search.request import Request
from leanify.search.rules import (
    EVEN_HEADS,
    FEWEST_BLOCKS,
    MANY_HEADS,
    MULTIPLE,
    SMALL_MULTIPLE,
    SMALL_WIDTH,
    depth_floor,
    max_width,
)
from leanify.search.towers import tower_stages, towers

CLOSE = 0.005  # these designs may have this share fewer parameters than lean, or than the budget
TRIED = 4  # number of shapes to count
RATIO = 2.0  # maximum factor on the MLP's ratio; beyond it, the design would no longer isolate the width
NEAR = 0.02  # deviation of heads × head_dim from its share, where no usual width has it exactly (gpt-oss)
WIDE = 1.5  # factor on the MLP's ratio that balanced does not exceed, and above which a remark names it
ODD = 0.05  # in a comparison of shapes: an odd number of heads or layers, or a width that 64 does not divide
EXPERT_STEPS = (64, 32)  # hidden units of an expert, as kernels take them
MLP_STEPS = (64, 32, 16, 8)
SMALL_MLP_STEPS = (8, 1)  # below a width of 256


class NoShape(ShapeError):
    """Raised if no shape of a search has about as many parameters as it should."""


class NarrowSearch:
    """Narrower shapes of a model and their parameters, as the budget counts them.

    units  of the `WidthScale` for widths that makers would choose, widest first
    """

    def __init__(self, prices: PriceList, request: Request) -> None:
        self.prices, self.request = prices, request
        self.architecture = prices.architecture
        self.lead_stage = max(
            (self.architecture.stages[i] for i in prices.stage_indices), key=lambda stage: stage.depth
        )
        self.lead = primary_layer(self.lead_stage)
        self.scale = WidthScale.read(self.architecture)
        self.units = self._usual_units()

    def _usual_units(self) -> list[int]:
        """Return the units whose width is a multiple of 64 or of the head_dim, with the baseline's share of heads."""
        primaries = {layer for stage in self.architecture.stages for layer in stage.primaries}
        devices = self.request.options.tensor_parallel or 1
        step = math.lcm(devices, EVEN_HEADS if self.lead.heads >= MANY_HEADS else 1)
        usual, near_units, exact = [], [], []
        for unit in self.scale.smaller_units():
            widths = self.scale.widths(unit)
            narrow = {layer: narrow_layer(layer, widths[layer.width]) for layer in primaries}
            # an even number of heads if there are many, divisible by the devices
            lead = narrow[self.lead]
            is_small = self.lead.width < SMALL_WIDTH and lead.width % SMALL_MULTIPLE == 0
            is_usual = is_small or lead.width % MULTIPLE == 0 or lead.width % lead.head_dim == 0
            is_even = lead.heads % step == 0
            if all(keeps_proportions(old, new) for old, new in narrow.items()):
                exact.append(unit)
                usual += [unit] * (is_usual and is_even)
            elif all(keeps_proportions(old, new, NEAR) for old, new in narrow.items()):
                near_units += [unit] * (is_usual and is_even)
        return usual or near_units or exact or self.scale.smaller_units()

    def buildable_units(self, distance: Callable[[int], float]) -> Iterator[int]:
        """Yield units whose shape upstream can build, nearest first, among the nearest `TRIED`."""
        for unit in sorted(self.units, key=distance)[:TRIED]:
            try:
                self.params(self.scale.reshape(unit))
            except ShapeError:
                continue
            yield unit

    def params(self, architecture: Architecture) -> int:
        """Return the parameters of a shape, built on meta. Raises ShapeError if upstream cannot build its width."""
        params, body = self.prices.costs.sizes(architecture)
        return params if self.request.params_cost == "params" else body

    # -- depths -------------------------------------------------------------------------------------------------------

    def shortened(self, depth: int) -> Architecture:
        """Return the baseline with this depth in its deepest stage, and the others in proportion."""
        shape = list(self.prices.baseline)
        for i in self.prices.stage_indices:
            stage, stage_shape = self.architecture.stages[i], shape[i]
            assert stage_shape is not None
            in_proportion = round(stage.depth * depth / self.lead_stage.depth)
            shape[i] = stage_shape._replace(depth=max(self.request.rules.following_depth(stage), in_proportion))
        return apply_shape(tuple(shape), self.architecture)

    def is_deep_enough(self, shape: Architecture) -> bool:
        """Whether every tower of a narrower shape has at least log₃ of its width in layers, or keeps all of its own."""
        if self.request.options.min_depth is not None:
            return min(shape.stages[i].depth for i in self.prices.stage_indices) >= self.request.options.min_depth
        for tower in towers(self.architecture, self.prices.stage_indices):
            indices = tower_stages(self.architecture, tower)
            depth = sum(shape.stages[i].depth for i in indices)
            fewest = max(FEWEST_BLOCKS + 1, depth_floor(max_width([shape.stages[i] for i in indices])))
            if depth < min(fewest, sum(self.architecture.stages[i].depth for i in indices)):
                return False
        return True

    # -- shapes of a budget -------------------------------------------------------------------------------------------

    def nearest(self, target: int) -> Architecture:
        """Return the shape of the baseline's depth with at most ``target`` parameters whose MLP is closest to
        proportional. Raises ShapeError if no width works.
        """
        if not self.scale.smaller_units():
            raise ShapeError(f"the width of {self.architecture.source}, {self.lead.width}, goes in no smaller steps")
        try:
            return self._find_best([self.architecture], target, RATIO, lambda part, depth: 0.0)
        except NoShape:
            # widths too coarse for the budget: the widest that leaves some of it unspent
            guess_share = self._mlp_share(self.architecture, target)
            for unit in self.units:
                if guess_share(unit / self.scale.unit) > WIDE:
                    shape = self.scale.reshape(unit, WIDE, self._mlp_steps()[0])
                    if self.params(shape) <= target:
                        return shape
            raise

    def balanced(self, target: int) -> Architecture:
        """Return the shape with fewer layers and a smaller width that is closest to published families' proportions
        and to the baseline's MLP. Raises ShapeError if no such shape works.
        """
        ideal_part, ideal_depth = self.published_shares(target)
        fewest = self.request.rules.depth_floor(self.lead_stage)
        shapes = [self.shortened(depth) for depth in range(fewest, self.lead_stage.depth)]

        def off(part: float, depth: float) -> float:
            return abs(math.log(part / ideal_part)) + abs(math.log(depth / ideal_depth))

        try:
            return self._find_best(shapes, target, WIDE, off)
        except NoShape:
            raise ShapeError("with fewer layers no width within the published bounds has the budget's size") from None

    def published_shares(self, target: int) -> tuple[float, float]:
        """Return the shares of width and of depth at ``target`` parameters, as in published families.

        With s the share of the parameters in the blocks, width is s^a and depth s^(1 − 2a); the rest outside of the
        blocks shrinks with the width.
        """
        exponent = mean(family.exponent for family in families_like(self.prices))
        body = int(self.prices.total(self.prices.baseline).params_body)
        outside_params, fixed_params = self._outside
        width = 1.0
        for _ in range(50):
            share = max(0.001, (target - fixed_params - outside_params * width) / body)
            width = (width + min(1.0, share**exponent)) / 2
        return width, min(1.0, share ** (1 - 2 * exponent))

    def _find_best(
        self, shapes: Sequence[Architecture], target: int, max_share: float, off: Callable[[float, float], float]
    ) -> Architecture:
        """Return the best of these depths at any unit: ``off`` (of the shares of width and depth) and the deviation of
        the MLP from its ratio, at most ``max_share`` times that, are smallest. Raises NoShape if none has at most
        ``target`` parameters.
        """
        guesses = []
        for depths in shapes:
            depth = max(depths.stages[i].depth for i in self.prices.stage_indices)
            guess_share = self._mlp_share(depths, target)
            for unit in self.units:
                part, width = unit / self.scale.unit, self.scale.width(unit)
                share = guess_share(part)
                if not self._least_share() <= share <= max_share:
                    continue
                score = abs(math.log(share)) + off(part, depth / self.lead_stage.depth)
                score += ODD * (width % MULTIPLE != 0) + ODD * (depth % 2 > self.lead_stage.depth % 2)
                score += ODD * (narrow_layer(self.lead, width).heads % 2 > self.lead.heads % 2)
                guesses.append((score, unit, depths))
        # count the best guesses until one is close to the target
        refusal, best, best_params, tries = None, None, 0, 0
        for _, unit, depths in sorted(guesses, key=lambda guess: guess[0]):
            narrow = replace(self.scale, architecture=depths)
            if depths is not self.architecture and not self.is_deep_enough(narrow.reshape(unit)):
                continue
            try:
                shape, params = self.fit_mlp(narrow, unit, target)
            except ShapeError as error:
                refusal = refusal or error
                continue
            tries += 1
            if best_params < params <= target:
                best, best_params = shape, params
            if best_params >= target * (1 - CLOSE) or tries == TRIED:
                break
        if best is None:
            raise refusal or NoShape(f"no width of {self.architecture.source} has {target:,} parameters")
        return best

    def _least_share(self) -> float:
        """Return the smallest factor on the MLP's ratio: it ends at the published floor of MLPs."""
        index = self.architecture.stages.index(self.lead_stage)
        fewest, _ = self.request.rules.mlp_range(self.lead_stage, self.prices.is_gated(index))
        return max(1 / RATIO, fewest / self.lead.mlp) if self.lead.mlp else 1.0

    def _mlp_share(self, depths: Architecture, target: int) -> Callable[[float], float]:
        """Guess the MLP's factor for ``target`` parameters, by share of the width: blocks shrink with its square."""
        shape = tuple(old and old._replace(depth=depths.stages[i].depth) for i, old in enumerate(self.prices.baseline))
        body = int(self.prices.total(shape).params_body)
        outside_params, fixed_params = self._outside
        mlp = self._mlp_params - self._changed_mlp_params(self.prices.baseline) + self._changed_mlp_params(shape)

        def guess(part: float) -> float:
            rest = target - fixed_params - outside_params * part - body * part**2
            if not mlp:
                return 1.0 if rest >= 0 else 0.0
            return 1 + rest / (mlp * part**2)

        return guess

    @cached_property
    def _outside(self) -> tuple[float, float]:
        """The counted parameters outside of the blocks: those in proportion to the width, and those that stay (a
        convolutional backbone), by a count at about half of the width.
        """
        full = self.prices.total(self.prices.baseline)
        outside_params = int(getattr(full, self.request.params_cost)) - int(full.params_body)
        if not outside_params:
            return 0.0, 0.0
        for unit in sorted(self.units, key=lambda unit: abs(unit - self.scale.unit / 2))[:TRIED]:
            try:
                params, body = self.prices.costs.sizes(self.scale.reshape(unit))
            except ShapeError:
                continue
            fixed_params = (params - body - outside_params * unit / self.scale.unit) / (1 - unit / self.scale.unit)
            fixed_params = min(max(0.0, fixed_params), outside_params)
            return outside_params - fixed_params, fixed_params
        return outside_params, 0.0

    @cached_property
    def _mlp_params(self) -> int:
        """The parameters of all MLPs: the difference between a model with MLPs twice as wide and the baseline."""
        return self.params(self.scale.reshape(self.scale.unit, 2.0, 1)) - self.params(self.architecture)

    def _changed_mlp_params(self, shape: Shape) -> int:
        wider = tuple(stage and stage._replace(mlp=2 * stage.mlp) for stage in shape)
        return int(self.prices.total(wider).params_body) - int(self.prices.total(shape).params_body)

    def fit_mlp(self, scale: WidthScale, unit: int, target: int) -> tuple[Architecture, int]:
        """Return the shape with this unit whose hidden units bring it to ``target`` parameters, and its parameters.

        Parameters are affine in the hidden units: two counts say how many there may be, a third one makes sure.
        """
        in_proportion = scale.reshape(unit)
        at_ratio = self.params(in_proportion)
        if not self.lead.mlp:
            return in_proportion, at_ratio
        index = self.architecture.stages.index(self.lead_stage)
        wider = scale.reshape(unit, RATIO)
        mlp, wider_mlp = (primary_layer(shape.stages[index]).mlp for shape in (in_proportion, wider))
        per_unit = (self.params(wider) - at_ratio) / max(1, wider_mlp - mlp)
        exact = mlp + (target - at_ratio) / per_unit if per_unit > 0 else mlp
        ratio = self.lead.mlp * scale.width(unit) / self.lead.width
        if not self._least_share() <= exact / ratio <= RATIO:
            return in_proportion, at_ratio
        # coarse steps if one is close to the target, otherwise finer ones
        step = 1
        for step in self._mlp_steps():
            if (exact % math.gcd(step, self.lead.mlp)) * per_unit <= CLOSE * target:
                break
        step = math.gcd(step, self.lead.mlp)
        for steps in range(int(exact // step), 0, -1):
            shape = scale.reshape(unit, steps * step / ratio, step)
            params = self.params(shape)
            if params <= target:
                break
        if steps * step < self._least_share() * ratio:
            raise ShapeError(f"MLPs at the width {scale.width(unit)} would be narrower than published ones")
        return shape, params

    def _mlp_steps(self) -> Sequence[int]:
        if self.request.options.multiple:
            return (self.request.options.multiple,)
        if any(stage.mixture for stage in self.architecture.stages):
            return EXPERT_STEPS
        return MLP_STEPS if self.lead.width >= SMALL_WIDTH else SMALL_MLP_STEPS
