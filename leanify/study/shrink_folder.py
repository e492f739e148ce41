"""The folder of a `shrink`: what was found so far, and at the end the model itself.

shrink.json   what was asked for and every finding, written after each; the same command goes on from here
work/NAME     a candidate with its carried weights, a lean directory
work/NAME-run the run that heals it
report.json   the result; with it stand the model's own files, and work/ is gone
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from leanify.errors import DirectoryError
from leanify.runs import writing
from leanify.runs.files import read_json
from leanify.runs.new_directory import check_new_directory
from leanify.runs.places import CARD

STATE, REPORT, WORK = "shrink.json", "report.json", "work"


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
        if not isinstance(state, dict) or not isinstance(state.get("found"), dict):
            raise DirectoryError(f"{path / STATE} is damaged; remove {path} to begin anew")
        before = state.get("asked", {})
        now = json.loads(json.dumps(asked))
        changed = [f"{key}: {before.get(key)} → {now.get(key)}" for key in now if before.get(key) != now.get(key)]
        if changed:
            raise DirectoryError(f"{path} was begun with other options ({'; '.join(changed)}); name another -o")
        return ShrinkFolder(path, asked, state["found"])

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
        writing.check_folder(work)
        work.mkdir(exist_ok=True)
        return work / name

    @property
    def report(self) -> dict[str, Any] | None:
        """The result, once there is one."""
        file = self.path / REPORT
        found: dict[str, Any] | None = read_json(file, DirectoryError) if file.is_file() else None
        return found

    def finish(self, model: Path, report: Mapping[str, Any]) -> None:
        """Put the files of ``model``, a lean directory in work/, into the folder itself: the card last."""
        names = sorted((file.name for file in model.iterdir()), key=lambda name: (name == CARD, name))
        try:
            for name in names:
                target = self.path / name
                if target.is_dir():
                    shutil.rmtree(target)
                (model / name).rename(target)
            self._write(REPORT, report)
            shutil.rmtree(self.path / WORK)
        except OSError as error:
            raise DirectoryError(f"{self.path} could not be written: {error.strerror or error}") from error
