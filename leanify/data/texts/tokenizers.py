"""Tokenizers, by name:

bytes              256 bytes and five special tokens
wordpiece-32768    WordPiece (Wu et al. 2016) of at most that many tokens, lower case as in BERT and Crammed BERT,
                   trained on the training text and cached
DIR or a hub id    loaded by AutoTokenizer

The library that reads a tokenizer's files is written in Rust: a damaged table ends the process, and rules that replace
one character by forty fill any memory. Neither can be caught here, so a fork with limits reads them first.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from leanify.core import bounds
from leanify.core.errors import DataError
from leanify.core.files import cache
from leanify.core.files.reading import MAX_BYTES, check_regular, open_file, read_object
from leanify.sources.names import snapshot
from leanify.sources.side_files import PATTERNS
from leanify.upstream.libraries import import_transformers, reraise_as

Lines = Callable[[], Iterable[str]]
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "tokenizer.model")
SOURCES = ("config.json", "tokenizer*", *PATTERNS)  # all that transformers may read to make a tokenizer
PROBE = "The quick brown fox; Ünïcode, 日本語, 🙂, 12.5 %\n\tjumps over the lazy dog. " * 4
LONGEST = 1 << 20  # characters of a text that is truncated or cut: a tokenizer needs a hundred bytes for each
SLOWEST = 50_000  # characters a second that a tokenizer must read; those in Python, the slowest, read 600,000
LETTERS = 1000  # largest alphabet, as in the tokenizers library's recipe for BERT
OTHERS = "name another directory with --set data.tokenizer=DIR, or bytes, or wordpiece-32768 to train one"
ROLES = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")


def make_tokenizer(name: str | None, lines: Lines, key: str) -> tuple[Any, str]:
    """A transformers tokenizer and its description. Raises DataError.

    A WordPiece is trained on ``lines()``, which may be called twice, and cached under ``key``, which must
    identify that text.
    """
    if name is None or name == "bytes":
        return _wrap(_bytes()), "as bytes"
    if (match := re.fullmatch(r"wordpiece-(\d+)", name)) is not None:
        return _wordpiece(int(match[1]), lines, key), f"by {name} trained on it"
    return load(name), f"by the tokenizer {name}"


def load(name: str | Path, instead: str = OTHERS) -> Any:
    """Load a tokenizer from a directory or the hub, without running code that comes with it.

    ``instead`` ends the error message. transformers builds a tokenizer without words in silence,
    where its vocabulary file is missing: that is an error here. Raises DataError.
    """
    folder, is_folder = Path(name), Path(name).is_dir()
    complaint = f"the tokenizer in {name} cannot be read"
    if not is_folder:
        complaint = f"the tokenizer {str(name)!r} is not a directory here, and the hub did not provide it: {instead}"
        with reraise_as(complaint, DataError):
            folder = snapshot(str(name), SOURCES)

    def read() -> Any:
        with reraise_as(complaint, DataError):
            return _read(folder, name, instead)

    _try_first(folder, read)
    tokenizer = read()
    tokenizer.name_or_path = str(name)
    return tokenizer


def _try_first(folder: Path, load: Callable[[], Any]) -> None:
    """Raise DataError if loading a folder's tokenizer, or reading a text with it, goes beyond the bound or fails."""
    # transformers may be told to read another file than tokenizer.json
    check_regular(folder, DataError)
    files = sorted({path for pattern in SOURCES for path in folder.glob(pattern) if path.is_file()})
    for path in files:
        open_file(path, DataError, MAX_BYTES).close()
    names = read_object(folder / "tokenizer_config.json", DataError).get("fast_tokenizer_files") or []
    file_names = {path.name for path in files}
    if not isinstance(names, list) or not file_names.issuperset(name for name in names if isinstance(name, str)):
        raise DataError(
            f"{folder}/tokenizer_config.json names fast_tokenizer_files that are no tokenizer files beside it"
        )
    # the same files were tried before
    digest = hashlib.sha256()
    for path in files:
        with open_file(path, DataError) as file:
            digest.update(path.name.encode() + hashlib.file_digest(file, "sha256").digest())
    record = cache.home() / "tokenizers" / f"{digest.hexdigest()[:32]}.json"
    if not cache.read_value(record, "harmless", bool):
        with contextlib.suppress(Exception):  # what both import is imported once, before the fork
            import_transformers().AutoConfig.from_pretrained(str(folder), trust_remote_code=False)
        bounds.call(lambda: bool(load()(PROBE)), f"the tokenizer in {folder}")
        with contextlib.suppress(OSError):  # it is tried again next time
            cache.write_value(record, "harmless", True)


def _read(folder: Path, name: str | Path, instead: str) -> Any:
    """Load a folder's tokenizer. Raises DataError for one that has no words."""
    tokenizer = import_transformers().AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)
    if set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):
        files = " or ".join(sorted(set(tokenizer.vocab_files_names.values())))
        raise DataError(
            f"the tokenizer in {name} is empty, so every word would be unknown: {type(tokenizer).__name__} reads "
            f"{files}, and found no words there; {instead}"
        )
    try:
        _ = tokenizer.unk_token_id
    except RecursionError:  # transformers looks for an unknown token in place of itself
        raise DataError(
            f"the tokenizer in {name} has no token {tokenizer.unk_token!r}, its own unk_token, in its vocabulary"
        ) from None
    return tokenizer


def encode(tokenizer: Any, *texts: Sequence[str], **options: Any) -> dict[str, list[np.ndarray]]:
    """Encode texts, or pairs of them: token ids of each text, and their types on request.

    It happens in a fork that is limited in memory and time. Raises DataError if the limits are too low, or if the
    tokenizer's rules fail: a regular expression among them may need exponential time, for which the library gives up.
    """
    what = f"the tokenizer {tokenizer.name_or_path}"
    size = sum(map(len, chain(*texts)))
    ids_and_lengths = bounds.call(partial(_encode, tokenizer, *texts, **options), what, bounds.SECONDS + size / SLOWEST)
    bounds.check(sum(flat.nbytes for flat, _ in ids_and_lengths.values()), f"what {what} makes of these texts")
    return {name: np.split(flat, lengths.cumsum()[:-1]) for name, (flat, lengths) in ids_and_lengths.items()}


def _encode(tokenizer: Any, *texts: Sequence[str], **options: Any) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Ids of all texts behind one another, and their number for each text, by name."""
    try:
        encodings = tokenizer(*texts, verbose=False, **options)
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise DataError(f"the tokenizer {tokenizer.name_or_path} fails on these texts: {error}") from None
    names = [name for name in ("input_ids", "token_type_ids") if name in encodings]
    lengths = np.array([len(ids) for ids in encodings["input_ids"]])
    return {name: (np.fromiter(chain.from_iterable(encodings[name]), np.int32), lengths) for name in names}


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder has a tokenizer in Hugging Face layout."""
    return any((folder / name).is_file() for name in FILES)


def check_fit(tokenizer: Any, vocabulary: int, by: str) -> None:
    """Raise DataError if a tokenizer has more tokens than the model's vocabulary."""
    if max(len(tokenizer), 1 + max(tokenizer.get_vocab().values(), default=0)) > vocabulary:
        raise DataError(
            f"text {by} has {len(tokenizer):,} tokens, but the model's vocabulary only {vocabulary:,}: name the "
            "model's own tokenizer in data.tokenizer, or set the model's vocabulary size in [model.override]"
        )


def _bytes() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {word: index for index, word in enumerate((*SPECIAL, *letters))}
    tokenizer = Tokenizer(models.BPE(vocab=words, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _wordpiece(size: int, lines: Lines, key: str) -> Any:
    if size < 64:
        raise DataError(f"a wordpiece of {size} tokens is too small to spell words; use at least 64, better thousands")
    home = cache.home() / "tokenizers" / f"wordpiece-{size}-{hashlib.sha256(key.encode()).hexdigest()[:24]}"
    if has_tokenizer(home):
        with contextlib.suppress(DataError):
            return load(str(home))
        shutil.rmtree(home, ignore_errors=True)  # a damaged one
    tokenizer = _wrap(_train(size, lines))
    with cache.new_entry(home, "the tokenizer") as folder:
        tokenizer.save_pretrained(folder)
    return load(str(home))


def _train(size: int, lines: Lines) -> Any:
    """Train a WordPiece deterministically.

    The library's trainer numbers continuation letters (``##a``) in the order of a hash table and breaks ties
    by these numbers, so its result is random. Passing them as special tokens fixes their order.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    # the alphabet: the most frequent letters, in an order of their own
    normalizer, splitter = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    counts: Counter[str] = Counter()
    for line in lines():
        counts.update(normalizer.normalize_str(line))
    letters = sorted(letter for letter in counts if not letter.isspace())
    letters.sort(key=lambda letter: -counts[letter])
    alphabet = sorted(letters[: min(LETTERS, size // 4)])
    inner_letters = [f"##{letter}" for letter in alphabet if len(splitter.pre_tokenize_str(f"a{letter}a")) == 1]

    def made(model: Any) -> Any:
        new = Tokenizer(model)
        new.normalizer, new.pre_tokenizer, new.decoder = normalizer, splitter, decoders.WordPiece()
        return new

    # the words, in a new model without the trainer's own state
    learner = made(models.WordPiece(unk_token="[UNK]"))
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        special_tokens=[*SPECIAL, *inner_letters],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    learner.train_from_iterator(lines(), trainer)
    return made(models.WordPiece(learner.get_vocab(), unk_token="[UNK]"))


def _wrap(tokenizer_model: Any) -> Any:
    """Wrap as a transformers tokenizer with BERT's template: [CLS] a [SEP], and [CLS] a [SEP] b [SEP]."""
    from tokenizers import processors

    tokenizer_model.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(word, tokenizer_model.token_to_id(word)) for word in ("[CLS]", "[SEP]")],
    )
    roles = dict(zip(ROLES, SPECIAL, strict=True))
    return import_transformers().PreTrainedTokenizerFast(tokenizer_object=tokenizer_model, **roles)
