"""Ids in a transformers configuration: sizes of vocabularies, special tokens, and lists for generation.

An id that a configuration needs (padding, begin, end, image, audio) names a token that stays. Tokens of a list that
generation avoids (``suppress_tokens``, ``bad_words_ids``) may go, and leave the list.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from leanify.vocabulary.closure import KeptTokens

if TYPE_CHECKING:
    from torch import nn

ID_KEYS = ("token_id", "token_ids", "token_index", "_to_id")  # ends of keys: a number, a list, or a dict
SUPPRESSED_KEYS = ("suppress_tokens", "begin_suppress_tokens")  # lists of ids
PHRASES = ("bad_words_ids", "force_words_ids")  # lists of lists of ids
SIZES = ("vocab_size", "vocab_size_per_layer_input")


def vocabulary_rows(model: Any) -> int:
    """The rows of a transformers model's table of tokens."""
    rows: int = model.config.get_text_config().vocab_size
    return rows


def configurations(model: nn.Module) -> list[Any]:
    """Every configuration of a model once: its modules', nested ones, and the generation config."""
    pending: list[Any] = []
    for module in model.modules():
        for key in ("config", "generation_config"):
            pending.append(vars(module).get(key))
    unique: dict[int, Any] = {}
    while pending:
        value = pending.pop()
        if not hasattr(value, "to_dict") or id(value) in unique:
            continue
        unique[id(value)] = value
        pending += vars(value).values()
    return list(unique.values())


def named_ids(model: nn.Module) -> set[int]:
    """The ids that a model's configurations need. Those outside its table name no token."""
    rows = vocabulary_rows(model)
    model_ids: set[int] = set()
    for config in _vocabulary_configs(model, rows):
        for key, value in vars(config).items():
            if key.endswith(ID_KEYS):
                model_ids |= {number for number in _numbers(value) if 0 <= number < rows}
    # tables of positions that begin behind the padding's id: it must not change
    for module in model.modules():
        padding = vars(module).get("padding_idx")
        if padding is not None and len(getattr(module, "weight", ())) not in (0, rows):
            model_ids |= set(range(padding + 1))
    return model_ids


def cut_configurations(model: nn.Module, tokens: KeptTokens) -> None:
    """Write new sizes and ids into all configurations of a model, in place."""
    rows, new_ids = vocabulary_rows(model), tokens.new_ids
    for config in _vocabulary_configs(model, rows):
        for key, value in list(vars(config).items()):
            if key in SIZES and type(value) is int:
                setattr(config, key, len(tokens.rows(value)))
            elif key in SUPPRESSED_KEYS and isinstance(value, list):
                setattr(config, key, [new_ids[number] for number in value if number in new_ids])
            elif key in PHRASES and isinstance(value, list):
                phrases = [phrase for phrase in value if set(_numbers(phrase)) <= new_ids.keys()]
                setattr(config, key, [_renumber(phrase, new_ids) for phrase in phrases])
            elif key == "forced_decoder_ids" and isinstance(value, list):  # pairs of a position and an id
                setattr(config, key, [[place, _renumber(number, new_ids)] for place, number in value])
            elif key.endswith(ID_KEYS):
                setattr(config, key, _renumber(value, new_ids))


def _vocabulary_configs(model: nn.Module, rows: int) -> Iterator[Any]:
    """The configurations whose ids are the tokenizer's: others have a vocabulary of another size."""
    for config in configurations(model):
        if getattr(config, "vocab_size", rows) == rows:
            yield config


def _numbers(value: Any) -> Iterable[int]:
    if type(value) is int:
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _numbers(one)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _numbers(one)


def _renumber(value: Any, new_ids: Mapping[int, int]) -> Any:
    """Return the value with new ids; a number without a token stays."""
    if type(value) is int:
        return new_ids.get(value, value)
    if isinstance(value, Mapping):
        return {key: _renumber(one, new_ids) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_renumber(one, new_ids) for one in value)
    return value
