"""What leanify can do with a model at its default configuration, tried on meta: read, grow, redesign, control.

read      every attention is found, and its shape is read from its tensors
grow      twice the heads at constant head_dim, and that shape is read back
redesign  a leaner design is found for one of `SHARES` of the parameters, under `RULES`, strictest first
control   for that design there is a control: equal depth and parameters, the old heads and a wider MLP
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from leanify.design.plan import Plan
from leanify.design.redesign import redesign
from leanify.errors import BudgetError, LeanifyError, SourceError
from leanify.lens import surgery
from leanify.sources import find

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

    @property
    def all_yes(self) -> bool:
        return all((self.read, self.grow, self.redesign, self.control))


def answers_of(source: str, overrides: Mapping[str, Any] | None = None) -> FourAnswers:
    """Answer the four questions for a SOURCE. Exceptions other than LeanifyError are defects and are not caught."""
    try:
        model = find.build_on_meta(find.find(source, overrides=overrides))
    except SourceError as error:
        return FourAnswers(None, None, None, None, _line(error))
    try:
        shape = surgery.read(model)
    except LeanifyError as error:
        return FourAnswers(False, False, False, None, _line(error))
    reason = ""
    try:
        grown, wanted = surgery.read(surgery.grow(model, factor=2)), shape.grown(factor=2)
        if grown != wanted:
            reason = f"its heads were doubled to {wanted}, and {grown} is read back"
    except LeanifyError as error:
        reason = _line(error)
    grows = not reason
    plan, flags = _plan(source, overrides)
    if isinstance(plan, LeanifyError):
        return FourAnswers(True, grows, False, None, reason or _line(plan))
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
            if plan.control is not None or not any(layer.mlp for layer in plan.chosen.architecture.layers()):
                return plan, flags
            without = without or (plan, flags)
    return without or (first or BudgetError("no share was tried"), "")


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
