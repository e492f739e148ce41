"""Set up what training runs on: device, precision, optimiser, and the memory they need."""

from __future__ import annotations

import copy
import ctypes
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from leanify import machine
from leanify.errors import RecipeError
from leanify.runs.recipe import Recipe, TrainingRecipe
from leanify.runs.run_directory import RunDirectory, leaves
from leanify.training import memory, sharding

if TYPE_CHECKING:
    from accelerate import Accelerator

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # as glibc's malloc.h numbers what mallopt sets


def accelerator_of(recipe: Recipe) -> Any:
    """The Accelerator for this device, in the recipe's precision or the best one that the device has."""
    import accelerate
    from accelerate.state import AcceleratorState
    from accelerate.tracking import get_available_trackers

    gpu = torch.cuda.is_available()
    machine.check_local_rank()
    precision = precision_of(recipe.run.precision, gpu, gpu and torch.cuda.is_bf16_supported())
    if sharding.asked(recipe):
        sharding.check(recipe, precision)
    known = [str(name) for name in get_available_trackers()]
    for name in recipe.run.trackers:
        if name not in known:
            extra = "pip install 'leanify[tensorboard]'" if name == "tensorboard" else f"pip install {name}"
            raise RecipeError(f"run.trackers names {name!r}, and installed are {', '.join(known) or 'none'}: {extra}")
    AcceleratorState._reset_state()  # one process may train twice, in another precision
    ddp = accelerate.DistributedDataParallelKwargs(
        gradient_as_bucket_view=True,  # gradients are not copied into buckets: 4 bytes a parameter less
        static_graph=recipe.parallel.static_graph,
    )
    mixed = "no" if precision == "fp32" else precision
    with sharding.apart_from_accelerate():
        engine = accelerate.Accelerator(mixed_precision=mixed, cpu=not gpu, kwargs_handlers=[ddp])
    if str(engine.distributed_type).rpartition(".")[2] not in ("NO", "MULTI_CPU", "MULTI_GPU"):
        raise RecipeError(
            f"the launcher asks for {engine.distributed_type}, and training runs in one process or in several that "
            "have the whole model (DDP) or share it (parallel.shard): torchrun, or accelerate launch --multi_gpu or "
            "--use_fsdp"
        )
    if gpu:
        torch.set_float32_matmul_precision("high")  # TF32 where a product is in float32
    return engine


def precision_of(wanted: str | None, gpu: bool, bf16: bool) -> str:
    """The requested precision; by default bf16 on a GPU that supports it, else fp32. Raises RecipeError."""
    precision = wanted or ("bf16" if gpu and bf16 else "fp32")
    if precision == "fp16" and not gpu:
        raise RecipeError("run.precision is fp16, which needs a GPU; here --set run.precision=fp32 or bf16")
    if precision == "bf16" and gpu and not bf16:
        raise RecipeError("run.precision is bf16, which this GPU does not have; --set run.precision=fp16 or fp32")
    return precision


def spread(models: Sequence[nn.Module], recipe: TrainingRecipe, engine: Accelerator) -> None:
    """Shard each model over the processes, in place."""
    half = engine.mixed_precision == "bf16"
    compiled = recipe.run.compile_mode if recipe.run.compile else None
    for model in models:
        if any(True for _ in model.parameters()):
            sharding.shard(model, engine.device, half, compiled)


def prepared(
    model: nn.Module,
    bare: nn.Module,
    maps: nn.Module | None,
    recipe: TrainingRecipe,
    engine: Accelerator,
    sharded: bool,
    loss: Callable[[nn.Module], Tensor],
) -> tuple[Any, Any]:
    """The model wrapped for training (DDP, compile), and its optimiser. ``maps`` have no weight decay.

    ``loss`` is that of any sample: it shows DDP which parameters have a gradient.
    """
    if recipe.run.channels_last and not sharded:  # FSDP flattens rows and wants them as they are
        bare.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = optimizer_of(recipe, bare, engine.device)
    if maps is not None and (learnt := list(maps.parameters())):
        optimizer.add_param_group({"params": learnt, "weight_decay": 0.0})
    if sharded:
        return engine.prepare_model(model, device_placement=False, evaluation_mode=True), engine.prepare(optimizer)
    if engine.num_processes > 1:
        settle_unused(model, loss, engine)
    called, optimizer = engine.prepare(model, optimizer)
    # compiled after DDP has wrapped it, so that gradients are exchanged during the backward pass
    return (torch.compile(called, mode=recipe.run.compile_mode) if recipe.run.compile else called), optimizer


def settle_unused(model: nn.Module, loss_of: Callable[[nn.Module], Tensor], engine: Accelerator) -> None:
    """Prepare a model for DDP, which waits for every gradient: freeze what only an unused output depends on.

    A pooler beside a loss of hidden states never has a gradient, and one process leaves it as it is; DDP
    would take it as used. What no output depends on may have one for other samples, like an expert: DDP then
    looks in every step.
    """
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    outputs: list[Any] = []
    with model.register_forward_hook(lambda *call: outputs.append(call[-1])):
        loss = loss_of(model)
    by_loss = torch.autograd.grad(loss, weights, retain_graph=True, allow_unused=True)
    unreached = [weight for weight, gradient in zip(weights, by_loss, strict=True) if gradient is None]
    parts = []
    for part in tree_leaves(outputs):
        if isinstance(part, Tensor) and part.requires_grad:
            parts.append(part.float().sum())
    if unreached and parts:
        by_output = torch.autograd.grad(torch.stack(parts).sum(), unreached, allow_unused=True)
        for weight, gradient in zip(unreached, by_output, strict=True):
            weight.requires_grad_(gradient is None)
    for name, buffer in model.named_buffers():
        buffer.copy_(buffers[name])  # the sums of batch norms
    if engine.ddp_handler is not None and any(weight.requires_grad for weight in unreached):
        engine.ddp_handler.find_unused_parameters = not engine.ddp_handler.static_graph


@contextmanager
def heap_kept() -> Iterator[None]:
    """Keep freed memory in the C library's heap between steps; trim it on exit.

    By default glibc returns it to the kernel after each step and gets it back page by page, zeroed, which
    took 5% of the time of a small ViT on a CPU. Blocks of 32 MiB and more are still mapped one by one, so the
    peak does not rise: 32 and 64 MiB are the upper ends of glibc's adaptive thresholds. Does nothing under
    other C libraries.
    """
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if libc is None or not hasattr(libc, "mallopt"):
        yield
        return
    libc.mallopt(MMAP_THRESHOLD, 32 << 20)
    libc.mallopt(TRIM_THRESHOLD, -1)
    try:
        yield
    finally:
        libc.mallopt(TRIM_THRESHOLD, 64 << 20)
        libc.malloc_trim(0)


@contextmanager
def tracked(engine: Accelerator, recipe: Recipe, run: RunDirectory) -> Iterator[None]:
    """Send metrics to the recipe's trackers while the run lasts."""
    if not recipe.run.trackers:
        yield
        return
    engine.project_configuration.set_directories(str(run.path))
    engine.log_with = list(recipe.run.trackers)
    facts = {key: value for key, value in leaves(recipe.to_dict()) if isinstance(value, int | float | str)}
    engine.init_trackers(run.path.name, facts)
    try:
        yield
    finally:
        engine.end_training()


def optimizer_of(recipe: TrainingRecipe, model: nn.Module, device: torch.device) -> torch.optim.Optimizer:
    """timm's optimiser of the recipe's name; AdamW uses the fused kernel where the device has one."""
    from timm.optim import create_optimizer_v2

    optim = recipe.optim
    fused = {"fused": True} if device.type in ("cpu", "cuda") else {}
    words = {"betas": optim.betas, "eps": optim.eps, **fused} if optim.name == "adamw" else {}
    optimizer: torch.optim.Optimizer = create_optimizer_v2(model, optim.name, optim.lr, optim.weight_decay, **words)
    return optimizer


def average_of(model: nn.Module, decay: float) -> Any:
    """timm's exponential moving average of a model's weights; also works on ``meta``."""
    from timm.utils import ModelEmaV3

    average = ModelEmaV3(nn.Linear(1, 1), decay=decay)
    average.module = copy.deepcopy(model).eval()
    return average


def memory_of(
    recipe: TrainingRecipe, model: nn.Module, engine: Accelerator, teacher: nn.Module | None
) -> memory.Need | None:
    """The memory that this process needs to train the recipe."""
    return memory.need(
        model,
        recipe.data.length,
        optimiser=recipe.optim.name,
        average=recipe.optim.ema is not None,
        teacher=teacher,
        half=engine.mixed_precision != "no",
        fused=engine.device.type == "cuda",
        kept=engine.num_processes > 1 or recipe.run.accumulate > 1,
        parts=engine.num_processes if sharding.asked(recipe) else 1,
    )
