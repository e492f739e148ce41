"""The shipped table of both model zoos, `zoo.json`: the operations that work on each model. Imports no torch.

`python -m tests.zoo --check` in the repository writes it.
"""

from __future__ import annotations

import json
from importlib import resources
from typing import Any


def load_table() -> dict[str, Any]:
    """Return the table: ``checked_with`` (library → version), ``not_checked`` (names), ``models`` (one row each)."""
    table: dict[str, Any] = json.loads(resources.files(__package__).joinpath("zoo.json").read_text("utf-8"))
    return table
