"""The layout of heads and hidden units in upstream's classes: tables of data, one row per layout.

The rows are in `timm.toml`, `transformers.toml` and `leanify.toml` beside this file. A row (`Reading`) names
the upstream classes that it describes and the layout of their tensors, in the notation of `notation`. Parts
that a class does not have are skipped, so similar classes can share a row:

    classes     dotted paths: ``models.xcit.XCA`` in timm, ``bert.BertAttention`` in transformers' modeling files
    when        attributes that a module must have for this row to apply, if one class has two layouts
    rows        linear maps whose *outputs* are heads or units (q, k, v, fc1, a norm over them)
    columns     linear maps whose *inputs* are heads or units; the output projection first (then talking heads), fc2
    tensors     bare parameters and buffers, one layout per axis ("1" for an axis that does not change)
    attributes  numbers that a forward reads; those under ``config.`` are changed in a copy of the configuration
    lists       lists with one module for each head: path → "h"
    sizes       symbols that no axis and no attribute gives, with their values: a head_dim written into a forward
    clear       caches (dicts) that become stale when the number of heads changes
    edits       replacements in the source of upstream's forward, if it assumes inner == width (see below)
    methods     the methods to which ``edits`` apply; default: ``forward``
    forward     a function in `forwards` that replaces upstream's forward, if no edit suffices
    mixing      parts that mix all heads (a norm over inner): with one present, growth cannot keep the outputs
    constant    symbols that must not change, because this class makes tables for them at construction
    refused     the reason why models with this class cannot be redesigned
    kept        the reason why this class keeps its shape although it has heads or looks like an attention

A row with an ``h`` in its columns is an attention, one with an ``m`` an MLP, one with both a parallel block.
A row with neither is a table (per head or per block) outside the attentions that must follow them, or it only
edits a part. The lists of blocks need no table: `sites` finds them.

``edits`` exist because about thirty upstream forwards assume that the concatenated heads are as wide as the input, as
in ``C // self.num_heads`` and ``reshape(B, N, C)``, which is right only if inner == width (`forwards`). They should be
as short as possible and unambiguous. docs/CONTRIBUTING.md explains the steps to add a family.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatch
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from torch import nn

from leanify.errors import LeanifyError
from leanify.runs.files import read_text

Strings = Mapping[str, str]


@dataclass(frozen=True)
class Reading:
    """How heads and hidden units lie in one upstream class, ``name`` being its full dotted path."""

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


def readings(library: str) -> list[Reading]:
    """The rows of one library (``timm``, ``transformers``, ``leanify``), one per class. Raises LeanifyError."""
    text = resources.files(__name__).joinpath(f"{library}.toml").read_text(encoding="utf-8")
    try:
        rows = tomllib.loads(text)["reading"]
    except tomllib.TOMLDecodeError as error:
        raise LeanifyError(f"leanify/lens/families/{library}.toml is not valid TOML: {error}") from error
    return [reading for row in rows for reading in _of_row(row, library)]


def _of_row(row: dict[str, Any], library: str) -> list[Reading]:
    fields: dict[str, Any] = {key: value for key, value in row.items() if key != "classes"}
    for key, value in fields.items():
        if isinstance(value, list):
            fields[key] = tuple(value)
    if "tensors" in fields:
        fields["tensors"] = {name: tuple(axes) for name, axes in fields["tensors"].items()}
    unknown = fields.keys() - Reading.__dataclass_fields__.keys()
    if unknown:
        raise LeanifyError(
            f"the row of {', '.join(row['classes'])} in {library}.toml has no field {', '.join(sorted(unknown))}; "
            f"a row has classes, {', '.join(list(Reading.__dataclass_fields__)[1:])}"
        )
    return [Reading(_full(name, library), **fields) for name in row["classes"]]


def _full(name: str, library: str) -> str:
    """The full dotted path of a class: ``bert.BertAttention`` → ``transformers.models.bert.modeling_bert.…``."""
    if library == "rows" or name.startswith(("torch.", "timm.", "transformers.", "diffusers.", "leanify.")):
        return name
    if library in ("timm", "diffusers"):
        return f"{library}.{name}"
    package, _, rest = name.partition(".")
    return f"transformers.models.{package}.modeling_{package}.{rest}"


def short(name: str) -> str:
    """The inverse of `_full`: a class's name in its table."""
    match = re.fullmatch(r"transformers\.models\.(\w+)\.modeling_\1\.(\w+)", name)
    return f"{match[1]}.{match[2]}" if match else name.removeprefix("timm.")


@cache
def known() -> dict[str, list[Reading]]:
    """All rows by the full path of their class."""
    rows: dict[str, list[Reading]] = {}
    for library in ("timm", "transformers", "diffusers", "leanify"):
        for reading in readings(library):
            rows.setdefault(reading.name, []).append(reading)
    return rows


def expanded(reading: Reading, module: nn.Module) -> Reading:
    """A row for one module, with every ``expert_*`` in its paths expanded to the experts that exist."""
    if not any("*" in part for part in (*reading.rows, *reading.columns)):
        return reading
    parts: list[dict[str, str]] = [{}, {}]
    for found, layouts in zip(parts, (reading.rows, reading.columns), strict=True):
        for part, how in layouts.items():
            for path, _ in module.named_modules():
                if fnmatch(path, part):
                    found[path] = how
    return replace(reading, rows=parts[0], columns=parts[1])


def attach(module: nn.Module, reading: Reading) -> None:
    """Keep a row with one module. It goes before the rows of its class, into copies, and into no other model."""
    module.__dict__[_ROW] = reading


def attached(module: nn.Module) -> Reading | None:
    """The row that is kept with a module."""
    found: Reading | None = vars(module).get(_ROW)
    return found


_ROW = "_leanify_row"


Rows = Sequence[Reading] | str | Path | None


def rows_of(rows: Rows) -> list[Reading]:
    """Rows as values, or from TOML: a file, or its text. Raises LeanifyError if they are no rows."""
    if rows is None or not isinstance(rows, (str, Path)):
        return list(rows or ())
    text = str(rows)
    if "[[reading]]" not in text:
        try:
            text = read_text(Path(rows), LeanifyError)
        except LeanifyError as error:
            raise LeanifyError(f"rows={str(rows)[:120]!r} is neither a TOML file nor rows as text: {error}") from error
    try:
        tables = tomllib.loads(text)["reading"]
        return [reading for row in tables for reading in _of_row(row, "rows")]
    except (tomllib.TOMLDecodeError, KeyError, TypeError, AttributeError) as error:
        raise LeanifyError(f"these rows are no TOML with [[reading]] tables that have classes: {error}") from error


def attach_rows(model: nn.Module, rows: Rows) -> None:
    """Keep rows with the modules of their classes. Raises LeanifyError for a class that is not in the model."""
    for row in rows_of(rows):
        is_found = False
        for module in model.modules():
            if f".{full_name(class_of(module))}".endswith(f".{row.name}"):  # the full path, or the end of it
                attach(module, row)
                is_found = True
        if not is_found:
            kinds = sorted({class_of(module).__qualname__ for module in model.modules()})
            raise LeanifyError(f"a row is for {row.name}, and the model has no such module; it has {', '.join(kinds)}")


def class_of(module: object) -> type:
    """Upstream's class of a module whose forward may have been freed."""
    return next(c for c in type(module).__mro__ if "freed" not in vars(c))


def full_name(kind: type) -> str:
    """The full dotted path of a class."""
    return f"{kind.__module__}.{kind.__qualname__}"


def reading_of(module: object) -> Reading | None:
    """The row of a module: its own, else that of its exact class; a subclass may compute something else."""
    if _ROW in getattr(module, "__dict__", {}):
        own: Reading = module.__dict__[_ROW]
        return own
    for reading in known().get(full_name(class_of(module)), ()):
        if all(getattr(module, name, None) == value for name, value in reading.when.items()):
            return reading
    return None


def toml(row: Reading) -> str:
    """One row as TOML, without empty fields."""
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
