"""Keep the rows of the tokens that stay, in every table and bias that has a row for each token.

Which axes these are is read, as for another width: they differ in a model that upstream builds with the smaller
vocabulary. So do the numbers that upstream keeps in modules (``num_embeddings``, ``padding_idx``, an end token's id).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from leanify.core.errors import ShapeError, UnsupportedModel
from leanify.sources.side_files import side_file_folder
from leanify.upstream.build import build_model
from leanify.upstream.on_disk import deep_copy, place
from leanify.upstream.origin import is_hf, is_stamped, live_origin, set_origin
from leanify.vocabulary.closure import KeptTokens
from leanify.vocabulary.kinds import Vocabulary, read_vocabulary
from leanify.vocabulary.token_ids import cut_configurations


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
        if axes:
            if id(tensor) not in cut:
                cut[id(tensor)] = _cut_tensor(name, tensor, axes, shape, tokens)
            path, _, leaf = name.rpartition(".")
            setattr(result.get_submodule(path), leaf, cut[id(tensor)])

    # the numbers in modules that upstream sets otherwise with the smaller vocabulary
    modules = dict(result.named_modules(remove_duplicate=False))
    built = dict(before.named_modules(remove_duplicate=False))
    for path, new in after.named_modules(remove_duplicate=False):
        for key, value in vars(new).items():
            old = vars(built[path]).get(key)
            if path in modules and type(value) in (int, list) and old != value:
                setattr(modules[path], key, value)
    if is_stamped(model):
        set_origin(result, live_origin(result))
    return result


def check_cuttable(model: Any) -> None:
    """Raise UnsupportedModel for a model without a vocabulary of tokens that upstream can build smaller."""
    if not is_hf(model):
        raise UnsupportedModel(f"{type(model).__name__} is no model of transformers, whose vocabularies can be cut")
    if type(getattr(model.config.get_text_config(), "vocab_size", None)) is not int:
        raise UnsupportedModel(f"{type(model).__name__} has no vocabulary of tokens")


def _cut_tensor(name: str, tensor: Tensor, axes: list[int], built: torch.Size, tokens: KeptTokens) -> Tensor:
    if len(axes) != 1 or tensor.shape != built:
        raise ShapeError(f"the vocabulary's axis of {name} {tuple(tensor.shape)} is not known")
    rows = torch.tensor(tokens.rows(tensor.shape[axes[0]]), device=tensor.device)
    new = place(tensor.detach().index_select(axes[0], rows))
    return nn.Parameter(new, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else new


def _tensors(model: nn.Module) -> list[tuple[str, Tensor]]:
    return [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
