"""Resolve a SOURCE, which is anything that names a model:

vit_base, timm/vit_base_patch16_224     a timm name, or a short one that completes to its standard member
bert, hf/gpt2                           a transformers model type with its default configuration
org/name, bert-base-uncased             a model on the Hugging Face hub
vit-base-lean, recipe.toml              the model of a recipe, in the recipe's shape
model.py:make, package.module:make      a user's own module: what this function or class returns
path                                    a lean directory, a run, an upstream directory, a config.json, a checkpoint

`find` resolves a SOURCE once, to a `ModelSource`; `weights.load` builds it.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

from torch import nn

from leanify.core import machine, recipe
from leanify.core import path_kinds as places
from leanify.core.errors import LeanifyError, SourceError
from leanify.core.files.reading import check_regular, preview
from leanify.core.recipe_code import is_code
from leanify.reshaping import surgery
from leanify.runs import checkpoints, run_directory
from leanify.sources import heads, lean_directory, names, weights
from leanify.sources.overrides import config_source, hf_origin, override_source
from leanify.sources.source import ModelSource as ModelSource
from leanify.sources.source import build_on_meta as build_on_meta
from leanify.sources.tensors import read_tensors
from leanify.upstream import user_modules
from leanify.upstream.lean_config import KEY
from leanify.upstream.libraries import import_transformers, reraise_as
from leanify.upstream.origin import Origin


def load(
    source: str | Path,
    *,
    overrides: Mapping[str, Any] | None = None,
    cls: str | None = None,
    pretrained: bool = False,
    device: str = "cpu",
) -> nn.Module:
    """Return the model that SOURCE names, in eval mode: with its weights, or initialised by upstream.

    ``overrides`` are passed to upstream's constructor (timm) or configuration (transformers); ``cls``, or ``class``
    among the overrides, names a transformers class (``AutoModelForCausalLM``); ``pretrained`` fetches timm's
    pretrained weights for a timm name. On ``device="meta"`` the model has shapes but no weights. Raises SourceError.

    >>> import leanify
    >>> model = leanify.load("vit_tiny", overrides={"img_size": 32}, device="meta")
    >>> sum(parameter.numel() for parameter in model.parameters())
    5680552
    """
    model_source = find(source, overrides=overrides, cls=cls, pretrained=pretrained)
    model = (
        build_on_meta(model_source) if device == "meta" else weights.load(model_source).to(machine.parse_device(device))
    )
    pretrained_cfg = getattr(model, "pretrained_cfg", None)
    has_own_crop = "crop_pct" in model_source.origin.pictures
    if pretrained_cfg and places.is_run(source) and not has_own_crop:
        # a run's timm model says how much of an image its evaluation keeps
        data = run_directory.RunDirectory.open(source).recipe.data
        if data is not None and isinstance(pretrained_cfg.get("crop_pct"), float | int):
            model.pretrained_cfg = {**pretrained_cfg, "crop_pct": data.evaluated_side(pretrained_cfg["crop_pct"])}  # type: ignore[assignment]
    return model


def load_with_weights(
    model_source: ModelSource, weights_source: str | Path | None, pretrained: bool = False
) -> nn.Module:
    """Return the found model with the weights of ``source`` (a checkpoint file, a directory, a hub id), or its own.

    Without ``source`` these are the model's own weights if it has any, otherwise upstream's for its name;
    ``pretrained`` asks timm for its pretrained weights. Raises SourceError.
    """
    if weights_source is None and model_source.weights is not None:
        return weights.load(model_source)
    name = str(weights_source) if weights_source is not None else str(model_source.origin)
    path = Path(name).expanduser()
    teacher = replace(model_source, weights=path) if places.is_checkpoint(path) else None
    return weights.load_teacher_weights(model_source, teacher or find(name, pretrained=pretrained), name)


@reraise_as("no model is found there")
def find(
    source: str | Path | recipe.Recipe | ModelSource | nn.Module,
    *,
    overrides: Mapping[str, Any] | None = None,
    cls: str | None = None,
    pretrained: bool = False,
) -> ModelSource:
    """Resolve SOURCE to a `ModelSource` without building it (a recipe's model is built on meta to reshape it).

    A module or a resolved source is taken as it is; a recipe may be given as its value. The other
    arguments are the same as for `load`. Raises SourceError with the nearest known names.
    """
    options = dict(overrides or {})
    if "class" in options:
        cls = str(options.pop("class"))
    # objects: a live module, a resolved source, a recipe
    if isinstance(source, nn.Module):
        return ModelSource(Origin(user_modules.LIVE, type(source).__name__, {}, "", source))
    if isinstance(source, ModelSource):
        return override_source(source, options, cls)
    if isinstance(source, recipe.Recipe):
        return _find_recipe(source, "the recipe", options, cls, pretrained)
    text = str(source)
    # code and recipes, which are named by their files
    if is_code(text):
        return override_source(ModelSource(user_modules.parse_module_source(text)), options, cls)
    file = _recipe_file(text)
    if file is not None:
        return _find_recipe(recipe.load(file), str(file), options, cls, pretrained)
    # what lies on this disk; a name may be too long for a path, which os.path takes
    path = Path(source).expanduser()
    if os.path.isdir(path):  # noqa: PTH112
        model_source = _find_directory(path, options, cls)
    elif os.path.exists(path):  # noqa: PTH110
        model_source = _find_file(path, options, cls)
    # a path that does not exist
    elif text.startswith(("./", "/", "~", "../")) or path.suffix in (*places.WEIGHTS, ".json", ".toml"):
        raise SourceError(f"{text[:200]} does not exist")
    else:
        model_source = _find_name(text, pretrained)
    if model_source.origin.library == "hf":
        options.pop("model_type", None)
    return override_source(model_source, options, cls)


def recorded_source(text: str) -> str | ModelSource:
    """A SOURCE that a recipe or a run names, for `find`: its code is run only if the user named it himself."""
    return ModelSource(user_modules.origin_of_code(text)) if is_code(text) else text


def section_source(model: recipe.ModelSection) -> ModelSource:
    """The model of a recipe's [model], before the recipe reshapes it."""
    return find(recorded_source(model.source), overrides=model.override, cls=model.cls)


def absolute_source(source: str | Path) -> str:
    """Make the path of a SOURCE absolute. Raises SourceError if it has no weights."""
    path = Path(source).expanduser()
    if not places.is_checkpoint(path) and find(source).weights is None:
        raise SourceError(f"{source} has no weights; name a run, a checkpoint, or a directory with weights")
    return str(path.absolute()) if path.exists() else str(source)


# -- paths -------------


def _find_directory(path: Path, overrides: dict[str, Any], cls: str | None, file: Path | None = None) -> ModelSource:
    """The model of a directory; ``file`` holds its weights if it has another name than upstream's."""
    # a run: its best checkpoint; before its first one, loading fails
    if places.is_run(path):
        card = lean_directory.read_card(path)
        best = run_directory.RunDirectory.open(path).best()
        folder = path if best is None else best.path
        return _attach_files(replace(card, weights=folder / checkpoints.WEIGHTS), path)
    check_regular(path)
    if (path / places.ADAPTER).exists():  # transformers would give its keys to PEFT, even with complete weights there
        raise _adapter_error(path)
    # a folder of upstream's, lean or not: its configuration, with its weights if there are any
    card_here = lean_directory.read_card(path) if (path / places.CARD).is_file() else None
    if (path / "config.json").exists():
        model_source = config_source(path / "config.json", overrides, cls)
        where = file or (path if weights.has_weights(path) else None)
        model_source = replace(model_source, weights=where)
        if where is None and (unread := weights.describe_unread(path)):
            warnings.warn(f"{unread}. Without them its weights are new", stacklevel=2)
        return model_source if cls is not None or where is None else heads.match_stored_head(model_source, path, where)
    # a lean folder of a library without a configuration: leanify's own card
    if card_here is not None:
        return _attach_files(replace(card_here, weights=weights.find_weights(path)), path)
    # no model, so the message names what lies below
    models = [str(place.relative_to(path)) for place in places.models_inside(path)]
    if models:
        raise SourceError(
            f"{path} is not a model but contains {preview(models)}: name one of them, as {path / models[0]}"
        )
    if unread := weights.describe_unread(path):
        raise SourceError(unread)
    if weights.has_weights(path):
        return _find_file(weights.find_weights(path), overrides, cls)
    entries = preview(sorted(entry.name for entry in path.iterdir()), 5) or "nothing"
    raise SourceError(
        f"{path} is not a model: it has neither {places.CARD} (a lean directory) nor config.json "
        f"(timm's or transformers'); found {entries}. Is it data? leanify train {quote(str(path))} says what to do"
    )


def _attach_files(model_source: ModelSource, path: Path) -> ModelSource:
    """Move a lean shape into transformers' configuration, so that other classes and overrides apply too."""
    if model_source.origin.library != "hf" or model_source.architecture is None:
        return model_source
    shape = {KEY: {"architecture": model_source.architecture.to_json()}}
    options = {**model_source.origin.options, **shape, "_name_or_path": str(path)}
    return replace(model_source, origin=replace(model_source.origin, options=options), architecture=None)


def _adapter_error(name: str | Path) -> SourceError:
    return SourceError(
        f"{name} is a PEFT adapter, not a model; merge it into its base model first, with peft: "
        "AutoPeftModel.from_pretrained(...).merge_and_unload().save_pretrained(DIR), or AutoPeftModelForCausalLM and "
        "the like, and name DIR"
    )


def _find_file(path: Path, overrides: dict[str, Any], cls: str | None) -> ModelSource:
    if not path.is_file():
        raise SourceError(f"{path} is not a regular file")
    is_index = path.name.endswith(".index.json")  # of a checkpoint in shards
    if path.suffix == ".json" and not is_index:
        return config_source(path, overrides, cls)
    if not is_index and not places.is_checkpoint(path):
        raise SourceError(
            weights.describe_unread(path)
            or f"{path} is not a model; name a directory, a config.json or a {', '.join(places.WEIGHTS)} file"
        )
    directory = path.absolute().parent
    if (directory / places.ADAPTER).exists():
        raise _adapter_error(path)
    # a file of weights needs a configuration that names its model
    if not any((directory / name).is_file() for name in (places.CARD, "config.json")):
        if not is_index:
            read_tensors(path)  # report a damaged file first: a configuration would not help it
        raise SourceError(
            f"{path} has weights but does not say of which model: put the model's config.json beside it, "
            f"or name the model: leanify redesign MODEL --weights {path}"
        )
    if is_index:
        return _find_directory(directory, overrides, cls, None)
    return replace(_find_directory(directory, overrides, cls, path), weights=path)


def _recipe_file(text: str) -> Path | None:
    path = Path(text).expanduser()
    if os.path.exists(path):  # noqa: PTH110  as in `find`
        return path if path.suffix == ".toml" else None
    return recipe.find(text)


def _find_recipe(
    value: recipe.Recipe, name: str, overrides: Mapping[str, Any], cls: str | None, pretrained: bool
) -> ModelSource:
    """The model of a recipe: initialised if the recipe sets a shape, otherwise with its source's weights."""
    # a recipe names a model, not another recipe
    model = value.model
    if _recipe_file(model.source) is not None:
        raise SourceError(f"{name}: the source of a recipe must be a model; {model.source!r} is another recipe")
    model_source = find(
        recorded_source(model.source),
        overrides={**model.override, **overrides},
        cls=cls or model.cls,
        pretrained=pretrained,
    )
    # a shape of its own is read from the model on meta, and has no weights yet
    if not model.reshapes:
        return model_source
    if pretrained:
        raise SourceError(f"{name} changes the shape of {model.source}, so there are no pretrained weights for it")
    architecture = model.shape(surgery.read(build_on_meta(model_source)))
    return replace(model_source, architecture=architecture, weights=None)


# -- names -------------


def _find_name(name: str, pretrained: bool) -> ModelSource:
    library, _, rest = name.partition("/")
    # a library before the slash
    if library == "timm" and rest:
        return _find_timm(name, rest, pretrained)
    if library == "hf" and rest:
        if "/" in rest:
            return _find_on_hub(rest)
        if names.is_model_type(rest) or rest in import_transformers().CONFIG_MAPPING:
            return ModelSource(hf_origin(rest, {}))
        model_types = list(import_transformers().CONFIG_MAPPING)
        return _try_hub(rest, SourceError(names.unknown_name(name, rest, model_types, "transformers model type")))
    # a hub id
    if "/" in name:
        return _find_on_hub(name)
    # a name of transformers, then one of timm, then one of the hub's oldest models
    if names.is_model_type(name):
        return ModelSource(hf_origin(name, {}))
    try:
        return _find_timm(name, name, pretrained)
    except SourceError as unknown:
        if name in import_transformers().CONFIG_MAPPING:  # towers too: clip_vision_model
            return ModelSource(hf_origin(name, {}))
        return _try_hub(name, unknown)


def _find_on_hub(name: str) -> ModelSource:
    if names.download_file(name, places.ADAPTER) is not None:
        raise _adapter_error(name)
    config = names.config_on_hub(name)
    model_source = ModelSource(hf_origin(config["model_type"], config), weights=name)
    modules = names.download_file(name, heads.MODULES)
    if modules is None or not heads.is_encoder(modules.parent):
        return model_source
    return heads.bare_encoder(model_source)


def _try_hub(name: str, unknown: SourceError) -> ModelSource:
    """Look a name without a slash up on the hub, whose oldest models have none (``bert-base-uncased``)."""
    if "_" in name:  # a misspelt name of timm
        raise unknown
    try:
        return _find_on_hub(name)
    except LeanifyError:
        if name in names.HUB and not names.hub_answers():
            raise SourceError(
                f"{name!r} is a model on the Hugging Face hub, which cannot be reached from here; name a directory "
                "with its config.json instead"
            ) from None
        where = "the hub has no such model" if names.hub_answers() else "the Hugging Face hub cannot be reached"
        raise SourceError(f"{unknown}; {where}") from None


def _find_timm(source: str, name: str, pretrained: bool) -> ModelSource:
    origin = Origin("timm", names.complete_name(source, name.removeprefix("timm/")))
    return ModelSource(origin, weights=f"timm/{origin.name}" if pretrained else None)
