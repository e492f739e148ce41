"""What becomes of a sample that cannot be read: an error that names it, or one more of those that are skipped."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from leanify.errors import DataError


@dataclass
class Faults:
    """``skip`` as data.on_error asks; ``names`` are the samples that were skipped, each with what was found."""

    skip: bool = False
    names: list[str] = field(default_factory=list)

    def found(self, words: str) -> None:
        """A sample that cannot be read. Raises DataError unless it is to be skipped."""
        if not self.skip:
            raise DataError(f"{words}; mend it, or leave such samples out and count them: --set data.on_error=skip")
        self.names.append(words)

    def text(self, value: Any, where: str) -> str | None:
        """``value`` where it is a text that UTF-8 can hold; else a fault, and None."""
        if not isinstance(value, str):
            self.found(f"{where} is {json.dumps(value, default=str)[:40]}, not a string")
            return None
        try:
            value.encode()
        except UnicodeEncodeError as error:
            self.found(f"{where} holds half of a surrogate pair at character {error.start}, which UTF-8 cannot encode")
            return None
        return value
