"""The laws that every redesigned model obeys, held in float64 on random parameters and random inputs.

written   read(write(m, a)) == a, and write(m, read(m)) computes bit for bit what m does
grown     heads doubled at constant head_dim, new output columns zero: the same outputs to 1e-10
alive     the outputs depend on the new output columns of every layer (their gradient is not zero)
wider     hidden units doubled, new output columns zero: the same outputs to 1e-10
complete  no softmax over tokens runs outside an attention that was found
shorter   one block fewer runs
split     twice the heads of half the size run, where head_dim is even
cached    the same with a cache of keys and values: grown, and one block fewer
kept      what was saved loads and gives the same outputs
priced    what a search says that a design costs is what counting that design gives, on meta and on the CPU
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

import leanify
from leanify.architecture import Architecture, Layer, Stage
from leanify.design import counting, search
from leanify.design.prices import PriceList, StageDesign
from leanify.lens import resize, sites, surgery
from leanify.upstream.build import build_model
from leanify.upstream.origin import origin_of
from leanify.upstream.spelling import primary_layer

TOLERANCE = 1e-10
Call = Callable[[nn.Module], Any]


class LawBroken(AssertionError):
    """A law does not hold; the message names it."""


def hold(model: nn.Module, call: Call, seed: int = 0) -> Architecture:
    """Hold ``model`` against every law; ``call`` runs it on fixed inputs. Returns its shape. Raises LawBroken."""
    model = randomised(model, seed)
    shape = surgery.read(model)
    reference = complete(model, call)
    same = surgery.write(model, shape)
    _require(surgery.read(same) == shape, "written", "another shape is read back")
    _require(difference(outputs(same, call), reference) == 0, "written", "writing a model's own shape changes it")
    grown(model, shape, call, reference)
    wider(model, shape, call, reference)
    shorter(model, shape, call)
    cached(model, shape, call)
    split(model, shape, call)
    return shape


def grown(model: nn.Module, shape: Architecture, call: Call, reference: list[Tensor]) -> None:
    wanted = shape.grown(factor=2)
    big = surgery.grow(model, factor=2)
    _require(surgery.read(big) == wanted, "grown", "another shape is read back")
    _require(
        (error := difference(outputs(big, call), reference)) < TOLERANCE, "grown", f"outputs differ by {error:.1e}"
    )
    _require(_names_of_one(big) == _names_of_one(model), "grown", "parameters that were one are several")
    alive(big, call)


def _names_of_one(model: nn.Module) -> list[list[str]]:
    """The names under which each tied parameter stands."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return sorted(several for several in names.values() if len(several) > 1)


def alive(big: nn.Module, call: Call) -> None:
    """The outputs depend on every layer's new output columns: the layer ran, and its new heads reach them."""
    places = [place for stage in sites.locate(big) for block in stage.blocks for place in block]
    weights = {place.attention.path: place.output.weight for place in places}
    axes = [resize.features_of(place.output).input_axis for place in places]
    new = [
        (w.movedim(axis, 0).flatten(1) == 0).all(1).nonzero() for axis, w in zip(axes, weights.values(), strict=True)
    ]
    randomised(big, seed=1)  # upstream draws new biases as zero, which some inputs (DETR's empty queries) cannot wake
    for parameter in big.parameters():
        parameter.requires_grad_(False)
    for weight in weights.values():
        weight.requires_grad_(True)
    results = [tensor for tensor in outputs(big, call, grad=True) if tensor.requires_grad]
    loss = sum(torch.sin(3 * tensor + 1).sum() for tensor in results)
    gradients: Iterable[Tensor | None] = [None] * len(weights)  # some functions of upstream's own record no gradient
    if isinstance(loss, Tensor):
        gradients = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
    for place, axis, columns, gradient in zip(places, axes, new, gradients, strict=True):
        felt = gradient is not None and bool((gradient.index_select(axis, columns.flatten()) != 0).any())
        changes = felt or _stirs(big, call, place.output.weight, axis, columns.flatten())
        _require(changes, "alive", f"the new heads of {place.attention.path} change nothing")


@torch.no_grad()
def _stirs(model: nn.Module, call: Call, weight: Tensor, axis: int, columns: Tensor) -> bool:
    """Whether noise in some columns changes the outputs, where no gradient flows back to them."""
    before = outputs(model, call)
    weight.index_add_(axis, columns, torch.ones_like(weight.index_select(axis, columns)))
    return difference(outputs(model, call), before) > 0


def wider(model: nn.Module, shape: Architecture, call: Call, reference: list[Tensor]) -> None:
    normed = {layer for layer in shape.layers() if layer.mlp and _has_normed_mlp(model)}
    wanted = shape.map_layers(lambda layer: layer if layer in normed else replace(layer, mlp=2 * layer.mlp))
    if wanted == shape:
        return
    wide = surgery.write(model, wanted)
    _require(surgery.read(wide) == wanted, "wider", "another shape is read back")
    error = difference(outputs(wide, call), reference)
    _require(error < TOLERANCE, "wider", f"outputs differ by {error:.1e}")


def _has_normed_mlp(model: nn.Module) -> bool:
    """Whether a norm runs over the hidden units: then new ones change what the old ones give."""
    mlps = [site for site in sites.sites_of(model) if site.reading.is_mlp]
    return any(resize.part_of(site.module, part) is not None for site in mlps for part in site.reading.mixing)


def shorter(model: nn.Module, shape: Architecture, call: Call) -> None:
    """The deepest stage that can lose a block loses one; a model with no list of blocks has none to lose."""
    lists = [stage for stage in shape.stages if not stage.fixed and stage.depth > 1]
    for longest in sorted(lists, key=lambda stage: -stage.depth):
        stages = tuple(s.reshape(depth=s.depth - 1) if s is longest else s for s in shape.stages)
        try:
            short = surgery.write(model, replace(shape, stages=stages))
        except leanify.ShapeError:  # the only attention stands in the last block
            continue
        _require(surgery.read(short).stages == stages, "shorter", "another shape is read back")
        return _run(short, call, "shorter")


def cached(model: nn.Module, shape: Architecture, call: Call) -> None:
    """A decoder as users run it: transformers makes the cache from the configuration, and layers fill it."""
    inner = (c for m in model.modules() if getattr(c := getattr(m, "config", None), "is_decoder", True))
    configs = {id(c): c for c in (getattr(model, "config", None), *inner) if hasattr(c, "use_cache")}
    before = {key: config.use_cache for key, config in configs.items()}
    if not configs:
        return
    try:
        for config in configs.values():
            config.use_cache = True
        error = difference(outputs(surgery.grow(model, factor=2), call), outputs(model, call))
        _require(error < TOLERANCE, "cached", f"outputs differ by {error:.1e}")
        shorter(model, shape, call)
    finally:
        for key, config in configs.items():
            config.use_cache = before[key]


def split(model: nn.Module, shape: Architecture, call: Call) -> None:
    """Heads are cut in two at constant inner width; a shape that upstream cannot compute must be refused."""

    def halved(layer: Layer) -> Layer:
        return layer if layer.head_dim % 2 else layer.with_heads(2 * layer.heads, layer.head_dim // 2)

    wanted = shape.map_layers(halved)
    if wanted == shape:
        return
    try:
        cut = surgery.write(model, wanted)
    except leanify.LeanifyError:
        return
    _require(surgery.read(cut) == wanted, "split", "another shape is read back")
    _run(cut, call, "split")


def kept(model: nn.Module, call: Call) -> None:
    """A grown model survives the disk."""
    big = surgery.grow(model, factor=2)
    expected = outputs(big, call)
    with tempfile.TemporaryDirectory() as folder:
        leanify.save(big, Path(folder) / "lean")
        loaded = leanify.load(str(Path(folder) / "lean")).to(next(big.parameters()).dtype).eval()
    if hasattr(big, "config"):  # no part of a model on disk: how transformers computes experts
        for module in loaded.modules():
            if hasattr(getattr(module, "config", None), "_experts_implementation"):
                module.config._experts_implementation = big.config._experts_implementation
    _require((error := difference(outputs(loaded, call), expected)) < 1e-6, "kept", f"outputs differ by {error:.1e}")


def priced(model: nn.Module, tokens: int = 12) -> None:
    """Prices, by arithmetic from shortened models, of the model as it stands and of a leaner one with more heads."""
    origin = origin_of(model)
    assert origin is not None
    meta = build_model(origin, "meta")
    prices = PriceList(meta, tokens)
    if not prices.turned:
        return
    base = search.baseline(prices)
    _require(
        base.cost == counting.count(meta, tokens),
        "priced",
        f"the source is said to cost {base.cost}, not {counting.count(meta, tokens)}",
    )
    designs = tuple(
        _leaner(stage) if i in prices.turned else None for i, stage in enumerate(prices.architecture.stages)
    )
    said = prices.total(designs)
    shape = search.Candidate(designs, said, 1.0).applied_to(prices.architecture)
    lean = surgery.write(meta, shape)
    _require((found := counting.count(lean, tokens)) == said, "priced", f"{shape} is said to cost {said}, not {found}")
    real = counting.observed_on_cpu(lean, tokens, counting.macs)
    _require(real == said.macs, "priced", f"{shape} is said to take {said.macs} MACs, with values it takes {real}")


def _leaner(stage: Stage) -> StageDesign:
    main = primary_layer(stage)
    depth = stage.depth if stage.fixed else max(stage.shortest, stage.depth - 1)
    return StageDesign(depth, main.heads + stage.group, main.head_dim, main.mlp and main.mlp + 3 * stage.units)


def _require(holds: bool, law: str, what: str) -> None:
    if not holds:
        raise LawBroken(f"{law}: {what}")


def _run(model: nn.Module, call: Call, law: str) -> None:
    try:
        outputs(model, call)
    except Exception as error:
        raise LawBroken(f"{law}: {type(error).__name__}: {str(error)[:200]}") from error


# -- running ------------------------------------------------------------------------------------------------------


@torch.no_grad()
def randomised(model: nn.Module, seed: int = 0) -> nn.Module:
    """``model`` in float64 and in evaluation, every parameter and every running statistic random, in place.

    Upstream draws many parameters as zero or constant, which would let a wrong reading pass.
    """
    generator = torch.Generator().manual_seed(seed)
    model.double().eval()
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        if parameter.dim() > 1:
            parameter.copy_(noise * (max(parameter.numel(), 1) / max(parameter.shape[0], 1)) ** -0.5)
        else:
            parameter.copy_(torch.ones_like(parameter) * (parameter.mean() > 0.5) + 0.3 * noise)
    for module in model.modules():
        if isinstance(getattr(module, "running_var", None), Tensor):
            module.running_mean.copy_(torch.randn(module.running_mean.shape, generator=generator))
            module.running_var.copy_(0.5 + torch.rand(module.running_var.shape, generator=generator))
    return model


def outputs(model: nn.Module, call: Call, grad: bool = False) -> list[Tensor]:
    """Every floating-point tensor that a run returns, caches and attention maps left out."""
    torch.manual_seed(0)
    with _Float64(), _default_float64(), torch.set_grad_enabled(grad):
        return [tensor for tensor in _tensors(call(model)) if tensor.is_floating_point() and tensor.numel()]


@contextmanager
def _default_float64() -> Iterator[None]:
    """What upstream makes on the way (masks, empty queries) is float64 like the model."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            if not any(word in str(key) for word in ("past_key_values", "attentions", "cache", "rnn_state")):
                yield from _tensors(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)


def difference(a: list[Tensor], b: list[Tensor]) -> float:
    """Largest difference of two lists of outputs, in units of the second one's size."""
    if [x.shape for x in a] != [x.shape for x in b] or not b:
        return float("inf")
    sizes = [max(float(y.detach().abs().nan_to_num(posinf=0).max()), 1e-300) for y in b]
    _require(all(torch.isfinite(y).any() for y in b), "finite", "an output has no finite number")
    pairs = [(x.detach().nan_to_num(), y.detach().nan_to_num()) for x, y in zip(a, b, strict=True)]
    return max(float((x - y).abs().max()) / size for (x, y), size in zip(pairs, sizes, strict=True))


class _Float64(TorchFunctionMode):
    """What upstream computes in float32 on purpose (norms, rotary tables) is computed in float64."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.float:
            func = torch.Tensor.double
        args = tuple(torch.float64 if arg is torch.float32 else arg for arg in args)
        kwargs = {key: torch.float64 if value is torch.float32 else value for key, value in (kwargs or {}).items()}
        return func(*args, **kwargs)


class _Softmaxes(TorchFunctionMode):
    """Notes every softmax over three or more axes outside the ``known`` paths, of experts and words apart."""

    names = ("scaled_dot_product_attention", "softmax", "_softmax", "multi_head_attention_forward")

    def __init__(self, known: set[str], paths: dict[int, str], vocabulary: int) -> None:
        super().__init__()
        self.known, self.paths, self.vocabulary = known, paths, vocabulary
        self.running: list[nn.Module] = []
        self.strangers: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (
            getattr(func, "__name__", "") in self.names
            and args
            and args[0].dim() > 2
            and args[0].shape[-1] != self.vocabulary
        ):
            where = self.running[-1] if self.running else None
            routes = re.search(r"Router|Gate|Expert|MoE|Moe|TopK", type(where).__name__)
            if not routes and not any(
                sites.within(self.paths.get(id(m), "?"), k) for m in self.running for k in self.known
            ):
                self.strangers.append(f"{self.paths.get(id(where), '?')} ({type(where).__name__})")
        return func(*args, **(kwargs or {}))

    def _left(self, *_: Any) -> None:
        self.running.pop()

    @contextmanager
    def watching(self) -> Iterator[None]:
        enter = register_module_forward_pre_hook(lambda module, _: self.running.append(module))
        leave = register_module_forward_hook(self._left, always_call=True)
        try:
            with self:
                yield
        finally:
            enter.remove()
            leave.remove()


def complete(model: nn.Module, call: Call) -> list[Tensor]:
    """The outputs of ``model``. Raises LawBroken where an attention runs that was not found."""
    found = sites.sites_of(model)
    known = {site.path for site in found if site.reading.is_attention or site.reading.kept}
    vocabulary = getattr(getattr(model, "config", None), "vocab_size", 0)
    modes = _Softmaxes(known, {id(module): path for path, module in model.named_modules()}, vocabulary)
    with modes.watching():
        result = outputs(model, call)
    strangers = list(dict.fromkeys(modes.strangers))
    _require(not strangers, "complete", f"softmax outside every known attention: {', '.join(strangers[:3])}")
    return result
