"""Match the labels of a data set with the outputs of a trained classifier: by name, or not at all.

same     each label is the name of an output, in any case and spelling: "positive", POSITIVE, "pos"
guess    the names say nothing (LABEL_0, or integers): they are taken in order, which only a score confirms
unnamed  the model has no names for its outputs; the order of folders is the convention
other    the labels are other words than the model's: another task, or another spelling
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from leanify.core.errors import DataError
from leanify.core.files.reading import preview
from leanify.layouts.columns import sort_labels
from leanify.upstream.origin import is_hf

Kind = Literal["same", "guess", "unnamed", "other"]
DEFAULT_NAME = re.compile(r"label_(\d+)")
MIN_PREFIX = 3  # letters of a short form: pos, neg
FAR = 3.0  # standard errors


@dataclass(frozen=True)
class LabelMatch:
    """The classes of a data set in the order of a model's outputs, and how sure that order is."""

    names: tuple[str, ...] = ()
    kind: Kind = "unnamed"
    outputs: tuple[str, ...] = ()  # the model's names

    @property
    def lists(self) -> str:
        outputs = f"the model {preview(list(self.outputs), 8)}" if self.outputs else "and the model names none"
        return f"the data has {preview(list(self.names), 8)}, {outputs}"

    def check_score(self, share: float, samples: int) -> None:
        """Raise DataError where the model's share of right answers says that the labels are in another order.

        An order that is a guess must score far above chance; any other not far below it.
        """
        chance = 1 / max(2, len(self.names))
        error = math.sqrt(chance * (1 - chance) / max(1, samples))
        if self.kind == "guess" and share < min(chance + FAR * error, (1 + chance) / 2):
            problem = "does not confirm it"
        elif share < chance - FAR * error:
            problem = "is far below chance, so its outputs mean other labels"
        else:
            return
        order = "the labels were taken in order, since names say nothing, and a" if self.kind == "guess" else "a"
        raise DataError(
            f"{order} score of {share:.1%} on {samples:,} samples {problem}: {self.lists}. Write the data's labels as "
            "the model's outputs are called, or correct the order of id2label in its config.json"
        )


def match_labels(labels: Sequence[str], outputs: Sequence[str]) -> LabelMatch:
    """The labels of a data set in the order of ``outputs``, a model's names; sorted where those say nothing."""
    labels = list(labels)
    if not outputs or not labels:
        return LabelMatch(tuple(labels), "unnamed", tuple(outputs))
    is_default = all(DEFAULT_NAME.fullmatch(name.strip().lower()) for name in outputs)
    places = None if is_default else _find_places(labels, outputs)
    if places is not None:
        label_at = {place: label for label, place in zip(labels, places, strict=True)}
        names = tuple(label_at.get(place, output) for place, output in enumerate(outputs))
        return LabelMatch(names, "same", tuple(outputs))
    # names that say nothing: indices, or one label for each output in order
    indices = [_index(label) for label in labels]
    if all(index is not None and index < len(outputs) for index in indices) and len(set(indices)) == len(labels):
        label_at = {index: label for index, label in zip(indices, labels, strict=True) if index is not None}
        names = tuple(label_at.get(place, str(place)) for place in range(len(outputs)))
        return LabelMatch(names, "guess", tuple(outputs))
    are_numbers = all(index is not None for index in indices)
    if len(labels) == len(outputs) and (is_default or are_numbers):
        return LabelMatch(tuple(sort_labels(labels) if are_numbers else labels), "guess", tuple(outputs))
    return LabelMatch(tuple(labels), "other", tuple(outputs))


def output_names(model: Any) -> tuple[str, ...]:
    """The names of a trained classifier's outputs, in their order; empty where its folder has none."""
    if is_hf(model):
        if not hasattr(model.config, "id2label"):
            return ()
        return config_names({"id2label": model.config.id2label})
    stored_names = (getattr(model, "pretrained_cfg", None) or {}).get("label_names") or ()
    return tuple(map(str, stored_names))


def config_names(config: Any) -> tuple[str, ...]:
    """The names in ``id2label`` of a transformers configuration, in their order; empty if it has none or gaps."""
    labels = config.get("id2label") or {}
    names = [labels.get(number, labels.get(str(number))) for number in range(len(labels))]
    return () if None in names else tuple(map(str, names))


def _find_places(labels: Sequence[str], outputs: Sequence[str]) -> list[int] | None:
    """The output of each label by its name, if every label has exactly one of its own."""
    # names in any spelling, one of several with commas (ImageNet's "tench, Tinca tinca")
    by_name: dict[str, set[int]] = {}
    for place, output in enumerate(outputs):
        for name in (output, *output.split(",")):
            by_name.setdefault(_spell(name), set()).add(place)
    places: list[int] = []
    for label in labels:
        label_places = by_name.get(_spell(label)) or _match_short_form(_spell(label), by_name)
        if len(label_places) != 1:
            return None
        places += label_places
    return places if len(set(places)) == len(labels) else None


def _match_short_form(label: str, by_name: Mapping[str, set[int]]) -> set[int]:
    """The outputs whose names begin with a label, or that begin it: pos and positive, 1 and "1 star"."""
    matches: set[int] = set()
    for name, places in by_name.items():
        short, long = sorted((label, name), key=len)
        if long.startswith(f"{short} ") or (len(short) >= MIN_PREFIX and long.startswith(short)):
            matches |= places
    return matches


def _spell(name: str) -> str:
    """A name in lower case, with a space for all that is neither letter nor digit (a minus before a number stays)."""
    return re.sub(r"(?<=\w)-|[^\w-]+|_", " ", name.casefold()).strip()


def _index(label: str) -> int | None:
    """The number in a label that is an index: 3, label_3; None for any other."""
    text = label.strip().lower()
    match = DEFAULT_NAME.fullmatch(text)
    digits = match[1] if match else text
    return int(digits) if digits.isdecimal() and len(digits) < 6 else None
