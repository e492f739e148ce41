"""Sentences about a smaller vocabulary. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leanify.core.units import format_share

MAX_LISTED = 8  # tokens that a sentence lists


def describe_vocabulary(facts: Mapping[str, Any]) -> str:
    """Describe the share of texts that is split as before, how much longer the others are, and the lost tokens.

    ``facts`` are the ``vocabulary`` of shrink's report.
    """
    words = f"{facts['tokens']:,} of {facts['tokens'] / facts['kept']:,.0f} tokens stay"
    longer = None if facts["length_ratio"] is None else format_share(facts["length_ratio"] - 1)
    if facts["texts_split_as_before"] is not None:
        words += f": {format_share(facts['texts_split_as_before'])} of the texts are split as before, the others are "
        words += f"{longer} longer"
    elif longer is not None:
        words += f": texts are {longer} longer"
    if facts["dropped"]:
        words += f"; the most frequent that went: {', '.join(facts['dropped'][:MAX_LISTED])}"
    return words
