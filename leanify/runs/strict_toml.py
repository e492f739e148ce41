"""Strict conversion between TOML and frozen dataclasses: unknown keys and mistyped values are errors.

A section is a dataclass and a list is a tuple. A field with ``metadata={"key": …}`` is written under that
key. Values at their default are not written.
"""

from __future__ import annotations

import copy
import difflib
import json
import math
import re
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields
from functools import cache
from typing import Any, Literal, NamedTuple, get_args, get_origin

from leanify.errors import RecipeError

TRUTHS = dict.fromkeys(("true", "yes", "on", "1"), True) | dict.fromkeys(("false", "no", "off", "0"), False)


class UnknownKey(RecipeError):
    """A key that a table does not have. ``place`` describes the table ([optim]), ``known`` are its keys."""

    def __init__(self, place: str, key: str, known: list[str], instead: str | None = None) -> None:
        self.place, self.key, self.known = place, key, known
        near = difflib.get_close_matches(key, known, n=1, cutoff=0.0)[0]
        hint = f"nearest: {near}" if instead is None else f"it is {instead}"
        super().__init__(f"{place} has no key {key!r}; {hint}; known: {', '.join(known)}")


def _key(entry: Field[Any]) -> str:
    return str(entry.metadata.get("key", entry.name))


def read_table(cls: Any, values: Any, where: str) -> Any:
    """Build a section's dataclass from TOML. Raises RecipeError for unknown, missing or mistyped keys."""
    place = f"[{where}]" if where else "a recipe"
    if not isinstance(values, Mapping):
        raise RecipeError(f"{place} must be a table of keys, not {values!r}")
    known = {_key(entry): entry for entry in fields(cls)}
    for key in values:
        if key not in known:
            raise UnknownKey(place, key, list(known))
    missing = [key for key, entry in known.items() if key not in values and _needed(entry)]
    if missing:
        raise RecipeError(f"{place} lacks {', '.join(missing)}")
    given = {}
    for key, value in values.items():
        name = known[key].name
        given[name] = _typed(value, _hints(cls)[name], f"{where}.{key}" if where else key)
    return cls(**given)


def types_of(cls: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (``section.key``, type) for every key of a section, including those of nested sections."""
    for entry in fields(cls):
        hint, name = _hints(cls)[entry.name], f"{where}{_key(entry)}"
        inner = next((choice for choice in _choices(hint) if hasattr(choice, "__dataclass_fields__")), None)
        yield from types_of(inner, f"{name}.") if inner is not None else [(name, hint)]


def check_value(value: Any, hint: Any, where: str) -> None:
    """Raise RecipeError if a value does not have its key's type."""
    _typed(value, hint, where)


@cache
def _hints(cls: Any) -> dict[str, Any]:
    """The types of a section's fields; cached, because evaluating them dominated the time to list recipes."""
    return typing.get_type_hints(cls)


class KeyDescription(NamedTuple):
    """One key of a section: TOML type, default as TOML (None if required or unset), and description."""

    name: str
    type: str
    default: str | None
    required: bool
    about: str


def keys_of(section: Any) -> list[KeyDescription]:
    """Document the keys of a section's dataclass, from its annotations."""
    documented = typing.get_type_hints(section, include_extras=True)
    found = []
    for entry in fields(section):
        choices = [choice for choice in _choices(_hints(section)[entry.name]) if choice is not types.NoneType]
        value = list(entry.default) if isinstance(entry.default, tuple) else entry.default
        default = None if value in (None, MISSING, []) else _literal(value)
        about = documented[entry.name].__metadata__[0]
        found.append(KeyDescription(_key(entry), " or ".join(map(_word, choices)), default, _needed(entry), about))
    return found


def _needed(entry: Field[Any]) -> bool:
    return entry.default is MISSING and entry.default_factory is MISSING


def _typed(value: Any, hint: Any, where: str) -> Any:
    """Convert a TOML value to its field's type: tables to sections, lists to tuples, integers to floats."""
    choices = [choice for choice in _choices(hint) if choice is not types.NoneType]
    if value != value:  # NaN
        raise RecipeError(f"{where} is nan; it must be {' or '.join(map(_word, choices))}")
    for choice in choices:
        if isinstance(choice, type) and hasattr(choice, "__dataclass_fields__"):
            return read_table(choice, value, where)
        items = get_args(choice)
        if get_origin(choice) is tuple and isinstance(value, list) and value:
            return tuple(_typed(item, items[0], where) for item in value)
        if get_origin(choice) is tuple and items[0] is str and isinstance(value, str):
            return (value,)
        if get_origin(choice) is Mapping and isinstance(value, Mapping):
            return dict(value)
        if get_origin(choice) is Literal and value in items:
            return value
        if choice is float and (type(value) is float or (type(value) is int and abs(value) <= sys.float_info.max)):
            return float(value)
        if choice is bool and str(value).lower() in TRUTHS:
            return TRUTHS[str(value).lower()]
        if type(value) is choice:
            return value
    raise RecipeError(
        f"{where} is {json.dumps(value, default=str)[:80]}; it must be {' or '.join(map(_word, choices))}"
    )


def _choices(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (types.UnionType, typing.Union) else (hint,)


def _word(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(get_args(hint))
    if get_origin(hint) is tuple:
        return "a list of strings" if get_args(hint)[0] is str else "a list of numbers"
    names = {
        int: "an integer",
        float: "a number",
        bool: "true or false",
        str: "a string",
        Mapping: "a table",
    }
    return names.get(get_origin(hint) or hint, "a table of keys")  # a section


def to_table(value: Any) -> dict[str, Any]:
    """Nested plain values, without keys at their default."""
    table: dict[str, Any] = {}
    for entry in fields(value):
        item = getattr(value, entry.name)
        if hasattr(item, "__dataclass_fields__"):
            item = to_table(item)
        if item in (None, {}) or (not _needed(entry) and item == entry.default):
            continue
        table[_key(entry)] = list(item) if isinstance(item, tuple) else copy.deepcopy(item)
    return table


def toml_lines(table: Mapping[str, Any], name: str = "") -> Iterator[str]:
    """Yield the lines of a TOML file: a table's keys first, then its sections."""
    for key, value in table.items():
        if not isinstance(value, Mapping):
            yield f"{_bare(key)} = {_literal(value)}"
    for key, value in table.items():
        if isinstance(value, Mapping):
            full = f"{name}.{_bare(key)}" if name else _bare(key)
            yield f"{'' if full == 'model' else chr(10)}[{full}]"
            yield from toml_lines(value, full)


def _bare(key: str) -> str:
    return key if re.fullmatch("[A-Za-z0-9_-]+", key) else _literal(key)


def _literal(value: Any) -> str:
    """A value in TOML: as in JSON, except for infinities, the character 0x7f, and tables within lists."""
    if value is None:
        raise RecipeError("a value of None cannot be written to a recipe: TOML has no notation for it")
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_bare(key)} = {_literal(item)}' for key, item in value.items())}}}"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    try:
        text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        text.encode()
    except (UnicodeEncodeError, TypeError) as error:
        raise RecipeError(f"{ascii(value)[:40]} cannot be written to a recipe: TOML has no notation for it") from error
    return text
