"""A model on disk: the lean directory that `redesign` writes, and safe reading of tensors.

    leanify.json        how upstream builds the source, the architecture that leanify gives it, versions
    model.safetensors   weights
    config.json         upstream's own configuration
    README.md           the lines that load it

Where upstream cannot build the shape there is no ``config.json`` and the weights are ``leanify.safetensors``:
upstream's loaders then find nothing and fail, instead of building something else. Nothing is ever half written: the
directory is made beside its place, then renamed.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from leanify.architecture import Architecture
from leanify.errors import DirectoryError, LeanifyError, SourceError
from leanify.lens import surgery
from leanify.lens.located import name_of
from leanify.upstream.build import build_model, build_shell
from leanify.upstream.libraries import import_transformers
from leanify.upstream.origin import Origin, is_hf, origin_of, set_origin
from leanify.upstream.spelling import respell

CARD = "leanify.json"
WEIGHTS = "model.safetensors"
OWN_WEIGHTS = "leanify.safetensors"
FORMAT = 1


# -- writing ------------------------------------------------------------------------------------------------------


def save(model: nn.Module, directory: str | Path, force: bool = False) -> Path:
    """Write ``model`` as a lean directory that `leanify.load` loads, and upstream's loader where upstream can.

    Raises DirectoryError where the directory cannot be written or is not empty, SourceError where nothing is known
    of how upstream built the model.
    """
    origin = origin_of(model)
    if origin is None:
        raise SourceError(
            f"this {type(model).__name__} is neither a timm nor a transformers model, so no loader could build it "
            "again; build it with leanify.load, timm.create_model or transformers"
        )
    architecture = surgery.read(model)
    native = expressed(model, origin, architecture)
    with new_directory(directory, force) as folder:
        tied = _write_weights(model, folder, native)
        card = {
            "format": FORMAT,
            "origin": {"library": origin.library, "name": origin.name, "options": origin.options, "cls": origin.cls},
            "architecture": architecture.to_json(),
            "upstream": native is not None,
            "tied": tied,
            "requires": requirements(origin),
            "written_with": {name: metadata.version(name) for name in ("leanify", "torch", "timm", "transformers")},
        }
        (folder / CARD).write_text(json.dumps(card, indent=2) + "\n")
        (folder / "README.md").write_text(_readme(origin, architecture, native, Path(directory).name))
    return Path(directory)


def expressed(model: nn.Module, origin: Origin, architecture: Architecture) -> Origin | None:
    """Upstream's own words for this shape, or None. Found by building: what upstream ignores does not read back."""
    baseline = surgery.read(build_model(origin, "meta"))
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    for candidate in [origin] if baseline == architecture else respell(origin, baseline, architecture):
        try:
            built = build_model(candidate, "meta")
            if surgery.read(built) == architecture and shapes == {
                name: tuple(tensor.shape) for name, tensor in built.state_dict().items()
            }:
                return candidate
        except LeanifyError:
            continue
    return None


def requirements(origin: Origin) -> dict[str, str]:
    """The lowest versions that load the directory, as this distribution states them."""
    names = ("torch", *{"timm": ("timm",), "hf": ("transformers",)}.get(origin.library, ()))
    lines = metadata.requires("leanify") or []
    return {name: line[len(name) :] for line in lines for name in names if line.startswith(f"{name}>")}


def _write_weights(model: nn.Module, folder: Path, native: Origin | None) -> dict[str, str]:
    """Weights, and upstream's configuration where there is one. Returns tied names: dropped → kept."""
    if native is not None and native.library == "hf":
        model.save_pretrained(folder)  # type: ignore[operator]
        return {}
    tensors, tied = untied(model)
    save_file(tensors, folder / (OWN_WEIGHTS if native is None else WEIGHTS), metadata={"format": "pt"})
    if native is not None and native.library == "timm":
        (folder / "config.json").write_text(json.dumps(_timm_config(model, native), indent=2) + "\n")
    return tied


def untied(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, str]]:
    """A model's tensors on the CPU, tied ones once, and the tied names: dropped → kept."""
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


def _timm_config(model: nn.Module, native: Origin) -> dict[str, Any]:
    """What ``timm.create_model("local-dir:…")`` reads."""
    pretrained = {
        key: value
        for key, value in (getattr(model, "pretrained_cfg", None) or {}).items()
        if key in ("input_size", "mean", "std", "interpolation", "crop_pct", "crop_mode", "first_conv", "classifier")
    }
    return {
        "architecture": native.name,
        "num_classes": getattr(model, "num_classes", None),
        "num_features": getattr(model, "num_features", None),
        "model_args": native.options,
        "pretrained_cfg": {**pretrained, "num_classes": getattr(model, "num_classes", None), "custom_load": False},
    }


def _readme(origin: Origin, architecture: Architecture, native: Origin | None, name: str) -> str:
    lines = ["# A lean model", "", f"Redesigned by leanify from {origin}. {architecture}.", "", "```python"]
    lines += ["import leanify", "", f'model = leanify.load("{name}")']
    if native is None:
        note = f"{origin.library} itself cannot express this shape, so there is no `config.json`: load it with leanify."
    elif native.library == "leanify":
        note = "The model is leanify's own."
    elif native.library == "hf":
        lines += ["", "# or", "import transformers", "", f'model = transformers.{native.cls}.from_pretrained("{name}")']
        note = "transformers itself builds this shape."
    else:
        lines += ["", "# or, after `import leanify`", "import timm", ""]
        lines += [f'model = timm.create_model("local-dir:{name}", pretrained=True)']
        note = "timm itself builds this shape" + (
            " once leanify is imported." if "attn_layer" in native.options else "."
        )
    needs = ", ".join(f"{library} {bound}" for library, bound in requirements(origin).items())
    return "\n".join([*lines, "```", "", note, f"Needs {needs}.", ""])


@contextmanager
def new_directory(directory: str | Path, force: bool = False) -> Iterator[Path]:
    """A folder to write into that becomes ``directory`` when all went well, and leaves nothing where it did not.

    Parents are made. With ``force`` a directory that leanify wrote is replaced.
    """
    target = Path(directory)
    check_new_directory(target, force)
    try:
        target.absolute().parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.absolute().parent))
    except OSError as error:
        raise DirectoryError(f"{target} could not be written: {error.strerror or error}") from error
    try:
        folder.chmod(0o755)
        yield folder
        for file in folder.iterdir():
            file.chmod(0o755 if file.is_dir() else 0o644)
        _put(folder, target)
    except OSError as error:
        raise DirectoryError(f"{target} could not be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _put(folder: Path, target: Path) -> None:
    """Rename into place; what stood there is renamed first and removed last, so that at no time both are gone."""
    old = folder.with_name(f"{folder.name}.old")
    if target.exists():
        target.rename(old)
    folder.replace(target)
    shutil.rmtree(old, ignore_errors=True)


def check_new_directory(directory: str | Path, force: bool = False) -> None:
    """Raise DirectoryError unless ``directory`` can be made here, or stands here empty, or may be replaced."""
    target = Path(directory)
    if target.exists() and not target.is_dir():
        raise DirectoryError(f"the output directory {target} is a file; name a directory that does not exist yet")
    if target.is_dir() and any(target.iterdir()) and not (force and _is_ours(target)):
        why = "was not written by leanify" if force else "is not empty"
        raise DirectoryError(
            f"the output directory {target} {why}; name a new one, or empty it first"
            + (" (--force replaces it: leanify wrote it)" if not force and _is_ours(target) else "")
        )
    parent = next(folder for folder in target.absolute().parents if folder.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        why = "no permission in" if parent.is_dir() else "a file stands in the way:"
        raise DirectoryError(f"the output directory {target} cannot be written: {why} {parent}")


def _is_ours(directory: Path) -> bool:
    """Whether leanify wrote a directory: a lean directory, or nothing but such (lean beside its control)."""
    if (directory / CARD).is_file():
        return not (directory / "metrics.jsonl").exists()  # a run is never replaced
    return all((inside / CARD).is_file() for inside in directory.iterdir())


# -- reading ------------------------------------------------------------------------------------------------------


def read_tensors(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a ``.safetensors`` file or of a ``torch.save``d state dict, on the CPU; no code is executed.

    A state dict may lie under ``state_dict``, ``model`` or ``module``. Raises SourceError for anything else.
    """
    path = Path(path)
    if not path.is_file():
        raise SourceError(f"the checkpoint {path} does not exist")
    if path.suffix == ".safetensors":
        try:
            return load_file(path)
        except (SafetensorError, OSError, ValueError) as error:
            raise SourceError(f"the checkpoint {path} is truncated or no safetensors file: {error}") from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            data = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise SourceError(
            f"the checkpoint {path} is a pickle that wants to run code, or is damaged, so it was not opened "
            f"({_reason(error)}); save its state dict alone: torch.save(model.state_dict(), …), or use safetensors"
        ) from error
    except (RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        raise SourceError(f"the checkpoint {path} is damaged: {_reason(error)}") from error
    return _state_dict(path, data)


def _reason(error: Exception) -> str:
    text = str(error)
    if "Unsupported global" in text:
        return "it names " + text.split("Unsupported global: GLOBAL ")[-1].split(" ")[0]
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


def load_weights(model: nn.Module, tensors: dict[str, Tensor], where: str | Path) -> None:
    """Put tensors into a model, in place, every one of them; SourceError names the first few that do not fit."""
    wanted = model.state_dict()
    missing = [name for name in wanted if name not in tensors]
    surplus = [name for name in tensors if name not in wanted]
    odd = [
        f"{name} {tuple(tensors[name].shape)} for {tuple(wanted[name].shape)}"
        for name in wanted
        if name in tensors and tensors[name].shape != wanted[name].shape
    ]
    problems = [
        f"{len(names)} {what} ({', '.join(names[:3])}{', …' if len(names) > 3 else ''})"
        for what, names in (("missing", missing), ("unknown", surplus), ("of another shape", odd))
        if names
    ]
    if problems:
        raise SourceError(f"{where} does not fit {name_of(model)}: " + "; ".join(problems))
    model.load_state_dict(tensors, assign=True)


def read_card(directory: Path) -> tuple[Origin, Architecture, dict[str, Any]]:
    """What a lean directory says of itself: origin, architecture, and the whole card."""
    try:
        card = json.loads((directory / CARD).read_text())
        if card["format"] > FORMAT:
            raise DirectoryError(
                f"{directory} was written by a newer leanify (format {card['format']}); upgrade leanify"
            )
        return Origin(**card["origin"]), Architecture.from_json(card["architecture"]), card
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise DirectoryError(f"{directory / CARD} is damaged: {error}") from error


def load_directory(directory: Path) -> nn.Module:
    """The model of a lean directory, weights and all."""
    origin, architecture, card = read_card(directory)
    if card["upstream"] and origin.library == "hf":
        model: nn.Module = getattr(import_transformers(), origin.cls).from_pretrained(directory)
    else:
        model = shell(origin, architecture)
        file = directory / (WEIGHTS if card["upstream"] else OWN_WEIGHTS)
        tensors = read_tensors(file)
        load_weights(model, {**tensors, **{a: tensors[b] for a, b in card["tied"].items()}}, file)
        if is_hf(model):
            model.tie_weights()  # type: ignore[operator]
    set_origin(model, origin)
    found = surgery.read(model)
    if found != architecture:
        raise DirectoryError(f"{directory} loads as {found}, but was saved as {architecture}")
    return model.eval()


def shell(origin: Origin, architecture: Architecture | None = None) -> nn.Module:
    """A model to load weights into, of the origin's shape or of another: parameters on meta, buffers real."""
    model = build_shell(origin)
    return model if architecture is None else surgery.write(model, architecture)
