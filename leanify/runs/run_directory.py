"""A training run's directory: recipe, environment, metrics and checkpoints.

    recipe.toml        the resolved recipe, including --set settings
    leanify.json       how upstream builds the model, its architecture, and a copy of the recipe
    data.json          a fingerprint of the data: file names, sizes, sampled content
    environment.json   versions, machine, threads, command and git state; one entry per start or resume
    metrics.jsonl      one row per line: step, epoch, split, loss, metrics
    skipped.json       samples skipped under data.on_error = "skip", if any
    tokenizer.json, …  the tokenizer in Hugging Face layout, if the run trained its own
    checkpoints/STEP/  see `checkpoints`

A checkpoint's card records the length of metrics.jsonl, so that a resumed run can drop rows written after it.
Reading a run imports no torch, so that `leanify runs` and `leanify show` answer at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from leanify.errors import DirectoryError, RecipeError, SourceError, TrainingError
from leanify.runs import checkpoints, removing, writing
from leanify.runs import recipe as recipes
from leanify.runs.checkpoints import Checkpoint
from leanify.runs.files import check_regular, opened, parsed, read_json, read_text
from leanify.runs.new_directory import new_directory
from leanify.runs.places import CARD, CHECKPOINTS, RECIPE, is_run
from leanify.runs.recipe import Recipe

if TYPE_CHECKING:
    from torch import Tensor

METRICS, ENVIRONMENT = "metrics.jsonl", "environment.json"
DATA, SKIPPED = "data.json", "skipped.json"
LARGEST_LOG = 1 << 30  # bytes
T = TypeVar("T")


@dataclass(frozen=True)
class RunDirectory:
    """A run's directory; use `create` for a new run, `open` for an existing one."""

    path: Path

    @staticmethod
    def create(
        path: str | Path,
        recipe: Recipe,
        card: str,
        tokenizer: Any = None,
        data: Mapping[str, Any] | None = None,
    ) -> RunDirectory:
        """Create a run's directory atomically. Raises DirectoryError, and RecipeError for no TOML."""
        text = recipe.to_toml()
        if changes := _differences(recipe.to_dict(), recipes.parse(text).to_dict()):
            raise RecipeError(f"the recipe cannot be written as it is: {changes}")
        Path(path).absolute().parent.mkdir(parents=True, exist_ok=True)
        with new_directory(path) as folder:
            writing.write(folder / RECIPE, text)
            writing.write(folder / CARD, card)
            writing.write(folder / DATA, json.dumps(data or {}, indent=2) + "\n")
            writing.write(folder / METRICS, "")
            writing.write(folder / ENVIRONMENT, "[]\n")
            if tokenizer is not None:
                tokenizer.save_pretrained(folder)
            (folder / CHECKPOINTS).mkdir()
        return RunDirectory(Path(path))

    @staticmethod
    def open(path: str | Path) -> RunDirectory:
        """Open an existing run. Raises DirectoryError if it is not a run or contains a pipe or a device."""
        if not is_run(path):
            below = sorted(card.parent for card in Path(path).glob(f"runs/*/{RECIPE}"))  # of a study
            one = f"one of its runs is {below[0]}" if below else "`leanify runs` lists the runs here"
            raise DirectoryError(f"{path} is not a run: it has no {RECIPE} with {CHECKPOINTS}/; {one}")
        check_regular(Path(path), DirectoryError, CHECKPOINTS, f"{CHECKPOINTS}/*", f"{CHECKPOINTS}/*/*")
        return RunDirectory(Path(path))

    @property
    def recipe(self) -> Recipe:
        return recipes.load(self.path / RECIPE)

    @property
    def resume_line(self) -> str:
        """The shell command that resumes the run."""
        return f"leanify train --resume {shlex.quote(str(self.path))}"

    def check_recipe(self, recipe: Recipe) -> None:
        """Raise RecipeError, listing every difference, unless the run was started with this recipe."""
        if changes := _differences(self.recipe.to_dict(), recipe.to_dict()):
            raise RecipeError(
                f"{self.path} was started with another recipe: {changes}; resume its own: {self.resume_line}"
            )

    def check_unedited(self) -> None:
        """Raise RecipeError if recipe.toml differs from its copy in leanify.json (old runs have none)."""
        original = self.card().get("recipe")
        if original is not None and (changes := _differences(original, self.recipe.to_dict())):
            raise RecipeError(
                f"{self.path / RECIPE} was edited after the run started: {changes}. Undo that, or start a new run "
                f"with it: leanify train {shlex.quote(str(self.path / RECIPE))}"
            )

    def card(self) -> dict[str, Any]:
        """The contents of leanify.json; {} if it is missing or damaged."""
        return _json(self.path / CARD, dict) or {}

    @property
    def classes(self) -> list[str]:
        """Class names in the order of the model's outputs; [] if the run did not record them."""
        found = self.card().get("classes")
        return list(map(str, found)) if isinstance(found, list) else []

    @property
    def is_older(self) -> bool:
        """Whether the run predates the copy of its recipe; data subsets were then the first ones."""
        card = self.card()
        return bool(card) and "recipe" not in card

    def mend_card(self, card: Callable[[Recipe], str]) -> str | None:
        """Write leanify.json anew if it is missing or damaged. Returns a message in that case, else None."""
        if self.card():
            return None
        with self._written(CARD):
            writing.write(self.path / CARD, card(self.recipe))
        return f"{self.path / CARD} was missing or damaged and has been rewritten"

    # -- the data ----------

    def data(self) -> dict[str, Any]:
        """The fingerprint of the data that the run started with; {} if unknown."""
        return _json(self.path / DATA, dict) or {}

    def note_data(self, facts: Mapping[str, Any]) -> None:
        self._put(DATA, facts)

    def _put(self, name: str, value: Any) -> None:
        """Write a JSON file of the run. Raises TrainingError."""
        with self._written(name):
            writing.write(self.path / name, json.dumps(value, indent=2) + "\n")

    def skipped(self) -> list[str]:
        """The skipped samples, each described by file, row and problem."""
        return _json(self.path / SKIPPED, list) or []

    def note_skipped(self, names: Iterable[str]) -> None:
        """Record skipped samples, each once."""
        if more := sorted({*self.skipped(), *names}):
            self._put(SKIPPED, more)

    # -- who writes ----------

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Lock the run, until this process ends at the latest. Raises DirectoryError if another writes it."""
        writing.check_folder(self.path / CHECKPOINTS)
        with opened(self.path / RECIPE, DirectoryError) as file:
            if not writing.locked(file.fileno()):
                raise DirectoryError(f"{self.path} is being written by another process")
            yield

    @contextlib.contextmanager
    def _written(self, name: str) -> Iterator[None]:
        """Turn an OSError while writing a file of the run into a TrainingError that says how to resume."""
        try:
            yield
        except OSError as error:
            reason = error.strerror or error
            raise TrainingError(f"{self.path / name} could not be written: {reason}; {self._kept()}") from error

    def _kept(self) -> str:
        """How to continue after an error, for its message."""
        known = self.checkpoints()
        if not known:
            return "there is no checkpoint yet"
        return f"the checkpoint of step {known[-1].step} is complete; resume with: {self.resume_line}"

    def is_held(self) -> bool:
        """Whether a process is writing to the run now."""
        with opened(self.path / RECIPE, DirectoryError) as file:
            return not writing.locked(file.fileno())

    # -- the log ----------

    def append(self, row: Mapping[str, Any]) -> None:
        """Append one row to metrics.jsonl. Raises TrainingError if it cannot be written."""
        with self._written(METRICS), writing.appending(self.path / METRICS) as file:
            file.write(json.dumps(row) + "\n")

    def rows(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl, without an incomplete last line. Raises DirectoryError."""
        path = self.path / METRICS
        lines = read_text(path, DirectoryError, LARGEST_LOG).splitlines(keepends=True)
        return [_row(path, number, line) for number, line in enumerate(lines, 1) if line.endswith("\n")]

    def lost_rows(self, length: int) -> str | None:
        """What is wrong with the first ``length`` bytes of metrics.jsonl; None if they are valid rows."""
        try:
            with opened(self.path / METRICS, DirectoryError) as file:
                text = file.read(min(length, LARGEST_LOG))
        except (OSError, DirectoryError) as error:
            return f"{METRICS}: {error}"
        if len(text) < length:
            return f"{METRICS} has only {len(text):,} of its {length:,} bytes"
        try:
            for number, line in enumerate(text.decode().splitlines(keepends=True), 1):
                _row(self.path / METRICS, number, line)
        except (DirectoryError, UnicodeDecodeError):
            return f"{METRICS} has changed since it was written"
        return None

    def summary(self) -> dict[str, Any]:
        """The run's results: last evaluation, best checkpoint, test metrics if any, skipped samples."""
        last: dict[str, Any] = {}
        tested: dict[str, Any] = {}
        for row in self.rows():
            if row["split"] == "validation":
                last = row
            elif row["split"] == "test":
                tested = row
        best, skipped = self.best(), self.skipped()
        facts = {"run": str(self.path), **{key: value for key, value in last.items() if key != "split"}}
        if best is not None:
            facts |= {"best_step": best.step, "best_checkpoint": str(best.path)}
        if skipped:
            facts["skipped"] = len(skipped)
        for key, value in tested.items():
            if key not in ("step", "epoch", "split", "samples_per_s"):
                facts[f"test_{key}"] = value
        return facts

    def forget_after(self, found: Checkpoint | None) -> list[str]:
        """Delete everything after a checkpoint (all for None): rows, checkpoints, and leftovers of a kill.

        What leanify did not write stays. Returns messages about what therefore was renamed. Call it in
        `held`.
        """
        last, messages = found.step if found else -1, []
        with self._written(METRICS):
            writing.shorten(self.path / METRICS, found.rows if found else 0)
        with self._written(CHECKPOINTS):
            writing.remove_litter(self.path, settling=0)
            for folder in sorted((self.path / CHECKPOINTS).iterdir()):
                if removing.is_unfinished(folder.name) and removing.is_own(folder):
                    shutil.rmtree(folder)
                elif removing.is_step(folder.name) and (int(folder.name) > last or Checkpoint.read(folder) is None):
                    messages.append(removing.take_away(folder))
        return [message for message in messages if message is not None]

    def note_environment(self, **facts: Any) -> list[str]:
        """Record this process's environment. Returns warnings of differences from the first start."""
        from leanify import machine

        path, warnings = self.path / ENVIRONMENT, []
        entries = _json(path, list)
        if entries is None or not all(isinstance(entry, dict) for entry in entries):
            warnings.append(f"{path} was missing or damaged and has been started afresh")
            entries = []
        entries.append(machine.environment() | facts)
        self._put(ENVIRONMENT, entries)
        first, now = entries[0], entries[-1]
        changes = []
        for key in ("versions", "threads", "processes", "device"):
            if first.get(key) != now.get(key):
                changes.append(f"{key}: {first.get(key)} → {now.get(key)}")
        if changes:
            words = "; ".join(changes)
            warnings.append(f"results may differ in the last bits, because the environment changed: {words}")
        return warnings

    # -- checkpoints ----------

    @property
    def length(self) -> int:
        """The size of metrics.jsonl in bytes."""
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
        """Write a checkpoint and return its folder; one that exists for this step is kept.

        ``rows`` is the length in bytes of metrics.jsonl that belongs to it (default: its current size).
        ``parts`` are sharded tensors, of which every process writes its own rows; then every process must
        call this. Raises TrainingError if writing fails.
        """
        from leanify.runs import checkpoint_writing

        target = self.path / CHECKPOINTS / f"{step:08d}"
        if target.is_dir():
            return target
        try:
            rows = self.length if rows is None else rows
            with opened(self.path / METRICS, DirectoryError) as file:
                os.fsync(file.fileno())
            facts = {"step": step, "rows": rows, "score": score, "metrics": dict(metrics)}
            if parts is None:
                checkpoint_writing.write(target, tensors, state, facts)
            else:
                checkpoint_writing.write_together(target, tensors, parts, state, facts)
        except OSError as error:
            reason = error.strerror or str(error)
            raise TrainingError(
                f"the checkpoint of step {step} could not be written: {reason}; {self._kept()}"
            ) from error
        return target

    def prune(self, keep: int) -> None:
        """Delete all but the last ``keep`` checkpoints and the best one; 0 keeps all."""
        found = self.checkpoints()
        best = self.best()
        for old in found[:-keep] if keep else []:
            if best is None or old.step != best.step:
                with self._written(CHECKPOINTS):
                    removing.remove(old.path)

    def checkpoints(self) -> list[Checkpoint]:
        """Complete checkpoints in order of step, judged by their cards alone (checksums are not verified)."""
        found = map(Checkpoint.read, self._steps())
        return [checkpoint for checkpoint in found if checkpoint is not None]

    def _steps(self) -> list[Path]:
        """The folders that have a checkpoint's name, in order of step."""
        return sorted(folder for folder in (self.path / CHECKPOINTS).iterdir() if removing.is_step(folder.name))

    def newest(self) -> tuple[Checkpoint | None, list[str]]:
        """The newest intact checkpoint, None before the first, and what is wrong with later ones.

        Raises DirectoryError if there are checkpoints but none is intact.
        """
        complaints: list[str] = []
        for folder in reversed(self._steps()):
            found = Checkpoint.read(folder)
            reason: str | None = f"{checkpoints.CARD} is damaged"
            if found is not None:
                reason = found.broken() or self.lost_rows(found.rows)
            if reason is None:
                return found, complaints
            complaints.append(f"the checkpoint of step {int(folder.name)} is damaged ({reason})")
        if complaints:
            raise DirectoryError(f"{self.path} has no checkpoint to resume from: {'; '.join(complaints)}")
        return None, []

    def best(self) -> Checkpoint | None:
        """The checkpoint with the best score, else the last one; None if there is none."""
        found = self.checkpoints()
        scored = [checkpoint for checkpoint in found if checkpoint.score is not None]
        if not scored:
            return found[-1] if found else None
        return max(scored, key=lambda checkpoint: checkpoint.score or 0.0)


def leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Flatten nested tables to (``section.key``, value) pairs."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """List every key whose value differs, as ``key: old → new``; ``""`` if none does."""
    before, after = dict(leaves(old)), dict(leaves(new))
    changed = [key for key in {**before, **after} if before.get(key) != after.get(key)]
    return "; ".join(f"{key}: {before.get(key, 'unset')} → {after.get(key, 'unset')}" for key in changed)


def _json(path: Path, kind: type[T]) -> T | None:
    """Parse a small JSON file; None if it is missing, damaged, or of another kind."""
    try:
        found = read_json(path)
    except SourceError:
        return None
    return found if isinstance(found, kind) else None


def _row(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        found = parsed(line)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise DirectoryError(f"{path}, line {number} is not a JSON object: {line[:40]!r}")
    what = "" if {"step", "split"} <= found.keys() else "it lacks step or split"
    for name, value in reversed(found.items()):
        kinds = {"step": (int,), "split": (str,)}.get(name, (int, float))
        if type(value) not in kinds:
            what = f"{name} is no {kinds[-1].__name__}"
    if what:
        raise DirectoryError(f"{path}, line {number} is no row of a run: {what}, in {line[:40]!r}")
    return found
