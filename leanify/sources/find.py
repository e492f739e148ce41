"""Resolve a SOURCE, which is anything that names a model:

vit_base, timm/vit_base_patch16_224     a timm name, or a short one that completes to its standard member
diffusers/dit, diffusers/pixart         a model of diffusers by its class, with its default configuration
bert, hf/gpt2                           a transformers model type with its default configuration
leanify/crammed-bert                    one of leanify's own models: systems of the paper that no library has
org/name, bert-base-uncased             a model on the Hugging Face hub
vit-base-lean, recipe.toml              the model of a recipe, in the recipe's shape
model.py:make, package.module:make      a user's own module: what this function or class returns
path                                    a lean directory, a run, an upstream directory, a config.json, a checkpoint

`find` resolves a SOURCE once, to a `ModelSource`; `weights.load` builds it.
"""

from __future__ import annotations

import difflib
import importlib.util
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

from torch import nn

from leanify import machine
from leanify.architecture import Architecture
from leanify.errors import LeanifyError, SourceError
from leanify.lens import surgery
from leanify.runs import checkpoints, places, recipe, run_directory
from leanify.runs.files import check_regular, read_json
from leanify.sources import adapters, heads, hub, lean_directory, pooling, weights
from leanify.sources.overrides import hf_origin, overridden, type_of_class
from leanify.sources.source import ModelSource as ModelSource
from leanify.sources.source import build_on_meta as build_on_meta
from leanify.sources.tensors import CHECKPOINTS, few, read_tensors
from leanify.upstream import diffusion, hooks, modules
from leanify.upstream.lean_config import KEY, from_file
from leanify.upstream.libraries import import_timm, import_transformers
from leanify.upstream.origin import Origin
from leanify.upstream.own_models import MODELS
from leanify.upstream.wall import wall

HUB = (  # the hub's well-known models without a slash, as suggestions
    "bert-base-uncased", "bert-base-cased", "bert-large-uncased", "bert-base-multilingual-cased",
    "distilbert-base-uncased", "roberta-base", "roberta-large", "distilroberta-base", "xlm-roberta-base",
    "albert-base-v2", "gpt2-medium", "gpt2-large", "gpt2-xl", "distilgpt2", "t5-small", "t5-base", "t5-large",
)  # fmt: skip
STANDARD = ("_patch16_224", "_p16_224", "_patch14_224", "_224")  # tried in order to complete a timm family's name


def load(
    source: str | Path,
    *,
    overrides: Mapping[str, Any] | None = None,
    cls: str | None = None,
    pretrained: bool = False,
    device: str = "cpu",
) -> nn.Module:
    """Return the model that SOURCE names, in eval mode: with its weights if it has any, else initialised by upstream.

    ``overrides`` are passed to upstream's constructor (timm) or configuration (transformers); ``cls`` names a
    transformers class (``AutoModelForCausalLM``); ``pretrained`` fetches timm's pretrained weights for a timm
    name. On ``device="meta"`` the model has shapes but no weights. Raises SourceError.

    >>> import leanify
    >>> model = leanify.load("vit_tiny", overrides={"img_size": 32}, device="meta")
    >>> sum(parameter.numel() for parameter in model.parameters())
    5680552
    """
    found = find(source, overrides=overrides, cls=cls, pretrained=pretrained)
    model = build_on_meta(found) if device == "meta" else weights.load(found).to(machine.device_of(device))
    known = getattr(model, "pretrained_cfg", None)
    if known and places.is_run(source):  # a run's timm model says how much of an image its evaluation keeps
        data = run_directory.RunDirectory.open(source).recipe.data
        if data is not None and isinstance(known.get("crop_pct"), float | int):
            model.pretrained_cfg = {**known, "crop_pct": data.evaluated_side(known["crop_pct"])}  # type: ignore[assignment]
    return model


def with_weights(found: ModelSource, source: str | Path | None, pretrained: bool = False) -> nn.Module:
    """Return the found model with the weights of ``source`` (a checkpoint file, a directory, a hub id), or its own.

    Without ``source`` these are the model's own weights if it has any, else upstream's for its name;
    ``pretrained`` asks timm for its pretrained weights. Raises SourceError.
    """
    if source is None and found.weights is not None:
        return weights.load(found)
    asked = str(source) if source is not None else str(found.origin)
    path = Path(asked).expanduser()
    donor = replace(found, weights=path) if path.suffix in CHECKPOINTS and path.is_file() else None
    return weights.carried(found, donor or find(asked, pretrained=pretrained), asked)


@wall("no model is found there")
def find(
    source: str | Path | recipe.Recipe | ModelSource | nn.Module,
    *,
    overrides: Mapping[str, Any] | None = None,
    cls: str | None = None,
    pretrained: bool = False,
) -> ModelSource:
    """Resolve SOURCE to a `ModelSource` without building it (a recipe's model is built on meta to reshape it).

    A module, and what is resolved already, is taken as it is; a recipe may be given as its value. The other
    arguments are those of `load`. Raises SourceError, with the nearest known names where there are any.
    """
    wanted = dict(overrides or {})
    if isinstance(source, nn.Module):
        return ModelSource(modules.live_origin(source))
    if isinstance(source, ModelSource):
        return overridden(source, wanted, cls)
    if isinstance(source, recipe.Recipe):
        return _in_recipe(source, "the recipe", wanted, cls, pretrained)
    text = str(source)
    if modules.is_code(text):
        return overridden(ModelSource(modules.named(text)), wanted, cls)
    file = _recipe_file(text)
    if file is not None:
        return _in_recipe(recipe.load(file), str(file), wanted, cls, pretrained)
    path = Path(source).expanduser()
    if _is(path, Path.is_dir):
        found = _in_directory(path, wanted, cls)
    elif _is(path, Path.exists):
        found = _in_file(path, wanted, cls)
    elif text.startswith(("./", "/", "~", "../")) or path.suffix in (*CHECKPOINTS, ".json", ".toml"):
        raise SourceError(f"{text[:200]} does not exist")
    else:
        found = _by_name(text, pretrained)
    if found.origin.library == "hf":
        wanted.pop("model_type", None)
    return overridden(found, wanted, cls)


def located(source: str | Path) -> str:
    """Make the path of a SOURCE absolute. Raises SourceError if it has no weights."""
    path = Path(source).expanduser()
    if not (path.suffix in CHECKPOINTS and path.is_file()) and find(source).weights is None:
        raise SourceError(f"{source} has no weights; name a run, a checkpoint, or a directory with weights")
    return str(path.absolute()) if path.exists() else str(source)


def _is(path: Path, test: Any) -> bool:
    """Apply a test to what may not be a path: False for a name that the file system rejects as too long."""
    try:
        return bool(test(path))
    except (OSError, ValueError):
        return False


# -- paths -------------


def _in_directory(path: Path, overrides: dict[str, Any], cls: str | None, file: Path | None = None) -> ModelSource:
    """The model of a directory; ``file`` holds its weights where that is none of upstream's names.

    A run has the weights of its best checkpoint; before its first checkpoint, loading fails.
    """
    if places.is_run(path):
        card = lean_directory.read_card(path)
        best = run_directory.RunDirectory.open(path).best()
        stored = (path if best is None else best.path) / checkpoints.WEIGHTS
        return _carrying(ModelSource(card.origin, card.architecture, stored, card.tied), path)
    check_regular(path)
    card_here = lean_directory.read_card(path) if (path / places.CARD).is_file() else None
    if (path / "config.json").exists():
        found = _in_config(path / "config.json", overrides, cls)
        where = file or (path if weights.lie_in(path) else None)
        if where is None and (path / adapters.CONFIG).is_file():  # an adapter with its base's configuration beside it
            return _adapted(path, overrides, cls)
        found = replace(found, weights=where)
        return found if cls is not None or where is None else heads.as_stored(found, path, where)
    if card_here is not None:
        stored = weights.file_in(path)
        return _carrying(ModelSource(card_here.origin, card_here.architecture, stored, card_here.tied), path)
    if (path / adapters.CONFIG).is_file():
        return _adapted(path, overrides, cls)
    models = [str(place.relative_to(path)) for place in places.models_inside(path)]
    if models:
        raise SourceError(f"{path} is not a model but contains {few(models)}: name one of them, as {path / models[0]}")
    here = few(sorted(entry.name for entry in path.iterdir()), 5) or "nothing"
    raise SourceError(
        f"{path} is not a model: it has neither {places.CARD} (a lean directory) nor config.json "
        f"(timm's or transformers'); found {here}. Is it data? leanify train {quote(str(path))} says what to do"
    )


def _carrying(found: ModelSource, path: Path) -> ModelSource:
    """Move a lean shape into transformers' configuration, so that other classes and overrides apply too."""
    if found.origin.library != "hf" or found.architecture is None:
        return found
    shape = {KEY: {"architecture": found.architecture.to_json()}}
    options = {**found.origin.options, **shape, "_name_or_path": str(path)}
    return replace(found, origin=replace(found.origin, options=options), architecture=None)


def _adapted(path: Path, overrides: dict[str, Any], cls: str | None) -> ModelSource:
    """A PEFT adapter: its base model, with the adapter as weights."""
    base = adapters.read(path)["base_model_name_or_path"]
    return replace(find(base, overrides=overrides, cls=cls), weights=path)


def _in_config(path: Path, overrides: Mapping[str, Any], cls: str | None) -> ModelSource:
    config = read_json(path)
    if not isinstance(config, dict):
        raise SourceError(f"{path} names no model: expected a JSON object")
    if "architecture" in config:
        return _in_timm_config(path, config)
    name = config.get("_class_name")
    if isinstance(name, str):
        return ModelSource(Origin("diffusers", diffusion.model_class(name).__name__, diffusion.options_of(config)))
    config = from_file(config)
    if "transformers_weights" in config:  # transformers would open it, unchecked, in place of the usual files
        raise SourceError(
            f"{path} names its weights by transformers_weights ({config['transformers_weights']!r:.80}), which leanify "
            "does not follow; call the file model.safetensors and remove the key"
        )
    if KEY in config:
        hooks.check_on(str(path.parent))
    classes = config.get("architectures")
    if not isinstance(classes, list):
        classes = []
    named = [config.get("model_type"), overrides.get("model_type")]
    named += [type_of_class(name) for name in (cls, *classes) if isinstance(name, str)]
    model_type = next((name for name in named if name is not None), None)
    if model_type is None:
        raise SourceError(
            f"{path} names no model: it has neither transformers' model_type nor timm's architecture; "
            "name one with --class BertForMaskedLM or --override model_type=bert"
        )
    return ModelSource(hf_origin(model_type, {**config, "_name_or_path": str(path.parent)}))


def _in_timm_config(path: Path, config: dict[str, Any]) -> ModelSource:
    name, options = config["architecture"], config.get("model_args") or {}
    if not isinstance(name, str) or not isinstance(options, dict):
        raise SourceError(f"{path} is damaged: architecture must be a string and model_args an object")
    if config.get("num_classes") is not None:
        options = {"num_classes": config["num_classes"], **options}
    if name != "leanify":
        return ModelSource(Origin("timm", name, options))
    base, shape = options.pop("base", None), options.pop("shape", None)
    if not isinstance(base, str) or not isinstance(shape, dict):
        raise SourceError(f"{path} is damaged: a lean model's model_args must have base (string) and shape (object)")
    return ModelSource(Origin("timm", base, options), Architecture.from_json(shape))


def _in_file(path: Path, overrides: dict[str, Any], cls: str | None) -> ModelSource:
    if not path.is_file():
        raise SourceError(f"{path} is not a regular file")
    indexed = path.name.endswith(".index.json")  # of a checkpoint in shards
    if path.suffix == ".json" and not indexed:
        return _in_config(path, overrides, cls)
    if path.suffix not in CHECKPOINTS and not indexed:
        raise SourceError(f"{path} is not a model; name a directory, a config.json or a {', '.join(CHECKPOINTS)} file")
    beside = path.absolute().parent
    if not any((beside / name).is_file() for name in (places.CARD, "config.json")):
        if not indexed:
            read_tensors(path)  # report a damaged file first: a configuration would not help it
        raise SourceError(
            f"{path} has weights but does not say of which model: put the model's config.json beside it, "
            f"or name the model: leanify redesign MODEL --weights {path}"
        )
    found = _in_directory(beside, overrides, cls, None if indexed else path)
    return found if indexed else replace(found, weights=path)


def _recipe_file(text: str) -> Path | None:
    path = Path(text).expanduser()
    if _is(path, Path.exists):
        return path if path.suffix == ".toml" else None
    return recipe.find(text)


def _in_recipe(
    value: recipe.Recipe, name: str, overrides: Mapping[str, Any], cls: str | None, pretrained: bool
) -> ModelSource:
    """The model of a recipe: initialised if the recipe gives it a shape, else with its source's weights."""
    model = value.model
    if _recipe_file(model.source) is not None:
        raise SourceError(f"{name}: the source of a recipe must be a model; {model.source!r} is another recipe")
    code = ModelSource(modules.origin_of_code(model.source)) if modules.is_code(model.source) else None
    found = find(
        code or model.source,
        overrides={**model.override, **overrides},
        cls=cls or model.cls,
        pretrained=pretrained,
    )
    if not model.reshapes:
        return found
    if pretrained:
        raise SourceError(f"{name} changes the shape of {model.source}, so there are no pretrained weights for it")
    architecture = model.shape(surgery.read(build_on_meta(found)))
    return replace(found, architecture=architecture, weights=None)


# -- names -------------


def _by_name(name: str, pretrained: bool) -> ModelSource:
    library, _, rest = name.partition("/")
    if library == "timm" and rest:
        return _in_timm(name, rest, pretrained)
    if library == "diffusers" and rest:
        return ModelSource(Origin("diffusers", diffusion.model_class(rest).__name__))
    if library == "leanify" and rest:
        if rest in MODELS:
            return ModelSource(Origin("leanify", rest))
        raise SourceError(_unknown(name, rest, list(MODELS), "leanify model"))
    if library == "hf" and rest:
        if "/" in rest:
            return _on_hub(rest)
        if is_model_type(rest) or rest in import_transformers().CONFIG_MAPPING:
            return ModelSource(hf_origin(rest, {}))
        known = list(import_transformers().CONFIG_MAPPING)
        return _on_hub_or(rest, SourceError(_unknown(name, rest, known, "transformers model type")))
    if "/" in name:
        return _on_hub(name)
    if is_model_type(name):
        return ModelSource(hf_origin(name, {}))
    try:
        return _in_timm(name, name, pretrained)
    except SourceError as unknown:
        if name in import_transformers().CONFIG_MAPPING:  # towers too: clip_vision_model
            return ModelSource(hf_origin(name, {}))
        return _on_hub_or(name, unknown)


def _on_hub(name: str) -> ModelSource:
    config = hub.config_on_hub(name)
    found = ModelSource(hf_origin(config["model_type"], config), weights=name)
    modules = hub.file_of(name, pooling.MODULES)
    return found if modules is None or not pooling.is_encoder(modules.parent) else heads.bare_encoder(found)


def _on_hub_or(name: str, unknown: SourceError) -> ModelSource:
    """Look a name without a slash up on the hub, whose oldest models have none (``bert-base-uncased``).

    Names with underscores are taken for misspelt timm names and raise ``unknown`` without asking the network.
    """
    if "_" in name:
        raise unknown
    try:
        return _on_hub(name)
    except LeanifyError:
        if name in HUB and not hub.answers():
            raise SourceError(
                f"{name!r} is a model on the Hugging Face hub, which cannot be reached from here; name a directory "
                "with its config.json instead"
            ) from None
        where = "the hub has no such model" if hub.answers() else "the Hugging Face hub cannot be reached"
        raise SourceError(f"{unknown}; {where}") from None


def _in_timm(asked: str, name: str, pretrained: bool) -> ModelSource:
    origin = Origin("timm", complete(asked, name.removeprefix("timm/")))
    return ModelSource(origin, weights=f"timm/{origin.name}" if pretrained else None)


def complete(asked: str, name: str) -> str:
    """Complete a short timm name: the name itself, else with a standard suffix, else the only name that starts with it.

    Raises SourceError for ambiguous and unknown names, listing candidates.
    """
    timm = import_timm()
    bare, dot, tag = name.partition(".")
    if timm.is_model(bare):
        return name
    for suffix in STANDARD:
        if timm.is_model(bare + suffix):
            return bare + suffix + dot + tag

    def standard_first(member: str) -> tuple[int, int]:
        ranks = [i for i, suffix in enumerate(STANDARD) if member.endswith(suffix)]
        return min(ranks, default=len(STANDARD)), len(member)

    members = sorted(timm.list_models(f"{bare}_*"), key=standard_first)
    if len(members) == 1:
        return str(members[0] + dot + tag)
    members = members or sorted(timm.list_models(f"{bare}*"), key=standard_first)
    if members:
        shown = ", ".join(members[:8]) + (f", … ({len(members)} in all)" if len(members) > 8 else "")
        raise SourceError(f"{asked!r} is ambiguous: timm has {shown}")
    known = timm.list_models()
    if not asked.startswith("timm/"):
        known += [*_model_types(), *recipe.stems(), *HUB, *hub.near_paths(asked)]
    raise SourceError(_unknown(asked, bare, known, "timm model, transformers model type, recipe, hub id or path"))


def _unknown(asked: str, name: str, known: list[str], kinds: str) -> str:
    full_names = {}
    for full in known:
        full_names[full] = full
        for suffix in STANDARD:
            full_names[full.removesuffix(suffix)] = full
    matches = difflib.get_close_matches(name[:200], full_names, n=5, cutoff=0.6)
    near = ", ".join(dict.fromkeys(full_names[match] for match in matches))
    return f"{asked[:200]!r} is not a {kinds}" + (f"; nearest: {near}" if near else "")


def _model_types() -> list[str]:
    """transformers' model types, read from its folder names so that transformers need not be imported."""
    spec = importlib.util.find_spec("transformers")
    places = list(spec.submodule_search_locations or []) if spec else []
    return sorted(p.parent.name for place in places for p in Path(place).glob("models/*/configuration_*.py"))


def is_model_type(name: str) -> bool:
    return name.replace("-", "_") in _model_types()
