"""Which tokens to keep: by counts, with the tokenizer's own prior, or by the damage of a split, at equal size.

    python -m recipes.research.vocabulary CHECKPOINT --data FOLDER --other OTHER.txt [--size 8000] [--counted 8000]

Ranks the tokens by texts of the data, keeps equally many, and prints for new texts of the data and for lines of another
domain: the share that is split as before, the length of all, and what the model still says with no other change (the
cosine of a sentence encoder's embeddings, or −nats a byte).
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections import Counter
from pathlib import Path

import leanify
from leanify.data.texts import tokenizers
from leanify.vocabulary.closure import KeptTokens, RankedTokens
from leanify.vocabulary.cut_model import checkpoint_vocabulary, named_ids
from leanify.vocabulary.ranking import rank_by_damage, rank_tokens
from recipes.research.checkpoint_subject import LENGTH, Sample, Small, Subject
from recipes.research.vocabulary_law import save_cut


def measure(subject: Subject, other: list[Sample], size: int, counted: int) -> None:
    model, reader = subject.original.model, subject.original.reader
    vocabulary, is_language_model = checkpoint_vocabulary(model), subject.is_language_model
    domains = {"new texts": subject.judging, "another domain": other}
    old = {name: split(subject.original, samples) for name, samples in domains.items()}
    counts = Counter(number for texts, _ in subject.train[:counted] for number in reader(texts[0])["input_ids"])
    print(f"{subject.source.name}, {size:,} of {len(vocabulary.tokens):,} tokens, {counted:,} texts counted\n")
    print("| tokens | " + " | ".join(f"{name}: as before | length | score" for name in domains) + " |")
    print("|---" * (1 + 3 * len(domains)) + "|")
    rankings = {
        "counts": rank_tokens(vocabulary, counts, 0),
        "counts and prior": rank_tokens(vocabulary, counts),
        "damage": rank_by_damage(vocabulary, counts, model, is_language_model),
        "damage as of the other kind of model": rank_by_damage(vocabulary, counts, model, not is_language_model),
    }
    for ranking_name, ranking in rankings.items():
        kept = RankedTokens.of(vocabulary, ranking, named_ids(model)).keep(size)
        with tempfile.TemporaryDirectory() as folder:
            place = save_cut(model, vocabulary, kept, Path(folder) / "cut")
            small = Small(leanify.load(place).eval(), tokenizers.load(place))
            cells = []
            for name, samples in domains.items():
                cells += [*compare(old[name], split(small, samples), kept), f"{subject.score(small, samples):.4f}"]
        print(f"| {ranking_name} | " + " | ".join(cells) + " |", flush=True)


def split(small: Small, samples: list[Sample]) -> list[list[int]]:
    return [small.reader(texts[0])["input_ids"] for texts, _ in samples]


def compare(old: list[list[int]], new: list[list[int]], kept: KeptTokens) -> list[str]:
    """The share of texts that are split as before, and the length of all as a multiple."""
    same = sum(all(number in kept.new_ids for number in ids) for ids in old)
    return [f"{100 * same / len(old):.1f} %", f"{sum(map(len, new)) / sum(map(len, old)):.4f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--other", type=Path, required=True)
    parser.add_argument("--size", type=int, default=8_000)
    parser.add_argument("--counted", type=int, default=8_000)
    options = parser.parse_args()
    subject = Subject(options.checkpoint, options.data, False)
    lines = [line for line in options.other.read_text(encoding="utf-8").splitlines() if len(line) > 40]
    random.Random(1).shuffle(lines)
    other: list[Sample] = [((line[: 4 * LENGTH],), 0) for line in lines[: len(subject.judging)]]
    measure(subject, other, options.size, options.counted)


if __name__ == "__main__":
    main()
