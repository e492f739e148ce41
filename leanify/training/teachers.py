"""Load a teacher, a SOURCE with weights, and check that it can take the student's inputs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from torch import nn

from leanify.data.common import vocabulary_of
from leanify.data.texts import vocabulary
from leanify.errors import RecipeError
from leanify.runs.recipe import DistillSection
from leanify.sources import find, heads, pooling, side_files, weights
from leanify.sources.weights import with_all_layers
from leanify.upstream.inputs import example_inputs
from leanify.upstream.origin import is_hf


def teacher_of(section: DistillSection, embeds: bool = False) -> nn.Module:
    """The teacher with its weights; one that ``embeds`` sentences comes without a head."""
    if not 0 <= section.weight <= 1 or section.temperature <= 0 or section.hidden_weight < 0:
        raise RecipeError(
            "[distill] needs weight between 0 and 1, temperature above 0 and hidden_weight of at least 0; found "
            f"{section.weight}, {section.temperature} and {section.hidden_weight}"
        )
    if not section.weight and not section.hidden_weight:
        raise RecipeError("[distill] weight and hidden_weight are both 0, so nothing is learnt from the teacher")
    found = find.find(section.teacher, cls=section.cls)
    if embeds and section.cls is None:
        found = heads.bare_encoder(found)
    if found.weights is None:
        raise RecipeError(
            f"distill.teacher {section.teacher!r} names a model without weights; give a run, a lean directory, a "
            "Hugging Face directory, a checkpoint or a hub id"
        )
    return with_all_layers(lambda: weights.load(found), section.teacher)


def check_alike(student: nn.Module, teacher: nn.Module, name: str, tokenizer: str | None) -> None:
    """Raise RecipeError where the teacher ``name`` cannot take the student's words or images."""
    (own, x), (other, y) = (next(iter(example_inputs(model, 1).items())) for model in (student, teacher))
    if own != other:
        raise RecipeError(f"the student takes {own} and the teacher {name} takes {other}: they cannot share data")
    if own == "input_ids":
        _check_words(student, teacher, name, tokenizer)
    elif x.shape[1:] != y.shape[1:]:
        sizes = [" × ".join(map(str, shape[1:])) for shape in (x.shape, y.shape)]
        raise RecipeError(
            f"the student takes samples of {sizes[0]} and the teacher {name} of {sizes[1]}: both are given the "
            "same samples, so both need the same size"
        )


def _check_words(student: nn.Module, teacher: nn.Module, name: str, tokenizer: str | None) -> None:
    own, other = (vocabulary_of(model, "distillation")[0] for model in (student, teacher))
    if own != other:
        raise RecipeError(
            f"the student has a vocabulary of {own:,} and the teacher {name} of {other:,}: the teacher reads the "
            "student's tokens, so both need the same one"
        )
    place = Path(name).expanduser()
    if tokenizer is None or not all(d.is_dir() and vocabulary.lies_in(d) for d in (Path(tokenizer), place)):
        return
    numbers, others = (vocabulary.load(str(folder)).get_vocab() for folder in (tokenizer, place))
    if unlike := [word for word, number in numbers.items() if others.get(word) != number]:
        raise RecipeError(
            f"the tokenizers of the student and of the teacher {name} number {len(unlike):,} words differently, "
            f"{unlike[0]!r} among them: the teacher reads the student's tokens, so both need the same one"
        )


def pooling_of(teacher: nn.Module) -> tuple[str, ...]:
    """How the teacher pools hidden states into an embedding, by the files beside it. Raises SourceError."""
    folder = side_files.source_of(teacher) if is_hf(teacher) else None
    return ("mean",) if folder is None else pooling.pooling_of(folder)


def of_layers(section: DistillSection, teacher: nn.Module) -> tuple[DistillSection | None, nn.Module | None]:
    """What a teacher still teaches when its embeddings are the targets: its layers, where asked."""
    return (replace(section, weight=0.0), teacher) if section.hidden_weight else (None, None)
