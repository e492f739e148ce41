"""Weights, gradients and moments spread over processes, block by block: torch's ``fully_shard`` (FSDP2).

A block's weights are gathered for its forward and its backward pass and dropped again; what stands outside
every block (embeddings, the last norm, the head) is gathered once a step. Each process keeps 1 / world of the
rows of every tensor, of its gradient and of its moments.

Accelerate launches, places and casts as it does without sharding. Its own FSDP2 path is not taken: it wraps
blocks by the names of classes and does not run on a CPU, and here blocks are those that `lens.sites.locate`
found, in every family, and gloo tests them. The first process builds the model in host memory, the others on
``meta``; rows are handed out tensor by tensor, so that no device ever holds the whole model.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from leanify import machine
from leanify.errors import RecipeError, UnsupportedModel
from leanify.lens.sites import locate
from leanify.runs.recipe import Recipe

SHARDED = ("adamw", "sgd")  # optimisers that treat each number by itself, so that rows may be apart
LAUNCHER = "ACCELERATE_USE_FSDP"  # what accelerate launch --use_fsdp sets


def asked(recipe: Recipe) -> bool:
    """Whether the recipe, or ``accelerate launch``, wants a sharded model in several processes."""
    wanted = recipe.parallel.shard or os.environ.get(LAUNCHER, "false").lower() == "true"
    return wanted and machine.launched("WORLD_SIZE", 1) > 1


@contextmanager
def apart_from_accelerate() -> Iterator[None]:
    """Hide the launcher's request to shard from Accelerate: leanify shards by itself."""
    asked_for = os.environ.pop(LAUNCHER, None)
    try:
        yield
    finally:
        if asked_for is not None:
            os.environ[LAUNCHER] = asked_for


def check(recipe: Recipe, precision: str) -> None:
    """Raise RecipeError for what cannot be sharded."""
    if recipe.optim is not None and recipe.optim.name not in SHARDED:
        raise RecipeError(
            f"optim.name is {recipe.optim.name!r}, which needs whole tensors; sharded training takes "
            f"{' or '.join(SHARDED)}, or --set parallel.shard=false"
        )
    if precision == "fp16":
        raise RecipeError("run.precision is fp16, whose loss scaling is not sharded; --set run.precision=bf16 or fp32")
    if os.environ.get("FSDP_OFFLOAD_PARAMS", "false").lower() == "true":
        raise RecipeError("the launcher asks for weights in host memory (fsdp_offload_params), which is not supported")


def shard(model: nn.Module, device: torch.device, half: bool, compiled: str | None = None) -> None:
    """Shard the model in place, its rows handed out from the first process. Raises RecipeError.

    ``half``: weights are gathered, and the blocks computed, in bfloat16; gradients are added up in float32.
    ``compiled``: torch.compile's mode, for each block by itself, so that the gathering stays outside the
    graph.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    if scalars := [name for name, tensor in model.named_parameters() if tensor.ndim == 0]:
        raise RecipeError(
            f"{', '.join(scalars[:3])}: a parameter without rows cannot be sharded; --set parallel.shard=false"
        )
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if half else MixedPrecisionPolicy()
    units = units_of(model)
    held = {name: tensor.detach() for name, tensor in _tensors(model)}
    _to_meta(model)
    for unit in units:
        unit.compile(mode=compiled) if compiled else None
        fully_shard(unit, mesh=mesh, mp_policy=policy)
    frozen = not any(parameter.requires_grad for parameter in model.parameters())
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=True if frozen else None)
    model.to_empty(device=device)
    for name, tensor in _tensors(model):
        whole = held.pop(name)
        if dist.get_rank():
            whole = torch.empty(tensor.shape, dtype=tensor.dtype)
        whole = whole.to(device).contiguous()
        dist.broadcast(whole, 0)
        fill(tensor, whole)


def drop(model: nn.Module) -> None:
    """Drop gathered weights: without a backward pass, those outside the blocks would stay."""
    if hasattr(model, "reshard"):
        model.reshard()  # type: ignore[operator]


def units_of(model: nn.Module) -> list[nn.Module]:
    """The blocks that share no parameter with what stands outside them, each once, inner ones first."""
    try:
        blocks = {id(block): block for block in locate(model).blocks}.values()
    except UnsupportedModel:  # a map between layers, a model without attention: one unit
        return []
    owners = _owners(model)
    depth = {id(module): len(path.split(".")) for path, module in model.named_modules()}
    alone = []
    for block in blocks:
        inside = _owners(block)
        if inside and all(count == owners[key] for key, count in inside.items()):
            alone.append(block)
    return sorted(alone, key=lambda block: -depth[id(block)])


def _owners(module: nn.Module) -> Counter[int]:
    """How many modules have each parameter, by the parameter's id."""
    found: Counter[int] = Counter()
    for part in module.modules():
        found.update(id(parameter) for parameter in part.parameters(recurse=False))
    return found


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers, tied ones once."""
    yield from model.named_parameters()
    yield from model.named_buffers()


def _to_meta(model: nn.Module) -> None:
    """Replace every parameter by one without memory; tied ones stay tied."""
    empty: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, held in module._parameters.items():
            if held is not None:
                new = nn.Parameter(torch.empty_like(held, device="meta"), held.requires_grad)
                module._parameters[name] = empty.setdefault(id(held), new)


@torch.no_grad()
def fill(tensor: Tensor, whole: Tensor) -> None:
    """Copy a whole tensor, or this process's rows of it, into place."""
    if is_spread(tensor):
        mine, rows = rows_of(tensor)
        mine.copy_(whole[rows])
    else:
        tensor.copy_(whole)


def is_spread(tensor: Any) -> bool:
    """Whether a process holds some rows of a tensor: a DTensor, whose class is slow to import."""
    return hasattr(tensor, "to_local")


def rows_of(tensor: Any) -> tuple[Tensor, slice]:
    """The rows of a spread tensor that this process holds, and which: they are cut as by `torch.chunk`."""
    mine, most = tensor.to_local(), -(-tensor.shape[0] // tensor.device_mesh.size())
    start = tensor.device_mesh.get_local_rank() * most
    return mine, slice(start, start + len(mine))


def moments_of(optimizer: Any, model: nn.Module) -> dict[str, Tensor]:
    """What an optimiser keeps of each parameter, by ``optimizer/NAME/KEY``."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found = {}
    for parameter, kept in optimizer.state.items():
        for key, value in kept.items():
            found[f"optimizer/{names[id(parameter)]}/{key}"] = value
    return found


def empty_moments(sizes: Mapping[str, torch.Size], model: nn.Module) -> dict[str, Tensor]:
    """Tensors to read moments into: spread as their parameters are, or whole."""
    found = {}
    parameters = dict(model.named_parameters())
    for name, size in sizes.items():
        kind, _, rest = name.partition("/")
        if kind == "optimizer":
            parameter = parameters[rest.rpartition("/")[0]].detach()
            found[name] = torch.zeros_like(parameter) if size == parameter.shape else torch.zeros(size)
    return found


def put_moments(optimizer: Any, model: nn.Module, moments: Mapping[str, Tensor]) -> None:
    """Give an optimiser what `moments_of` gave."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    known = optimizer.state_dict()
    order = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for place, parameter in enumerate(order):
        start = f"optimizer/{names[id(parameter)]}/"
        kept = {name.removeprefix(start): value for name, value in moments.items() if name.startswith(start)}
        if kept:
            state[place] = kept
    optimizer.load_state_dict({"state": state, "param_groups": known["param_groups"]})


def spread(state: Mapping[str, Any], optimizer: Any) -> dict[str, Any]:
    """An optimiser's whole state, as one process wrote it, with this process's rows of each moment."""
    order: list[Any] = []
    for group in optimizer.param_groups:
        order += group["params"]
    mine = {}
    for place, kept in state["state"].items():
        mine[place], parameter = dict(kept), order[place]
        for key, value in kept.items():
            if isinstance(value, Tensor) and is_spread(parameter) and value.shape == parameter.shape:
                rows = torch.zeros_like(parameter.detach())
                fill(rows, value.to(rows.device))
                mine[place][key] = rows
    return {**state, "state": mine}
