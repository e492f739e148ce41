"""Every study below a folder, one value each: what is compared, how far it came, whether it goes on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from leanify.errors import LeanifyError
from leanify.sources.run_directory import RunDirectory, is_run
from leanify.study.folder import StudyFolder, is_study

State = Literal["running", "done", "failed", "interrupted", "broken"]


@dataclass(frozen=True)
class StudyOverview:
    """One study as ``leanify runs`` lists it.

    designs  how many are compared
    runs     how many runs that makes, ``ended`` of them to their end, ``failed`` of these badly
    state    running: a process holds one of its runs · done · failed: done, but for failed runs · interrupted · broken
    """

    path: Path
    title: str
    designs: int
    runs: int
    ended: int
    failed: int
    state: State

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "path": str(self.path)}


def studies_below(folder: Path) -> Iterator[StudyOverview]:
    """The studies in a folder and in the folders below it, by path."""
    for place, below, _ in os.walk(folder):
        below[:] = sorted(name for name in below if not name.startswith("."))
        if is_study(place):
            below.clear()
            yield overview(StudyFolder(Path(place)))


def overview(study: StudyFolder) -> StudyOverview:
    """What a study's folder says of itself; a damaged one is ``broken`` instead of an error."""
    try:
        plan = study.plan
        keys, outcomes = list(plan.runs()), study.outcomes()
        failed = sum(outcome.status == "failed" for outcome in outcomes)
        state: State = "interrupted"
        if any(is_run(study.run(key)) and RunDirectory(study.run(key)).is_held() for key in keys):
            state = "running"
        elif len(outcomes) == len(keys):
            state = "failed" if failed else "done"
        return StudyOverview(study.path, plan.title, len(plan.designs), len(keys), len(outcomes), failed, state)
    except (LeanifyError, OSError, ValueError, KeyError):
        return StudyOverview(study.path, "", 0, 0, 0, 0, "broken")
