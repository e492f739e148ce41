"""A recipe: one TOML file that says which model, on which data, trained how.

    [model]     the source, what overrides it, and the shape it is given
    [data]      the data set, its splits, how samples are changed
    [optim]     the optimiser and the loss
    [schedule]  how long, in batches of what size, at which learning rate
    [run]       seed, precision, how often to log, evaluate and keep a checkpoint
    [distill]   a teacher
    [paper]     what a publication prints for this row, and what its numbers turned out to be

Only ``[model]`` is needed. Keys are strict: an unknown one, or a value of another type, is an error that names what is
known. The sections are frozen dataclasses; a recipe is a value, knows no torch, and is a SOURCE.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from leanify.architecture import Architecture, Stage
from leanify.errors import RecipeError, ShapeError
from leanify.sources.strict_toml import read_table, to_table, toml_lines

LENGTHS = ("epochs", "steps", "tokens")  # units of a schedule's length; a recipe gives one
LARGEST = 1 << 20  # bytes of a recipe's file
Counts = int | tuple[int, ...] | None  # one number for the stages that a redesign turns, or one a stage


@dataclass(frozen=True)
class ModelSection:
    """``source`` is any SOURCE but a recipe; ``override`` reaches upstream's constructor. The rest is the shape."""

    source: str
    cls: str | None = field(default=None, metadata={"key": "class"})
    override: Mapping[str, Any] = field(default_factory=dict)
    depth: Counts = None
    heads: Counts = None
    head_dim: Counts = None
    mlp: Counts = None
    heads_mode: Literal["grow", "split"] = "grow"  # what more heads do to head_dim where it is not given

    @property
    def reshapes(self) -> bool:
        return any(value is not None for value in (self.depth, self.heads, self.head_dim, self.mlp))

    def shape(self, old: Architecture) -> Architecture:
        """The architecture that the source's becomes."""
        wanted = [old.per_stage(getattr(self, name), name) for name in ("depth", "heads", "head_dim", "mlp")]
        stages = [
            stage.reshape(depth, heads, head_dim or self._head_dim(stage, heads), mlp)
            for stage, depth, heads, head_dim, mlp in zip(old.stages, *wanted, strict=True)
        ]
        return replace(old, stages=tuple(stages))

    def _head_dim(self, stage: Stage, heads: int | None) -> int | None:
        main = stage.main
        if self.heads_mode == "grow" or heads is None or main is None:
            return None
        if main.inner % heads:
            raise ShapeError(f"{heads} heads do not split the {main.inner} inner channels of stage {stage.name!r}")
        return main.inner // heads


@dataclass(frozen=True)
class DataSection:
    """Where samples come from; ``path`` where they lie, ``holdout`` the share of ``train`` that validates."""

    name: str
    task: Literal[
        "classification",
        "text-classification",
        "text-regression",
        "pair-classification",
        "masked-lm",
        "causal-lm",
        "glue",
        "regression",
    ]
    path: str | None = None
    train: str = "train"
    validation: str = "validation"
    test: str | None = None
    holdout: float = 0.0
    samples: int | None = None  # only so many of them
    subset: Literal["random", "first"] = "random"  # which: a fixed random subset, classes in proportion; or the first
    on_error: Literal["stop", "skip"] = "stop"  # what becomes of a sample that cannot be read
    tokenizer: str | None = None  # a directory or a hub id; masked-lm also bytes, wordpiece-32768; else the model's
    length: int | None = None  # tokens
    text: tuple[str, ...] = ()  # one or two columns of labelled texts; else guessed by name
    label: str | None = None  # their column of labels; else guessed by name
    options: Mapping[str, Any] = field(default_factory=dict)  # what a generator of samples is told
    mask: float = 0.0  # share of the tokens that a masked language model must guess
    img_size: int | None = None  # pixels
    rand_augment: str | None = None
    crop: tuple[float, ...] = (0.08, 1.0)  # the share of an image's area that a random crop keeps, from … to
    flip: float = 0.5  # how probable it is to be mirrored
    color_jitter: float = 0.4  # of an image that is not augmented by rand_augment
    erase: float = 0.0  # how probable it is that a rectangle is erased
    mixup: float = 0.0
    cutmix: float = 0.0
    workers: int | None = None  # processes that read ahead; else as many as suit the data


@dataclass(frozen=True)
class OptimSection:
    """The optimiser; ``clip`` bounds the norm of the gradient, ``ema`` is the decay of an average of the weights.

    Biases and norms are never decayed.
    """

    lr: float
    name: Literal["adamw", "sgd"] = "adamw"
    weight_decay: float = 0.0
    betas: tuple[float, ...] = (0.9, 0.999)
    eps: float = 1e-8
    clip: float | None = None
    label_smoothing: float = 0.0
    ema: float | None = None


@dataclass(frozen=True)
class ScheduleSection:
    """How long (one of three), at which learning rate. ``warmup`` and ``cooldown`` are in the unit of the length."""

    batch_size: int
    epochs: float | None = None
    steps: int | None = None
    tokens: int | None = None
    kind: Literal["constant", "cosine", "linear", "triangular", "one-cycle"] = "cosine"
    warmup: float = 0
    warmup_lr: float = 0.0
    cooldown: float = 0  # triangular: the fall at the end
    batch_ramp: float = 0.0  # share of the run over which the batch grows to its size, by as much a step

    def __post_init__(self) -> None:
        given = [name for name in LENGTHS if getattr(self, name) is not None]
        if len(given) != 1:
            raise RecipeError(
                f"[schedule] takes one of epochs, steps and tokens; it has {' and '.join(given) or 'none of them'}"
            )


@dataclass(frozen=True)
class RunSection:
    seed: int = 0
    precision: Literal["fp32", "bf16", "fp16"] | None = None  # else bf16 on a GPU that has it, fp32 elsewhere
    eval_every: int | None = None  # steps; else once an epoch
    eval_batches: int | None = None  # so many of them, as data.subset says, the same at every evaluation; else all
    log_every: int = 50  # steps
    checkpoint_every: int | None = None  # steps; else after each evaluation
    keep: int = 3  # the last so many checkpoints, and the best one; 0 keeps all
    accumulate: int = 1  # forward passes a step is cut into
    compile: bool = False  # by torch.compile
    gradient_checkpointing: bool = False  # blocks are computed again in the backward pass: less memory, more time
    trackers: tuple[str, ...] = ()  # of Accelerate's, by name: tensorboard, wandb, …


@dataclass(frozen=True)
class DistillSection:
    """``weight`` is the teacher's share of the task's loss, ``hidden_weight`` what layers that differ add to it."""

    teacher: str  # any SOURCE with weights
    temperature: float = 1.0
    weight: float = 0.5
    hidden_weight: float = 0.0
    layers: Literal["even"] | tuple[tuple[int, ...], ...] = "even"  # else pairs [student's layer, teacher's], from 0


@dataclass(frozen=True)
class PaperSection:
    """A row as printed (``shape``, ``printed_params``, …) in ``place``, and the count that its rebuilt shape has."""

    place: str
    role: Literal["baseline", "lean", "control"]
    verdict: str
    shape: str | None = None
    printed_params: int | None = None
    rebuilt_params: int | None = None
    metric: str | None = None
    quality: float | None = None
    memory_gb: float | None = None


@dataclass(frozen=True)
class Recipe:
    model: ModelSection
    data: DataSection | None = None
    optim: OptimSection | None = None
    schedule: ScheduleSection | None = None
    run: RunSection = field(default_factory=RunSection)
    distill: DistillSection | None = None
    paper: PaperSection | None = None

    def to_dict(self) -> dict[str, Any]:
        """Nested plain values, without what is left at its default."""
        return to_table(self)

    def to_toml(self) -> str:
        """The recipe as a file; `parse` reads it back."""
        return "\n".join([*toml_lines(self.to_dict()), ""])

    def to_train(self) -> TrainingRecipe:
        """The same recipe, with all sections that training needs. Raises RecipeError where one is missing."""
        if self.data is None or self.optim is None or self.schedule is None:
            missing = next(name for name in ("data", "optim", "schedule") if getattr(self, name) is None)
            raise RecipeError(f"this recipe has no [{missing}] section, which training needs")
        return TrainingRecipe(self.model, self.data, self.optim, self.schedule, self.run, self.distill, self.paper)


@dataclass(frozen=True)
class TrainingRecipe(Recipe):
    """A recipe that has every section that training needs; made by `Recipe.to_train`."""

    data: DataSection
    optim: OptimSection
    schedule: ScheduleSection


# -- reading ------------------------------------------------------------------------------------------------------


def load(source: str | Path) -> Recipe:
    """The recipe of a TOML file, or a built-in one by its name. Raises RecipeError."""
    path = find(str(source)) or Path(source)
    try:
        return parse(_text_of(path))
    except OSError as error:
        raise RecipeError(_no_recipe(str(source)[:200])) from error
    except (RecipeError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: {error}") from error


def _text_of(path: Path) -> str:
    """The text of a small, regular file: a pipe would block, and a device never ends. Raises OSError, RecipeError."""
    if path.exists() and not path.is_file():
        raise RecipeError("this is a folder, a pipe or a device; a recipe is a TOML file")
    if (size := path.stat().st_size) > LARGEST:
        raise RecipeError(f"this file has {size:,} bytes; a recipe has a few thousand, and {LARGEST:,} at most")
    return path.read_text(encoding="utf-8")


def parse(text: str) -> Recipe:
    """The recipe that TOML text holds. Raises RecipeError."""
    try:
        return from_dict(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(f"this is not TOML: {error}") from error
    except RecursionError as error:
        raise RecipeError("this is not a recipe: its tables or lists are nested too deep") from error


def from_dict(values: Mapping[str, Any]) -> Recipe:
    """The inverse of `Recipe.to_dict`, strict."""
    recipe: Recipe = read_table(Recipe, values, "")
    return recipe


def with_settings(recipe: Recipe, settings: Sequence[str]) -> Recipe:
    """The recipe with ``section.key=value`` set: values are TOML, else strings; an empty value removes a key.

    A length of the schedule replaces the recipe's in another unit; warm-up and cool-down then keep their shares of it.
    """
    values = recipe.to_dict()
    given = {setting.partition("=")[0].strip() for setting in settings}
    before = dict(values.get("schedule", {}))
    if any(f"schedule.{unit}" in given for unit in LENGTHS):
        values["schedule"] = {key: value for key, value in before.items() if key not in LENGTHS}
    for setting in settings:
        path, equals, text = setting.partition("=")
        section, *keys = path.strip().split(".")
        if not equals or not keys:
            raise RecipeError(f"a setting is section.key=value, optim.lr=1e-3; {setting!r} is not")
        table = values
        for key in (section, *keys[:-1]):
            table = table.setdefault(key, {})
            if not isinstance(table, dict):
                raise RecipeError(f"{key} is a value, not a table, so {setting!r} sets nothing")
        if text.strip():
            table[keys[-1]] = _value(text)
        else:
            table.pop(keys[-1], None)
    _keep_shares(before, values.get("schedule", {}), given)
    return from_dict(values)


def _keep_shares(before: Mapping[str, Any], now: dict[str, Any], given: Collection[str]) -> None:
    """Bring warm-up and cool-down to a new unit of length, unless they are given in it."""
    old, new = (next(((unit, x[unit]) for unit in LENGTHS if unit in x), None) for x in (before, now))
    if old is None or new is None or old[0] == new[0] or not isinstance(new[1], int | float):
        return
    for key in ("warmup", "cooldown"):
        if key in before and f"schedule.{key}" not in given:
            now[key] = before[key] * new[1] / old[1]


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return text.strip()


# -- built-in recipes ---------------------------------------------------------------------------------------------


def home() -> Path:
    """Where the built-in recipes lie: inside the installed package, or beside it in a checkout."""
    package = Path(str(resources.files("leanify")))
    inside = package / "_recipes"
    return inside if inside.is_dir() else package.parent / "recipes"


@cache
def built_in() -> Mapping[str, Path]:
    """The built-in recipes by name, ``collection/recipe``."""
    root = home()
    return dict(sorted((path.relative_to(root).with_suffix("").as_posix(), path) for path in root.rglob("*.toml")))


def stems() -> list[str]:
    """The last parts of the names."""
    return [path.stem for path in built_in().values()]


def find(name: str) -> Path | None:
    """The file of a built-in recipe, by its name or by the last part of it; None where there is none."""
    known = built_in()
    return known.get(name) or next((path for path in known.values() if path.stem == name), None)


def _no_recipe(name: str) -> str:
    near = difflib.get_close_matches(name, [*stems(), *built_in()], n=3)
    hint = f"; nearest: {', '.join(near)}" if near else ""
    return f"{name!r} is neither a recipe file nor a built-in recipe{hint}"
