"""What a user may do with a model at its default configuration, tried on meta: read, grow, redesign, control.

read      every attention is found, and its shape is read from its tensors
grow      twice the heads at constant head_dim, and that shape is read back
redesign  a leaner design is found within one of `SHARES` of the parameters
control   that design has one of equal depth and parameters with the old heads and a wider MLP
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from leanify.design.plan import Plan, redesign
from leanify.errors import BudgetError, LeanifyError, SourceError
from leanify.lens import surgery
from leanify.sources import find

SHARES = (0.5, 0.9)  # large embeddings leave little for the blocks to save


@dataclass(frozen=True)
class Answers:
    """True, False, or None where the question does not apply; ``reason`` says what the first other than True means."""

    read: bool | None
    grow: bool | None
    redesign: bool | None
    control: bool | None
    reason: str = ""

    @property
    def all_yes(self) -> bool:
        return all((self.read, self.grow, self.redesign, self.control))


def answers_of(source: str, overrides: Mapping[str, Any] | None = None) -> Answers:
    """The four answers for what SOURCE names. Errors that are no LeanifyError are defects, and pass through."""
    try:
        model = find.build_on_meta(find.find(source, overrides=overrides))
    except SourceError as error:
        return Answers(None, None, None, None, _line(error))
    try:
        surgery.read(model)
    except LeanifyError as error:
        return Answers(False, False, False, None, _line(error))
    grow_refused = _grow_refused(model)
    plan = _plan(source, overrides)
    if isinstance(plan, LeanifyError):
        return Answers(True, not grow_refused, False, None, grow_refused or _line(plan))
    no_control = "no control: in the stages that a redesign changes no MLP is known" if plan.control is None else ""
    return Answers(True, not grow_refused, True, plan.control is not None, grow_refused or no_control)


def _grow_refused(model: nn.Module) -> str:
    """Why the model does not grow; nothing where it does."""
    try:
        grown = surgery.read(surgery.grow(model, factor=2))
    except LeanifyError as error:
        return _line(error)
    wanted = surgery.read(model).grown(factor=2)
    return "" if grown == wanted else f"its heads were doubled to {wanted}, and {grown} is read back"


def _plan(source: str, overrides: Mapping[str, Any] | None) -> Plan | LeanifyError:
    """The redesign to the smallest share that some design reaches, or why there is none."""
    refused: LeanifyError = BudgetError("no share was tried")
    for share in SHARES:
        try:
            return redesign(source, target_params=share, overrides=overrides)
        except BudgetError as error:
            refused = error
        except LeanifyError as error:
            return error
    return refused


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
