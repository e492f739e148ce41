"""A run's folder: what was asked, where it ran, what it measured, and checkpoints that survive anything.

    recipe.toml        as resolved, settings included
    leanify.json       how upstream builds the model, its architecture in leanify's words, and the recipe once more
    data.json          a fingerprint of the data: file names, sizes, sampled content
    environment.json   versions, machine, threads, command and git state, one entry each time the run was started
    metrics.jsonl      one row a line: step, epoch, split, loss, metrics
    skipped.json       the samples that data.on_error = "skip" has skipped, if any
    tokenizer.json     and what belongs to it, in Hugging Face layout, where the run has a tokenizer of its own
    checkpoints/STEP/  see `checkpoints`

A checkpoint's card holds the length that metrics.jsonl had, so that a resumed run drops the rows that came after.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from leanify import machine
from leanify.errors import DirectoryError, RecipeError, SourceError, TrainingError
from leanify.lens import surgery
from leanify.sources import checkpoints, lean_directory
from leanify.sources import recipe as recipes
from leanify.sources.checkpoints import Checkpoint, write_small
from leanify.sources.files import check_regular
from leanify.sources.recipe import Recipe
from leanify.upstream.origin import origin_of

RECIPE, METRICS, ENVIRONMENT, CHECKPOINTS = "recipe.toml", "metrics.jsonl", "environment.json", "checkpoints"
DATA, SKIPPED = "data.json", "skipped.json"


def is_run(path: str | Path) -> bool:
    return (Path(path) / RECIPE).is_file() and (Path(path) / CHECKPOINTS).is_dir()


@dataclass(frozen=True)
class RunDirectory:
    """A run's folder, made by `create` or found by `open`."""

    path: Path

    @staticmethod
    def create(
        path: str | Path,
        recipe: Recipe,
        model: nn.Module,
        tokenizer: Any = None,
        data: Mapping[str, Any] | None = None,
        classes: Sequence[str] = (),
    ) -> RunDirectory:
        """A new folder, complete or not there at all. Raises DirectoryError.

        ``data`` is the data's fingerprint, ``classes`` are the names of its classes.
        """
        card = card_of(recipe, model, classes)
        Path(path).absolute().parent.mkdir(parents=True, exist_ok=True)
        with lean_directory.new_directory(path) as folder:
            (folder / RECIPE).write_text(recipe.to_toml(), encoding="utf-8")
            (folder / lean_directory.CARD).write_text(card)
            (folder / DATA).write_text(json.dumps(data or {}, indent=2) + "\n")
            (folder / METRICS).touch()
            (folder / ENVIRONMENT).write_text("[]\n")
            if tokenizer is not None:
                tokenizer.save_pretrained(folder)
            (folder / CHECKPOINTS).mkdir()
        return RunDirectory(Path(path))

    @staticmethod
    def open(path: str | Path) -> RunDirectory:
        """A run that is there. Raises DirectoryError."""
        if not is_run(path):
            raise DirectoryError(
                f"{path} is no run: it has no {RECIPE} with {CHECKPOINTS}/ beside it; leanify runs lists those here"
            )
        check_regular(Path(path), DirectoryError, below=True)
        return RunDirectory(Path(path))

    @property
    def recipe(self) -> Recipe:
        return recipes.load(self.path / RECIPE)

    @property
    def resume_line(self) -> str:
        """The command that goes on with the run."""
        return f"leanify train --resume {shlex.quote(str(self.path))}"

    def check_recipe(self, recipe: Recipe) -> None:
        """Raise RecipeError, with every difference, unless the run was begun with this recipe."""
        if words := _differences(self.recipe.to_dict(), recipe.to_dict()):
            raise RecipeError(f"{self.path} was begun with another recipe, so it cannot be resumed with this: {words}")

    def check_unedited(self) -> None:
        """Raise RecipeError where recipe.toml is not what the run was begun with, as far as the run still knows."""
        begun = self.card().get("recipe")
        if begun is not None and (words := _differences(begun, self.recipe.to_dict())):
            raise RecipeError(
                f"{self.path / RECIPE} was edited since the run was begun: {words}. Undo that, or begin another run "
                f"with it: leanify train {shlex.quote(str(self.path / RECIPE))}"
            )

    def card(self) -> dict[str, Any]:
        """What leanify.json holds; nothing where it is lost or damaged."""
        found = _json(self.path / lean_directory.CARD)
        return found if isinstance(found, dict) else {}

    @property
    def classes(self) -> list[str]:
        """The names of the classes, in the order of the model's outputs; none where the run does not know them."""
        found = self.card().get("classes")
        return list(map(str, found)) if isinstance(found, list) else []

    @property
    def is_older(self) -> bool:
        """Whether the run was begun before runs kept their recipe twice; subsets of its data are the first samples."""
        card = self.card()
        return bool(card) and "recipe" not in card

    def mend_card(self, model: nn.Module, classes: Sequence[str] = ()) -> str | None:
        """Write leanify.json again where it is lost or damaged, and say so."""
        if self.card():
            return None
        with self._written(lean_directory.CARD):
            write_small(self.path / lean_directory.CARD, card_of(self.recipe, model, classes))
        return f"{self.path / lean_directory.CARD} was missing or damaged and is written again"

    # -- the data -----------------------------------------------------------------------------------------------------

    def data(self) -> dict[str, Any]:
        """The fingerprint of the data that the run was begun on; empty where none is known."""
        found = _json(self.path / DATA)
        return found if isinstance(found, dict) else {}

    def note_data(self, facts: Mapping[str, Any]) -> None:
        with self._written(DATA):
            write_small(self.path / DATA, json.dumps(facts, indent=2) + "\n")

    def skipped(self) -> list[str]:
        """The samples that were skipped, each as the file, the row and what was found there."""
        found = _json(self.path / SKIPPED)
        return found if isinstance(found, list) else []

    def note_skipped(self, names: Iterable[str]) -> None:
        """Add samples that were skipped, each once."""
        known = self.skipped()
        if more := sorted({*known, *names}):
            with self._written(SKIPPED):
                write_small(self.path / SKIPPED, json.dumps(more, indent=2) + "\n")

    # -- who writes ---------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes from writing to the run; the kernel ends this however this process ends."""
        import fcntl  # Unix alone

        with (self.path / RECIPE).open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise DirectoryError(f"{self.path} is being written by another process") from None
            yield

    @contextlib.contextmanager
    def _written(self, name: str) -> Iterator[None]:
        """Raise TrainingError where a file of the run cannot be written."""
        try:
            yield
        except OSError as error:
            reason = error.strerror or error
            raise TrainingError(f"{self.path / name} could not be written: {reason}; {self._kept()}") from error

    def _kept(self) -> str:
        """From where the run goes on."""
        known = self.checkpoints()
        if not known:
            return "there is no checkpoint yet"
        return f"the checkpoint of step {known[-1].step} is complete; go on with: {self.resume_line}"

    def is_held(self) -> bool:
        """Whether a process is writing to the run now."""
        try:
            with self.held():
                return False
        except DirectoryError:
            return True

    # -- the log ------------------------------------------------------------------------------------------------------

    def append(self, row: Mapping[str, Any]) -> None:
        """Add one row to metrics.jsonl."""
        with self._written(METRICS), self.path.joinpath(METRICS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def rows(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl; a last one that was cut off is left out. Raises DirectoryError."""
        path = self.path / METRICS
        try:
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        except (OSError, UnicodeDecodeError) as error:
            raise DirectoryError(f"{path} cannot be read: {error}") from error
        return [_row(path, number, line) for number, line in enumerate(lines, 1) if line.endswith("\n")]

    def lost_rows(self, length: int) -> str | None:
        """What is wrong with the first ``length`` bytes of metrics.jsonl; None where they are rows as written."""
        try:
            with (self.path / METRICS).open("rb") as file:
                text = file.read(length)
        except OSError as error:
            return f"{METRICS}: {error.strerror}"
        if len(text) < length:
            return f"{METRICS} has {len(text):,} bytes of the {length:,} that it had"
        try:
            for number, line in enumerate(text.decode().splitlines(keepends=True), 1):
                _row(self.path / METRICS, number, line)
        except (DirectoryError, UnicodeDecodeError):
            return f"{METRICS} is not what was written"
        return None

    def summary(self) -> dict[str, Any]:
        """The results: the last evaluation, the best one's checkpoint, the test split's if any, and skipped samples."""
        rows = self.rows()
        last: dict[str, Any] = next((row for row in reversed(rows) if row["split"] == "validation"), {})
        tested: dict[str, Any] = next((row for row in reversed(rows) if row["split"] == "test"), {})
        best = self.best()
        facts = {"run": str(self.path), **{key: value for key, value in last.items() if key != "split"}}
        facts |= {"best_step": best.step, "best_checkpoint": str(best.path)} if best is not None else {}
        facts |= {"skipped": len(skipped)} if (skipped := self.skipped()) else {}
        apart = ("step", "epoch", "split", "samples_per_s")
        return facts | {f"test_{key}": value for key, value in tested.items() if key not in apart}

    def forget_after(self, found: Checkpoint | None) -> None:
        """Drop what was written after a checkpoint: later rows, later checkpoints, and what a killed process left."""
        with self._written(CHECKPOINTS):
            os.truncate(self.path / METRICS, found.rows if found else 0)
            for folder in (self.path / CHECKPOINTS).iterdir():
                if not folder.name.isdigit():
                    shutil.rmtree(folder)
                elif int(folder.name) > (found.step if found else -1) or Checkpoint.read(folder) is None:
                    checkpoints.remove(folder)

    def note_environment(self, **facts: Any) -> list[str]:
        """Add where this process runs. Returns warnings: what differs from where the run was begun."""
        path, warnings = self.path / ENVIRONMENT, []
        entries = _json(path)
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            warnings.append(f"{path} was missing or damaged and is begun again")
            entries = []
        entries.append(machine.environment() | facts)
        with self._written(ENVIRONMENT):
            write_small(path, json.dumps(entries, indent=2) + "\n")
        first, now = entries[0], entries[-1]
        other = [key for key in ("versions", "threads", "processes", "device") if first.get(key) != now.get(key)]
        if other:
            words = "; ".join(f"{key}: {first.get(key)} → {now.get(key)}" for key in other)
            warnings.append(f"not where the run was begun, so bits may differ: {words}")
        return warnings

    # -- checkpoints --------------------------------------------------------------------------------------------------

    @property
    def length(self) -> int:
        """The bytes of metrics.jsonl."""
        return (self.path / METRICS).stat().st_size

    def save(
        self,
        step: int,
        tensors: Mapping[str, Tensor],
        state: Mapping[str, Any],
        score: float | None,
        metrics: Mapping[str, float],
        rows: int | None = None,
        parts: Mapping[str, Tensor] | None = None,
    ) -> Path:
        """Write a checkpoint. ``rows``: the length of metrics.jsonl that belongs to it, else as it is now.

        ``parts``: what several processes write together, each its own rows; then all of them call this.
        Raises TrainingError where the disk does not take it.
        """
        target = self.path / CHECKPOINTS / f"{step:08d}"
        if target.is_dir():
            return target
        try:
            rows = self.length if rows is None else rows
            with (self.path / METRICS).open("rb") as file:
                os.fsync(file.fileno())
            facts = {"step": step, "rows": rows, "score": score, "metrics": dict(metrics)}
            if parts is None:
                checkpoints.write(target, tensors, state, facts)
            else:
                checkpoints.write_together(target, tensors, parts, state, facts)
        except OSError as error:
            reason = error.strerror or str(error)
            raise TrainingError(
                f"the checkpoint of step {step} could not be written: {reason}; {self._kept()}"
            ) from error
        return target

    def prune(self, keep: int) -> None:
        """Leave the last ``keep`` checkpoints and the best one; all of them for 0."""
        found = self.checkpoints()
        best = self.best()
        for old in found[:-keep] if keep else []:
            if best is None or old.step != best.step:
                with self._written(CHECKPOINTS):
                    checkpoints.remove(old.path)

    def checkpoints(self) -> list[Checkpoint]:
        """The complete ones, by step; their files are not read."""
        folders = sorted(folder for folder in (self.path / CHECKPOINTS).iterdir() if folder.name.isdigit())
        return [found for folder in folders if (found := Checkpoint.read(folder)) is not None]

    def newest(self) -> tuple[Checkpoint | None, list[str]]:
        """The newest checkpoint that is intact, None where the run had none yet; and what is wrong with later ones."""
        complaints: list[str] = []
        known = {found.path.name: found for found in self.checkpoints()}
        names = sorted(folder.name for folder in (self.path / CHECKPOINTS).iterdir() if folder.name.isdigit())
        for name in reversed(names):
            reason: str | None = f"{checkpoints.CARD} is damaged"
            if name in known:
                reason = known[name].broken() or self.lost_rows(known[name].rows)
            if reason is None:
                return known[name], complaints
            complaints.append(f"the checkpoint of step {int(name)} is damaged ({reason})")
        if complaints:
            raise DirectoryError(f"{self.path} has no checkpoint to go on from: {'; '.join(complaints)}")
        return None, []

    def best(self) -> Checkpoint | None:
        """The checkpoint of the best evaluation, else the last one; None before the first."""
        found = self.checkpoints()
        scored = [entry for entry in found if entry.score is not None]
        if scored:
            return max(scored, key=lambda entry: entry.score or 0.0)
        return found[-1] if found else None


def card_of(recipe: Recipe, model: nn.Module, classes: Sequence[str] = ()) -> str:
    """leanify.json of a run. Raises SourceError for a model of nobody's."""
    origin = origin_of(model)
    if origin is None:
        raise SourceError(f"nothing is known of how upstream built this {type(model).__name__}")
    card = {
        "format": lean_directory.FORMAT,
        "origin": vars(origin),
        "architecture": surgery.read(model).to_json(),
        "tied": lean_directory.untied(model)[1],
        "requires": lean_directory.requirements(origin),
        "recipe": recipe.to_dict(),
        "classes": list(classes),
    }
    return json.dumps(card, indent=2) + "\n"


def leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """section.key and value of everything in nested tables."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Every key whose value differs, old → new."""
    before, after = dict(leaves(old)), dict(leaves(new))
    changed = [key for key in {**before, **after} if before.get(key) != after.get(key)]
    return "; ".join(f"{key}: {before.get(key, 'unset')} → {after.get(key, 'unset')}" for key in changed)


def _json(path: Path) -> Any:
    """What a small JSON file holds; None where it is missing or damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None


def _row(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise DirectoryError(f"{path}, line {number} is no row of JSON: {line[:40]!r}")
    return found
