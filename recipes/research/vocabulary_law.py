"""The law of fewer tokens on a checkpoint: a text whose tokens stay is split and computed as before.

    python -m recipes.research.vocabulary_law CHECKPOINT TEXTS OTHER_TEXTS [--size 8000] [--texts 2000]

Counts tokens on other texts of the first file, keeps ``--size`` of them, and prints for each file how many of its texts
have kept tokens alone, how many of these are split otherwise, and the largest difference of the models' outputs: hidden
states, or the logits of kept tokens and the loss, which must not rise.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

import leanify
from leanify.core.files.reading import read_lines
from leanify.sources.side_files import copy_side_files
from leanify.vocabulary.closure import KeptTokens, RankedTokens
from leanify.vocabulary.cut_model import cut_model, named_ids
from leanify.vocabulary.cut_tokenizer import cut_state, cut_tokenizer
from leanify.vocabulary.kinds import Vocabulary, read_vocabulary
from leanify.vocabulary.ranking import rank_tokens

COUNTED, LENGTH = 8_000, 256  # texts; tokens of a text that are compared


def save_cut(model: Any, vocabulary: Vocabulary, tokens: KeptTokens, directory: Path) -> Path:
    """Write a checkpoint with fewer tokens, and its tokenizer, as a folder that its own library opens."""
    new: Any = cut_model(model, tokens)
    with tempfile.TemporaryDirectory() as folder:
        copy_side_files(model, Path(folder))
        cut_tokenizer(Path(folder), vocabulary, tokens)
        new.config._name_or_path = folder
        leanify.save(new, directory)
    return directory


def compare(folder: Path, files: list[Path], size: int, count: int) -> None:
    model = leanify.load(folder).eval().float()
    vocabulary = read_vocabulary(folder)
    old = _tokenizer((folder / "tokenizer.json").read_text("utf-8"))
    texts = [[line.strip() for line in read_lines(file) if line.strip()] for file in files]
    counted = old.encode_batch(texts[0][count : count + COUNTED])
    counts = Counter(number for encoding in counted for number in encoding.ids)
    kept = RankedTokens.of(vocabulary, rank_tokens(vocabulary, counts), named_ids(model)).keep(size)
    new, smaller = _tokenizer(json.dumps(cut_state(vocabulary, kept))), cut_model(model, kept)
    length = min(LENGTH, getattr(model.config, "max_position_embeddings", LENGTH))

    print(f"{folder.name}, {size:,} of {kept.old_count:,} tokens\n")
    print("| texts | of kept tokens alone | split otherwise | largest difference | loss rises |\n|---|---|---|---|---|")
    for file, several in zip(files, texts, strict=True):
        some = several[:count]
        before, after = ([encoding.ids for encoding in words.encode_batch(some)] for words in (old, new))
        pairs = [pair for pair in zip(before, after, strict=True) if all(number in kept.new_ids for number in pair[0])]
        renumbered = [[kept.new_ids[number] for number in ids] for ids, _ in pairs]
        others = sum(ids != pair[1] for ids, pair in zip(renumbered, pairs, strict=True))
        difference, rises = 0.0, 0
        for ids, new_ids in pairs:
            one, rise = difference_of(model, smaller, ids[:length], new_ids[:length], kept)
            difference, rises = max(difference, one), rises + rise
        print(f"| {len(some):,} of {file.name} | {len(pairs):,} | {others} | {difference:g} | {rises} |", flush=True)


@torch.no_grad()
def difference_of(model: Any, smaller: Any, ids: list[int], new_ids: list[int], kept: KeptTokens) -> tuple[float, bool]:
    """Return the largest difference of the outputs for a text, and whether the loss of the smaller model is higher."""
    before, after = (_outputs(one, torch.tensor([some])) for one, some in ((model, ids), (smaller, new_ids)))
    if before.shape[-1] == after.shape[-1]:  # hidden states
        return float((before - after).abs().max()), False
    difference = float((before[..., list(kept.ids)] - after).abs().max())
    if len(ids) < 2:
        return difference, False
    losses = []
    for logits, targets in ((before, ids), (after, new_ids)):
        losses.append(torch.nn.functional.cross_entropy(logits[0, :-1].double(), torch.tensor(targets[1:])))
    return difference, bool(losses[1] > losses[0])


def _outputs(model: Any, ids: Tensor) -> Tensor:
    output: Tensor = model(input_ids=ids)[0]
    return output


def _tokenizer(text: str) -> Any:
    words = Tokenizer.from_str(text)
    words.no_truncation()
    words.no_padding()
    return words


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--size", type=int, default=8_000)
    parser.add_argument("--texts", type=int, default=2_000)
    arguments = parser.parse_args()
    compare(arguments.folder, arguments.files, arguments.size, arguments.texts)


if __name__ == "__main__":
    main()
