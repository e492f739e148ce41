"""Build models with upstream's constructors: in memory, on meta, or as a shell to load weights into."""

from __future__ import annotations

import difflib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook

from leanify.errors import ShapeError, SourceError
from leanify.upstream import diffusion, hooks, modules, own_models, room
from leanify.upstream.initialise import NothingToDraw
from leanify.upstream.lean_config import KEY
from leanify.upstream.libraries import import_timm, import_transformers, without_type
from leanify.upstream.origin import Origin, set_origin
from leanify.upstream.wall import wall

DEEPEST = 1024  # blocks; the deepest published transformer has 1,000 (DeepNet, Wang et al. 2022)
DEPTHS = (
    "num_hidden_layers", "num_layers", "n_layer", "n_layers", "num_decoder_layers", "encoder_layers", "decoder_layers",
    "depth", "depths",
)  # fmt: skip
LABELS = ("num_labels", "id2label")
MOST_LABELS = 50_000  # classes; ImageNet-21k has 21,843
MOST_PARTS = 60_000  # modules; even 60 layers with 128 experts as separate modules have fewer


def build_model(origin: Origin, device: str = "cpu") -> nn.Module:
    """Build and initialise a model with upstream's constructor, and stamp it with its origin.

    ``device="meta"`` needs no memory. Raises SourceError, also for a model larger than the memory, and ShapeError for
    one with too many parts.
    """
    if origin.library in (modules.LIBRARY, modules.LIVE):
        return modules.build(origin, device)
    if device == "meta":
        return _built(origin, device)
    return room.built(origin, lambda: _built(origin, device), lambda: _built(origin, "meta"))


def _built(origin: Origin, device: str) -> nn.Module:
    with torch.device(device), NothingToDraw(device), _bounded(origin):
        model = _BUILDERS[origin.library](origin)
    model.eval()
    set_origin(model, origin)
    return model


@contextmanager
def _bounded(origin: Origin) -> Iterator[None]:
    """Raise ShapeError for a model with more parts than any real one, whose constructor would run for minutes."""
    left = MOST_PARTS

    def count(*_: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise ShapeError(f"{origin} would have over {MOST_PARTS:,} parts; check the numbers of layers it is given")

    hook = register_module_module_registration_hook(count)
    try:
        yield
    finally:
        hook.remove()


def check_sizes(options: Any) -> None:
    """Raise SourceError if a configuration, at any level, has more blocks or classes than were ever trained.

    Building each block costs time and memory even on meta; transformers keeps a name for each class, twice, and copies
    them whenever it copies a configuration.
    """
    if not isinstance(options, Mapping):
        return
    for key, value in options.items():
        check_sizes(value)
        counts = value if isinstance(value, (list, tuple)) else [value]
        if key in DEPTHS and any(isinstance(count, int) and count > DEEPEST for count in counts):
            raise SourceError(
                f"{key}={value!r:.40}: more than {DEEPEST:,} blocks; the deepest transformer that was published has "
                "1,000 (DeepNet, Wang et al. 2022)"
            )
        classes = len(value) if key == "id2label" and isinstance(value, Mapping) else value
        if key in LABELS and isinstance(classes, int) and classes > MOST_LABELS:
            raise SourceError(f"{key} of {classes:,} classes; at most {MOST_LABELS:,} are supported")


def _build_timm(origin: Origin) -> nn.Module:
    library = import_timm()
    options = ", ".join(f"{key}={value!r}" for key, value in origin.options.items()) or "no options"
    with wall(f"timm cannot build {origin.name!r} with {options}"):
        _check_arguments(origin)
        check_sizes(origin.options)
        model: nn.Module = library.create_model(origin.name, **origin.options)
    return model


def _check_arguments(origin: Origin) -> None:
    """Raise SourceError for options that are not parameters of a class in the model's timm module.

    Options may come from untrusted recipes and config.json files, and timm's other keywords can open files or contact
    hubs.
    """
    from timm.models import is_model, model_entrypoint

    name = origin.name.partition(".")[0]
    if not is_model(name):
        raise SourceError(f"timm has no model {name!r}")
    allowed = _parameters(model_entrypoint(name).__module__)
    for key in origin.options:
        if allowed and key not in allowed:
            near = difflib.get_close_matches(key, allowed)
            raise SourceError(
                f"timm cannot build {origin.name!r} with {key}={origin.options[key]!r}: models of its kind have no "
                f"such argument" + (f"; nearest: {', '.join(near)}" if near else "")
            )


@cache
def _parameters(module: str) -> frozenset[str]:
    """All parameters of the classes that a timm module defines or imports, except those that name files or hubs."""
    names: set[str] = set()
    for cls in vars(sys.modules[module]).values():
        if inspect.isclass(cls) and issubclass(cls, nn.Module) and cls.__module__.startswith("timm.models."):
            names |= {"num_classes", "in_chans", "img_size", "global_pool"}
            for base in cls.__mro__[:-1]:
                names.update(_signature(base))
    return frozenset(names)


def _signature(cls: type) -> list[str]:
    try:
        return [name for name in inspect.signature(cls).parameters if not name.startswith(("pretrained", "checkpoint"))]
    except (TypeError, ValueError):
        return []


def _build_hf(origin: Origin) -> nn.Module:
    library = import_transformers()
    _check_wrapped(origin.options)
    if KEY in origin.options:
        hooks.check_on(f"this {origin.name}")
    with wall(f"transformers does not build {origin.name!r} as {origin.cls}"):
        config = library.AutoConfig.for_model(origin.name, **without_type(origin.options))
        model: nn.Module = getattr(library, origin.cls)(config)
    return model


def _check_wrapped(options: Any) -> None:
    """Check the options of a timm model inside a transformers configuration as those of any timm model."""
    if not isinstance(options, dict):
        return
    if options.get("model_type") == "timm_wrapper":
        _check_arguments(Origin("timm", str(options.get("architecture")), options.get("model_args") or {}))
    for inner in options.values():
        _check_wrapped(inner)


def _build_own(origin: Origin) -> nn.Module:
    if origin.name not in own_models.MODELS:
        raise SourceError(f"leanify has no model {origin.name!r}; it has {', '.join(own_models.MODELS)}")
    with wall(f"leanify does not build {origin.name!r}"):
        model: nn.Module = own_models.model_class(origin.name)(**origin.options)
    return model


def _build_diffusers(origin: Origin) -> nn.Module:
    check_sizes(origin.options)
    return diffusion.build(origin.name, origin.options)


_BUILDERS: dict[str, Callable[[Origin], nn.Module]] = {
    "timm": _build_timm,
    "hf": _build_hf,
    "diffusers": _build_diffusers,
    "leanify": _build_own,
}


def build_shell(origin: Origin) -> nn.Module:
    """Build a model with real buffers and, if possible, parameters on meta, ready to load weights into.

    Models that compute tables on their parameters' device (Swin v2) or run a part of themselves during construction (a
    ViT with a ResNet stem) get real parameters, and so do a user's own modules.
    """
    if origin.library in (modules.LIBRARY, modules.LIVE):
        return build_model(origin)
    try:
        with parameters_on_meta():
            model = _built(origin, "cpu")
    except SourceError:
        return build_model(origin)
    return build_model(origin) if any(buffer.is_meta for buffer in model.buffers()) else model


@contextmanager
def parameters_on_meta() -> Iterator[None]:
    """Inside this context, modules are built with parameters on meta and real buffers."""
    register = nn.Module.register_parameter

    def register_on_meta(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        register(self, name, param)
        if param is not None and not param.is_meta:
            self._parameters[name] = nn.Parameter(param.detach().to("meta"), requires_grad=param.requires_grad)

    nn.Module.register_parameter = register_on_meta  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]
