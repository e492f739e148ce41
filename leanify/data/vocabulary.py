"""Tokenizers: one stored in Hugging Face layout, bytes in that layout, or a WordPiece that is trained.

bytes              256 bytes and five special words
wordpiece-32768    at most that many words and pieces, trained on the training text (Wu et al. 2016), lower case, as
                   BERT and Crammed BERT have them; kept in the cache by what it was trained on
DIR or a hub id    whatever AutoTokenizer finds there
"""

from __future__ import annotations

import hashlib
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from leanify.data import cache
from leanify.errors import DataError
from leanify.sources.files import check_regular
from leanify.upstream.libraries import import_transformers
from leanify.upstream.wall import wall

Lines = Callable[[], Iterable[str]]
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "tokenizer.model")
LETTERS = 1000  # at most this many, as the library's own recipe for BERT has it
ROLES = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")


def tokenizer_of(name: str | None, lines: Lines, key: str) -> tuple[Any, str]:
    """A tokenizer of transformers, and what it is in words.

    One that is trained is trained on ``lines()``, which may be asked for more than once; ``key`` tells that text from
    another. Raises DataError.
    """
    if name is None or name == "bytes":
        return _dressed(_bytes()), "as bytes"
    if (found := re.fullmatch(r"wordpiece-(\d+)", name)) is not None:
        return _wordpiece(int(found[1]), lines, key), f"by {name} of its own"
    return load(name), f"by the tokenizer {name}"


def load(name: str | Path, instead: str = "or bytes, or wordpiece-32768 to train one") -> Any:
    """The tokenizer of a directory or of the hub; no code that comes with it is run, nor is anybody asked whether to.

    ``instead`` says what else would do. Raises DataError.
    """
    asked = (
        f"the tokenizer in {name} cannot be read"
        if Path(name).is_dir()
        else (
            f"the tokenizer {str(name)!r} is not a directory here, and the hub did not provide it: name a directory, "
            f"--set data.tokenizer=DIR, {instead}"
        )
    )
    if Path(name).is_dir():
        check_regular(Path(name), DataError)
    with wall(asked, DataError):
        return import_transformers().AutoTokenizer.from_pretrained(str(name), trust_remote_code=False)


def lies_in(folder: Path) -> bool:
    """Whether a folder holds a tokenizer in Hugging Face layout."""
    return any((folder / name).is_file() for name in FILES)


def check_fit(tokenizer: Any, vocabulary: int, by: str) -> None:
    """Raise where a tokenizer has words that a model does not know."""
    if len(tokenizer) > vocabulary:
        raise DataError(
            f"text {by} has {len(tokenizer):,} words, and the model's vocabulary has {vocabulary:,}: name the model's "
            "own tokenizer in data.tokenizer, or set the model's vocabulary size in [model.override]"
        )


def _bytes() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {word: index for index, word in enumerate((*SPECIAL, *letters))}
    made = Tokenizer(models.BPE(vocab=words, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    return made


def _wordpiece(size: int, lines: Lines, key: str) -> Any:
    """Trained, or from the cache."""
    if size < 64:
        raise DataError(f"a wordpiece of {size} words cannot spell: give it at least 64, better thousands")
    home = cache.home() / "tokenizers" / f"wordpiece-{size}-{hashlib.sha256(key.encode()).hexdigest()[:24]}"
    if not lies_in(home):
        _keep(_dressed(_trained(size, lines)), home)
    return load(str(home))


def _trained(size: int, lines: Lines) -> Any:
    """The same texts give the same words.

    The library's trainer numbers the letters that go on a word as it meets them in a hash table, and breaks ties by
    these numbers. They are given to it as words that are there already.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    normalizer, splitter = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    counts: Counter[str] = Counter()
    for line in lines():
        counts.update(normalizer.normalize_str(line))
    ranked = sorted((letter for letter in counts if not letter.isspace()), key=lambda letter: (-counts[letter], letter))
    alphabet = sorted(ranked[: min(LETTERS, size // 4)])
    inside = [f"##{letter}" for letter in alphabet if len(splitter.pre_tokenize_str(f"a{letter}a")) == 1]

    def made(model: Any) -> Any:
        new = Tokenizer(model)
        new.normalizer, new.pre_tokenizer, new.decoder = normalizer, splitter, decoders.WordPiece()
        return new

    learner = made(models.WordPiece(unk_token="[UNK]"))
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        special_tokens=[*SPECIAL, *inside],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    learner.train_from_iterator(lines(), trainer)
    return made(models.WordPiece(learner.get_vocab(), unk_token="[UNK]"))


def _dressed(made: Any) -> Any:
    """As transformers has it, with BERT's template: [CLS] a [SEP], and [CLS] a [SEP] b [SEP]."""
    from tokenizers import processors

    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(word, made.token_to_id(word)) for word in ("[CLS]", "[SEP]")],
    )
    roles = dict(zip(ROLES, SPECIAL, strict=True))
    return import_transformers().PreTrainedTokenizerFast(tokenizer_object=made, **roles)


def _keep(tokenizer: Any, home: Path) -> None:
    """Written under a temporary name, then renamed; a second process writes the same."""
    home.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{home.name}.", dir=home.parent))
    try:
        tokenizer.save_pretrained(folder)
        if not home.exists():
            folder.rename(home)
    except OSError as error:
        if not lies_in(home):
            raise DataError(f"the tokenizer could not be kept in {home}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
