"""A lean transformers model as code of its own: a small modelling file that plain transformers loads.

transformers' constructor builds the source's shape; the file then brings the lists, tensors and numbers that differ to
the lean shape, and edits upstream's forward if it assumes inner == width. Differences are data in config.json, found
by comparing the live model with what upstream builds, so the file is the same for every family.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import nn

from leanify.core.errors import SourceError, UnsupportedModel
from leanify.core.files import writing
from leanify.core.files.reading import read_json
from leanify.lens.families import all_rows, full_name
from leanify.lens.resize import get_fields
from leanify.sources.overrides import class_name
from leanify.upstream.build import build_model
from leanify.upstream.lean_config import buildable, drop
from leanify.upstream.origin import live_origin

FILE = "modeling_lean.py"
PLAIN = (bool, int, float, str, tuple)
AUTO = ("AutoModel", "AutoModelForCausalLM", "AutoModelForMaskedLM", "AutoModelForSequenceClassification",
        "AutoModelForTokenClassification", "AutoModelForQuestionAnswering", "AutoModelForImageClassification",
        "AutoModelForSeq2SeqLM")  # fmt: skip

# the modelling file of a class
CODE = '''\
"""A lean {cls}: transformers builds it, then takes the shape that config.json holds under "lean"."""

import copy
import inspect
import linecache
import textwrap

import torch
from transformers import {config}, {cls}


class LeanConfig({config}):
    """The configuration that transformers builds the model from, before it takes its shape."""

    def __init__(self, leanify=None, dtype=None, torch_dtype=None, **keys):
        hidden = (leanify or {{}}).get("hidden")  # what config.json hides from programs that do not run this file
        if hidden:
            keys.update({{key: value for key, value in hidden.items() if value is not None and "dtype" not in key}})
            dtype = hidden.get("dtype")
        super().__init__(dtype=dtype if dtype is not None else torch_dtype, **keys)


class Lean{cls}({cls}):
    config_class = LeanConfig

    def __init__(self, config, *args, **kwargs):
        super().__init__(config, *args, **kwargs)
        lean = config.lean
        for name, depth in lean["depths"].items():
            del self.get_submodule(name)[depth:]
        for path, shape in lean["shapes"].items():
            owner, _, name = path.rpartition(".")
            owner = self.get_submodule(owner)
            old = getattr(owner, name)
            new = old.new_empty(shape)
            setattr(owner, name, torch.nn.Parameter(new) if isinstance(old, torch.nn.Parameter) else new)
        for path, values in lean["numbers"].items():
            _set(self.get_submodule(path), values)
        for path, edit in lean["edits"].items():
            module = self.get_submodule(path)
            module.__class__ = _edited(type(module), edit["methods"], edit["words"])


def _set(module, values):
    for name, value in values.items():
        if name == "config":
            module.config = copy.deepcopy(module.config)
            _set(module.config, value)
        else:
            setattr(module, name, tuple(value) if isinstance(value, list) else value)


_EDITED = {{}}


def _edited(upstream, methods, words):
    """A subclass whose forward lets heads × head_dim differ from the width."""
    if upstream not in _EDITED:
        made = {{}}
        for name in methods:
            method = inspect.unwrap(getattr(upstream, name))
            source = textwrap.dedent(inspect.getsource(method))
            for old, new in words.items():
                source = source.replace(old, new)
            file = f"<{{upstream.__qualname__}}.{{name}}, lean>"
            linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
            exec(compile(source, file, "exec"), method.__globals__, made)
        _EDITED[upstream] = type(upstream.__name__, (upstream,), {{name: made[name] for name in methods}})
    return _EDITED[upstream]
'''


def get_config(model: Any) -> Any:
    """Return the configuration for upstream's constructor, with the modelling file's additions.

    Raises UnsupportedModel where a forward is not upstream's own with words replaced.
    """
    plain = buildable(model.config)
    drop(plain)
    cls = type(model).__name__
    plain.lean = _differences(build_model(live_origin(model), "meta"), model)
    plain.architectures = [f"Lean{cls}"]
    autos = []  # the auto classes that lead to the model's
    for auto in AUTO:
        with suppress(SourceError):
            if class_name(auto, plain) == cls:
                autos.append(auto)
    plain.auto_map = dict.fromkeys(autos or ["AutoModel"], f"{FILE.removesuffix('.py')}.Lean{cls}")
    return plain


def write_code(model: Any, folder: Path) -> None:
    """Write the modelling file into a lean directory, and name it in config.json, for models that have one.

    ``trust_remote_code=True`` then opens the directory without leanify. Without it, the type of config.json is unknown
    to transformers, which refuses it as before.
    """
    try:
        config = get_config(model)
    except UnsupportedModel:
        return
    module = FILE.removesuffix(".py")
    keys = read_json(folder / "config.json")
    keys |= {"lean": config.lean, "auto_map": {"AutoConfig": f"{module}.LeanConfig", **config.auto_map}}
    writing.write(folder / "config.json", json.dumps(keys, indent=2, sort_keys=True) + "\n")
    writing.write(folder / FILE, code_text(model))


def code_text(model: Any) -> str:
    return CODE.format(cls=type(model).__name__, config=type(model.config).__name__)


def _differences(built: nn.Module, model: nn.Module) -> dict[str, Any]:
    # lists with fewer blocks, and tensors of other shapes
    depths: dict[str, int] = {}
    for path, module in built.named_modules():
        if isinstance(module, (nn.ModuleList, nn.Sequential)):
            depth = len(list(model.get_submodule(path).children()))
            if depth < len(module):
                depths[path] = depth
                del module[depth:]
    old = {**dict(built.named_parameters()), **dict(built.named_buffers())}
    new = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    shapes = {name: list(x.shape) for name, x in new.items() if name in old and old[name].shape != x.shape}
    # numbers that modules store, and methods that are edited
    numbers, edits = {}, {}
    built_paths = {path for path, _ in built.named_modules()}
    for path, module in model.named_modules():
        if path not in built_paths:  # BigBird, for one, replaces its attention where a text is short
            raise UnsupportedModel(f"{type(model).__name__} replaces modules while it runs: {path} is none of its own")
        built_module = built.get_submodule(path)
        values = _changed_values(vars(built_module), vars(module))
        values.pop("training", None)
        config, built_config = getattr(module, "config", None), getattr(built_module, "config", None)
        if None not in (config, built_config) and config is not model.config:
            words = _changed_values(get_fields(built_config), get_fields(config))  # Idefics' config is a dropout rate
            if words:
                values["config"] = copy.deepcopy(words)
        if values:
            numbers[path] = values
        if "freed" in vars(type(module)):
            upstream = type(module).__mro__[1]
            reading = all_rows()[full_name(upstream)][0]
            if reading.forward:
                raise UnsupportedModel(
                    f"{upstream.__name__} needs a forward of leanify's own, which is no edit of upstream's: export to "
                    "onnx or torch-export, or load the directory with leanify"
                )
            edits[path] = {"methods": list(reading.methods), "words": dict(reading.edits)}
    return {"depths": depths, "shapes": shapes, "numbers": numbers, "edits": edits}


def _changed_values(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The plain values of ``new`` that differ from those of ``old``."""
    values = {name: value for name, value in new.items() if isinstance(value, PLAIN) and not name.startswith("_")}
    return {name: value for name, value in values.items() if name in old and old[name] != value}
