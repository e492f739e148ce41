"""The contents of a tokenizer.json: WordPiece, byte-level BPE, BPE with byte fallback, or Unigram.

A vocabulary can be cut if each token that goes can be spelled by tokens that stay. Characters and bytes as a vocabulary
(CANINE, ByT5) and lists of whole words have no such tokens, and are refused with the reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from leanify.core import bounds
from leanify.core.errors import DataError, UnsupportedModel
from leanify.core.files.reading import read_object, read_text
from leanify.data.texts import tokenizers

FILE = "tokenizer.json"
BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")


@dataclass(frozen=True)
class Vocabulary:
    """The content of a tokenizer.json, and the names of the special tokens in its other files."""

    state: Mapping[str, Any]
    special: frozenset[str] = frozenset()

    @property
    def model(self) -> Mapping[str, Any]:
        model: Mapping[str, Any] = self.state["model"]
        return model

    @cached_property
    def kind(self) -> str:
        """WordPiece, BPE or Unigram."""
        return str(self.model["type"])

    @cached_property
    def ids(self) -> dict[str, int]:
        """The ids of the tokens that texts are split into, without tokens that are only added."""
        entries = self.model["vocab"]
        if isinstance(entries, dict):
            return dict(entries)
        return {word: number for number, (word, _) in enumerate(entries)}

    @cached_property
    def added(self) -> set[int]:
        """The ids of special and other added tokens, which are found in a text before it is split."""
        return {entry["id"] for entry in self.state.get("added_tokens") or ()}

    @cached_property
    def tokens(self) -> dict[int, str]:
        """Every token by its id, in the order of ids, those that are only added among them."""
        words = {number: word for word, number in self.ids.items()}
        words |= {entry["id"]: entry["content"] for entry in self.state.get("added_tokens") or ()}
        return dict(sorted(words.items()))

    @cached_property
    def scores(self) -> dict[int, float]:
        """A Unigram's log probabilities by id; {} for another kind."""
        if self.kind != "Unigram":
            return {}
        return {number: score for number, (_, score) in enumerate(self.model["vocab"])}

    @cached_property
    def merges(self) -> list[tuple[str, str]]:
        """The merges of a BPE in their order; [] for another kind."""
        pairs = []
        for merge in self.model.get("merges") or ():
            left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
            pairs.append((left, right))
        return pairs

    @cached_property
    def ranks(self) -> dict[tuple[str, str], int]:
        """The place of each merge in their order."""
        return {pair: rank for rank, pair in enumerate(self.merges)}

    @cached_property
    def makers(self) -> dict[str, list[tuple[str, str]]]:
        """The merges that make a token."""
        makers: dict[str, list[tuple[str, str]]] = {}
        for left, right in self.merges:
            makers.setdefault(self.join(left, right), []).append((left, right))
        return makers

    @cached_property
    def prefix(self) -> str:
        """The prefix of a token inside a word: ``##`` in BERT."""
        return self.model.get("continuing_subword_prefix") or ""

    @cached_property
    def suffix(self) -> str:
        """The suffix of a token at the end of a word: ``</w>`` in CLIP."""
        return self.model.get("end_of_word_suffix") or ""

    def join(self, left: str, right: str) -> str:
        """The product of a merge."""
        return left + right.removeprefix(self.prefix) if self.prefix else left + right


def read_vocabulary(folder: Path) -> Vocabulary:
    """Read the vocabulary of a tokenizer's folder.

    Raises UnsupportedModel for a vocabulary that cannot be cut, and DataError for a damaged file.
    """
    from tokenizers import Tokenizer

    # names of special tokens
    settings: dict[str, Any] = {}
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        if (folder / name).is_file():
            settings |= read_object(folder / name, DataError)

    # tokenizer.json, or what transformers makes of other files: vocab.txt, merges, a SentencePiece model
    if (folder / FILE).is_file() and not settings.get("fast_tokenizer_files"):
        text = read_text(folder / FILE, DataError)
    else:
        tokenizer = tokenizers.load(folder)
        if not tokenizer.is_fast:
            raise UnsupportedModel(
                f"{folder} has no {FILE}, from which the vocabulary is read, and {type(tokenizer).__name__} makes none"
            )
        text = tokenizer.backend_tokenizer.to_str()

    # the tokenizers library knows the kind, also of a file from before kinds were written, and refuses damaged ones
    kind = bounds.call(lambda: type(Tokenizer.from_str(text).model).__name__, f"the tokenizer {folder / FILE}")
    if kind not in ("WordPiece", "BPE", "Unigram"):
        raise UnsupportedModel(
            f"the vocabulary of {folder} is a {kind}: a token that goes must be spelled by others, which WordPiece, "
            "BPE and Unigram do"
        )
    state = json.loads(text)
    state["model"]["type"] = kind
    return Vocabulary(state, frozenset(_special_names(settings)))


def spell(vocabulary: Vocabulary, word: str) -> list[str]:
    """Return the single characters of a token as the vocabulary writes them: ``##ab`` is ``##a`` and ``##b``."""
    prefix, suffix = vocabulary.prefix, vocabulary.suffix
    if not prefix and not suffix:
        return list(word) or [word]
    is_inner = bool(prefix) and word.startswith(prefix) and len(word) > len(prefix)
    is_end = bool(suffix) and word.endswith(suffix) and len(word) > len(suffix)
    letters = list(word.removeprefix(prefix) if is_inner else word)
    if is_end:
        letters = letters[: -len(suffix)]
    if not letters:
        return [word]
    symbols = [letters[0] if not is_inner else prefix + letters[0]]
    symbols += [prefix + letter for letter in letters[1:]]
    if is_end:
        symbols[-1] += suffix
    return symbols


def _special_names(settings: Mapping[str, Any]) -> list[str]:
    """The special tokens that tokenizer_config.json and special_tokens_map.json name."""
    names: list[str] = []
    for key, value in settings.items():
        values = value if isinstance(value, list) else [value]
        if isinstance(value, dict) and "content" not in value:
            values = list(value.values())
        if not key.endswith(("_token", "special_tokens")):
            continue
        for one in values:
            content = one.get("content") if isinstance(one, dict) else one
            if isinstance(content, str):
                names.append(content)
    return names
