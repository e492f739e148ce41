"""Weights, gradients and moments sharded over processes, block by block, with torch's ``fully_shard`` (FSDP2).

A block's weights are gathered for its forward and its backward pass and freed again; the weights outside every
block (embeddings, the last norm, the head) are gathered once a step. Each process keeps 1 / world of the rows
of every tensor, of its gradient and of its moments.

Accelerate's own FSDP2 path is not taken: it wraps blocks by class names and does not run on a CPU. Here
`reshaping.sites.locate` finds the blocks of every family. The first process builds the model in host memory, the
others on ``meta``; rows are handed out tensor by tensor, so that no device ever holds the full model.
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

from leanify.core import machine
from leanify.core.errors import RecipeError, UnsupportedModel
from leanify.core.recipe import Recipe
from leanify.reshaping.sites import locate

OPTIMIZERS = ("adamw", "sgd")  # elementwise updates, which any rows can do by themselves
LAUNCHER = "ACCELERATE_USE_FSDP"  # what accelerate launch --use_fsdp sets


def is_requested(recipe: Recipe) -> bool:
    """Whether the recipe, or ``accelerate launch``, requests a sharded model in several processes."""
    is_on = recipe.parallel.shard or os.environ.get(LAUNCHER, "false").lower() == "true"
    return is_on and machine.launcher_variable("WORLD_SIZE", 1) > 1


@contextmanager
def hidden_from_accelerate() -> Iterator[None]:
    """Hide the launcher's request to shard from Accelerate: leanify shards by itself."""
    value = os.environ.pop(LAUNCHER, None)
    try:
        yield
    finally:
        if value is not None:
            os.environ[LAUNCHER] = value


def check(recipe: Recipe, precision: str) -> None:
    """Raise RecipeError for settings that sharded training does not support."""
    if recipe.optim is not None and recipe.optim.name not in OPTIMIZERS:
        raise RecipeError(
            f"optim.name is {recipe.optim.name!r}, which needs whole tensors; sharded training takes "
            f"{' or '.join(OPTIMIZERS)}, or --set parallel.shard=false"
        )
    if precision == "fp16":
        raise RecipeError("run.precision is fp16, whose loss scaling is not sharded; --set run.precision=bf16 or fp32")
    if os.environ.get("FSDP_OFFLOAD_PARAMS", "false").lower() == "true":
        raise RecipeError("the launcher asks for weights in host memory (fsdp_offload_params), which is not supported")


def shard(model: nn.Module, device: torch.device, half: bool, compile_mode: str | None = None) -> None:
    """Shard the model in place, its rows handed out by the first process. Raises RecipeError.

    ``half``: weights are gathered, and the blocks computed, in bfloat16; gradients are added up in float32.
    ``compile_mode``: torch.compile's mode, for each block by itself: the gathering stays outside the graph.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    # every parameter needs rows
    if scalars := [name for name, tensor in model.named_parameters() if tensor.ndim == 0]:
        raise RecipeError(
            f"{', '.join(scalars[:3])}: a parameter without rows cannot be sharded; --set parallel.shard=false"
        )
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if half else MixedPrecisionPolicy()
    blocks = shardable_blocks(model)

    # keep the values of the first process, then shard a model without memory
    weights = {name: tensor.detach() for name, tensor in model.named_parameters()}
    buffers = {name: tensor.clone() for name, tensor in model.named_buffers()}
    replacements: dict[int, nn.Parameter] = {}
    for module in model.modules():  # tied parameters stay tied, which `Module.to` would untie
        for name, parameter in module._parameters.items():
            if parameter is not None:
                empty = nn.Parameter(torch.empty_like(parameter, device="meta"), parameter.requires_grad)
                module._parameters[name] = replacements.setdefault(id(parameter), empty)
    for block in blocks:
        if compile_mode:
            block.compile(mode=compile_mode)
        fully_shard(block, mesh=mesh, mp_policy=policy)
    is_frozen = not any(parameter.requires_grad for parameter in model.parameters())
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=True if is_frozen else None)
    model.to_empty(device=device)

    # hand out the rows of weights, and all of every buffer, those that a state dict leaves out too
    load_full(model, weights)
    for name, buffer in model.named_buffers():
        if dist.get_rank() == 0:
            buffer.copy_(buffers[name])
        dist.broadcast(buffer, 0)


def reshard(model: nn.Module) -> None:
    """Free gathered weights: without a backward pass, those outside the blocks would stay."""
    if is_sharded(model):
        model.reshard()  # type: ignore[operator]


def is_sharded(model: nn.Module) -> bool:
    return hasattr(model, "reshard")  # FSDPModule, whose class is slow to import


def shardable_blocks(model: nn.Module) -> list[nn.Module]:
    """The blocks that share no parameter with modules outside them, each once, inner ones first."""
    # located blocks, each once: models may call one block several times
    try:
        blocks = {id(block): block for block in locate(model).blocks}.values()
    except UnsupportedModel:  # a map between layers, a model without attention: sharded as one
        return []

    # a parameter is shared if the model has more modules with it than the block has
    owners = _count_owners(model)
    depth = {id(module): len(path.split(".")) for path, module in model.named_modules()}
    shardable = []
    for block in blocks:
        counts = _count_owners(block)
        if counts and all(count == owners[key] for key, count in counts.items()):
            shardable.append(block)
    return sorted(shardable, key=lambda block: -depth[id(block)])


def _count_owners(model: nn.Module) -> Counter[int]:
    """The number of modules that have each parameter, by the parameter's id."""
    counts: Counter[int] = Counter()
    for module in model.modules():
        counts.update(id(parameter) for parameter in module.parameters(recurse=False))
    return counts


# -- its state --------------------------------------------------------------------------------------------------------


def load_full(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Load full tensors of the first process into a sharded model, one by one; every process must call it."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True, strict=False)
    set_model_state_dict(model, dict(tensors) if dist.get_rank() == 0 else {}, options=options)


def full_tensors(model: nn.Module) -> dict[str, Any]:
    """A sharded model's tensors, gathered in the first process's host memory; every process must call it."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    return get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))


def local_rows(tensor: Tensor, parameter: Any) -> Tensor:
    """This process's rows of a full tensor, of which every process has a copy, sharded as a parameter is."""
    from torch.distributed.tensor import distribute_tensor

    full = tensor.to(parameter.device)
    return distribute_tensor(full, parameter.device_mesh, parameter.placements, src_data_rank=None)
