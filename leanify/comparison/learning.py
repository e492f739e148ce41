"""Check whether the models of a study have learnt: trivial reference, falling losses, and diverged runs.

Models that have not learnt show nothing about their shapes, so no question is answered with them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from leanify.comparison.folder import Outcome, StudyFolder, read_content
from leanify.comparison.plan import Key
from leanify.comparison.statistics import Estimate, RunTable
from leanify.core.files import writing
from leanify.training.reference import ReferenceScore, score_reference

FILE = "reference.json"
UNSURE = 0.1  # the error rate at which a reference counts as beaten
LAST, STEEP = 0.2, 0.1  # over the last fifth of the steps, the loss may fall by at most a tenth of its full fall
LONGER, MUCH_LONGER = 2, 4  # factors on the steps if the loss still falls, and if the reference is not beaten
MIN_STEPS = 1000  # minimum suggestion if the reference is not beaten
RISEN = 0.05  # minimum rise of the validation loss after its lowest value in a run that overfits, relative to its fall
LOST = 0.12  # minimum share of the best run's fall of the loss that a diverged run lacks
LOST_LOSS = 0.05  # and the same as a share of the first loss
WINDOW = 0.2  # the last training loss of a run is a mean over this last share of its steps


# -- the trivial reference --------------------------------------------------------------------------------------------


def stored_reference(folder: StudyFolder) -> ReferenceScore | None:
    """A study's reference; None if it has not been computed. Raises DirectoryError if its file is damaged."""

    def parse(content: Mapping[str, Any]) -> ReferenceScore:
        value = content["value"]
        outcomes = tuple(float(outcome) for outcome in content["outcomes"])
        return ReferenceScore(str(content["name"]), None if value is None else float(value), outcomes)

    return read_content(folder.path / FILE, parse, None, "it will be computed again")


def write_reference(folder: StudyFolder) -> None:
    """Compute a study's reference unless it exists."""
    if stored_reference(folder) is not None:
        return
    reference = score_reference(folder.plan.recipe, folder.plan.seeds[0])
    writing.write(folder.path / FILE, json.dumps(asdict(reference)) + "\n")


def beats_reference(table: RunTable, design: str, reference: ReferenceScore, sign: int) -> bool:
    """Whether a design is better than the reference, which must have a value, by more than the noise."""
    value, outcomes = sign * float(reference.value or 0), sign * np.array(reference.outcomes)
    return is_beaten(table.difference_from(design, value, outcomes))


def is_beaten(difference: Estimate) -> bool:
    """Whether a difference from the reference is above 0 by more than the noise, with a certainty of 90%.

    This is weaker than an answer: it only warns of models that have not learnt, without claims.
    """
    low, _ = difference.interval(UNSURE) or (difference.mean, None)
    return bool(low > 0)


# -- losses -----------------------------------------------------------------------------------------------------------


def still_falls(rows: Sequence[Mapping[str, Any]], steps: int) -> bool:
    """Whether a run's validation loss still fell steeply over the last fifth of its steps."""
    losses = {row["step"]: row["loss"] for row in rows if row["split"] == "validation" and "loss" in row}
    early = [step for step in losses if step <= (1 - LAST) * steps]
    if len(losses) < 3 or not early or max(losses) < steps:
        return False
    total_fall = max(row["loss"] for row in rows if "loss" in row) - losses[steps]
    fall = losses[max(early)] - losses[steps]
    return bool(fall > STEEP * total_fall * (steps - max(early)) / (LAST * steps))


def overfits(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a run's validation loss rises while its training loss falls: more steps make it no better."""
    training = [row["loss"] for row in rows if row["split"] == "train" and "loss" in row]
    validation = [row["loss"] for row in rows if row["split"] == "validation" and "loss" in row]
    if len(training) < 2 or len(validation) < 3:
        return False
    lowest = min(validation)
    has_risen = validation[-1] - lowest > RISEN * (max(validation) - lowest)
    return bool(has_risen and training[-1] < training[len(training) // 2])


def suggested_steps(steps: int, is_beaten: bool, rows: Sequence[Sequence[Mapping[str, Any]]]) -> int | None:
    """Return the suggested steps for models that have not learnt; None if more steps do not help.

    ``rows`` has the log rows of each run of the judged design; most runs must agree that it overfits.
    """
    if 2 * sum(map(overfits, rows)) > len(rows):
        return None
    return steps * LONGER if is_beaten else max(steps * MUCH_LONGER, MIN_STEPS)


def diverged_runs(folder: StudyFolder, outcomes: Sequence[Outcome]) -> dict[Key, str]:
    """Return the runs with a final training loss far above the loss of their design's best run, and the reason.

    A run with a non-finite loss has already failed. This finds runs that lost their progress, or never began to learn,
    while other seeds of the same design did. A mean over both kinds would describe neither.
    """
    # (first, last) training loss of each finished run, by design; the last one is a mean
    losses: dict[str, dict[Key, tuple[float, float]]] = {}
    for outcome in outcomes:
        rows = folder.rows(outcome.key) if outcome.status == "finished" else []
        if rows := [row for row in rows if row["split"] == "train"]:
            last_rows = [row for row in rows if row["step"] > (1 - WINDOW) * rows[-1]["step"]]
            mean = sum(float(row["loss"]) for row in last_rows) / len(last_rows)
            losses.setdefault(outcome.design, {})[outcome.key] = (float(rows[0]["loss"]), mean)

    reasons = {}
    for runs in losses.values():
        best_first, best_last = min(runs.values(), key=lambda loss: loss[1])
        for key, (_, last) in runs.items():
            excess = last - best_last
            if excess > LOST * (best_first - best_last) and excess > LOST_LOSS * abs(best_first):
                reasons[key] = (
                    f"its training loss ended at {last:.3g}, that of the design's best run at {best_last:.3g}"
                )
    return reasons
