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
import re
import shlex
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from leanify.core import recipe as recipes
from leanify.core.errors import DirectoryError, RecipeError, SourceError, TrainingError
from leanify.core.files import writing
from leanify.core.files.reading import check_regular, open_file, parse_json, read_json, read_text
from leanify.core.files.writing import METRICS as METRICS
from leanify.core.files.writing import new_directory
from leanify.core.path_kinds import CARD, CHECKPOINTS, RECIPE, check_format, is_run
from leanify.core.recipe import Recipe
from leanify.runs import checkpoints
from leanify.runs.checkpoints import Checkpoint

if TYPE_CHECKING:
    from torch import Tensor

ENVIRONMENT = "environment.json"
DATA_FILE, SKIPPED_FILE = "data.json", "skipped.json"
LARGEST_LOG = 1 << 28  # bytes: a million rows
FILES = re.compile(  # names of a run's files, and of a tokenizer that was trained for it
    r"recipe\.toml|leanify\.json|data\.json|environment\.json|metrics\.jsonl|skipped\.json|kappa\.json|"
    r"outcomes\.safetensors|tokenizer.*\.json|special_tokens_map\.json|added_tokens\.json|vocab\.(txt|json)|merges\.txt"
)
T = TypeVar("T")


@dataclass(frozen=True)
class RunDirectory:
    """A run's directory; use `create` for a new run, `open` for an existing one."""

    path: Path

    @staticmethod
    def create(
        path: str | Path, recipe: Recipe, card: str, tokenizer: Any = None, data: Mapping[str, Any] | None = None
    ) -> RunDirectory:
        """Create a run's directory atomically. Raises DirectoryError, and RecipeError for no TOML."""
        # the file must read back to the same recipe, or a resume would train another one
        text = recipe.to_toml()
        if changes := list_differences(recipe.to_dict(), recipes.parse(text).to_dict()):
            raise RecipeError(f"the recipe cannot be written as it is: {'; '.join(changes)}")
        # a temporary folder, renamed once all of it is written
        with new_directory(path) as folder:
            writing.write(folder / RECIPE, text)
            writing.write(folder / CARD, card)
            writing.write(folder / DATA_FILE, json.dumps(data or {}, indent=2) + "\n")
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
            runs_inside = sorted(card.parent for card in Path(path).glob(f"runs/*/{RECIPE}"))  # of a study
            hint = f"one of its runs is {runs_inside[0]}" if runs_inside else "`leanify runs` lists the runs here"
            raise DirectoryError(f"{path} is not a run: it has no {RECIPE} with {CHECKPOINTS}/; {hint}")
        check_regular(Path(path), DirectoryError, CHECKPOINTS, f"{CHECKPOINTS}/*", f"{CHECKPOINTS}/*/*")
        run = RunDirectory(Path(path))
        check_format(run.card(), run.path)
        return run

    @cached_property
    def recipe(self) -> Recipe:
        return recipes.load(self.path / RECIPE)

    @property
    def resume_line(self) -> str:
        """The shell command that resumes the run."""
        return f"leanify train --resume {shlex.quote(str(self.path))}"

    def check_recipe(self, recipe: Recipe) -> None:
        """Raise RecipeError, listing every difference, unless the run was started with this recipe."""
        if changes := list_differences(self.recipe.to_dict(), recipe.to_dict()):
            text = f"{self.path} was started with another recipe: {'; '.join(changes)}"
            raise RecipeError(f"{text}; resume its own: {self.resume_line}")

    def check_unedited(self) -> None:
        """Raise RecipeError if recipe.toml differs from its copy in leanify.json, where there is one."""
        original = self.card().get("recipe")
        if original is not None and (changes := list_differences(original, self.recipe.to_dict())):
            raise RecipeError(
                f"{self.path / RECIPE} was edited after the run started: {'; '.join(changes)}. Undo that, or start a "
                f"new run with it: leanify train {shlex.quote(str(self.path / RECIPE))}"
            )

    def card(self) -> dict[str, Any]:
        """The contents of leanify.json; {} if it is missing or damaged."""
        return _json(self.path / CARD, dict) or {}

    @property
    def classes(self) -> list[str]:
        """Class names in the order of the model's outputs; [] if the run did not record them."""
        names = self.card().get("classes")
        return list(map(str, names)) if isinstance(names, list) else []

    def mend_card(self, card: Callable[[Recipe], str]) -> str | None:
        """Write leanify.json again if it is missing or damaged. Returns a message in that case, otherwise None."""
        if self.card():
            return None
        with self._write_guarded(self.path / CARD):
            writing.write(self.path / CARD, card(self.recipe))
        return f"{self.path / CARD} was missing or damaged and has been rewritten"

    # -- the data ----------

    def data(self) -> dict[str, Any]:
        """The fingerprint of the data that the run started with; {} if unknown."""
        return _json(self.path / DATA_FILE, dict) or {}

    def note_data(self, facts: Mapping[str, Any]) -> None:
        self._write_json(DATA_FILE, facts)

    def _write_json(self, name: str, value: Any) -> None:
        with self._write_guarded(self.path / name):
            writing.write(self.path / name, json.dumps(value, indent=2) + "\n")

    def skipped_samples(self) -> list[str]:
        """The skipped samples, each described by file, row and problem."""
        return _json(self.path / SKIPPED_FILE, list) or []

    def note_skipped(self, names: Iterable[str]) -> None:
        """Record skipped samples, each once."""
        if all_names := sorted({*self.skipped_samples(), *names}):
            self._write_json(SKIPPED_FILE, all_names)

    # -- who writes ----------

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the run, until this process ends at the latest. Raises DirectoryError if another writes it."""
        writing.check_folders(self.path / CHECKPOINTS)
        with open_file(self.path / RECIPE, DirectoryError) as file:
            if not writing.try_lock(file.fileno()):
                raise DirectoryError(f"{self.path} is being written by another process")
            yield

    @contextlib.contextmanager
    def _write_guarded(self, what: Path | str) -> Iterator[None]:
        """Turn an OSError while writing a part of the run into a TrainingError that says how to resume."""
        try:
            yield
        except OSError as error:
            rest = "there is no checkpoint yet"
            if complete := self.checkpoints():
                rest = f"the checkpoint of step {complete[-1].step} is complete; resume with: {self.resume_line}"
            raise TrainingError(f"{what} could not be written: {error.strerror or error}; {rest}") from error

    def is_locked(self) -> bool:
        """Whether a process is writing to the run now."""
        with open_file(self.path / RECIPE, DirectoryError) as file:
            return not writing.try_lock(file.fileno())

    # -- the log ----------

    def append(self, row: Mapping[str, Any]) -> None:
        """Append one row to metrics.jsonl. Raises TrainingError if it cannot be written."""
        with self._write_guarded(self.path / METRICS), writing.open_append(self.path / METRICS) as file:
            file.write(json.dumps(row) + "\n")

    def rows(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl, without an incomplete last line. Raises DirectoryError."""
        path = self.path / METRICS
        lines = read_text(path, DirectoryError, LARGEST_LOG).splitlines(keepends=True)
        return [_row(path, number, line) for number, line in enumerate(lines, 1) if line.endswith("\n")]

    def lost_rows(self, length: int) -> str | None:
        """Describe the damage in the first ``length`` bytes of metrics.jsonl; None if they are valid rows."""
        # the log as long as it was when the checkpoint was written
        try:
            with open_file(self.path / METRICS, DirectoryError) as file:
                text = file.read(min(length, LARGEST_LOG))
        except (OSError, DirectoryError) as error:
            return f"{METRICS}: {error}"
        if len(text) < length:
            return f"{METRICS} has only {len(text):,} of its {length:,} bytes"
        # every line of it must still be a row
        try:
            for number, line in enumerate(text.decode().splitlines(keepends=True), 1):
                _row(self.path / METRICS, number, line)
        except (DirectoryError, UnicodeDecodeError):
            return f"{METRICS} has changed since it was written"
        return None

    def summary(self) -> dict[str, Any]:
        """The run's results: last evaluation, best checkpoint, test metrics if any, skipped samples."""
        last = {row["split"]: row for row in self.rows()}
        facts = {"run": str(self.path), **last.get("validation", {})}
        facts.pop("split", None)
        # the best checkpoint, which the run's user loads
        if (best := self.best()) is not None:
            facts |= {"best_step": best.step, "best_checkpoint": str(best.path)}
        if skipped_samples := self.skipped_samples():
            facts["skipped"] = len(skipped_samples)
        # test metrics, under names of their own
        for key, value in last.get("test", {}).items():
            if key not in ("step", "epoch", "split", "samples_per_s"):
                facts[f"test_{key}"] = value
        return facts

    def discard_later_rows(self, checkpoint: Checkpoint | None) -> list[str]:
        """Delete everything after a checkpoint (all for None): rows, checkpoints, and leftovers of a kill.

        What leanify did not write stays. Returns messages about what therefore was renamed. Call it in
        `lock`.
        """
        last, length, messages = -1, 0, []
        if checkpoint:
            last, length = checkpoint.step, checkpoint.rows
        with self._write_guarded(self.path / METRICS):
            writing.truncate_file(self.path / METRICS, length)
        with self._write_guarded(self.path / CHECKPOINTS):
            writing.remove_litter(self.path)
            for folder in sorted((self.path / CHECKPOINTS).iterdir()):
                if checkpoints.is_unfinished(folder.name) and checkpoints.is_removable(folder):
                    shutil.rmtree(folder)
                elif checkpoints.is_step(folder.name) and (int(folder.name) > last or Checkpoint.read(folder) is None):
                    messages.append(checkpoints.remove_or_rename(folder))
        return [message for message in messages if message is not None]

    def note_environment(self, **facts: Any) -> list[str]:
        """Record this process's environment. Returns warnings of differences from the first start."""
        from leanify.core import machine

        path, warnings = self.path / ENVIRONMENT, []
        # one entry for each start or resume of the run
        entries = _json(path, list)
        if entries is None or not all(isinstance(entry, dict) for entry in entries):
            warnings.append(f"{path} was missing or damaged and has been started afresh")
            entries = []
        entries.append(machine.environment() | facts)
        self._write_json(ENVIRONMENT, entries)
        # what differs between the first start and this one
        first, now = entries[0], entries[-1]
        changes = []
        for key in ("versions", "threads", "processes", "device"):
            if first.get(key) != now.get(key):
                changes.append(f"{key}: {first.get(key)} → {now.get(key)}")
        if changes:
            text = "; ".join(changes)
            warnings.append(f"results may differ in the last bits, because the environment changed: {text}")
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
        rows: int,
        shards: Mapping[str, Tensor] | None = None,
    ) -> Path:
        """Write a checkpoint and return its folder; one that exists for this step is kept.

        ``rows`` is the length in bytes of metrics.jsonl that belongs to it. ``shards`` are sharded tensors, of which
        every process writes its own rows; then every process must call this. Raises TrainingError if writing fails.
        """
        from leanify.runs import checkpoint_writing

        # a checkpoint that exists is complete: it got its name last
        target = self.path / CHECKPOINTS / f"{step:08d}"
        if target.is_dir():
            return target
        with self._write_guarded(f"the checkpoint of step {step}"):
            # the log reaches the disk before the card that counts its bytes
            with open_file(self.path / METRICS, DirectoryError) as file:
                os.fsync(file.fileno())
            facts = {"step": step, "rows": rows, "score": score, "metrics": dict(metrics)}
            checkpoint_writing.write(target, tensors, state, facts, shards)
        return target

    def prune(self, keep: int) -> None:
        """Delete all but the last ``keep`` checkpoints and the best one; 0 keeps all."""
        complete = self.checkpoints()
        best = self.best()
        surplus = complete[:-keep] if keep else []
        for old in surplus:
            if best is None or old.step != best.step:
                with self._write_guarded(self.path / CHECKPOINTS):
                    checkpoints.remove(old.path)

    def checkpoints(self) -> list[Checkpoint]:
        """Complete checkpoints in order of step, judged by their cards alone (checksums are not verified)."""
        candidates = map(Checkpoint.read, self._steps())
        return [checkpoint for checkpoint in candidates if checkpoint is not None]

    def _steps(self) -> list[Path]:
        """The folders that have a checkpoint's name, in order of step."""
        return sorted(folder for folder in (self.path / CHECKPOINTS).iterdir() if checkpoints.is_step(folder.name))

    def newest(self) -> tuple[Checkpoint | None, list[str]]:
        """The newest intact checkpoint, None before the first, and messages about damaged later ones.

        Raises DirectoryError if there are checkpoints but none is intact.
        """
        complaints: list[str] = []
        for folder in reversed(self._steps()):
            checkpoint = Checkpoint.read(folder)
            # judged by its card, its checksums, and the part of the log that it counts
            reason: str | None = f"{checkpoints.CARD} is damaged"
            if checkpoint is not None:
                reason = checkpoint.find_damage() or self.lost_rows(checkpoint.rows)
            if reason is None:
                return checkpoint, complaints
            complaints.append(f"the checkpoint of step {int(folder.name)} is damaged ({reason})")
        if complaints:
            raise DirectoryError(f"{self.path} has no checkpoint to resume from: {'; '.join(complaints)}")
        return None, []

    def best(self) -> Checkpoint | None:
        """The checkpoint with the best score, or the last one if none has a score; None before the first."""
        complete = self.checkpoints()
        with_score = [checkpoint for checkpoint in complete if checkpoint.score is not None]
        if not with_score:
            return complete[-1] if complete else None
        return max(with_score, key=lambda checkpoint: checkpoint.score or 0.0)


def remove_run(path: Path) -> None:
    """Remove a run; with other files than leanify's it is renamed to ``NAME.kept-…``. Raises OSError."""
    folder = path / CHECKPOINTS
    is_removable = writing.holds_only(path, FILES, folder) and not folder.is_symlink()
    if is_removable and all(map(checkpoints.is_removable, folder.iterdir())):
        writing.remove_folder(path, aside=writing.temp_path(path))
    else:
        writing.keep_aside(path)


def leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Flatten nested tables to (``section.key``, value) pairs."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def list_differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """List every key of nested tables whose value differs, as ``key: old → new``."""
    before, after = dict(leaves(old)), dict(leaves(new))
    keys = [key for key in {**before, **after} if before.get(key) != after.get(key)]
    return [f"{key}: {before.get(key, 'unset')} → {after.get(key, 'unset')}" for key in keys]


def _json(path: Path, kind: type[T]) -> T | None:
    try:
        value = read_json(path)
    except SourceError:
        return None
    return value if isinstance(value, kind) else None


def _row(path: Path, number: int, line: str) -> dict[str, Any]:
    # a line is one JSON object
    try:
        row = parse_json(line)
    except (ValueError, RecursionError):
        row = None
    if not isinstance(row, dict):
        raise DirectoryError(f"{path}, line {number} is not a JSON object: {line[:40]!r}")
    # with a step, a split, and numbers
    what = "" if {"step", "split"} <= row.keys() else "it lacks step or split"
    for name, value in reversed(row.items()):
        kinds = {"step": (int,), "split": (str,)}.get(name, (int, float))
        if type(value) not in kinds:
            what = f"{name} is no {kinds[-1].__name__}"
    if what:
        raise DirectoryError(f"{path}, line {number} is no row of a run: {what}, in {line[:40]!r}")
    return row
