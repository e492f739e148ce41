"""The lean directory that `redesign` writes: upstream's own layout plus a card.

    config.json         upstream's configuration, plus the architecture if upstream's keys cannot express it
    model.safetensors   the weights; large ones in shards
    tokenizer*, …       copied from the source: tokenizer, processors, chat template, sentence-transformers' modules
    leanify.json        the card: how upstream builds the source, the architecture, versions, weight checksums
    README.md           the lines of code that load the model

config.json is authoritative; the card is read only if there is none (leanify's own models). Upstream alone
loads the shapes that it can express. It refuses the others, because their config.json names a model type that
only leanify registers (`transformers_hooks`, `timm_hooks`).

Writing is atomic (`new_directory`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from leanify.architecture import Architecture
from leanify.errors import DirectoryError, ShapeError
from leanify.lens import surgery
from leanify.runs import sums, writing
from leanify.runs.files import read_json
from leanify.runs.new_directory import new_directory
from leanify.runs.places import CARD
from leanify.sources import side_files, timm_hooks
from leanify.sources.describe import check_rebuilt, describe
from leanify.sources.same_shape import as_type
from leanify.sources.source import ModelSource
from leanify.upstream import diffusion, hooks, modules
from leanify.upstream.origin import Origin, origin_of, set_origin
from leanify.upstream.wall import wall

WEIGHTS = "model.safetensors"
FORMAT = 2
TITLE = "A lean model"


def save(
    model: nn.Module,
    directory: str | Path,
    force: bool = False,
    model_type: str | None = None,
    title: str = TITLE,
    source: str | None = None,
    made: Mapping[str, Any] | None = None,
    name: str | None = None,
) -> Path:
    """Write ``model`` as a lean directory, for `leanify.load` and (once leanify is imported) upstream's own loader.

    Tokenizer and other side files of its source are copied. ``model_type`` saves the model as another
    transformers type that can express the shape (a Llama as ``"mistral"``). ``title`` heads its README.
    ``source`` says what builds a module of the user's own, before it was reshaped: ``model.py:make`` or
    ``package.module:make``. ``made`` is kept in its card: how it was made, for those who ask later. ``name``
    is what its README calls it, where it will be moved. Returns the directory.

    Raises DirectoryError if it is not empty or cannot be written, SourceError if the model could not be rebuilt.
    """
    if model_type is not None:
        model = as_type(model, model_type)
    if source is not None:
        set_origin(model, modules.named(source))
    found = describe(model)
    if found.origin.library == modules.LIBRARY:
        check_rebuilt(model, found)
    with new_directory(directory, force) as folder:
        write_around(model, found, folder, _write(model, found, folder), name or Path(directory).name, title, made)
    return Path(directory)


def write_around(
    model: nn.Module,
    found: ModelSource,
    folder: Path,
    tied: dict[str, str],
    name: str,
    title: str = TITLE,
    made: Mapping[str, Any] | None = None,
) -> None:
    """Write what accompanies the weights in a lean directory called ``name``: side files, card and README."""
    if found.origin.library == "hf":
        side_files.carry(model, folder)
    origin = origin_of(model) or found.origin
    card = {
        "format": FORMAT,
        "origin": {name: value for name, value in vars(origin).items() if name != "live"},
        "architecture": surgery.read(model).to_json(),
        "upstream": found.architecture is None,
        "tied": tied,
        "sums": {file.name: sums.of(file) for file in sorted(folder.glob("*.safetensors"))},
        "requires": requirements(origin),
        "written_with": {name: metadata.version(name) for name in ("leanify", "torch", "timm", "transformers")},
    }
    if made:
        card["made"] = dict(made)
    writing.write(folder / CARD, json.dumps(card, indent=2) + "\n")
    writing.write(folder / "README.md", _readme(model, found, name, title))


def _write(model: Any, found: ModelSource, folder: Path) -> dict[str, str]:
    """Write the weights and upstream's configuration. Returns tied tensor names: dropped → kept."""
    if found.origin.library == "hf":
        if found.architecture is not None:
            hooks.check_on(f"this {type(model).__name__}")
        try:
            with wall(f"transformers does not save this {type(model).__name__}", DirectoryError):
                model.save_pretrained(folder)
        except DirectoryError as error:
            if isinstance(error.__cause__, (OSError, SafetensorError)):  # a full disk, which `new_directory` speaks of
                raise error.__cause__ from None
            raise
        return {}
    tensors, tied = untied(model)
    if found.origin.library == "diffusers" and found.architecture is None:
        words = {**diffusion.file_words(found.origin.name), **found.origin.options}
        writing.write(folder / "config.json", json.dumps(words, indent=2) + "\n")
        save_file(tensors, folder / diffusion.WEIGHTS, metadata={"format": "pt"})
        return tied
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    if found.origin.library == "timm":
        config = timm_hooks.config_of(model, found)
        writing.write(folder / "config.json", json.dumps(config, indent=2) + "\n")
    return tied


def requirements(origin: Origin) -> dict[str, str]:
    """The minimum library versions to load the directory, from leanify's package metadata: name → ``>=…``."""
    library = {"timm": "timm", "hf": "transformers", "diffusers": "diffusers"}.get(origin.library)
    names = ("torch", *([library] if library else ()))
    lines = metadata.requires("leanify") or []
    bounds = (line.partition(";")[0].strip() for line in lines)
    return {name: bound[len(name) :] for bound in bounds for name in names if bound.startswith(f"{name}>")}


def _readme(model: nn.Module, found: ModelSource, name: str, title: str) -> str:
    origin = found.origin
    lines = [f"# {title}", "", f"Redesigned by leanify from {origin}. {surgery.read(model)}.", "", "```python"]
    lines += ["import leanify", "", f'model = leanify.load("{name}")']
    alone = found.architecture is None and "attn_layer" not in origin.options
    when = "# or" if alone else "# or, after `import leanify`"
    upstream = {"hf": "transformers", "timm": "timm", "diffusers": "diffusers"}.get(origin.library)
    loads = {
        "hf": f'transformers.{type(model).__name__}.from_pretrained("{name}")',
        "timm": f'timm.create_model("local-dir:{name}", pretrained=True)',
        "diffusers": f'diffusers.{origin.name}.from_pretrained("{name}")',
    }
    if upstream and (alone or origin.library != "diffusers"):
        lines += ["", when, f"import {upstream}", "", f"model = {loads[origin.library]}"]
    note = "The model is leanify's own."
    if origin.library == modules.LIBRARY:
        note = (
            f"`leanify.load` builds the module anew by running {origin.name}, and refuses where that file has changed."
        )
    if upstream:
        note = f"{upstream} itself builds this shape."
        note = note if alone else f"{upstream} alone cannot express this shape, and refuses to load it."
    needs = ", ".join(f"{library} {bound}" for library, bound in requirements(origin).items())
    return "\n".join([*lines, "```", "", note, f"Needs {needs}.", ""])


def untied(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return a model's tensors on the CPU, each tied tensor once, and the tied names: dropped → kept."""
    kept: dict[int, str] = {}
    tensors: dict[str, Tensor] = {}
    tied: dict[str, str] = {}
    for name, tensor in model.state_dict().items():
        first = kept.setdefault(id(tensor) if tensor.numel() == 0 else tensor.data_ptr(), name)
        if first == name or tensor.shape != tensors[first].shape:
            tensors[name] = tensor.detach().cpu().contiguous()
        else:
            tied[name] = first
    return tensors, tied


@dataclass(frozen=True)
class Card:
    """The contents of leanify.json: how upstream builds the source, and the lean shape to give it."""

    origin: Origin
    architecture: Architecture
    tied: dict[str, str]


def read_card(directory: Path) -> Card:
    """Read the card of a lean directory or a run. Raises DirectoryError if damaged or of a newer format."""
    file = directory / CARD
    card = read_json(file, DirectoryError)
    try:
        if card["format"] > FORMAT:
            raise DirectoryError(
                f"{directory} was written by a newer leanify (format {card['format']}); upgrade leanify"
            )
        origin = Origin(**card["origin"])
        if not isinstance(origin.options, dict) or not isinstance(origin.name, str):
            raise TypeError("origin must have a name (string) and options (object)")
        return Card(origin, Architecture.from_json(card["architecture"]), dict(card.get("tied") or {}))
    except (KeyError, TypeError, ValueError, AttributeError, ShapeError) as error:
        raise DirectoryError(f"{file} is damaged: {error}") from error
