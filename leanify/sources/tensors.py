"""Read tensors safely and check that they fit a model. No code from a checkpoint is ever executed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from leanify.errors import SourceError
from leanify.lens.located import name_of
from leanify.runs import sums
from leanify.runs.files import few as few
from leanify.runs.files import read_json
from leanify.runs.places import WEIGHTS
from leanify.runs.unpickling import unpickled
from leanify.upstream.origin import is_hf

NESTED = ("state_dict", "model_state_dict", "model", "module", "weights", "net", "network")  # keys of a state dict
CHECKPOINTS = WEIGHTS
# The files that upstream's loaders look for in a directory, in order; an index names the shards.
UPSTREAM = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
DEEPEST = 3  # levels of them: a dict may contain itself


def read_tensors(path: str | Path) -> dict[str, Tensor]:
    """Return the tensors of a ``.safetensors`` file or a ``torch.save``d state dict, on the CPU.

    The state dict may be nested under ``state_dict``, ``model`` or ``module``. Raises SourceError for anything else,
    including a pickle that would run code, an archive that unpacks to far more than its size, and a checksum mismatch.
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
    return _state_dict(path, unpickled(path))


def names_in(where: Path) -> list[str]:
    """The names of the tensors in a checkpoint, or in the one that upstream would open in a directory, unread.

    [] where there is no such file. Raises SourceError for a damaged or unsafe one.
    """
    file = next((where / name for name in UPSTREAM if (where / name).is_file()), None) if where.is_dir() else where
    if file is None:
        return []
    if file.name.endswith(".index.json"):
        return list(weight_map(file) or ())
    if file.suffix != ".safetensors":
        return list(_state_dict(file, unpickled(file)))
    try:
        with safe_open(file, "pt") as opened:
            return list(opened.keys())
    except (SafetensorError, OSError, ValueError) as error:
        raise SourceError(f"the checkpoint {file} is truncated or not a safetensors file: {error}") from error


def weight_map(index: Path) -> dict[str, Any] | None:
    """Tensor name → file name, of a checkpoint in shards; None where its index has none."""
    content = read_json(index)
    named = content.get("weight_map") if isinstance(content, dict) else None
    return named if isinstance(named, dict) else None


def _state_dict(path: Path, data: Any) -> dict[str, Tensor]:
    for _ in range(DEEPEST + 1):
        if not isinstance(data, dict):
            break
        if data and all(isinstance(value, Tensor) for value in data.values()):
            return dict(data)
        inner = next((key for key in NESTED if isinstance(data.get(key), dict)), None)
        if inner is None:
            break
        data = data[inner]
    raise SourceError(f"the checkpoint {path} has no state dict: expected a dict of tensors")


CARDS = ("leanify.json", "checkpoint.json")  # in a lean directory; in a run's checkpoint


def check_sum(path: Path) -> None:
    """Raise SourceError if a card beside the file lists another checksum. Unreadable cards are skipped."""
    for card in (path.parent / name for name in CARDS):
        try:
            known = read_json(card).get("sums", {}) if card.is_file() else {}
        except (SourceError, AttributeError):
            continue
        wanted = known.get(path.name) if isinstance(known, dict) else None
        if isinstance(wanted, str) and sums.of(path, wanted) != wanted:
            raise SourceError(
                f"{path} has changed since it was written: its checksum differs from the one in {card.name}. It is "
                f"damaged, or another program overwrote it; if you trust that program, remove {card.name}"
            )


Shapes = Mapping[str, tuple[int, ...]]


def shapes_of(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def misfits(wanted: Shapes, given: Shapes) -> str:
    """Describe why tensors do not fit a model, as missing, unknown and of another shape; ``""`` if they fit.

    Names the first three of each kind.
    """
    missing = [name for name in wanted if name not in given]
    surplus = [name for name in given if name not in wanted]
    odd = [
        f"{name} {given[name]} for {wanted[name]}" for name in wanted if name in given and given[name] != wanted[name]
    ]
    kinds = (("missing", missing), ("unknown", surplus), ("of another shape", odd))
    return "; ".join(f"{len(names)} {what} ({few(names)})" for what, names in kinds if names)


def load_into(model: nn.Module, tensors: dict[str, Tensor], where: str | Path) -> None:
    """Load tensors into a model in place, strictly, and restore upstream's weight tying.

    Raises SourceError that names the first few tensors that do not fit.
    """
    problems = misfits(shapes_of(model.state_dict()), shapes_of(tensors))
    if problems:
        raise SourceError(f"{where} does not fit {name_of(model)}: {problems}")
    model.load_state_dict(tensors, assign=True)
    if is_hf(model):  # assign=True breaks tying: each name now has its own tensor
        model.tie_weights()  # type: ignore[operator]
