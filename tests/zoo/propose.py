"""Propose rows for classes without one: discover them on a small model, test the laws, print TOML.

`discovery.discover` finds attentions and MLPs and assumes that head_dim must stay; here the `split` law tests
whether it must.
"""

from __future__ import annotations

import re
import warnings
from contextlib import suppress
from dataclasses import dataclass, replace

from torch import nn

from leanify.core.errors import LeanifyError
from leanify.lens import families
from leanify.lens.families import Row, toml
from leanify.reshaping import sites, surgery

from . import laws, tiny
from .running import Call, LawBroken, randomise

_KEY_OR_VALUE = re.compile(r"(^|[._])w?[kv][a-z_]*$", re.IGNORECASE)


@dataclass(frozen=True)
class Proposal:
    """The new rows, the rows that the model's classes already have, and the broken law, if any."""

    rows: list[Row]
    existing_rows: list[Row]
    broken_law: str

    def toml(self) -> str:
        """The new rows in the format of the tables."""
        return "\n".join(toml(row) for row in self.rows)


def propose(library: str, name: str) -> Proposal:
    """Propose rows for the unknown classes of a small model. Raises UnsupportedModel if none holds."""
    with tiny.small_tables(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # reading by trial is the purpose here, so its warning is not needed
        model, call = tiny.build(library, name)
        model = randomise(model)
        surgery.read(model)
        rows = _relax_rows(model, call)
        table_sites = [site for site in sites.find_sites(model) if not families.attached_row(site.module)]
        existing_rows = {site.reading.name: site.reading for site in table_sites}
        table = families.all_rows()
        table.update({row.name: [row] for row in rows})  # where a model that is saved and loaded finds them
        broken_law = ""
        try:
            laws.hold_all(model, call)
        except LawBroken as error:
            broken_law = str(error)
        finally:
            for row in rows:
                del table[row.name]
    return Proposal(rows, list(existing_rows.values()), broken_law)


def _relax_rows(model: nn.Module, call: Call) -> list[Row]:
    """The new rows as a table has them, one per class, kept with all its modules.

    They name the scales of the logits, 1/√head_dim, and separate key and value maps are ``g d``. head_dim is
    free if the `split` law holds so.
    """
    new = [site for site in sites.find_sites(model) if families.attached_row(site.module)]
    rows: dict[str, Row] = {}
    for site in reversed(new):
        row = site.reading
        if row.is_attention:
            attributes, maps = dict(row.attributes), dict(row.rows)
            for path, part in site.module.named_modules():
                for name, value in vars(part).items():
                    if isinstance(value, float) and abs(value - site.sizes["d"] ** -0.5) < 1e-9:
                        attributes[f"{path}.{name}".lstrip(".")] = "d^-0.5"
            for path, how in row.rows.items():
                if how == "h d" and _KEY_OR_VALUE.search(path):
                    maps[path] = "g d"
            row = replace(row, attributes=attributes, rows=maps)
        rows[row.name] = row
    rows = dict(sorted(rows.items()))

    free_rows = {name: replace(row, constant=()) for name, row in rows.items()}
    for choice in (free_rows, rows):
        for site in new:
            families.attach(site.module, choice[site.reading.name])
        with suppress(LawBroken, LeanifyError):
            if laws.check_split(model, surgery.read(model), call):
                return list(choice.values())
    return list(rows.values())
