"""Build models with upstream's constructors, in memory, on meta, or as a shell for weights; initialise them again."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.overrides import TorchFunctionMode

from leanify.core import machine
from leanify.core.architecture import MAX_BLOCKS
from leanify.core.errors import LeanifyError, ShapeError, SourceError
from leanify.core.units import format_bytes
from leanify.upstream import hooks, user_modules
from leanify.upstream.lean_config import KEY
from leanify.upstream.libraries import drop_type, import_timm, import_transformers, nearest, reraise_as
from leanify.upstream.on_disk import is_on_disk
from leanify.upstream.origin import Origin, is_hf, set_origin
from leanify.upstream.timm_data import check_pretrained_cfg

DEPTHS = (
    "num_hidden_layers", "num_layers", "n_layer", "n_layers", "num_decoder_layers", "encoder_layers", "decoder_layers",
    "depth", "depths",
)  # fmt: skip
LABELS = ("num_labels", "id2label")
MOST_LABELS = 50_000  # classes; ImageNet-21k has 21,843
MOST_PARTS = 60_000  # modules; even 60 layers with 128 experts as separate modules have fewer
SHARE = 8  # a model that fits into 1 / SHARE of the free memory is built without being weighed first


class _Heavy(LeanifyError):
    """The model being built has passed the limit."""


def build_model(origin: Origin, device: str = "cpu") -> nn.Module:
    """Build and initialise a model with upstream's constructor, and stamp it with its origin.

    ``device="meta"`` needs no memory. Raises SourceError, also for a model larger than the memory, and
    ShapeError for one with too many parts.
    """
    if user_modules.is_user_module(origin):
        return user_modules.build(origin, device)
    free = None if device == "meta" else machine.free_memory()
    if free is None:
        return _build(origin, device)

    # stop at the first parameter beyond an eighth of the free memory
    budget_bytes = free // SHARE

    def weigh(_module: nn.Module, _name: str, parameter: nn.Parameter) -> None:
        nonlocal budget_bytes
        budget_bytes -= parameter.nbytes
        if budget_bytes < 0:
            raise _Heavy

    rng_state = torch.get_rng_state()
    try:
        with register_module_parameter_registration_hook(weigh):
            return _build(origin, device)
    except _Heavy:  # on meta it is weighed in a part of a second, which a small model is spared
        check_memory(origin, sum(parameter.nbytes for parameter in _build(origin, "meta").parameters()), free)

    # it fits: built again from the same random numbers
    torch.set_rng_state(rng_state)
    return _build(origin, device)


def _build(origin: Origin, device: str) -> nn.Module:
    """Build by upstream's constructor. Raises ShapeError for more parts than any real model has."""
    # count modules while they are built: a million of them would take minutes
    remaining = MOST_PARTS

    def count(*_: Any) -> None:
        nonlocal remaining
        remaining -= 1
        if remaining < 0:
            raise ShapeError(f"{origin} would have over {MOST_PARTS:,} parts; check the numbers of layers it is given")

    with torch.device(device), NothingToDraw(device), register_module_module_registration_hook(count):
        model = _construct(origin)
    model.eval()
    set_origin(model, origin)
    return model


def _construct(origin: Origin) -> nn.Module:
    name, options = origin.name, origin.options
    model: nn.Module

    # timm: options are arguments of the constructor
    if origin.library == "timm":
        library = import_timm()
        arguments = ", ".join(f"{key}={value!r}" for key, value in options.items()) or "no options"
        with reraise_as(f"timm cannot build {name!r} with {arguments}"):
            _check_arguments(origin)
            check_sizes(options)
            facts: dict[str, Any] = {}
            if origin.pictures:
                # the folder's facts; where its config.json is silent, the architecture says if its size is fixed. Some
                # of timm's builders look up sizes by the architecture's tag (deepseek_vit, qwen3_vit)
                facts = check_pretrained_cfg(origin.pictures)
                default = library.models.get_pretrained_cfg(name, allow_unregistered=True)
                if default is not None and default.fixed_input_size:
                    facts.setdefault("fixed_input_size", True)
                if default is not None and default.tag:
                    facts["tag"] = default.tag
            model = library.create_model(name, **options, **({"pretrained_cfg": facts} if facts else {}))

    # transformers: options are the configuration; a lean shape needs the hooks
    elif origin.library == "hf":
        library = import_transformers()
        _check_wrapped(options)
        if KEY in options:
            hooks.check_on(f"this {name}")
        with reraise_as(f"transformers does not build {name!r} as {origin.cls}"):
            config = library.AutoConfig.for_model(name, **drop_type(options))
            # without the checkpoint's dtype: a head that makes its base by `from_config` (Llama's classifier) would
            # have it in the base alone
            parts = [config, *(getattr(config, name, None) for name in getattr(config, "sub_configs", {}))]
            dtypes = [(part, part.dtype) for part in parts if getattr(part, "dtype", None) is not None]
            for part, _ in dtypes:
                part.dtype = None
            model = getattr(library, origin.cls)(config)
            for part, dtype in dtypes:
                part.dtype = dtype
    elif user_modules.is_shipped(origin):  # may be built on meta, unlike a user's own module
        model = user_modules.build(origin, "cpu")
    else:
        raise SourceError(f"nothing builds models of {origin.library!r}")
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

        # blocks, as a number or as a list of stages
        counts = value if isinstance(value, (list, tuple)) else [value]
        if key in DEPTHS and any(isinstance(count, int) and count > MAX_BLOCKS for count in counts):
            raise SourceError(
                f"{key}={value!r:.40}: more than {MAX_BLOCKS:,} blocks; the deepest transformer that was published has "
                "1,000 (DeepNet, Wang et al. 2022)"
            )

        # classes, as a number or as a table of names
        classes = len(value) if key == "id2label" and isinstance(value, Mapping) else value
        if key in LABELS and isinstance(classes, int) and classes > MOST_LABELS:
            raise SourceError(f"{key} of {classes:,} classes; at most {MOST_LABELS:,} are supported")


def _check_arguments(origin: Origin) -> None:
    """Raise SourceError for options that are not parameters of a class in the model's timm module.

    Recipes and config.json may come from anyone, and timm's other keywords can open files or contact hubs.
    """
    from timm.models import is_model, model_entrypoint

    name = origin.name.partition(".")[0]
    if not is_model(name):
        raise SourceError(f"timm has no model {name!r}")
    parameter_names = _parameters(model_entrypoint(name).__module__)
    for key, value in origin.options.items():
        if parameter_names and key not in parameter_names:
            refusal = f"timm cannot build {origin.name!r} with {key}={value!r}"
            raise SourceError(f"{refusal}: models of its kind have no such argument{nearest(key, parameter_names)}")


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
    """Check the options of timm models inside a transformers configuration. Raises SourceError."""
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
    if user_modules.is_user_module(origin):
        return build_model(origin)

    def to_meta(_module: nn.Module, _name: str, parameter: nn.Parameter) -> Any:
        if parameter.is_meta:
            return None
        return nn.Parameter(parameter.detach().to("meta"), requires_grad=parameter.requires_grad)

    try:
        with register_module_parameter_registration_hook(to_meta):
            model = _build(origin, "cpu")
    except SourceError:
        return build_model(origin)
    if any(buffer.is_meta for buffer in model.buffers()):
        return build_model(origin)
    return model


def check_memory(what: object, size: int, free: int | None = None) -> None:
    """Raise SourceError if weights of ``size`` bytes do not fit into the free memory."""
    free = machine.free_memory() if free is None else free
    if free is not None and size > free and not is_on_disk():
        raise SourceError(
            f"the weights of {what} take {format_bytes(size)}, {format_bytes(free)} of memory are free here; leanify "
            "redesign without -o and leanify profile --no-measure need no weights"
        )


# -- initial values -------------


@torch.no_grad()
def initialise_module(model: Any, name: str, module: Any) -> None:
    """Initialise one module by upstream's initialiser, or by torch's default if upstream has none."""
    if hasattr(module, "reset_parameters"):
        module.reset_parameters()
    initialiser = getattr(model, "_init_weights", None)
    if initialiser is not None:
        arguments = len(inspect.signature(initialiser).parameters)
        if arguments:  # torchvision's MaxViT has one of this name for the whole model
            initialiser(module, name) if arguments > 1 else initialiser(module)
    elif hasattr(model, "weight_init_mode"):
        from timm.models.vision_transformer import get_init_weights_vit

        get_init_weights_vit(model.weight_init_mode)(module, name)


@torch.no_grad()
def initialise_model(model: Any) -> bool:
    """Re-initialise the whole model by upstream's initialiser; False if none can run after construction."""
    # transformers skips modules that it has marked as initialised
    if is_hf(model):
        for part in (*model.modules(), *model.parameters(), *model.buffers()):
            if hasattr(part, "_is_hf_initialized"):
                del part._is_hf_initialized
        model.initialize_weights()
        model.tie_weights()

    # timm: for the whole model, or for one module after another, inner ones first
    elif hasattr(model, "init_weights"):
        model.init_weights()
    elif hasattr(model, "_init_weights"):
        arguments = len(inspect.signature(model._init_weights).parameters)
        if arguments == 0:
            model._init_weights()
            return True
        for name, module in reversed(list(model.named_modules())):
            model._init_weights(module, name) if arguments > 1 else model._init_weights(module)
    else:
        return False
    return True


class NothingToDraw(TorchFunctionMode):
    """Skips random initialisation on meta: tensors have no values there, yet each call takes milliseconds.

    ``device`` is the default device inside the context.
    """

    draws = frozenset({"add_", "clamp_", "erfinv_", "fill_", "mul_", "normal_", "uniform_", "zero_"})

    def __init__(self, device: str | torch.device) -> None:
        super().__init__()
        # they draw on the default device, which is meta
        self.random_makers = {torch.randn, torch.rand} if str(device) == "meta" else set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # new random tensors, unless they name their device or generator
        keywords = kwargs or {}
        if func in self.random_makers and keywords.get("device") is None and keywords.get("generator") is None:
            return torch.empty(*args, **{key: value for key, value in keywords.items() if key != "generator"})

        # in-place draws on meta
        if getattr(func, "__name__", "") in self.draws:
            tensor = args[0] if args else keywords.get("tensor")  # torch.nn.init passes its tensor by name
            if isinstance(tensor, torch.Tensor) and tensor.is_meta:
                return tensor
        return func(*args, **keywords)
