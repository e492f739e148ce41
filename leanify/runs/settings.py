"""Check ``--set`` settings against the keys of a recipe, without importing torch."""

from __future__ import annotations

from collections.abc import Sequence

from leanify.errors import RecipeError
from leanify.runs import meanings, recipe
from leanify.runs.strict_toml import UnknownKey, check_value


def check_settings(settings: Sequence[str]) -> None:
    """Raise RecipeError for a setting with an unknown key or a value of the wrong type."""
    for setting in settings:
        path, text = recipe.split_setting(setting)
        section, _, key = path.partition(".")
        known = {name.partition(".")[2]: hint for name, hint in recipe.keys().items() if name.startswith(f"{section}.")}
        if not known:
            instead = meanings.meant(key, section, recipe.keys())
            raise RecipeError(
                f"a recipe has no section [{section}]; "
                + (f"{path}: it is {instead}" if instead else f"there are {', '.join(recipe.SECTIONS)}")
            )
        name = key.partition(".")[0]
        if name not in known:
            raise UnknownKey(f"[{section}]", name, list(known), meanings.meant(name, section, recipe.keys()))
        if text and name == key:
            check_value(recipe.value_of(text), known[name], path)
