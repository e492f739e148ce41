"""Test one model against four questions and the laws: a row of the zoo's table.

The questions are tried on meta, at the model's default configuration:

read      every attention is found, and its shape is read from its tensors
grow      twice the heads at constant head_dim, and that shape is read back
redesign  a leaner design is found for one of `SHARES` of the parameters, under `RULES`, strictest first
control   for that design there is a control: equal depth and parameters, the old heads and a wider MLP
"""

from __future__ import annotations

import gc
import hashlib
import multiprocessing
import tomllib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

from torch import nn

from leanify.core.errors import BudgetError, LeanifyError, SourceError, UnsupportedModel
from leanify.lens import families
from leanify.reshaping import surgery
from leanify.search.plan import Plan
from leanify.search.redesign import redesign
from leanify.sources import find

from . import laws, tiny
from .running import LawBroken

SECONDS = 600  # for one model
LONGEST = 300  # characters of a reason
UNSET: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("unset.toml").read_text("utf-8"))

Status = Literal["supported", "refused", "failing"]
SHARES = (0.5, 0.9, 0.98)  # with large embeddings or convolutions, the blocks can save only a little
RULES: dict[str, dict[str, Any]] = {  # command-line flags → arguments, ever looser, as small models may need
    "": {},
    "--min-depth 1": {"min_depth": 1},
    "--min-depth 1 --min-mlp 0 --multiple 1": {"min_depth": 1, "min_mlp": 0, "multiple": 1},
}


@dataclass(frozen=True)
class FourAnswers:
    """True, False, or None if the question does not apply.

    ``reason`` explains the first answer other than True; ``flags`` are the options that `redesign` needed
    besides the budget.
    """

    read: bool | None
    grow: bool | None
    redesign: bool | None
    control: bool | None
    reason: str = ""
    flags: str = ""


def answer_questions(source: str, overrides: Mapping[str, Any] | None = None) -> FourAnswers:
    """Answer the four questions for a SOURCE. Exceptions other than LeanifyError are not caught."""
    try:
        model = find.build_on_meta(find.find(source, overrides=overrides))
    except SourceError as error:
        return FourAnswers(None, None, None, None, _one_line(error))
    try:
        shape = surgery.read(model)
    except LeanifyError as error:
        return FourAnswers(False, False, False, None, _one_line(error))
    reason = ""
    try:
        grown, target = surgery.read(surgery.grow(model, factor=2)), shape.grown(factor=2)
        if grown != target:
            reason = f"its heads were doubled to {target}, and {grown} is read back"
    except LeanifyError as error:
        reason = _one_line(error)
    grows = not reason
    plan, flags = _plan(source, overrides)
    if isinstance(plan, LeanifyError):
        return FourAnswers(True, grows, False, None, reason or _one_line(plan))
    if plan.control is None:
        reason = reason or "no control: in the stages that a redesign changes no MLP is known"
    return FourAnswers(True, grows, True, plan.control is not None, reason, flags)


def _plan(source: str, overrides: Mapping[str, Any] | None) -> tuple[Plan | LeanifyError, str]:
    """Return the first redesign found and the flags it needed, or why there is none under the default rules.

    Every budget is tried before a rule is loosened; a design with a control is preferred to one without.
    """
    first: LeanifyError | None = None
    without: tuple[Plan, str] | None = None
    for flags, rules in RULES.items():
        for share in SHARES:
            try:
                plan = redesign(source, target_params=share, overrides=overrides, **rules)
            except BudgetError as error:
                first = first or error
                continue
            except LeanifyError as error:
                return error, ""
            if plan.lean is None:
                first = first or BudgetError(f"no lean: {plan.needs}")
                continue
            if plan.control is not None or not any(layer.mlp for layer in plan.lean.architecture.layers()):
                return plan, flags
            without = without or (plan, flags)
    return without or (first or BudgetError("no share was tried"), "")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


@dataclass(frozen=True)
class ModelVerdict:
    """The verdict on one model.

    It is ``supported`` if all four answers are yes and every applicable law holds at a small size;
    ``refused`` if leanify refuses it with a reason; ``failing`` if a law is broken or anything else went
    wrong. ``untested`` lists laws that did not apply at the small size, ``given`` the settings from `unset.toml`,
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
    settings = UNSET.get(name, {}) if library == "hf" else {}
    try:
        answers = answer_questions(f"{library}/{name}", settings)
    except Exception as error:
        return ModelVerdict(library, name, "failing", reason=_line(error))
    fields = {**{key: value for key, value in asdict(answers).items() if key != "reason"}, "given": settings}
    if not answers.read:
        return ModelVerdict(library, name, "refused", **fields, reason=answers.reason[:LONGEST])
    untested, failure = _hold_laws(library, name)
    yes = answers.read and answers.grow and answers.redesign and answers.control
    status: Status = "failing" if failure else "supported" if yes else "refused"
    return ModelVerdict(library, name, status, **fields, untested=untested, reason=failure or answers.reason[:LONGEST])


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
            failure = ""
            while waiting and not failure:
                try:
                    if receiver.poll(SECONDS):
                        result = receiver.recv()
                        waiting.pop(0)
                        yield result
                    else:
                        failure = f"over {SECONDS} s"
                except EOFError:
                    child.join()
                    failure = f"the process ended with code {child.exitcode}"
            child.kill()
            child.join()
            if failure:
                yield ModelVerdict(library, waiting.pop(0), "failing", reason=failure)


def _work(library: str, names: list[str], sender: Connection) -> None:
    for name in names:
        sender.send(verdict(library, name))
        gc.collect()


def has_no_attention(verdict: ModelVerdict) -> bool:
    """Whether a model has no attention (such as ResNets) and so does not belong in the table."""
    return verdict.library == "timm" and "has no attention layer" in verdict.reason


def _hold_laws(library: str, name: str) -> tuple[tuple[str, ...], str]:
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
        unlisted_rows = [row for module in model.modules() if (row := families.attached_row(module)) is not None]
        if unlisted_rows:
            names = ", ".join(sorted({families.short(row.name) for row in unlisted_rows}))
            return (), f"no row describes {names}: python -m tests.zoo --propose {library}/{name} prints one"
        try:
            twin = signature(model)
        except UnsupportedModel as error:
            return (), _line(error)
        if twin in _RESULTS:
            return _RESULTS[twin]
        try:
            applicable = laws.hold_all(model, call)
            result: tuple[tuple[str, ...], str] = tuple(law for law, did in applicable.items() if not did), ""
        except LeanifyError as error:  # a refusal, which names its reason
            result = (), _line(error)
        except Exception as error:
            rows: list[str] = []
            with suppress(Exception):  # the model itself cannot be read or run
                rows = laws.wrong_rows(model, call)
            result = (), _line(error) + (f". The row to correct is that of {', '.join(rows)}" if rows else "")
        _RESULTS[twin] = result
    return result


_RESULTS: dict[str, tuple[tuple[str, ...], str]] = {}  # results of the laws, by signature


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
    stages = sorted((stage.is_fixed, stage.depth > 1) for stage in shape.stages)
    return hashlib.sha256(repr((sorted(map(repr, kinds)), sorted(layers), stages)).encode()).hexdigest()


def _line(error: Exception) -> str:
    text = _one_line(error)[:LONGEST]
    is_expected = isinstance(error, (UnsupportedModel, SourceError, LawBroken))
    return text if is_expected else f"{type(error).__name__}: {text}"
