"""Load a teacher, a SOURCE with weights, and check that it can take the student's inputs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from leanify.core.errors import RecipeError
from leanify.core.recipe import DistillSection, TrainingRecipe
from leanify.data.common import vocabulary_size
from leanify.data.samples import Splits
from leanify.data.texts import tokenizers
from leanify.sources import find, heads, pooling, side_files, weights
from leanify.sources.weights import require_all_layers
from leanify.training.master_weights import to_master_weights
from leanify.training.preparation import data_section
from leanify.training.teacher_targets import add_teacher_targets
from leanify.upstream.inputs import example_inputs
from leanify.upstream.origin import is_hf

if TYPE_CHECKING:
    from accelerate import Accelerator


@dataclass(frozen=True)
class Teacher:
    """A model to learn from, and the terms that it adds to the loss."""

    model: nn.Module
    section: DistillSection
    gives_targets: bool  # its embeddings are the targets

    @property
    def is_called(self) -> bool:
        """Whether a step calls the teacher. Embeddings are computed once, before the first step."""
        return bool(self.section.weight or self.section.hidden_weight)


def build_teacher(recipe: TrainingRecipe, student: nn.Module, model: nn.Module | None = None) -> Teacher | None:
    """The recipe's teacher, which takes the student's inputs; None without ``[distill]``. Raises RecipeError.

    ``model`` is the teacher if it is loaded already.
    """
    section = recipe.distill
    if section is None:
        return None
    if not 0 <= section.weight <= 1 or section.temperature <= 0 or section.hidden_weight < 0:
        raise RecipeError(
            "[distill] needs weight between 0 and 1, temperature above 0 and hidden_weight of at least 0; found "
            f"{section.weight}, {section.temperature} and {section.hidden_weight}"
        )
    if not section.weight and not section.hidden_weight:
        raise RecipeError("[distill] weight and hidden_weight are both 0, so nothing is learnt from the teacher")
    gives_targets = recipe.data.task == "sentence-embedding"
    model = load_teacher(section, gives_targets) if model is None else model
    check_alike(student, model, section.teacher, data_section(recipe).tokenizer)
    if gives_targets:
        section = replace(section, weight=0.0)
    return Teacher(model, section, gives_targets)


def add_targets(splits: Splits, teacher: Teacher | None, place: Accelerator) -> Splits:
    """Add the teacher's embeddings to the splits as targets, if the recipe learns them and the splits lack them."""
    if teacher is None or not teacher.gives_targets or splits.pooling:
        return splits
    # the teacher's folder says how it pools hidden states into an embedding
    folder = side_files.side_file_folder(teacher.model) if is_hf(teacher.model) else None
    modes: pooling.Pooling = ("mean",) if folder is None else pooling.read_pooling(folder)
    return add_teacher_targets(splits, teacher.model, modes, place)


def load_teacher(section: DistillSection, embeds: bool = False) -> nn.Module:
    """Load the teacher with its weights, without its head if it ``embeds`` sentences."""
    source = find.find(find.recorded_source(section.teacher), cls=section.cls)
    if embeds and section.cls is None:
        source = heads.bare_encoder(source)
    if source.weights is None:
        raise RecipeError(
            f"distill.teacher {section.teacher!r} names a model without weights; give a run, a lean directory, a "
            "Hugging Face directory, a checkpoint or a hub id"
        )
    teacher = require_all_layers(lambda: weights.load(source), section.teacher)
    if not torch.cuda.is_available():  # a CPU computes in 16 bits slowly, and other answers than in 32
        to_master_weights(teacher)
    return teacher


def check_alike(student: nn.Module, teacher: nn.Module, name: str, tokenizer: str | None) -> None:
    """Raise RecipeError if the teacher ``name`` cannot take the student's words or images."""
    student_input, x = next(iter(example_inputs(student, 1).items()))
    teacher_input, y = next(iter(example_inputs(teacher, 1).items()))
    if student_input != teacher_input:
        raise RecipeError(
            f"the student takes {student_input} and the teacher {name} takes {teacher_input}: they cannot share data"
        )
    if student_input == "input_ids":
        _check_words(student, teacher, name, tokenizer)
    elif x.shape[1:] != y.shape[1:]:
        sizes = [" × ".join(map(str, shape[1:])) for shape in (x.shape, y.shape)]
        raise RecipeError(
            f"the student takes samples of {sizes[0]} and the teacher {name} of {sizes[1]}: both are given the "
            "same samples, so both need the same size"
        )


def _check_words(student: nn.Module, teacher: nn.Module, name: str, tokenizer: str | None) -> None:
    student_size, teacher_size = (vocabulary_size(model, "distillation")[0] for model in (student, teacher))
    if student_size != teacher_size:
        raise RecipeError(
            f"the student has a vocabulary of {student_size:,} and the teacher {name} of {teacher_size:,}: the teacher "
            "reads the student's tokens, so both need the same one"
        )

    # the same number for each word, if both folders have a tokenizer
    place = Path(name).expanduser()
    if tokenizer is None or not all(d.is_dir() and tokenizers.has_tokenizer(d) for d in (Path(tokenizer), place)):
        return
    numbers, others = tokenizers.load(tokenizer).get_vocab(), tokenizers.load(str(place)).get_vocab()
    if unlike := [word for word, number in numbers.items() if others.get(word) != number]:
        raise RecipeError(
            f"the tokenizers of the student and of the teacher {name} number {len(unlike):,} words differently, "
            f"{unlike[0]!r} among them: the teacher reads the student's tokens, so both need the same one"
        )
