"""A teacher: a SOURCE with weights, that is shown what the student is shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from torch import nn

from leanify.data import vocabulary
from leanify.data.common import vocabulary_of
from leanify.errors import RecipeError
from leanify.sources import find, pooling, side_files
from leanify.sources.recipe import DistillSection
from leanify.sources.weights import with_all_layers
from leanify.upstream.inputs import example_inputs
from leanify.upstream.origin import is_hf


def teacher_of(told: DistillSection) -> nn.Module:
    """The teacher with its weights; one that would be drawn anew teaches nothing."""
    if not 0 <= told.weight <= 1 or told.temperature <= 0 or told.hidden_weight < 0:
        raise RecipeError("[distill] weight is a share, 0 … 1, temperature above 0, hidden_weight not below 0")
    if not told.weight and not told.hidden_weight:
        raise RecipeError("[distill] neither weight nor hidden_weight is above 0: the teacher would teach nothing")
    if find.find(told.teacher).weights is None:
        raise RecipeError(
            f"distill.teacher {told.teacher!r} names a model without weights; a run, a lean directory, a directory of "
            "transformers', a checkpoint or a hub id has some"
        )
    return with_all_layers(lambda: find.load(told.teacher), told.teacher)


def check_alike(student: nn.Module, teacher: nn.Module, name: str, tokenizer: str | None) -> None:
    """Raise RecipeError where the teacher cannot be shown what the student is: other tokens, or images of another size.

    ``name`` is the teacher's SOURCE, ``tokenizer`` the directory or hub id of the student's.
    """
    (mine, x), (theirs, y) = (next(iter(example_inputs(model, 1).items())) for model in (student, teacher))
    if mine != theirs:
        raise RecipeError(f"the student takes {mine} and the teacher {name} takes {theirs}: they share no data")
    if mine == "input_ids":
        _check_words(student, teacher, name, tokenizer)
    elif x.shape[1:] != y.shape[1:]:
        sizes = [" × ".join(map(str, shape[1:])) for shape in (x.shape, y.shape)]
        raise RecipeError(
            f"the student takes samples of {sizes[0]} and the teacher {name} of {sizes[1]}: a teacher sees what the "
            "student sees, so both need the same size"
        )


def _check_words(student: nn.Module, teacher: nn.Module, name: str, tokenizer: str | None) -> None:
    mine, theirs = (vocabulary_of(model, "distillation")[0] for model in (student, teacher))
    if mine != theirs:
        raise RecipeError(
            f"the student has a vocabulary of {mine:,} and the teacher {name} of {theirs:,}: a teacher reads the "
            "student's tokens, so both need the same one"
        )
    place = Path(name).expanduser()
    if tokenizer is None or not all(d.is_dir() and vocabulary.lies_in(d) for d in (Path(tokenizer), place)):
        return
    numbers, others = (vocabulary.load(str(folder)).get_vocab() for folder in (tokenizer, place))
    if unlike := [word for word, number in numbers.items() if others.get(word) != number]:
        raise RecipeError(
            f"the tokenizers of the student and of the teacher {name} number {len(unlike):,} words differently, "
            f"{unlike[0]!r} among them: a teacher reads the student's tokens, so both need the same one"
        )


def pooling_of(teacher: nn.Module) -> tuple[str, ...]:
    """How the teacher's hidden states become an embedding: by the files beside it. Raises SourceError."""
    folder = side_files.source_of(teacher) if is_hf(teacher) else None
    return ("mean",) if folder is None else pooling.pooling_of(folder)


def of_layers(told: DistillSection, teacher: nn.Module) -> tuple[DistillSection | None, nn.Module | None]:
    """What is left to learn from a teacher whose embeddings are the targets already: its layers, where asked for."""
    return (replace(told, weight=0.0), teacher) if told.hidden_weight else (None, None)
