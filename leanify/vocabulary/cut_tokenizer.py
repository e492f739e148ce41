"""Write a tokenizer of fewer tokens: tokenizer.json and the other files that list tokens or ids.

The rules that split a text stay as they are. A SentencePiece model (``spiece.model``, ``tokenizer.model``) is left out:
tokenizer.json holds all of it, and transformers and tokenizers read that.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from leanify.core import bounds
from leanify.core.errors import DataError
from leanify.core.files import writing
from leanify.core.files.reading import read_lines, read_object
from leanify.vocabulary.closure import KeptTokens
from leanify.vocabulary.kinds import FILE, Vocabulary

# sources of a tokenizer.json, and other versions of it
LEFT_OUT = ("*.model", "*.spm", "*.tiktoken", "*.bpe", "bpe.codes", "dict.txt", "tokenizer.*.json")


def cut_tokenizer(folder: Path, vocabulary: Vocabulary, tokens: KeptTokens) -> None:
    """Cut the tokenizer's files in a folder, in place; files that transformers does not need are removed.

    Raises DataError if the tokenizers library does not give the kept tokens their new ids.
    """
    if tokens.is_all:
        return
    state = cut_state(vocabulary, tokens)
    text = json.dumps(state, ensure_ascii=False)
    _check_ids(text, vocabulary, tokens)
    writing.write(folder / FILE, text)
    # other files with lists of tokens and ids
    for path in sorted(folder.iterdir()):
        if any(fnmatch(path.name, pattern) for pattern in LEFT_OUT):
            path.unlink()
        else:
            _cut_file(path, state, tokens)


def cut_state(vocabulary: Vocabulary, tokens: KeptTokens) -> dict[str, Any]:
    """Return the content of a tokenizer.json with the kept tokens alone."""
    new_ids = tokens.new_ids
    model = dict(vocabulary.model)
    if vocabulary.kind == "Unigram":
        model["vocab"] = [entry for number, entry in enumerate(vocabulary.model["vocab"]) if number in new_ids]
        unknown = model.get("unk_id")
        model["unk_id"] = None if unknown is None else new_ids[unknown]
    else:
        words = sorted(vocabulary.ids.items(), key=lambda item: item[1])
        model["vocab"] = {word: new_ids[number] for word, number in words if number in new_ids}
    if vocabulary.kind == "BPE":
        words_left = model["vocab"]
        pairs = zip(vocabulary.model["merges"], vocabulary.merges, strict=True)
        model["merges"] = [
            merge
            for merge, (left, right) in pairs
            if left in words_left and right in words_left and vocabulary.join(left, right) in words_left
        ]
    # ids in the rest of the file
    state = {**vocabulary.state, "model": model}
    added_tokens = state.get("added_tokens") or ()
    state["added_tokens"] = [{**entry, "id": new_ids[entry["id"]]} for entry in added_tokens]
    state["post_processor"] = _cut_processor(state.get("post_processor"), new_ids)
    padding = state.get("padding")
    if isinstance(padding, dict) and padding.get("pad_id") in new_ids:
        state["padding"] = {**padding, "pad_id": new_ids[padding["pad_id"]]}
    return state


def _cut_processor(processor: Any, new_ids: Mapping[int, int]) -> Any:
    """Return a post-processor with new ids: a template, BERT's or RoBERTa's, or a sequence of such."""
    if not isinstance(processor, dict):
        return processor
    result = dict(processor)
    if isinstance(processor.get("processors"), list):
        result["processors"] = [_cut_processor(one, new_ids) for one in processor["processors"]]
    if isinstance(processor.get("special_tokens"), dict):
        tokens = processor["special_tokens"]
        result["special_tokens"] = {
            word: {**token, "ids": [new_ids[number] for number in token["ids"]]} for word, token in tokens.items()
        }
    for key in ("sep", "cls"):
        if isinstance(processor.get(key), list):
            word, number = processor[key]
            result[key] = [word, new_ids[number]]
    return result


def _check_ids(text: str, vocabulary: Vocabulary, tokens: KeptTokens) -> None:
    """Raise DataError if the tokenizers library numbers the tokens of the cut file otherwise."""
    from tokenizers import Tokenizer

    numbers = bounds.call(lambda: Tokenizer.from_str(text).get_vocab(with_added_tokens=True), "the cut tokenizer")
    for old, new in tokens.new_ids.items():
        word = vocabulary.tokens[old]
        if numbers.get(word) != new:
            raise DataError(
                f"the token {word!r} has id {old} in {FILE} and would have {new} in a smaller vocabulary, but the "
                f"tokenizers library reads {numbers.get(word)}: its ids do not follow from the file"
            )


def _cut_file(path: Path, state: Mapping[str, Any], tokens: KeptTokens) -> None:
    """Rewrite one of the other files of a tokenizer that list tokens or ids; others stay as they are."""
    new_ids, vocabulary = tokens.new_ids, state["model"]["vocab"]
    content: Any
    if path.name == "vocab.txt":  # a line a token, and added tokens at their places
        words = {number: word for word, number in vocabulary.items()}
        words |= {entry["id"]: entry["content"] for entry in state["added_tokens"]}
        writing.write(path, "".join(f"{words[number]}\n" for number in sorted(words)))
        return
    if path.name == "merges.txt":
        head = next(iter(read_lines(path, DataError)), "")
        lines = [head.rstrip("\n")] if head.startswith("#version") else []
        lines += [merge if isinstance(merge, str) else " ".join(merge) for merge in state["model"]["merges"]]
        writing.write(path, "\n".join(lines) + "\n")
        return
    if path.name == "vocab.json":
        content = vocabulary
    elif path.name == "added_tokens.json":
        numbers = read_object(path, DataError)
        content = {word: new_ids[old] for word, old in numbers.items() if old in new_ids}
    elif path.name == "tokenizer_config.json":
        content = read_object(path, DataError)
        content.pop("fast_tokenizer_files", None)  # names of other versions of tokenizer.json, read in its place
        decoder = content.get("added_tokens_decoder")
        if isinstance(decoder, dict):
            remaining = {int(number): token for number, token in decoder.items() if int(number) in new_ids}
            content["added_tokens_decoder"] = {str(new_ids[number]): token for number, token in remaining.items()}
    else:
        return
    writing.write(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
