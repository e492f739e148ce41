"""The options of `redesign`: one frozen value that the command line, Python and JSON share.

A field of `Options` is an option. Its annotation holds what every face of it needs: the command line makes
the flag ``--max-macs`` from ``max_macs``, `leanify.redesign` takes it as a keyword argument, and a plan's
JSON holds those that were set. Imports no torch.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Annotated, Any, get_args, get_type_hints

from leanify.design.search.amounts import Budget, check_budget
from leanify.design.search.towers import PINS, Pin
from leanify.errors import LeanifyError, ShapeError
from leanify.upstream.libraries import nearest

BUDGETS = ("target_params", "max_macs", "max_latency", "max_memory", "max_active", "max_kv")
CHOICES = {
    "count": ("all", "body"),
    "heads_mode": ("grow", "split", "auto"),
    "latency_of": ("pass", "token"),
}
TIMED = ("batch_size", "device", "dtype", "compiled", "latency_of")  # they say how latency is measured


@dataclass(frozen=True)
class Flag:
    """How an option looks on the command line; ``name`` where it is not the field's."""

    metavar: str | None
    help: str
    name: str | None = None
    min: float | None = None
    max: float | None = None


@dataclass(frozen=True)
class Options:
    """What `redesign` is asked for. A budget is a share of the baseline or an amount; a pin is one number, one for
    every stage, or one for every tower by its name. None leaves a budget or a pin open, and others at their default.

    Raises BudgetError, ShapeError or LeanifyError for a value that no model makes valid.
    """

    target_params: Annotated[
        Budget, Flag("SHARE|COUNT…", "at most this: 0.5, 43M; for towers encoder=0.75,decoder=0.5; several: 0.5 0.75")
    ] = None
    count: Annotated[str, Flag("all|body", "count all parameters, or only the blocks'")] = "all"
    max_macs: Annotated[Budget, Flag("SHARE|COUNT", "multiply-adds: 0.5, 8G")] = None
    max_latency: Annotated[Budget, Flag("SHARE|TIME", "measured here: 0.5, 12ms")] = None
    batch_size: Annotated[int, Flag("N", "with --max-latency: samples per pass", min=1)] = 1
    device: Annotated[str | None, Flag("DEVICE", "with --max-latency: cpu, cuda, cuda:1 (default: a GPU if any)")] = (
        None
    )
    dtype: Annotated[str, Flag("TYPE", "with --max-latency: float32, bfloat16, float16")] = "float32"
    compiled: Annotated[bool, Flag(None, "with --max-latency: torch.compile every shape", "--compile")] = False
    latency_of: Annotated[str, Flag("pass|token", "with --max-latency: a forward pass, or one more token")] = "pass"
    max_memory: Annotated[Budget, Flag("SHARE|BYTES", "predicted training memory: 0.5, 8GB")] = None
    max_active: Annotated[Budget, Flag("SHARE|COUNT", "active parameters per token: 0.5, 3B")] = None
    max_kv: Annotated[Budget, Flag("SHARE|BYTES", "key/value cache per token: 0.5, 64KB")] = None
    context: Annotated[int | None, Flag("N", "tokens in the cache (default: at most 4096)", min=1)] = None
    depth: Annotated[Pin, Flag("N[,N…]", "fix the blocks: 8, one per stage, or encoder=6")] = None
    heads: Annotated[Pin, Flag("N[,N…]", "fix the heads")] = None
    head_dim: Annotated[Pin, Flag("N[,N…]", "fix the channels per head")] = None
    mlp: Annotated[Pin, Flag("N[,N…]", "fix the hidden units of the MLP")] = None
    experts: Annotated[Pin, Flag("N[,N…]", "fix the routed experts of a mixture")] = None
    active_experts: Annotated[Pin, Flag("N[,N…]", "fix the active experts per token")] = None
    heads_mode: Annotated[str, Flag("grow|split|auto", "more heads of the same size, or smaller heads")] = "grow"
    multiple: Annotated[int | None, Flag("N", "unit of MLP and inner width (default: 64; narrow: 8)", min=1)] = None
    tensor_parallel: Annotated[int | None, Flag("N", "devices among which heads and MLP must divide", min=1)] = None
    min_mlp: Annotated[float | None, Flag("X", "minimum MLP, in widths (preferred: 2 or more)", min=0)] = None
    max_mlp: Annotated[float | None, Flag("X", "maximum MLP, in widths (preferred: 10 or less)", min=0)] = None
    min_depth: Annotated[int | None, Flag("N", "minimum blocks (default: a quarter, at least 2)", min=1)] = None
    max_heads: Annotated[float, Flag("X", "at most this many times the baseline's heads", min=1)] = 3.0
    top: Annotated[int, Flag("N", "number of candidates to show", min=1, max=10_000)] = 3
    tokens: Annotated[int | None, Flag("N", "length of a text input (default: 512, or what fits)", min=1)] = None
    overrides: Annotated[
        Mapping[str, Any], Flag("KEY=VALUE", "an argument for upstream's constructor or configuration", "--override")
    ] = field(default_factory=dict)
    cls: Annotated[str | None, Flag("NAME", "a transformers class, such as AutoModelForCausalLM", "--class")] = None

    def __post_init__(self) -> None:
        for name, default in _defaults().items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, default)
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in allowed:
                raise LeanifyError(f"{flag_of(name)} {getattr(self, name)!r} is none of {', '.join(allowed)}")
        for name in BUDGETS:
            check_budget(flag_of(name), getattr(self, name))
        for name, flag in flags().items():
            value = getattr(self, name)
            if flag.min is not None and value is not None and not flag.min <= value < float("inf"):
                raise ShapeError(f"{flag_of(name)} {value}: it must be at least {flag.min}")
            if flag.max is not None and value is not None and value > flag.max:
                raise ShapeError(f"{flag_of(name)} {value:.9g}: it must be at most {flag.max:,}")
        if self.max_latency is None and any(name in self.changed for name in TIMED):
            *others, last = map(flag_of, TIMED)
            raise LeanifyError(f"{', '.join(others)} and {last} configure timing and need --max-latency")

    @property
    def changed(self) -> dict[str, Any]:
        """The options that differ from their defaults, as a plan's JSON holds them."""
        default = _defaults()
        return {name: value for name, value in vars(self).items() if value != default[name]}

    @property
    def pins(self) -> dict[str, Pin]:
        """What is fixed, by name; None where the search is free."""
        return {name: getattr(self, name) for name in PINS}


def _defaults() -> dict[str, Any]:
    return {option.name: option.default for option in fields(Options)} | {"overrides": {}}


@cache
def flags() -> dict[str, Flag]:
    """The flag of every option, by the field's name."""
    hints = get_type_hints(Options, include_extras=True)
    return {option.name: get_args(hints[option.name])[1] for option in fields(Options)}


def flag_of(name: str) -> str:
    """``max_macs`` → ``--max-macs``"""
    return flags()[name].name or f"--{name.replace('_', '-')}"


def check_names(function: str, words: Mapping[str, Any]) -> None:
    """Raise TypeError, as Python does, for a keyword argument that no option has; it names the nearest one."""
    for word in words:
        if word not in flags():
            raise TypeError(f"{function}() got an unexpected keyword argument {word!r}{nearest(word, flags(), 1)}")


def parameters() -> list[inspect.Parameter]:
    """The options as keyword arguments, for the signature of a function that takes them."""
    kinds = get_type_hints(Options)
    shown = inspect.signature(Options).parameters.values()
    return [each.replace(kind=each.KEYWORD_ONLY, annotation=kinds[each.name]) for each in shown]
