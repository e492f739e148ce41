"""Look at a run's data before its first step: one line of facts, warnings, and errors for what cannot be learnt.

It looks at labels and token ids of all samples, at the contents of samples of equal size in two splits, at pieces of a
text that are in another, and at up to 256 pictures.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from leanify.core import bounds
from leanify.core.errors import DataError
from leanify.core.files.reading import preview
from leanify.data.common import spread_places
from leanify.data.images.decoding import MIN_CONTRAST, measure_contrast
from leanify.data.samples import Selection, Splits
from leanify.data.texts.masked import token_stream
from leanify.layouts.columns import parse_number

MAX_PICTURES, MAX_SECONDS = 256, 3.0  # decoded to find flat ones
MAX_COMPARED = 20_000  # samples of a split whose contents are compared with another's
MAX_LOOKED_AT = 10_000_000  # tokens of a text, whether they are known
EXAMPLE = 12  # tokens of a text that shows unknown ones
MAX_TOKENS, MAX_PIECES = 100_000_000, 20  # of a text in which pieces of another are looked for
MANY_MORE = 3  # times the samples of the rarest class, in the commonest one with more than half of all
MANY_UNKNOWN = 0.9  # of all tokens: a model learns nothing from such texts
SOME_UNKNOWN = 0.05  # of all tokens: more than the odd sign that a tokenizer never met


@dataclass
class Look:
    """The observations: a line of facts, and a sentence for each suspicious one."""

    facts: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def line(self) -> str:
        return "; ".join(self.facts)


def inspect_splits(splits: Splits) -> Look:
    """Look at the splits of a run. Raises DataError for data from which nothing can be learnt."""
    look = Look()
    parts = {"training": splits.train, "validation": splits.validation}
    if splits.test is not None:
        parts["test"] = splits.test
    look.facts.append(", ".join(f"{len(samples):,} {name}" for name, samples in parts.items()) + " samples")
    _look_at_labels(look, splits, parts)
    look.warnings += inspect_tokens(splits)
    _look_at_pictures(look, splits.train)
    _look_for_equal_samples(look, parts)
    _look_for_equal_text(look, parts)
    return look


def _look_at_labels(look: Look, splits: Splits, parts: dict[str, Any]) -> None:
    """Classes by their number of samples; classes in one split alone; labels that never differ."""
    labels = {name: getattr(samples, "labels", None) for name, samples in parts.items()}
    training = None if labels["training"] is None else np.asarray(labels["training"])
    if training is None or training.ndim != 1 or not len(training):
        return
    # one label for all, or numbers
    values, counts = np.unique(training, return_counts=True)
    if len(values) == 1:
        value = _class_name(splits, values[0])
        raise DataError(f"all {len(training):,} training samples have the label {value}: there is nothing to learn")
    if training.dtype.kind == "f":
        look.facts.append(f"labels from {training.min():g} to {training.max():g}")
        return
    # the number of classes, and the samples of the rarest and the commonest
    rarest, commonest = int(counts.argmin()), int(counts.argmax())
    sizes = f"{counts[rarest]:,} each"
    if counts[rarest] < counts[commonest]:
        rarest_name, commonest_name = (_class_name(splits, values[place]) for place in (rarest, commonest))
        sizes = f"{counts[rarest]:,} ({rarest_name}) to {counts[commonest]:,} ({commonest_name})"
    look.facts.append(f"{len(values):,} classes of {sizes}")
    if 2 * counts[commonest] > len(training) and counts[commonest] > MANY_MORE * counts[rarest]:
        share = counts[commonest] / len(training)
        look.warnings.append(
            f"{share:.0%} of the training samples are of one class ({_class_name(splits, values[commonest])}): look at "
            "macro_f1 beside top1; --set optim.class_weights=true makes each class count alike"
        )
    single = [_class_name(splits, value) for value in values[counts == 1]]
    if single:
        has = _count(len(single), "class has", "classes have")
        look.warnings.append(f"{has} one training sample: {preview(single)}")
    # names of one meaning
    names_by_meaning: dict[Any, list[str]] = {}
    for name in splits.names:
        number = parse_number(name)
        meaning = name.strip().casefold() if number is None else number
        names_by_meaning.setdefault(meaning, []).append(name)
    for synonyms in names_by_meaning.values():
        if len(synonyms) > 1:
            look.warnings.append(f"classes that may be one: {preview(synonyms)}")
    # classes that one split lacks
    for name in list(parts)[1:]:
        if labels[name] is None:
            continue
        other_values = np.unique(np.asarray(labels[name]))
        for missing, where in (
            (np.setdiff1d(values, other_values), name),
            (np.setdiff1d(other_values, values), "training"),
        ):
            names = [_class_name(splits, value) for value in missing]
            if names:
                has = _count(len(names), "class has", "classes have")
                look.warnings.append(f"{has} no {where} sample: {preview(names)}")


def _class_name(splits: Splits, value: Any) -> str:
    number = int(value) if float(value).is_integer() else None
    return splits.names[number] if number is not None and 0 <= number < len(splits.names) else f"{value:g}"


def _count(number: int, one: str, plural: str) -> str:
    return f"{number:,} {one if number == 1 else plural}"


# -- texts -------------------------------------------------------------------------------------------------------------


def inspect_tokens(splits: Splits) -> list[str]:
    """Return warnings for texts of unknown words. Raises DataError where nearly all are unknown to the tokenizer."""
    # the token ids of all training texts, or of a long text's beginning
    base, indices = _unwrap(splits.train)
    flat = getattr(base, "flat", {}).get("input_ids")
    ids = token_stream(base) if flat is None else flat[0]
    if ids is None or splits.tokenizer is None:
        return []
    if flat is None:
        ids = ids[:MAX_LOOKED_AT]
    # which are unknown, and which are words, known or not
    special = set(getattr(splits.tokenizer, "all_special_ids", ()))
    unknown = getattr(splits.tokenizer, "unk_token_id", None)
    if unknown == getattr(splits.tokenizer, "eos_token_id", None):  # GPT-2's, which knows every text
        unknown = None
    is_unknown = ids == unknown if unknown is not None else np.zeros(len(ids), bool)
    is_word = ~np.isin(ids, list(special - {unknown}))

    # the share of unknown tokens, with an example
    warnings, share = [], is_unknown.sum() / max(1, is_word.sum())
    if share >= SOME_UNKNOWN:
        some = ids[is_unknown.argmax() :][:EXAMPLE].tolist()
        example = bounds.call(partial(splits.tokenizer.decode, some), "the tokenizer")
        sentence = (
            f"{share:.0%} of the tokens of the training texts are unknown to the tokenizer, as in {example!r}: it was "
            "made for other texts; name another with --set data.tokenizer=DIR"
        )
        if share >= MANY_UNKNOWN:
            raise DataError(sentence)
        warnings.append(sentence)
    if flat is None:
        return warnings

    # tokens of each text: words, and unknown ones among them
    word_sums, unknown_sums = (np.concatenate([[0], np.cumsum(which)]) for which in (is_word, is_unknown))
    ends = base.starts + base.lengths
    words = (word_sums[ends] - word_sums[base.starts])[indices]
    unknowns = (unknown_sums[ends] - unknown_sums[base.starts])[indices]
    empty, strange = np.flatnonzero(words == 0), np.flatnonzero((words > 0) & (words == unknowns))
    for texts, what in ((empty, "no word"), (strange, "unknown words alone")):
        if len(texts):
            has = _count(len(texts), "training text has", "training texts have")
            warnings.append(f"{has} {what}: sample {indices[texts[0]] + 1}")
    return warnings


# -- pictures ----------------------------------------------------------------------------------------------------------


def _look_at_pictures(look: Look, train: Any) -> None:
    """Pictures of one flat colour; refused where all of them are the same colour."""
    base, indices = _unwrap(train)
    files, decoder = getattr(base, "files", None), getattr(base, "decoder", None)
    if files is None or decoder is None or not len(indices):
        return
    # decode pictures from all over the split, for a few seconds at most
    flat, colours, picture_count = [], set(), 0
    end = time.monotonic() + MAX_SECONDS
    for place in spread_places(len(indices), MAX_PICTURES):
        index = int(indices[place])
        name = str(files.filename(index, absolute=True))
        try:
            file, _ = files[index]
            with file:
                picture = decoder(file, base.mode, name)
        except Exception:  # training reports such a picture, or skips it
            continue
        picture_count += 1
        if measure_contrast(picture) < MIN_CONTRAST:
            flat.append(name)
            colours.add(picture.getpixel((0, 0)))
        if time.monotonic() > end:
            break
    # name the first flat one
    if not flat:
        return
    example = f"{len(flat):,} of {picture_count:,} pictures looked at are of one flat colour, as {flat[0]}"
    if len(flat) == picture_count > 1 and len(colours) == 1:
        raise DataError(f"{example}, and all of the same: there is nothing to learn")
    look.warnings.append(example)


# -- two splits --------------------------------------------------------------------------------------------------------


def _look_for_equal_samples(look: Look, parts: dict[str, Any]) -> None:
    """Find samples of a split that are in training, too: they measure memory."""
    training = parts["training"]
    for name in list(parts)[1:]:
        if max(len(training), len(parts[name])) > MAX_COMPARED:
            continue
        contents = [list(_contents(samples)) for samples in (training, parts[name])]
        sizes, other_sizes = ({size for size, _ in samples} for samples in contents)
        shared_sizes = (sizes & other_sizes) - {-1}
        training_names, pairs = {}, []
        for size, read in contents[0]:
            if size in shared_sizes:
                content, sample = read()
                training_names[hashlib.sha256(content).digest()] = sample
        for size, read in contents[1]:
            if size in shared_sizes:
                content, sample = read()
                digest = hashlib.sha256(content).digest()
                if digest in training_names:
                    pairs.append((sample, training_names[digest]))
        if pairs:
            look.warnings.append(
                f"{len(pairs):,} of {len(parts[name]):,} {name} samples are among the training samples, too: "
                f"{pairs[0][0]} is {pairs[0][1]}"
            )


def _contents(samples: Any) -> Iterator[tuple[int, Callable[[], tuple[bytes, str]]]]:
    """The size of each sample (tokens of a text, bytes of a picture), and how to read its content and its name.

    A name waits, too: that of a picture in a data set on disk takes reading the picture.
    """
    base, indices = _unwrap(samples)
    files: Any = getattr(base, "files", None)

    def read_text(index: int) -> tuple[bytes, str]:
        start, length = base.starts[index], base.lengths[index]
        return base.flat["input_ids"][0][start : start + length].tobytes(), f"sample {index + 1}"

    def read_picture(index: int) -> tuple[bytes, str]:
        with files[index][0] as file:
            return file.read(), str(files.filename(index, absolute=True))

    for index in indices.tolist():
        if getattr(base, "flat", None):
            yield int(base.lengths[index]), partial(read_text, index)
        elif hasattr(files, "size"):
            yield files.size(index), partial(read_picture, index)


def _look_for_equal_text(look: Look, parts: dict[str, Any]) -> None:
    """Find pieces of another split's text anywhere in the training text."""
    base, _ = _unwrap(parts["training"])
    if getattr(base, "ids", None) is None or len(base.ids) > MAX_TOKENS:
        return
    training = base.ids.tobytes()
    for name in list(parts)[1:]:
        other, indices = _unwrap(parts[name])
        complete = indices[other.targets[indices] == other.length] if hasattr(other, "ids") else indices[:0]
        chosen = complete[spread_places(len(complete), MAX_PIECES)]
        starts = [int(index) * other.length for index in chosen]
        shared_starts = [start for start in starts if other.ids[start : start + other.length].tobytes() in training]
        if shared_starts:
            look.warnings.append(
                f"{len(shared_starts)} of {len(starts)} pieces looked at of the {name} text are in the training text, "
                f"too: the one at token {shared_starts[0]:,}"
            )


def _unwrap(samples: Any) -> tuple[Any, np.ndarray]:
    """A data set without the selections around it, and the indices that they select."""
    indices = np.arange(len(samples))
    while isinstance(samples, Selection):
        indices, samples = samples.indices[indices], samples.whole
    return samples, indices
