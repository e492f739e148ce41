"""Kinds of paths, judged by file names alone: one table for all commands. Imports no torch.

Whether a path holds data to train on takes reading: see `data.recognition`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from leanify.core.errors import DirectoryError
from leanify.core.files.writing import CARD as CARD

Kind = Literal["study", "run", "recipe", "lean directory", "adapter", "configuration", "checkpoint"]

FORMAT = 2  # of leanify.json
STUDY, RECIPE, CHECKPOINTS = "study.toml", "recipe.toml", "checkpoints"
ADAPTER, CONFIG = "adapter_config.json", "config.json"
WEIGHTS = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")

# Folders by the entries that mark them; the first row that fits.
FOLDERS: tuple[tuple[Kind, tuple[str, ...]], ...] = (
    ("study", (STUDY,)),
    ("run", (RECIPE, CHECKPOINTS)),
    ("lean directory", (CARD,)),
    ("configuration", (CONFIG,)),
    ("adapter", (ADAPTER,)),
    ("recipe", (RECIPE,)),
)
FILES: dict[str, Kind] = {".toml": "recipe", ".json": "configuration", **dict.fromkeys(WEIGHTS, "checkpoint")}
MODELS: tuple[Kind, ...] = ("run", "lean directory", "configuration", "adapter", "checkpoint")


def path_kind(path: str | Path) -> Kind | None:
    """Return the kind of a path, or None for any other path and for a name that no file can have."""
    place = Path(path).expanduser()
    try:
        for kind, marks in FOLDERS:
            if all(_has(place, mark) for mark in marks):
                return kind
        return FILES.get(place.suffix) if place.is_file() else None
    except (OSError, ValueError):  # too long, or with a NUL
        return None


def unused_path(path: Path) -> Path:
    """Return the path itself, or the first of NAME-2, NAME-3, … that does not exist."""
    number, unused = 1, path
    while unused.exists():
        number += 1
        unused = path.with_name(f"{path.name}-{number}")
    return unused


def check_format(card: Mapping[str, Any], folder: Path) -> None:
    """Raise DirectoryError if a newer leanify wrote a lean directory or a run, as its leanify.json says."""
    number = card.get("format", FORMAT)
    if type(number) is not int or number > FORMAT:
        raise DirectoryError(f"{folder} was written by a newer leanify (format {str(number)[:20]}); upgrade leanify")


def _has(place: Path, mark: str) -> bool:
    return (place / mark).is_dir() if mark == CHECKPOINTS else (place / mark).is_file()


def is_run(path: str | Path) -> bool:
    return path_kind(path) == "run"


def is_study(path: str | Path) -> bool:
    return path_kind(path) == "study"


def is_model(path: str | Path) -> bool:
    return path_kind(path) in MODELS


def models_inside(folder: Path) -> list[Path]:
    """The folders of models in a folder, and, in a study, the folders of its runs."""
    if not folder.is_dir():
        return []
    entries = [*sorted(folder.iterdir()), *sorted(folder.glob("runs/*"))]
    return [place for place in entries if place.is_dir() and is_model(place)]
