"""Read tensors safely and check that they fit a model. No code from a checkpoint is ever executed."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from leanify.core.errors import SourceError
from leanify.core.files import tensor_files
from leanify.core.files.reading import checksum, preview, read_object
from leanify.core.path_kinds import is_safetensors
from leanify.lens.located import model_name
from leanify.upstream.origin import is_hf

UNQUANTISED = "redesign the unquantised model and quantise the result"
STATE_KEYS = (  # under which trainers keep a state dict
    "state_dict", "model_state_dict", "model", "module", "weights", "net", "network", "model_state", "params",
)  # fmt: skip
TIMM_AVERAGES = ("state_dict_ema", "model_ema")  # averaged weights, which timm's own loader takes first
AVERAGES = (*TIMM_AVERAGES, "ema_state_dict", "ema", "params_ema")
WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")  # torch's own, at any place in a name
# The files that upstream's loaders look for in a directory, in order; an index names the shards.
UPSTREAM = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
SAMPLE_NAMES = 8  # of a model, by which prefixes are looked for
DEEPEST = 3  # levels of them: a dict may contain itself


def read_tensors(path: str | Path, library: str = "") -> dict[str, Tensor]:
    """Return the tensors of a ``.safetensors`` file or a ``torch.save``d state dict, on the CPU.

    The state dict may be nested under ``state_dict``, ``model`` or ``module``; of averaged weights next to it a warning
    says whether they were taken, as ``timm``'s loader does. Raises SourceError for anything else, including a pickle
    that would run code, an archive that unpacks to far more than its size, and a checksum mismatch.
    """
    path = Path(path)
    if not path.is_file():
        fault = "is not a regular file" if path.exists() else "does not exist"
        raise SourceError(f"the checkpoint {path} {fault}")
    check_sum(path)
    if is_safetensors(path):
        return tensor_files.load_tensors(path)
    return _state_dict(path, tensor_files.load_pickle(path), library)


def tensor_names(where: Path) -> list[str]:
    """The names of the tensors in a checkpoint, or in the one that upstream would open in a directory, unread.

    [] if the file does not exist. Raises SourceError for a damaged or unsafe one.
    """
    # a folder's checkpoint, in the order in which upstream looks for one
    file = upstream_file(where) if where.is_dir() else where
    if file is None:
        return []
    # of an index or a pickle the names alone; safetensors' header has them
    if file.name.endswith(".index.json"):
        return list(weight_map(file) or ())
    if not is_safetensors(file):
        return list(_state_dict(file, tensor_files.load_pickle(file)))
    with tensor_files.open_tensors(file) as checkpoint:
        return list(checkpoint.keys())


def upstream_file(directory: Path) -> Path | None:
    """The file, or the index of shards, that upstream would open in a directory."""
    return next((directory / name for name in UPSTREAM if (directory / name).is_file()), None)


def weight_map(index: Path) -> dict[str, Any] | None:
    """Tensor name → file name, of a checkpoint in shards; None where its index has none."""
    names = read_object(index).get("weight_map")
    return names if isinstance(names, dict) else None


def _state_dict(path: Path, data: Any, library: str = "") -> dict[str, Tensor]:
    keys = (*TIMM_AVERAGES, *STATE_KEYS) if library == "timm" else STATE_KEYS
    for _ in range(DEEPEST + 1):
        if not isinstance(data, dict):
            break
        tensors = {name: value for name, value in data.items() if not str(name).endswith("_extra_state")}
        if tensors and all(isinstance(value, Tensor) for value in tensors.values()):
            return tensors
        inner = next((key for key in (*keys, *AVERAGES) if isinstance(data.get(key), dict)), None)
        if inner is None:
            break
        averages = [key for key in AVERAGES if isinstance(data.get(key), dict)]
        if averages and inner in averages:
            warnings.warn(f"{path} holds averaged weights, {inner!r}: those were taken", stacklevel=4)
        elif averages:
            warnings.warn(f"{path} holds averaged weights too, {averages[0]!r}: {inner!r} was taken", stacklevel=4)
        data = data[inner]
    keys_found = f"; it is a dict of {preview(sorted(map(str, data)))}" if isinstance(data, dict) and data else ""
    parts = [key for key, value in data.items() if isinstance(value, dict) and value] if isinstance(data, dict) else []
    if parts:
        key = "teacher" if "teacher" in parts else parts[0]
        keys_found += f". Save the one that you mean as a file of its own, such as checkpoint[{key!r}]"
    raise SourceError(f"the checkpoint {path} has no state dict: expected a dict of tensors{keys_found}")


def check_sum(path: Path) -> None:
    """Raise SourceError if a card in the same folder lists another checksum. Unreadable cards are skipped."""
    for card in (path.parent / "leanify.json", path.parent / "checkpoint.json"):  # of a lean directory; of a run
        try:
            sums = read_object(card).get("sums")
        except SourceError:
            continue
        expected_sum = sums.get(path.name) if isinstance(sums, dict) else None
        if isinstance(expected_sum, str) and checksum(path, expected_sum) != expected_sum:
            raise SourceError(
                f"{path} has changed since it was written: its checksum differs from the one in {card.name}. It is "
                f"damaged, or another program overwrote it; if you trust that program, remove {card.name}"
            )


Shapes = Mapping[str, tuple[int, ...]]


def tensor_shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def _class_hint(model: nn.Module, tensors: Mapping[str, Tensor]) -> str:
    """The setting that makes a classifier of timm fit, if its classifier alone does not fit; "" for others."""
    head = (getattr(model, "pretrained_cfg", None) or {}).get("classifier")
    if not isinstance(head, str) or f"{head}.weight" not in model.state_dict():
        return ""
    shapes = tensor_shapes(tensors)
    names = {name for name, shape in tensor_shapes(model.state_dict()).items() if shapes.get(name) != shape}
    if not names <= {f"{head}.weight", f"{head}.bias"}:
        return ""
    classes = shapes.get(f"{head}.weight", (0,))[0]
    return f"; --override num_classes={classes} builds a model {'of as many classes' if classes else 'without a head'}"


def describe_misfits(model_shapes: Shapes, file_shapes: Shapes) -> str:
    """Describe why tensors do not fit a model, as missing, unknown and of another shape; ``""`` if they fit."""
    missing = [name for name in model_shapes if name not in file_shapes]
    surplus = [name for name in file_shapes if name not in model_shapes]
    odd = []
    for name, shape in model_shapes.items():
        if file_shapes.get(name, shape) != shape:
            odd.append(f"{name} {file_shapes[name]} for {shape}")
    kinds = (("missing", missing), ("unknown", surplus), ("of another shape", odd))
    return "; ".join(f"{len(names)} {what} ({preview(names)})" for what, names in kinds if names)


def fit_names(
    tensors: dict[str, Tensor], names: Collection[str], where: str | Path, own: str = ""
) -> dict[str, Tensor]:
    """Take off what tools put into the names of a model's tensors: their own wrappers, or one prefix before all names.

    ``names`` are the model's. Returns the tensors as they are if that makes no more of them fit; tensors without the
    prefix are left out if the others are a whole model. Both are said in a warning, unless ``own`` is the prefix, under
    which upstream itself keeps the model in one with a head; then the names may also be those of the model without it.
    Raises SourceError if two prefixes fit equally well.
    """
    known_names = set(names)
    hits = len(known_names & tensors.keys())
    if hits == len(known_names):
        return tensors
    # torch's wrappers of parts of a model
    bare = {".".join(part for part in name.split(".") if part not in WRAPPERS): one for name, one in tensors.items()}
    same = known_names & bare.keys() if len(bare) == len(tensors) else set()
    counts = {"": len(same)}
    # prefixes of a few of the other names, and how many of all names have one of them, or none
    others = sorted(known_names - same)
    for name in others[:: len(others) // SAMPLE_NAMES + 1]:
        for key in bare:
            if key.endswith(f".{name}"):
                counts.setdefault(key.removesuffix(name), 0)
    for prefix in counts:
        counts[prefix] = sum(prefix + name in bare or name in same for name in known_names)
    best = max(counts.values())
    if best <= hits:
        base = [name.removeprefix(own) for name in names if own and name.startswith(own)]
        return fit_names(tensors, base, where, own) if base else tensors
    prefixes = sorted((prefix for prefix, count in counts.items() if count == best), key=len)
    if prefixes[0] and len(prefixes) > 1:
        raise SourceError(
            f"{where} holds the model {len(prefixes)} times, under {preview([repr(one) for one in prefixes])}: save "
            "the tensors of one of them as a file of its own"
        )
    prefix = prefixes[0]
    others = [key for key in bare if not key.startswith(prefix)]
    fitting = {key.removeprefix(prefix): one for key, one in bare.items() if key.startswith(prefix)}
    # tensors that fit without the prefix, and all others to be reported unless the rest is a whole model
    is_partial = best < len(known_names)
    unprefixed = {key for key in others if is_partial or (key in known_names and key not in fitting)}
    fitting |= {key: bare[key] for key in unprefixed}
    others = [key for key in others if key not in unprefixed]
    taken_off = [repr(f"{part}.") for part in WRAPPERS if any(part in key.split(".") for key in tensors)]
    taken_off += [repr(prefix)] if prefix else []
    if taken_off == [repr(own)]:
        return fitting
    rest = f"; {len(others)} others were left out ({preview(others)})" if others else ""
    warnings.warn(f"{where}: {' and '.join(taken_off)} was taken off the names of its tensors{rest}", stacklevel=4)
    return fitting


def load_into(model: nn.Module, tensors: dict[str, Tensor], where: str | Path) -> None:
    """Load tensors into a model in place, strictly, and restore upstream's weight tying.

    Raises SourceError that names the first few tensors that do not fit.
    """
    state = model.state_dict()
    tensors = fit_names(tensors, state.keys(), where)
    floating = {name for name, x in state.items() if x.is_floating_point()}
    packed = [name for name, x in tensors.items() if name in floating and not x.is_floating_point()]
    if packed:
        raise SourceError(f"{where} is quantised: {preview(packed)} are integers; {UNQUANTISED}")
    problems = describe_misfits(tensor_shapes(state), tensor_shapes(tensors))
    if problems:
        hint = _class_hint(model, tensors)
        raise SourceError(f"{where} does not fit {model_name(model)}: {problems}{hint}")
    model.load_state_dict(tensors, assign=True)
    if is_hf(model):  # assign=True breaks tying: each name now has its own tensor
        model.tie_weights()  # type: ignore[operator]
