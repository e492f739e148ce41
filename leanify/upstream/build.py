"""Build models with upstream's constructors: in memory, on meta, or as a shell to load weights into."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

from leanify import machine
from leanify.errors import LeanifyError, ShapeError, SourceError
from leanify.units import binary
from leanify.upstream import diffusion, hooks, modules, own_models
from leanify.upstream.initialise import NothingToDraw
from leanify.upstream.lean_config import KEY
from leanify.upstream.libraries import import_timm, import_transformers, nearest, without_type
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

    ``device="meta"`` needs no memory. Raises SourceError, also for a model larger than the memory, and
    ShapeError for one with too many parts.
    """
    if origin.library in (modules.LIBRARY, modules.LIVE):
        return modules.build(origin, device)
    if device == "meta":
        return _built(origin, device)
    return _if_it_fits(origin, lambda: _built(origin, device), lambda: _built(origin, "meta"))


def _built(origin: Origin, device: str) -> nn.Module:
    """Build by upstream's constructor. Raises ShapeError for more parts than any real model has, which would
    take minutes.
    """
    left = MOST_PARTS

    def count(*_: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise ShapeError(f"{origin} would have over {MOST_PARTS:,} parts; check the numbers of layers it is given")

    with torch.device(device), NothingToDraw(device), register_module_module_registration_hook(count):
        model = _constructed(origin)
    model.eval()
    set_origin(model, origin)
    return model


def _constructed(origin: Origin) -> nn.Module:
    name, options = origin.name, origin.options
    model: nn.Module
    if origin.library == "timm":
        library = import_timm()
        words = ", ".join(f"{key}={value!r}" for key, value in options.items()) or "no options"
        with wall(f"timm cannot build {name!r} with {words}"):
            _check_arguments(origin)
            check_sizes(options)
            model = library.create_model(name, **options)
    elif origin.library == "hf":
        library = import_transformers()
        _check_wrapped(options)
        if KEY in options:
            hooks.check_on(f"this {name}")
        with wall(f"transformers does not build {name!r} as {origin.cls}"):
            config = library.AutoConfig.for_model(name, **without_type(options))
            model = getattr(library, origin.cls)(config)
    elif origin.library == "diffusers":
        check_sizes(options)
        model = diffusion.build(name, options)
    elif origin.library != "leanify":
        raise SourceError(f"nothing builds models of {origin.library!r}")
    else:
        if name not in own_models.MODELS:
            raise SourceError(f"leanify has no model {name!r}; it has {', '.join(own_models.MODELS)}")
        with wall(f"leanify does not build {name!r}"):
            model = own_models.model_class(name)(**options)
    return model


def check_sizes(options: Any) -> None:
    """Raise SourceError if a configuration, at any level, has more blocks or classes than were ever trained.

    Building each block costs time and memory even on meta; transformers keeps a name for each class, twice,
    and copies them whenever it copies a configuration.
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


def _check_arguments(origin: Origin) -> None:
    """Raise SourceError for options that are not parameters of a class in the model's timm module.

    Options may come from untrusted recipes and config.json files, and timm's other keywords can open files or
    contact hubs.
    """
    from timm.models import is_model, model_entrypoint

    name = origin.name.partition(".")[0]
    if not is_model(name):
        raise SourceError(f"timm has no model {name!r}")
    allowed = _parameters(model_entrypoint(name).__module__)
    for key, value in origin.options.items():
        if allowed and key not in allowed:
            asked = f"timm cannot build {origin.name!r} with {key}={value!r}"
            raise SourceError(f"{asked}: models of its kind have no such argument{nearest(key, allowed)}")


@cache
def _parameters(module: str) -> frozenset[str]:
    """The parameters of all classes in a timm module, except those that name files or hubs."""
    names: set[str] = set()
    for cls in vars(sys.modules[module]).values():
        if inspect.isclass(cls) and issubclass(cls, nn.Module) and cls.__module__.startswith("timm.models."):
            names |= {"num_classes", "in_chans", "img_size", "global_pool"}
            for base in cls.__mro__[:-1]:
                with suppress(TypeError, ValueError):  # a class of C
                    names.update(inspect.signature(base).parameters)
    return frozenset(name for name in names if not name.startswith(("pretrained", "checkpoint")))


def _check_wrapped(options: Any) -> None:
    """Check the options of a timm model inside a transformers configuration as those of any timm model."""
    if not isinstance(options, dict):
        return
    if options.get("model_type") == "timm_wrapper":
        _check_arguments(Origin("timm", str(options.get("architecture")), options.get("model_args") or {}))
    for inner in options.values():
        _check_wrapped(inner)


def build_shell(origin: Origin) -> nn.Module:
    """Build a model with real buffers and, if possible, parameters on meta, ready to load weights into.

    Models that compute tables on their parameters' device (Swin v2) or run a part of themselves during
    construction (a ViT with a ResNet stem) get real parameters, and so do a user's own modules.
    """
    if origin.library in (modules.LIBRARY, modules.LIVE):
        return build_model(origin)
    try:
        with parameters_on_meta():
            model = _built(origin, "cpu")
    except SourceError:
        return build_model(origin)
    if any(buffer.is_meta for buffer in model.buffers()):
        return build_model(origin)
    return model


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


SHARE = 8  # what fits into an eighth of the free memory is built without being weighed first


class _Heavy(LeanifyError):
    """The model being built has passed the limit."""


def _if_it_fits(what: object, build: Callable[[], nn.Module], weigh: Callable[[], nn.Module]) -> nn.Module:
    """``build()``, or SourceError if its parameters take more than the free memory.

    ``weigh`` builds the same model on meta. That costs a part of a second, so it is done only for a model
    that has been seen to be large: then building starts again, from the same random numbers.
    """
    free = machine.free_memory()
    if free is None:
        return build()
    left = free // SHARE

    def weigh_one(_module: nn.Module, _name: str, parameter: Any) -> None:
        nonlocal left
        if parameter is not None:
            left -= parameter.nbytes
        if left < 0:
            raise _Heavy

    before = torch.get_rng_state()
    try:
        with register_module_parameter_registration_hook(weigh_one):
            return build()
    except _Heavy:
        check_memory(what, sum(parameter.nbytes for parameter in weigh().parameters()), free)
    torch.set_rng_state(before)
    return build()


def check_memory(what: object, size: int, free: int | None = None) -> None:
    """Raise SourceError if weights of ``size`` bytes do not fit into the free memory."""
    free = machine.free_memory() if free is None else free
    if free is not None and size > free:
        raise SourceError(
            f"the weights of {what} take {binary(size)}, {binary(free)} of memory are free here; what needs "
            "no weights still works: leanify redesign without -o, leanify profile --no-measure"
        )
