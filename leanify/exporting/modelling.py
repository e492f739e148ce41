"""A lean transformers model as code of its own: a small modelling file that plain transformers loads.

transformers' constructor builds the source's shape; the file then brings the lists, tensors and numbers that differ to
the lean shape, and edits upstream's forward where it takes inner for width. What differs is data in config.json, found
by comparing the live model with what upstream builds, so the file is the same for every family.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from torch import nn

from leanify.errors import UnsupportedModel
from leanify.lens.families import full_name, known
from leanify.upstream.build import build_model
from leanify.upstream.lean_config import buildable, drop
from leanify.upstream.origin import Origin, plain_words

if TYPE_CHECKING:
    from transformers import PretrainedConfig

FILE = "modeling_lean.py"
AUTO = ("AutoModel", "AutoModelForCausalLM", "AutoModelForMaskedLM", "AutoModelForSequenceClassification",
        "AutoModelForTokenClassification", "AutoModelForQuestionAnswering", "AutoModelForImageClassification",
        "AutoModelForSeq2SeqLM")  # fmt: skip

CODE = '''\
"""A lean {cls}: transformers builds it, then takes the shape that config.json holds under "lean"."""

import copy
import inspect
import linecache
import textwrap

import torch
from transformers import {cls}


class Lean{cls}({cls}):
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


def code_of(model: nn.Module) -> str:
    """The modelling file."""
    return CODE.format(cls=type(model).__name__)


def config_of(model: Any) -> Any:
    """The configuration that upstream's constructor takes, with what the modelling file adds.

    Raises UnsupportedModel where a forward is not upstream's own with words replaced.
    """
    plain = buildable(model.config)
    drop(plain)
    cls = type(model).__name__
    built = build_model(Origin("hf", plain.model_type, plain_words(plain), cls), "meta")
    plain.lean = _differences(built, model)
    plain.architectures = [f"Lean{cls}"]
    plain.auto_map = dict.fromkeys(_autos(plain, cls), f"{FILE.removesuffix('.py')}.Lean{cls}")
    return plain


def _autos(config: PretrainedConfig, cls: str) -> list[str]:
    """The auto classes that lead to a class."""
    from leanify.errors import SourceError
    from leanify.sources.overrides import class_name

    found = []
    for auto in AUTO:
        try:
            found += [auto] if class_name(auto, config) == cls else []
        except SourceError:
            continue
    return found or ["AutoModel"]


def _differences(built: nn.Module, model: nn.Module) -> dict[str, Any]:
    depths = {}
    for path, module in built.named_modules():
        if isinstance(module, (nn.ModuleList, nn.Sequential)):
            depth = len(list(model.get_submodule(path).children()))
            if depth < len(module):
                depths[path] = depth
                del module[depth:]
    old = {**dict(built.named_parameters()), **dict(built.named_buffers())}
    new = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    shapes = {name: list(x.shape) for name, x in new.items() if name in old and old[name].shape != x.shape}
    numbers, edits = {}, {}
    for path, module in model.named_modules():
        if values := _changed(built.get_submodule(path), module, model):
            numbers[path] = values
        if "freed" in vars(type(module)):
            edits[path] = _edit(type(module).__mro__[1])
    return {"depths": depths, "shapes": shapes, "numbers": numbers, "edits": edits}


def _changed(old: Any, new: Any, model: Any) -> dict[str, Any]:
    """The plain attributes in which two modules differ, those of a configuration of its own among them."""
    plain = (bool, int, float, str, tuple)
    found: dict[str, Any] = {
        name: value
        for name, value in vars(new).items()
        if not name.startswith("_") and name != "training" and isinstance(value, plain)
        if name in vars(old) and vars(old)[name] != value
    }
    own, theirs = getattr(new, "config", None), getattr(old, "config", None)
    if own is not None and new is not model and own is not model.config and theirs is not None:
        words = {
            name: value
            for name, value in vars(own).items()
            if isinstance(value, plain) and vars(theirs).get(name, value) != value and not name.startswith("_")
        }
        if words:
            found["config"] = copy.deepcopy(words)
    return found


def _edit(upstream: type[nn.Module]) -> dict[str, Any]:
    reading = known()[full_name(upstream)][0]
    if reading.forward:
        raise UnsupportedModel(
            f"{upstream.__name__} needs a forward of leanify's own, which is no edit of upstream's: export to onnx or "
            "torch-export, or load the directory with leanify"
        )
    return {"methods": list(reading.methods), "words": dict(reading.edits)}
