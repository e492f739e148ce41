"""Summaries of all studies below a folder, for ``leanify runs``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from leanify.comparison.folder import StudyFolder
from leanify.core.files.reading import walk_folders
from leanify.core.path_kinds import is_run, is_study
from leanify.runs.run_directory import RunDirectory

State = Literal["running", "done", "failed", "interrupted", "broken"]


@dataclass(frozen=True)
class StudyOverview:
    """One study as ``leanify runs`` lists it.

    designs  number of designs
    runs     number of runs, of which ``ended`` have ended and ``failed`` of those failed
    state    running (a process holds one of its runs), done, failed (done with failed runs), interrupted, or broken
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


def find_studies(folder: Path) -> Iterator[StudyOverview]:
    """Yield the studies in a folder and its subfolders, sorted by path."""
    for place in walk_folders(folder, is_study):
        if is_study(place):
            yield overview(StudyFolder(place))


def overview(study: StudyFolder) -> StudyOverview:
    """Summarise a study; a damaged one has the state ``broken`` instead of raising an error."""
    try:
        plan = study.plan
        keys, outcomes = list(plan.runs()), study.outcomes()
        failed_count = sum(outcome.status == "failed" for outcome in outcomes)
        state: State = "interrupted"
        if any(is_run(study.run(key)) and RunDirectory(study.run(key)).is_locked() for key in keys):
            state = "running"
        elif len(outcomes) == len(keys):
            state = "failed" if failed_count else "done"
        return StudyOverview(study.path, plan.title, len(plan.designs), len(keys), len(outcomes), failed_count, state)
    except Exception:  # whatever is wrong with one folder, the others are listed
        return StudyOverview(study.path, "", 0, 0, 0, 0, "broken")
