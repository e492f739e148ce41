"""A teacher: a SOURCE with weights that takes the student's inputs, and samples whose targets are its embeddings.

Embeddings are computed once and kept in the user's cache. The name of a file is a digest of the teacher's weights, the
pooling and every token of the samples, so an existing file is valid.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leanify.core.errors import DataError, RecipeError
from leanify.core.files import cache, writing
from leanify.core.recipe import DistillSection, TrainingRecipe
from leanify.core.terminal import progress
from leanify.data.common import vocabulary_size
from leanify.data.samples import Splits
from leanify.data.texts import tokenizers
from leanify.sources import find, heads, side_files, weights
from leanify.tasks.sentence_embedding import embed
from leanify.training.master_weights import to_master_weights
from leanify.training.preparation import data_section
from leanify.upstream.inputs import example_inputs
from leanify.upstream.origin import in_mode, is_hf

if TYPE_CHECKING:
    from accelerate import Accelerator

BATCH = 64


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
    """The recipe's teacher, or ``model`` if it is loaded already; None without ``[distill]``. Raises RecipeError."""
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
    teacher = weights.load_complete(source, section.teacher)
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
    if student_input != "input_ids":
        if x.shape[1:] != y.shape[1:]:
            sizes = [" × ".join(map(str, shape[1:])) for shape in (x.shape, y.shape)]
            raise RecipeError(
                f"the student takes samples of {sizes[0]} and the teacher {name} of {sizes[1]}: both are given the "
                "same samples, so both need the same size"
            )
        return

    # vocabularies of one size
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


# -- embeddings -------------------------------------------------------------------------------------------------------


class TeacherTargets:
    """Samples with the teacher's embedding of each as its target."""

    workers = 0
    targets = None

    def __init__(self, samples: Any, embeddings: Any) -> None:
        self.samples, self.embeddings, self.lengths = samples, embeddings, samples.lengths

    def __len__(self) -> int:
        return len(self.samples)

    def batch(self, indices: np.ndarray) -> tuple[dict[str, Tensor], Tensor]:
        """→ the samples' own inputs; the teacher's embeddings (B, width), float32"""
        inputs, _ = self.samples.batch(indices)
        return inputs, torch.from_numpy(self.embeddings[indices].astype(np.float32))


def add_targets(splits: Splits, teacher: Teacher | None, place: Accelerator) -> Splits:
    """The splits with the teacher's embeddings as targets, if the recipe learns them and the splits lack them."""
    if teacher is None or not teacher.gives_targets or splits.pooling:
        return splits
    # the teacher's folder says how it pools hidden states into an embedding
    folder = side_files.side_file_folder(teacher.model) if is_hf(teacher.model) else None
    modes: heads.Pooling = ("mean",) if folder is None else heads.read_pooling(folder)
    model = in_mode(teacher.model.to(place.device).requires_grad_(False))
    key = f"{weights_digest(model)} {','.join(map(str, modes))}"
    parts: dict[str, Any] = {}
    for name in ("train", "validation", "test"):
        samples = getattr(splits, name)
        if samples is None:
            continue
        # the file's name: the embeddings depend on weights, pooling and tokens
        digest = hashlib.blake2b(key.encode(), digest_size=16)
        for _, inputs in _batches(samples):
            digest.update(inputs["input_ids"].numpy().tobytes())
        file = cache.home() / "teachers" / f"{digest.hexdigest()}.npy"

        # one process of each machine writes it, and all map it into memory
        if place.is_local_main_process and read_embeddings(file, len(samples)) is None:
            _write_embeddings(file, model, samples, modes, place)
        place.wait_for_everyone()
        parts[name] = TeacherTargets(samples, read_embeddings(file, len(samples)))
    return replace(splits, pooling=modes, **parts)


def weights_digest(model: nn.Module) -> str:
    """A digest of every tensor's name, shape and bytes."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in model.state_dict().items():
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def read_embeddings(file: Path, count: int) -> Any:
    """Map a file's embeddings (count, width) into memory; None if the file does not exist or is damaged."""
    try:
        embeddings = np.load(cache.regular_file(file), mmap_mode="r")
        fits = embeddings.ndim == 2 and embeddings.dtype == np.float16 and len(embeddings) == count
    except Exception:  # numpy parses a header as Python, so a damaged one raises anything
        return None
    return embeddings if fits else None


def _batches(samples: Any) -> Iterator[tuple[np.ndarray, dict[str, Tensor]]]:
    """Yield batches of every sample once, sorted by length so that a batch needs little padding."""
    order = np.asarray(samples.lengths).argsort(kind="stable")
    for start in range(0, len(order), BATCH):
        indices = order[start : start + BATCH]
        yield indices, samples.batch(indices)[0]


@torch.no_grad()
def _write_embeddings(file: Path, teacher: nn.Module, samples: Any, modes: heads.Pooling, place: Accelerator) -> None:
    """Write the embedding of every sample as a row of float16: they have length 1, so three digits are enough."""
    from accelerate.utils import send_to_device

    start = 0  # of the first row
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with writing.open_atomic(file, False) as out, progress("embeddings of the teacher", len(samples)) as advance:
            for number, (indices, inputs) in enumerate(_batches(samples), 1):
                with place.autocast():
                    embeddings = embed(teacher, send_to_device(inputs, place.device), modes)
                rows = F.normalize(embeddings, dim=-1).to(torch.float16).cpu().numpy()
                # the header of an .npy file, once the width is known
                if not start:
                    shape = (len(samples), rows.shape[1])
                    header = {"descr": np.dtype(np.float16).str, "fortran_order": False, "shape": shape}
                    np.lib.format.write_array_header_1_0(out, header)
                    start = out.tell()
                # each row at its sample's place: batches are sorted by length
                for index, row in zip(indices, rows, strict=True):
                    out.seek(start + int(index) * row.nbytes)
                    out.write(row.tobytes())
                advance(number * BATCH)
    except OSError as error:
        raise DataError(
            f"the teacher's embeddings could not be kept in {file.parent}: {error.strerror}; name another folder, "
            "XDG_CACHE_HOME=FOLDER, or take fewer sentences, --set data.samples=100000"
        ) from error
