"""What a study will do, as one value: which designs of which recipe, with which seeds. Written as ``study.toml``.

Everything in it is resolved: the recipe with its settings, every design's shape and exact prices, the seeds, a run's
threads. What a run computes follows from its recipe alone, so runs are known by a hash of it.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from leanify.errors import DirectoryError, RecipeError
from leanify.sources import recipe as recipes
from leanify.sources.files import read_text
from leanify.sources.recipe import ModelSection, Recipe
from leanify.sources.run_directory import leaves
from leanify.sources.strict_toml import read_table, to_table, toml_lines
from leanify.upstream.libraries import first_line

FILE = "study.toml"
FORMAT = 1
BASELINE, LEAN, CONTROL = "baseline", "lean", "control"
Sizes = int | tuple[int, ...]  # one number, or one a stage


@dataclass(frozen=True)
class PlannedDesign:
    """One shape with its prices. ``model`` is [model] of its runs' recipes.

    ``rank`` is the place that the ranking of `redesign` predicts among the designs of the study, 1 the best, and
    ``predicted`` the number it ranks by, less is better; None where it is infinite.
    """

    name: str
    model: ModelSection
    depth: Sizes
    heads: Sizes
    head_dim: Sizes
    mlp: Sizes
    params: int
    macs: int
    rank: int = 0
    predicted: float | None = None

    @property
    def inner(self) -> Sizes:
        """heads × head_dim"""
        if isinstance(self.heads, int) and isinstance(self.head_dim, int):
            return self.heads * self.head_dim
        stages = max(len(size) for size in (self.heads, self.head_dim) if isinstance(size, tuple))
        heads, dims = (size if isinstance(size, tuple) else (size,) * stages for size in (self.heads, self.head_dim))
        return tuple(h * d for h, d in zip(heads, dims, strict=True))


@dataclass(frozen=True)
class Key:
    """A run: one design, one seed."""

    design: str
    seed: int

    def __str__(self) -> str:
        return f"{self.design}-{self.seed}"


@dataclass(frozen=True)
class StudyPlan:
    """A study before, while and after it runs. ``budget`` is the share or count asked for, None where there was none.

    ``margin`` is the non-inferiority margin in the metric's unit, None for the one that the metric declares.
    ``threads`` is what each run computes with on a CPU: other numbers of threads give other last bits. ``tokens`` are
    the rows of A, where a price list was made. ``tournament``: the designs are a field that is cut down on the way.
    ``weights`` names what all designs start from, None where each run draws its own.
    """

    title: str
    recipe: Recipe
    budget: str | None
    seeds: tuple[int, ...]
    designs: tuple[PlannedDesign, ...]
    threads: int
    margin: float | None = None
    tokens: int | None = None
    tournament: bool = False
    baseline_macs: int | None = None
    weights: str | None = None

    def __post_init__(self) -> None:
        if len(self.seeds) < 2:
            raise RecipeError(
                f"a study of {len(self.seeds)} seed has no interval, and without one a difference means nothing: "
                "--seeds 2 at least, 5 to see small effects"
            )

    def design(self, name: str) -> PlannedDesign:
        return next(design for design in self.designs if design.name == name)

    def has(self, name: str) -> bool:
        return any(design.name == name for design in self.designs)

    @property
    def focus(self) -> str | None:
        """The design that the study is about: lean, else the first that is neither baseline nor control."""
        names = [design.name for design in self.designs if design.name not in (BASELINE, CONTROL)]
        return LEAN if LEAN in names else next(iter(names), None)

    def runs(self) -> Iterator[Key]:
        """All runs, seed by seed, so that a study that is stopped early has whole pairs."""
        return (Key(design.name, seed) for seed in self.seeds for design in self.designs)

    def recipe_of(self, key: Key) -> Recipe:
        """What a run trains by."""
        return replace(
            self.recipe, model=self.design(key.design).model, run=replace(self.recipe.run, seed=key.seed), paper=None
        )

    def fingerprint(self, key: Key) -> str:
        """A hash of everything that determines a run."""
        warm = {"weights": self.weights} if self.weights is not None else {}
        text = json.dumps(self.recipe_of(key).to_dict() | warm, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    # -- as a file ----------------------------------------------------------------------------------------------------

    def to_toml(self) -> str:
        table = {
            "format": FORMAT,
            "title": self.title,
            "seeds": list(self.seeds),
            "threads": self.threads,
            **({"budget": self.budget} if self.budget is not None else {}),
            **({"margin": self.margin} if self.margin is not None else {}),
            **({"tournament": True} if self.tournament else {}),
            **({"weights": self.weights} if self.weights is not None else {}),
            **({"baseline_macs": self.baseline_macs} if self.baseline_macs is not None else {}),
            **({"tokens": self.tokens} if self.tokens is not None else {}),
            "recipe": self.recipe.to_dict(),
            "designs": {design.name: _design_table(design) for design in self.designs},
        }
        return "\n".join(["# A study of leanify: leanify compare THIS-FOLDER", *toml_lines(table), ""])

    @staticmethod
    def read(path: Path) -> StudyPlan:
        """The inverse of `to_toml`. Raises DirectoryError for what is no plan."""
        text = read_text(path, DirectoryError)
        try:
            return _plan(tomllib.loads(text))
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError, RecipeError) as error:
            raise DirectoryError(f"{path} is not a study's plan: {first_line(error)}") from error

    # -- growing ------------------------------------------------------------------------------------------------------

    def joined(self, other: StudyPlan) -> StudyPlan:
        """This plan with the designs, seeds and margin of another one. Raises RecipeError where they contradict."""
        old, new = (dict(leaves(plan.recipe.to_dict())) for plan in (self, other))
        changed = [key for key in {**old, **new} if old.get(key) != new.get(key)]
        words = [f"{key}: {old.get(key, 'unset')} → {new.get(key, 'unset')}" for key in changed]
        if other.budget != self.budget:
            words.append(f"budget: {self.budget} → {other.budget}")
        for design in other.designs:
            if self.has(design.name) and self.design(design.name).model != design.model:
                words.append(f"the shape of {design.name!r}")
        if other.weights != self.weights:
            words.append(f"weights: {self.weights or 'drawn'} → {other.weights or 'drawn'}")
        if other.tournament != self.tournament:
            words.append("a tournament" if self.tournament else "no tournament")
        if words:
            raise RecipeError(f"this folder holds another study: {'; '.join(words)}; name another one with -o")
        fresh = tuple(design for design in other.designs if not self.has(design.name))
        seeds = tuple(dict.fromkeys((*self.seeds, *other.seeds)))
        margin = self.margin if other.margin is None else other.margin
        return replace(self, designs=ranked((*self.designs, *fresh)), seeds=seeds, margin=margin)


def ranked(designs: tuple[PlannedDesign, ...]) -> tuple[PlannedDesign, ...]:
    """The designs in their order, each with its predicted rank among them."""
    order = sorted(designs, key=lambda design: (design.predicted is None, design.predicted, design.params))
    return tuple(replace(design, rank=1 + order.index(design)) for design in designs)


def _design_table(design: PlannedDesign) -> dict[str, Any]:
    table = to_table(design)
    table.pop("name")
    return {**table, "rank": design.rank}


def _plan(table: Mapping[str, Any]) -> StudyPlan:
    if table["format"] > FORMAT:
        raise RecipeError(f"it was written by a newer leanify (format {table['format']}); upgrade leanify")
    return StudyPlan(
        title=table["title"],
        recipe=recipes.from_dict(table["recipe"]),
        budget=table.get("budget"),
        seeds=tuple(table["seeds"]),
        designs=tuple(read_table(PlannedDesign, {"name": k, **v}, f"designs.{k}") for k, v in table["designs"].items()),
        threads=table["threads"],
        margin=table.get("margin"),
        tokens=table.get("tokens"),
        tournament=table.get("tournament", False),
        weights=table.get("weights"),
        baseline_macs=table.get("baseline_macs"),
    )
