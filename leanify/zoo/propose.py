"""Rows for classes that no row describes: read live on a small model, held against the laws, written as TOML.

An attention is found by `lens.discovery`, which keeps its head_dim; here the `split` law says whether that is needed.
An MLP is a module with a map from the width to hidden units and one back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

from torch import Tensor, nn

from leanify.errors import LeanifyError
from leanify.lens import families, sites, surgery
from leanify.lens.families import Reading, short
from leanify.lens.located import Site, within
from leanify.lens.resize import Features, features_of
from leanify.zoo import laws, tiny, tiny_timm
from leanify.zoo.running import Call, LawBroken, outputs, randomised

_KEY_OR_VALUE = re.compile(r"(^|[._])w?[kv][a-z_]*$", re.IGNORECASE)


@dataclass(frozen=True)
class Proposal:
    """What was found: new rows, the rows that the model's classes have already, and the law that is broken, if any."""

    rows: list[Reading]
    known: list[Reading]
    broken: str

    def toml(self) -> str:
        """The new rows as they would stand in a table."""
        return "\n".join(toml(row) for row in self.rows)


def propose(library: str, name: str) -> Proposal:
    """Rows for the unknown classes of a model's small version. Raises UnsupportedModel where no reading holds."""
    with tiny_timm.small_tables():
        model, call = tiny.build(library, name)
        model = randomised(model)
        table = families.known()
        before = set(table)
        surgery.read(model)
        _relax(model, call, [site for site in sites.sites_of(model) if site.reading.name not in before])
        for row in _mlps(model):
            if not _widens(model, call, row):
                del table[row.name]
        found = [table[new][0] for new in sorted(table.keys() - before)]
        known = {site.reading.name: site.reading for site in sites.sites_of(model) if site.reading.name in before}
        try:
            laws.hold_all(model, call)
        except LawBroken as error:
            return Proposal(found, list(known.values()), str(error))
    return Proposal(found, list(known.values()), "")


def _relax(model: nn.Module, call: Call, new: list[Site]) -> None:
    """Learn the new rows with their scales, and without a constant head_dim if the `split` law holds without."""
    rows = [replace(_canonical(s.reading), attributes={**s.reading.attributes, **_scales(s)}) for s in new]
    for row in rows:
        families.learn(replace(row, constant=()))
    try:
        if laws.split(model, surgery.read(model), call):
            return
    except (LawBroken, LeanifyError):
        pass
    for row in rows:
        families.learn(row)


def _canonical(row: Reading) -> Reading:
    """The one way to write keys and values that are maps of their own: ``g d``."""
    own = {path for path, how in row.rows.items() if how == "h d" and _KEY_OR_VALUE.search(path)}
    return replace(row, rows={path: "g d" if path in own else how for path, how in row.rows.items()})


def _scales(site: Site) -> dict[str, str]:
    """Numbers that are 1/√head_dim, which the logits are multiplied with."""
    return {
        f"{path}.{name}".lstrip("."): "d^-0.5"
        for path, part in site.module.named_modules()
        for name, value in vars(part).items()
        if isinstance(value, float) and abs(value - site.sizes["d"] ** -0.5) < 1e-9
    }


def _widens(model: nn.Module, call: Call, row: Reading) -> bool:
    """Whether the `wider` law holds with this row, which is learned."""
    families.learn(row)
    try:
        return laws.wider(model, surgery.read(model), call, outputs(model, call))
    except (LawBroken, LeanifyError, RuntimeError):
        return False


def _mlps(model: nn.Module) -> Iterator[Reading]:
    """Unknown modules with maps from the width to hidden units and one map back, the smallest of each class."""
    located = sites.locate(model)
    widths = {layer.width for layer in located.architecture.layers()}
    claimed = [site.path for site in located.sites]
    found: dict[str, Reading] = {}
    for path, module in model.named_modules():
        if not path or type(module).__module__.startswith("torch.") or any(within(path, site) for site in claimed):
            continue
        maps = {
            at: features_of(part)
            for at, part in module.named_modules()
            if isinstance(weight := getattr(part, "weight", None), Tensor)
            and weight.dim() > 1
            and not any(within(f"{path}.{at}", site) for site in claimed)
        }
        if units := _units(maps, widths):
            row = Reading(f"{type(module).__module__}.{type(module).__qualname__}", rows=units[0], columns=units[1])
            found = {at: other for at, other in found.items() if not within(path, at)} | {path: row}
    yield from {row.name: row for row in found.values()}.values()


def _units(maps: dict[str, Features], widths: set[int]) -> tuple[dict[str, str], dict[str, str]] | None:
    """(rows, columns) of an MLP, if these maps are the maps of one."""
    back = [path for path, f in maps.items() if f.outputs in widths and f.inputs not in widths]
    if len(back) != 1:
        return None
    units, width = maps[back[0]].inputs, maps[back[0]].outputs
    kinds = {units: "m", 2 * units: "2 m"}
    into = {path: kinds[f.outputs] for path, f in maps.items() if f.inputs == width and f.outputs in kinds}
    return (into, {back[0]: "m"}) if into and len(maps) == len(into) + 1 else None


# -- as TOML ------------------------------------------------------------------------------------------------------


def toml(row: Reading) -> str:
    """One row as it stands in the tables; an empty field is left out."""
    lines = [_line(field.name, getattr(row, field.name)) for field in fields(row) if field.name != "name"]
    text = "".join(line for line in lines if line != 'methods = ["forward"]\n')
    return f'[[reading]]\nclasses = ["{short(row.name)}"]\n{text}'


def _line(name: str, value: Any) -> str:
    if not value:
        return ""
    if isinstance(value, (str, tuple)):
        return f"{name} = {json.dumps(value)}\n"
    pairs = [
        f"{k if re.fullmatch(r'[A-Za-z0-9_-]+', k) else json.dumps(k)} = {json.dumps(v)}" for k, v in value.items()
    ]
    return f"{name} = {{ {', '.join(pairs)} }}\n"
