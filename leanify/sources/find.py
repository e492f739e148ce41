"""SOURCE → model: anything that names a model, and only that.

vit_base, timm/vit_base_patch16_224     a timm name, or a short one that completes to its standard member
bert, hf/gpt2                           a transformers model type with its default configuration
leanify/crammed-bert                    a model of our own: the paper's systems that no library has
org/name                                a model on the Hugging Face hub
vit-base-lean, recipe.toml              the model of a recipe, in the recipe's shape
path                                    a lean directory, a run, an upstream directory, a config.json, a checkpoint
"""

from __future__ import annotations

import difflib
import importlib.util
import json
import logging
import socket
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from torch import nn

from leanify.architecture import Architecture
from leanify.errors import SourceError
from leanify.lens import surgery
from leanify.models import MODELS
from leanify.sources import lean_directory, recipe, run_directory
from leanify.upstream.build import build_model
from leanify.upstream.libraries import construction_errors, first_line, import_timm, import_transformers, without_type
from leanify.upstream.origin import Origin, set_origin

CHECKPOINTS = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")
STANDARD = ("_patch16_224", "_p16_224", "_patch14_224", "_224")  # the suffixes of a timm family's standard member


@dataclass(frozen=True)
class ModelSource:
    """What a SOURCE leads to: how to build it, the shape that leanify gives it, and where its weights lie.

    ``weights`` is a directory or file here, or a hub id; None for a model that is drawn anew.
    """

    origin: Origin
    architecture: Architecture | None = None
    weights: Path | str | None = None


def load(
    source: str | Path,
    *,
    overrides: Mapping[str, Any] | None = None,
    cls: str | None = None,
    pretrained: bool = False,
    device: str = "cpu",
) -> nn.Module:
    """The model that SOURCE names, in eval mode; with weights where the source has them, else drawn by upstream.

    ``overrides`` reach upstream's constructor (timm) or configuration (transformers); ``cls`` names a transformers
    class (``AutoModelForCausalLM``). On ``device="meta"`` the model has shapes and no weights. Raises SourceError.
    """
    found = find(source, overrides=overrides, cls=cls, pretrained=pretrained)
    if device == "meta":
        return build_on_meta(found)
    model = _with_weights(found)
    return model.to(device)


def build_on_meta(found: ModelSource) -> nn.Module:
    """The found model in no memory."""
    model = build_model(found.origin, "meta")
    return model if found.architecture is None else surgery.write(model, found.architecture)


def find(
    source: str | Path,
    *,
    overrides: Mapping[str, Any] | None = None,
    cls: str | None = None,
    pretrained: bool = False,
) -> ModelSource:
    """What SOURCE leads to; builds nothing but, on meta, what a recipe reshapes. Raises SourceError."""
    text = str(source)
    if (file := _recipe_file(text)) is not None:
        return _in_recipe(file, overrides or {}, cls, pretrained)
    path = Path(source).expanduser()
    if path.is_dir():
        found = _in_directory(path)
    elif path.is_file():
        found = _in_file(path)
    elif text.startswith(("./", "/", "~", "../")) or path.suffix in (*CHECKPOINTS, ".json", ".toml"):
        raise SourceError(f"{text} does not exist")
    else:
        found = _by_name(text, pretrained)
    return overridden(found, dict(overrides or {}), cls)


# -- paths --------------------------------------------------------------------------------------------------------


def _in_directory(path: Path) -> ModelSource:
    if (path / lean_directory.CARD).is_file():  # a lean directory, or a run
        origin, architecture, _ = lean_directory.read_card(path)
        return ModelSource(origin, architecture, path)
    if (path / "config.json").is_file():
        found = _in_config(path / "config.json")
        return replace(found, weights=path if _has_weights(path) else None)
    here = ", ".join(sorted(p.name for p in path.iterdir())[:5]) or "nothing"
    raise SourceError(
        f"{path} is no model: it holds neither {lean_directory.CARD} (a lean directory) nor config.json "
        f"(timm's or transformers'); found {here}"
    )


def _has_weights(path: Path) -> bool:
    return any(p.suffix in CHECKPOINTS or p.name.endswith(".index.json") for p in path.iterdir())


def _in_config(path: Path) -> ModelSource:
    try:
        config = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise SourceError(f"{path} is not JSON: {error}") from error
    if isinstance(config, dict) and "model_type" in config:
        return ModelSource(_hf_origin(config["model_type"], config))
    if isinstance(config, dict) and "architecture" in config:
        options = config.get("model_args") or {}
        if config.get("num_classes") is not None:
            options = {"num_classes": config["num_classes"], **options}
        return ModelSource(Origin("timm", config["architecture"], options))
    raise SourceError(f"{path} names no model: neither transformers' model_type nor timm's architecture is in it")


def _in_file(path: Path) -> ModelSource:
    if path.suffix == ".json":
        return _in_config(path)
    if path.suffix not in CHECKPOINTS:
        raise SourceError(f"{path} is no model: known are directories, config.json and {', '.join(CHECKPOINTS)}")
    lean_directory.read_tensors(path)  # a damaged file is said before a missing configuration
    beside = path.absolute().parent
    if not any((beside / name).is_file() for name in (lean_directory.CARD, "config.json")):
        raise SourceError(
            f"{path} holds tensors but not the model they belong to: put its config.json beside it, "
            f"or name the model and carry the weights over: leanify redesign MODEL --weights {path}"
        )
    return replace(_in_directory(beside), weights=path)


def _recipe_file(text: str) -> Path | None:
    path = Path(text).expanduser()
    if path.exists():
        return path if path.suffix == ".toml" and path.is_file() else None
    return recipe.find(text)


def _in_recipe(path: Path, overrides: Mapping[str, Any], cls: str | None, pretrained: bool) -> ModelSource:
    """The model of a recipe. A shape of its own is drawn anew; without one the source keeps its weights."""
    model = recipe.load(path).model
    if _recipe_file(model.source) is not None:
        raise SourceError(f"{path}: the source of a recipe is a model, and {model.source!r} is another recipe")
    found = find(model.source, overrides={**model.override, **overrides}, cls=cls or model.cls, pretrained=pretrained)
    if not model.reshapes:
        return found
    if pretrained:
        raise SourceError(f"{path} gives {model.source} another shape, for which there are no pretrained weights")
    architecture = model.shape(surgery.read(build_on_meta(found)))
    return replace(found, architecture=architecture, weights=None)


# -- names --------------------------------------------------------------------------------------------------------


def _by_name(name: str, pretrained: bool) -> ModelSource:
    library, _, rest = name.partition("/")
    if library == "hf" and rest:
        if "/" in rest:
            return _on_hub(rest)
        if is_model_type(rest) or rest in _every_model_type():
            return ModelSource(_hf_origin(rest, {}))
        raise SourceError(_unknown(name, rest, _every_model_type(), "transformers model type"))
    if library == "timm" and rest:
        return _in_timm(name, rest, pretrained)
    if library == "leanify" and rest:
        if rest in MODELS:
            return ModelSource(Origin("leanify", rest))
        raise SourceError(_unknown(name, rest, list(MODELS), "model of leanify's own"))
    if "/" in name:
        return _on_hub(name)
    if is_model_type(name):
        return ModelSource(_hf_origin(name, {}))
    try:
        return _in_timm(name, name, pretrained)
    except SourceError:
        if name in _every_model_type():
            return ModelSource(_hf_origin(name, {}))
        raise


def _in_timm(asked: str, name: str, pretrained: bool) -> ModelSource:
    origin = Origin("timm", complete(asked, name.removeprefix("timm/")))
    return ModelSource(origin, weights=f"timm/{origin.name}" if pretrained else None)


def complete(asked: str, name: str) -> str:
    """The timm model that a name means: itself, or its standard member; ambiguous and unknown names are refused."""
    timm = import_timm()
    bare, dot, tag = name.partition(".")
    if timm.is_model(bare):
        return name
    for suffix in STANDARD:
        if timm.is_model(bare + suffix):
            return bare + suffix + dot + tag
    members = sorted(timm.list_models(f"{bare}*"), key=lambda member: (_standing(member), len(member)))
    if members:
        shown = ", ".join(members[:8]) + (f", … ({len(members)} in all)" if len(members) > 8 else "")
        raise SourceError(f"{asked!r} is ambiguous in timm; it could be {shown}")
    known = timm.list_models() if asked.startswith("timm/") else [*timm.list_models(), *_model_types(), *recipe.stems()]
    raise SourceError(_unknown(asked, bare, known, "timm model, transformers model type, recipe, hub id or path"))


def _standing(name: str) -> int:
    """How far a timm name is from a standard member: the number of suffixes that would be tried before its own."""
    return next((i for i, suffix in enumerate(STANDARD) if name.endswith(suffix)), len(STANDARD))


def _unknown(asked: str, name: str, known: list[str], kinds: str) -> str:
    stems = {stem: full for full in known for stem in (full, *(full.removesuffix(s) for s in STANDARD))}
    near = list(dict.fromkeys(stems[match] for match in difflib.get_close_matches(name, stems, n=5, cutoff=0.6)))
    return f"{asked!r} is no {kinds}" + (f"; nearest: {', '.join(near)}" if near else "")


def _model_types() -> list[str]:
    """transformers' model types, by its folders: listing them imports nothing."""
    spec = importlib.util.find_spec("transformers")
    places = list(spec.submodule_search_locations or []) if spec else []
    return sorted(p.parent.name for place in places for p in Path(place).glob("models/*/configuration_*.py"))


def _every_model_type() -> list[str]:
    """All of transformers' model types, those of towers (``clip_vision_model``) among them; imports it."""
    return list(import_transformers().CONFIG_MAPPING)


def is_model_type(name: str) -> bool:
    return name.replace("-", "_") in _model_types()


def _hf_origin(model_type: str, config: dict[str, Any]) -> Origin:
    library = import_transformers()
    try:
        full = library.AutoConfig.for_model(model_type, **without_type(config))
    except construction_errors() as error:
        if model_type not in library.CONFIG_MAPPING and model_type.replace("_", "-") in library.CONFIG_MAPPING:
            return _hf_origin(model_type.replace("_", "-"), config)
        raise SourceError(f"transformers takes no {model_type!r} so configured: {first_line(error)}") from error
    named = [name for name in config.get("architectures") or [] if hasattr(library, name)]
    return Origin("hf", full.model_type, full.to_dict(), named[0] if named else class_name("AutoModel", full))


def class_name(auto: str, config: Any) -> str:
    library = import_transformers()
    if not hasattr(library, auto):
        raise SourceError(f"transformers has no class {auto!r}; try AutoModel, AutoModelForCausalLM, …")
    if not auto.startswith("AutoModel"):
        return auto
    try:
        found = getattr(library, auto)._model_mapping[type(config)]
    except (KeyError, TypeError, ValueError) as error:
        raise SourceError(f"transformers has no {auto} for the model type {config.model_type!r}") from error
    return str((found[0] if isinstance(found, tuple) else found).__name__)


def _on_hub(name: str) -> ModelSource:
    library = import_transformers()
    logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)  # its retries are told by the one message below
    try:
        config, _ = library.PreTrainedConfig.get_config_dict(name, local_files_only=not _hub_answers())
    except Exception as error:  # the hub client raises from several libraries
        raise SourceError(
            f"{name!r} is no file or directory here, and the Hugging Face hub did not give it: {first_line(error)}"
        ) from error
    if "model_type" not in config:
        raise SourceError(f"{name!r} on the hub is no transformers model; for a timm model say timm/NAME")
    return ModelSource(_hf_origin(config["model_type"], config), weights=name)


def _hub_answers() -> bool:
    """Whether the hub's name resolves; without a network only the local cache is asked, at once."""
    from huggingface_hub import constants

    try:
        socket.getaddrinfo(urlsplit(constants.ENDPOINT).hostname, 443)
    except OSError:
        return False
    return not constants.HF_HUB_OFFLINE


# -- overrides ----------------------------------------------------------------------------------------------------


def overridden(found: ModelSource, overrides: dict[str, Any], cls: str | None) -> ModelSource:
    origin = found.origin
    if cls is not None and origin.library != "hf":
        raise SourceError(f"{origin} is no transformers model, so it has no class {cls!r}")
    if not overrides and cls is None:
        return found
    if overrides and found.architecture is not None:
        raise SourceError("a lean directory is what it is: override the source that it was redesigned from")
    if origin.library != "hf":
        return replace(found, origin=replace(origin, options={**origin.options, **overrides}))
    config = dict(origin.options)
    for key, value in overrides.items():
        config = _set(config, key, value, origin.name)
    library = import_transformers()
    try:
        full = library.AutoConfig.for_model(origin.name, **without_type(config))
    except construction_errors() as error:
        raise SourceError(f"transformers takes no {origin.name!r} so configured: {first_line(error)}") from error
    name = origin.cls if cls is None else class_name(cls, full)
    return replace(found, origin=Origin("hf", origin.name, full.to_dict(), name))


def _set(config: dict[str, Any], key: str, value: Any, model_type: str) -> dict[str, Any]:
    """``config`` with one key changed; sizes that the default derived from it are derived anew."""
    library = import_transformers()
    names = library.CONFIG_MAPPING[model_type].attribute_map
    key = names.get(key, key)
    if key == "num_labels":  # transformers keeps the names of the classes, not their number
        labels = {index: f"LABEL_{index}" for index in range(value)}
        return {**config, "id2label": labels, "label2id": {label: index for index, label in labels.items()}}
    if key not in config:
        near = difflib.get_close_matches(key, [*config, *names], n=3)
        hint = f"; nearest: {', '.join(near)}" if near else ""
        raise SourceError(f"the configuration of {model_type!r} has no {key!r}{hint}")
    changed = {**config, key: value}
    if key != "head_dim" and names.get("hidden_size", "hidden_size") in config and "head_dim" in config:
        width, heads = (names.get(n, n) for n in ("hidden_size", "num_attention_heads"))
        if key in (width, heads) and config["head_dim"] == config[width] // config[heads]:
            changed.pop("head_dim")
    if key == names.get("num_hidden_layers", "num_hidden_layers") and isinstance(config.get("layer_types"), list):
        changed.pop("layer_types")
    return changed


# -- weights ------------------------------------------------------------------------------------------------------


def _with_weights(found: ModelSource) -> nn.Module:
    origin, weights = found.origin, found.weights
    if weights is None:
        return build_model(origin) if found.architecture is None else _fresh(found)
    if isinstance(weights, Path) and run_directory.is_run(weights):
        return run_directory.load(weights)
    if isinstance(weights, Path) and weights.is_dir() and (weights / lean_directory.CARD).is_file():
        return lean_directory.load_directory(weights)
    if origin.library == "hf" and found.architecture is None:
        return _from_pretrained(origin, weights)
    if isinstance(weights, str):
        return _timm_pretrained(origin)
    model = lean_directory.shell(origin, found.architecture)
    file = weights if weights.is_file() else _weights_file(weights)
    lean_directory.load_weights(model, lean_directory.read_tensors(file), file)
    return model


def _fresh(found: ModelSource) -> nn.Module:
    assert found.architecture is not None
    return surgery.write(build_model(found.origin), found.architecture, "fresh")


def _weights_file(directory: Path) -> Path:
    files = sorted(p for p in directory.iterdir() if p.suffix in CHECKPOINTS)
    return next((p for p in files if p.suffix == ".safetensors"), files[0])


def _from_pretrained(origin: Origin, weights: Path | str) -> nn.Module:
    """transformers' own loader: it knows sharded files and old spellings. What it had to draw anew is said."""
    library = import_transformers()
    config = library.AutoConfig.for_model(origin.name, **without_type(origin.options))
    if isinstance(weights, Path) and weights.is_dir():
        for file in weights.iterdir():
            if file.suffix in CHECKPOINTS:
                lean_directory.read_tensors(file)
    state = lean_directory.read_tensors(weights) if isinstance(weights, Path) and weights.is_file() else None
    try:
        model, info = getattr(library, origin.cls).from_pretrained(
            None if state is not None else weights, config=config, state_dict=state, output_loading_info=True
        )
    except (OSError, RuntimeError, ValueError) as error:
        raise SourceError(f"{weights} does not load as {origin.cls}: {first_line(error)}") from error
    missing = sorted(info["missing_keys"])
    if len(missing) == len(model.state_dict()):
        raise SourceError(
            f"{weights} holds no tensor of {origin.cls}; its first missing ones: {', '.join(missing[:3])}"
        )
    if missing:
        shown = ", ".join(missing[:3]) + (", …" if len(missing) > 3 else "")
        warnings.warn(f"{weights} lacks {len(missing)} tensors of {origin.cls}, drawn anew: {shown}", stacklevel=3)
    set_origin(model, origin)
    loaded: nn.Module = model.eval()
    return loaded


def _timm_pretrained(origin: Origin) -> nn.Module:
    if not _hub_answers():
        raise SourceError(
            f"the pretrained weights of {origin} could not be fetched: the hub cannot be reached from here"
        )
    try:
        model: nn.Module = import_timm().create_model(origin.name, pretrained=True, **origin.options)
    except Exception as error:  # the hub client raises from several libraries
        raise SourceError(f"the pretrained weights of {origin} could not be fetched: {first_line(error)}") from error
    set_origin(model, origin)
    return model.eval()


def parse_overrides(pairs: list[str]) -> dict[str, Any]:
    """``key=value`` pairs; values are read as JSON where they are JSON, else as words."""
    overrides = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise SourceError(f"--override takes key=value; {pair!r} has no {'key' if equals else 'equals sign'}")
        try:
            overrides[key] = json.loads(value)
        except json.JSONDecodeError:
            overrides[key] = {"True": True, "False": False, "None": None}.get(value, value)
    return overrides
