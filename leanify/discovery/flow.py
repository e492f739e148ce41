"""Follow tensors through one forward pass to find the parameters of attentions and MLPs.

Class and attribute names vary between authors; the computation of an attention does not. `TorchFunctionMode` sees
every torch call, and each tensor is described by the linear maps that produced it, back to the previous map on its
way:

    product     a matrix product of two such tensors: q kᵀ is one, softmax(q kᵀ) v is two, as is a fused kernel
    attention   a linear map that takes a tensor with two products: the output projection; the maps that the tensor
                comes from are the projections to queries, keys and values
    MLP         a linear map that takes a tensor with none, which went through an activation function

Values are never read, so this works on meta tensors too.
"""

from __future__ import annotations

import copy
import itertools
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from leanify.lens.located import is_inside, parameter_names, relative_path
from leanify.upstream.origin import remove_on_exit

_MAPS = "linear matmul mm bmm addmm baddbmm addbmm einsum __matmul__ __rmatmul__ tensordot conv1d conv2d conv3d"
_ACTIVATIONS = """
    relu relu_ relu6 gelu silu silu_ sigmoid sigmoid_ tanh tanh_ softplus elu elu_ selu celu leaky_relu leaky_relu_
    hardswish hardsigmoid hardtanh mish glu logsigmoid prelu rrelu erf clamp clamp_min clamp_ maximum square pow __pow__
    exp softmax softsign threshold
"""
Axes = tuple[int, ...]
DIRECT = ("linear", "conv1d", "conv2d", "conv3d")  # a weight of outputs × inputs
MAPS = frozenset(_MAPS.split())
ACTIVATIONS = frozenset(_ACTIVATIONS.split())
FUSED_ATTENTIONS = frozenset({"scaled_dot_product_attention", "flex_attention", "flash_attn_func"})
AS_ANOTHER = ("to", "type_as", "expand_as", "view_as", "reshape_as")  # take another tensor's type or shape alone
SUM_OF_THREE = re.compile(r"[a-zA-Z ]+,[a-zA-Z ]+,[a-zA-Z ]+->[a-zA-Z ]*")  # of an einsum, without "..."
OPAQUE = frozenset({"multi_head_attention_forward"})  # torch's own attention has a row


@dataclass(frozen=True, eq=False)
class Use:
    """A parameter used as a linear map: its name and shape, and which axes are the outputs and inputs of the map.

    ``over_logits`` marks a map of the logits of all heads (talking heads).
    """

    name: str
    shape: tuple[int, ...]
    outs: tuple[int, ...]
    ins: tuple[int, ...]
    over_logits: bool = False

    @property
    def out_length(self) -> int:
        return math.prod(self.shape[axis] for axis in self.outs)

    @property
    def input_size(self) -> int:
        return math.prod(self.shape[axis] for axis in self.ins)


@dataclass(frozen=True)
class Came:
    """The origin of a tensor, back to the last linear map.

    maps      the linear maps; ``along`` holds other parameters on the way (norms, scales, tables)
    products  number of matrix products of two tensors on the way
    lengths   axis lengths of the tensors in the last product, the values' axes first
    active    whether an activation function is on the way
    inner     paths of the modules that computed the products
    behind    names of the maps before the ones in ``maps``
    """

    maps: frozenset[Use] = frozenset()
    along: frozenset[str] = frozenset()
    products: int = 0
    lengths: tuple[int, ...] = ()
    active: bool = False
    inner: frozenset[str] = frozenset()
    behind: frozenset[str] = frozenset()


NOTHING = Came()


@dataclass(frozen=True)
class Frame:
    """A module that is being called, with its arguments."""

    path: str
    module: nn.Module
    args: Any
    kwargs: Any


@dataclass(frozen=True)
class Candidate:
    """An attention or an MLP: its last map, the origin of that map's input, and the innermost module with both."""

    last: Use
    came: Came
    owner: Frame

    @property
    def projections(self) -> list[Use]:
        """The maps before the last one, one per name, sorted by name."""
        uses = {use.name: use for use in self.came.maps if not use.over_logits}
        return sorted(uses.values(), key=lambda use: use.name)

    @property
    def latent_maps(self) -> list[Use]:
        """The projections whose outputs another of them takes: to a latent space that all heads share (DeepSeek)."""
        return [use for use in self.projections if use.name in self.came.behind]

    @property
    def logit_maps(self) -> list[Use]:
        return sorted((use for use in self.came.maps if use.over_logits), key=lambda use: use.name)


@dataclass
class Flow:
    """The result of one forward pass; ``softmax`` lists the modules that call softmax or a fused kernel."""

    attentions: list[Candidate] = field(default_factory=list)
    mlps: list[Candidate] = field(default_factory=list)
    softmax: list[str] = field(default_factory=list)


class Follower(TorchFunctionMode):
    """Follows tensors while it is active; forward hooks maintain the stack of modules being called."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.flow = Flow()
        self.stack: list[Frame] = []
        self._names = parameter_names(model)
        self._parameters = dict(model.named_parameters(remove_duplicate=False))
        self._came: Any = WeakIdKeyDictionary()
        for name, buffer in model.named_buffers():  # slopes and tables count as parameters on the way
            self._came[buffer] = Came(along=frozenset({name}))
        self._weights: Any = WeakIdKeyDictionary()  # tensors computed from parameters only: (name, axes or None)
        self._parameter_names: set[str] = set()
        self._projections: set[str] = set()  # of the attentions so far
        self.watched_map = ""  # the map whose inputs are recorded: rows × channels
        self.watched_inputs: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        keywords, name = kwargs or {}, getattr(func, "__name__", "")
        is_sum = name == "einsum" and len(args) == 4 and isinstance(args[0], str)
        if is_sum and SUM_OF_THREE.fullmatch(args[0]):  # one product after the other
            first, second, last, total = re.split(",|->", args[0].replace(" ", ""))
            inner = "".join(letter for letter in dict.fromkeys(first + second) if letter in last + total)
            product = self.__torch_function__(func, types, (f"{first},{second}->{inner}", *args[1:3]))
            args = f"{inner},{last}->{total}", product, args[3]
        result = func(*args, **keywords)
        outputs = [args[0]] if name == "__setitem__" else list(iterate_tensors(result))
        if outputs:
            self._note(name, args, list(iterate_tensors((args, keywords))), outputs)
        return result

    def _note(self, name: str, args: Any, tensors: list[Tensor], outputs: list[Tensor]) -> None:
        """Record the origin of the outputs of a call, given its input tensors."""
        tensors = tensors[:1] if name in AS_ANOTHER else tensors
        weights = [self._weight(tensor) for tensor in tensors]
        came: Came | None = None
        # a softmax over a product of two mapped tensors is an attention
        if name in FUSED_ATTENTIONS or (name in ("softmax", "_safe_softmax") and self._union(tensors[:1]).products):
            self.flow.softmax.append(self.stack[-1].path if self.stack else "")
        if name == "embedding":  # a table of positions for each head, if it is added to logits
            came = Came(along=frozenset(weight[0] for weight in weights if weight is not None))
        elif name in OPAQUE or name.startswith("new_") or name.endswith("_like"):
            came = NOTHING
        elif name in FUSED_ATTENTIONS:
            union, values = self._union(tensors[:3]), tensors[min(2, len(tensors) - 1)]
            mask = self._union(tensors[3:])  # its slopes, and maps of the attention itself that make it
            path = self.stack[-1].path if self.stack else ""
            own_maps = {use for use in mask.maps if is_inside(use.name, path)}
            union = replace(union, along=union.along | self._on_the_way(tensors[3:]), maps=union.maps | own_maps)
            came = self._after_product(union, union.products + 2, (values.shape[-1], *values.shape[:-1]))
        elif name in MAPS and len(tensors) > 1:
            came = self._product_or_map(name, args, list(zip(tensors, weights, strict=True)))
        # any other call: its outputs inherit the origins of its inputs
        if came is None:
            of_parameters = [weight for weight in weights if weight is not None]
            if weights and len(of_parameters) == len(weights):  # computed from parameters only
                weight_name = of_parameters[0][0]
                for output in outputs:
                    if id(output) not in self._names:
                        axes = self._axes(weight_name, output) if len(weights) == 1 else None
                        self._weights[output] = weight_name, axes
                return
            others = [tensor for tensor, weight in zip(tensors, weights, strict=True) if weight is None]
            came = self._union(others)
            along = came.along | {parameter for parameter, _ in of_parameters}
            came = replace(came, along=along, active=came.active or name in ACTIVATIONS)
        for output in outputs:
            if id(output) not in self._names:
                self._came[output] = came

    def _union(self, tensors: list[Tensor]) -> Came:
        cames: list[Came] = [self._came.get(tensor, NOTHING) for tensor in tensors]
        if not cames:
            return NOTHING
        if len(cames) == 1:
            return cames[0]
        first = max(cames, key=lambda came: came.products)
        return Came(
            frozenset().union(*(came.maps for came in cames)),
            frozenset().union(*(came.along for came in cames)),
            first.products,
            first.lengths,
            any(came.active for came in cames),
            frozenset().union(*(came.inner for came in cames)),
            frozenset().union(*(came.behind for came in cames)),
        )

    def _on_the_way(self, tensors: Iterable[Tensor]) -> set[str]:
        """The parameters that tensors are, or were computed from."""
        tensors = list(tensors)
        names = {weight[0] for weight in map(self._weight, tensors) if weight is not None}
        return names.union(*(self._came.get(tensor, NOTHING).along for tensor in tensors))

    def _weight(self, tensor: Tensor) -> tuple[str, tuple[int, ...] | None] | None:
        """Return (name, axes) of a parameter or a tensor computed from parameters only; None for other tensors."""
        names = self._names.get(id(tensor))
        if names is None:
            entry: tuple[str, tuple[int, ...] | None] | None = self._weights.get(tensor)
            return entry
        # a shared parameter has several names: the one inside the innermost module that is being called
        for frame in reversed(self.stack):
            inside = [name for name in names if is_inside(name, frame.path)]
            if inside:
                return inside[0], tuple(range(tensor.dim()))
        return names[0], tuple(range(tensor.dim()))

    def _axes(self, name: str, view: Tensor) -> tuple[int, ...] | None:
        """Return the parameter's axis for each axis of a view; None if the view is not a permutation of its axes."""
        parameter = self._parameters[name]
        pairs = zip(parameter.shape, parameter.stride(), strict=True)
        axis_positions = {pair: axis for axis, pair in enumerate(pairs)}
        axes = tuple(axis_positions.get(pair, -1) for pair in zip(view.shape, view.stride(), strict=True))
        if len(set(axes)) == len(axes) == parameter.dim() and -1 not in axes:
            return axes
        return tuple(range(parameter.dim())) if view.shape == parameter.shape else None

    def _after_product(self, came: Came, products: int, lengths: tuple[int, ...]) -> Came:
        inner = came.inner | ({self.stack[-1].path} if self.stack else set())
        return replace(came, products=products, lengths=lengths, active=False, inner=inner)

    def _product_or_map(self, name: str, args: Any, operands: list[Any]) -> Came | None:
        # the two factors of the product; `addmm` and its relatives put the added tensor first
        pairs = [pair for pair in operands if pair[0].dim() > 1]
        if name in (*DIRECT, "einsum", "matmul", "__matmul__", "mm", "bmm"):
            pairs = [pair for pair in operands if pair[0].dim() > 0][:2]
        if len(pairs) < 2:
            return None
        (one, first), (other, second) = pairs[-2:] if name in ("addmm", "baddbmm", "addbmm") else pairs[:2]
        other_weights = self._on_the_way(x for x, _ in operands if x is not one and x is not other)
        if self.watched_map:
            self._keep_input(name, args, one, other, first, second)
        # a depthwise convolution maps no channels: it is on the way, like a norm
        if name.startswith("conv") and second is not None and other.dim() > 2 and other.shape[1] == 1:
            came: Came = self._came.get(one, NOTHING)
            if one.shape[-other.dim() + 1] == other.shape[0] and came.maps:
                return replace(came, along=came.along | other_weights | {second[0]})
        # a map over tokens leaves the channels as they are (Linformer)
        if (first is None) != (second is None) and self._maps_tokens(name, args, *pairs[:2]):
            return self._union([one if first is None else other])
        # one factor is a parameter: a linear map of the other factor
        if second is not None and (first is None or name in DIRECT or other.dim() > 1):
            return self._after_map(one, second, _roles(name, args, other, weight_first=False), other_weights)
        if first is not None:
            return self._after_map(other, first, _roles(name, args, one, weight_first=True), other_weights)
        # neither is: a product of two tensors, such as q kᵀ
        a: Came = self._came.get(one, NOTHING)
        b: Came = self._came.get(other, NOTHING)
        came = self._union([one, other])
        if not (a.maps and b.maps):
            return came
        values = one if a.products < b.products else other
        return self._after_product(came, came.products + 1, tuple(values.shape[::-1]))

    def _maps_tokens(self, name: str, args: Any, one: Any, other: Any) -> bool:
        """Whether a map sums over another axis than the channels of the map before: those lie on other axes."""
        weight_first = one[1] is not None
        x, _ = other if weight_first else one
        came: Came = self._came.get(x, NOTHING)
        axes = _mapped_axes(name, args, x, weight_first)
        lengths = {use.out_length for use in came.maps}
        if len(lengths) != 1 or came.products or came.active or axes is None or len(axes) != 1:
            return False
        (length,) = lengths
        others = [size for axis, size in enumerate(x.shape) if axis > 0 and axis != axes[0] % x.dim()]
        pairs = [a * b for a, b in itertools.pairwise(others)]
        return x.shape[axes[0]] != length and length in (*others, *pairs)

    def _keep_input(self, name: str, args: Any, one: Tensor, other: Tensor, first: Any, second: Any) -> None:
        """Record the input of the watched map, as rows × channels."""
        weight_first = first is not None and first[0] == self.watched_map
        if not weight_first and (second is None or second[0] != self.watched_map):
            return
        x, weight = (other, one) if weight_first else (one, other)
        axes = _mapped_axes(name, args, x, weight_first)
        if axes is not None and not weight.is_meta:
            channels = x.detach().movedim(axes, tuple(range(-len(axes), 0)))
            self.watched_inputs.append(channels.flatten(-len(axes)).flatten(0, -2).clone())

    def _after_map(self, x: Tensor, weight: Any, roles: tuple[Axes, Axes], other_weights: set[str]) -> Came:
        """Return the origin of a linear map's output; ``other_weights`` are further parameters in the call."""
        weight_name, axes = weight
        shape = tuple(self._parameters[weight_name].shape)
        # axes of the view → axes of the parameter
        outs, ins = roles
        if axes is not None:
            outs, ins = tuple(axes[i] for i in outs), tuple(axes[i] for i in ins)
        elif len(shape) > 1:  # a slice of a parameter: use the parameter's full lengths
            outs, ins = tuple(range(len(shape) - 1)), (len(shape) - 1,)
        else:
            outs, ins = (0,), ()
        use = Use(weight_name, shape, outs, ins)
        came: Came = self._came.get(x, NOTHING)
        if self._is_in_heads(x, came, use):  # a table of relative positions, by which queries are multiplied
            return replace(came, along=came.along | other_weights | {weight_name})
        if came.products == 1:  # a map over logits, such as talking heads
            maps = came.maps | {replace(use, over_logits=True)}
            return replace(came, maps=maps, along=came.along | other_weights, active=False)
        if came.products and came.maps:
            self._add_candidate(self.flow.attentions, use, came)
        elif came.active and self._parameter_names.isdisjoint(one.name for one in came.maps):
            # hidden units are computed from a stream as wide as the output; a low-rank addition has other inputs
            parts = {one.name.rpartition(".")[0] for one in came.maps if one.input_size == use.out_length}
            if parts and all(one.name.rpartition(".")[0] in parts for one in came.maps):
                self._add_candidate(self.flow.mlps, use, came)
        return Came(frozenset({use}), frozenset(other_weights), behind=frozenset(one.name for one in came.maps))

    def _is_in_heads(self, x: Tensor, came: Came, use: Use) -> bool:
        """Whether a bare parameter maps the channels of one head of an earlier map of the same module."""
        frame = self.stack[-1] if self.stack else None
        if frame is None or x.dim() < 4 or came.products or came.active or not came.maps:
            return False
        is_bare = relative_path(use.name, frame.path) in dict(frame.module.named_parameters(recurse=False))
        own_maps = all(is_inside(one.name, frame.path) for one in came.maps)
        lengths = {one.out_length for one in came.maps}
        is_part = all(length > use.input_size and length % use.input_size == 0 for length in lengths)
        return is_bare and own_maps and is_part

    def _add_candidate(self, kind: list[Candidate], last: Use, came: Came) -> None:
        if last.name in self._parameter_names:
            return
        # maps of earlier attentions (the first block's values) are inputs here, if this one has its own
        inputs = frozenset(use for use in came.maps if use.name not in self._projections)
        if kind is self.flow.attentions and len(inputs) > 1:
            came = replace(came, maps=inputs)
        names = [last.name, *(use.name for use in came.maps)]
        for frame in reversed(self.stack):
            if not frame.path or all(name.startswith(f"{frame.path}.") for name in names):
                self._parameter_names.add(last.name)
                if kind is self.flow.attentions:
                    self._projections.update(names[1:])
                kind.append(Candidate(last, came, frame))
                return


def detach_copy(value: Any) -> Any:
    """Copy arguments as they are now; objects that the call may modify (a key/value cache) are copied deeply."""
    if isinstance(value, dict):
        return {key: detach_copy(item) for key, item in value.items()}
    if type(value) in (tuple, list):
        return type(value)(detach_copy(item) for item in value)
    if isinstance(value, (Tensor, nn.Module)) or not hasattr(value, "__dict__") or callable(value):
        return value
    try:
        return copy.deepcopy(value)
    except Exception:  # an object that cannot be copied is passed unchanged
        return value


def _roles(name: str, args: Any, w: Tensor, weight_first: bool) -> tuple[Axes, Axes]:
    """Return the axes of a weight that are the outputs and the inputs of the map."""
    last = w.dim() - 1
    if name in DIRECT:
        return (0,), (1,)
    if name == "einsum" and isinstance(args[0], str) and "->" in args[0]:
        weight_term, input_term, result = _einsum_terms(args[0], weight_first)
        axes: dict[tuple[bool, bool], list[int]] = defaultdict(list)  # keys: (in input, in result)
        for axis, letter in enumerate(weight_term.replace("...", "")):
            axes[letter in input_term, letter in result].append(axis)
        both, outs, ins = axes[True, True], axes[False, True], axes[True, False]
        if len(ins) == 1:
            outs = both + outs
        return tuple(outs), tuple(ins)
    if weight_first:
        return tuple(range(last)), (last,)
    return (*range(last - 1), last), (last - 1,)


def _einsum_terms(equation: str, weight_first: bool) -> tuple[str, str, str]:
    """Return the letters of the weight, of the input and of the result."""
    operands, _, result = equation.replace(" ", "").partition("->")
    one, other = operands.split(",")[:2]
    return (one, other, result) if weight_first else (other, one, result)


def _mapped_axes(name: str, args: Any, x: Tensor, weight_first: bool) -> Axes | None:
    """Return the axes of the input that the map sums over; None if the call does not show them."""
    if name == "linear":
        return (x.dim() - 1,)
    if name.startswith("conv"):
        return (x.dim() - 1 - int(name[-2]),)
    if name == "einsum" and isinstance(args[0], str) and "->" in args[0] and "." not in args[0]:
        weight_term, input_term, result = _einsum_terms(args[0], weight_first)
        return tuple(i for i, letter in enumerate(input_term) if letter in weight_term and letter not in result)
    if name in ("einsum", "tensordot"):
        return None
    return (x.dim() - (2 if weight_first else 1),)


def iterate_tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in arguments or results, including those in containers."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from iterate_tensors(list(value.values()))
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from iterate_tensors(item)


@contextmanager
def follow(model: nn.Module) -> Iterator[Follower]:
    """Follow the tensors of the forward passes of ``model`` inside the context, without gradients."""
    follower = Follower(model)

    def leave(*_: Any) -> None:
        follower.stack.pop()

    hooks = []
    for path, module in model.named_modules():

        def enter(module: nn.Module, args: Any, kwargs: Any, path: str = path) -> None:
            follower.stack.append(Frame(path, module, detach_copy(args), detach_copy(kwargs)))

        hooks.append(module.register_forward_pre_hook(enter, with_kwargs=True))
        hooks.append(module.register_forward_hook(leave, always_call=True))
    with remove_on_exit(hooks), torch.no_grad(), follower:
        yield follower
