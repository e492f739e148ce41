"""One model held against everything: a row of the zoo's table."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Literal

from torch import nn

from leanify.errors import LeanifyError, SourceError, UnsupportedModel
from leanify.lens import families, surgery
from leanify.zoo import isolated, laws, tiny, tiny_timm
from leanify.zoo.answers import answers_of
from leanify.zoo.blame import blamed
from leanify.zoo.running import LawBroken
from leanify.zoo.unset import UNSET

SECONDS = 600  # for one model
LONGEST = 300  # characters of a reason


Status = Literal["supported", "refused", "failing"]


@dataclass(frozen=True)
class Verdict:
    """What is known of one model.

    ``supported``: all four answers are yes and every law that applies held at a small size; ``refused``: leanify says
    why not; ``failing``: a law is broken, or something else went wrong. ``untested`` names the laws that had nothing to
    test at the small size, ``given`` what upstream's default configuration leaves unset (`unset`), ``flags`` the rules
    that `redesign` had to be given beside the budget.
    """

    library: str
    name: str
    status: Status
    read: bool | None = None
    grow: bool | None = None
    redesign: bool | None = None
    control: bool | None = None
    untested: tuple[str, ...] = ()
    reason: str = ""
    given: Mapping[str, Any] = field(default_factory=dict)
    flags: str = ""

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "untested": list(self.untested)}


def verdict(library: str, name: str) -> Verdict:
    """One model's answers and laws, in this process."""
    warnings.simplefilter("ignore")
    given = UNSET.get(name, {}) if library == "hf" else {}
    try:
        answers = answers_of(f"{library}/{name}", given)
    except Exception as error:
        return Verdict(library, name, "failing", reason=_line(error))
    said = {**{key: value for key, value in asdict(answers).items() if key != "reason"}, "given": given}
    if not answers.read:
        return Verdict(library, name, "refused", **said, reason=answers.reason[:LONGEST])
    untested, broken = _laws(library, name)
    status: Status = "failing" if broken else "supported" if answers.all_yes else "refused"
    return Verdict(library, name, status, **said, untested=untested, reason=broken or answers.reason[:LONGEST])


def verdicts(models: Sequence[tuple[str, str]]) -> Iterator[Verdict]:
    """Every model's verdict, from child processes with a time limit: a crash is a verdict as well."""
    for library in tiny.LIBRARIES:
        names = [name for other, name in models if other == library]
        yield from isolated.each(partial(verdict, library), names, SECONDS, partial(_failed, library))


def _failed(library: str, name: str, why: str) -> Verdict:
    return Verdict(library, name, "failing", reason=why)


def without_attention(one: Verdict) -> bool:
    """Whether a model is none of the zoo's business: ResNets and the like."""
    return one.library == "timm" and "has no attention layer" in one.reason


def _laws(library: str, name: str) -> tuple[tuple[str, ...], str]:
    """The laws that had nothing to test at a small size, and what is broken."""
    with tiny_timm.small_tables():
        try:
            model, call = tiny.build(library, name)
        except Exception as error:
            return (), f"no small example: {_line(error)}"
        if strangers := _read_by_trial(model):
            return (), f"no row describes {', '.join(strangers)}: leanify zoo --propose {library}/{name} prints one"
        try:
            twin = signature(model)
        except UnsupportedModel as error:
            return (), _line(error)
        if twin not in _HELD:
            _HELD[twin] = _held(model, call)
    return _HELD[twin]


def _read_by_trial(model: nn.Module) -> list[str]:
    """The model's classes that were read live, as a table would name them."""
    classes = {f"{type(module).__module__}.{type(module).__qualname__}" for module in model.modules()}
    return [families.short(row.name) for row in families.learned() if row.name in classes]


def _held(model: nn.Module, call: Callable[[nn.Module], Any]) -> tuple[tuple[str, ...], str]:
    try:
        applied = laws.hold_all(model, call)
    except Exception as error:
        refused = isinstance(error, LeanifyError)  # which names its reason
        return (), _line(error) + ("" if refused else _blame(model, call))
    return tuple(law for law, did in applied.items() if not did), ""


def _blame(model: nn.Module, call: Callable[[nn.Module], Any]) -> str:
    """Which rows to correct, where a row is wrong and upstream's own model runs."""
    try:
        rows = blamed(model, call)
    except Exception:  # the model itself cannot be read or run
        return ""
    return f". The row to correct is that of {', '.join(rows)}" if rows else ""


_HELD: dict[str, tuple[tuple[str, ...], str]] = {}  # what came of the laws, by signature


def signature(model: nn.Module) -> str:
    """A hash of what the laws depend on: models alike in it are held once.

    Every kind of module (its class, its switches and words, the ranks of its tensors) and of layer (MHA, GQA or MQA,
    with or without an MLP); sizes and how often a kind is repeated do not count.
    """
    kinds = {
        (
            type(module).__module__,
            type(module).__qualname__,
            tuple(sorted((k, v) for k, v in vars(module).items() if isinstance(v, (bool, str)))),
            tuple((name, parameter.dim()) for name, parameter in module.named_parameters(recurse=False)),
        )
        for module in model.modules()
    }
    shape = surgery.read(model)
    layers = {(x.kv_heads == x.heads, x.kv_heads == 1, x.mlp > 0, x.inner == x.width) for x in shape.layers()}
    shapes = sorted((stage.fixed, stage.depth > 1) for stage in shape.stages)
    return hashlib.sha256(repr((sorted(map(repr, kinds)), sorted(layers), shapes)).encode()).hexdigest()


def _line(error: Exception) -> str:
    text = " ".join(str(error).split())[:LONGEST]
    known = isinstance(error, (UnsupportedModel, SourceError, LawBroken))
    return text if known else f"{type(error).__name__}: {text}"
