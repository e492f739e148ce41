"""Redesign a sharded checkpoint by streaming: needs memory for one layer and one shard, not for the whole model.

The model is on torch's meta device. One attention or MLP at a time is filled from the old shards, resized as
`lens.surgery.write` does it, and written to the new shards.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from leanify.architecture import Architecture
from leanify.lens import surgery
from leanify.lens.located import LocatedModel, within
from leanify.lens.resize import resize
from leanify.lens.sites import locate
from leanify.runs import writing
from leanify.runs.new_directory import new_directory
from leanify.sources.describe import describe
from leanify.sources.lean_directory import write_around
from leanify.sources.source import ModelSource, build_on_meta
from leanify.sources.tensors import weight_map
from leanify.sources.transformers_hooks import bring_in_line

INDEX = "model.safetensors.index.json"
PART = 10  # a new shard is at most 1/PART of the largest old one, because it is held in memory until it is written


def shards_of(found: ModelSource) -> dict[str, Path] | None:
    """Return tensor name → shard file; None unless the weights are a sharded checkpoint with exactly these shapes.

    Raises SourceError if the index is not readable JSON.
    """
    folder = found.weights
    if found.origin.library != "hf" or not isinstance(folder, Path) or not (folder / INDEX).is_file():
        return None
    named = weight_map(folder / INDEX)
    if named is None:
        return None
    shards = {name: folder / Path(str(file)).name for name, file in named.items()}
    wanted = {name: list(x.shape) for name, x in _tensors(build_on_meta(found)).items()}
    if not wanted.keys() <= shards.keys() or not all(file.is_file() for file in shards.values()):
        return None
    return shards if all(_shape(shards[name], name) == shape for name, shape in wanted.items()) else None


def _shape(file: Path, name: str) -> list[int] | None:
    """A tensor's shape; None if its shard is damaged or lacks it, which the ordinary loader will then report."""
    try:
        with safe_open(file, "pt") as tensors:
            shape: list[int] = tensors.get_slice(name).get_shape()
    except (SafetensorError, OSError):
        return None
    return shape


def save(found: ModelSource, shards: Mapping[str, Path], shape: Architecture, directory: Path, force: bool) -> None:
    """Write a lean directory with sharded weights: the found model in the new shape. Raises DirectoryError."""
    located = locate(build_on_meta(found))
    new: Any = surgery.write_located(located, shape).model
    bring_in_line(new)
    with new_directory(directory, force) as folder:
        _write(_streamed(located, shape, shards), new, folder, max(file.stat().st_size for file in shards.values()))
        new.config.architectures = [type(new).__name__]
        new.config.save_pretrained(folder)
        if new.can_generate():
            new.generation_config.save_pretrained(folder)
        write_around(new, describe(new), folder, {}, directory.name)


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """The tensors that a checkpoint of the model stores: tied parameters once."""
    stored = model.state_dict(keep_vars=True)
    return {name: x for name, x in (*model.named_parameters(), *model.named_buffers()) if name in stored}


def _streamed(located: LocatedModel, shape: Architecture, shards: Mapping[str, Path]) -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor of the new shape, resizing one attention or MLP at a time.

    Blocks beyond the old depth copy the stage's last block.
    """
    cut, sizes = surgery.at_new_depth(located, shape)
    sites = {path: cut.by_path[path] for path in sizes if sizes[path] != cut.by_path[path].sizes}
    inside, before = {}, {}  # tensor name → path of the innermost site around it, and its name in the shards
    for name in _tensors(cut.model):
        inside[name] = max((path for path in sites if within(name, path)), key=len, default="")
        before[name] = name
        stage = next((s for s in located.stages if s.container is not None and within(name, s.name)), None)
        if stage is not None:
            at, _, rest = name.removeprefix(f"{stage.name}.").partition(".")
            before[name] = f"{stage.name}.{min(int(at), len(stage.blocks) - 1)}.{rest}"
    for path, site in sites.items():
        names = [name for name, owner in inside.items() if owner == path]
        _fill(cut.model, {name: _read(shards, before[name]) for name in names})
        resize(cut.model, path, site.module, site.reading, site.sizes, sizes[path])
        now = _tensors(cut.model)
        for name in names:
            yield name, now[name].detach().clone()
            _fill(cut.model, {name: now[name].detach().to("meta")})
    for name, owner in inside.items():
        if not owner:
            yield name, _read(shards, before[name])


def _read(shards: Mapping[str, Path], name: str) -> Tensor:
    """Read one tensor into its own memory, so that closing the file releases the mapped pages."""
    with safe_open(shards[name], "pt") as tensors:
        found: Tensor = tensors.get_tensor(name).clone()
    return found


def _fill(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        owner, _, last = name.rpartition(".")
        module = model.get_submodule(owner)
        value = nn.Parameter(tensor, requires_grad=False) if last in module._parameters else tensor
        setattr(module, last, value)


def _write(tensors: Iterator[tuple[str, Tensor]], model: nn.Module, folder: Path, largest: int) -> None:
    """Write shards and their index. Shards are named last, because names include the number of shards."""
    held: dict[str, Tensor] = {}
    parts: list[list[str]] = []
    total = size = 0

    def put() -> None:
        save_file(held, folder / f"{len(parts)}.part", metadata={"format": "pt"})
        parts.append(list(held))
        held.clear()

    for name, tensor in tensors:
        if held and size + tensor.nbytes > largest // PART:
            put()
            size = 0
        held[name] = tensor.contiguous()
        size, total = size + tensor.nbytes, total + tensor.nbytes
    put()
    named: dict[str, str] = {}
    for number, names in enumerate(parts):
        file = f"model-{number + 1:05d}-of-{len(parts):05d}.safetensors"
        (folder / f"{number}.part").rename(folder / file)
        named |= dict.fromkeys(names, file)
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(named.items()))}
    writing.write(folder / INDEX, json.dumps(index, indent=2) + "\n")
