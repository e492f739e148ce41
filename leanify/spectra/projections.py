"""W_q, W_k, W_v and W_o of single heads, from fused, transposed, grouped or interleaved weights."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from leanify.lens import notation
from leanify.lens.located import Site
from leanify.spectra.spectrum import spectra


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


def head_kappas(site: Site) -> dict[str, tuple[float, ...]]:
    """κ of each head's own W_q, W_k, W_v and W_o."""
    return {role: tuple(spectra(weight.detach()).kappa.tolist()) for role, weight in head_weights(site).items()}


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
            lengths.append([_length(part, sizes) for part in factor.strip("()").split("+")])
        shape = [sum(parts) for parts in lengths]
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


def _length(factor: str, sizes: notation.Sizes) -> int:
    return int(factor) if factor.isdigit() else sizes[factor]


def _matrix(module: nn.Module) -> Tensor:
    """The weight as (outputs, inputs): transformers' Conv1D is transposed, convolutions have more axes."""
    weight = module.weight
    assert isinstance(weight, Tensor)
    return weight.T if type(module).__name__ == "Conv1D" else weight.flatten(1)
