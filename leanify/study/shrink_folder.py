"""The folder of a `shrink`: what was found so far, and at the end the model itself.

shrink.json   what was asked for and every finding, written after each; the same command goes on from here
work/NAME     a candidate with its carried weights, a lean directory
work/NAME-run the run that heals it
report.json   the result; with it stand the model's own files, and work/ is gone
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from leanify.errors import DirectoryError
from leanify.runs import writing
from leanify.runs.files import read_json
from leanify.runs.new_directory import check_new_directory
from leanify.runs.places import CARD, is_run
from leanify.runs.removing import remove_run
from leanify.terminal import note

STATE, REPORT, WORK = "shrink.json", "report.json", "work"
MOVING = "moving"  # the finding that no name in the folder is taken: from now on those that are there came from work/
NUMBER = (int, float)
QUALITY = {"chosen_on": NUMBER, "quality": NUMBER}
HEALED = {**QUALITY, "run": str, "steps": int, "rate": NUMBER}
WRITTEN: Mapping[str, Mapping[str, Any]] = {  # the keys of a finding, by the first word of its name
    "original": {**QUALITY, "params": int, "macs": NUMBER},
    "reference": {"name": str, "value": (*NUMBER, type(None))},
    "carried": {**QUALITY, "params": int, "macs": NUMBER, "damage": NUMBER, "unit": str, "steps": list, "files": list},
    "plan": {"steps": int, "rate": NUMBER},
    "third": HEALED,
    "healed": HEALED,
    "report": {"sum": str},
}


@dataclass
class ShrinkFolder:
    """Findings by name, each made once. Raises DirectoryError for a folder of something else."""

    path: Path
    asked: Mapping[str, Any]
    found: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def open(path: Path, asked: Mapping[str, Any]) -> ShrinkFolder:
        """Go on with a folder that the same request began, or begin one; `keep` creates it."""
        if not (path / STATE).is_file():
            check_new_directory(path)
            return ShrinkFolder(path, asked)
        state = read_json(path / STATE, DirectoryError)
        if not isinstance(state, dict):
            state = {}
        found, before = state.get("found"), state.get("asked")
        if not (isinstance(found, dict) and isinstance(before, dict) and all(map(_is_sound, found, found.values()))):
            raise DirectoryError(f"{path / STATE} is damaged; remove {path} to begin anew")
        now = json.loads(json.dumps(asked))
        changed = [f"{key}: {before.get(key)} → {now.get(key)}" for key in now if before.get(key) != now.get(key)]
        if changed:
            raise DirectoryError(f"{path} was begun with other options ({'; '.join(changed)}); name another -o")
        return ShrinkFolder(path, asked, found)

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """A finding, made where it is not known yet."""
        if name not in self.found:
            self.found[name] = make()
            self.keep()
        return self.found[name]

    def keep(self) -> None:
        self._write(STATE, {"asked": self.asked, "found": self.found})

    def _write(self, name: str, content: Mapping[str, Any]) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            writing.write(self.path / name, json.dumps(content, indent=2) + "\n")
        except OSError as error:
            raise DirectoryError(f"{self.path / name} could not be written: {error.strerror or error}") from error

    def place(self, name: str) -> Path:
        """Where a candidate or its run lies."""
        work = self.path / WORK
        writing.check_folder(work, work / name)
        work.mkdir(exist_ok=True)
        return work / name

    def fresh(self, name: str) -> Path:
        """A place where nothing lies: what a killed attempt left there is renamed, as it may be the user's."""
        place = self.place(name)
        if place.exists():
            place.rename(place.with_name(f"{name}.kept-{secrets.token_hex(4)}"))
        return place

    @property
    def report(self) -> dict[str, Any] | None:
        """The result, once there is one."""
        file = self.path / REPORT
        if not file.is_file():
            return None
        found: dict[str, Any] = read_json(file, DirectoryError)
        if "report" in self.found and self.found["report"]["sum"] != _sum(found):
            raise DirectoryError(f"{file} has changed since it was written; remove {self.path} to begin anew")
        return found

    def finish(self, model: Path, report: Mapping[str, Any]) -> None:
        """Put the files of ``model``, a lean directory in work/, into the folder itself: the card last.

        Raises DirectoryError, before anything is moved, where a file of that name is there already: it is the user's.
        """
        names = sorted((file.name for file in model.iterdir()), key=lambda name: (name == CARD, name))
        self.once(MOVING, lambda: self._check_free(names))
        try:
            for name in names:
                (model / name).rename(self.path / name)
            self.once("report", lambda: {"sum": _sum(report)})
            self._write(REPORT, report)
            self._clear()
        except OSError as error:
            raise DirectoryError(f"{self.path} could not be written: {error.strerror or error}") from error

    def _check_free(self, names: Sequence[str]) -> dict[str, Any]:
        for target in (self.path / name for name in names):
            if os.path.lexists(target):
                raise DirectoryError(f"{target} was not written by leanify; move it away, and the same command ends")
        return {}

    def _clear(self) -> None:
        """Remove what leanify wrote into work/, and work/ itself if nothing else is in it."""
        work = self.path / WORK
        for run in [path for path in work.iterdir() if is_run(path) and not path.is_symlink()]:
            remove_run(run)
        written: set[str] = set()
        for found in self.found.values():
            if isinstance(found, dict):
                written.update(found.get("files", ()))
        for folder, _, names in os.walk(work, topdown=False):  # follows no link
            for path in (Path(folder) / name for name in names):
                if str(path.relative_to(work)) in written and not path.is_symlink():
                    path.unlink()
            with suppress(OSError):  # not empty
                Path(folder).rmdir()
        if work.exists():
            note(f"{work} holds what is not known to be leanify's, and stays")

    def files(self, name: str) -> list[str]:
        """The files of a candidate, from work/ on."""
        work = self.path / WORK
        return sorted(str(file.relative_to(work)) for file in (work / name).rglob("*") if file.is_file())


def _sum(report: Any) -> str:
    return hashlib.sha256(json.dumps(report).encode()).hexdigest()


def _is_sound(name: str, found: Any) -> bool:
    """Whether a finding is of the kind that `shrink` writes under its name."""
    kind = name.partition(" ")[0]
    if kind == "seconds":
        return isinstance(found, (int, float))
    if kind == "reference" and found is None:
        return True
    if not isinstance(found, dict):
        return False
    if kind == "latency":
        return all(isinstance(one, dict) and isinstance(one.get("latency_s"), NUMBER) for one in found.values())
    if kind == "carried" and "refused" in found:
        return isinstance(found["refused"], str)
    for key, types in WRITTEN.get(kind, {}).items():
        if key not in found or not isinstance(found[key], types):
            return False
    names = [*found["files"], *found["steps"]] if kind == "carried" else []
    return all(isinstance(name, str) for name in names) and isinstance(found.get("shape", {}), dict)
