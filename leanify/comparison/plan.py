"""A study's plan as one value: the recipe, the designs and the seeds. Stored as ``study.toml``.

Everything is resolved: the recipe with its settings, every design's shape and exact prices, the seeds, the threads per
run. A run's result depends only on its recipe, so a hash of the recipe identifies the run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from leanify.core import recipe as recipes
from leanify.core.errors import DirectoryError, RecipeError, ShapeError
from leanify.core.files.reading import read_text
from leanify.core.recipe import MAX_SEED, ModelSection, Recipe
from leanify.core.strict_toml import parse, read_table, to_table, to_toml
from leanify.runs.run_directory import list_differences
from leanify.upstream.libraries import first_line

FORMAT = 1
MAX_BYTES = 4 << 20  # of study.toml; a hundred designs have 30 kB
BASELINE, LEAN, CONTROL, NARROW = "baseline", "lean", "control", "narrow"
RIVALS = (CONTROL, NARROW)  # designs that lean should beat, one question of the study for each
MAX_RUNS = 10_000  # of a study, by designs and seeds
MAX_THREADS = 4096
TRIAL = 0.5  # the part of the schedule over which a rate is tried
Sizes = int | tuple[int, ...]  # one number, or one per stage


@dataclass(frozen=True)
class PlannedDesign:
    """One shape with its prices. ``model`` is the [model] section of its runs' recipes.

    ``rank`` is its predicted rank within the study, 1 being best. ``predicted`` is the score of `redesign`'s ranking
    (lower is better), None if infinite. ``params`` and ``macs`` are exact, for one sample.
    ``rate`` is the multiple of the recipe's learning rate that its runs take, None until it is known (`rates`).
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
    width: Sizes | None = None

    @property
    def inner(self) -> Sizes:
        """heads × head_dim"""
        if isinstance(self.heads, int) and isinstance(self.head_dim, int):
            return self.heads * self.head_dim
        stages = max(len(size) for size in (self.heads, self.head_dim) if isinstance(size, tuple))
        heads, dims = (size if isinstance(size, tuple) else (size,) * stages for size in (self.heads, self.head_dim))
        return tuple(h * d for h, d in zip(heads, dims, strict=True))

    def to_json(self) -> dict[str, Any]:
        shape = ("name", "depth", "width", "heads", "head_dim", "inner", "mlp")
        return {key: getattr(self, key) for key in (*shape, "params", "macs", "rank", "predicted")}


@dataclass(frozen=True)
class Key:
    """A run: one design, one seed. With ``rate``, a short trial of that multiple of the recipe's learning rate."""

    design: str
    seed: int
    rate: float | None = None

    def __str__(self) -> str:
        rate = "" if self.rate is None else f"-rate{self.rate:g}"
        return f"{self.design}-{self.seed}{rate}"


@dataclass(frozen=True)
class StudyPlan:
    """The plan of a study; it may grow by designs and seeds.

    budget      the requested parameter share or count, as typed; None if there was none
    threads     CPU threads of each run; part of the plan because results depend on it in the last bits
    margin      the non-inferiority margin in the metric's unit; None for the task's default
    tokens      the sequence length for which designs were priced
    rates       multiples of the recipe's learning rate; each design uses its best one; a single value needs no trials
    more_rates  those tried beyond the range, for all designs, since a design's best rate was at its edge
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
    baseline_macs: int | None = None
    weights: str | None = None
    rates: tuple[float, ...] = (1.0,)
    more_rates: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        check_names([design.name for design in self.designs])
        if odd := [seed for seed in self.seeds if type(seed) is not int or not 0 <= seed < MAX_SEED]:
            raise RecipeError(f"the seed {str(odd[0])[:40]!r} is not an integer from 0 to {MAX_SEED - 1:,}")
        run_count = len(self.seeds) * len(self.designs)
        if run_count > MAX_RUNS:
            raise RecipeError(f"this study would have {run_count:,} runs; at most {MAX_RUNS:,} are supported")
        if not 1 <= self.threads <= MAX_THREADS:
            raise RecipeError(f"threads is {min(self.threads, 10**300):.9g}; it must be from 1 to {MAX_THREADS:,}")
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
    def rivals(self) -> tuple[str, ...]:
        """The designs that lean should beat. A user's shape called narrow with the baseline's width does not count."""
        names = [name for name in RIVALS if self.has(name)]
        if NARROW in names and self.design(NARROW).model.width is None:
            names.remove(NARROW)
        return tuple(names)

    @property
    def focus(self) -> str | None:
        """The design in focus of the verdicts: lean, or the first other design."""
        names = [design.name for design in self.designs if design.name not in (BASELINE, *self.rivals)]
        return LEAN if LEAN in names else next(iter(names), None)

    def runs(self) -> Iterator[Key]:
        """All runs, seed by seed, so that a study stopped early has complete pairs."""
        for seed in self.seeds:
            for design in self.designs:
                yield Key(design.name, seed)

    @property
    def tried_rates(self) -> tuple[float, ...]:
        """The rates that every design tries, in order; none if there is a single one."""
        return tuple(sorted({*self.rates, *self.more_rates})) if len(self.rates) > 1 else ()

    def all_trials(self) -> Iterator[Key]:
        """The trials of rates of all designs."""
        for design in self.designs:
            yield from (Key(design.name, self.seeds[0], rate) for rate in self.tried_rates)

    def trials(self) -> Iterator[Key]:
        """The trials of rates for designs that have none yet."""
        return (key for key in self.all_trials() if self.design(key.design).rate is None)

    def run_recipe(self, key: Key) -> Recipe:
        """The recipe of a run, at its design's learning rate; of a trial, at its own, over a part of the schedule."""
        design, recipe = self.design(key.design), self.recipe
        factor = key.rate or design.rate or (self.rates[0] if len(self.rates) == 1 else 1.0)
        optim, schedule = recipe.optim, recipe.schedule
        if optim is not None and factor != 1:
            optim = replace(optim, lr=optim.lr * factor)
        if schedule is not None and key.rate is not None:
            # TRIAL of the length, warm-up and cool-down
            changes: dict[str, Any] = {}
            for name in ("epochs", "warmup", "cooldown", "steps", "tokens"):
                value = getattr(schedule, name)
                if value:
                    changes[name] = max(1, round(value * TRIAL)) if name in ("steps", "tokens") else value * TRIAL
            schedule = replace(schedule, **changes)
        run = replace(recipe.run, seed=key.seed)
        return replace(recipe, model=design.model, optim=optim, schedule=schedule, run=run, paper=None)

    def fingerprint(self, key: Key) -> str:
        """A hash of everything that determines a run's result."""
        warm = {"weights": self.weights} if self.weights is not None else {}
        text = json.dumps(self.run_recipe(key).to_dict() | warm, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    # -- as a file ----------------------------------------------------------------------------------------------------

    def to_toml(self) -> str:
        designs = {}
        for design in self.designs:
            sizes = to_table(design)
            del sizes["name"]
            designs[design.name] = sizes | {"rank": design.rank}
        content = vars(self) | {"format": FORMAT, "recipe": self.recipe.to_dict(), "designs": designs}
        table = to_table(_StudyFile(**content))
        return f"# A study of leanify: leanify compare THIS-FOLDER\n{to_toml(table)}"

    @staticmethod
    def read(path: Path) -> StudyPlan:
        """Read a plan written by `to_toml`. Raises DirectoryError for anything else."""
        text = read_text(path, DirectoryError, MAX_BYTES)
        try:
            table = parse(text)
            number = table.get("format", FORMAT)
            if isinstance(number, int) and number > FORMAT:
                raise RecipeError(f"it was written by a newer leanify (format {str(number)[:20]}); upgrade leanify")
            file: _StudyFile = read_table(_StudyFile, table)
            designs = []
            for name, sizes in file.designs.items():
                designs.append(read_table(PlannedDesign, {"name": name, **sizes}, f"designs.{name}"))
            fields = {name: value for name, value in vars(file).items() if name != "format"}
            return StudyPlan(**fields | {"recipe": recipes.from_dict(file.recipe), "designs": tuple(designs)})
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError, RecipeError, ShapeError) as error:
            raise DirectoryError(f"{path} is not a study's plan: {first_line(error)}") from error

    # -- growing ------------------------------------------------------------------------------------------------------

    def merge(self, other: StudyPlan) -> StudyPlan:
        """Return this plan extended by another's designs, seeds and margin. Raises RecipeError if they conflict."""
        # differences that make it another study
        conflicts = list_differences(self.recipe.to_dict(), other.recipe.to_dict())
        if other.budget != self.budget:
            conflicts.append(f"budget: {self.budget} → {other.budget}")
        for design in other.designs:
            if self.has(design.name) and self.design(design.name).model != design.model:
                conflicts.append(f"the shape of {design.name!r}")
        if other.weights != self.weights:
            conflicts.append(f"weights: {self.weights or 'random'} → {other.weights or 'random'}")
        if other.rates != self.rates:
            old_rates, new_rates = (",".join(f"{rate:g}" for rate in plan.rates) for plan in (self, other))
            conflicts.append(f"rates: {old_rates} → {new_rates}")
        if conflicts:
            raise RecipeError(
                f"this folder contains another study ({'; '.join(conflicts)}); choose another folder with -o, or "
                "continue this one as it was planned: leanify compare FOLDER"
            )
        # new designs, seeds and margin
        fresh = tuple(design for design in other.designs if not self.has(design.name))
        seeds = tuple(dict.fromkeys((*self.seeds, *other.seeds)))
        margin = self.margin if other.margin is None else other.margin
        designs = rank_designs((*self.designs, *fresh))
        return replace(self, designs=designs, seeds=seeds, margin=margin)


def check_names(names: Sequence[str]) -> None:
    """Raise ShapeError unless designs' names are unique and can name a folder of runs."""
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ShapeError(f"two designs are called {twice!r}; names must be unique")
    odd = [name for name in names if not name.replace("-", "").replace("_", "").replace(".", "").isalnum()]
    if odd:
        raise ShapeError(f"{odd[0]!r} cannot name a folder of runs; use letters, digits, '-', '_' and '.'")


def rank_designs(designs: tuple[PlannedDesign, ...]) -> tuple[PlannedDesign, ...]:
    """The designs in the same order, with ``rank`` set from their predicted scores."""
    order = sorted(designs, key=lambda design: (design.predicted is None, design.predicted, design.params))
    return tuple(replace(design, rank=1 + order.index(design)) for design in designs)


@dataclass(frozen=True, kw_only=True)
class _StudyFile:
    """The keys of study.toml in their order in the file, and their types."""

    format: int
    title: str
    seeds: tuple[int, ...]
    threads: int
    budget: str | None = None
    margin: float | None = None
    weights: str | None = None
    rates: tuple[float, ...] = (1.0,)
    more_rates: tuple[float, ...] = ()
    baseline_macs: int | None = None
    tokens: int | None = None
    recipe: Mapping[str, Any]
    designs: Mapping[str, Mapping[str, Any]]
