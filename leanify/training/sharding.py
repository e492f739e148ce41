"""Weights, gradients and moments spread over processes, block by block: torch's ``fully_shard`` (FSDP2).

A block's weights are gathered for its forward and its backward pass and dropped again; what stands outside every block
(embeddings, the last norm, the head) is gathered once a step. Each process keeps 1 / world of the rows of every tensor,
of its gradient and of its moments.

Accelerate launches, places and casts as it does without sharding. Its own FSDP2 path is not taken: it wraps blocks by
the names of classes and does not run on a CPU, and here blocks are those that `lens.sites.locate` found, in every
family, and gloo tests them. The first process builds the model in host memory, the others on ``meta``; rows are handed
out tensor by tensor, so that no device ever holds the whole model.
"""

from __future__ import annotations

import os
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

SHARDED = ("adamw", "sgd")  # optimisers that treat each number of a tensor by itself, so that rows may be apart


LAUNCHER = "ACCELERATE_USE_FSDP"  # what accelerate launch --use_fsdp sets


def asked(recipe: Recipe) -> bool:
    """Whether the recipe, or the configuration of ``accelerate launch``, wants a sharded model in several processes."""
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
    """The model in place, its rows handed out from the first process. Raises RecipeError for one that cannot be.

    ``half``: weights are gathered, and the blocks computed, in bfloat16; gradients are added up in float32.
    ``compiled``: torch.compile's mode, for each block by itself, so that what is gathered around it stays outside the
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
        _hand_out(tensor, held.pop(name), device)


def drop(model: nn.Module) -> None:
    """Drop gathered weights: without a backward pass, those outside the blocks stay, and are no rows meanwhile."""
    if hasattr(model, "reshard"):
        model.reshard()  # type: ignore[operator]


def units_of(model: nn.Module) -> list[nn.Module]:
    """The blocks that share no parameter with what stands outside them, each once, inner ones first."""
    owners: dict[int, int] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            owners[id(parameter)] = owners.get(id(parameter), 0) + 1

    def alone(block: nn.Module) -> bool:
        inside: dict[int, int] = {}
        for module in block.modules():
            for parameter in module.parameters(recurse=False):
                inside[id(parameter)] = inside.get(id(parameter), 0) + 1
        return bool(inside) and all(count == owners[key] for key, count in inside.items())

    try:
        blocks = {id(block): block for block in locate(model).blocks}.values()
    except UnsupportedModel:  # a map between layers, a model without attention: one unit
        return []
    depth = {id(module): len(path.split(".")) for path, module in model.named_modules()}
    return sorted((block for block in blocks if alone(block)), key=lambda block: -depth[id(block)])


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


def _hand_out(tensor: Tensor, held: Tensor, device: torch.device) -> None:
    """Fill a tensor, or the rows of it that this process keeps, with what the first process holds."""
    first = dist.get_rank() == 0
    whole = held.to(device) if first else torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
    whole = whole.contiguous()
    dist.broadcast(whole, 0)
    with torch.no_grad():
        fill(tensor, whole)


@torch.no_grad()
def fill(tensor: Tensor, whole: Tensor) -> None:
    """Copy a whole tensor, or this process's rows of it, into place."""
    if is_spread(tensor):
        mine, rows = rows_of(tensor)
        mine.copy_(whole[rows])
    else:
        tensor.copy_(whole)


def is_spread(tensor: Any) -> bool:
    """Whether each process holds some of a tensor's rows. (A DTensor; importing its class takes most of a second.)"""
    return hasattr(tensor, "to_local")


def rows_of(tensor: Any) -> tuple[Tensor, slice]:
    """The rows of a spread tensor that this process holds, and which these are: they are cut as by `torch.chunk`."""
    mine, most = tensor.to_local(), -(-tensor.shape[0] // tensor.device_mesh.size())
    start = tensor.device_mesh.get_local_rank() * most
    return mine, slice(start, start + len(mine))


# -- moments ----------------------------------------------------------------------------------------------------------


def moments_of(optimizer: Any, model: nn.Module) -> dict[str, Tensor]:
    """What an optimiser keeps of each parameter, by ``optimizer/NAME/KEY``."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        f"optimizer/{names[id(parameter)]}/{key}": value
        for parameter, kept in optimizer.state.items()
        for key, value in kept.items()
    }


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
        mine[place] = {key: _as_rows(value, order[place]) for key, value in kept.items()}
    return {**state, "state": mine}


def _as_rows(value: Any, parameter: Tensor) -> Any:
    if not isinstance(value, Tensor) or not is_spread(parameter) or value.shape != parameter.shape:
        return value
    made = torch.zeros_like(parameter.detach())
    fill(made, value.to(made.device))
    return made
