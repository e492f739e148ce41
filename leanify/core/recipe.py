"""A recipe: one TOML file with the model, the data and the training settings, each section a frozen dataclass.

Only ``[model]`` is required. Parsing is strict: an unknown key or a value of the wrong type is an error that
lists the allowed ones. This module does not import torch. A recipe can be used as a SOURCE.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from leanify.core import strict_toml
from leanify.core.architecture import Architecture
from leanify.core.errors import RecipeError, ShapeError
from leanify.core.files.reading import read_bytes
from leanify.core.recipe_code import built_in_recipes as built_in_recipes
from leanify.core.recipe_code import find as find
from leanify.core.recipe_code import resolve_code
from leanify.core.recipe_code import stems as stems
from leanify.core.strict_toml import OneOrMore, UnknownKey, describe_keys, read_table, to_table, to_toml
from leanify.core.task_names import TASKS

if TYPE_CHECKING:
    TaskName = str
else:
    TaskName = Literal[*TASKS]

LENGTHS = ("epochs", "steps", "tokens")  # units of a schedule's length; a recipe sets exactly one
MAX_LENGTHS = {"epochs": 10**6, "steps": 10**12, "tokens": 10**18}
MAX_SEED = 1 << 63  # torch takes no larger one, and numpy none below 0
LIMITS: Mapping[str, tuple[float, float]] = {  # the smallest and the largest value of keys
    "data.workers": (0, 256),  # processes
    "data.prefetch": (0, 1024),
    "data.length": (0, 1 << 24),
    "data.img_size": (0, 1 << 14),
    "data.samples": (0, MAX_SEED),
    "data.flip": (0, 1),
    "data.color_jitter": (0, 1000),
    "data.erase": (0, 1),
    "data.mixup": (0, 1000),
    "data.cutmix": (0, 1000),
    "schedule.batch_size": (0, 1 << 24),
    "schedule.warmup": (0, MAX_SEED),
    "schedule.cooldown": (0, MAX_SEED),
    "run.accumulate": (0, 1 << 24),
    "run.keep": (0, 1 << 31),
    "run.seed": (0, MAX_SEED - 1),
}
LARGEST = 1 << 20  # bytes; a larger file is not a recipe
# the recipe's keys for names of other libraries
ALIASES: Mapping[str, str] = {
    "learning_rate": "optim.lr",
    "optimizer": "optim.name",
    "max_grad_norm": "optim.clip",
    "num_train_epochs": "schedule.epochs",
    "max_steps": "schedule.steps",
    "bs": "schedule.batch_size",
    "scheduler": "schedule.kind",
    "warmup_steps": "schedule.warmup",
    "fp16": "run.precision",
    "bf16": "run.precision",
    "gradient_accumulation_steps": "run.accumulate",
    "dataset": "data.name",
    "data": "data.path",
    "data_dir": "data.path",
    "max_length": "data.length",
    "num_workers": "data.workers",
    "num_layers": "model.depth",
    "model": "model.source",
    "dropout": "model.override.drop_rate (timm) or model.override.hidden_dropout_prob (transformers)",
    "num_classes": "model.override.num_classes",
    "num_labels": "model.override.num_labels",
}
Counts = int | tuple[int, ...] | None  # one number for all stages that a redesign changes, or one number per stage


def flag() -> Any:
    """False by default; yes, on and 1 are true too, as people type them."""
    return field(default=False, metadata={"strict": False})


@dataclass(frozen=True)
class ModelSection:
    """The model: any SOURCE except a recipe, and the shape to give it."""

    source: Annotated[str, "any SOURCE of `leanify redesign` except a recipe"]
    cls: Annotated[str | None, "transformers class, such as AutoModelForCausalLM; default: the source's own"] = field(
        default=None, metadata={"alias": "class"}
    )
    override: Annotated[Mapping[str, Any], "arguments for upstream's constructor or configuration"] = field(
        default_factory=dict
    )
    depth: Annotated[
        Counts, "layers; a list gives one number per stage; default: the source's, as for the next three"
    ] = None
    heads: Annotated[Counts, "attention heads per layer"] = None
    head_dim: Annotated[Counts, "channels per head"] = None
    mlp: Annotated[Counts, "hidden units of each MLP"] = None
    width: Annotated[Counts, "channels of the residual stream, where upstream's constructor can change them"] = None
    heads_mode: Annotated[
        Literal["grow", "split"], "with `heads` but no `head_dim`: grow keeps head_dim, split keeps heads × head_dim"
    ] = "grow"

    @property
    def reshapes(self) -> bool:
        return any(value is not None for value in (self.depth, self.heads, self.head_dim, self.mlp, self.width))

    def shape(self, old: Architecture) -> Architecture:
        """The source's architecture with this section's depth, heads, head_dim, MLP and width. Raises ShapeError."""
        # one value or None for each stage, whether one number or a list was given
        targets = [old.per_stage(getattr(self, name), name) for name in ("depth", "heads", "head_dim", "mlp", "width")]
        stages = []
        for stage, depth, heads, head_dim, mlp, width in zip(old.stages, *targets, strict=True):
            # split heads keep the inner width: more of them are narrower
            if self.heads_mode == "split" and not head_dim and heads is not None and stage.primary is not None:
                head_dim, rest = divmod(stage.primary.inner, heads)
                if rest:
                    raise ShapeError(
                        f"{stage.primary.inner} inner channels of stage {stage.name!r} are not divisible by {heads} "
                        "heads"
                    )
            stages.append(stage.reshape(depth, heads, head_dim or None, mlp, width=width))
        return replace(old, stages=tuple(stages))


@dataclass(frozen=True)
class DataSection:
    """Where samples come from, how they are split, and how they are augmented."""

    name: Annotated[
        str, "`digits`, or `file.py:function`, which reads your own data; any other name means your own data at `path`"
    ]
    task: Annotated[TaskName, "the loss and its metrics"]
    path: Annotated[str | None, "file or folder of the data"] = None
    train: Annotated[str, "name of the training split"] = "train"
    validation: Annotated[str, "name of the validation split"] = "validation"
    test: Annotated[str | None, "name of the test split; the best checkpoint is evaluated on it at the end"] = None
    holdout: Annotated[float, "share of `train` held out for validation (0 to 1)"] = 0.0
    judge: Annotated[bool, "keep half of the validation samples from every choice: the test split, where none is"] = (
        flag()
    )
    samples: Annotated[int | None, "number of training samples; default: all"] = None
    subset: Annotated[
        Literal["random", "first"], "which samples: a fixed random subset with classes in proportion, or the first ones"
    ] = "random"
    on_error: Annotated[Literal["stop", "skip"], "what to do with a sample that cannot be read"] = "stop"
    tokenizer: Annotated[
        str | None, "a directory or hub id; for masked-lm also `bytes` or `wordpiece-32768`; default: the model's"
    ] = None
    length: Annotated[int | None, "tokens per sample"] = None
    text: Annotated[tuple[str, ...], OneOrMore, "one or two text columns of a table; default: guessed by name"] = ()
    label: Annotated[str | None, "column of labels in a table; default: guessed"] = None
    image: Annotated[str | None, "column of images or their paths in a table; default: guessed by name"] = None
    options: Annotated[Mapping[str, Any], "parameters for the function of `name`"] = field(default_factory=dict)
    mask: Annotated[float, "share of tokens that a masked language model must predict"] = 0.0
    background: Annotated[
        Literal["white", "black"] | None, "colour behind transparent pixels; default: chosen for the data"
    ] = None
    pixel_range: Annotated[
        tuple[float, ...], "pixels of 16-bit images that become black and white; default: the darkest and brightest"
    ] = ()
    img_size: Annotated[int | None, "pixels; default: the model's input size"] = None
    rand_augment: Annotated[str | None, "RandAugment in timm's notation, such as rand-m9-mstd0.5-inc1"] = None
    crop: Annotated[
        tuple[float, ...],
        "shares of an image's area that a random crop keeps: smallest, largest; evaluation keeps no less",
    ] = (0.08, 1.0)
    flip: Annotated[float, "probability of a horizontal flip"] = 0.5
    color_jitter: Annotated[float, "strength of colour jitter; not applied with `rand_augment`"] = 0.4
    erase: Annotated[float, "probability of random erasing"] = 0.0
    mixup: Annotated[float, "α of mixup (Zhang et al. 2018); 0 is off"] = 0.0
    cutmix: Annotated[float, "α of CutMix (Yun et al. 2019); 0 is off"] = 0.0
    workers: Annotated[int | None, "data-loading processes; default: chosen for the data and the cores"] = None
    prefetch: Annotated[int, "batches that each data-loading process keeps ready"] = 2

    def needed_splits(self) -> list[str]:
        """The names of the splits to read: train, train again or validation, and test if there is one."""
        splits = [self.train, self.train if self.holdout else self.validation]
        return [*splits, self.test] if self.test else splits

    def evaluated_side(self, default_side: float) -> float:
        """The share of an image's side that evaluation keeps: ``default_side``, or training's minimum if larger.

        A model that learnt from whole images does worse on enlarged ones (Touvron et al. 2019, arXiv 1906.06423).
        Raises RecipeError for a crop that is not two shares.
        """
        if len(self.crop) != 2 or not 0 < self.crop[0] <= self.crop[1] <= 1:
            raise RecipeError(f"data.crop is {list(self.crop)}; it must be two shares, 0 < smallest ≤ largest ≤ 1")
        return max(default_side, math.sqrt(self.crop[0]))


@dataclass(frozen=True)
class OptimSection:
    """The optimiser and the loss. Biases and norms have no weight decay."""

    lr: Annotated[float, "peak learning rate"]
    name: Annotated[Literal["adamw", "sgd"], "optimiser; sgd is timm's: Nesterov, momentum 0.9"] = "adamw"
    weight_decay: Annotated[float, "decoupled weight decay of matrices"] = 0.0
    betas: Annotated[tuple[float, ...], "AdamW's β₁ and β₂"] = (0.9, 0.999)
    eps: Annotated[float, "AdamW's ε"] = 1e-8
    clip: Annotated[float | None, "largest gradient norm; default: no clipping"] = None
    label_smoothing: Annotated[float, "label smoothing (0 to 1)"] = 0.0
    class_weights: Annotated[bool, "in a classification, weigh each class by the inverse of its samples"] = False
    ema: Annotated[float | None, "decay of an exponential moving average of the weights; it is what is evaluated"] = (
        None
    )


@dataclass(frozen=True)
class ScheduleSection:
    """How long to train (one of epochs, steps and tokens) and at which learning rate."""

    batch_size: Annotated[int, "samples per step, over all processes"]
    epochs: Annotated[float | None, "length in passes over the training split"] = None
    steps: Annotated[int | None, "length in optimiser steps"] = None
    tokens: Annotated[int | None, "length in tokens"] = None
    kind: Annotated[
        Literal["constant", "cosine", "linear", "triangular", "one-cycle"], "learning rate after the warm-up"
    ] = "cosine"
    warmup: Annotated[float, "length of the linear warm-up, in the unit of the length"] = 0
    warmup_lr: Annotated[float, "learning rate at the first step"] = 0.0
    cooldown: Annotated[float, "triangular: length of the final decay, in the unit of the length"] = 0
    batch_ramp: Annotated[float, "share of the run over which the batch grows linearly to its size"] = 0.0

    def __post_init__(self) -> None:
        lengths = [name for name in LENGTHS if getattr(self, name) is not None]
        if len(lengths) != 1:
            raise RecipeError(
                f"[schedule] takes one of epochs, steps and tokens; it has {' and '.join(lengths) or 'none of them'}"
            )
        (length,) = lengths
        if (value := getattr(self, length)) > MAX_LENGTHS[length]:
            raise RecipeError(f"schedule.{length} is {value:.3g}; it may be at most {MAX_LENGTHS[length]:,}")


@dataclass(frozen=True)
class RunSection:
    """Seed, precision, and how often to log, evaluate and save."""

    seed: Annotated[int, "of weights, order and augmentation"] = 0
    precision: Annotated[Literal["fp32", "bf16", "fp16"] | None, "default: bf16 on a GPU that has it, else fp32"] = None
    eval_every: Annotated[int | None, "steps between evaluations; default: one per epoch"] = None
    eval_batches: Annotated[int | None, "batches per evaluation, the same each time; default: the whole split"] = None
    log_every: Annotated[int, "steps between log rows"] = 50
    checkpoint_every: Annotated[int | None, "steps between checkpoints; default: after each evaluation"] = None
    keep: Annotated[int, "checkpoints to keep in addition to the best one; 0 keeps all"] = 3
    accumulate: Annotated[int, "forward passes per optimiser step"] = 1
    compile: Annotated[bool, "use torch.compile"] = flag()
    compile_mode: Annotated[
        Literal["default", "reduce-overhead", "max-autotune"],
        "torch.compile's mode; reduce-overhead replays CUDA graphs, for batches of one shape",
    ] = "default"
    channels_last: Annotated[bool, "images and convolutions with their channels innermost: faster where those rule"] = (
        flag()
    )
    gradient_checkpointing: Annotated[bool, "recompute blocks in the backward pass: less memory, more time"] = flag()
    trackers: Annotated[tuple[str, ...], OneOrMore, "Accelerate's trackers by name: tensorboard, wandb, …"] = ()


@dataclass(frozen=True)
class DistillSection:
    """Distillation from a teacher: logits (Hinton et al. 2015) and, where wanted, hidden states."""

    teacher: Annotated[str, "any SOURCE with weights"]
    cls: Annotated[str | None, "transformers class of the teacher; default: the source's own"] = field(
        default=None, metadata={"alias": "class"}, kw_only=True
    )
    temperature: Annotated[float, "of the softmax of both models' logits"] = 1.0
    weight: Annotated[float, "share of the loss that is distillation; the rest is the task's (0 to 1)"] = 0.5
    hidden_weight: Annotated[float, "weight of the hidden states' error, added to the loss"] = 0.0
    layers: Annotated[
        Literal["even", "output"] | tuple[tuple[int, ...], ...],
        "pairs [student's layer, teacher's layer] from 0, spread evenly, or an encoder's output: each token's state",
    ] = "even"


@dataclass(frozen=True)
class ParallelSection:
    """How several processes share the model; ignored by a single process, which holds all of it."""

    shard: Annotated[bool, "shard weights, gradients and moments (FSDP2); otherwise every process has them all"] = (
        flag()
    )
    static_graph: Annotated[bool, "DDP's static_graph: every step uses the same parameters in the same order"] = flag()


@dataclass(frozen=True)
class PaperSection:
    """A row of a publication as printed, and the parameter count of the rebuilt shape."""

    place: Annotated[str, "table and row"]
    role: Annotated[Literal["baseline", "lean", "control"], "which part the row plays in its comparison"]
    verdict: Annotated[str, "how well printed and rebuilt numbers agree"]
    shape: Annotated[str | None, "shape as printed"] = None
    printed_params: Annotated[int | None, "parameters as printed"] = None
    rebuilt_params: Annotated[int | None, "parameters of the rebuilt model"] = None
    metric: Annotated[str | None, "name of the printed quality"] = None
    quality: Annotated[float | None, "quality as printed, in units of the metric"] = None
    memory_gb: Annotated[float | None, "training memory as printed, GB"] = None


@dataclass(frozen=True)
class Recipe:
    model: ModelSection
    data: DataSection | None = None
    optim: OptimSection | None = None
    schedule: ScheduleSection | None = None
    run: RunSection = field(default_factory=RunSection)
    distill: DistillSection | None = None
    paper: PaperSection | None = None
    parallel: ParallelSection = field(default_factory=ParallelSection)

    def __post_init__(self) -> None:
        for path, (smallest, largest) in LIMITS.items():
            section, key = path.split(".")
            value = getattr(getattr(self, section), key, None)
            if value is not None and not smallest <= value <= largest:
                value_text = f"{max(-(10**300), min(value, 10**300)):.9g}"
                raise RecipeError(f"{path} is {value_text}; it must be from {smallest} to {largest:,}")

    def to_dict(self) -> dict[str, Any]:
        """Nested plain values, without keys at their default."""
        return to_table(self)

    def to_toml(self) -> str:
        """The recipe as TOML text, which `parse` reads back."""
        return to_toml(self.to_dict())

    def to_train(self) -> TrainingRecipe:
        """The same recipe with the type of a complete one. Raises RecipeError if a section is missing."""
        if self.data is None or self.optim is None or self.schedule is None:
            missing = next(name for name in ("data", "optim", "schedule") if getattr(self, name) is None)
            raise RecipeError(f"training needs a [{missing}] section, which this recipe lacks")
        return TrainingRecipe(**vars(self))


@dataclass(frozen=True)
class TrainingRecipe(Recipe):
    """A recipe with every section that training needs; see `Recipe.to_train`."""

    data: DataSection
    optim: OptimSection
    schedule: ScheduleSection


SECTIONS: Mapping[str, type] = {
    "model": ModelSection,
    "data": DataSection,
    "optim": OptimSection,
    "schedule": ScheduleSection,
    "run": RunSection,
    "parallel": ParallelSection,
    "distill": DistillSection,
    "paper": PaperSection,
}


# -- reading ----------


def load(source: str | Path) -> Recipe:
    """Load a recipe from a TOML file (a `Path` is always one), or a built-in one by its name. Raises RecipeError."""
    path = source if isinstance(source, Path) else find(source) or Path(source)
    try:
        recipe = parse(read_recipe_text(path))
    except OSError as error:
        name = str(source)[:200]
        matches = difflib.get_close_matches(name, [*stems(), *built_in_recipes()], n=3)
        hint = f"; nearest: {', '.join(matches)}" if matches else ""
        raise RecipeError(f"{name!r} is neither a recipe file nor a built-in recipe{hint}") from error
    except (RecipeError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: {error}") from error
    # absolute names for the code next to the file
    model = replace(recipe.model, source=resolve_code(recipe.model.source, path.parent))
    data = recipe.data and replace(recipe.data, name=resolve_code(recipe.data.name, path.parent))
    return replace(recipe, model=model, data=data)


def read_recipe_text(path: Path) -> str:
    """Read a small regular file; a pipe would block and a device never end. Raises OSError or RecipeError."""
    if path.exists() and not path.is_file():
        raise RecipeError("this is a folder, a pipe or a device; a recipe must be a TOML file")
    if (size := path.stat().st_size) > LARGEST:
        raise RecipeError(f"this file has {size:,} bytes; a recipe has a few thousand, at most {LARGEST:,}")
    return read_bytes(path, RecipeError, LARGEST).decode("utf-8-sig")  # drops the byte order mark of some editors


def parse(text: str) -> Recipe:
    """Parse a recipe from TOML text. Raises RecipeError."""
    return from_dict(strict_toml.parse(text))


def from_dict(values: Mapping[str, Any]) -> Recipe:
    """Build a recipe from nested values, strictly: the inverse of `Recipe.to_dict`. Raises RecipeError."""
    try:
        recipe: Recipe = read_table(Recipe, values)
    except UnknownKey as error:
        raise UnknownKey(
            error.place, error.key, error.known_keys, nearest_key(error.key, error.place.strip("[]"))
        ) from None
    return recipe


# -- settings ---------


@cache
def all_keys() -> Sequence[str]:
    """Every ``section.key`` that a recipe can have."""
    keys: list[str] = []
    for section, cls in SECTIONS.items():
        keys += [f"{section}.{key.name}" for key in describe_keys(cls)]
    return keys


def nearest_key(name: str, section: str = "") -> str | None:
    """Guess the ``section.key`` that an unknown key stands for: by its meaning, its name, then its spelling.

    Returns None if nothing is close, or if a key of the same section is: `UnknownKey` names that one.
    """
    # by its meaning: learning_rate is optim.lr
    name = name.rpartition(".")[2].lower().replace("-", "_")
    if name in ALIASES:
        return ALIASES[name]
    names = {key: key.partition(".")[2] for key in all_keys()}
    # by its name, in any section
    same = [key for key in all_keys() if names[key] == name]
    if same:
        return " or ".join(same)
    # a mistyped key of its own section is left to that section's message
    section_names = [names[key] for key in all_keys() if key.startswith(f"{section}.")]
    if difflib.get_close_matches(name, section_names, n=1):
        return None
    # by its spelling
    matches = difflib.get_close_matches(name, names.values(), n=1, cutoff=0.7)
    return next((key for key in all_keys() if names[key] in matches), None)


def split_setting(setting: str) -> tuple[str, str]:
    """Split a setting into ``section.key`` and the text of its value. Raises RecipeError, also for an unknown key."""
    path, equals, text = (part.strip() for part in setting.partition("="))
    if not equals:
        raise RecipeError(f"a setting has the form section.key=value (optim.lr=1e-3); {setting!r} has no equals sign")
    section, key, *_ = [*path.split("."), ""]
    if f"{section}.{key}" in all_keys():
        return path, text
    suggestion = nearest_key(key or section, section if key else "")
    # a key of a section that exists
    if section in SECTIONS and key:
        section_keys = [name.partition(".")[2] for name in all_keys() if name.startswith(f"{section}.")]
        raise UnknownKey(f"[{section}]", key, section_keys, suggestion)
    # no section, or one that does not exist
    hint = f"it has the form section.key=value, and there are {', '.join(SECTIONS)}"
    if suggestion is not None:
        hint = f"it is {suggestion}" + (f": --set {suggestion}={text}" if suggestion in all_keys() else "")
    fault = f"a recipe has no section [{section}]" if key else f"--set {setting} has no section"
    raise RecipeError(f"{fault}; {hint}")


def parse_value(text: str) -> Any:
    """Parse a setting's value as TOML; if that fails it is a string."""
    try:
        return strict_toml.parse(f"value = {text}")["value"]
    except RecipeError:
        return text.strip()


def apply_settings(recipe: Recipe, settings: Sequence[str]) -> Recipe:
    """Return the recipe with ``section.key=value`` settings applied.

    A value is parsed as TOML, or taken as a string; an empty value removes the key. A schedule length replaces
    the recipe's, even in another unit. Warm-up and cool-down that are not set too then scale with it, if the
    unit changes or they would not fit. Raises RecipeError.
    """
    values = recipe.to_dict()
    pairs = [split_setting(setting) for setting in settings]
    paths = {path for path, _ in pairs}
    # a length that is set replaces the lengths of other units: a run has one
    before = dict(values.get("schedule", {}))
    if any(f"schedule.{unit}" in paths for unit in LENGTHS):
        values["schedule"] = {key: value for key, value in before.items() if key not in LENGTHS}
    for path, text in pairs:
        # walk to the table that holds the key, and make the tables on the way
        *sections, last = path.split(".")
        table = values
        for name in sections:
            table = table.setdefault(name, {})
            if not isinstance(table, dict):
                raise RecipeError(f"{path}={text} cannot be set: {name} is a value, not a table")
        # an empty value restores the default
        if text:
            table[last] = parse_value(text)
        else:
            table.pop(last, None)
    # warm-up and cool-down stay the same share of the new length
    _keep_shares(before, values.get("schedule", {}), paths)
    return from_dict(values)


def _keep_shares(before: Mapping[str, Any], now: dict[str, Any], changed_keys: Collection[str]) -> None:
    """Scale warm-up and cool-down to a length of another unit or too short for them, unless they were set."""
    old = next((unit for unit in LENGTHS if unit in before), None)
    new = next((unit for unit in LENGTHS if unit in now), None)
    if old is None or new is None or not isinstance(now[new], int | float):
        return
    if old == new and before.get("warmup", 0) + before.get("cooldown", 0) <= now[new]:
        return
    for key in ("warmup", "cooldown"):
        if key in before and f"schedule.{key}" not in changed_keys:
            now[key] = before[key] * now[new] / before[old]
