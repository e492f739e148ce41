"""Safe reading of tensors, and one judgement of whether they fit a model. No code from a checkpoint is ever run."""

from __future__ import annotations

import hashlib
import json
import pickle
import re
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from leanify.errors import SourceError
from leanify.lens.located import name_of
from leanify.sources.checkpoints import DIGESTS
from leanify.upstream.origin import is_hf

CHECKPOINTS = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")
SLACK = 16 << 20  # bytes that a torch.save'd file may unpack to beyond twice its size: it is stored, not compressed


def read_tensors(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a ``.safetensors`` file or of a ``torch.save``d state dict, on the CPU.

    A state dict may lie under ``state_dict``, ``model`` or ``module``. Raises SourceError for anything else: a pickle
    that names code, an archive that unpacks to far more than it weighs, bytes that differ from a checksum beside them.
    """
    path = Path(path)
    if not path.is_file():
        raise SourceError(f"the checkpoint {path} {'is not a regular file' if path.exists() else 'does not exist'}")
    check_sum(path)
    if path.suffix == ".safetensors":
        try:
            return load_file(path)
        except (SafetensorError, OSError, ValueError) as error:
            raise SourceError(f"the checkpoint {path} is truncated or not a safetensors file: {error}") from error
    return _state_dict(path, _unpickled(path))


def _unpickled(path: Path) -> Any:
    _check_archive(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise SourceError(
            f"the checkpoint {path} is a pickle that wants to run code, or is damaged, so it was not opened "
            f"({_reason(error)}); save its state dict alone: torch.save(model.state_dict(), …), or use safetensors"
        ) from error
    except Exception as error:  # a damaged archive raises from zipfile, pickle, struct and torch alike
        raise SourceError(f"the checkpoint {path} is damaged: {_reason(error)}") from error


def _check_archive(path: Path) -> None:
    if not zipfile.is_zipfile(path):
        return
    try:
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
    except (zipfile.BadZipFile, OSError, ValueError) as error:
        raise SourceError(f"the checkpoint {path} is damaged: {_reason(error)}") from error
    if unpacked > 2 * path.stat().st_size + SLACK:
        raise SourceError(
            f"the checkpoint {path} was not opened: its {path.stat().st_size / 1e6:.1f} MB unpack to "
            f"{unpacked / 1e6:.0f} MB, and torch.save never compresses"
        )


def _reason(error: Exception) -> str:
    """What a refused pickle names (``posix.system``), else the first line of the error."""
    text = str(error)
    if named := re.search(r"unsupported global:?\s+(?:GLOBAL\s+)?([\w.]+)", text, re.IGNORECASE):
        return f"it names {named[1]}"
    return (text.splitlines() or [type(error).__name__])[0][:160]


def _state_dict(path: Path, data: Any) -> dict[str, Tensor]:
    while isinstance(data, dict):
        if data and all(isinstance(value, Tensor) for value in data.values()):
            return dict(data)
        inner = next((key for key in ("state_dict", "model", "module") if isinstance(data.get(key), dict)), None)
        if inner is None:
            break
        data = data[inner]
    raise SourceError(f"the checkpoint {path} holds no state dict: a dict of tensors was expected")


# -- checksums ----------------------------------------------------------------------------------------------------

CARDS = ("leanify.json", "checkpoint.json")  # of a lean directory, of a run's checkpoint


def check_sum(path: Path) -> None:
    """Raise SourceError where a card beside a file holds another checksum of it."""
    for card in (path.parent / name for name in CARDS):
        try:
            sums = json.loads(card.read_text(encoding="utf-8")).get("sums", {}) if card.is_file() else {}
        except (OSError, ValueError, AttributeError, RecursionError):
            continue
        wanted = sums.get(path.name) if isinstance(sums, dict) else None
        if isinstance(wanted, str) and digest(path, DIGESTS.get(len(wanted), "sha256")) != wanted:
            raise SourceError(
                f"{path} is not what was written: its checksum differs from the one in {card.name}. It is damaged, or "
                f"another program saved over it; in that case remove {card.name}"
            )


def digest(path: Path, algorithm: str = "sha256") -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


# -- fit ----------------------------------------------------------------------------------------------------------

Shapes = Mapping[str, tuple[int, ...]]


def shapes_of(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def misfits(wanted: Shapes, given: Shapes) -> str:
    """What keeps tensors from fitting a model: missing, unknown, of another shape; the first few of each. Or ``""``."""
    missing = [name for name in wanted if name not in given]
    surplus = [name for name in given if name not in wanted]
    odd = [
        f"{name} {given[name]} for {wanted[name]}" for name in wanted if name in given and given[name] != wanted[name]
    ]
    kinds = (("missing", missing), ("unknown", surplus), ("of another shape", odd))
    return "; ".join(f"{len(names)} {what} ({few(names)})" for what, names in kinds if names)


def few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")


def load_into(model: nn.Module, tensors: dict[str, Tensor], where: str | Path) -> None:
    """Put tensors into a model, in place, every one of them, and tie what upstream ties.

    SourceError names the first few that do not fit.
    """
    if problems := misfits(shapes_of(model.state_dict()), shapes_of(tensors)):
        raise SourceError(f"{where} does not fit {name_of(model)}: {problems}")
    model.load_state_dict(tensors, assign=True)
    if is_hf(model):  # assigned tensors are no longer one parameter
        model.tie_weights()  # type: ignore[operator]
