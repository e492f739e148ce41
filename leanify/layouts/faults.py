"""Unreadable samples: stop with an error that names the sample, or skip and record it (data.on_error)."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from leanify.core.errors import DataError


@dataclass
class Faults:
    """Collects unreadable samples. ``skip`` is data.on_error == "skip"; ``names`` describe those skipped."""

    skip: bool = False
    names: list[str] = field(default_factory=list)

    def record(self, fault: str) -> None:
        """Record an unreadable sample. Raises DataError unless faults are skipped."""
        if not self.skip:
            raise DataError(f"{fault}; fix it", ", or skip such samples with --set data.on_error=skip")
        self.names.append(fault)

    def text(self, value: Any, where: str) -> str | None:
        """Return ``value`` if it is a string that UTF-8 can encode; else record a fault and return None."""
        if not isinstance(value, str):
            self.record(f"{where} is {json.dumps(value, default=str)[:40]}, not a string")
            return None
        try:
            value.encode()
        except UnicodeEncodeError as error:
            self.record(f"{where} has a lone surrogate at character {error.start}, which UTF-8 cannot encode")
            return None
        return value
