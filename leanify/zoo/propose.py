"""Propose rows for classes without one: discover them on a small model, test the laws, print TOML.

`lens.discovery` finds attentions and MLPs and assumes that head_dim must stay; here the `split` law tests whether it
must.
"""

from __future__ import annotations

import json
import re
import warnings
from dataclasses import dataclass, fields, replace
from typing import Any

from torch import nn

from leanify.errors import LeanifyError
from leanify.lens import discovery, families, sites, surgery
from leanify.lens.families import Reading, short
from leanify.lens.located import Site
from leanify.zoo import laws, tiny, tiny_timm
from leanify.zoo.running import Call, LawBroken, randomised

_KEY_OR_VALUE = re.compile(r"(^|[._])w?[kv][a-z_]*$", re.IGNORECASE)


@dataclass(frozen=True)
class Proposal:
    """The new rows, the rows that the model's classes already have, and the broken law, if any."""

    rows: list[Reading]
    known: list[Reading]
    broken: str

    def toml(self) -> str:
        """The new rows in the format of the tables."""
        return "\n".join(toml(row) for row in self.rows)


def propose(library: str, name: str) -> Proposal:
    """Propose rows for the unknown classes of a small version of a model. Raises UnsupportedModel if none holds."""
    with tiny_timm.small_tables(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # reading by trial is the purpose here, so its warning is not needed
        model, call = tiny.build(library, name)
        model = randomised(model)
        table = families.known()
        before = set(table)
        surgery.read(model)
        new = [site for site in sites.sites_of(model) if site.reading.name not in before]
        _relax(model, call, [site for site in new if site.reading.is_attention])
        _learn_mlps(model)
        found = [table[new][0] for new in sorted(table.keys() - before)]
        known = {site.reading.name: site.reading for site in sites.sites_of(model) if site.reading.name in before}
        try:
            laws.hold_all(model, call)
        except LawBroken as error:
            return Proposal(found, list(known.values()), str(error))
    return Proposal(found, list(known.values()), "")


def _relax(model: nn.Module, call: Call, new: list[Site]) -> None:
    """Learn the new rows with their scales, and drop the constant head_dim if the `split` law holds without it."""
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
    """Write separate key and value maps in their canonical form, ``g d``."""
    own = {path for path, how in row.rows.items() if how == "h d" and _KEY_OR_VALUE.search(path)}
    return replace(row, rows={path: "g d" if path in own else how for path, how in row.rows.items()})


def _scales(site: Site) -> dict[str, str]:
    """Attributes equal to 1/√head_dim, by which the logits are scaled."""
    return {
        f"{path}.{name}".lstrip("."): "d^-0.5"
        for path, part in site.module.named_modules()
        for name, value in vars(part).items()
        if isinstance(value, float) and abs(value - site.sizes["d"] ** -0.5) < 1e-9
    }


def _learn_mlps(model: nn.Module) -> None:
    """Learn the MLPs of blocks without a known one, from one block of each class."""
    tried: set[type[nn.Module]] = set()
    located = sites.locate(model)
    for block, layers in located.by_block():
        if layers and type(block) not in tried and not any(layer.mlp for layer in layers):
            tried.add(type(block))
            discovery.learn_mlp(model, block, layers[-1].read().width)


# -- as TOML ------------------------------------------------------------------------------------------------------


def toml(row: Reading) -> str:
    """One row as TOML, without empty fields."""
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
