"""What the tokenizer's own prior adds to counts, on texts of another domain, at equal size of the vocabulary.

    python -m recipes.research.vocabulary CHECKPOINT COUNTED.txt OTHER.txt [--size 8000]

Prints the share of new texts that are split as before, and how long all are, of the counted domain and of the other:
for tokens ranked by counts alone (equal ones by chance), and by counts smoothed by several multiples of the
number of different tokens.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from leanify.core.files.reading import read_lines
from leanify.vocabulary.closure import RankedTokens
from leanify.vocabulary.cut_tokenizer import cut_state
from leanify.vocabulary.kinds import Vocabulary, read_vocabulary
from leanify.vocabulary.ranking import rank_tokens

COUNTED, NEW = (500, 2_000, 8_000), 2_000  # texts
MULTIPLES = (0, 0.25, 1, 4, 16)  # of the number of different tokens: weights of the prior, 4 is the usual one


def measure(folder: Path, counted: list[str], other: list[str], size: int) -> None:
    vocabulary = read_vocabulary(folder)
    whole = Tokenizer.from_file(str(folder / "tokenizer.json"))
    whole.no_truncation()
    whole.no_padding()
    held_out, known = counted[:NEW], counted[NEW:]
    domains = {"new texts": held_out, "another domain": other[:NEW]}
    old = {name: [encoding.ids for encoding in whole.encode_batch(texts)] for name, texts in domains.items()}
    print(f"{folder.name}, {size:,} of {len(vocabulary.tokens):,} tokens\n")
    print("| texts | prior | " + " | ".join(f"{name}: as before | length" for name in domains) + " |")
    print("|---" * (2 + 2 * len(domains)) + "|")
    for texts in COUNTED:
        ids = [encoding.ids for encoding in whole.encode_batch(known[:texts])]
        counts = Counter(number for text in ids for number in text)
        for multiple in MULTIPLES:
            cells = _compare(vocabulary, counts, multiple, size, domains, old)
            print(f"| {texts:,} | × {multiple:g} | " + " | ".join(cells) + " |", flush=True)


def _compare(
    vocabulary: Vocabulary, counts: Counter[int], multiple: float, size: int, domains: Any, old: Any
) -> list[str]:
    """The share of texts that are split as before, and the length of all, for each domain."""
    ranking = rank_tokens(vocabulary, counts, multiple * len(counts))
    if not multiple:
        random.Random(0).shuffle(ranking)
        ranking.sort(key=lambda number: -counts[number])
    kept = RankedTokens.of(vocabulary, ranking).keep(size)
    small = Tokenizer.from_str(json.dumps(cut_state(vocabulary, kept)))
    small.no_truncation()
    small.no_padding()
    cells = []
    for name, texts in domains.items():
        new = [encoding.ids for encoding in small.encode_batch(texts)]
        same = sum(all(number in kept.new_ids for number in ids) for ids in old[name])
        ratio = sum(map(len, new)) / sum(map(len, old[name]))
        cells += [f"{100 * same / len(texts):.1f} %", f"{ratio:.4f}"]
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("counted", type=Path)
    parser.add_argument("other", type=Path)
    parser.add_argument("--size", type=int, default=8_000)
    arguments = parser.parse_args()
    counted, other = (
        [line.strip() for line in read_lines(file) if line.strip()] for file in (arguments.counted, arguments.other)
    )
    measure(arguments.folder, counted, other, arguments.size)


if __name__ == "__main__":
    main()
