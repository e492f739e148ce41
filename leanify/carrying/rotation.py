"""Narrow the residual stream by one rotation into its principal components (after SliceGPT, Ashkboos et al. 2024).

A pre-norm model reads its residual stream only through norms. With the gain of every norm in the projections that
follow it, the stream may be rotated: whatever writes to it is multiplied by Q, and whatever reads it by Qᵀ. The
components with little energy are left out; gains of √(d / k) keep the norms' scale, so that the model stays of
upstream's class. A LayerNorm subtracts a mean: the k new channels sum to zero, which takes one of them.

Which axes of which tensors hold the stream is read: they differ in a model that upstream builds at the new width. Two
checks on data show whether nothing was forgotten: the model at its own width with all components computes the same,
and with the removed components at zero it computes the same as the narrow model.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from leanify.carrying.calibration import collect_outputs, model_divergence, run, token_rows
from leanify.carrying.norms import Affine, common_bias, fold, read_affine
from leanify.carrying.pair import fold_layer_scale
from leanify.carrying.residual import Residual, residuals
from leanify.carrying.teacher import CalibratedTeacher
from leanify.carrying.transfer import Step, TransferResult
from leanify.core.architecture import Architecture
from leanify.core.errors import BudgetError, ShapeError, UnsupportedModel
from leanify.core.units import format_count
from leanify.lens.located import LocatedModel
from leanify.lens.resize import linear_features, weighted_parts
from leanify.profiling.counting import body_parameters, parameters
from leanify.reshaping import surgery
from leanify.reshaping.sites import locate
from leanify.search.narrow_shape import WidthScale, primary_widths
from leanify.upstream.on_disk import deep_copy

PROBE_SAMPLES = 2  # samples on which the blocks are analysed and the result is checked
EXACT, ALIKE = 1e-5, 1e-4  # divergence by rounding alone, and by the norms' eps at another width as well


def rotated_architecture(architecture: Architecture, width: int) -> Architecture:
    """Return the shape at another residual width, with all heads and hidden units. Raises ShapeError."""
    widths = set(primary_widths(architecture))
    if len(widths) != 1 or len(architecture.stages) != 1:
        raise ShapeError("rotated: one rotation needs one list of blocks, all of one width")
    return architecture.map_layers(lambda layer: replace(layer, width=width))


def widest_rotation(shell: nn.Module, architecture: Architecture, limit: int, count: str) -> Architecture:
    """Return the widest shape with at most ``limit`` parameters, of all or of the blocks (``count="body"``).

    ``shell`` is the model on meta. Embeddings that are the output's, too, count twice: a rotation gives the output a
    matrix of its own. Raises BudgetError, and ShapeError for a model that upstream builds at no other width.
    """
    model = copy.deepcopy(shell)
    untie_head(model)

    def size(shape: Architecture) -> int:
        new_model = locate(surgery.write(model, shape))
        return parameters(new_model.model) if count == "all" else body_parameters(new_model)

    # the widest first; upstream cannot build some of them
    scale = WidthScale.read(architecture)
    full_width, full_size = architecture.stages[0].primaries[0].width, size(architecture)
    slope, refusal = 0.0, None  # parameters a channel: heads and MLPs stay, so they are a line in the width
    for unit in scale.smaller_units():
        width = scale.width(unit)
        if slope and full_size - slope * (full_width - width) > limit:
            continue
        shape = rotated_architecture(architecture, width)
        try:
            params = size(shape)
        except ShapeError as error:
            refusal = error
            continue
        if params <= limit:
            return shape
        slope = (full_size - params) / (full_width - width)
    if refusal is not None and not slope:
        raise refusal
    raise BudgetError(f"rotated: no width has at most {format_count(limit)} parameters")


@torch.no_grad()
def rotate(
    teacher: CalibratedTeacher, architecture: Architecture, on_step: Callable[[Step], None] = lambda step: None
) -> TransferResult:
    """Return the teacher at the width of ``architecture``, in the principal components of its residual stream.

    Raises ShapeError for models that a rotation would change: post-norm blocks, several norms outside the blocks,
    constants of the width, residual channels that are the model's output.
    """
    if teacher.headless:
        raise ShapeError("rotated: its head is new, and its outputs below it are the residual stream")
    # a copy whose head has a matrix of its own: the last gain cannot be folded into the embeddings
    model: Any = deep_copy(teacher.model)
    untie_head(model)
    located_model = locate(model)
    narrow_model = surgery.write(model, architecture, weights="fresh")
    rotation = _Rotation(located_model, _differing_axes(model, narrow_model))
    batch = {name: value[:PROBE_SAMPLES] for name, value in teacher.batches[0].items()}
    rotation.fold_norms(batch)

    # all components at the old width; then the leading ones, with channels of zeros and alone
    (width,), (new_width,) = set(primary_widths(teacher.architecture)), set(primary_widths(architecture))
    components = rotation.components(teacher)
    original = collect_outputs(teacher.model, [batch])
    all_components = deep_copy(model)
    rotation.apply(all_components, rotation.basis(components, width), 1.0)
    _check(model_divergence(all_components, [batch], original, False), EXACT, "with all components")
    basis = rotation.basis(components, new_width)
    rotation.apply(all_components, torch.cat([basis, basis.new_zeros(width, width - new_width)], 1), 1.0)
    rotation.apply(narrow_model, basis, math.sqrt(width / new_width))
    error = model_divergence(narrow_model, [batch], collect_outputs(all_components, [batch]), False)
    _check(error, ALIKE, "at the new width")

    damage = model_divergence(narrow_model, teacher.held_out, teacher.outputs, teacher.headless)
    step = Step("rotate", "", (), damage)
    on_step(step)
    return TransferResult(narrow_model, [step], teacher.outputs.unit)


def _check(error: float, bound: float, where: str) -> None:
    if not error <= bound:
        raise ShapeError(f"rotated: {where} it computes something else (divergence {error:.2g}): a rotation changes it")


def untie_head(model: Any) -> None:
    """Give a transformers model whose output embeddings are its input embeddings a matrix of its own for them."""
    config = getattr(model, "config", None)
    if config is None or not getattr(config, "tie_word_embeddings", False):
        return
    head, embeddings = model.get_output_embeddings(), model.get_input_embeddings()
    if head is not None and embeddings is not None and head.weight is embeddings.weight:
        head.weight = nn.Parameter(head.weight.detach().clone())
        config.tie_word_embeddings = False


def _differing_axes(model: nn.Module, narrow_model: nn.Module) -> dict[str, list[int]]:
    """Return the axes of every parameter that hold the residual stream: those that differ at the new width."""
    shapes = {name: tensor.shape for name, tensor in narrow_model.named_parameters()}
    axes: dict[str, list[int]] = {}
    for name, tensor in model.named_parameters():
        if name not in shapes:
            raise ShapeError(f"rotated: {name} is missing at the new width")
        different = [axis for axis in range(tensor.dim()) if tensor.shape[axis] != shapes[name][axis]]
        if different:
            axes[name] = different
    for (name, buffer), (_, new) in zip(model.named_buffers(), narrow_model.named_buffers(), strict=True):
        if buffer.shape != new.shape:
            raise ShapeError(f"rotated: the table {name} is as wide as the stream, and no parameter")
    return axes


@dataclass
class _Rotation:
    """The parts of a model that a rotation changes: the axes of its residual stream, and the gains that were folded."""

    located_model: LocatedModel
    axes: Mapping[str, list[int]]
    gains: dict[str, float] = field(default_factory=dict)  # norm weight → the constant that the norm adds to it
    constants: dict[str, float] = field(default_factory=dict)  # folded biases and LayerScales → their new values
    readers: set[str] = field(default_factory=set)  # the weights that read a norm
    is_centred: bool = False

    @property
    def stage(self) -> str:
        return self.located_model.stages[0].name

    def fold_norms(self, batch: Mapping[str, Tensor]) -> None:
        """Fold the gains of all norms and LayerScales into projections, in place. Raises ShapeError."""
        model = self.located_model.model
        blocks = residuals(self.located_model, self.stage, lambda module: run(module, batch))
        affines: list[Affine] = []
        block_readers: list[dict[int, nn.Module]] = []
        for block in blocks:
            if not isinstance(block, Residual) or block.post_norm:
                reason = "its blocks are post-norm" if isinstance(block, Residual) else str(block)
                raise ShapeError(f"rotated: {reason}")
            # the projections behind each norm of the block; several sublayers may share one
            readers: dict[str, dict[int, nn.Module]] = {}
            for sublayer in block.sublayers:
                gains = readers.setdefault(f"{block.path}.{sublayer.norm}", {})
                parts = weighted_parts(sublayer.site.module, sublayer.readers).values()
                gains.update((id(module), module) for module in parts)
                if sublayer.scale:
                    fold_layer_scale(block.block, sublayer)
                    self.constants[f"{block.path}.{sublayer.scale}"] = 1.0
            affines += [self._fold_norm(path, [*modules.values()]) for path, modules in readers.items()]
            block_readers += readers.values()

        # the norm behind the last block, and what reads it: all maps outside whose inputs are the stream
        norms: list[str] = []
        heads: list[nn.Module] = []
        for path, module in model.named_modules():
            name = f"{path}.weight"
            if path.startswith(f"{self.stage}.") or name not in self.axes:
                continue
            if "Norm" in type(module).__name__ and module.weight.dim() == 1:
                norms.append(path)
            elif isinstance(module, nn.Linear) and self.axes[name] == [linear_features(module).input_axis]:
                heads.append(module)
        if len(norms) != 1 or not heads:
            raise ShapeError(
                f"rotated: it needs one norm behind the blocks and a head that reads it, and {len(norms)} norms and "
                f"{len(heads)} heads are outside the blocks"
            )
        affines.append(self._fold_norm(norms[0], heads))
        if len({affine.is_centred for affine in affines}) > 1:
            raise ShapeError("rotated: some of its norms subtract the mean, and others do not")
        self.is_centred = affines[0].is_centred
        reader_ids = {id(module) for module in heads} | {key for modules in block_readers for key in modules}
        self.readers = {f"{path}.weight" for path, module in model.named_modules() if id(module) in reader_ids}

    def _fold_norm(self, path: str, readers: list[nn.Module]) -> Affine:
        """Fold a norm into what reads it, and return it as it was."""
        norm = self.located_model.model.get_submodule(path)
        try:
            affine = read_affine(norm, path)
            constant = common_bias([affine], readers)
        except UnsupportedModel as error:
            raise ShapeError(f"rotated: {error}") from error
        for reader in readers:
            fold(affine, reader, constant)
        self.gains[f"{path}.weight"] = affine.offset
        if isinstance(getattr(norm, "bias", None), Tensor):
            self.constants[f"{path}.bias"] = constant
        return affine

    def components(self, teacher: CalibratedTeacher) -> Tensor:
        """Return the principal components (d, d) of the normalised states before all blocks, the largest first."""
        width = teacher.architecture.stages[0].primaries[0].width
        second = torch.zeros(width, width, dtype=torch.float64)
        if teacher.call_traces[self.stage] is None:
            raise ShapeError("rotated: its blocks cannot be recorded one by one")
        for index in range(len(self.located_model.stages[0].blocks)):
            for mask, call in teacher.calls(self.stage, index):
                states = token_rows(call.state, mask).double()
                states = states - states.mean(-1, keepdim=True) if self.is_centred else states
                states = nn.functional.normalize(states, dim=-1)  # a norm follows wherever they are read
                second += states.T @ states
        if self.is_centred:  # the direction of the mean carries nothing, and comes last
            second -= second.trace() * torch.full_like(second, 1 / width)
        components: Tensor = torch.linalg.eigh(second).eigenvectors.flip(1)
        return components

    def basis(self, components: Tensor, count: int) -> Tensor:
        """Return the map (d, count) to the new channels, which sum to zero for a LayerNorm."""
        if not self.is_centred:
            return components[:, :count]
        ones = torch.ones(count, 1, dtype=components.dtype)
        sum_free = torch.linalg.qr(torch.cat([ones, torch.eye(count, count - 1, dtype=components.dtype)], 1)).Q[:, 1:]
        basis: Tensor = components[:, : count - 1] @ sum_free.T
        return basis

    def apply(self, target: nn.Module, basis: Tensor, gain: float) -> None:
        """Set the parameters of ``target`` to the folded model's in another basis of the residual stream."""
        # a norm without a mean may add a constant to all channels, which its readers see as before
        count = int(basis.any(0).sum())
        reader_basis = basis + basis.any(0) / count if self.is_centred else basis
        parameters = dict(target.named_parameters())
        for name, tensor in self.located_model.model.named_parameters():
            value = tensor.detach().double()
            if name in self.gains:
                value = torch.full_like(parameters[name], gain - self.gains[name])
            elif name in self.constants:
                value = torch.full_like(parameters[name], self.constants[name])
            else:
                for axis in self.axes.get(name, ()):
                    maps = reader_basis if name in self.readers else basis
                    value = (value.movedim(axis, -1) @ maps).movedim(-1, axis)
            parameters[name].copy_(value)
