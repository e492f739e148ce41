"""Test one model against all questions and laws: a row of the zoo's table."""

from __future__ import annotations

import gc
import hashlib
import multiprocessing
import tomllib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib import resources
from multiprocessing.connection import Connection
from typing import Any, Literal

from torch import nn

from leanify.errors import LeanifyError, SourceError, UnsupportedModel
from leanify.lens import families, surgery
from leanify.zoo import laws, tiny
from leanify.zoo.answers import answers_of
from leanify.zoo.blame import blamed
from leanify.zoo.running import LawBroken

SECONDS = 600  # for one model
LONGEST = 300  # characters of a reason


UNSET: dict[str, dict[str, Any]] = tomllib.loads(resources.files(__package__).joinpath("unset.toml").read_text("utf-8"))

Status = Literal["supported", "refused", "failing"]


@dataclass(frozen=True)
class ModelVerdict:
    """The verdict on one model.

    It is ``supported`` if all four answers are yes and every applicable law holds at a small size;
    ``refused`` if leanify refuses it with a reason; ``failing`` if a law is broken or anything else went
    wrong. ``untested`` lists laws that did not apply at the small size, ``given`` the settings from `unset`,
    and ``flags`` the options that `redesign` needed besides the budget.
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


def verdict(library: str, name: str) -> ModelVerdict:
    """Judge one model in this process."""
    warnings.simplefilter("ignore")
    given = UNSET.get(name, {}) if library == "hf" else {}
    try:
        answers = answers_of(f"{library}/{name}", given)
    except Exception as error:
        return ModelVerdict(library, name, "failing", reason=_line(error))
    known = {**{key: value for key, value in asdict(answers).items() if key != "reason"}, "given": given}
    if not answers.read:
        return ModelVerdict(library, name, "refused", **known, reason=answers.reason[:LONGEST])
    untested, broken = _laws(library, name)
    status: Status = "supported" if answers.all_yes else "refused"
    if broken:
        status = "failing"
    return ModelVerdict(library, name, status, **known, untested=untested, reason=broken or answers.reason[:LONGEST])


def verdicts(models: Sequence[tuple[str, str]]) -> Iterator[ModelVerdict]:
    """Yield every model's verdict, a library after the other, from child processes.

    One process works through all names; a crash or an endless loop becomes a verdict, and a new one goes on.
    """
    context = multiprocessing.get_context("fork")
    for library in tiny.LIBRARIES:
        waiting = [name for other, name in models if other == library]
        while waiting:
            receiver, sender = context.Pipe(duplex=False)
            child = context.Process(target=_work, args=(library, list(waiting), sender))
            child.start()
            sender.close()
            why = ""
            while waiting and not why:
                try:
                    if receiver.poll(SECONDS):
                        result = receiver.recv()
                        waiting.pop(0)
                        yield result
                    else:
                        why = f"over {SECONDS} s"
                except EOFError:
                    child.join()
                    why = f"the process ended with code {child.exitcode}"
            child.kill()
            child.join()
            if why:
                yield ModelVerdict(library, waiting.pop(0), "failing", reason=why)


def _work(library: str, names: list[str], sender: Connection) -> None:
    for name in names:
        sender.send(verdict(library, name))
        gc.collect()


def without_attention(one: ModelVerdict) -> bool:
    """Whether a model has no attention (such as ResNets) and so does not belong in the table."""
    return one.library == "timm" and "has no attention layer" in one.reason


def _laws(library: str, name: str) -> tuple[tuple[str, ...], str]:
    """Return the laws that did not apply at a small size, and what is broken (``""`` if nothing).

    Where upstream's own model runs but a row is wrong, the message names the row.
    """
    with tiny.small_tables():
        try:
            model, call = tiny.build(library, name)
        except Exception as error:
            return (), f"no small example: {_line(error)}"
        with suppress(LeanifyError):
            surgery.read(model)
        tried = [row for module in model.modules() if (row := families.attached(module)) is not None]
        if tried:
            names = ", ".join(sorted({families.short(row.name) for row in tried}))
            return (), f"no row describes {names}: leanify zoo --propose {library}/{name} prints one"
        try:
            twin = signature(model)
        except UnsupportedModel as error:
            return (), _line(error)
        if twin in _HELD:
            return _HELD[twin]
        try:
            applied = laws.hold_all(model, call)
            result: tuple[tuple[str, ...], str] = tuple(law for law, did in applied.items() if not did), ""
        except LeanifyError as error:  # a refusal, which names its reason
            result = (), _line(error)
        except Exception as error:
            rows: list[str] = []
            with suppress(Exception):  # the model itself cannot be read or run
                rows = blamed(model, call)
            result = (), _line(error) + (f". The row to correct is that of {', '.join(rows)}" if rows else "")
        _HELD[twin] = result
    return result


_HELD: dict[str, tuple[tuple[str, ...], str]] = {}  # results of the laws, by signature


def signature(model: nn.Module) -> str:
    """A hash of what the laws depend on; models with equal hashes are tested once.

    It covers every kind of module (class, boolean and string attributes, ranks of tensors) and of layer (MHA,
    GQA or MQA, with or without an MLP), but not sizes or the number of repetitions.
    """
    kinds = set()
    for module in model.modules():
        words = tuple(sorted((k, v) for k, v in vars(module).items() if isinstance(v, (bool, str))))
        ranks = tuple((name, parameter.dim()) for name, parameter in module.named_parameters(recurse=False))
        kinds.add((type(module).__module__, type(module).__qualname__, words, ranks))
    shape = surgery.read(model)
    layers = {(x.kv_heads == x.heads, x.kv_heads == 1, x.mlp > 0, x.inner == x.width) for x in shape.layers()}
    stages = sorted((stage.fixed, stage.depth > 1) for stage in shape.stages)
    return hashlib.sha256(repr((sorted(map(repr, kinds)), sorted(layers), stages)).encode()).hexdigest()


def _line(error: Exception) -> str:
    text = " ".join(str(error).split())[:LONGEST]
    known = isinstance(error, (UnsupportedModel, SourceError, LawBroken))
    return text if known else f"{type(error).__name__}: {text}"
