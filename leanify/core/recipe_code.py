"""The recipes that ship with leanify, and code that a SOURCE or a recipe names. Imports no torch.

Recipes are listed without being read. Code is ``path/to/file.py:function`` or ``package.module:function``. A path is
relative to the recipe that names it, or to the working directory. The code that ships with the built-in recipes has a
path among these, the same on every machine, or goes by its name alone, as recipes do:
``leaner-transformers/lra.py:listops``, ``lra.py:listops``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from leanify.core.errors import RecipeError

_CODE = re.compile(r"(?P<place>.+\.py|[A-Za-z_]\w*(\.\w+)*):(?P<name>[A-Za-z_]\w*)")

# The models and data of the built-in recipes. A run from anywhere may name these, and no other function of their files.
SHIPPED_CODE = frozenset(
    f"leaner-transformers/{name}"
    for name in (
        "crammed_bert.py:CrammedBert", "gpt2.py:Gpt2", "nystromformer.py:Nystromformer",
        "point_encoder.py:PointEncoder", "farthest_point.py:splits",
        "lra.py:image", "lra.py:listops", "lra.py:pathfinder", "lra.py:retrieval", "lra.py:text",
    )
)  # fmt: skip


# -- built-in recipes -------------------------------------------------------------------------------------------------


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


# -- code -------------------------------------------------------------------------------------------------------------


def is_code(text: str) -> bool:
    """Whether a name has the form ``file.py:function`` or ``package.module:function``."""
    return _CODE.fullmatch(text) is not None


def split_code(text: str) -> tuple[str, str] | None:
    """The file or module, and the function; None for a name of another form."""
    match = _CODE.fullmatch(text)
    return None if match is None else (match["place"], match["name"])


def resolve_code(text: str, folder: Path) -> str:
    """The name of code that finds its file from anywhere: a path among the built-in recipes, or an absolute path.

    A relative path starts at ``folder``. Names of other files, and other texts, are returned unchanged.
    """
    parts = split_code(text)
    if parts is None or not parts[0].endswith(".py") or text in SHIPPED_CODE:
        return text
    place, name = parts
    # absolute and without "..", but through links, so that a user's file keeps its name; os.path takes names that are
    # too long for a file, or begin with the home of nobody
    file = Path(os.path.abspath(folder / os.path.expanduser(place)))  # noqa: PTH100, PTH111
    if not os.path.isfile(file):  # noqa: PTH113
        return text
    # inside the folder of recipes the name is relative, so that the recipe works after a move
    if (
        file.is_relative_to(home())
        and (shipped_name := f"{file.relative_to(home()).as_posix()}:{name}") in SHIPPED_CODE
    ):
        return shipped_name
    return f"{file}:{name}"


def find_shipped(text: str) -> str:
    """The full name of the built-in recipes' code that goes by its file's name; any other text unchanged."""
    return next((name for name in SHIPPED_CODE if name.endswith(f"/{text}")), text)


def code_file(place: str) -> Path:
    """The file of a name's path, which is relative to the built-in recipes for their code."""
    return home() / place if any(name.startswith(f"{place}:") for name in SHIPPED_CODE) else Path(place)
