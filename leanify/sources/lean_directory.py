"""The lean directory that `redesign` writes: upstream's own layout plus a card.

    config.json         upstream's configuration, plus the architecture if upstream's keys cannot express it
    model.safetensors   the weights; large ones in shards
    modeling_lean.py    code by which transformers opens such a shape without leanify, with trust_remote_code=True
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
from importlib import metadata
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from leanify.core.architecture import Architecture
from leanify.core.errors import DirectoryError, LeanifyError, ShapeError
from leanify.core.files import writing
from leanify.core.files.reading import checksum, read_json
from leanify.core.path_kinds import CARD, FORMAT, check_format
from leanify.reshaping import surgery
from leanify.sources import modelling, side_files, timm_hooks
from leanify.sources.source import ModelSource, check_rebuilt, describe
from leanify.upstream import hooks, user_modules
from leanify.upstream.origin import Origin, get_origin, set_origin

WEIGHTS = "model.safetensors"
TITLE = "A lean model"


def save(
    model: nn.Module,
    directory: str | Path,
    force: bool = False,
    title: str = TITLE,
    source: str | None = None,
    note: str = "",
    name: str | None = None,
    is_initialised: bool = False,
) -> Path:
    """Write ``model`` as a lean directory, for `leanify.load` and (once leanify is imported) upstream's own loader.

    Tokenizer and other side files of its source are copied. ``title`` heads its README. ``source`` names what
    builds a module of the user's own, before it was reshaped: ``model.py:make`` or ``package.module:make``.
    ``note`` is its second paragraph: how the model was made. ``name`` is its name in the README, where it will
    be moved. ``is_initialised``: its weights are drawn at random, not trained. Returns the directory.

    Raises DirectoryError if it is not empty or cannot be written, SourceError if the model could not be rebuilt.
    """
    if source is not None:
        set_origin(model, user_modules.parse_module_source(source))
    # how the model is built again, checked before anything is written
    architecture = surgery.read(model)
    description = describe(model, architecture)
    if description.origin.library == user_modules.LIBRARY:
        check_rebuilt(model, description)
    with writing.new_directory(directory, force) as folder:
        # weights, configuration and the checkpoint's other files (tokenizer, processor)
        tied = _write(model, description, folder)
        if description.origin.library == "hf":
            side_files.copy_side_files(model, folder)
        # the card: what builds the model again, and the checksums of its weights
        origin = get_origin(model) or description.origin
        card = {
            "format": FORMAT,
            "origin": origin.to_json(),
            "architecture": architecture.to_json(),
            "upstream": description.architecture is None,
            "tied": tied,
            "initialised": is_initialised,
            "sums": {file.name: checksum(file) for file in sorted(folder.glob("*.safetensors"))},
            "requires": requirements(origin),
            "written_with": {key: metadata.version(key) for key in ("leanify", "torch", "timm", "transformers")},
        }
        writing.write(folder / CARD, json.dumps(card, indent=2) + "\n")
        writing.write(
            folder / "README.md",
            _readme(model, description, architecture, folder, name or Path(directory).name, title, note),
        )
    return Path(directory)


def _write(model: Any, source: ModelSource, folder: Path) -> dict[str, str]:
    """Write the weights and upstream's configuration. Returns tied tensor names: dropped → kept."""
    # transformers writes itself; surgery's shape goes into its config by a hook
    if source.origin.library == "hf":
        if source.architecture is not None:
            hooks.check_on(f"this {type(model).__name__}")
        try:
            model.save_pretrained(folder)
        except (LeanifyError, OSError, SafetensorError):  # such as a full disk, of which `new_directory` speaks
            raise
        except Exception as error:
            raise DirectoryError(f"transformers does not save this {type(model).__name__}: {error}") from error
        if source.architecture is not None:
            modelling.write_code(model, folder)
        return {}
    # timm and own modules: plain safetensors, each tied tensor once
    tensors, tied = untie_tensors(model)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    if source.origin.library == "timm":
        config = timm_hooks.timm_config(model, source)
        writing.write(folder / "config.json", json.dumps(config, indent=2) + "\n")
    return tied


def requirements(origin: Origin) -> dict[str, str]:
    """The minimum library versions to load the directory, from leanify's package metadata: name → ``>=…``."""
    library = {"timm": "timm", "hf": "transformers"}.get(origin.library)
    bounds = {}
    for line in metadata.requires("leanify") or []:
        name, sign, version = line.partition(";")[0].strip().partition(">")
        if sign and name in ("torch", library):
            bounds[name] = sign + version
    return bounds


def _readme(
    model: nn.Module, source: ModelSource, architecture: Architecture, folder: Path, name: str, title: str, note: str
) -> str:
    """The README of the directory, which is a model card on the hub: a description, and the lines that load it."""
    origin = source.origin
    upstream = {"hf": "transformers", "timm": "timm"}.get(origin.library)
    # the model card's head, which the hub reads
    library_name = [f"library_name: {upstream}"] if upstream else []
    lines = ["---", *library_name, "tags: [leanify, pruning]", "---", f"# {title}", ""]
    lines += [f"Redesigned by leanify from {origin}. {architecture}.", "", *([note, ""] if note else [])]
    # how to load it, by leanify and by its own library
    lines += ["```python", "import leanify", "", f'model = leanify.load("{name}")']
    opens_alone = source.architecture is None and "attn_layer" not in origin.options
    if upstream:
        loads = {
            "hf": f'transformers.{type(model).__name__}.from_pretrained("{name}")',
            "timm": f'timm.create_model("local-dir:{name}", pretrained=True)',
        }
        when = "# or" if opens_alone else "# or, after `import leanify`"
        lines += ["", when, f"import {upstream}", "", f"model = {loads[origin.library]}"]
    # who can open this shape
    if upstream and opens_alone:
        who = f"{upstream} itself builds this shape."
    elif (folder / modelling.FILE).is_file():
        auto = next(iter(read_json(folder / "config.json")["auto_map"].keys() - {"AutoConfig"}))
        lines += ["", "# or, without leanify, by the code beside the weights", "import transformers", ""]
        lines += [f'model = transformers.{auto}.from_pretrained("{name}", trust_remote_code=True)']
        who = "Without leanify, transformers opens this shape with trust_remote_code=True and refuses it otherwise."
    elif upstream:
        who = f"{upstream} alone cannot express this shape, and refuses to load it."
    elif origin.library == user_modules.LIBRARY:
        who = f"`leanify.load` builds the module again by running {origin.name}, and refuses if that file has changed."
    else:
        who = "The model is leanify's own."
    needs = ", ".join(f"{library} {bound}" for library, bound in requirements(origin).items())
    return "\n".join([*lines, "```", "", who, f"Needs {needs}.", ""])


def untie_tensors(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return a model's tensors on the CPU, each tied tensor once, and the tied names: dropped → kept."""
    first_names: dict[int, str] = {}
    tensors: dict[str, Tensor] = {}
    tied: dict[str, str] = {}
    for name, tensor in model.state_dict().items():
        storage = id(tensor) if tensor.numel() == 0 else tensor.data_ptr()
        first = first_names.setdefault(storage, name)
        if first == name or tensor.shape != tensors[first].shape:
            tensors[name] = tensor.detach().cpu().contiguous()
        else:
            tied[name] = first
    return tensors, tied


def read_card(directory: Path) -> ModelSource:
    """Read the model of a lean directory's or a run's card. Raises DirectoryError if damaged or of a newer format."""
    file = directory / CARD
    card = read_json(file, DirectoryError)
    try:
        check_format({"format": card["format"]}, directory)
        origin = Origin(**card["origin"])
        kinds = {"library": str, "name": str, "options": dict, "cls": str, "pictures": dict}
        for name, kind in kinds.items():
            if not isinstance(getattr(origin, name), kind):
                raise TypeError(f"origin must have {name} as {'an object' if kind is dict else 'a string'}")
        return ModelSource(origin, Architecture.from_json(card["architecture"]), tied=dict(card.get("tied") or {}))
    except (KeyError, TypeError, ValueError, AttributeError, ShapeError) as error:
        raise DirectoryError(f"{file} is damaged: {error}") from error
