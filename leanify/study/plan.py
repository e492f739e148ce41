"""A study's plan as one value: the recipe, the designs and the seeds. Stored as ``study.toml``.

Everything is resolved: the recipe with its settings, every design's shape and exact prices, the seeds, the threads per
run. A run's result depends only on its recipe, so a hash of the recipe identifies the run.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from leanify.errors import DirectoryError, RecipeError, ShapeError
from leanify.runs import recipe as recipes
from leanify.runs.files import read_text
from leanify.runs.recipe import ModelSection, Recipe, ScheduleSection
from leanify.runs.run_directory import leaves
from leanify.runs.strict_toml import read_table, to_table, toml_lines
from leanify.upstream.libraries import first_line

FORMAT = 1
BASELINE, LEAN, CONTROL = "baseline", "lean", "control"
ALWAYS = (BASELINE, LEAN, CONTROL)  # designs that a tournament does not drop
TRIAL = 0.5  # the part of the schedule over which a rate is tried
Sizes = int | tuple[int, ...]  # one number, or one per stage


@dataclass(frozen=True)
class PlannedDesign:
    """One shape with its prices. ``model`` is the [model] section of its runs' recipes.

    ``rank`` is its predicted rank within the study, 1 being best. ``predicted`` is the score of `redesign`'s ranking
    (lower is better), None if infinite. ``params`` and ``macs`` are exact, for one sample.
    ``rate`` is the multiple of the recipe's learning rate that its runs take, None until it is known (`rates`).
    ``dropped`` is whether a tournament stopped it early.
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
    rate: float | None = None
    dropped: bool = False

    @property
    def inner(self) -> Sizes:
        """heads × head_dim"""
        if isinstance(self.heads, int) and isinstance(self.head_dim, int):
            return self.heads * self.head_dim
        stages = max(len(size) for size in (self.heads, self.head_dim) if isinstance(size, tuple))
        heads, dims = (size if isinstance(size, tuple) else (size,) * stages for size in (self.heads, self.head_dim))
        return tuple(h * d for h, d in zip(heads, dims, strict=True))

    def to_json(self) -> dict[str, Any]:
        shape = ("name", "depth", "heads", "head_dim", "inner", "mlp")
        return {key: getattr(self, key) for key in (*shape, "params", "macs", "rank", "predicted")}


@dataclass(frozen=True)
class Key:
    """A run: one design, one seed. With ``rate``, a short trial of that multiple of the recipe's learning rate."""

    design: str
    seed: int
    rate: float | None = None

    def __str__(self) -> str:
        return f"{self.design}-{self.seed}" + ("" if self.rate is None else f"-rate{self.rate:g}")


@dataclass(frozen=True)
class StudyPlan:
    """The plan of a study; it may grow by designs and seeds.

    budget      the requested parameter share or count, as typed; None if there was none
    threads     CPU threads of each run; part of the plan because results depend on it in the last bits
    margin      the non-inferiority margin in the metric's unit; None for the task's default
    tokens      the sequence length for which designs were priced
    tournament  whether the designs are a field to be reduced by early stopping (`tournament`)
    winner      the best design of a tournament by its first seed; None until it is known
    rates       multiples of the recipe's learning rate of which each design takes its best; one of them: no trials
    weights     the SOURCE of all designs' initial weights; None for random initialisation by each run's seed
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
    rates: tuple[float, ...] = (1.0,)
    winner: str | None = None

    def __post_init__(self) -> None:
        check_names([design.name for design in self.designs])
        if odd := [seed for seed in self.seeds if type(seed) is not int]:
            raise RecipeError(f"the seed {odd[0]!r} is not an integer")
        if len(self.seeds) < 2:
            raise RecipeError(
                f"an interval takes at least 2 seeds, not {len(self.seeds)}, and nothing can be judged without one: "
                "use at least --seeds 2, or 5 to see small effects"
            )

    def design(self, name: str) -> PlannedDesign:
        return next(design for design in self.designs if design.name == name)

    def has(self, name: str) -> bool:
        return any(design.name == name for design in self.designs)

    @property
    def focus(self) -> str | None:
        """The design that the verdicts are about: a tournament's winner, lean, or the first other one."""
        if self.tournament and self.winner not in (BASELINE, CONTROL):
            return self.winner
        names = [design.name for design in self.designs if design.name not in (BASELINE, CONTROL)]
        return LEAN if LEAN in names else next(iter(names), None)

    @property
    def kept(self) -> tuple[PlannedDesign, ...]:
        """The designs that have not been dropped."""
        return tuple(design for design in self.designs if not design.dropped)

    @property
    def judging(self) -> tuple[int, ...]:
        """The seeds that judge: of a tournament all but the first, which chose the winner."""
        return self.seeds[1:] if self.tournament else self.seeds

    def runs(self) -> Iterator[Key]:
        """All runs, seed by seed, so that a study stopped early has complete pairs.

        In a tournament, only the winner and the designs that always run have more than one seed.
        """
        for seed in self.seeds:
            for design in self.kept:
                judged = self.winner is not None and design.name in (self.winner, *ALWAYS)
                if not self.tournament or seed == self.seeds[0] or judged:
                    yield Key(design.name, seed)

    def trials(self) -> Iterator[Key]:
        """The trials of rates for designs that have none yet."""
        if len(self.rates) > 1:
            for design in self.designs:
                if design.rate is None:
                    yield from (Key(design.name, self.seeds[0], rate) for rate in self.rates)

    def recipe_of(self, key: Key) -> Recipe:
        """The recipe of a run, at its design's learning rate; of a trial, at its own, over a part of the schedule."""
        design, recipe = self.design(key.design), self.recipe
        factor = key.rate or design.rate or (self.rates[0] if len(self.rates) == 1 else 1.0)
        optim, schedule = recipe.optim, recipe.schedule
        if optim is not None and factor != 1:
            optim = replace(optim, lr=optim.lr * factor)
        if schedule is not None and key.rate is not None:
            schedule = _shortened(schedule)
        run = replace(recipe.run, seed=key.seed)
        return replace(recipe, model=design.model, optim=optim, schedule=schedule, run=run, paper=None)

    def fingerprint(self, key: Key) -> str:
        """A hash of everything that determines a run's result."""
        warm = {"weights": self.weights} if self.weights is not None else {}
        text = json.dumps(self.recipe_of(key).to_dict() | warm, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    # -- as a file ----------------------------------------------------------------------------------------------------

    def to_toml(self) -> str:
        designs = {}
        for design in self.designs:
            sizes = to_table(design)
            del sizes["name"]
            designs[design.name] = sizes | {"rank": design.rank}
        table: dict[str, Any] = {
            "format": FORMAT,
            "title": self.title,
            "seeds": list(self.seeds),
            "threads": self.threads,
            "budget": self.budget,
            "margin": self.margin,
            "tournament": self.tournament or None,
            "winner": self.winner,
            "weights": self.weights,
            "rates": None if self.rates == (1.0,) else list(self.rates),
            "baseline_macs": self.baseline_macs,
            "tokens": self.tokens,
            "recipe": self.recipe.to_dict(),
            "designs": designs,
        }
        written = {key: value for key, value in table.items() if value is not None}
        return "\n".join(["# A study of leanify: leanify compare THIS-FOLDER", *toml_lines(written), ""])

    @staticmethod
    def read(path: Path) -> StudyPlan:
        """Read a plan written by `to_toml`. Raises DirectoryError for anything else."""
        text = read_text(path, DirectoryError)
        try:
            return _plan(tomllib.loads(text))
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError, RecipeError, ShapeError) as error:
            raise DirectoryError(f"{path} is not a study's plan: {first_line(error)}") from error

    # -- growing ------------------------------------------------------------------------------------------------------

    def joined(self, other: StudyPlan) -> StudyPlan:
        """Return this plan extended by another's designs, seeds and margin. Raises RecipeError if they conflict."""
        old, new = (dict(leaves(plan.recipe.to_dict())) for plan in (self, other))
        changed = [key for key in {**old, **new} if old.get(key) != new.get(key)]
        conflicts = [f"{key}: {old.get(key, 'unset')} → {new.get(key, 'unset')}" for key in changed]
        if other.budget != self.budget:
            conflicts.append(f"budget: {self.budget} → {other.budget}")
        for design in other.designs:
            if self.has(design.name) and self.design(design.name).model != design.model:
                conflicts.append(f"the shape of {design.name!r}")
        if other.weights != self.weights:
            conflicts.append(f"weights: {self.weights or 'random'} → {other.weights or 'random'}")
        if other.rates != self.rates:
            conflicts.append(f"rates: {_listed(self.rates)} → {_listed(other.rates)}")
        if other.tournament != self.tournament:
            conflicts.append("a tournament" if self.tournament else "no tournament")
        if conflicts:
            raise RecipeError(
                f"this folder contains another study ({'; '.join(conflicts)}); choose another folder with -o"
            )
        fresh = tuple(design for design in other.designs if not self.has(design.name))
        seeds = tuple(dict.fromkeys((*self.seeds, *other.seeds)))
        margin = self.margin if other.margin is None else other.margin
        return replace(self, designs=ranked((*self.designs, *fresh)), seeds=seeds, margin=margin)


def _shortened(schedule: ScheduleSection) -> ScheduleSection:
    """A schedule of TRIAL of the length, and so its warm-up and cool-down."""
    changes: dict[str, Any] = {}
    for name in ("epochs", "warmup", "cooldown", "steps", "tokens"):
        value = getattr(schedule, name)
        if value:
            changes[name] = max(1, round(value * TRIAL)) if name in ("steps", "tokens") else value * TRIAL
    return replace(schedule, **changes)


def _listed(rates: Sequence[float]) -> str:
    return ",".join(f"{rate:g}" for rate in rates)


def check_names(names: Sequence[str]) -> None:
    """Raise ShapeError unless designs' names are unique and can name a folder of runs."""
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ShapeError(f"two designs are called {twice!r}; names must be unique")
    odd = [name for name in names if not name.replace("-", "").replace("_", "").replace(".", "").isalnum()]
    if odd:
        raise ShapeError(f"{odd[0]!r} cannot name a folder of runs; use letters, digits, '-', '_' and '.'")


def ranked(designs: tuple[PlannedDesign, ...]) -> tuple[PlannedDesign, ...]:
    """The designs in the same order, with ``rank`` set from their predicted scores."""
    order = sorted(designs, key=lambda design: (design.predicted is None, design.predicted, design.params))
    return tuple(replace(design, rank=1 + order.index(design)) for design in designs)


def _plan(table: Mapping[str, Any]) -> StudyPlan:
    if table["format"] > FORMAT:
        raise RecipeError(f"it was written by a newer leanify (format {table['format']}); upgrade leanify")
    finalists = "winner" not in table and BASELINE not in table["designs"]  # what earlier versions kept of a tournament
    return StudyPlan(
        title=table["title"],
        recipe=recipes.from_dict(table["recipe"]),
        budget=table.get("budget"),
        seeds=tuple(table["seeds"]),
        designs=tuple(read_table(PlannedDesign, {"name": k, **v}, f"designs.{k}") for k, v in table["designs"].items()),
        threads=table["threads"],
        margin=table.get("margin"),
        tokens=table.get("tokens"),
        tournament=table.get("tournament", False) and not finalists,
        winner=table.get("winner"),
        weights=table.get("weights"),
        baseline_macs=table.get("baseline_macs"),
        rates=tuple(table.get("rates", (1.0,))),
    )
