"""Code that a SOURCE or a recipe names: ``path/to/file.py:function`` or ``package.module:function``. No torch.

A path is relative to the recipe that names it, or to the working directory. The code that ships with the built-in
recipes has a path among these, the same on every machine, or goes by its name alone, as recipes do:
``leaner-transformers/lra.py:listops``, ``lra.py:listops``.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from leanify.core.built_in_recipes import home

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
    # absolute and without "..", but through links, so that a user's file keeps its name
    file = Path(os.path.abspath(folder / Path(place).expanduser()))  # noqa: PTH100
    if not file.is_file():
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
