"""The designs of a study, by name, directory, grid or explicit shape, with exact prices.

baseline, lean, control    from `redesign` of the recipe's model under the budget
depth-only                 drop layers to meet the budget; heads and MLP unchanged
mlp-only                   narrow the MLP to meet the budget; depth and heads unchanged
wide-heads                 lean's inner width from wider heads instead of more heads
split                      more heads at the same inner width
front:N                    the N best-ranked designs that use at least 97% of the budget
DIR                        the shape of a lean directory
name=depth:7,heads:18,mlp:1536    an explicit shape; omitted sizes stay the baseline's; 4/4/8/2 gives one per stage
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leanify.architecture import Architecture
from leanify.design.plan import Plan
from leanify.design.prices import counting
from leanify.design.prices.shapes import Shape, shape_of
from leanify.design.redesign import redesign
from leanify.design.search import alternatives
from leanify.design.search.design import Design, design_of
from leanify.errors import BudgetError, LeanifyError, ShapeError
from leanify.lens import surgery
from leanify.runs.recipe import ModelSection, Recipe
from leanify.sources import find
from leanify.sources.find import ModelSource
from leanify.study.plan import BASELINE, PlannedDesign, check_names, ranked
from leanify.upstream.inputs import example_inputs

if TYPE_CHECKING:
    from torch import nn

AXES = ("depth", "heads", "head_dim", "mlp")


@dataclass
class Designer:
    """Finds and prices designs of a recipe's model under a budget; prices are computed when first needed."""

    recipe: Recipe
    budget: str
    tokens: int | None = field(init=False, default=None)
    baseline_macs: int | None = field(init=False, default=None)

    def all(self, names: Sequence[str], sweep: Mapping[str, Sequence[int]]) -> tuple[PlannedDesign, ...]:
        """The named designs, then the grid's, with ranks. Raises LeanifyError for an unknown or duplicate name."""
        found: list[PlannedDesign] = []
        for name in names:
            found += self.named(name)
        for name, pins in grid(sweep):
            found.append(self.shaped(name, pins))
        check_names([design.name for design in found])
        return ranked(tuple(found))

    def named(self, name: str) -> Iterator[PlannedDesign]:
        """Yield the design of this name; several for ``front:N``. Raises ShapeError for an unknown name."""
        if name == BASELINE:
            yield self.planned(name, self.baseline)
        elif name in alternatives.NAMES:
            yield self.planned(name, alternatives.named(self.plan, name))
        elif name.startswith("front:"):
            count = name.removeprefix("front:")
            if not count.isdigit() or int(count) < 1:
                raise ShapeError(f"{name!r}: front needs a number of designs, such as front:6")
            for place, design in enumerate(alternatives.front(self.plan, int(count)), 1):
                yield self.planned(f"front-{place}", design)
        elif "=" in name:
            yield self.shaped(*parse_shape(name))
        elif Path(name).is_dir():
            yield self.directory(Path(name))
        else:
            known = ", ".join([*alternatives.NAMES, "front:N"])
            raise ShapeError(
                f'{name!r} is not a design; name {known}, a lean directory, or a shape such as "name=depth:7,heads:18"'
            )

    # -- prices -------------------------------------------------------------------------------------------------------

    @property
    def length(self) -> int | None:
        """Tokens of a sample, as the recipe says."""
        return None if self.recipe.data is None else self.recipe.data.length

    def asked(self, **request: Any) -> Plan:
        """Call `redesign` on the recipe's model."""
        plan = redesign(self.recipe, tokens=self.length, **request)
        self.tokens, self.baseline_macs = plan.tokens, plan.baseline.macs
        return plan

    @cached_property
    def shape(self) -> Architecture:
        """The architecture of the recipe's model."""
        return surgery.read(self._built(self.recipe.model))

    @cached_property
    def plan(self) -> Plan:
        """The plan under the study's budget. Its BudgetError names what a study takes, not flags of redesign."""
        try:
            return self.asked(target_params=self.budget)
        except BudgetError as error:
            if not error.flags:
                raise
            raise BudgetError(f"{error.message} {self._other_ways()}") from error

    def _other_ways(self) -> str:
        """What works where the rules leave no lean design: a shape of one's own, or a deeper baseline."""
        stage, *others = self.shape.stages
        depth, primary = stage.depth, stage.primary
        if others or primary is None:
            return "A shape that is named keeps to no rule: --designs baseline,small=depth:N/N/…,heads:N/N/…"
        shape = f"depth:{max(1, depth // 2)},heads:{2 * primary.heads}"
        return (
            f"A shape that is named keeps to no rule: --designs baseline,small={shape}; "
            f"or compare a deeper model: --set model.depth={3 * depth}"
        )

    @cached_property
    def unpressed(self) -> Plan:
        """`plan`, or a plan without a budget if no design meets it, so that the baseline is always priced."""
        try:
            return self.plan
        except BudgetError:
            depths = [stage.depth for stage in self.shape.stages]
            return self.asked(depth=depths if len(depths) > 1 else depths[0], min_depth=1, min_mlp=0)

    @property
    def baseline(self) -> Design:
        """The recipe's own model, unchanged."""
        return self.unpressed.baseline

    @cached_property
    def unshaped(self) -> Architecture:
        """The architecture of the recipe's source, before the recipe reshapes it."""
        return surgery.read(find.build_on_meta(self.source))

    @cached_property
    def source(self) -> ModelSource:
        model = self.recipe.model
        return find.find(model.source, overrides=model.override, cls=model.cls)

    # -- designs ------------------------------------------------------------------------------------------------------

    def shaped(self, name: str, pins: Mapping[str, int | list[int]]) -> PlannedDesign:
        return self.planned(name, self.asked(**pins, min_depth=1, min_mlp=0).chosen)

    def directory(self, path: Path) -> PlannedDesign:
        """A lean directory's shape for the recipe's model, initialised by each run's seed; if it is of another model,
        that model itself.

        Raises LeanifyError if the inputs or outputs of another model differ from the recipe's model.
        """
        found = find.find(path)
        model = find.build_on_meta(found)
        shape = surgery.read(model)
        if (found.origin.library, found.origin.name) == (self.source.origin.library, self.source.origin.name):
            section = self.section(shape)
            model = self._built(section)  # with the recipe's inputs and classes, which the directory need not have
        else:
            section = ModelSection(str(path.absolute()))
            inputs, output = _signature(model)
            wanted, of_recipe = _signature(self._built(self.recipe.model))
            if (inputs, output) != (wanted, of_recipe):
                raise LeanifyError(
                    f"{path} is for another task than the recipe's model: its input is {inputs} and its output "
                    f"{output}; the recipe's model has {wanted} and {of_recipe}"
                )
        stages = [(stage.depth, stage.primary) for stage in shape.stages]
        rows = [(depth, one.heads, one.head_dim, one.mlp) for depth, one in stages if one is not None]
        sizes: dict[str, Any] = {}
        for axis, column in zip(AXES, zip(*rows, strict=True), strict=True):
            sizes[axis] = column[0] if len(set(column)) == 1 else column
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", path.resolve().name)  # as a folder of runs may be called
        cost = counting.count(model, self.length)
        return PlannedDesign(name, section, **sizes, params=cost.params, macs=cost.macs, predicted=self.score(shape))

    def _built(self, section: ModelSection) -> nn.Module:
        """The recipe's model with this section, on meta."""
        return find.build_on_meta(find.find(replace(self.recipe, model=section)))

    def score(self, shape: Architecture) -> float | None:
        """The ranking's score of a shape (lower is better); None if its stages differ from the recipe's model."""
        prices = self.unpressed.prices
        primaries = [stage.primary for stage in shape.stages]
        if len(primaries) != len(prices.architecture.stages) or any(primaries[i] is None for i in prices.changed):
            return None
        return design_of(prices, shape_of(shape, prices.changed)).score

    def design(self, shape: Shape) -> Design:
        """The design of a shape in the plan's price list."""
        return design_of(self.plan.prices, shape)

    def planned(self, name: str, design: Design) -> PlannedDesign:
        section = self.recipe.model if name == BASELINE else self.section(design.architecture)
        sizes: dict[str, Any] = {}
        for axis in AXES:
            size = getattr(design, axis)
            sizes[axis] = tuple(size) if isinstance(size, list) else size
        return PlannedDesign(name, section, **sizes, params=design.params, macs=design.macs, predicted=design.score)

    def section(self, wanted: Architecture) -> ModelSection:
        """The recipe's [model] section with another shape. Raises ShapeError if a recipe cannot express it."""
        primaries = [(stage.depth, stage.primary) for stage in wanted.stages]
        every = range(len(wanted.stages))
        for stages in (every, wanted.varied, self.unshaped.varied):
            found = [primaries[i] for i in stages]
            shapes = [(depth, one.heads, one.head_dim, one.mlp) for depth, one in found if one is not None]
            if not shapes or len(shapes) < len(found):
                continue
            sizes: dict[str, Any] = {}
            for axis, column in zip(AXES, zip(*shapes, strict=True), strict=True):
                sizes[axis] = column[0] if len(column) == 1 else column
            section = replace(self.recipe.model, **sizes)
            if section.shape(self.unshaped) == wanted:
                return section
        raise ShapeError(f"a recipe cannot express this shape: {wanted}")


# -- command line ---------------------------------------------------------------------------------------------------


def split_names(texts: Iterable[str]) -> list[str]:
    """Split ``baseline,lean,a=depth:4,heads:8,b=mlp:64`` into one entry per design; commas within a shape are kept."""
    names: list[str] = []
    for part in (part.strip() for text in texts for part in text.split(",")):
        if names and part.split(":")[0] in AXES and "=" in names[-1]:
            names[-1] += f",{part}"
        elif part:
            names.append(part)
    return names


def parse_shape(text: str) -> tuple[str, dict[str, int | list[int]]]:
    """Parse ``narrow=depth:7,heads:18`` into its name and its fixed sizes. Raises ShapeError."""
    name, _, shape = text.partition("=")
    pins: dict[str, int | list[int]] = {}
    for part in shape.split(","):
        axis, _, value = part.partition(":")
        if axis not in AXES:
            raise ShapeError(f"the design {text!r} sets {axis!r}; a shape can set {', '.join(AXES)}")
        pins[axis] = _sizes(text, value)
    return name, pins


def parse_sweep(texts: Iterable[str]) -> dict[str, list[int]]:
    """Parse ``heads=2,4,8`` into an axis and its values. Raises ShapeError."""
    sweep: dict[str, list[int]] = {}
    for text in texts:
        axis, _, values = text.partition("=")
        if axis not in AXES:
            raise ShapeError(f"--sweep {text!r} must be one of {', '.join(AXES)} with values, such as heads=2,4,8")
        found = _sizes(f"--sweep {text}", values.replace(",", "/"))
        sweep[axis] = found if isinstance(found, list) else [found]
    return sweep


def grid(sweep: Mapping[str, Sequence[int]]) -> Iterator[tuple[str, dict[str, int | list[int]]]]:
    """Yield every combination of a sweep's values as (``depth8-heads4``, sizes)."""
    if sweep:
        for values in product(*sweep.values()):
            pins = dict(zip(sweep, values, strict=True))
            yield "-".join(f"{axis}{value}" for axis, value in pins.items()), dict(pins)


def _sizes(text: str, value: str) -> int | list[int]:
    try:
        numbers = [int(part) for part in value.split("/")]
    except ValueError:
        raise ShapeError(f"{text!r}: {value!r} must be an integer (or one per stage: 4/4/8/2)") from None
    if min(numbers) < 1:
        raise ShapeError(f"{text!r} has a size below 1; sizes must be at least 1")
    return numbers[0] if len(numbers) == 1 else numbers


def _signature(model: Any) -> tuple[dict[str, tuple[int, ...]], tuple[int, ...]]:
    """The shapes of a model's inputs, by name, and of its first output, for one sample."""
    inputs = example_inputs(model, 1, device="meta")
    with counting.plain(model), counting.Countable():
        outputs: Any = counting.call(model, inputs)
    if not hasattr(outputs, "shape"):
        outputs = next(value for value in outputs.values() if hasattr(value, "shape"))
    return {name: tuple(value.shape) for name, value in inputs.items()}, tuple(outputs.shape)
