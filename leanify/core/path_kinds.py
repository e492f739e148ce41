"""Kinds of paths, judged by file names, and a checkpoint's also by its first bytes: one table for all commands.

Imports no torch.
Whether a path holds data to train on takes reading: see `layouts.recognition`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from leanify.core.errors import DirectoryError, LeanifyError
from leanify.core.files.reading import open_file
from leanify.core.files.writing import CARD as CARD

Kind = Literal["study", "run", "recipe", "lean directory", "adapter", "configuration", "checkpoint"]

FORMAT = 2  # of leanify.json
STUDY, RECIPE, CHECKPOINTS = "study.toml", "recipe.toml", "checkpoints"
ADAPTER, CONFIG = "adapter_config.json", "config.json"
WEIGHTS = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")
START = 96  # bytes that tell torch.save's archive by the name of its first entry

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
            if all((place / mark).is_dir() if mark == CHECKPOINTS else (place / mark).is_file() for mark in marks):
                return kind
        if place.is_file() and place.suffix in FILES:
            return FILES[place.suffix]
        return "checkpoint" if is_checkpoint(place) else None
    except (OSError, ValueError):  # too long, or with a NUL
        return None


def is_checkpoint(path: Path) -> bool:
    """Whether a regular file holds weights: by the end of its name, or as torch.save or safetensors write it.

    Trainers call such files ``model_best.pth.tar``, ``weights.th`` or ``last``.
    """
    try:
        if not path.is_file():
            return False
        if path.suffix in WEIGHTS:
            return True
        with open_file(path) as file:
            start = file.read(START)
    except (OSError, ValueError, LeanifyError):
        return False
    is_archive = start.startswith(b"PK\x03\x04") and start[30 : 30 + start[26]].endswith(b"/data.pkl")
    # torch.save before 1.6 marks its pickles by a number
    is_legacy = start[:1] == b"\x80" and b"\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19" in start[:16]
    return is_archive or is_legacy or is_safetensors(path, start)


def is_bare_checkpoint(path: Path) -> bool:
    """Whether a file of weights has no configuration next to it that names their model."""
    return is_checkpoint(path) and not any((path.absolute().parent / name).is_file() for name in (CARD, CONFIG))


def is_safetensors(path: Path, start: bytes | None = None) -> bool:
    """Whether a file is one of safetensors, by its name or by its ``start``: the length of a header, then a header."""
    if path.suffix == ".safetensors":
        return True
    if start is None:
        with open_file(path) as file:
            start = file.read(START)
    length = int.from_bytes(start[:8], "little")
    return start[8:10] == b'{"' and 2 <= length <= path.stat().st_size - 8


def unused_path(path: Path) -> Path:
    """Return the path itself, or the first of NAME-2, NAME-3, … that does not exist."""
    number, candidate = 1, path
    while candidate.exists():
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
    return candidate


def check_format(card: Mapping[str, Any], folder: Path) -> None:
    """Raise DirectoryError if a newer leanify wrote a lean directory or a run, as its leanify.json says."""
    number = card.get("format", FORMAT)
    if type(number) is not int or number > FORMAT:
        raise DirectoryError(f"{folder} was written by a newer leanify (format {str(number)[:20]}); upgrade leanify")


def is_run(path: str | Path) -> bool:
    return path_kind(path) == "run"


def is_study(path: str | Path) -> bool:
    return path_kind(path) == "study"


def models_inside(folder: Path) -> list[Path]:
    """The folders of models in a folder, and, in a study, the folders of its runs."""
    if not folder.is_dir():
        return []
    entries = [*sorted(folder.iterdir()), *sorted(folder.glob("runs/*"))]
    return [place for place in entries if place.is_dir() and path_kind(place) in MODELS]
