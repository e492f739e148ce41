"""Names of splits as people write them: train, training_set, 01_train, train2017, snli_1.0_dev. Does not import torch.

What looks at data and what reads it ask here, so that both find the same folders and files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path

TEST_WORDS = ("test", "testing", "testset", "testdata")
WORDS = {  # words for a split, in order of preference
    "train": ("train", "training", "trainset", "traindata"),
    "test": TEST_WORDS,
    "validation": ("validation", "valid", "val", "eval", "evaluation", "dev", "trial", "valset", *TEST_WORDS),
}
SHARD = re.compile(r"(.+)-([0-9]{5})-of-([0-9]{5})(?:-[0-9a-f]{16})?\.parquet")  # as `datasets` and the hub name them
ALL_WORDS = {*WORDS["train"], *WORDS["validation"]}
FILLERS = {"set", "sets", "data", "dataset", "split", "image", "images", "img", "imgs", "pictures", "photos", "label"}
FILLERS |= {"labels", "csv", "folder", "dir", "new", "final", "of", "the", "x"}
PARTS = FILLERS | {"part", "parts", "batch", "chunk", "shard"}  # words in the names of folders that are parts of one


def synonyms(split: str) -> tuple[str, ...]:
    """A split's own name, then the usual words for it."""
    for words in WORDS.values():
        if split.lower() in words:
            return tuple(dict.fromkeys((split, *words)))
    return (split,)


def parse_split(name: str) -> tuple[str, tuple[str, ...]] | None:
    """The word for a split in a name, and its other words without fillers; None if it has none, or several.

    training_set → training, (); in_domain_dev → dev, (in, domain)
    """
    words = name_words(name)
    splits = [word for word in words if word in ALL_WORDS]
    if len(splits) != 1:
        return None
    return splits[0], tuple(word for word in words if word not in FILLERS and word != splits[0])


def name_words(name: str) -> list[str]:
    """The words in a name, in lower case; a capital letter begins one."""
    return re.findall(r"[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower())


def is_split(name: str) -> bool:
    """Whether a name says nothing but a split."""
    parse = parse_split(name)
    return parse is not None and not parse[1]


def are_split_names(names: Iterable[str]) -> bool:
    """Whether names are all of splits, by themselves or joined to one common word (seg_train, seg_test)."""
    names = [*names]
    parses = [parse_split(name) for name in names]
    others = {parse[1] for parse in parses if parse is not None}
    words = {parse[0] for parse in parses if parse is not None}
    if None in parses and words and {*chain(*map(name_words, names))} <= FILLERS | ALL_WORDS:  # data_256 beside val_256
        return True
    if None in parses:  # words that are joined to others: dogstrain, dogstest
        return any(all(name.lower() in _similar_names(word, names) for name in names) for word in WORDS["train"])
    return others == {()} or (len(others) == 1 and len(words) > 1)


def are_parts(names: Sequence[str]) -> bool:
    """Whether folders are parts of one, which differ in a number: images_001, HAM10000_images_part_2."""
    stems = {re.sub(r"\d+", "", name.lower()) for name in names}
    return len(names) > 1 and len(stems) == 1 and not PARTS.isdisjoint(re.findall(r"[a-z]+", stems.pop()))


def _similar_names(word: str, names: Iterable[str]) -> set[str]:
    """The names with this word that another one has with a word for another split, and those other ones."""
    lower = {name.lower() for name in names}
    pairs = ({name, name.replace(word, other)} for name in lower if word in name for other in WORDS["validation"])
    return set().union(*(pair for pair in pairs if pair <= lower))


def choose_split(paths: Sequence[Path], split: str) -> Path | None:
    """The file or folder of a split among others: by its exact name, a synonym in any case, or its words.

    Other words than a split's must be in the name of a training file or folder, too. Of several the first one is taken,
    and for training none.
    """
    # the whole name is the split
    by_name = {_stem(path): path for path in reversed(paths)}
    lower = {name.lower(): path for name, path in by_name.items()}
    for name in synonyms(split):
        if name in by_name or name.lower() in lower:
            return by_name.get(name) or lower[name.lower()]
    # one of its words is
    groups: dict[tuple[str, tuple[str, ...]], list[Path]] = {}
    for path in paths:
        parse = parse_split(_stem(path))
        if parse is not None:
            groups.setdefault(parse, []).append(path)
    training = [others for word, others in groups if word in WORDS["train"]]
    for word in synonyms(split):
        # those of a training file first, then those with the fewest other words (ptb.train before ptb.char.train)
        with_word = [others for one, others in groups if one == word]
        with_word.sort(key=lambda others: (others not in training, len(others)))
        for others in with_word:
            places = groups[word, others]
            is_paired = any(one[: len(others)] == others[: len(one)] for one in training)
            if (not others or is_paired) and (len(places) == 1 or word not in WORDS["train"]):
                return places[0]
    # a word is joined to others, and differs alone from a training file's
    for word in WORDS["train"]:
        similar_names = _similar_names(word, lower)
        for other in synonyms(split):
            places = [lower[name] for name in sorted(similar_names) if other in name]
            if places:
                return places[0]
    return None


def _stem(path: Path) -> str:
    """A file's name without its suffix, if that is not the split (fastText's cooking.train); a folder's whole name."""
    if shard := SHARD.fullmatch(path.name):
        return shard[1]
    return path.stem if path.suffix and path.suffix[1:].isalnum() and parse_split(path.suffix) is None else path.name
