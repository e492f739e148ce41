"""The folder of a `shrink`: the findings so far, and finally the model itself.

shrink.json   the request and every finding, written after each one; the same command continues from here
work/NAME     a candidate with transferred weights, a lean directory
work/NAME-run the run that heals it
report.json   the result; the model's files are then in the same directory, and work/ is removed
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from leanify.core.errors import DirectoryError
from leanify.core.files import cache, writing
from leanify.core.files.reading import read_json
from leanify.core.files.writing import check_new_directory
from leanify.core.path_kinds import CARD, is_run
from leanify.core.terminal import note
from leanify.runs.run_directory import remove_run
from leanify.shrinking.time_plan import Clock

STATE, REPORT, WORK = "shrink.json", "report.json", "work"
MOVING = "moving"  # finding: no name in the folder was taken, so files with these names came from work/
NUMBER = (int, float)
QUALITY = {"chosen_on": NUMBER, "quality": NUMBER}
HEALED_KEYS = {**QUALITY, "run": str, "steps": int, "rate": NUMBER}
FINDING_KEYS: Mapping[str, Mapping[str, Any]] = {  # keys of a finding, by the first word of its name
    "original": {**QUALITY, "params": int, "macs": NUMBER},
    "reference": {"name": str, "value": (*NUMBER, type(None))},
    "carried": {**QUALITY, "params": int, "macs": NUMBER, "damage": NUMBER, "unit": str, "steps": list, "files": list},
    "speed": {"macs_per_second": NUMBER},
    "tokens": {"count": int},
    "chosen": {"names": list, "tokens": int},
    "plan": {"steps": int, "rate": NUMBER},
    "third": HEALED_KEYS,
    "healed": HEALED_KEYS,
    "report": {"sum": str},
}


@dataclass
class ShrinkFolder:
    """Findings by name, each computed once. Raises DirectoryError for a folder with other content."""

    path: Path
    request: Mapping[str, Any]
    findings: dict[str, Any] = field(default_factory=dict)
    clock: Clock = field(default_factory=lambda: Clock(0.0))

    @staticmethod
    def open(path: Path, request: Mapping[str, Any], clock: Clock | None = None) -> ShrinkFolder:
        """Continue a folder that the same request began, or return a new one; `keep` creates it on disk.

        ``clock`` is that of this start, if it runs already.
        """
        clock = clock or Clock(float(request.get("minutes", 0.0)))
        if not (path / STATE).is_file():
            check_new_directory(path)
            return ShrinkFolder(path, request, clock=clock)
        # the state must be complete and from the same request
        state = read_json(path / STATE, DirectoryError)
        if not isinstance(state, dict):
            state = {}
        findings, before = state.get("found"), state.get("asked")
        if not (
            isinstance(findings, dict) and isinstance(before, dict) and all(map(_is_sound, findings, findings.values()))
        ):
            raise DirectoryError(f"{path / STATE} is damaged; remove {path} to start again")
        now = json.loads(json.dumps(request))
        changes = [f"{key}: {before.get(key)} → {now.get(key)}" for key in now if before.get(key) != now.get(key)]
        if changes:
            raise DirectoryError(f"{path} was begun with other options ({'; '.join(changes)}); name another -o")
        clock = replace(clock, seconds_before=float(findings.get("seconds", 0.0)))
        return ShrinkFolder(path, request, findings, clock)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Refuse a second process that writes the same folder, before either does any work.

        The lock is a file in the user's cache, so the result's directory stays clean; without a writable cache there is
        no lock. Raises DirectoryError.
        """
        place = cache.home() / "locks" / hashlib.sha256(str(self.path.absolute()).encode()).hexdigest()
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            file = place.open("a")
        except OSError:
            yield
            return
        with file:
            if not writing.try_lock(file.fileno()):
                raise DirectoryError(f"{self.path} is being written by another shrink; name another -o, or wait for it")
            yield

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """Return a finding, computing it first if it is not known yet."""
        if name not in self.findings:
            self.record(name, make())
        return self.findings[name]

    def record(self, name: str, finding: Any) -> None:
        self.findings[name] = finding
        self.keep()

    def keep(self) -> None:
        self.findings["seconds"] = round(self.clock.seconds, 1)
        self._write(STATE, {"asked": self.request, "found": self.findings})

    def _write(self, name: str, content: Mapping[str, Any]) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            writing.write(self.path / name, json.dumps(content, indent=2) + "\n")
        except OSError as error:
            raise DirectoryError(f"{self.path / name} could not be written: {error.strerror or error}") from error

    def place(self, name: str) -> Path:
        """Return the path of a candidate or its run."""
        work = self.path / WORK
        writing.check_folders(work, work / name)
        work.mkdir(exist_ok=True)
        return work / name

    def fresh(self, name: str) -> Path:
        """Return an empty path: files of an interrupted attempt are renamed, because they may be the user's."""
        place = self.place(name)
        if place.exists():
            copy = writing.keep_aside(place)
            note(f"{copy} is what an interrupted shrink left of {name}; nothing reads it, so you can remove it")
        return place

    @property
    def report(self) -> dict[str, Any] | None:
        """Return the result, or None before there is one."""
        file = self.path / REPORT
        if not file.is_file():
            return None
        content: dict[str, Any] = read_json(file, DirectoryError)
        if "report" in self.findings and self.findings["report"]["sum"] != _sum(content):
            raise DirectoryError(f"{file} has changed since it was written; remove {self.path} to start again")
        return content

    def finish(self, model: Path, report: Mapping[str, Any]) -> None:
        """Move the files of ``model``, a lean directory in work/, into the folder itself, the card last.

        Raises DirectoryError, before any file is moved, if a name is already taken: that file is the user's.
        """
        # the card comes last: it marks the folder as a complete lean directory
        names = sorted((file.name for file in model.iterdir()), key=lambda name: (name == CARD, name))
        if MOVING not in self.findings:
            for target in (self.path / name for name in names):
                if os.path.lexists(target):
                    raise DirectoryError(
                        f"{target} was not written by leanify; move it away, and the same command ends"
                    )
            self.record(MOVING, {})
        try:
            for name in names:
                (model / name).rename(self.path / name)
            self.once("report", lambda: {"sum": _sum(report)})
            self._write(REPORT, report)
            self.clear()
        except OSError as error:
            raise DirectoryError(f"{self.path} could not be written: {error.strerror or error}") from error

    def clear(self) -> None:
        """Remove leanify's files in work/, and work/ itself if nothing remains in it."""
        # the runs, then the files named by findings, then empty folders
        work = self.path / WORK
        if not work.is_dir() or work.is_symlink():
            return
        for run in [path for path in work.iterdir() if is_run(path) and not path.is_symlink()]:
            remove_run(run)
        paths: set[str] = set()
        for finding in self.findings.values():
            if isinstance(finding, dict):
                paths.update(finding.get("files", ()))
        for folder, _, names in os.walk(work, topdown=False):  # does not follow links
            for path in (Path(folder) / name for name in names):
                if str(path.relative_to(work)) in paths and not path.is_symlink():
                    path.unlink()
            with suppress(OSError):  # not empty
                Path(folder).rmdir()
        if work.exists():
            note(f"{work} contains files that leanify did not record as its own, so it stays")

    def files(self, name: str) -> list[str]:
        """Return the files of a candidate, relative to work/."""
        work = self.path / WORK
        return sorted(str(file.relative_to(work)) for file in (work / name).rglob("*") if file.is_file())


def _sum(report: Any) -> str:
    return hashlib.sha256(json.dumps(report).encode()).hexdigest()


def _is_sound(name: str, finding: Any) -> bool:
    """Whether a finding has the structure that `shrink` writes under its name."""
    kind = name.partition(" ")[0]
    if kind == "seconds":
        return isinstance(finding, (int, float))
    if kind == "reference" and finding is None:
        return True
    if not isinstance(finding, dict):
        return False
    if kind == "latency":  # medians, each with the lowest and highest time
        for timing in finding.values():
            ends = timing.get("latency_range") if isinstance(timing, dict) else None
            numbers = [timing.get("latency_s"), *ends] if isinstance(ends, list) else []
            if len(numbers) != 3 or not all(isinstance(number, NUMBER) for number in numbers):
                return False
        return True
    if kind == "carried" and "refused" in finding:
        return isinstance(finding["refused"], str)
    for key, types in FINDING_KEYS.get(kind, {}).items():
        if key not in finding or not isinstance(finding[key], types):
            return False
    names = [*finding["files"], *finding["steps"]] if kind == "carried" else []
    return all(isinstance(name, str) for name in names) and isinstance(finding.get("shape", {}), dict)
