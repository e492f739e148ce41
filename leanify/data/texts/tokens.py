"""Text of any size as token ids: in memory if small, in a memory-mapped cache file if large.

Text is always read and encoded in blocks that end after an end mark or a line, so that large and small texts
get the same ids. Cache files are written atomically, under a hash of text and tokenizer.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import numpy as np

from leanify.core import bounds
from leanify.core.errors import DataError
from leanify.core.files import cache, writing
from leanify.core.files.reading import not_utf8, open_file, preview, read_json, text_encoding
from leanify.layouts import hub
from leanify.layouts.columns import TABLES, find_shards, guess_texts, pick_columns
from leanify.layouts.faults import Faults
from leanify.layouts.rows import Row, number_rows, read_table
from leanify.layouts.text_folders import class_texts, list_texts

END = "<|endoftext|>"
BLOCK = 2**22  # characters encoded at a time
LARGE = 2**28  # bytes; the ids of larger texts are memory-mapped
Encode = Callable[[str], np.ndarray]


@dataclass(frozen=True)
class Ids:
    """Token ids (N,), the size of their text in bytes, and the largest id."""

    ids: np.ndarray
    bytes: int
    top: int


@dataclass(frozen=True)
class Text:
    """A text file, a folder of them, a table of texts, or a split of a hub data set, read piece by piece."""

    place: Path | tuple[str, str]
    faults: Faults = field(default_factory=Faults, compare=False)
    columns: tuple[str, ...] = ()  # that the user names

    def __str__(self) -> str:
        return str(self.place) if isinstance(self.place, Path) else ", ".join(self.place)

    @property
    def is_large(self) -> bool:
        return not isinstance(self.place, Path) or sum(file.stat().st_size for file in self._files) >= LARGE

    @property
    def _files(self) -> list[Path]:
        assert isinstance(self.place, Path)
        if hub.is_saved(self.place):
            return sorted(self.place.glob("*.arrow"))
        if not self.place.is_dir():
            return find_shards(self.place)
        return list_texts(self.place) or [*chain.from_iterable(class_texts(self.place).values())]

    def pieces(self) -> Iterator[str]:
        """Yield the text in pieces of any size, with end marks between a table's texts. Raises DataError."""
        some = False
        for piece in self._pieces():
            some = some or bool(piece.strip())
            yield piece
        if not some:
            raise DataError(f"{self} has no text")

    def _pieces(self) -> Iterator[str]:
        if isinstance(self.place, Path) and not hub.is_saved(self.place) and self.place.suffix.lower() not in TABLES:
            for number, file in enumerate(self._files):
                yield END * bool(number)
                yield from _decode_file(file)
            return
        if isinstance(self.place, Path):
            rows = read_texts(self.place, self.faults, self.columns)
        else:
            name, split = self.place
            rows = _read_column(Path(name), number_rows(hub.load_rows(name, split)), self.faults, self.columns)
        for number, row in enumerate(rows):
            yield END + row if number else row

    def read(self) -> str:
        """The whole text."""
        return "".join(self.pieces())

    def key(self) -> str:
        """A cache key that changes with the text: its files' sizes and times, or the hub's fingerprint."""
        if not isinstance(self.place, Path):
            return f"{hub.load_rows(*self.place)._fingerprint}{''.join(self.columns)}"
        facts = [(file.resolve(), file.stat()) for file in self._files]
        names = " ".join(f"{file} {stat.st_size} {stat.st_mtime_ns}" for file, stat in facts)
        return f"{names}{' skip' * self.faults.skip}{''.join(self.columns)}"


def read_texts(path: Path, faults: Faults | None = None, text_columns: Sequence[str] = ()) -> Iterator[str]:
    """Yield the texts of a table. Raises DataError for a row without text, unless ``faults`` are skipped."""
    faults = faults or Faults()

    def choose(names: Sequence[str]) -> list[str]:
        return [_choose_column(path, names, text_columns)]

    return _read_column(path, read_table(path, faults, choose), faults, text_columns)


def _choose_column(path: Path, names: Sequence[str], requested_columns: Sequence[str]) -> str:
    """The column of texts: the named one, one of a usual name, or the only one. Raises DataError."""
    guess = requested_columns or guess_texts(names) or (tuple(names) if len(names) == 1 else ())
    if not guess:
        raise DataError(
            f"{path} has no text column, found {preview(list(map(str, names)), 8)}: rename the one with the texts to "
            "text; in a recipe, --set data.text=COLUMN names it"
        )
    return pick_columns(path, names, text=(guess, ()))["text"][0]


def _read_column(
    path: Path, rows: Iterator[tuple[str, Row]], faults: Faults, text_columns: Sequence[str]
) -> Iterator[str]:
    """Yield the texts of (place, row) pairs, from the column that the first row has."""
    column = None
    for place, row in rows:
        column = column or _choose_column(path, list(row), text_columns)
        cell = row.get(column)
        if isinstance(cell, (list, tuple)):  # a chat's turns, or several texts, one below another
            turns = [turn.get("content", turn.get("value")) if isinstance(turn, dict) else turn for turn in cell]
            texts = [turn for turn in turns if isinstance(turn, str)]
            if texts and len(texts) == len(turns):
                cell = "\n".join(texts)
        text = faults.text(cell, f"{path}, {place}: {column}")
        if text is not None:
            yield text


def _decode_file(path: Path) -> Iterator[str]:
    encoding = text_encoding(path, DataError).removesuffix("-sig")  # a mark of UTF-8 stays, as in earlier runs
    decoder, place = codecs.getincrementaldecoder(encoding)(), 0
    with open_file(path, DataError) as file:
        while True:
            block = file.read(BLOCK)
            pending_bytes = len(decoder.getstate()[0])
            try:
                yield decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                where = place - pending_bytes + error.start
                raise DataError(f"{path} {not_utf8(path)}: byte {where} is {error.object[error.start]:#x}") from None
            if not block:
                return
            place += len(block)


def blocks(pieces: Iterator[str]) -> Iterator[str]:
    """Regroup text into blocks of one to two times BLOCK characters, ending after an end mark or a line if possible."""
    buffer: list[str] = []
    size = 0
    parts = (piece[start : start + BLOCK] for piece in pieces for start in range(0, len(piece), BLOCK))
    for part in parts:
        buffer.append(part)
        size += len(part)
        # a block ends behind the last end mark or line; the rest begins the next
        if size >= BLOCK:
            text = "".join(buffer)
            cut = max((text.rfind(mark) + len(mark) for mark in (END, "\n") if mark in text), default=len(text))
            yield text[:cut]
            buffer, size = [text[cut:]], len(text) - cut
    yield "".join(buffer)


def encode_pieces(pieces: Iterator[str], encode: Encode) -> Ids:
    """Encode a text in memory."""
    encodings, size = [], 0
    for block in blocks(pieces):
        encodings.append(encode(block))
        size += len(block.encode())
        bounds.check(sum(ids.nbytes for ids in encodings), "the token ids of this text")
    ids = np.concatenate(encodings)
    return Ids(ids, size, int(ids.max(initial=0)))


def encode_cached(source: str | Text, encode: Encode, by: str) -> Ids:
    """Encode a text, through the memory-mapped cache if it is large; ``by`` is ``encode`` in the key."""
    if isinstance(source, str):
        return encode_pieces(iter([source]), encode)
    if not source.is_large:
        return encode_pieces(source.pieces(), encode)
    digest = hashlib.sha256(f"{source.key()} {by}".encode()).hexdigest()[:24]
    home = cache.home() / "tokens" / digest
    # from the cache, written again if it is missing or damaged: ids, and a card with their number and type
    entry = _read(home)
    if entry is None:
        shutil.rmtree(home, ignore_errors=True)  # a damaged one
        size, count, top, kind, fault_count = 0, 0, 0, "", len(source.faults.names)
        with cache.new_entry(home, f"the token ids of {source}") as folder:
            with writing.open_atomic(folder / "ids.bin", sync=False) as file:
                for block in blocks(source.pieces()):
                    ids = encode(block)
                    ids.tofile(file)
                    size, count = size + len(block.encode()), count + len(ids)
                    top, kind = max(top, int(ids.max(initial=0))), ids.dtype.str
            facts = {"dtype": kind, "ids": count, "bytes": size, "top": top, "text": str(source)}
            facts["skipped"] = source.faults.names[fault_count:]
            writing.write(folder / "card.json", json.dumps(facts), sync=False)
        entry = _read(home)
    if entry is None:
        raise DataError(f"the token ids of {source} in {home} cannot be read: remove that folder")
    source.faults.names.extend(entry[1])
    return entry[0]


def _read(home: Path) -> tuple[Ids, list[str]] | None:
    """The cached ids and the skipped rows; None without a cache, or with a damaged one."""
    try:
        card = read_json(home / "card.json")
        ids = np.memmap(cache.regular_file(home / "ids.bin"), dtype=card["dtype"], mode="r")
        if len(ids) != card["ids"] or ids.dtype.kind not in "iu":
            return None
        return Ids(ids, int(card["bytes"]), int(card["top"])), list(map(str, card["skipped"]))
    except Exception:  # a damaged card raises what its words happen to be taken for
        return None
