"""The recipes that come with leanify, by name. Knows no recipe's contents: listing them imports little."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import leanify


def home() -> Path:
    """Where the built-in recipes lie: inside the installed package, or beside it in a checkout."""
    package = Path(leanify.__file__).parent
    inside = package / "_recipes"
    return inside if inside.is_dir() else package.parent / "recipes"


@cache
def built_in() -> Mapping[str, Path]:
    """The built-in recipes by name, ``collection/recipe``."""
    root = home()
    return dict(sorted((path.relative_to(root).with_suffix("").as_posix(), path) for path in root.rglob("*.toml")))


def stems() -> list[str]:
    """The last parts of the names."""
    return [path.stem for path in built_in().values()]


def find(name: str) -> Path | None:
    """The file of a built-in recipe, by its name or by the last part of it; None where there is none."""
    known = built_in()
    return known.get(name) or next((path for path in known.values() if path.stem == name), None)
