"""The designs of a study: by name, as a directory, as a grid, or written out; each with its exact prices.

baseline, lean, control    what `redesign` says of the recipe's own model under the budget
depth-only                 layers dropped until the budget is met; heads and MLP untouched
mlp-only                   the MLP narrowed until the budget is met; depth and heads untouched
wide-heads                 lean's inner width by wider heads instead of more of them
split                      more heads of the same inner width
front:N                    the N best-ranked designs that spend the budget to within 3 %
DIR                        the shape of a lean directory
name=depth:7,heads:18,mlp:1536    a shape; what it does not name stays the baseline's; one a stage by 4/4/8/2
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

from leanify.architecture import Architecture
from leanify.design import alternatives, counting
from leanify.design.design import Design, designer
from leanify.design.grid import Candidate, priced
from leanify.design.plan import Plan
from leanify.design.prices import StageDesign
from leanify.design.redesign import redesign
from leanify.errors import BudgetError, LeanifyError, ShapeError
from leanify.lens import surgery
from leanify.sources import find
from leanify.sources.find import ModelSource
from leanify.sources.recipe import ModelSection, Recipe
from leanify.study.plan import BASELINE, PlannedDesign, ranked
from leanify.upstream.inputs import example_inputs

AXES = ("depth", "heads", "head_dim", "mlp")


@dataclass
class Designer:
    """Finds and prices designs of a recipe's model under a budget; prices are asked for when they are needed."""

    recipe: Recipe
    budget: str
    tokens: int | None = field(init=False, default=None)
    baseline_macs: int | None = field(init=False, default=None)
    _file: Path = field(init=False)

    def all(self, names: Sequence[str], sweep: Mapping[str, Sequence[int]]) -> tuple[PlannedDesign, ...]:
        """The designs that are named, then the grid's; ranked. Raises LeanifyError for a name that means nothing."""
        found = self.priced(lambda: [*self._all_named(names), *(self.shaped(*shape) for shape in grid(sweep))])
        _check_names([design.name for design in found])
        return ranked(tuple(found))

    def priced(self, make: Callable[[], Iterable[PlannedDesign]]) -> list[PlannedDesign]:
        """What ``make`` makes, while the recipe lies in a file, as `redesign` takes it."""
        with tempfile.TemporaryDirectory() as folder:
            self._file = Path(folder) / "recipe.toml"
            self._file.write_text(self.recipe.to_toml(), encoding="utf-8")
            return list(make())

    def _all_named(self, names: Sequence[str]) -> Iterator[PlannedDesign]:
        for name in names:
            yield from self.named(name)

    def named(self, name: str) -> Iterator[PlannedDesign]:
        """One design, or several for ``front:N``."""
        if name == BASELINE:
            yield self.planned(name, self.baseline)
        elif name in alternatives.NAMES:
            yield self.planned(name, alternatives.named(self.plan, name))
        elif name.startswith("front:"):
            found = alternatives.front(self.plan, _count(name))
            yield from (self.planned(f"front-{place}", design) for place, design in enumerate(found, 1))
        elif "=" in name:
            yield self.shaped(*parse_shape(name))
        elif Path(name).is_dir():
            yield self.directory(Path(name))
        else:
            known = ", ".join([*alternatives.NAMES, "front:N"])
            raise ShapeError(
                f'{name!r} is not a design: give {known}, a lean directory, or a shape, "name=depth:7,heads:18"'
            )

    # -- prices -------------------------------------------------------------------------------------------------------

    def asked(self, **request: Any) -> Plan:
        """`redesign` of the recipe's model."""
        tokens = None if self.recipe.data is None else self.recipe.data.length
        plan = redesign(self._file, tokens=tokens, **request)
        self.tokens, self.baseline_macs = plan.tokens, plan.baseline.macs
        return plan

    @cached_property
    def plan(self) -> Plan:
        """Under the budget."""
        return self.asked(target_params=self.budget)

    @cached_property
    def unpressed(self) -> Plan:
        """The plan, or where nothing is within its budget one of the recipe's model as it stands."""
        try:
            return self.plan
        except BudgetError:
            stages = surgery.read(find.build_on_meta(find.find(self._file))).stages
            depths = [stage.depth for stage in stages]
            return self.asked(depth=depths if len(depths) > 1 else depths[0], min_depth=1, min_mlp=0)

    @property
    def baseline(self) -> Design:
        """The recipe's model as it stands; no budget is too small for it."""
        return self.unpressed.baseline

    @cached_property
    def unshaped(self) -> Architecture:
        """Of the recipe's source, before the recipe shapes it."""
        return surgery.read(find.build_on_meta(self.source))

    @cached_property
    def source(self) -> ModelSource:
        model = self.recipe.model
        return find.find(model.source, overrides=model.override, cls=model.cls)

    # -- designs ------------------------------------------------------------------------------------------------------

    def shaped(self, name: str, pins: Mapping[str, int | list[int]]) -> PlannedDesign:
        return self.planned(name, self.asked(**pins, min_depth=1, min_mlp=0).chosen)

    def directory(self, path: Path) -> PlannedDesign:
        """The shape of a lean directory, drawn anew by each seed; another model than the recipe's starts as it is."""
        found = find.find(path)
        model = find.build_on_meta(found)
        ours = find.build_on_meta(find.find(self._file))
        _check_task(path, _signature(model), _signature(ours))
        shape = surgery.read(model)
        alike = (found.origin.library, found.origin.name) == (self.source.origin.library, self.source.origin.name)
        section = self.section(shape) if alike else ModelSection(str(path.absolute()))
        tokens = None if self.recipe.data is None else self.recipe.data.length
        cost = counting.count(model, tokens)
        primaries = [(stage.depth, stage.primary) for stage in shape.stages if stage.primary is not None]
        columns = zip(*((depth, m.heads, m.head_dim, m.mlp) for depth, m in primaries), strict=True)
        sizes: list[Any] = [column[0] if len(set(column)) == 1 else tuple(column) for column in columns]
        depth, heads, head_dim, mlp = sizes
        costs = (cost.params, cost.macs, 0, self.score(shape))
        return PlannedDesign(path.name, section, depth, heads, head_dim, mlp, *costs)

    def score(self, shape: Architecture) -> float | None:
        """What the ranking says of a shape; None where its stages are not those of the recipe's model."""
        prices = self.unpressed.prices
        primaries = [stage.primary for stage in shape.stages]
        if len(primaries) != len(prices.architecture.stages) or any(primaries[i] is None for i in prices.turned):
            return None
        designs = tuple(
            StageDesign(stage.depth, primary.heads, primary.head_dim, primary.mlp)
            if i in prices.turned and (primary := stage.primary) is not None
            else None
            for i, stage in enumerate(shape.stages)
        )
        return designer(prices)(priced(prices, designs)).score

    def design(self, candidate: Candidate) -> Design:
        """A candidate of the plan's price list, with all that is known of it."""
        return designer(self.plan.prices)(candidate)

    def planned(self, name: str, design: Design) -> PlannedDesign:
        own = name == BASELINE
        section = self.recipe.model if own else self.section(design.architecture)
        depth, heads, head_dim, mlp = (_as_tuple(getattr(design, axis)) for axis in AXES)
        costs = (design.params, design.macs, 0, design.score)
        return PlannedDesign(name, section, depth, heads, head_dim, mlp, *costs)

    def section(self, wanted: Architecture) -> ModelSection:
        """[model] of the recipe with another shape. Raises ShapeError where a recipe cannot say it."""
        primaries = [(stage.depth, stage.primary) for stage in wanted.stages]
        every = range(len(wanted.stages))
        for stages in (every, wanted.varied, self.unshaped.varied):
            if any(primaries[i][1] is None for i in stages):
                continue
            columns = {
                axis: [primaries[i][0] if axis == "depth" else getattr(primaries[i][1], axis) for i in stages]
                for axis in AXES
            }
            sizes: dict[str, Any] = {
                axis: column[0] if len(column) == 1 else tuple(column) for axis, column in columns.items()
            }
            section = replace(self.recipe.model, **sizes)
            if section.shape(self.unshaped) == wanted:
                return section
        raise ShapeError(f"a recipe cannot say this shape: {wanted}")


# -- reading what was typed -----------------------------------------------------------------------------------------


def split_names(texts: Iterable[str]) -> list[str]:
    """``baseline,lean,a=depth:4,heads:8,b=mlp:64`` → one entry a design: a shape's own commas belong to it."""
    names: list[str] = []
    for part in (part.strip() for text in texts for part in text.split(",")):
        if names and part.split(":")[0] in AXES and "=" in names[-1]:
            names[-1] += f",{part}"
        elif part:
            names.append(part)
    return names


def parse_shape(text: str) -> tuple[str, dict[str, int | list[int]]]:
    """``narrow=depth:7,heads:18`` → its name and its pins."""
    name, _, shape = text.partition("=")
    pins: dict[str, int | list[int]] = {}
    for part in shape.split(","):
        axis, _, value = part.partition(":")
        if axis not in AXES:
            raise ShapeError(f"the design {text!r} names {axis!r}; a shape is made of {', '.join(AXES)}")
        pins[axis] = _sizes(text, value)
    return name, pins


def parse_sweep(texts: Iterable[str]) -> dict[str, list[int]]:
    """``heads=2,4,8`` → the values of an axis."""
    sweep: dict[str, list[int]] = {}
    for text in texts:
        axis, _, values = text.partition("=")
        if axis not in AXES:
            raise ShapeError(f"--sweep {text!r}: give one of {', '.join(AXES)} with its values, heads=2,4,8")
        found = _sizes(f"--sweep {text}", values.replace(",", "/"))
        sweep[axis] = found if isinstance(found, list) else [found]
    return sweep


def grid(sweep: Mapping[str, Sequence[int]]) -> Iterator[tuple[str, dict[str, int | list[int]]]]:
    """Every combination of a sweep with its name, ``depth8-heads4``; nothing where nothing is swept."""
    if sweep:
        for values in product(*sweep.values()):
            pins = dict(zip(sweep, values, strict=True))
            yield "-".join(f"{axis}{value}" for axis, value in pins.items()), dict(pins)


def _sizes(text: str, value: str) -> int | list[int]:
    try:
        numbers = [int(part) for part in value.split("/")]
    except ValueError:
        raise ShapeError(f"{text!r} has {value!r} where a whole number belongs (one a stage: 4/4/8/2)") from None
    if min(numbers) < 1:
        raise ShapeError(f"{text!r} has a size below 1")
    return numbers[0] if len(numbers) == 1 else numbers


def _count(name: str) -> int:
    number = name.partition(":")[2]
    if not number.isdigit() or int(number) < 1:
        raise ShapeError(f"{name!r}: front takes a number of designs, front:6")
    return int(number)


def _check_names(names: Sequence[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ShapeError(f"two designs are called {twice[0]!r}; each needs a name of its own")
    odd = [name for name in names if not name.replace("-", "").replace("_", "").replace(".", "").isalnum()]
    if odd:
        raise ShapeError(f"{odd[0]!r} names a folder of runs: use letters, digits, '-', '_' and '.'")


# -- tasks ----------------------------------------------------------------------------------------------------------


def _signature(model: Any) -> tuple[dict[str, tuple[int, ...]], list[tuple[int, ...]]]:
    """The shapes of a model's inputs and outputs for one sample."""
    inputs = example_inputs(model, 1, device="meta")
    with counting.plain(model), counting.Countable():
        outputs: Any = counting.call(model, inputs)
    tensors = [outputs] if hasattr(outputs, "shape") else [v for v in outputs.values() if hasattr(v, "shape")]
    return {name: tuple(value.shape) for name, value in inputs.items()}, [tuple(tensors[0].shape)]


def _check_task(path: Path, theirs: Any, ours: Any) -> None:
    if theirs != ours:
        raise LeanifyError(
            f"{path} is made for another task than the recipe's model: it takes {theirs[0]} and gives {theirs[1][0]}; "
            f"the recipe's takes {ours[0]} and gives {ours[1][0]}"
        )


def _as_tuple(size: int | list[int]) -> int | tuple[int, ...]:
    return tuple(size) if isinstance(size, list) else size
