"""Write a checkpoint of fewer tokens: a folder that its own library opens, with its tokenizer."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from leanify.core.errors import UnsupportedModel
from leanify.core.terminal import note
from leanify.sources import lean_directory, side_files
from leanify.vocabulary.closure import KeptTokens
from leanify.vocabulary.cut_model import check_cuttable, cut_model
from leanify.vocabulary.cut_tokenizer import cut_tokenizer
from leanify.vocabulary.kinds import Vocabulary, read_vocabulary


def checkpoint_vocabulary(model: Any) -> Vocabulary:
    """Return the vocabulary of the folder that a model was loaded from. Raises UnsupportedModel."""
    check_cuttable(model)
    folder = side_files.side_file_folder(model)
    if folder is None:
        raise UnsupportedModel(f"{model.config._name_or_path or type(model).__name__} has no tokenizer beside it")
    return read_vocabulary(folder)


def save_cut(model: Any, vocabulary: Vocabulary, tokens: KeptTokens, directory: Path, **texts: Any) -> Path:
    """Cut a model and its tokenizer, and write both as a lean directory; ``texts`` head its README, as in `save`."""
    new: Any = cut_model(model, tokens)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        side_files.copy_side_files(model, folder)
        left_out = cut_tokenizer(folder, vocabulary, tokens)
        new.config._name_or_path = place
        lean_directory.save(new, directory, **texts)
    if left_out:
        note(f"{', '.join(left_out)} left out: tokenizer.json holds the smaller vocabulary, and transformers reads it")
    new.config._name_or_path = str(directory)
    return directory
