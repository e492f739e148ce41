"""The newest model that leanify wrote in this folder, and its baseline."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from leanify.errors import LeanifyError
from leanify.runs import places, run_directory
from leanify.sources import find, lean_directory
from leanify.sources.source import ModelSource
from leanify.upstream.lean_config import KEY

DEEP = ("*", "*/*", "*/*/*")  # search three levels down: a comparison's runs are that deep


def newest(folder: Path) -> Path | None:
    """Return the lean directory or run, up to three levels below a folder, whose card is the newest; or None."""
    cards = []
    for deep in DEEP:
        for card in folder.glob(f"{deep}/{places.CARD}"):
            if not any(part.startswith(".") for part in card.parts):
                cards.append(card)
    return max(cards, key=lambda card: card.stat().st_mtime).parent if cards else None


def baseline_of(directory: Path) -> ModelSource:
    """Return the model that a lean directory or a run was redesigned from, in its original shape.

    Raises LeanifyError if the directory or its source cannot be read.
    """
    if places.is_run(directory):
        model = run_directory.RunDirectory.open(directory).recipe.model
        place = Path(model.source).expanduser()
        if (place / places.CARD).is_file() and not places.is_run(place):
            return baseline_of(place)
        return find.find(model.source, overrides=model.override, cls=model.cls)
    origin = lean_directory.read_card(directory).origin
    options = {key: value for key, value in origin.options.items() if key != KEY}
    return ModelSource(replace(origin, options=options))


def with_baseline(folder: Path = Path()) -> list[str | ModelSource]:
    """Return [baseline, newest model] for a folder; [] if it has no model.

    A run of an unmodified model is its own baseline and is returned alone.
    """
    found = newest(folder)
    if found is None:
        return []
    if places.is_run(found):
        model = run_directory.RunDirectory.open(found).recipe.model
        if not model.reshapes and not (Path(model.source).expanduser() / places.CARD).is_file():
            return [str(found)]
    try:
        return [baseline_of(found), str(found)]
    except LeanifyError:
        return [str(found)]
