"""Texts as token ids: by the tokenizer beside a model where there is one, else as bytes."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from leanify.data import hub
from leanify.errors import DataError
from leanify.upstream.libraries import import_transformers

Encode = Callable[[str, bool], list[int]]  # a text, and whether to add what the tokenizer puts around a sample
COLUMNS = ("text", "sentence", "review", "content", "sentence1", "question")
TABLES = (".csv", ".tsv", ".jsonl", ".parquet")
TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "tokenizer.model")


def encoder(directory: Path | None, vocab: int) -> tuple[Encode, str]:
    """How text becomes token ids, with that in words: a directory's own tokenizer, else bytes modulo the vocabulary."""
    if directory is None or not any((directory / name).is_file() for name in TOKENIZERS):
        return (
            lambda text, _: [byte % vocab for byte in text.encode()]
        ), f"bytes modulo {vocab}, for want of a tokenizer"
    tokenizer = import_transformers().AutoTokenizer.from_pretrained(directory, local_files_only=True)

    def encode(text: str, around: bool) -> list[int]:
        return list(tokenizer(text, add_special_tokens=around, verbose=False)["input_ids"])

    return encode, f"the tokenizer in {directory}"


def batches(path: Path, encode: Encode, samples: int, batch_size: int, tokens: int) -> Iterator[dict[str, Tensor]]:
    """At most ``samples`` samples as (input_ids, attention_mask), padded on the right to the longest of their batch.

    A row of a table (.csv, .tsv, .jsonl, .parquet) is a sample, cut off after ``tokens``; a text file is cut into
    pieces of that many, what is left at its end being dropped unless it is all there is.
    """
    if not path.is_file():
        raise DataError(f"{path} does not exist")
    rows = rows_in(path) if path.suffix in TABLES else None
    found = (encode(text, True)[:tokens] for text in rows) if rows else _pieces(path, encode, tokens)
    wanted = islice((ids for ids in found if ids), samples)
    empty = True
    while batch := list(islice(wanted, batch_size)):
        empty = False
        yield _padded(batch)
    if empty:
        raise DataError(f"{path} holds no text")


def _padded(batch: list[list[int]]) -> dict[str, Tensor]:
    longest = max(len(ids) for ids in batch)
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in batch])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in batch])
    return {"input_ids": ids, "attention_mask": mask}


def _pieces(path: Path, encode: Encode, tokens: int) -> Iterator[list[int]]:
    """Consecutive pieces of a text file, read a part at a time."""
    held: list[int] = []
    whole = False
    with path.open(encoding="utf-8", errors="replace") as file:
        while part := "".join(islice(file, 64)):
            held += encode(part, False)
            while len(held) >= tokens:
                whole = True
                yield held[:tokens]
                held = held[tokens:]
    if held and not whole:
        yield held


def rows_in(path: Path) -> Iterator[str]:
    if path.suffix == ".parquet":
        yield from column_of_texts(path, hub.parquet(path, COLUMNS))
        return
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        try:
            if path.suffix == ".jsonl":
                yield from column_of_texts(path, (json.loads(line) for line in file if line.strip()))
            else:
                yield from column_of_texts(path, csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ","))
        except (json.JSONDecodeError, csv.Error, AttributeError) as error:
            raise DataError(f"{path} is no {path.suffix[1:]} table: {error}") from error


def column_of_texts(path: Path, rows: Iterator[dict[str, str]]) -> Iterator[str]:
    column = None
    for row in rows:
        column = column or next((name for name in COLUMNS if name in row), None)
        if column is None:
            raise DataError(f"{path} has no column of text: looked for {', '.join(COLUMNS)}, found {', '.join(row)}")
        yield row[column]
