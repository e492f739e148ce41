"""What is at a path, judged by the names of files alone: one table for all commands. Imports no torch.

Whether a path holds data to train on takes reading: see `data.found`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

Kind = Literal["study", "run", "recipe", "lean directory", "adapter", "configuration", "checkpoint"]

STUDY, RECIPE, CHECKPOINTS, CARD = "study.toml", "recipe.toml", "checkpoints", "leanify.json"
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


def kind_of(path: str | Path) -> Kind | None:
    """What is at a path; None for anything else, and for a name that no file can have."""
    place = Path(path).expanduser()
    try:
        for kind, marks in FOLDERS:
            if all(_has(place, mark) for mark in marks):
                return kind
        return FILES.get(place.suffix) if place.is_file() else None
    except (OSError, ValueError):  # too long, or with a NUL
        return None


def _has(place: Path, mark: str) -> bool:
    return (place / mark).is_dir() if mark == CHECKPOINTS else (place / mark).is_file()


def is_run(path: str | Path) -> bool:
    return kind_of(path) == "run"


def is_study(path: str | Path) -> bool:
    return kind_of(path) == "study"


def is_model(path: str | Path) -> bool:
    return kind_of(path) in MODELS


def models_inside(folder: Path) -> list[Path]:
    """The folders of models in a folder, and those of the runs in it if it is a study."""
    if not folder.is_dir():
        return []
    inside = [*sorted(folder.iterdir()), *sorted(folder.glob("runs/*"))]
    return [place for place in inside if place.is_dir() and is_model(place)]
