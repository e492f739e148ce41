"""The layout of heads and hidden units in upstream's classes: data tables with one row per layout.

The rows are in `timm.toml` and `transformers.toml` in this directory. A row (`Row`) names
the upstream classes that it describes and the layout of their tensors, in the notation of `notation`. Parts
that a class does not have are skipped, so similar classes can share a row:

    classes     dotted paths: ``models.xcit.XCA`` in timm, ``bert.BertAttention`` in transformers' modeling files
    when        attributes that a module must have for this row to apply, if one class has two layouts
    rows        linear maps whose *outputs* are heads or units (q, k, v, fc1, a norm over them)
    columns     linear maps whose *inputs* are heads or units; the output projection first (then talking heads), fc2
    tensors     bare parameters and buffers, one layout per axis ("1" for an axis that keeps its length)
    attributes  numbers that a forward reads; those under ``config.`` are changed in a copy of the configuration
    lists       lists with one module for each head: path → "h"
    sizes       values of symbols that no axis or attribute determines: a head_dim hard-coded in a forward
    clear       caches (dicts) that become stale when the number of heads changes
    edits       replacements in the source of upstream's forward, if it assumes inner == width
    methods     the methods to which ``edits`` apply; default: ``forward``
    forward     a function in `forwards` that replaces upstream's forward, if no edit suffices
    mixing      parts that mix all heads (a norm over inner): with one present, growth cannot keep the outputs
    constant    symbols that must not change, because this class makes tables for them at construction
    refused     why models with this class cannot be redesigned
    kept        why this class keeps its shape although it has heads or looks like an attention
    object      the meaning of A_i if it is not softmax(q kᵀ) v over tokens; it is not compared with theory

A row with an ``h`` in its columns is an attention, one with an ``m`` an MLP, one with both a parallel block.
A row with neither is a table (per head or per block) outside the attentions, which must follow them, or it only
edits a submodule. Lists of blocks need no table: `sites` finds them.

``edits`` should be as short as possible and unambiguous (`forwards`). docs/internals/extending.md explains the steps to
add a family.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatch
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from torch import nn

from leanify.core import strict_toml
from leanify.core.errors import LeanifyError, RecipeError
from leanify.core.files.reading import read_text

Strings = Mapping[str, str]


@dataclass(frozen=True)
class Row:
    """The layout of heads and hidden units in one upstream class; ``name`` is its full dotted path."""

    name: str
    when: Mapping[str, object] = field(default_factory=dict)
    rows: Strings = field(default_factory=dict)
    columns: Strings = field(default_factory=dict)
    tensors: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    attributes: Strings = field(default_factory=dict)
    lists: Strings = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    clear: tuple[str, ...] = ()
    edits: Strings = field(default_factory=dict)
    forward: str = ""
    methods: tuple[str, ...] = ("forward",)
    mixing: tuple[str, ...] = ()
    constant: tuple[str, ...] = ()
    refused: str = ""
    kept: str = ""
    object: str = ""

    @property
    def is_attention(self) -> bool:
        return any("h" in layout.split() for layout in self.columns.values())

    @property
    def is_mlp(self) -> bool:
        return any("m" in layout.split() for layout in self.columns.values())

    @property
    def is_table(self) -> bool:
        """Whether this is per-head data outside any attention: shared relative positions, slopes, a head count."""
        return not (self.is_attention or self.is_mlp or self.refused or self.kept)


def _parse_tables(tables: list[dict[str, Any]], library: str) -> Iterator[Row]:
    """Yield one row for each class of each [[reading]] table."""
    for table in tables:
        fields: dict[str, Any] = {key: value for key, value in table.items() if key != "classes"}
        # TOML arrays become tuples
        for key, value in fields.items():
            if isinstance(value, list):
                fields[key] = tuple(value)
        if "tensors" in fields:
            fields["tensors"] = {name: tuple(axes) for name, axes in fields["tensors"].items()}
        unknown = fields.keys() - Row.__dataclass_fields__.keys()
        if unknown:
            raise LeanifyError(
                f"the row of {', '.join(table['classes'])} in {library}.toml has no field "
                f"{', '.join(sorted(unknown))}; a row has classes, {', '.join(list(Row.__dataclass_fields__)[1:])}"
            )
        for name in table["classes"]:
            yield Row(_full(name, library), **fields)


def _full(name: str, library: str) -> str:
    """Return the full dotted path of a class: ``bert.BertAttention`` → ``transformers.models.bert.modeling_bert.…``."""
    if library == "rows" or name.startswith(("torch.", "timm.", "transformers.")):
        return name
    if library == "timm":
        return f"timm.{name}"
    package, _, rest = name.partition(".")
    return f"transformers.models.{package}.modeling_{package}.{rest}"


def short(name: str) -> str:
    """Return the short name of a class, as it appears in its table: the inverse of `_full`."""
    match = re.fullmatch(r"transformers\.models\.(\w+)\.modeling_\1\.(\w+)", name)
    return f"{match[1]}.{match[2]}" if match else name.removeprefix("timm.")


@cache
def all_rows() -> dict[str, list[Row]]:
    """Return all rows by the full path of their class."""
    rows: dict[str, list[Row]] = {}
    for library in ("timm", "transformers"):
        text = resources.files(__name__).joinpath(f"{library}.toml").read_text(encoding="utf-8")
        for reading in _parse_tables(tomllib.loads(text)["reading"], library):
            rows.setdefault(reading.name, []).append(reading)
    return rows


def expand_experts(reading: Row, module: nn.Module) -> Row:
    """Return a row for one module, with every ``expert_*`` in its paths expanded to the experts that exist."""
    if not any("*" in part for part in (*reading.rows, *reading.columns)):
        return reading
    parts: list[dict[str, str]] = [{}, {}]
    for paths, layouts in zip(parts, (reading.rows, reading.columns), strict=True):
        for part, how in layouts.items():
            for path, _ in module.named_modules():
                if fnmatch(path, part):
                    paths[path] = how
    return replace(reading, rows=parts[0], columns=parts[1])


def attach(module: nn.Module, reading: Row) -> None:
    """Attach a row to a module. It takes precedence over the rows of its class; copies of the module inherit it."""
    module.__dict__[_ROW] = reading


def attached_row(module: nn.Module) -> Row | None:
    """Return the row that is attached to a module."""
    row: Row | None = vars(module).get(_ROW)
    return row


_ROW = "_leanify_row"


Rows = Sequence[Row] | str | Path | None


def parse_rows(rows: Rows) -> list[Row]:
    """Return rows from values, a TOML file or a TOML text. Raises LeanifyError for anything else."""
    if rows is None or not isinstance(rows, (str, Path)):
        return list(rows or ())
    text = str(rows)
    if "[[reading]]" not in text:
        try:
            text = read_text(Path(rows), LeanifyError)
        except LeanifyError as error:
            raise LeanifyError(f"rows={str(rows)[:120]!r} is neither a TOML file nor rows as text: {error}") from error
    try:
        tables = strict_toml.parse(text)["reading"]
        return list(_parse_tables(tables, "rows"))
    except (RecipeError, KeyError, TypeError, AttributeError) as error:
        raise LeanifyError(f"rows must be TOML with [[reading]] tables that list classes: {error}") from error


def attach_rows(model: nn.Module, rows: Rows) -> None:
    """Attach rows to the modules of their classes. Raises LeanifyError for a class that is not in the model."""
    for row in parse_rows(rows):
        is_found = False
        for module in model.modules():
            if f".{full_name(upstream_class(module))}".endswith(f".{row.name}"):  # the full path, or the end of it
                attach(module, row)
                is_found = True
        if not is_found:
            kinds = sorted({upstream_class(module).__qualname__ for module in model.modules()})
            raise LeanifyError(f"a row is for {row.name}, and the model has no such module; it has {', '.join(kinds)}")


def upstream_class(module: object) -> type:
    """Return the upstream class of a module, even if its forward has been adapted."""
    return next(c for c in type(module).__mro__ if "freed" not in vars(c))


def full_name(kind: type) -> str:
    """Return the full dotted path of a class."""
    return f"{kind.__module__}.{kind.__qualname__}"


def find_row(module: object) -> Row | None:
    """Return the row of a module: its own, or the one for its exact class. Subclasses may compute something else."""
    row: Row | None = getattr(module, "__dict__", {}).get(_ROW)
    if row is not None:
        return row
    for reading in all_rows().get(full_name(upstream_class(module)), ()):
        if all(getattr(module, name, None) == value for name, value in reading.when.items()):
            return reading
    return None


def toml(row: Row) -> str:
    """Return one row as TOML, without empty fields."""
    lines = ["[[reading]]", f'classes = ["{short(row.name)}"]']
    for one in fields(row):
        value = getattr(row, one.name)
        if one.name == "name" or not value or value == one.default:
            continue
        if isinstance(value, (str, tuple)):
            lines.append(f"{one.name} = {json.dumps(value)}")
            continue
        pairs = []
        for key, how in value.items():
            is_bare = re.fullmatch(r"[A-Za-z0-9_-]+", key)
            pairs.append(f"{key if is_bare else json.dumps(key)} = {json.dumps(how)}")
        lines.append(f"{one.name} = {{ {', '.join(pairs)} }}")
    return "\n".join([*lines, ""])
