"""Keep the rows of the tokens that stay, in every table and bias that has a row for each token.

Which axes these are is read, as for another width: they differ in a model that upstream builds with the smaller
vocabulary. So do the numbers that upstream keeps in modules (``num_embeddings``, ``padding_idx``, an end token's id).

An id that a configuration needs (padding, begin, end, image, audio) names a token that stays. Tokens of a list that
generation avoids (``suppress_tokens``, ``bad_words_ids``) may go, and leave the list.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from leanify.core.errors import ShapeError, UnsupportedModel
from leanify.sources.side_files import side_file_folder
from leanify.upstream.build import build_model
from leanify.upstream.on_disk import deep_copy, place
from leanify.upstream.origin import get_record, is_hf, live_origin, set_origin
from leanify.vocabulary.closure import KeptTokens
from leanify.vocabulary.kinds import Vocabulary, read_vocabulary

ID_KEYS = ("token_id", "token_ids", "token_index", "_to_id")  # ends of keys: a number, a list, or a dict
SUPPRESSED_KEYS = ("suppress_tokens", "begin_suppress_tokens")  # lists of ids
PHRASES = ("bad_words_ids", "force_words_ids")  # lists of lists of ids
SIZES = ("vocab_size", "vocab_size_per_layer_input")


def checkpoint_vocabulary(model: Any) -> Vocabulary:
    """Return the vocabulary of the folder that a model was loaded from. Raises UnsupportedModel."""
    check_cuttable(model)
    folder = side_file_folder(model)
    if folder is None:
        raise UnsupportedModel(f"{model.config._name_or_path or type(model).__name__} has no tokenizer beside it")
    return read_vocabulary(folder)


@torch.no_grad()
def cut_model(model: nn.Module, tokens: KeptTokens) -> nn.Module:
    """Return a model with the rows of the kept tokens; it shares the other tensors with ``model``, which is unchanged.

    Raises UnsupportedModel for a model that is not one of transformers', ShapeError for a table that does not follow.
    """
    check_cuttable(model)
    # what upstream builds with either vocabulary
    result = deep_copy(model, {id(tensor): tensor for _, tensor in _tensors(model)})
    cut_configurations(result, tokens)
    if tokens.is_all:
        return result
    before, after = (build_model(live_origin(one), "meta") for one in (model, result))

    # the rows of each table, a tied one once
    new_shapes = {name: tensor.shape for name, tensor in _tensors(after)}
    old_shapes = {name: tensor.shape for name, tensor in _tensors(before)}
    cut: dict[int, Tensor] = {}
    for name, tensor in _tensors(result):
        shape = old_shapes.get(name, tensor.shape)
        axes = [axis for axis, size in enumerate(shape) if new_shapes.get(name, shape)[axis] != size]
        if axes and id(tensor) not in cut:
            if len(axes) != 1 or tensor.shape != shape:
                raise ShapeError(f"the vocabulary's axis of {name} {tuple(tensor.shape)} is not known")
            rows = torch.tensor(tokens.rows(tensor.shape[axes[0]]), device=tensor.device)
            new = place(tensor.detach().index_select(axes[0], rows))
            is_parameter = isinstance(tensor, nn.Parameter)
            cut[id(tensor)] = nn.Parameter(new, tensor.requires_grad) if is_parameter else new
        if axes:
            path, _, leaf = name.rpartition(".")
            setattr(result.get_submodule(path), leaf, cut[id(tensor)])

    # the numbers in modules that upstream sets otherwise with the smaller vocabulary
    modules = dict(result.named_modules(remove_duplicate=False))
    built = dict(before.named_modules(remove_duplicate=False))
    for path, module in after.named_modules(remove_duplicate=False):
        for key, value in vars(module).items():
            old = vars(built[path]).get(key)
            if path in modules and type(value) in (int, list) and old != value:
                setattr(modules[path], key, value)
    if get_record(model).is_stamped:
        set_origin(result, live_origin(result))
    return result


def check_cuttable(model: Any) -> None:
    """Raise UnsupportedModel for a model without a vocabulary of tokens that upstream can build smaller."""
    if not is_hf(model):
        raise UnsupportedModel(f"{type(model).__name__} is no model of transformers, whose vocabularies can be cut")
    if type(getattr(model.config.get_text_config(), "vocab_size", None)) is not int:
        raise UnsupportedModel(f"{type(model).__name__} has no vocabulary of tokens")


def _tensors(model: nn.Module) -> list[tuple[str, Tensor]]:
    return [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]


# -- ids in configurations ----------


def vocabulary_rows(model: Any) -> int:
    """The rows of a transformers model's table of tokens."""
    rows: int = model.config.get_text_config().vocab_size
    return rows


def named_ids(model: nn.Module) -> set[int]:
    """The ids that a model's configurations need. Those outside its table name no token."""
    rows = vocabulary_rows(model)
    model_ids: set[int] = set()
    for config in _vocabulary_configs(model):
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
    new_ids = tokens.new_ids
    for config in _vocabulary_configs(model):
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


def _vocabulary_configs(model: nn.Module) -> list[Any]:
    """Every configuration of a model once: its modules', nested ones, and the generation config.

    Those with a vocabulary of another size are left out: their ids are not the tokenizer's.
    """
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
    rows = vocabulary_rows(model)
    return [config for config in unique.values() if getattr(config, "vocab_size", rows) == rows]


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
