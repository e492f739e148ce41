"""Propose rows for classes without one: discover them on a small model, test the laws, print TOML.

`lens.discovery` finds attentions and MLPs and assumes that head_dim must stay; here the `split` law tests whether it
must.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from torch import nn

from leanify.errors import LeanifyError
from leanify.lens import families, sites, surgery
from leanify.lens.families import Reading, toml
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
        surgery.read(model)
        rows = _relaxed(model, call)
        known = {
            site.reading.name: site.reading for site in sites.sites_of(model) if not families.attached(site.module)
        }
        with _in_the_table(rows):  # where a model that is saved and loaded finds them
            try:
                laws.hold_all(model, call)
            except LawBroken as error:
                return Proposal(rows, list(known.values()), str(error))
    return Proposal(rows, list(known.values()), "")


@contextmanager
def _in_the_table(rows: list[Reading]) -> Iterator[None]:
    table = families.known()
    table.update({row.name: [row] for row in rows})
    try:
        yield
    finally:
        for row in rows:
            del table[row.name]


def _relaxed(model: nn.Module, call: Call) -> list[Reading]:
    """The new rows, one per class, kept with all its modules: with their scales, and without the constant head_dim if
    the `split` law holds without it.
    """
    new = [site for site in sites.sites_of(model) if families.attached(site.module)]
    by_name = {site.reading.name: _canonical(site) for site in reversed(new)}
    free = {name: replace(row, constant=()) for name, row in sorted(by_name.items())}
    _keep(new, free)
    try:
        if laws.split(model, surgery.read(model), call):
            return list(free.values())
    except (LawBroken, LeanifyError):
        pass
    _keep(new, by_name)
    return [by_name[name] for name in sorted(by_name)]


def _keep(new: list[Site], rows: dict[str, Reading]) -> None:
    for site in new:
        families.attach(site.module, rows[site.reading.name])


def _canonical(site: Site) -> Reading:
    """A new row as a table has it: with scales, and separate key and value maps as ``g d``."""
    row = site.reading
    if not row.is_attention:
        return row
    row = replace(row, attributes={**row.attributes, **_scales(site)})
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
