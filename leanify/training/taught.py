"""Samples whose targets are a teacher's embeddings, computed once and kept in the cache.

The file's name is a digest of the teacher's weights, the pooling and every token of the samples, so a file
that is there is valid. It is written under another name and renamed when complete, and ends with a checksum
of its data.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leanify.data.samples import Splits
from leanify.errors import DataError
from leanify.runs import cache, writing
from leanify.tasks.sentence_embedding import embed
from leanify.terminal import progress
from leanify.units import binary

if TYPE_CHECKING:
    from accelerate import Accelerator

BATCH = 64
SUM = 16  # bytes of a checksum
BYTES = 2  # float16: embeddings have length 1, and three digits of each component are kept


class Taught:
    """Samples with the teacher's embedding of each as its target."""

    workers = 0
    targets = None

    def __init__(self, samples: Any, answers: Any) -> None:
        self.samples, self.answers, self.lengths = samples, answers, samples.lengths

    def __len__(self) -> int:
        return len(self.samples)

    def batch(self, indices: np.ndarray) -> tuple[dict[str, Tensor], Tensor]:
        """→ the samples' own inputs; the teacher's embeddings (B, width), float32"""
        inputs, _ = self.samples.batch(indices)
        return inputs, torch.from_numpy(self.answers[indices].astype(np.float32))


def taught(splits: Splits, teacher: nn.Module, pooling: Sequence[str], place: Accelerator) -> Splits:
    """The splits with the teacher's embeddings as targets, made by one process a machine."""
    teacher = teacher.to(place.device).requires_grad_(False).eval()
    known = weights_digest(teacher)
    parts: dict[str, Any] = {}
    for name in ("train", "validation", "test"):
        if (samples := getattr(splits, name)) is None:
            continue
        file = cache.home() / "teachers" / f"{_digest(known, pooling, samples)}.npy"
        if place.is_local_main_process and (_read(file, len(samples)) is None or not _is_intact(file)):
            _keep(file, teacher, samples, pooling, place)
        place.wait_for_everyone()
        parts[name] = Taught(samples, _read(file, len(samples)))
    return replace(splits, pooling=tuple(pooling), **parts)


def _read(file: Path, count: int) -> Any:
    """The answers of a file; None where there is none or it is damaged."""
    try:
        answers = np.load(cache.regular(file), mmap_mode="r")
        fits = answers.ndim == 2 and answers.dtype == np.float16 and len(answers) == count
    except Exception:  # a damaged header raises what its words happen to be taken for
        return None
    return answers if fits else None


def _is_intact(file: Path) -> bool:
    """Whether the answers of a file have the checksum at its end. numpy ignores what follows an array."""
    with file.open("rb") as data:
        data.seek(-SUM, os.SEEK_END)
        return data.read() == _sum(np.load(file, mmap_mode="r"))


def _sum(answers: Any) -> bytes:
    return hashlib.blake2b(answers, digest_size=SUM).digest()


def weights_digest(model: nn.Module) -> str:
    """A digest of every tensor's name, shape and bytes."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in model.state_dict().items():
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _digest(teacher: str, pooling: Sequence[str], samples: Any) -> str:
    digest = hashlib.blake2b(f"{teacher} {','.join(pooling)}".encode(), digest_size=16)
    for _, inputs in _batches(samples):
        digest.update(inputs["input_ids"].numpy().tobytes())
    return digest.hexdigest()


def _batches(samples: Any) -> Iterator[tuple[np.ndarray, dict[str, Tensor]]]:
    """Every sample once, sorted by length so that a batch needs little padding."""
    order = np.asarray(samples.lengths).argsort(kind="stable")
    for start in range(0, len(order), BATCH):
        indices = order[start : start + BATCH]
        yield indices, samples.batch(indices)[0]


def _keep(file: Path, teacher: nn.Module, samples: Any, pooling: Sequence[str], place: Accelerator) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with writing.replacing(file, False) as beside, progress("embeddings of the teacher", len(samples)) as advance:
            answers: Any = None
            for done, (indices, rows) in enumerate(_answers(teacher, samples, pooling, place), 1):
                if answers is None:
                    answers = _mapped(beside, file, (len(samples), rows.shape[1]))
                answers[indices] = rows
                advance(done * BATCH)
            answers.flush()
            beside.seek(0, os.SEEK_END)
            beside.write(_sum(answers))
    except OSError as error:
        raise DataError(f"the teacher's embeddings could not be kept in {file.parent}: {error.strerror}") from error


def _mapped(beside: BinaryIO, file: Path, shape: tuple[int, int]) -> Any:
    """An array of float16 in an open file of numpy's format, on the disk from the start. Raises DataError."""
    size, parent = shape[0] * shape[1] * BYTES, file.parent
    free = shutil.disk_usage(parent).free
    if size > free:
        raise DataError(
            f"the teacher's embeddings take {binary(size)} and {parent} has {binary(free)} free: name "
            "another folder, XDG_CACHE_HOME=FOLDER, or take fewer sentences, --set data.samples=100000"
        )
    about = {"descr": np.dtype(np.float16).str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(beside, about)
    return np.memmap(beside, np.float16, "r+", beside.tell(), shape)


@torch.no_grad()
def _answers(
    teacher: nn.Module, samples: Any, pooling: Sequence[str], place: Accelerator
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    from accelerate.utils import send_to_device

    for indices, inputs in _batches(samples):
        with place.autocast():
            embedded = embed(teacher, send_to_device(inputs, place.device), pooling)
        yield indices, F.normalize(embedded, dim=-1).to(torch.float16).cpu().numpy()
