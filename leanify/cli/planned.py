"""``leanify redesign`` after parsing: plan, write and show every source at every budget."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leanify.cli import plans
from leanify.cli.next_lines import next_lines, print_next, to_write
from leanify.terminal import progress

if TYPE_CHECKING:
    from leanify.design.options import Options
    from leanify.design.plan import Plan
    from leanify.design.search.amounts import Budget
    from leanify.warm.plan import Carrying

Text = str | None


@dataclass(frozen=True)
class Wanted:
    """The weights that a design gets, the data that choose what to keep of them, and where and how it is written."""

    weights: Text = None
    pretrained: bool = False
    data: Path | None = None
    samples: int | None = None
    seed: int = 0
    output: Path | None = None
    control: bool = False
    force: bool = False
    as_type: Text = None
    choose: str = "lean"


def planned(
    sources: Sequence[str],
    asked: Sequence[Options],
    wanted: Wanted,
    study: Path | None,
    overrides: Sequence[str] = (),
) -> Iterator[Shown]:
    """Plan every source under all options that are asked for; ``overrides`` are theirs as they were typed.

    An output that cannot be written, or a study that cannot be read, raises before anything is planned.
    """
    with _seldom_collected():
        from leanify.design.redesign import redesign

    if wanted.output is not None and not wanted.force:
        from leanify.runs.new_directory import check_new_directory

        check_new_directory(wanted.output)
    measured = None
    if study is not None:
        from leanify.study.surface import load, predictions

        measured = load(study)
    for source, options in product(sources, asked):
        ranking = None if measured is None else measured[1].ranking
        with progress(f"planning {source}", None), _seldom_collected():
            plan = redesign(source, options, ranking=ranking)
        plan, carrying = _written(plan, wanted)
        lines: Sequence[str] = ()
        if plan.directory:
            lines = next_lines(plan, wanted.weights, wanted.data, wanted.pretrained, overrides, options.cls)
        elif len(sources) * len(asked) == 1:
            lines = to_write(sys.argv[1:], plan.recommended.design if carrying is None else "lean")
        predicted = None if measured is None else predictions(plan, *measured)
        yield Shown(plan, options.target_params, carrying, predicted, lines)


@contextmanager
def _seldom_collected() -> Iterator[None]:
    """Look for unreachable cycles less often: imports and counts leave hardly any, and it was 8–13% of the time."""
    before = gc.get_threshold()
    gc.set_threshold(20_000, 50, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _written(plan: Plan, wanted: Wanted) -> tuple[Plan, Carrying | None]:
    """Write the plan's design. Returns the plan with its directory, and how weights were carried if data chose them.

    Data also choose among designs of the same budget, unless the user wants lean and its control.
    """
    carrying = None
    weights, output = wanted.weights, wanted.output
    if weights is not None and wanted.data is None and output is None:
        from leanify.sources.find import located

        located(weights)  # nothing will read them, yet they were asked for
    plan.picked(wanted.choose)  # refused before anything is written
    source = weights, wanted.seed, wanted.pretrained
    if wanted.data is not None:
        from leanify.warm.plan import Carrying

        carrying = Carrying(plan, wanted.data, wanted.samples, plan.options.tokens, weights)
        if not wanted.control:
            plan = carrying.best(lambda one: one.build(*source, carry=carrying))
    if output is not None:
        with progress(f"writing {output}", None):
            plan = plan.save(
                output, *source, wanted.control, wanted.force,
                carry=carrying, model_type=wanted.as_type, choose=wanted.choose,
            )  # fmt: skip
    return plan, carrying


@dataclass(frozen=True)
class Shown:
    """A plan with its requested budget, how weights were carried over, and predictions."""

    plan: Plan
    budget: Budget
    carried: Carrying | None
    predicted: dict[str, Any] | None
    next_lines: Sequence[str] = ()

    def to_json(self) -> dict[str, Any]:
        found = self.plan.to_json()
        if self.carried:
            found["carried"] = self.carried.to_json()
        if self.predicted:
            found["predicted"] = self.predicted
        return found

    def rows(self) -> Iterator[dict[str, Any]]:
        """One row per design, for CSV and Markdown."""
        yield from ({"source": self.plan.source, "budget": self.budget, **row} for row in self.plan.rows())


def render(found: Sequence[Shown], explain: bool) -> None:
    """Print one plan's tables after another, each with its warnings, so that what to type next stands last."""
    for number, one in enumerate(found):
        if number:
            print()
        plans.render_plan(one.plan, explain, one.carried)
        if one.predicted is not None:
            from leanify.cli import study_tables

            study_tables.render_predictions(one.predicted)
        if one.carried is not None and explain:
            plans.render_steps(one.carried)
        plans.print_warnings(one.plan)
        print_next(*one.next_lines)
