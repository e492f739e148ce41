"""The recipes that ship with leanify, by name. Their contents are not read, so listing them is quick."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from leanify.core.errors import RecipeError


def home() -> Path:
    """The folder of built-in recipes: inside the installed package, or next to it in a checkout."""
    package = Path(__file__).parents[1]
    installed_folder = package / "_recipes"
    return installed_folder if installed_folder.is_dir() else package.parent / "recipes"


@cache
def built_in_recipes() -> Mapping[str, Path]:
    """Return the built-in recipes: ``collection/recipe`` → file, sorted by name. Deeper folders hold none."""
    root = home()
    files = [*root.glob("*.toml"), *root.glob("*/*.toml")]
    return dict(sorted((path.relative_to(root).with_suffix("").as_posix(), path) for path in files))


def stems() -> list[str]:
    """The recipes' names without their collection."""
    return [path.stem for path in built_in_recipes().values()]


def find(name: str) -> Path | None:
    """A built-in recipe by its full name or its last part; None if none is. Raises RecipeError for YAML."""
    if Path(name).suffix.lower() in (".yaml", ".yml") and Path(name).is_file():
        raise RecipeError(
            f"{name} is YAML, and recipes are TOML: leanify recipes digits prints one to begin with, leanify recipes "
            "--keys lists what it may say"
        )
    known_names = built_in_recipes()
    return known_names.get(name) or next((path for path in known_names.values() if path.stem == name), None)
