"""TOML to frozen dataclasses and back, by pydantic: unknown keys and values of another type are errors.

A field is ``name: Annotated[type, "description"]``. Its ``metadata`` is pydantic's: ``alias`` is the key in the file,
and ``strict`` False lets a boolean be written as yes, on or 1. pydantic takes 0.15 s of processor time
to import and to build the validators, so it is imported when something is read.
"""

from __future__ import annotations

import difflib
import json
import sys
import tomllib
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, get_args, get_origin

from leanify.core.errors import RecipeError

MAX_DOTS = 200  # in a line: the time of the parser grows with the square of the parts of a key
MAX_WORK = 2_000_000  # the sum of these squares: a second
TOO_DEEP = "this is not a recipe: its tables or lists are nested too deeply"
TYPE_NAMES = {int: "an integer", float: "a number", bool: "true or false", str: "a string", Mapping: "a table"}


class UnknownKey(RecipeError):
    """A key that a table does not have. ``place`` describes the table ([optim]), ``known_keys`` are its keys."""

    def __init__(self, place: str, key: str, known_keys: list[str], suggestion: str | None = None) -> None:
        self.place, self.key, self.known_keys = place, key, known_keys
        nearest = difflib.get_close_matches(key, known_keys, n=1, cutoff=0.0)[0]
        hint = f"nearest: {nearest}" if suggestion is None else f"it is {suggestion}"
        super().__init__(f"{place} has no key {key!r}; {hint}; known: {', '.join(known_keys)}")


def parse(text: str) -> dict[str, Any]:
    """Parse TOML. Raises RecipeError, also for text that would keep the parser busy or exhaust its stack."""
    # tomllib's time grows with the square of a key's parts
    work = header_dots = 0
    for line in text.split("\n"):  # by this character alone: a quoted key may hold the other ends of lines
        dots = line.count(".")
        if dots > MAX_DOTS:
            raise RecipeError(f"this is not a recipe: a line has more than {MAX_DOTS} dots")
        if line.lstrip().startswith("["):  # the keys below a table's name are looked up from its first part on
            header_dots = dots
        work += (header_dots + dots) ** 2
    if work > MAX_WORK:
        raise RecipeError("this is not a recipe: its keys have too many parts")
    try:
        return tomllib.loads(text)
    except ValueError as error:  # TOMLDecodeError, or an integer of too many digits
        raise RecipeError(f"this is not TOML: {error}") from error
    except RecursionError as error:
        raise RecipeError(TOO_DEEP) from error


def read_table(cls: Any, values: Any, where: str = "") -> Any:
    """Build a dataclass from a table, which ``where`` names in messages. Raises RecipeError for the first mistake."""
    from pydantic import ValidationError

    try:
        # as JSON, where a list is valid for a tuple and a table for a dataclass, in strict mode too
        return _validator(cls).validate_json(json.dumps(values, default=str))
    except RecursionError as error:
        raise RecipeError(TOO_DEEP) from error
    except ValidationError as error:
        details = error.errors(include_url=False)
    errors = [_explain(cls, values, where, detail["loc"], detail) for detail in details]
    # A mistyped name comes before the key that is missing because of it.
    raise next((error for error in errors if isinstance(error, UnknownKey)), errors[0])


@cache
def _validator(cls: Any) -> Any:
    from pydantic import ConfigDict, TypeAdapter, with_config

    return TypeAdapter(with_config(ConfigDict(extra="forbid", strict=True, allow_inf_nan=False))(cls))


def _explain(cls: Any, values: Any, where: str, path: Sequence[Any], detail: Mapping[str, Any]) -> RecipeError:
    """pydantic's error at ``path``, in terms of the file's tables and keys."""
    place = f"[{where}]" if where else "a recipe"
    # the section is not a table
    if not isinstance(values, Mapping):
        return RecipeError(f"{place} must be a table of keys, not {values!r}")
    if not path:
        return RecipeError(f"{place} cannot be read: {detail['msg'].removeprefix('Invalid JSON: ')}")
    key, *rest = path
    descriptions = {description.name: description for description in describe_keys(cls)}
    # a key that no section has, and one that is missing
    if key not in descriptions:
        return UnknownKey(place, key, list(descriptions))
    if key not in values:
        return RecipeError(f"{place} lacks {key}")
    name = f"{where}.{key}" if where else key
    # the mistake lies deeper, in a section of this one
    if descriptions[key].section is not None:
        return _explain(descriptions[key].section, values[key], name, rest, detail)
    # a value of the wrong type
    value = values[key]
    value_text = str(value) if isinstance(value, float) else json.dumps(value, default=str)[:80]
    expected_type = descriptions[key].type
    # pydantic before 2.12 calls an integer beyond the largest float no number at all
    beyond_floats = isinstance(value, int) and abs(value) > sys.float_info.max
    if detail["type"] == "finite_number" or (beyond_floats and expected_type == "a number"):
        expected_type = "a finite number"
    return RecipeError(f"{name} is {value_text}; it must be {expected_type}")


def to_table(value: Any) -> dict[str, Any]:
    """The keys of a dataclass that are not at their default, with a list for each tuple, as TOML and JSON read it."""
    cls: Any = type(value)
    # not as pydantic's JSON, where infinity becomes null
    table = _validator(cls).dump_python(value, by_alias=True, exclude_defaults=True, warnings=False)
    return {key: _tuples_to_lists(item) for key, item in table.items()}


def _tuples_to_lists(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _tuples_to_lists(item) for key, item in value.items()}
    return [_tuples_to_lists(item) for item in value] if isinstance(value, list | tuple) else value


def to_toml(table: Mapping[str, Any]) -> str:
    """A table as TOML. Raises RecipeError for values that TOML cannot express, such as None."""
    import tomli_w

    try:
        text = tomli_w.dumps(table)
        text.encode()
    except (TypeError, UnicodeEncodeError) as error:
        raise RecipeError(f"this cannot be written to a recipe: {error}") from error
    return text


class OneOrMore:
    """``Annotated[tuple[str, ...], OneOrMore, …]`` takes a string for a list of one."""

    @staticmethod
    def __get_pydantic_core_schema__(source: Any, handler: Any) -> Any:
        from pydantic_core.core_schema import no_info_before_validator_function

        return no_info_before_validator_function(_lists_to_tuples, handler(source))


def _lists_to_tuples(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    return (value,) if isinstance(value, str) else value


class KeyDescription(NamedTuple):
    """One key of a section."""

    name: str
    type: str  # in words
    default: str | None  # as TOML; None if required or unset
    required: bool
    about: str
    section: Any  # the dataclass of a key that is a table with keys of its own


@cache
def describe_keys(section: Any) -> list[KeyDescription]:
    """The keys of a dataclass, from its annotations."""
    hints, annotated_hints = typing.get_type_hints(section), typing.get_type_hints(section, include_extras=True)
    keys = []
    for field in fields(section):
        # the types that the key accepts, and its default as TOML shows it
        hint = hints[field.name]
        is_union = get_origin(hint) in (UnionType, typing.Union)
        types = [choice for choice in get_args(hint) if choice is not NoneType] if is_union else [hint]
        is_required = field.default is MISSING and field.default_factory is MISSING
        default = None if field.default in (None, MISSING, ()) else json.dumps(field.default)
        keys.append(
            KeyDescription(
                name=str(field.metadata.get("alias", field.name)),
                type=" or ".join(map(_type_name, types)),
                default=default,
                required=is_required,
                about=getattr(annotated_hints[field.name], "__metadata__", ("",))[-1],
                section=next((choice for choice in types if is_dataclass(choice)), None),
            )
        )
    return keys


def _type_name(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(get_args(hint))
    if get_origin(hint) is tuple:
        return "a list of strings" if get_args(hint)[0] is str else "a list of numbers"
    return TYPE_NAMES.get(get_origin(hint) or hint, "a table of keys")
