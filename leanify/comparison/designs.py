"""The designs of a study, by name, directory, grid or explicit shape, with exact prices.

baseline, lean, control    from `redesign` of the recipe's model under the budget
narrow                     the baseline's depth and lean's parameters with a smaller residual width
depth-only                 drop layers to meet the budget; heads and MLP unchanged
mlp-only                   narrow the MLP to meet the budget; depth and heads unchanged
wide-heads                 lean's inner width from wider heads instead of more heads
split                      more heads at the same inner width
front:N                    the N best-ranked designs that use at least 97% of the budget
DIR                        the shape of a lean directory; without lean, control and narrow are the directory's
name=depth:7,heads:18,mlp:1536    an explicit shape; omitted sizes are the baseline's; 4/4/8/2 gives one per stage
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

from leanify.comparison.plan import BASELINE, LEAN, RIVALS, PlannedDesign, check_names, rank_designs
from leanify.core.architecture import Architecture, Stage
from leanify.core.errors import BudgetError, LeanifyError, ShapeError
from leanify.core.recipe import ModelSection, Recipe
from leanify.core.terminal import note
from leanify.core.units import format_sizes
from leanify.profiling import counting
from leanify.profiling.cost import read_shape
from leanify.profiling.forward import signature
from leanify.reshaping import surgery
from leanify.reshaping.width import differs_in_width
from leanify.search import alternatives
from leanify.search.design import Design, make_design
from leanify.search.plan import Plan
from leanify.search.redesign import redesign
from leanify.sources import find
from leanify.sources.find import ModelSource
from leanify.training.preparation import model_on_meta

# bounds of a lean that a study trains all the same, the nearest first
BEYOND_BOUNDS = ({"min_depth": 1}, {"min_depth": 1, "min_mlp": 1.0}, {"min_depth": 1, "min_mlp": 0.5})
AXES = ("depth", "heads", "head_dim", "mlp")
SIZES = (*AXES, "width")


@dataclass
class Designer:
    """Finds and prices designs of a recipe's model under a budget; prices are computed when first needed."""

    recipe: Recipe
    budget: str
    pins: Mapping[str, Any] = field(init=False, default_factory=dict)  # the lean directory's, see `_lean_pins`
    tokens: int | None = field(init=False, default=None)
    baseline_macs: int | None = field(init=False, default=None)

    def all(self, names: Sequence[str], sweep: Mapping[str, Sequence[int]]) -> tuple[PlannedDesign, ...]:
        """Return the named designs, then the grid's, with ranks. Raises LeanifyError for unknown or repeated names."""
        planned_designs: list[PlannedDesign] = []
        self.pins = self._lean_pins(names)
        for name in names:
            planned_designs += self.designs_by_name(name)
        for sizes in product(*sweep.values()) if sweep else ():
            pins = dict(zip(sweep, sizes, strict=True))
            name = "-".join(f"{axis}{size}" for axis, size in pins.items())
            planned_designs.append(self.design_from_pins(name, pins))
        check_names([design.name for design in planned_designs])
        return rank_designs(tuple(planned_designs))

    def designs_by_name(self, name: str) -> Iterator[PlannedDesign]:
        """Yield the design of this name; several for ``front:N``. Raises ShapeError for an unknown name."""
        if name == BASELINE:
            yield self.plan_design(name, self.plan_without_budget.baseline)
        elif name in alternatives.NAMES:
            yield self.plan_design(name, alternatives.named_design(self.plan, name))
        elif name.startswith("front:"):
            count = name.removeprefix("front:")
            if not count.isdigit() or int(count) < 1:
                raise ShapeError(f"{name!r}: front needs a number of designs, such as front:6")
            for place, design in enumerate(alternatives.front(self.plan, int(count)), 1):
                yield self.plan_design(f"front-{place}", design)
        elif "=" in name:
            yield self.design_from_pins(*parse_shape(name))
        elif Path(name).is_dir():
            yield self.directory(Path(name))
        else:
            known_names = ", ".join([*alternatives.NAMES, "front:N"])
            raise ShapeError(
                f"{name!r} is not a design; name {known_names}, a lean directory, or a shape such as "
                '"name=depth:7,heads:18"'
            )

    def _lean_pins(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the sizes of the first lean directory of this model, if control or narrow are named and lean is not:
        they are then the directory's.
        """
        if LEAN in names or not any(name in RIVALS for name in names):
            return {}
        for name in names:
            if name not in alternatives.NAMES and "=" not in name and Path(name).is_dir():
                source = find.find(Path(name))
                if self._is_same_model(source):
                    sizes = _stage_sizes(surgery.read(find.build_on_meta(source)))
                    return {axis: sizes[axis] for axis in AXES}
        return {}

    def _is_same_model(self, source: ModelSource) -> bool:
        origin, own_origin = source.origin, self.source.origin
        return (origin.library, origin.name) == (own_origin.library, own_origin.name)

    # -- prices -------------------------------------------------------------------------------------------------------

    @property
    def length(self) -> int | None:
        """The number of tokens per sample, from the recipe."""
        return None if self.recipe.data is None else self.recipe.data.length

    def make_redesign(self, **request: Any) -> Plan:
        """Call `redesign` on the recipe's model."""
        plan = redesign(self.recipe, tokens=self.length, **request)
        self.tokens, self.baseline_macs = plan.tokens, plan.baseline.macs
        return plan

    @cached_property
    def plan(self) -> Plan:
        """The plan under the study's budget, or the one whose lean is a directory's shape.

        A study measures, so where no lean is within the published bounds, it takes one beyond them, and a note says
        which bounds it crosses. Raises BudgetError if there is none either.
        """
        plan = self.plan_within_bounds
        if plan.lean is not None:
            return plan
        for bounds in BEYOND_BOUNDS:
            beyond = self.make_redesign(target_params=self.budget, **bounds)
            if beyond.lean is not None:
                note(f"no lean: {plan.needs}. This study trains one beyond the bounds: {'; '.join(beyond.warnings)}")
                return beyond
        # suggest an explicit shape, or a deeper baseline
        stage, *others = surgery.read(model_on_meta(self.recipe.model)).stages
        shape, deeper = "depth:N/N/…,heads:N/N/…", ""
        if not others and stage.primary is not None:
            shape = f"depth:{max(1, stage.depth // 2)},heads:{2 * stage.primary.heads}"
            deeper = f"; or compare a deeper model: --set model.depth={3 * stage.depth}"
        raise BudgetError(
            f"no lean design: {plan.needs}. Explicit shapes are not limited by rules: --designs baseline,small={shape}"
            f"{deeper}"
        )

    @cached_property
    def plan_within_bounds(self) -> Plan:
        """The plan under the study's budget and the published bounds, or the one of a directory's shape."""
        if self.pins:
            return self.make_redesign(**self.pins, min_depth=1, min_mlp=0)
        return self.make_redesign(target_params=self.budget)

    @cached_property
    def plan_without_budget(self) -> Plan:
        """`plan_within_bounds`, or a plan without a budget if no design meets it, so that the baseline is always
        priced.
        """
        try:
            return self.plan_within_bounds
        except BudgetError:
            depths = [stage.depth for stage in surgery.read(model_on_meta(self.recipe.model)).stages]
            return self.make_redesign(depth=depths if len(depths) > 1 else depths[0], min_depth=1, min_mlp=0)

    @cached_property
    def baseline_shape(self) -> Architecture:
        """The architecture of the recipe's source, before the recipe reshapes it."""
        return surgery.read(find.build_on_meta(self.source))

    @cached_property
    def source(self) -> ModelSource:
        return find.section_source(self.recipe.model)

    # -- designs ------------------------------------------------------------------------------------------------------

    def design_from_pins(self, name: str, pins: Mapping[str, int | list[int]]) -> PlannedDesign:
        return self.plan_design(name, self.make_redesign(**pins, min_depth=1, min_mlp=0).chosen)

    def directory(self, path: Path) -> PlannedDesign:
        """Return a lean directory's shape for the recipe's model, initialised by each run's seed; a directory of
        another model is used as that model.

        Raises LeanifyError if the inputs or outputs of another model differ from the recipe's model.
        """
        source = find.find(path)
        model = find.build_on_meta(source)
        shape = surgery.read(model)
        if self._is_same_model(source):
            section = self.section(shape)
            model = model_on_meta(section)  # the recipe's inputs and classes may differ from the directory's
        else:
            section = ModelSection(str(path.absolute()))
            own, wanted = signature(model), signature(model_on_meta(self.recipe.model))
            if own != wanted:
                raise LeanifyError(
                    f"{path} is for another task than the recipe's model: its inputs and its output are {own}, those "
                    f"of the recipe's model {wanted}"
                )
        sizes = _stage_sizes(shape)
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", path.resolve().name)  # a valid name for a folder of runs
        cost = counting.count(model, self.length)
        return PlannedDesign(name, section, **sizes, params=cost.params, macs=cost.macs, predicted=self.score(shape))

    def score(self, shape: Architecture) -> float | None:
        """The ranking's score of a shape (lower is better); None if its stages differ from the recipe's model."""
        prices = self.plan_without_budget.prices
        primaries = [stage.primary for stage in shape.stages]
        if len(primaries) != len(prices.architecture.stages) or any(primaries[i] is None for i in prices.stage_indices):
            return None
        return make_design(prices, read_shape(shape, prices.stage_indices)).score

    def plan_design(self, name: str, design: Design) -> PlannedDesign:
        section = self.recipe.model if name == BASELINE else self.section(design.architecture)
        sizes: dict[str, Any] = {}
        for axis in SIZES:
            size = getattr(design, axis)
            sizes[axis] = tuple(size) if isinstance(size, list) else size
        return PlannedDesign(name, section, **sizes, params=design.params, macs=design.macs, predicted=design.score)

    def section(self, architecture: Architecture) -> ModelSection:
        """Return the recipe's [model] section with another shape. Raises ShapeError if a recipe cannot express it."""
        # try sizes for all stages, for the stages that vary, and for the stages that vary in the recipe's source
        stage_range = range(len(architecture.stages))
        for indices in (stage_range, architecture.variable_stages, self.baseline_shape.variable_stages):
            stages = [architecture.stages[i] for i in indices]
            if not stages or any(stage.primary is None for stage in stages):
                continue
            sizes: dict[str, Any] = {}
            for axis, column in _sizes_by_axis(stages).items():
                sizes[axis] = column[0] if len(column) == 1 else column
            if not differs_in_width(self.baseline_shape, architecture):
                del sizes["width"]
            section = replace(self.recipe.model, **sizes)
            if section.shape(self.baseline_shape) == architecture:
                return section
        raise ShapeError(f"a recipe cannot express this shape: {architecture}")


# -- command line -----------------------------------------------------------------------------------------------------


def split_names(texts: Iterable[str]) -> list[str]:
    """Split ``baseline,lean,a=depth:4,heads:8,b=mlp:64`` into one entry per design; commas within a shape are kept."""
    names: list[str] = []
    for part in ",".join(texts).split(","):
        part = part.strip()
        if names and part.split(":")[0] in AXES and "=" in names[-1]:
            names[-1] += f",{part}"
        elif part:
            names.append(part)
    return names


def parse_shape(text: str) -> tuple[str, dict[str, int | list[int]]]:
    """Parse ``small=depth:7,heads:18`` into its name and its fixed sizes. Raises ShapeError."""
    name, _, shape = text.partition("=")
    pins: dict[str, int | list[int]] = {}
    for part in shape.split(","):
        axis, _, value = part.partition(":")
        if axis not in AXES:
            raise ShapeError(f"the design {text!r} sets {axis!r}; a shape can set {', '.join(AXES)}")
        pins[axis] = _sizes(text, value)
    return name, pins


def design_argument(design: PlannedDesign) -> str:
    """Return the ``--designs`` argument of a design: its name if that is sufficient, or its shape."""
    # a user's own design may be called narrow too; the real one has another width
    is_own = design.name == "narrow" and design.model.width is None
    if design.name in alternatives.NAMES and not is_own:
        return design.name
    sizes = ",".join(f"{axis}:{format_sizes(getattr(design, axis))}" for axis in AXES)
    return f"{design.name}={sizes}"


def parse_sweep(texts: Iterable[str]) -> dict[str, list[int]]:
    """Parse ``heads=2,4,8`` into an axis and its values. Raises ShapeError."""
    sweep: dict[str, list[int]] = {}
    for text in texts:
        axis, _, values = text.partition("=")
        if axis not in AXES:
            raise ShapeError(f"--sweep {text!r} must be one of {', '.join(AXES)} with values, such as heads=2,4,8")
        sizes = _sizes(f"--sweep {text}", values.replace(",", "/"))
        sweep[axis] = sizes if isinstance(sizes, list) else [sizes]
    return sweep


def _stage_sizes(shape: Architecture) -> dict[str, Any]:
    """Return the sizes of a shape by axis: one number, or a tuple of one per stage if stages differ."""
    columns = _sizes_by_axis(shape.stages)
    return {axis: column[0] if len(set(column)) == 1 else column for axis, column in columns.items()}


def _sizes_by_axis(stages: Iterable[Stage]) -> dict[str, tuple[int, ...]]:
    """Return the sizes of the stages with attention, one per stage."""
    layers = [(stage.depth, stage.primary) for stage in stages]
    rows = [(depth, one.heads, one.head_dim, one.mlp, one.width) for depth, one in layers if one is not None]
    return dict(zip(SIZES, zip(*rows, strict=True), strict=True))


def _sizes(text: str, value: str) -> int | list[int]:
    try:
        numbers = [int(part) for part in value.split("/")]
    except ValueError:
        raise ShapeError(f"{text!r}: {value!r} must be an integer (or one per stage: 4/4/8/2)") from None
    if min(numbers) < 1:
        raise ShapeError(f"{text!r} has a size below 1; sizes must be at least 1")
    return numbers[0] if len(numbers) == 1 else numbers
