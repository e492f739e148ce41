"""Models by their configuration, and a user's overrides: configuration keys, constructor arguments, model class."""

from __future__ import annotations

import re
import tomllib
import warnings
from collections.abc import Mapping
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leanify.core.architecture import Architecture
from leanify.core.errors import SourceError
from leanify.core.files.reading import read_json
from leanify.core.recipe_code import SHIPPED_CODE
from leanify.sources.source import ModelSource
from leanify.upstream import hooks
from leanify.upstream.build import MOST_LABELS, check_sizes
from leanify.upstream.lean_config import KEY, from_file
from leanify.upstream.libraries import drop_type, import_transformers, nearest, reraise_as
from leanify.upstream.origin import Origin
from leanify.upstream.timm_data import read_pretrained_cfg

if TYPE_CHECKING:
    from transformers import PretrainedConfig

PUBLISHED_CONFIGS = tomllib.loads(resources.files("leanify.upstream").joinpath("published.toml").read_text("utf-8"))


def config_source(path: Path, overrides: Mapping[str, Any], cls: str | None) -> ModelSource:
    """The model of a config.json, without its weights. Raises SourceError."""
    config = read_json(path)
    if not isinstance(config, dict):
        raise SourceError(f"{path} names no model: expected a JSON object")
    # timm's configuration names its architecture
    if "architecture" in config:
        return _timm_source(path, config)
    # configurations that leanify does not follow
    if isinstance(config.get("_class_name"), str):  # as diffusers writes it
        raise SourceError(
            f"{path}: leanify builds no models of diffusers; name a function that returns one and an example of its "
            "input, model.py:make"
        )
    config = from_file(config)
    if "transformers_weights" in config:  # transformers would open it, unchecked, in place of the usual files
        raise SourceError(
            f"{path} names its weights by transformers_weights ({config['transformers_weights']!r:.80}), which leanify "
            "does not follow; call the file model.safetensors and remove the key"
        )
    if KEY in config:
        hooks.check_on(str(path.parent))
    # transformers names a model by its type, or by a class that belongs to one type
    classes = config.get("architectures")
    if not isinstance(classes, list):
        classes = []
    model_types = [config.get("model_type"), overrides.get("model_type")]
    model_types += [type_of_class(name) for name in (cls, *classes) if isinstance(name, str)]
    model_type = next((name for name in model_types if name is not None), None)
    if model_type is None:
        raise SourceError(
            f"{path} names no model: it has neither transformers' model_type nor timm's architecture; "
            "name one with --override class=BertForMaskedLM or --override model_type=bert, or write model_type into it"
        )
    return ModelSource(hf_origin(model_type, {**config, "_name_or_path": str(path.parent)}))


def _timm_source(path: Path, config: dict[str, Any]) -> ModelSource:
    name, options = config["architecture"], config.get("model_args") or {}
    if not isinstance(name, str) or not isinstance(options, dict):
        raise SourceError(f"{path} is damaged: architecture must be a string and model_args an object")
    with reraise_as(f"{path} is damaged"):
        pictures = read_pretrained_cfg(config)
    if pictures.get("num_classes") is not None:
        options = {"num_classes": pictures["num_classes"], **options}
    if name != "leanify":
        return ModelSource(Origin("timm", name, options, pictures=pictures))
    base, shape = options.pop("base", None), options.pop("shape", None)
    if not isinstance(base, str) or not isinstance(shape, dict):
        raise SourceError(f"{path} is damaged: a lean model's model_args must have base (string) and shape (object)")
    return ModelSource(Origin("timm", base, options, pictures=pictures), Architecture.from_json(shape))


def hf_origin(model_type: Any, config: Mapping[str, Any]) -> Origin:
    """Return the origin of a model type with a configuration. Raises SourceError.

    The class is the first of the configuration's ``architectures`` that transformers has, or AutoModel's, or for a
    type without a bare model (depth_anything, trocr) the first that another Auto class has for it.
    """
    config_mapping = import_transformers().CONFIG_MAPPING
    keys = dict(config)
    # a few types have defaults that build no model: use a published configuration
    if not keys and model_type in PUBLISHED_CONFIGS:
        keys = dict(PUBLISHED_CONFIGS[model_type]["keys"])
        name = PUBLISHED_CONFIGS[model_type]["checkpoint"]
        warnings.warn(f"transformers cannot run {model_type}'s default configuration; using {name}'s", stacklevel=2)
    if not isinstance(model_type, str):
        raise SourceError(
            f"model_type {model_type!r} is not a name; transformers has {', '.join(list(config_mapping)[:3])}, …"
        )
    # names with a hyphen may be typed with an underscore
    hyphenated = model_type.replace("_", "-")
    if model_type not in config_mapping and hyphenated in config_mapping:
        model_type = hyphenated
    # quantised weights have other shapes, so the model before quantisation is counted
    what = keys.get("_name_or_path") or model_type
    method = quantisation_method(keys)
    if method:
        keys.pop("quantization_config")
        warnings.warn(f"{what} is quantised ({method}); shapes and counts are those before quantisation", stacklevel=2)
    # code of the checkpoint's authors is not run, and may compute another model
    code = own_code(keys)
    if code:
        warnings.warn(
            f"{what} names code of its own ({code}), which leanify does not run: "
            f"this is transformers' own {model_type} with that configuration; if the code computes another model, "
            "build that and give path/to/model.py:make",
            stacklevel=2,
        )
    # upstream's own class for the whole configuration, or the bare model
    full = full_config(model_type, keys)
    architectures = keys.get("architectures")
    classes = filter(is_model_class, architectures if isinstance(architectures, list) else [])
    cls = next(classes, None) or _default_class(full)
    return Origin("hf", full.model_type, full.to_dict(), cls)


def full_config(model_type: str, keys: Mapping[str, Any]) -> Any:
    """Return transformers' configuration object of this type with these keys. Raises SourceError."""
    check_sizes(keys)
    model_types = import_transformers().CONFIG_MAPPING
    if model_type not in model_types:
        code = keys.get("auto_map")
        if isinstance(code, Mapping) and code:
            raise SourceError(
                f"a configuration of type {model_type!r} needs code of its own ({next(iter(code.values()))}), which "
                "leanify does not run: build the model, and give path/to/model.py:make or the module and its inputs"
            )
        raise SourceError(f"transformers has no model type {model_type!r}{nearest(str(model_type), model_types)}")
    with reraise_as(f"transformers rejects this configuration of {model_type!r}"):
        return import_transformers().AutoConfig.for_model(model_type, **drop_type(dict(keys)))


def own_code(keys: Mapping[str, Any]) -> str:
    """The class of the authors' own code that a configuration names by ``auto_map``; "" if there is none."""
    code = keys.get("auto_map")
    models = [name for key, name in code.items() if key.startswith("AutoModel")] if isinstance(code, Mapping) else []
    return str(models[0]).rpartition(".")[2][:80] if models and "lean" not in keys else ""


def quantisation_method(keys: Mapping[str, Any]) -> str | None:
    """The quantisation method in a configuration (gptq, awq, bitsandbytes, …); None if the weights are plain."""
    config = keys.get("quantization_config")
    return str(config.get("quant_method", "of unknown kind")) if isinstance(config, Mapping) else None


def is_model_class(name: Any) -> bool:
    library = import_transformers()
    candidate = getattr(library, name, None) if isinstance(name, str) else None
    return isinstance(candidate, type) and issubclass(candidate, library.PreTrainedModel)


def class_name(auto: str, config: PretrainedConfig) -> str:
    """Resolve an Auto class (``AutoModelForCausalLM``) for a configuration; any other class name is returned as is.

    Raises SourceError if transformers has no such class, or none for this model type.
    """
    library = import_transformers()
    if not hasattr(library, auto):
        raise SourceError(f"transformers has no class {auto!r}; try AutoModel, AutoModelForCausalLM, …")
    if not auto.startswith("AutoModel"):
        if not is_model_class(auto):
            raise SourceError(f"transformers' {auto} is not a model class; try AutoModel, AutoModelForCausalLM, …")
        return auto
    # the class that upstream maps this configuration to
    try:
        model_class = getattr(library, auto)._model_mapping[type(config)]
    except (KeyError, TypeError, ValueError) as error:
        raise SourceError(f"transformers has no {auto} for the model type {config.model_type!r}") from error
    if isinstance(model_class, tuple):
        model_class = model_class[0]
    return str(model_class.__name__)


def _default_class(config: PretrainedConfig) -> str:
    """AutoModel's class for a configuration; for a type without a bare model, another Auto class's."""
    from transformers.models.auto import modeling_auto

    names = [name for name in sorted(vars(modeling_auto)) if re.fullmatch("MODEL_.*MAPPING_NAMES", name)]
    tables = [getattr(modeling_auto, name) for name in names]
    classes = [table[config.model_type] for table in tables if config.model_type in table]
    bare = [class_name("AutoModel", config)] if config.model_type in modeling_auto.MODEL_MAPPING_NAMES else []
    candidates = [name for name in (*bare, *classes) if is_model_class(name)]
    # a model of the whole configuration: MusicGen's bare one is of its decoder's
    fitting = (name for name in candidates if getattr(import_transformers(), name).config_class is type(config))
    return next(fitting, None) or next(iter(candidates), None) or class_name("AutoModel", config)


def type_of_class(name: str) -> str | None:
    """The model type of a class (``BertForMaskedLM`` → ``bert``); None for an Auto class or an unknown name."""
    if not is_model_class(name):
        return None
    return str(getattr(import_transformers(), name).config_class.model_type)


def override_source(source: ModelSource, overrides: Mapping[str, Any], cls: str | None) -> ModelSource:
    """Apply overrides to a source: configuration keys (transformers), constructor arguments (timm), model class.

    Raises SourceError for an unknown key or a class that does not fit.
    """
    origin = source.origin
    if cls is not None and origin.library != "hf":
        raise SourceError(f"class {cls!r} was asked for, and {origin} is not a transformers model")
    # nothing to override
    if not overrides and cls is None:
        return source
    if overrides and source.architecture is not None and origin.library == "module" and origin.name in SHIPPED_CODE:
        raise SourceError("a lean directory's shape is fixed; apply the override to the model it was redesigned from")
    # arguments of a constructor
    if origin.library != "hf":
        return replace(source, origin=replace(origin, options={**origin.options, **overrides}))
    # keys of a configuration, by upstream's own names for them
    names = import_transformers().CONFIG_MAPPING[origin.name].attribute_map
    renamed_overrides = {names.get(key, key): value for key, value in overrides.items()}
    config = dict(origin.options)
    for key, value in renamed_overrides.items():
        config = _set(config, key, value, origin.name)
    # sizes that upstream derives from these follow them
    full = full_config(origin.name, _rederive_keys(origin.options, config, renamed_overrides, names))
    name = origin.cls if cls is None else class_name(cls, full)
    return replace(source, origin=Origin("hf", origin.name, full.to_dict(), name))


def _rederive_keys(
    old: Mapping[str, Any], new: dict[str, Any], overrides: Mapping[str, Any], names: Mapping[str, str]
) -> dict[str, Any]:
    """Recompute sizes that upstream derives from others, unless the user set them too, in whatever order."""
    derived = ("hidden_size", "num_attention_heads", "num_key_value_heads", "num_hidden_layers")
    width, heads, kv, layers = (names.get(name, name) for name in derived)
    config = dict(new)
    # head_dim follows width and heads, if it was their quotient before
    if "head_dim" not in overrides and {width, heads} & set(overrides):
        head_dim, *sizes = (old.get(key) for key in ("head_dim", width, heads))
        are_known = all(isinstance(size, int) and size > 0 for size in (head_dim, *sizes))
        if are_known and head_dim == sizes[0] // sizes[1]:  # type: ignore[operator]
            config.pop("head_dim")
    # key and value heads follow the heads, if they were equal before
    if kv not in overrides and heads in overrides and old.get(kv) is not None and old[kv] == old.get(heads):
        config[kv] = new[heads]
    # the kinds of layers are made again for another number of them
    if "layer_types" not in overrides and layers in overrides and isinstance(old.get("layer_types"), list):
        config.pop("layer_types")
    return config


def _set(config: dict[str, Any], key: str, value: Any, model_type: str) -> dict[str, Any]:
    """Return ``config`` with one key changed. Raises SourceError for an unknown key."""
    # a tokenizer is copied from the folder that ``_name_or_path`` names: a recipe could pass on a foreign one
    if key.startswith("_"):
        raise SourceError(f"{key!r} is transformers' own note on where a model came from; it cannot be overridden")
    cls = import_transformers().CONFIG_MAPPING[model_type]
    if key == "num_labels":  # transformers stores the names of the classes, not their number
        if not isinstance(value, int) or not 0 < value <= MOST_LABELS:
            raise SourceError(f"num_labels must be an integer from 1 to {MOST_LABELS:,}, not {value!r}")
        labels = {index: f"LABEL_{index}" for index in range(value)}
        return {**config, "id2label": labels, "label2id": {label: index for index, label in labels.items()}}
    if key not in config and key not in cls().to_dict():
        similar = nearest(key, [*config, *cls.attribute_map])
        raise SourceError(f"the configuration of {model_type!r} has no {key!r}{similar}")
    return {**config, key: value}
