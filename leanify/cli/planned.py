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
from leanify.cli.next_lines import next_lines, print_next, write_lines
from leanify.core.terminal import progress

if TYPE_CHECKING:
    from leanify.search.amounts import Budget
    from leanify.search.options import Options
    from leanify.search.plan import Plan

Text = str | None


@dataclass(frozen=True)
class WriteOptions:
    """The weights of the written design, and the output."""

    weights: Text = None
    pretrained: bool = False
    output: Path | None = None
    control: bool = False
    choose: Text = None


def plan_all(
    sources: Sequence[str], requests: Sequence[Options], writing: WriteOptions, overrides: Sequence[str] = ()
) -> Iterator[PlanView]:
    """Plan every source under all requests, and write the design; ``overrides`` are the typed ones.

    Raises for an output that cannot be written before anything is planned.
    """
    with _rare_garbage_collection():
        from leanify.search.redesign import redesign

    if writing.output is not None:
        from leanify.core.files.writing import check_new_directory

        check_new_directory(writing.output)
    for source, options in product(sources, requests):
        with progress(f"planning {source}", None), _rare_garbage_collection():
            plan = redesign(source, options)
        plan = _write(plan, writing)

        # the commands to type next: train the written design, or write the only one
        lines: Sequence[str] = ()
        if plan.directory:
            lines = next_lines(plan, writing.weights, writing.pretrained, overrides)
        elif len(sources) * len(requests) == 1:
            lines = write_lines(sys.argv[1:], None if plan.lean else plan.first)
        yield PlanView(plan, options.target_params, lines)


@contextmanager
def _rare_garbage_collection() -> Iterator[None]:
    """Collect garbage less often: imports and counts leave few cycles, and it took 8–13% of the time."""
    before = gc.get_threshold()
    gc.set_threshold(20_000, 50, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _write(plan: Plan, writing: WriteOptions) -> Plan:
    """Write the plan's design, and return the plan with its directory."""
    weights, output = writing.weights, writing.output

    # refuse unknown weights and designs even if nothing is written
    if weights is not None and output is None:
        from leanify.sources.find import absolute_source

        absolute_source(weights)
    if output is None:
        return plan
    if not writing.control:
        plan.pick_design(writing.choose)
    with progress(f"writing {output}", None):
        return plan.save(output, weights, pretrained=writing.pretrained, control=writing.control, choose=writing.choose)


@dataclass(frozen=True)
class PlanView:
    """A plan with its requested budget, and the commands to type next."""

    plan: Plan
    budget: Budget
    next_lines: Sequence[str] = ()

    def to_json(self) -> dict[str, Any]:
        return self.plan.to_json()

    def rows(self) -> Iterator[dict[str, Any]]:
        """One row per design with all of its numbers, for CSV."""
        for row in self.plan.rows():
            yield {"source": self.plan.source, "budget": self._budget, **row}

    def readable_rows(self) -> Iterator[dict[str, Any]]:
        """One row per design with the columns of the table, for Markdown."""
        for row in plans.table_rows(self.plan):
            yield {"source": self.plan.source, "budget": str(self._budget or ""), **row}

    @property
    def _budget(self) -> Budget:
        return self.plan.options.target_params or self.budget


def render(views: Sequence[PlanView]) -> None:
    """Print one plan after another: its tables, its warnings, and last the commands to type next."""
    for number, view in enumerate(views):
        if number:
            print()
        plans.render_plan(view.plan)
        plans.print_warnings(view.plan)
        print_next(*view.next_lines)
