"""The zoo's shipped table, read without importing torch."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any


def shipped() -> dict[str, Any]:
    """The table: ``checked_with`` (library → version), ``not_checked`` (names), ``models`` (one row each)."""
    table: dict[str, Any] = json.loads(resources.files(__package__).joinpath("table.json").read_text("utf-8"))
    return table


def supported(library: str) -> list[str]:
    """The models of a library that are supported according to the shipped table."""
    return [m["name"] for m in shipped()["models"] if m["library"] == library and m["status"] == "supported"]
