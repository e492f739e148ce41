"""Measure the singular values of the concatenated heads A = [A_1 … A_h], layer by layer.

A is the input of the output projection, so one hook per layer captures it in every family, even with fused
kernels, and without changing model code. Spectra are computed inside the hook, then A is freed: memory does
not grow with layers or samples, and a probe costs one forward pass plus the spectra.

    probe = leanify.condition(model, inputs)
    probe.layers[0].name, .kappas (one per sample), .kappa (their mean), .spectrum (mean, descending)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from leanify.core.errors import SourceError, UnsupportedModel
from leanify.core.units import format_names
from leanify.lens import notation
from leanify.lens.families import find_row
from leanify.lens.forwards import free
from leanify.lens.located import LocatedLayer, Site
from leanify.reshaping.sites import locate
from leanify.spectra.results import LayerProbe, Probe, Sample
from leanify.spectra.spectrum import Spectra, spectra
from leanify.upstream.example_inputs import inputs_by_name
from leanify.upstream.inputs import knows_input
from leanify.upstream.libraries import reraise_as
from leanify.upstream.origin import get_example, remove_on_exit

ModelInputs = Tensor | Mapping[str, Tensor]

CHANNELS = "A_i = V_i·M_i: the attention maps M_i are head_dim × head_dim, over channels, not tokens"
OBJECTS = {
    "timm.models.xcit.XCA": CHANNELS,
    "timm.models.edgenext.CrossCovarianceAttn": CHANNELS,
    "timm.models.davit.ChannelAttention": CHANNELS,
    "timm.models.davit.ChannelAttentionV2": CHANNELS,
    "timm.models.coat.FactorAttnConvRelPosEnc": "A_i = Q_i·softmax(K_i)ᵀ·V_i plus a convolution, no softmax(q kᵀ)",
    "timm.models.volo.OutlookAttention": "A_i sums windows of V_i under weights of a linear map, no softmax(q kᵀ)",
}
"""What A_i is where it is not softmax(q kᵀ) v over tokens; theory is not compared with these."""


def condition(
    model: nn.Module,
    inputs: ModelInputs | Iterable[ModelInputs],
    *,
    batch_size: int = 16,
    per_head: bool = False,
    weights: bool = False,
    on_batch: Callable[[int], None] | None = None,
) -> Probe:
    """Probe every layer's A on ``inputs``: one batch of any length (it is split), or an iterable of batches.

    A module of the user's own may take a tuple of arguments, or a dictionary, as its one batch.

    Tokens that an ``attention_mask`` (batch, tokens) masks out are excluded from A. ``per_head`` and
    ``weights`` add κ of single heads and of their weights. ``on_batch`` is called with the number of samples
    done. The model is unchanged afterwards, including its training mode.

    Raises UnsupportedModel without attention, and SourceError without samples or if weights or heads
    are not finite.

    >>> import leanify, torch
    >>> model = leanify.load("vit_tiny", overrides={"depth": 2, "img_size": 32})
    >>> probe = leanify.condition(model, torch.randn(2, 3, 32, 32))
    >>> [layer.rank for layer in probe.layers]  # of 5 tokens
    [5, 5]
    """
    module_inputs: Any = None  # one batch by argument, of a module of the user's own
    if isinstance(inputs, (Tensor, Mapping, tuple)) and (get_example(model) is not None or not knows_input(model)):
        module_inputs = inputs = inputs_by_name(model, inputs)
    # a recorder for each layer, on the input of its output projection: A, the concatenated heads
    recorders = [_Recorder(layer, per_head) for layer in locate(model, module_inputs).layers]
    # the fast sum may overflow
    weights_by_name = {name: parameter.detach() for name, parameter in model.named_parameters()}
    not_finite = [name for name, w in weights_by_name.items() if not math.isfinite(w.sum()) and not w.isfinite().all()]
    if not_finite:
        raise SourceError(f"weights are NaN or infinite in {format_names(not_finite)}: no spectrum is defined")
    sample_count = 0
    handles = [recorder.layer.output.register_forward_pre_hook(recorder) for recorder in recorders]
    with remove_on_exit(handles), _probing(model), torch.inference_mode():
        # forward passes, batch by batch
        for batch in _cut(inputs, batch_size):
            for recorder in recorders:
                recorder.begin(batch)
            with reraise_as(f"{type(model).__name__} does not run on this input"):
                model(**batch) if isinstance(batch, Mapping) else model(batch)
            sample_count += _length(batch)
            if on_batch is not None:
                on_batch(sample_count)
    if not sample_count:
        raise SourceError("condition was given no samples; it needs at least one")
    # layers that no pass called, and the results of the others
    unseen = tuple(recorder.layer.attention.path for recorder in recorders if not recorder.calls)
    layers = tuple(chain.from_iterable(recorder.layers(weights) for recorder in recorders))
    if not layers:
        raise UnsupportedModel(f"a forward pass calls none of the output projections: {', '.join(unseen[:3])}, …")
    return Probe(layers, unseen)


@contextmanager
def _probing(model: nn.Module) -> Iterator[None]:
    """Evaluate, without dropout, and let torch's own attention call its output projection, where a hook sees its input.

    Its forward hands the projection's weights to a kernel; here it computes the same by our forward.
    """
    training = [module for module in model.modules() if module.training]
    # torch's own attention multiplies by the output's weight itself; a subclass calls the projection
    modules = [module for module in model.modules() if type(module) is nn.MultiheadAttention]
    modules = [module for module in modules if find_row(module) is not None]
    # its fast path would skip the projection, too
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        for module in modules:
            free(module)
        model.eval()
        yield
    finally:
        for part in training:
            part.training = True
        torch.backends.mha.set_fastpath_enabled(fast)
        for module in modules:
            module.__class__ = nn.MultiheadAttention


def _length(batch: ModelInputs) -> int:
    first = next(iter(batch.values())) if isinstance(batch, Mapping) else batch
    return len(first)


def _cut(inputs: ModelInputs | Iterable[ModelInputs], size: int) -> Iterator[ModelInputs]:
    batches = [inputs] if isinstance(inputs, (Tensor, Mapping)) else inputs
    for batch in batches:
        length = _length(batch)
        for start in range(0, length, size):
            if not isinstance(batch, Mapping):
                yield batch[start : start + size]
                continue
            piece = dict(batch)
            for name, value in batch.items():
                if isinstance(value, Tensor) and value.dim() > 0 and len(value) == length:
                    piece[name] = value[start : start + size]
            yield piece


# -- the hook ----------


class _Recorder:
    """Records A of one layer over batches. A module called several times a pass counts as several layers."""

    def __init__(self, layer: LocatedLayer, per_head: bool) -> None:
        self.layer, self.per_head = layer, per_head
        self.output = layer.output  # raises for anything but a module
        self.columns = output_columns(layer.attention)  # (heads, head_dim) in A
        self.calls: list[_Record] = []

    def begin(self, batch: ModelInputs) -> None:
        """Prepare for one forward pass."""
        self.size, self.call = _length(batch), 0
        mask = batch.get("attention_mask") if isinstance(batch, Mapping) else None
        self.mask = mask.bool() if mask is not None and mask.dim() == 2 and not mask.all() else None

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        # the record of this call: a module may be called several times in one pass
        if self.call == len(self.calls):
            self.calls.append(_Record())
        record = self.calls[self.call]
        self.call += 1
        # A as (samples, windows, tokens, inner)
        a = self._windows(args[0].detach())
        several = [a.flatten(0, 1)]  # (matrices, tokens, inner)
        # padding is left out, sample by sample
        if self.mask is not None and a.shape[1:3] == (1, self.mask.shape[1]):  # one per sample, without padding
            several = [sample[:, keep] for sample, keep in zip(a, self.mask, strict=True) if keep.any()]
        for matrices in several:
            batch_spectra = spectra(matrices)
            if batch_spectra.values.isnan().any():
                raise SourceError(
                    f"{self.layer.attention.path}: its concatenated heads hold NaN or infinite values, so they have no "
                    "spectrum; all weights are finite: look at the input, or at the precision"
                )
            # one spectrum for each matrix (tokens × inner)
            record.add(batch_spectra, matrices.shape[1], windows=a.shape[1])
            if self.per_head:  # κ of each A_i (tokens × head_dim): (matrices, heads)
                split = matrices[..., (self.columns - self.columns.min()).to(matrices.device)].movedim(-2, 1)
                record.heads.append(spectra(split.flatten(0, 1)).kappa.view(len(matrices), len(self.columns)))

    def _windows(self, a: Tensor) -> Tensor:
        """A as (batch, windows, tokens, inner), from (batch · windows, tokens, inner), images or a row."""
        if isinstance(self.layer.output, nn.modules.conv._ConvNd):
            a = a.movedim(1, -1)
        if a.shape[-1] > self.columns.numel():  # in a parallel block, the output projection also reads hidden units
            a = a[..., self.columns.flatten().to(a.device)]
        if len(a) % self.size or a.shape[-1] != self.columns.numel():
            raise UnsupportedModel(
                f"{self.layer.output_path} takes a tensor of shape {tuple(a.shape)} for {self.size} samples of inner "
                f"width {self.columns.numel()}: which of its axes holds the tokens is not known"
            )
        a = a.reshape(self.size, -1, a.shape[-1]) if a.dim() == 2 else a.flatten(1, -2)
        return a.reshape(self.size, -1, *a.shape[1:])

    def layers(self, weights: bool) -> Iterator[LayerProbe]:
        """Yield the results, one per call of the module in a forward pass."""
        # heads and head_dim as the projection lays them out
        site = self.layer.attention
        heads, head_dim = self.columns.shape
        other = site.reading.object or OBJECTS.get(site.reading.name, "")
        head_kappas: dict[str, tuple[float, ...]] = {}
        if weights:
            for role, weight in head_weights(site).items():
                head_kappas[role] = tuple(spectra(weight.detach()).kappa.tolist())
        for index, record in enumerate(self.calls):
            call = f" (call {index + 1})" if index else ""
            yield LayerProbe(
                name=f"{site.path}{call}",
                inner=self.columns.numel(),
                heads=heads,
                head_dim=head_dim,
                object=record.describe(other),
                mixes_tokens=not other,
                samples=tuple(record.samples),
                spectrum=tuple((record.total / record.count).tolist()),
                per_head=tuple(torch.cat(record.heads).mean(0).tolist()) if record.heads else (),
                weights=head_kappas,
            )


class _Record:
    """Accumulated results of one layer: a few numbers per sample, and the sum of the spectra."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self.total = torch.zeros(0, dtype=torch.float64)
        self.count = torch.zeros(0, dtype=torch.float64)
        self.heads: list[Tensor] = []
        self.windows = 1

    def add(self, spectra: Spectra, tokens: int, windows: int) -> None:
        """Add (samples · windows) spectra."""
        # columns: κ, three ranks, extreme singular values, error, bounds
        values = spectra.values
        ranks = (spectra.rank.double(), spectra.stable_rank, spectra.effective_rank)
        table = torch.stack(
            [spectra.kappa, *ranks, values[:, 0], values[:, -1], spectra.error, spectra.low, spectra.high], dim=1
        )
        # a sample with several windows has the mean over them
        self.samples += [Sample(tokens, *row) for row in table.view(-1, windows, 9).mean(1).tolist()]
        self.windows = windows
        # the mean spectrum, as long as the longest
        k = values.shape[1]
        longer = (0, max(0, k - len(self.total)))
        self.total, self.count = nn.functional.pad(self.total, longer), nn.functional.pad(self.count, longer)
        self.total[:k] += values.sum(0)
        self.count[:k] += len(values)

    def describe(self, other: str) -> str:
        """Describe what kind of matrix A is."""
        if max(sample.tokens for sample in self.samples) == 1:
            return "one token × inner: a vector, so there is no κ"
        where = f"tokens × inner, in each of {self.windows} windows" if self.windows > 1 else "tokens × inner"
        return f"{where}, {other}" if other else where


# -- weights of single heads: from fused, transposed, grouped or interleaved projections ----------


def head_weights(site: Site) -> dict[str, Tensor]:
    """The weights of heads: "q", "k", "v" (heads, head_dim, width), "o" (heads, width, head_dim)."""
    weights: dict[str, Tensor] = {}
    for part, how in site.reading.rows.items():
        module = _module(site.module, part)
        if module is None or not {"h", "g"} & notation.symbols(how):
            continue
        maps = list(_maps(how, site.sizes))
        for role, rows in zip(_roles(part, len(maps)), maps, strict=True):
            weights[role] = _matrix(module)[rows]
    weights["o"] = _matrix(_output(site)[1])[:, output_columns(site)].movedim(0, 1)
    return {role: weights[role] for role in "qkvo" if role in weights}


def output_columns(site: Site) -> Tensor:
    """The columns of each head's channels in A, the input of the output projection: (heads, head_dim)."""
    (columns,) = _maps(_output(site)[0], site.sizes, is_stacked=False)
    return columns


def _output(site: Site) -> tuple[str, nn.Module]:
    """The layout and the module of the output projection; other maps with heads may follow it."""
    layouts = ((how, _module(site.module, part)) for part, how in site.reading.columns.items())
    return next((how, module) for how, module in layouts if module is not None and "h" in notation.symbols(how))


def _module(owner: nn.Module, path: str) -> nn.Module | None:
    """The linear map at a path; None if it is absent or a norm."""
    for name in path.split("."):
        owner = getattr(owner, name, None)  # type: ignore[assignment]
    weight = getattr(owner, "weight", None)
    return owner if isinstance(weight, Tensor) and weight.dim() > 1 else None


def _roles(part: str, count: int) -> str:
    """Which of q, k and v a projection contains: by its name (``kv``, ``qk``), or all three, or none."""
    name = part.rpartition(".")[2]
    letters = name.split("_")[0]
    if count == 3:
        return "qkv"
    if len(letters) == count and set(letters) <= set("qkv"):
        return letters
    return name[0] if count == 1 and name[0] in "qkv" else "-" * count


def _maps(how: str, sizes: notation.Sizes, is_stacked: bool = True) -> Iterator[Tensor]:
    """Index grids (heads, channels) of the maps in a layout: three in "3 h d", "h (d+d+v)", "h d | g d | g d".

    With ``stacked=False`` a number belongs to the channels: "h 2 d" is one map with heads of 2 d channels.
    """
    start = 0
    for factors in notation.parse(how):
        # lengths of the parts of each factor: "(d+d+v)" has three
        lengths = []
        for factor in factors:
            parts = factor.strip("()").split("+")
            lengths.append([int(part) if part.isdigit() else sizes[part] for part in parts])
        shape = list(map(sum, lengths))
        # the channels of this map, as an index grid of the layout's axes
        grid = torch.arange(start, start + torch.Size(shape).numel()).view(shape)
        start += grid.numel()
        heads = next((axis for axis, factor in enumerate(factors) if factor in "hg"), None)
        if heads is None:  # the hidden units of a parallel block
            continue
        # axes of numbers ("3" stacked maps), of heads, and of channels
        numbers = [axis for axis, factor in enumerate(factors) if factor.isdigit() and is_stacked]
        channels = [axis for axis in range(len(factors)) if axis not in (heads, *numbers)]
        fused_axis = next((axis for axis, parts in enumerate(lengths) if len(parts) > 1), heads)
        # one grid (heads, channels) for each fused part and each stacked map
        for piece in torch.split(grid, lengths[fused_axis], fused_axis):
            width = torch.Size(piece.shape[axis] for axis in channels).numel()
            yield from piece.permute(*numbers, heads, *channels).reshape(-1, shape[heads], width)


def _matrix(module: nn.Module) -> Tensor:
    """The weight as (outputs, inputs): transformers' Conv1D is transposed, convolutions have more axes."""
    weight = module.weight
    assert isinstance(weight, Tensor)
    return weight.T if type(module).__name__ == "Conv1D" else weight.flatten(1)
