"""The options of `redesign`: one frozen value that the command line, Python and JSON share.

Each field of `Options` is one option, and its annotation holds the data for every interface: the command line derives
the flag ``--max-macs`` from ``max_macs``, `leanify.redesign` accepts it as a keyword argument, and a plan's JSON
records the options that were set. Imports no torch.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Annotated, Any, get_args, get_type_hints

from leanify.core.architecture import check_size
from leanify.core.errors import BudgetError, LeanifyError, ShapeError
from leanify.upstream.libraries import nearest

BUDGET, SHAPE, RULES, SOURCE, OUTPUT = "Budgets", "Shape", "Rules", "Source", "Output"  # panels of the help
Budget = float | int | str | None  # a share, a count, or an amount with its unit
Pin = int | Sequence[int | None] | Mapping[str, int] | None  # one number, one per stage, or one per tower by name
Width = float | Sequence[float] | Mapping[str, float] | None  # likewise: channels, or a share of the model's
PINS = ("depth", "heads", "head_dim", "mlp")
EXPERTS = ("experts", "active")  # keys in a pin of the MLP: experts in a mixture, experts per token
BUDGETS = ("target_params", "max_macs", "max_latency", "max_memory", "max_kv")
AXES = ("depth", "heads", "mlp", "width")
USUAL_AXES = "depth,heads,mlp"  # the trade of the paper, which keeps the width
CHOICES = {"count": ("all", "body"), "heads_mode": ("grow", "split", "auto")}


@dataclass(frozen=True)
class Flag:
    """The command-line form of an option in a ``panel`` of the help; ``name`` only if it differs from the field's."""

    panel: str
    metavar: str
    help: str
    name: str | None = None
    min: float | None = None
    max: float | None = None


@dataclass(frozen=True)
class Options:
    """The request to `redesign`. A budget is a share of the baseline or an amount; a pin is one number, one per stage,
    or one per tower by its name. None leaves a budget or pin open.

    ``mlp`` may also contain ``experts`` and ``active``, which apply to every mixture. ``tokens`` is the length of a
    text input, for callers that know their data; it has no command-line flag.

    Raises BudgetError, ShapeError or LeanifyError for a value that is invalid for every model.
    """

    target_params: Annotated[
        Budget, Flag(BUDGET, "SHARE|COUNT…", "at most this: 0.5, 43M; for towers encoder=0.75,decoder=0.5")
    ] = None
    count: Annotated[str, Flag(BUDGET, "all|body", "count all parameters, or only the blocks'")] = "all"
    max_macs: Annotated[Budget, Flag(BUDGET, "SHARE|COUNT", "multiply-adds: 0.5, 8G")] = None
    max_latency: Annotated[Budget, Flag(BUDGET, "SHARE|TIME", "of one sample, measured here: 0.5, 12ms")] = None
    max_memory: Annotated[Budget, Flag(BUDGET, "SHARE|BYTES", "predicted training memory: 0.5, 8GB")] = None
    max_kv: Annotated[Budget, Flag(BUDGET, "SHARE|BYTES", "key/value cache per token: 0.5, 64KB")] = None
    context: Annotated[int | None, Flag(BUDGET, "N", "tokens in the cache (default: at most 4096)", min=1)] = None
    depth: Annotated[Pin, Flag(SHAPE, "N[,N…]", "fix the blocks: 8, one per stage, or encoder=6")] = None
    heads: Annotated[Pin, Flag(SHAPE, "N[,N…]", "fix the heads")] = None
    head_dim: Annotated[Pin, Flag(SHAPE, "N[,N…]", "fix the channels per head")] = None
    mlp: Annotated[Pin, Flag(SHAPE, "N[,N…]", "fix the MLP's hidden units; a mixture's experts=4,active=1")] = None
    width: Annotated[
        Width, Flag(SHAPE, "N|SHARE[,…]", "narrow's width: 512, or 0.75 of the model's (default: by budget)")
    ] = None
    axes: Annotated[str, Flag(SHAPE, "AXIS,…", "what lean may change; with width, it is narrower as well")] = USUAL_AXES
    heads_mode: Annotated[str, Flag(SHAPE, "grow|split|auto", "more heads of the same size, or smaller heads")] = "grow"
    multiple: Annotated[int | None, Flag(RULES, "N", "unit of MLP and inner width (default: 64; narrow: 8)", min=1)] = (
        None
    )
    tensor_parallel: Annotated[int | None, Flag(RULES, "N", "devices among which heads and MLP must divide", min=1)] = (
        None
    )
    min_mlp: Annotated[
        float | None, Flag(RULES, "X", "minimum MLP, in widths (default: 2, gated 2.67)", min=0, max=1000)
    ] = None
    max_mlp: Annotated[
        float | None, Flag(RULES, "X", "maximum MLP, in widths (default: the baseline's)", min=0, max=1000)
    ] = None
    min_depth: Annotated[int | None, Flag(RULES, "N", "minimum blocks (default: a third; log3 of width)", min=1)] = None
    max_heads: Annotated[float, Flag(RULES, "X", "at most this many times the baseline's heads", min=1, max=100)] = 2.0
    overrides: Annotated[
        Mapping[str, Any],
        Flag(SOURCE, "KEY=VALUE", "for upstream's constructor or configuration; class=NAME", "--override"),
    ] = field(default_factory=dict)
    top: Annotated[int, Flag(OUTPUT, "N", "number of candidates to show", min=1, max=10_000)] = 3
    tokens: int | None = None

    def __post_init__(self) -> None:
        # None stands for the default
        for name, default in _defaults().items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, default)
        # choices, pins and budgets
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise LeanifyError(f"{flag_name(name)} {getattr(self, name)!r} is not one of {', '.join(choices)}")
        unknown = [axis for axis in self.axis_names if axis not in AXES]
        if unknown or self.axis_names <= {"width"}:
            raise LeanifyError(f"--axes {self.axes}: it takes {', '.join(AXES)}, at least one of the first three")
        for name, pin in self.pins.items():
            numbers: Any = pin.values() if isinstance(pin, Mapping) else pin
            if isinstance(numbers, str) or not isinstance(numbers, Iterable):
                numbers = [numbers]
            for number in numbers:
                if number is not None:
                    check_size(name, number)
        for name in BUDGETS:
            check_budget(flag_name(name), getattr(self, name))
        if self.width is not None:
            object.__setattr__(self, "width", _parse_width(self.width))
        # numbers within the bounds of their flags
        for name, flag in flags().items():
            value = getattr(self, name)
            if flag.min is not None and value is not None and not flag.min <= value < float("inf"):
                raise ShapeError(f"{flag_name(name)} {value}: it must be at least {flag.min}")
            if flag.max is not None and value is not None and value > flag.max:
                raise ShapeError(f"{flag_name(name)} {value:.9g}: it must be at most {flag.max:,}")

    @property
    def changed_options(self) -> dict[str, Any]:
        """Return the options that differ from their defaults, as a plan's JSON records them."""
        default = _defaults()
        return {name: value for name, value in vars(self).items() if value != default[name]}

    @property
    def axis_names(self) -> set[str]:
        """Return the sizes that lean may change."""
        return {axis.strip() for axis in self.axes.split(",")}

    @property
    def pins(self) -> dict[str, Pin]:
        """Return the fixed sizes by name; None for a size that the search may choose."""
        return {name: getattr(self, name) for name in PINS}

    @property
    def experts(self) -> dict[str, int]:
        """Return the fixed numbers of experts, by the names in `EXPERTS`."""
        mlp = self.mlp if isinstance(self.mlp, Mapping) else {}
        return {name: mlp[name] for name in EXPERTS if name in mlp}


def _parse_width(value: Any) -> Width:
    """Return a width as typed or given: one number, one per stage, or one per tower by name. Raises ShapeError."""
    # its names, and the number of each
    names: list[str] = []
    parts: Sequence[Any] = value if isinstance(value, Sequence) else [value]
    if isinstance(value, Mapping):
        names, parts = list(value), list(value.values())
    elif isinstance(value, str):
        parts = value.split(",")
        if "=" in value:
            names = [part.partition("=")[0].strip() for part in parts]
            parts = [part.partition("=")[2] for part in parts]
    try:
        widths = [float(part) for part in parts]
    except (TypeError, ValueError):
        widths = [0.0]
    if not all(0 < width < float("inf") for width in widths):
        raise ShapeError(
            f"--width {value}: it must be a number of channels (512) or a share of them (0.75), one per stage "
            "(96,192,384,768), or one per tower by name (text_model=384)"
        )
    if names:
        return dict(zip(names, widths, strict=True))
    return widths[0] if len(widths) == 1 else widths


def spell_pin(pin: object) -> str:
    """Return a pin as the user types it."""
    if isinstance(pin, Mapping):
        return ",".join(f"{name}={value:g}" for name, value in pin.items())
    return ",".join(f"{value:g}" for value in pin) if isinstance(pin, Sequence) else f"{pin:g}"


def _defaults() -> dict[str, Any]:
    return {option.name: option.default for option in fields(Options)} | {"overrides": {}}


@cache
def flags() -> dict[str, Flag]:
    """Return the flag of every option that has one, by field name."""
    hints = get_type_hints(Options, include_extras=True)
    return {name: get_args(hint)[1] for name, hint in hints.items() if isinstance(get_args(hint)[-1], Flag)}


def flag_name(name: str) -> str:
    """Return an option's flag: ``max_macs`` → ``--max-macs``."""
    return flags()[name].name or f"--{name.replace('_', '-')}"


def check_names(function: str, words: Mapping[str, Any]) -> None:
    """Raise TypeError for an unknown keyword argument, as Python does; the message suggests the nearest option."""
    for word in words:
        if word not in _defaults():
            raise TypeError(f"{function}() got an unexpected keyword argument {word!r}{nearest(word, _defaults(), 1)}")


def parameters() -> list[inspect.Parameter]:
    """Return the options as keyword parameters, for function signatures."""
    kinds = get_type_hints(Options)
    options = inspect.signature(Options).parameters.values()
    return [option.replace(kind=option.KEYWORD_ONLY, annotation=kinds[option.name]) for option in options]


# -- amounts with units, as users type them ---------------------------------------------------------------------------

COUNTS = {"k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "t": 1e12}
TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
BYTES = {"kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12, "kib": 2**10, "mib": 2**20, "gib": 2**30}
EXAMPLES = {"k": "43M or 43000000", "us": "12ms", "kb": "8GB"}  # keys: the first unit of each table
UNITS = {
    "--target-params": COUNTS,
    "--max-params": COUNTS,
    "--max-macs": COUNTS,
    "--max-latency": TIMES,
    "--max-memory": BYTES,
    "--max-kv": BYTES,
}


def parse_budget(name: str, value: float | int | str, baseline: float | None, units: Mapping[str, float]) -> float:
    """Return a budget in absolute units: a share of ``baseline`` (at most 1, or with %), or an amount with its unit.

    Without a baseline, shares are refused. A whole number of at least a thousand needs no unit if it is a count. Raises
    BudgetError.
    """
    # a number and its unit, the longest unit that fits
    text = str(value).strip().lower().replace("_", "").replace(",", "")
    unit = next((unit for unit in sorted([*units, "%"], key=len, reverse=True) if text.endswith(unit)), "")
    forms = f"an amount ({EXAMPLES[next(iter(units))]})"
    forms = f"say {forms}" if baseline is None else f"say a share of the baseline (0.5 or 50%) or {forms}"
    try:
        number = float(text.removesuffix(unit))
    except ValueError:
        raise BudgetError(f"{name} {value!r} is not a valid budget; {forms}") from None
    if not number > 0 or number == float("inf"):
        raise BudgetError(f"{name} {value} is not a valid budget: it must be above zero; {forms}")
    if re.match(r"\s*0,\d", str(value)):
        raise BudgetError(f"{name} {value} has a comma; a fraction has a point, {str(value).replace(',', '.')}")
    # a share of the baseline: with %, or without a unit and at most 1
    share = number / 100 if unit == "%" else number
    if unit in ("%", "") and share <= 1:
        if baseline is None:
            raise BudgetError(f"{name} {value} is a share, and there is no baseline to be a share of; {forms}")
        return share * baseline
    # an amount needs its unit, or at least looks like a count
    if unit == "%" or (not unit and (units is not COUNTS or number < 1000 or number != int(number))):
        alternative = "" if baseline is None else "is above 1 and "
        raise BudgetError(f"{name} {value} {alternative}has no unit; {forms}")
    return number * units.get(unit, 1.0)


def check_budget(name: str, value: Budget) -> None:
    """Raise BudgetError for a budget that is invalid for any baseline; towers: ``encoder=0.75,decoder=20M``."""
    parts = [part.rpartition("=")[2] for part in str(value).split(",")] if "=" in str(value) else [value]
    for part in parts:
        if part is not None:
            parse_budget(name, part, 1.0, UNITS[name])


def amount(name: str, value: str) -> float:
    """Parse an amount with its unit that has no baseline to be a share of. Raises BudgetError."""
    return parse_budget(name, value, None, UNITS[name])
