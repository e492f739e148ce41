"""Express another residual width as arguments of timm's constructors or keys of a transformers configuration.

Upstream has no common name for the width: it is ``embed_dim``, ``hidden_size``, ``d_model`` …, one number, or a list
with one number for each stage. So every number that equals a width of the model, under a name that can mean one, is
taken for it; the caller builds each candidate on meta and reads which widths it has, because upstream ignores some
arguments in silence.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from leanify.core.architecture import Architecture
from leanify.upstream import user_modules
from leanify.upstream.build import build_model
from leanify.upstream.origin import Origin

WIDTH_NAME = re.compile(r"hidden_size|d_model|n_embd|embed_dim|hidden_dim|emb_dim|width|(^|_)dims?$|channels?$")
OTHER_NAME = re.compile(
    r"head|base_dim|mlp|ffn|in(ter|ner)|pos|vocab|patch|image|in_ch|out_ch|conv|stem|inner|kernel|state|expert|codebook"
)
LOOSE_NAME = re.compile(r"size|dim|embd|width|channels|model")  # what may have to follow the width, as an embedding
OWN_NAMES = ("ext_pw_out_channel", "depthwise_separable_out_channel")  # Phi-4's audio: widths that `OTHER_NAME` hides
HEADS_NAME = re.compile(
    r"^(num_)?(attention_)?heads(_outer)?$|^n_heads?$|num_attention_heads$|attention_heads$|num_heads$"
)
KV_NAME = re.compile(r"num_(key_value|kv)_heads$|n_head_kv$")


@dataclass(frozen=True)
class Sizes:
    """Old size → new size: of the layers' widths, heads and key/value heads, each also by stage."""

    widths: Mapping[int, int]
    heads: Mapping[int, int]
    kv_heads: Mapping[int, int]
    stage_widths: tuple[int, ...]
    stage_heads: tuple[int, ...]


@dataclass(frozen=True)
class Candidate:
    """An origin, and arguments of the class that timm's entry point fixes in its code: VOLO's, CAFormer's."""

    origin: Origin
    arguments: Mapping[str, Any]

    def build(self, device: str) -> nn.Module:
        """Build the model; its origin does not say ``arguments``, so that surgery builds this width again."""
        if not self.arguments:
            return build_model(self.origin, device)

        # timm's builder, with these arguments in place of the entry point's
        def build(builder: Callable[..., nn.Module], *args: Any, **arguments: Any) -> nn.Module:
            outside = dict(self.arguments)
            for key, configuration in _configurations(arguments).items():
                names = {field.name for field in fields(configuration)}
                inside = {name: value for name, value in self.arguments.items() if name in names}
                arguments[key] = replace(configuration, **inside)
                outside = {name: value for name, value in outside.items() if name not in names}
            return builder(*args, **{**arguments, **outside})

        with _builder(build):
            return build_model(self.origin, device)


def respell_width(origin: Origin, old: Architecture, new: Architecture) -> Iterator[Candidate]:
    """What might build the widths of ``new``, most likely first, and heads that divide them.

    Depth, head_dim and MLPs are left to surgery. ``old`` is the shape that ``origin`` builds.
    """
    # a user's own code has one argument for it
    if origin.library == user_modules.LIBRARY:
        widths, heads = {layer.width for layer in new.layers()}, {layer.heads for layer in new.layers()}
        if len(widths) == 1 and user_modules.takes_argument(origin, "width"):
            options = {**origin.options, "width": widths.pop()}
            if len(heads) == 1 and user_modules.takes_argument(origin, "heads"):
                options["heads"] = heads.pop()
            yield Candidate(replace(origin, options=options), {})
        return
    if origin.library not in ("timm", "hf"):
        return
    arguments = origin.options if origin.library == "hf" else constructor_arguments(origin)
    # changes of the arguments, each once
    changes: list[dict[str, Any]] = []
    for sizes in _size_maps(old, new):
        for is_loose in (False, True):
            if origin.library == "hf":
                resized = _change_config(arguments, sizes, is_loose)
            else:
                resized = {name: _resize(name, value, sizes, is_loose) for name, value in arguments.items()}
            change = {name: value for name, value in resized.items() if value != arguments[name]}
            if change and change not in changes:
                changes.append(change)
    for change in changes:
        yield Candidate(replace(origin, options={**origin.options, **change}), {})
    if origin.library == "timm":
        for change in changes:
            yield Candidate(origin, change)


def _size_maps(old: Architecture, new: Architecture) -> Iterator[Sizes]:
    """Old → new widths, with heads that upstream's constructor may accept: the heads of ``new``, divisors of the width
    next to them, and the old ones.
    """
    # the new values of each number of the configuration: widths, and three choices of heads
    widths: dict[int, int] = {}
    targets: dict[int, int] = {}
    kept_sizes: dict[int, int] = {}  # heads of the old head_dim
    divisors: dict[int, int] = {}
    kv_targets: dict[int, int] = {}
    kv_heads: dict[int, int] = {}
    for old_stage, new_stage in zip(old.stages, new.stages, strict=True):
        for index, block in enumerate(new_stage.blocks):
            for before, after in zip(old_stage.blocks[min(index, old_stage.depth - 1)], block, strict=False):
                widths.setdefault(before.width, after.width)
                targets.setdefault(before.heads, after.heads)
                kept_sizes.setdefault(before.heads, max(1, after.width // before.head_dim))
                groups = max(1, before.heads // before.kv_heads)
                kv_targets.setdefault(before.kv_heads, after.kv_heads)
                possible = [n for n in range(1, 2 * after.heads + 1) if after.width % n == 0 and n % groups == 0]
                divisor = min(possible or [1], key=lambda n: abs(n - after.heads))
                divisors.setdefault(before.heads, divisor)
                kv_divisor = 1 if before.kv_heads == 1 else max(1, divisor // groups)
                kv_heads.setdefault(before.kv_heads, kv_divisor)
    # the choices, the new shape's own heads first
    stages = [(stage, other) for stage, other in zip(old.stages, new.stages, strict=True) if stage.primary]
    stage_widths = tuple(other.primary.width for _, other in stages if other.primary)
    choices: list[tuple[dict[int, int], dict[int, int]]] = [
        (targets, kv_targets), (kept_sizes, kv_targets), (divisors, kv_heads), ({}, {})
    ]  # fmt: skip
    for heads, kv in choices:
        stage_heads = tuple(heads.get(stage.primary.heads, stage.primary.heads) for stage, _ in stages if stage.primary)
        yield Sizes(widths, heads, kv, stage_widths, stage_heads)


def _change_config(config: Mapping[str, Any], sizes: Sizes, is_loose: bool) -> dict[str, Any]:
    new_config = {}
    for name, value in config.items():
        if isinstance(value, Mapping) and (name.endswith("config") or "model_type" in value):
            new_config[name] = _change_config(value, sizes, is_loose)
        else:
            new_config[name] = _resize(name, value, sizes, is_loose)
    return new_config


def _resize(name: str, value: Any, sizes: Sizes, is_loose: bool) -> Any:
    """The new value of an argument: a number, or a list with one for each stage."""
    if name == "attention_hidden_size":  # Zamba: the width of states and embeddings together
        widths = {2 * old: 2 * new for old, new in sizes.widths.items()}
        return _replace_numbers(value, widths, ())
    names_width = WIDTH_NAME.search(name) or (is_loose and LOOSE_NAME.search(name))
    if name in OWN_NAMES or (names_width and not OTHER_NAME.search(name)):
        return _replace_numbers(value, sizes.widths, sizes.stage_widths)
    if KV_NAME.search(name):
        return _replace_numbers(value, sizes.kv_heads, ())
    if HEADS_NAME.search(name):
        return _replace_numbers(value, sizes.heads, sizes.stage_heads)
    return value


def _replace_numbers(value: Any, numbers: Mapping[int, int], by_stage: tuple[int, ...]) -> Any:
    if type(value) is int:
        return numbers.get(value, value)
    if isinstance(value, (list, tuple)) and value and all(type(item) is int for item in value):
        if len(value) == len(by_stage):
            return type(value)(by_stage)
        return type(value)(numbers.get(item, item) for item in value)
    return value


def constructor_arguments(origin: Origin) -> dict[str, Any]:
    """The arguments that timm passes to the class of this model, with the class's own defaults.

    timm's entry points hold them in their code, so one is called with a builder that records them and builds nothing.
    """
    from timm.models import model_entrypoint

    calls: list[tuple[type, dict[str, Any]]] = []
    name = origin.name.partition(".")[0]

    def record(builder: Callable[..., Any], cls: type, variant: str, *args: Any, **arguments: Any) -> Any:
        if variant != name:  # a backbone inside the model
            return builder(cls, variant, *args, **arguments)
        calls.append((cls, arguments))
        raise NotImplementedError("the arguments are recorded, and nothing is built")

    try:
        with _builder(record), torch.device("meta"):
            model_entrypoint(name)(pretrained=False, **origin.options)
    except Exception:  # the end above, or the error of an entry point that does not use timm's builder
        if not calls:
            return dict(origin.options)
    cls, call_arguments = calls[0]
    # arguments that are not passed have the class's defaults
    parameters = inspect.signature(cls).parameters.values()
    arguments: dict[str, Any] = {one.name: one.default for one in parameters if one.default is not one.empty}
    # a configuration's fields are arguments too
    for configuration in _configurations(call_arguments).values():
        arguments |= {field.name: getattr(configuration, field.name) for field in fields(configuration)}
    return arguments | call_arguments


def _configurations(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if is_dataclass(value) and not isinstance(value, type)}


@contextmanager
def _builder(build: Callable[..., Any]) -> Iterator[None]:
    """Inside this context, timm's entry points call ``build`` with timm's own builder and its arguments."""
    name = "build_model_with_cfg"
    owners = [module for path, module in list(sys.modules.items()) if path.startswith("timm.models")]
    builders = [(module, vars(module)[name]) for module in owners if name in vars(module)]
    for module, builder in builders:
        setattr(module, name, partial(build, builder))
    try:
        yield
    finally:
        for module, builder in builders:
            setattr(module, name, builder)
