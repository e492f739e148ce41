"""Read texts and encode them, with the model's tokenizer if it has one, otherwise as bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from leanify.core.errors import DataError
from leanify.core.files.reading import preview, read_lines
from leanify.data.texts import tokenizers
from leanify.layouts.columns import guess_texts, is_table, pick_columns
from leanify.layouts.faults import Faults
from leanify.layouts.rows import Row, read_table

Encode = Callable[[list[str], bool], list[list[int]]]  # texts, whether to add special tokens → ids of each


def encoder(directory: Path | None, vocab: int) -> tuple[Encode, str]:
    """A function from text to token ids, and its description: the directory's tokenizer, or bytes."""
    if directory is None or not tokenizers.has_tokenizer(directory):
        words = f"bytes modulo {vocab}, as there is no tokenizer"
        return (lambda texts, _: [[byte % vocab for byte in text.encode()] for text in texts]), words
    tokenizer = tokenizers.load(directory, "put the tokenizer that the model was trained with there")

    def encode(texts: list[str], with_ends: bool) -> list[list[int]]:
        return [ids.tolist() for ids in tokenizers.encode(tokenizer, texts, add_special_tokens=with_ends)["input_ids"]]

    return encode, f"the tokenizer in {directory}"


def batches(path: Path, encode: Encode, samples: int, batch_size: int, tokens: int) -> Iterator[dict[str, Tensor]]:
    """Yield batches of input_ids and attention_mask (B, N), right-padded, with up to ``samples`` samples.

    In a table each row is a sample, truncated to ``tokens``. A text file is cut into pieces of ``tokens``; an
    incomplete last piece is dropped unless it is the only one. Raises DataError.
    """
    if not path.is_file():
        raise DataError(f"{path} does not exist")
    encodings = _pieces(path, encode, tokens)
    if is_table(path):
        encodings = _rows(path, encode, tokens, batch_size)
    chosen = islice((ids for ids in encodings if ids), samples)
    empty = True
    while batch := list(islice(chosen, batch_size)):
        empty = False
        rows = pad_sequence([torch.tensor(ids) for ids in batch], batch_first=True)
        mask = pad_sequence([torch.ones(len(ids), dtype=torch.long) for ids in batch], batch_first=True)
        yield {"input_ids": rows, "attention_mask": mask}
    if empty:
        raise DataError(f"{path} has no text")


def _rows(path: Path, encode: Encode, tokens: int, batch_size: int) -> Iterator[list[int]]:
    """The texts of a table, encoded as many at a time as a batch has."""
    texts = (text[: tokenizers.LONGEST] for text in read_texts(path))
    while some := list(islice(texts, batch_size)):
        yield from (ids[:tokens] for ids in encode(some, True))


def _pieces(path: Path, encode: Encode, tokens: int) -> Iterator[list[int]]:
    """Consecutive pieces of a text file, read 64 lines at a time."""
    buffer: list[int] = []
    is_cut = False
    lines = read_lines(path, DataError)
    while part := "".join(islice(lines, 64)):
        for start in range(0, len(part), tokenizers.LONGEST):
            buffer += encode([part[start : start + tokenizers.LONGEST]], False)[0]
            full_length = len(buffer) // tokens * tokens
            yield from (buffer[place : place + tokens] for place in range(0, full_length, tokens))
            is_cut, buffer = is_cut or full_length > 0, buffer[full_length:]
    if buffer and not is_cut:
        yield buffer


def read_texts(path: Path, faults: Faults | None = None, text_columns: Sequence[str] = ()) -> Iterator[str]:
    """Yield the texts of a table. Raises DataError for a row without text, unless ``faults`` are skipped."""
    faults = faults or Faults()

    def choose(names: Sequence[str]) -> list[str]:
        return [choose_text(path, names, text_columns)]

    return read_text_column(path, read_table(path, faults, choose), faults, text_columns)


def choose_text(path: Path, names: Sequence[str], requested_columns: Sequence[str]) -> str:
    """The column of texts: the named one, one of a usual name, or the only one. Raises DataError."""
    guess = requested_columns or guess_texts(names) or (tuple(names) if len(names) == 1 else ())
    if not guess:
        raise DataError(
            f"{path} has no text column, found {preview(list(map(str, names)), 8)}: rename the one with the texts to "
            "text; in a recipe, --set data.text=COLUMN names it"
        )
    return pick_columns(path, names, text=(guess, ()))["text"][0]


def read_text_column(
    path: Path, rows: Iterator[tuple[str, Row]], faults: Faults, text_columns: Sequence[str] = ()
) -> Iterator[str]:
    """Yield the texts of (place, row) pairs, from the column that the first row has."""
    column = None
    for place, row in rows:
        column = column or choose_text(path, list(row), text_columns)
        text = faults.text(_join_turns(row.get(column)), f"{path}, {place}: {column}")
        if text is not None:
            yield text


def _join_turns(cell: Any) -> Any:
    """The text of a chat's turns, or of several texts, one below another; any other cell as it is."""
    if not isinstance(cell, (list, tuple)):
        return cell
    turns: list[Any] = [turn.get("content", turn.get("value")) if isinstance(turn, dict) else turn for turn in cell]
    return "\n".join(turns) if turns and all(isinstance(turn, str) for turn in turns) else cell
