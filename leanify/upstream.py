"""The libraries: how they build a model, what they call things, how they draw weights.

Every upstream spelling (`num_hidden_layers`, `embed_dim`, …) lives here and in `families`. timm and transformers are
imported only when a model of theirs is asked for.
"""

from __future__ import annotations

import copy
import difflib
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from leanify import models
from leanify.architecture import Architecture, Layer, Stage
from leanify.errors import SourceError

HEAD_DIM_LAYER = "leanify_head_dim_{}"  # the string under which timm finds an attention with this head_dim
HEAD_DIMS = range(1, 257)


@dataclass(frozen=True)
class Origin:
    """How upstream builds a model.

    library   "timm", "hf", or "leanify" for a model of our own
    name      timm's model name, transformers' model type, or ours
    options   timm: keyword arguments of ``create_model``; hf: the whole configuration; ours: keyword arguments
    cls       hf: the class in transformers
    """

    library: str
    name: str
    options: dict[str, Any] = field(default_factory=dict)
    cls: str = ""

    def __str__(self) -> str:
        return f"{self.library}/{self.name}"


def timm() -> ModuleType:
    """timm, imported when it is first asked for."""
    return importlib.import_module("timm")


def transformers() -> ModuleType:
    """transformers, imported when it is first asked for, without its advice."""
    module = importlib.import_module("transformers")
    module.logging.set_verbosity_error()
    module.logging.disable_progress_bar()
    return module


# -- building -----------------------------------------------------------------------------------------------------


def build(origin: Origin, device: str = "cpu") -> nn.Module:
    """The model that upstream's constructor gives, freshly drawn; on ``meta`` in no memory. It knows its origin."""
    with torch.device(device), _NothingToDraw():
        model = {"timm": _build_timm, "hf": _build_hf, "leanify": _build_own}[origin.library](origin)
    model.eval()
    stamp(model, origin)
    return model


class _NothingToDraw(TorchFunctionMode):
    """Skips an initialiser's arithmetic on meta tensors: they have no values, yet each call costs milliseconds."""

    draws = frozenset({"add_", "clamp_", "erfinv_", "fill_", "mul_", "normal_", "uniform_", "zero_"})

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (
            args
            and getattr(func, "__name__", "") in self.draws
            and isinstance(args[0], torch.Tensor)
            and args[0].is_meta
        ):
            return args[0]
        return func(*args, **(kwargs or {}))


def _build_timm(origin: Origin) -> nn.Module:
    library = timm()
    try:
        model: nn.Module = library.create_model(origin.name, **origin.options)
    except (TypeError, ValueError, AssertionError) as error:
        options = ", ".join(f"{key}={value!r}" for key, value in origin.options.items()) or "no options"
        raise SourceError(
            f"timm does not build {origin.name!r} with {options}: {first_line(error)}{_nearest_argument(error)}"
        ) from error
    return model


def _nearest_argument(error: Exception) -> str:
    """For an unknown keyword argument, the nearest ones that the model's class takes."""
    found = re.search(r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'", str(error))
    modules = [module for name, module in sys.modules.items() if name.startswith("timm.models.")]
    cls = next((vars(m)[found[1]] for m in modules if found and found[1] in vars(m)), None)
    if found is None or cls is None:
        return ""
    near = difflib.get_close_matches(found[2], inspect.signature(cls).parameters)
    return f"; nearest: {', '.join(near)}" if near else ""


def _build_hf(origin: Origin) -> nn.Module:
    library = transformers()
    try:
        config = library.AutoConfig.for_model(origin.name, **without_type(origin.options))
        model: nn.Module = getattr(library, origin.cls)(config)
    except refusals() as error:
        raise SourceError(
            f"transformers does not build {origin.name!r} as {origin.cls}: {first_line(error)}"
        ) from error
    return model


def _build_own(origin: Origin) -> nn.Module:
    try:
        model: nn.Module = models.model_class(origin.name)(**origin.options)
    except KeyError:
        raise SourceError(f"leanify has no model {origin.name!r}; it has {', '.join(models.MODELS)}") from None
    except (TypeError, ValueError, RuntimeError) as error:
        raise SourceError(f"leanify does not build {origin.name!r}: {first_line(error)}") from error
    return model


def refusals() -> tuple[type[Exception], ...]:
    """What transformers raises for a configuration or a class that it does not take."""
    from huggingface_hub import errors

    strict = getattr(errors, "StrictDataclassError", ValueError)
    return (TypeError, ValueError, AttributeError, KeyError, ImportError, strict)


def without_type(config: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in ("model_type", "transformers_version")}


def first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2]) or type(error).__name__


def shell(origin: Origin) -> nn.Module:
    """The model that upstream's constructor gives, its parameters on meta where they can be, its buffers real.

    A model that makes its tables on its parameters' device (Swin v2), or runs a part of itself while it is built (a
    ViT behind a ResNet), is built with real parameters.
    """
    try:
        with parameters_on_meta():
            model = build(origin)
    except RuntimeError:  # NotImplementedError is one
        return build(origin)
    return build(origin) if any(buffer.is_meta for buffer in model.buffers()) else model


@contextmanager
def parameters_on_meta() -> Iterator[None]:
    """Build modules whose parameters take no memory and no time, their buffers real: a shell to load weights into."""
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


def stamp(model: nn.Module, origin: Origin | None) -> None:
    """Remember in the model how upstream built it."""
    model.__dict__["_leanify_origin"] = origin


def origin_of(model: Any) -> Origin | None:
    """How upstream built this model: as stamped, or as the library remembers; None for a module of neither."""
    if "_leanify_origin" in model.__dict__:
        stamped: Origin | None = model.__dict__["_leanify_origin"]
        return stamped
    if is_hf(model):
        return Origin("hf", model.config.model_type, model.config.to_dict(), type(model).__name__)
    if is_own(model):
        return Origin("leanify", str(models.name_of(type(model))), dict(model.options))
    architecture = (getattr(model, "pretrained_cfg", None) or {}).get("architecture")
    if architecture:
        return Origin("timm", architecture, _timm_options(model))
    return None


def _timm_options(model: nn.Module) -> dict[str, Any]:
    try:
        from timm.models._input import get_model_args
    except ImportError:  # timm before 1.0.31 does not remember its arguments
        known = {"num_classes": getattr(model, "num_classes", None), "in_chans": getattr(model, "in_chans", None)}
        return {key: value for key, value in known.items() if value is not None}
    options: dict[str, Any] = get_model_args(model)
    return {key: list(value) if isinstance(value, tuple) else value for key, value in options.items()}


def is_hf(model: nn.Module) -> bool:
    return "transformers" in sys.modules and isinstance(model, sys.modules["transformers"].PreTrainedModel)


def is_own(model: nn.Module) -> bool:
    return models.name_of(type(model)) is not None


# -- saying a shape in upstream's words -----------------------------------------------------------------------------

_MLP_KEYS = ("intermediate_size", "n_inner", "ffn_dim", "d_ff")


def respell(origin: Origin, old: Architecture, new: Architecture) -> list[Origin]:
    """Origins that might build ``new``, best first: upstream's own words. Whether one does, only a build shows."""
    if origin.library == "hf":
        config = copy.deepcopy(origin.options)
        for key, value in _hf_words(config, old, new).items():
            config[key] = value
        return [Origin("hf", origin.name, config, origin.cls)]
    words_of = _timm_words if origin.library == "timm" else _leanify_words
    return [Origin(origin.library, origin.name, {**origin.options, **words}) for words in words_of(old, new)]


def _timm_words(old: Architecture, new: Architecture) -> Iterator[dict[str, Any]]:
    words: dict[str, Any] = {}
    before, after = _one_of(old), _one_of(new)
    if before is None or after is None:
        return
    if before.depth != after.depth:
        words["depth"] = after.depth
    layer_before, layer = before.main, after.main
    assert layer_before is not None
    assert layer is not None
    if layer_before.heads != layer.heads:
        words["num_heads"] = layer.heads
    if layer.inner != layer.width:
        words["attn_layer"] = HEAD_DIM_LAYER.format(layer.head_dim)
    if layer_before.mlp == layer.mlp:
        yield words
        return
    for hidden in (layer.mlp, 2 * layer.mlp):  # a packed gate counts both halves
        exact = hidden / layer.width
        yield {**words, "mlp_ratio": exact if int(layer.width * exact) == hidden else (hidden + 0.5) / layer.width}


def _leanify_words(old: Architecture, new: Architecture) -> Iterator[dict[str, Any]]:
    stage = _one_of(new)
    if stage is not None and stage.main is not None:
        layer = stage.main
        yield {"depth": stage.depth, "heads": layer.heads, "head_dim": layer.head_dim, "mlp": layer.mlp}


def _one_of(architecture: Architecture) -> Stage | None:
    """The first varied stage, where upstream has one word for all of them."""
    stages = [architecture.stages[i] for i in architecture.varied]
    return stages[0] if stages and all(_uniform(stage) for stage in stages) else None


def _uniform(stage: Stage) -> bool:
    return len(set(stage.blocks)) == 1


def _hf_words(config: Any, old: Architecture, new: Architecture) -> dict[str, Any]:
    """The configuration's keys that a new shape changes, with their new values; a key speaks for all stages that had
    its old value, and changes where they change alike. Uniform stages only.
    """
    pairs = [pair for pair in zip(old.stages, new.stages, strict=True) if pair[0].main]
    if not pairs or not all(_uniform(stage) for pair in pairs for stage in pair):
        return {}
    get: Callable[[str], Any] = config.get if isinstance(config, dict) else partial(_attribute, config)
    keys = config.keys() if isinstance(config, dict) else set(dir(config))
    words: dict[str, Any] = {}

    def say(names: tuple[str, ...], measure: Callable[[Stage], int], pairs: list[tuple[Stage, Stage]] = pairs) -> None:
        key = next((name for name in names if name in keys), None)
        said = get(key) if key else 0
        news = {measure(after) for before, after in pairs if said is None or measure(before) == said}
        if key and len(news) == 1 and news != {said} and any(measure(a) != measure(b) for a, b in pairs):
            words[key] = news.pop()

    say(("num_hidden_layers", "n_layer", "num_layers"), lambda stage: stage.depth)
    say(("num_attention_heads", "n_head", "num_heads"), lambda stage: main_of(stage).heads)
    say(("num_key_value_heads",), lambda stage: main_of(stage).kv_heads)
    say(_MLP_KEYS, lambda stage: main_of(stage).mlp)
    for side in ("encoder", "decoder"):
        own = [pair for pair in pairs if side in pair[0].name.split(".")]
        say((f"{side}_layers", f"num_{side}_layers"), lambda stage: stage.depth, own)
        say((f"{side}_ffn_dim",), lambda stage: main_of(stage).mlp, own)
    before, after = pairs[0]
    layer_before, layer = main_of(before), main_of(after)
    if layer.inner != layer.width or layer.head_dim != layer_before.head_dim:
        words["head_dim"] = layer.head_dim
    kinds = get("layer_types")
    if before.depth != after.depth and isinstance(kinds, list) and len(pairs) == 1:
        words["layer_types"] = kinds[: after.depth] + kinds[-1:] * (after.depth - before.depth)
    return words


def _attribute(config: Any, key: str) -> Any:
    return getattr(config, key, None)


def main_of(stage: Stage) -> Layer:
    """The main layer of a stage that has one."""
    assert stage.main is not None
    return stage.main


# -- after surgery --------------------------------------------------------------------------------------------------


def settle(model: Any, old: Architecture, new: Architecture, rates: Mapping[str, list[float]]) -> None:
    """Bring what upstream fixed at construction in line with the new shape, in place.

    transformers: the configuration, cache indices and rotary tables; timm: feature info and the drop-path ``rates``
    that the old blocks of each stage had.
    """
    if is_hf(model):
        for key, value in _hf_words(model.config, old, new).items():
            with suppress(AttributeError, NotImplementedError):  # a property computed from other keys
                setattr(model.config, key, value)
        if {layer.head_dim for layer in old.layers()} != {layer.head_dim for layer in new.layers()}:
            _rebuild_rotary_tables(model)
    for before, after in zip(old.stages, new.stages, strict=True):
        if before.depth != after.depth:
            _say_depth(model, after.name, before.depth, after.depth)
            blocks: list[Any] = list(model.get_submodule(after.name).children())
            for index, block in enumerate(blocks):
                for module in block.modules():
                    if hasattr(module, "layer_idx"):
                        module.layer_idx = index
            _spread_drop_path(blocks, rates[after.name])
            _trim_feature_info(model, before, after)
    if is_hf(model) and old != new:
        _say_lists(model.config, new)


def _say_depth(model: Any, name: str, old: int, new: int) -> None:
    """Bring in line what the module around a list of blocks, and its configuration, count for loops of their own."""
    around = model.get_submodule(name.rpartition(".")[0])
    for holder in (around, getattr(around, "config", None)) if is_hf(model) else ():
        if holder is None or getattr(holder, "is_encoder_decoder", False):
            continue
        shared = getattr(holder, "num_kv_shared_layers", None)
        kinds = getattr(holder, "layer_types", None)
        says: dict[str, Any] = {
            key: new for key in ("num_hidden_layers", "num_layers") if getattr(holder, key, None) in (old, new)
        }
        if says and isinstance(shared, int):
            says["num_kv_shared_layers"] = max(0, shared + new - old)
        if says and isinstance(kinds, list) and len(kinds) == old:
            says["layer_types"] = kinds[:new] + kinds[-1:] * (new - old)
        for key, value in says.items():
            with suppress(AttributeError, NotImplementedError):
                setattr(holder, key, value)


def _say_lists(config: Any, new: Architecture) -> None:
    """Bring in line what a configuration says of several lists at once: Funnel's blocks, HRM's equal stacks."""
    if isinstance(sizes := getattr(config, "block_sizes", None), list):
        depths = {int(found[1]): s.depth for s in new.stages if (found := re.search(r"blocks\.(\d+)$", s.name))}
        config.block_sizes = [depths.get(index, size) for index, size in enumerate(sizes)]
    if hasattr(config, "num_layers_per_stack"):
        config.num_layers_per_stack = max(stage.depth for stage in new.stages)
        config.num_hidden_layers = config.num_layers_per_stack * config.H_cycles * (config.L_cycles + 1)


def _rebuild_rotary_tables(model: Any) -> None:
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if "RotaryEmbedding" in type(child).__name__ and hasattr(child, "config"):
                device = next(child.buffers()).device
                setattr(parent, name, type(child)(config=model.config).to(device))


def drop_path_rates(blocks: Sequence[Any]) -> list[float]:
    """The stochastic-depth rate of each block, 0 where it has none."""
    return [next((float(m.drop_prob) for m in block.modules() if hasattr(m, "drop_prob")), 0.0) for block in blocks]


def _spread_drop_path(blocks: Sequence[Any], rates: list[float]) -> None:
    """Stochastic depth rises from the first block to the last: the old rise, spread over the new number of blocks."""
    for index, block in enumerate(blocks):
        place = index * (len(rates) - 1) / max(len(blocks) - 1, 1)
        low = int(place)
        high = min(low + 1, len(rates) - 1)
        rate = rates[low] + (rates[high] - rates[low]) * (place - low)
        for module in block.modules():
            if hasattr(module, "drop_prob"):
                module.drop_prob = rate


def _trim_feature_info(model: Any, old: Stage, new: Stage) -> None:
    info = getattr(model, "feature_info", None)
    if isinstance(info, list) and len(info) == old.depth and all(isinstance(entry, dict) for entry in info):
        model.feature_info = [{**info[min(i, old.depth - 1)], "module": f"{new.name}.{i}"} for i in range(new.depth)]


# -- drawing weights --------------------------------------------------------------------------------------------------


@torch.no_grad()
def initialise_module(model: Any, name: str, module: Any) -> None:
    """Draw one module's weights as upstream's initialiser does; torch's own where upstream has none."""
    if hasattr(module, "reset_parameters"):
        module.reset_parameters()
    initialiser = getattr(model, "_init_weights", None)
    if initialiser is not None:
        arguments = len(inspect.signature(initialiser).parameters)
        initialiser(module, name) if arguments > 1 else initialiser(module)
    elif hasattr(model, "weight_init_mode"):
        from timm.models.vision_transformer import get_init_weights_vit

        get_init_weights_vit(model.weight_init_mode)(module, name)


@torch.no_grad()
def initialise(model: Any) -> None:
    """Draw the whole model anew by upstream's own initialiser, where it has one that can run after construction."""
    if is_hf(model):
        for thing in (*model.modules(), *model.parameters(), *model.buffers()):
            if hasattr(thing, "_is_hf_initialized"):
                del thing._is_hf_initialized
        model.initialize_weights()
        model.tie_weights()
    elif hasattr(model, "init_weights"):
        model.init_weights()
    elif hasattr(model, "_init_weights"):
        model.apply(model._init_weights)


# -- timm's local directories -----------------------------------------------------------------------------------------


def register_head_dims() -> None:
    """Teach timm's vision_transformer attentions of any head_dim, by name; called once its module is imported.

    timm's Attention takes ``attn_head_dim`` but VisionTransformer does not forward it; a string in ``attn_layer`` is
    saved in ``model_args``, and found again here by ``create_model("local-dir:…")``.
    """
    vision_transformer = sys.modules["timm.models.vision_transformer"]
    attention = vision_transformer.Attention
    layers = getattr(vision_transformer, "ATTN_LAYERS", None)
    if layers is None or "attn_head_dim" not in inspect.signature(attention.__init__).parameters:
        return  # a timm that cannot express it: leanify.load still can
    for head_dim in HEAD_DIMS:
        layers.setdefault(HEAD_DIM_LAYER.format(head_dim), _with_head_dim(attention, head_dim))


def _with_head_dim(attention: type[nn.Module], head_dim: int) -> type[nn.Module]:
    def __init__(self: nn.Module, dim: int, num_heads: int = 8, **options: Any) -> None:
        attention.__init__(self, dim, num_heads=num_heads, attn_head_dim=head_dim, **options)

    return type(attention.__name__, (attention,), {"__init__": __init__, "freed": True})
