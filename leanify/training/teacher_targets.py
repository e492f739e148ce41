"""Samples whose targets are a teacher's embeddings, computed once and kept in the user's cache.

The name of a file is a digest of the teacher's weights, the pooling and every token of the samples, so an existing
file is valid.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leanify.core.errors import DataError
from leanify.core.files import cache, writing
from leanify.core.terminal import progress
from leanify.data.samples import Splits
from leanify.sources.pooling import Pooling
from leanify.tasks.sentence_embedding import embed
from leanify.upstream.origin import in_mode

if TYPE_CHECKING:
    from accelerate import Accelerator

BATCH = 64


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


def add_teacher_targets(splits: Splits, teacher: nn.Module, pooling: Pooling, place: Accelerator) -> Splits:
    """The splits with the teacher's embeddings as targets, made by one process a machine."""
    teacher = in_mode(teacher.to(place.device).requires_grad_(False))
    key = f"{weights_digest(teacher)} {','.join(map(str, pooling))}"
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
            _write_embeddings(file, teacher, samples, pooling, place)
        place.wait_for_everyone()
        parts[name] = TeacherTargets(samples, read_embeddings(file, len(samples)))
    return replace(splits, pooling=pooling, **parts)


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
def _write_embeddings(file: Path, teacher: nn.Module, samples: Any, pooling: Pooling, place: Accelerator) -> None:
    """Write the embedding of every sample as a row of float16: they have length 1, so three digits are enough."""
    from accelerate.utils import send_to_device

    start = 0  # of the first row
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with writing.open_atomic(file, False) as out, progress("embeddings of the teacher", len(samples)) as advance:
            for number, (indices, inputs) in enumerate(_batches(samples), 1):
                with place.autocast():
                    embeddings = embed(teacher, send_to_device(inputs, place.device), pooling)
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
