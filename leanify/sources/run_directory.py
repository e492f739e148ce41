"""A run's folder: what was asked, where it ran, what it measured, and checkpoints that survive anything.

    recipe.toml        as resolved, settings included
    leanify.json       how upstream builds the model, and the architecture that leanify gives it
    environment.json   versions, machine, threads, command and git state, one entry each time the run was started
    metrics.jsonl      one row a line: step, epoch, split, loss, metrics
    tokenizer.json     and what belongs to it, in Hugging Face layout, where the run has a tokenizer of its own
    checkpoints/STEP/  model.safetensors (what is evaluated and loaded), state.pt (what training needs beside it),
                       checkpoint.json (metrics, and the checksums that make it complete)

A checkpoint is written beside its place and renamed when it is whole. Its card holds the length that metrics.jsonl had,
so that a run that is resumed from it forgets the rows that came after.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from leanify.errors import DirectoryError, RecipeError, SourceError, TrainingError
from leanify.lens import surgery
from leanify.sources import lean_directory
from leanify.sources import recipe as recipes
from leanify.sources.recipe import Recipe
from leanify.upstream.origin import is_hf, origin_of, set_origin

RECIPE, METRICS, ENVIRONMENT, CHECKPOINTS = "recipe.toml", "metrics.jsonl", "environment.json", "checkpoints"
WEIGHTS, STATE, CARD = "model.safetensors", "state.pt", "checkpoint.json"
DIGESTS = {64: "sha256", 128: "blake2b"}  # by a sum's length; the first is written: processors have instructions for it
LIBRARIES = ("leanify", "torch", "timm", "transformers", "accelerate", "numpy")


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint. ``rows``: the length in bytes that metrics.jsonl had; ``score``: better when higher."""

    path: Path
    step: int
    rows: int
    score: float | None
    metrics: dict[str, float]
    sums: dict[str, str]

    def broken(self) -> str | None:
        """What is wrong with its files, None where they are as they were written."""
        for name, wanted in self.sums.items():
            try:
                found = _digest(self.path / name, DIGESTS.get(len(wanted), "sha256"))
            except OSError as error:
                return f"{name}: {error.strerror}"
            if found != wanted:
                return f"{name} is not what was written"
        return None

    def weights(self) -> dict[str, Tensor]:
        return load_file(self.path / WEIGHTS)

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = torch.load(self.path / STATE, map_location="cpu", weights_only=True)
        return found


def is_run(path: str | Path) -> bool:
    return (Path(path) / RECIPE).is_file() and (Path(path) / CHECKPOINTS).is_dir()


@dataclass(frozen=True)
class RunDirectory:
    """A run's folder, made by `create` or found by `open`."""

    path: Path

    @staticmethod
    def create(path: str | Path, recipe: Recipe, model: nn.Module, tokenizer: Any = None) -> RunDirectory:
        """A new folder; it stands whole or not at all. Raises DirectoryError."""
        origin = origin_of(model)
        if origin is None:
            raise SourceError(f"nothing is known of how upstream built this {type(model).__name__}")
        card = {
            "format": lean_directory.FORMAT,
            "origin": vars(origin),
            "architecture": surgery.read(model).to_json(),
            "tied": lean_directory.untied(model)[1],
            "requires": lean_directory.requirements(origin),
        }
        Path(path).absolute().parent.mkdir(parents=True, exist_ok=True)
        with lean_directory.new_directory(path) as folder:
            (folder / RECIPE).write_text(recipe.to_toml(), encoding="utf-8")
            (folder / lean_directory.CARD).write_text(json.dumps(card, indent=2) + "\n")
            (folder / METRICS).touch()
            (folder / ENVIRONMENT).write_text("[]\n")
            if tokenizer is not None:
                tokenizer.save_pretrained(folder)
            (folder / CHECKPOINTS).mkdir()
        return RunDirectory(Path(path))

    @staticmethod
    def open(path: str | Path) -> RunDirectory:
        if not is_run(path):
            raise DirectoryError(f"{path} is no run: it has no {RECIPE} with {CHECKPOINTS}/ beside it")
        return RunDirectory(Path(path))

    @property
    def recipe(self) -> Recipe:
        return recipes.load(self.path / RECIPE)

    def check_recipe(self, recipe: Recipe) -> None:
        """Raise RecipeError, with every difference, unless the run was begun with this recipe."""
        old, new = (dict(leaves(value.to_dict())) for value in (self.recipe, recipe))
        changed = [key for key in {**old, **new} if old.get(key) != new.get(key)]
        if changed:
            words = "; ".join(f"{key}: {old.get(key, 'unset')} → {new.get(key, 'unset')}" for key in changed)
            raise RecipeError(f"{self.path} was begun with another recipe, so it cannot be resumed with this: {words}")

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Nobody else may write to the run meanwhile; the kernel lets go of it whatever becomes of this process."""
        import fcntl  # Unix alone

        with (self.path / RECIPE).open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise DirectoryError(f"{self.path} is being written by another process") from None
            yield

    # -- the log ------------------------------------------------------------------------------------------------------

    def append(self, row: Mapping[str, Any]) -> None:
        """One row of metrics.jsonl."""
        with self.path.joinpath(METRICS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.path.joinpath(METRICS).read_text(encoding="utf-8").splitlines()]

    def summary(self) -> dict[str, Any]:
        """What came of it: the last and the best evaluation, and that of the test split if there is one."""
        rows = self.rows()
        last: dict[str, Any] = next((row for row in reversed(rows) if row["split"] == "validation"), {})
        tested: dict[str, Any] = next((row for row in reversed(rows) if row["split"] == "test"), {})
        best = self.best()
        facts = {"run": str(self.path), **{key: value for key, value in last.items() if key != "split"}}
        facts |= {"best_step": best.step, "best_checkpoint": str(best.path)} if best is not None else {}
        apart = ("step", "epoch", "split", "samples_per_s")
        return facts | {f"test_{key}": value for key, value in tested.items() if key not in apart}

    def forget_after(self, found: Checkpoint | None) -> None:
        """Drop what was written after a checkpoint: later rows, later checkpoints, half-written ones."""
        os.truncate(self.path / METRICS, found.rows if found else 0)
        for folder in (self.path / CHECKPOINTS).iterdir():
            if not folder.name.isdigit() or int(folder.name) > (found.step if found else -1):
                shutil.rmtree(folder)

    def note_environment(self, **facts: Any) -> str | None:
        """Add where this process runs; in words what is another than when the run was begun, None where nothing is."""
        path = self.path / ENVIRONMENT
        entries = json.loads(path.read_text())
        entries.append(environment() | facts)
        write_small(path, json.dumps(entries, indent=2) + "\n")
        first, now = entries[0], entries[-1]
        other = [key for key in ("versions", "threads", "processes", "device") if first.get(key) != now.get(key)]
        return "; ".join(f"{key}: {first.get(key)} → {now.get(key)}" for key in other) or None

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def save(
        self,
        step: int,
        tensors: dict[str, Tensor],
        state: dict[str, Any],
        score: float | None,
        metrics: Mapping[str, float],
    ) -> Path:
        """Write a checkpoint; it is there when it is whole. Raises TrainingError where the disk does not take it."""
        target = self.path / CHECKPOINTS / f"{step:08d}"
        if target.is_dir():
            return target
        folder = target.with_name(f".{target.name}")
        shutil.rmtree(folder, ignore_errors=True)
        try:
            folder.mkdir()
            save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
            torch.save(state, folder / STATE)
            for name in (WEIGHTS, STATE):
                _synced(folder / name)
            card = {
                "step": step,
                "rows": _synced(self.path / METRICS).st_size,
                "score": score,
                "metrics": dict(metrics),
                "sums": {name: _digest(folder / name) for name in (WEIGHTS, STATE)},
            }
            write_small(folder / CARD, json.dumps(card, indent=2) + "\n")
            folder.rename(target)
        except (OSError, SafetensorError, RuntimeError) as error:  # torch and safetensors wrap a full disk in their own
            shutil.rmtree(folder, ignore_errors=True)
            whole = self.checkpoints()
            kept = (
                f"the one of step {whole[-1].step} is whole; --resume goes on" if whole else "there is none before it"
            )
            raise TrainingError(f"the checkpoint of step {step} could not be written: {error}; {kept}") from error
        _sync_folder(target.parent)
        return target

    def prune(self, keep: int) -> None:
        """Leave the last ``keep`` checkpoints and the best one; all of them for 0."""
        found = self.checkpoints()
        best = self.best()
        for old in found[:-keep] if keep else []:
            if best is None or old.step != best.step:
                shutil.rmtree(old.path)

    def checkpoints(self) -> list[Checkpoint]:
        """Those that were completed, by step; their files are not read."""
        found = []
        for folder in sorted((self.path / CHECKPOINTS).iterdir()):
            if folder.name.isdigit():
                with contextlib.suppress(OSError, ValueError, TypeError):
                    found.append(Checkpoint(folder, **json.loads((folder / CARD).read_text())))
        return found

    def newest(self) -> tuple[Checkpoint | None, list[str]]:
        """The newest checkpoint that is intact, None where the run had none yet; and what is wrong with later ones."""
        complaints: list[str] = []
        known = {found.path.name: found for found in self.checkpoints()}
        names = sorted(folder.name for folder in (self.path / CHECKPOINTS).iterdir() if folder.name.isdigit())
        for name in reversed(names):
            reason = known[name].broken() if name in known else f"{CARD} is damaged"
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


def load(path: Path) -> nn.Module:
    """The model of a run, with the weights of its best checkpoint, in eval mode."""
    found = RunDirectory.open(path).best()
    if found is None:
        raise SourceError(f"{path} has no checkpoint yet")
    origin, architecture, card = lean_directory.read_card(path)
    model = lean_directory.shell(origin, architecture)
    tensors = lean_directory.read_tensors(found.path / WEIGHTS)
    lean_directory.load_weights(model, tensors | {a: tensors[b] for a, b in card["tied"].items()}, found.path)
    if is_hf(model):
        model.tie_weights()  # type: ignore[operator]
    set_origin(model, origin)
    return model.eval()


def environment() -> dict[str, Any]:
    """Where this process runs."""
    return {
        "versions": {"python": platform.python_version()} | {name: metadata.version(name) for name in LIBRARIES},
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "command": sys.argv,
        "git": _git(),
    }


def _git() -> dict[str, Any] | None:
    """The commit of the folder that the run was started in, and whether files were changed; None outside of git."""

    def ask(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], capture_output=True, text=True, check=True, timeout=10).stdout

    try:
        return {"commit": ask("rev-parse", "HEAD").strip(), "changed": bool(ask("status", "--porcelain"))}
    except (OSError, subprocess.SubprocessError):
        return None


def leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """section.key and value of everything in nested tables."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _synced(path: Path) -> os.stat_result:
    """Bring what was written to the disk itself."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        return os.fstat(file.fileno())


def _digest(path: Path, algorithm: str = "sha256") -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def write_small(path: Path, text: str) -> None:
    """A small file, whole or not at all."""
    beside = path.with_name(f".{path.name}")
    beside.write_text(text)
    _synced(beside)
    beside.replace(path)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
