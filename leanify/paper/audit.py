"""Rebuild the rows of a publication: the printed count beside the count of the model its recipe gives.

Every model is built on ``meta``, so an audit counts and allocates nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from leanify.runs import recipe
from leanify.runs.recipe import PaperSection
from leanify.sources import find

TOLERANCE = 1e-3  # of the rebuilt count
ROLES = ("baseline", "lean", "control")


@dataclass(frozen=True)
class Row:
    """One recipe: the printed count, the one that its recipe says, and the one that its model has."""

    recipe: str
    paper: PaperSection
    params: int

    @property
    def printed(self) -> int | None:
        return self.paper.printed_params

    @property
    def rebuilt(self) -> int | None:
        return self.paper.rebuilt_params

    @property
    def error(self) -> float | None:
        """The printed count's distance from ours, as a share of ours; None for a control, nowhere printed."""
        return None if self.printed is None else self.printed / self.params - 1

    @property
    def verdict(self) -> str:
        if self.rebuilt is not None and abs(self.params / self.rebuilt - 1) > TOLERANCE:
            return f"not rebuilt: the model has {self.params:,} parameters, its recipe says {self.rebuilt:,}"
        return self.paper.verdict

    def to_json(self) -> dict[str, Any]:
        names = ("recipe", "printed", "rebuilt", "params", "error", "verdict")
        return {**{name: getattr(self, name) for name in names}, "place": self.paper.place, "role": self.paper.role}


def _place(row: tuple[str, PaperSection]) -> tuple[str, str, int]:
    """By place, then system, then role."""
    name, paper = row
    return paper.place, name.removesuffix(f"-{paper.role}"), ROLES.index(paper.role)


def rows() -> Iterator[Row]:
    """Every built-in recipe that is a row of a publication, in the order of its figures and tables."""
    found = [(name, recipe.load(path).paper) for name, path in recipe.built_in().items()]
    for name, paper in sorted(((name, paper) for name, paper in found if paper is not None), key=_place):
        model = find.load(name, device="meta")
        yield Row(name, paper, sum(parameter.numel() for parameter in model.parameters()))
