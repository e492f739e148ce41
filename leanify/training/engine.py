"""Set up what training runs on: device, precision, optimiser."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from leanify.core import machine
from leanify.core.errors import RecipeError
from leanify.core.recipe import Recipe, TrainingRecipe
from leanify.runs.run_directory import RunDirectory, leaves
from leanify.tasks import Task
from leanify.training import sharding
from leanify.training.distillation import Distilled
from leanify.training.state import TrainingState
from leanify.upstream.origin import in_mode

if TYPE_CHECKING:
    from accelerate import Accelerator


def build_accelerator(recipe: Recipe) -> Any:
    """The Accelerator for this device, in the recipe's precision or the best one that the device has."""
    import accelerate
    from accelerate.state import AcceleratorState
    from accelerate.tracking import get_available_trackers

    # refuse settings that this machine or its installation cannot fulfil
    gpu = torch.cuda.is_available()
    machine.check_local_rank()
    precision = choose_precision(recipe.run.precision, gpu, gpu and torch.cuda.is_bf16_supported())
    if sharding.is_requested(recipe):
        sharding.check(recipe, precision)
    installed_trackers = [str(name) for name in get_available_trackers()]
    for name in recipe.run.trackers:
        if name not in installed_trackers:
            extra = "pip install 'leanify[tensorboard]'" if name == "tensorboard" else f"pip install {name}"
            raise RecipeError(
                f"run.trackers names {name!r}, and installed are {', '.join(installed_trackers) or 'none'}: {extra}"
            )

    # one process may train twice, in another precision
    AcceleratorState._reset_state()
    ddp = accelerate.DistributedDataParallelKwargs(
        gradient_as_bucket_view=True,  # gradients are not copied into buckets: 4 bytes a parameter less
        static_graph=recipe.parallel.static_graph,
    )
    mixed_precision = "no" if precision == "fp32" else precision
    with sharding.hidden_from_accelerate():
        engine = accelerate.Accelerator(mixed_precision=mixed_precision, cpu=not gpu, kwargs_handlers=[ddp])

    # other launchers' modes (DeepSpeed, Megatron) place the model in their own ways
    if str(engine.distributed_type).rpartition(".")[2] not in ("NO", "MULTI_CPU", "MULTI_GPU"):
        raise RecipeError(
            f"the launcher asks for {engine.distributed_type}, and training runs in one process or in several that "
            "have the whole model (DDP) or share it (parallel.shard): torchrun, or accelerate launch --multi_gpu or "
            "--use_fsdp"
        )
    if gpu:
        torch.set_float32_matmul_precision("high")  # TF32 where a product is in float32
    return engine


def choose_precision(name: str | None, gpu: bool, bf16: bool) -> str:
    """The precision of this name; by default bf16 on a GPU that supports it, and fp32 elsewhere. Raises RecipeError."""
    precision = name or ("bf16" if gpu and bf16 else "fp32")
    if precision == "fp16" and not gpu:
        raise RecipeError("run.precision is fp16, which needs a GPU; here --set run.precision=fp32 or bf16")
    if precision == "bf16" and gpu and not bf16:
        raise RecipeError("run.precision is bf16, which this GPU does not have; --set run.precision=fp16 or fp32")
    return precision


def check_arithmetic(engine: Accelerator, warn: Callable[[str], None]) -> None:
    """Warn where bf16 is only emulated: on such a processor a step takes many times as long as in fp32."""
    if engine.mixed_precision != "bf16" or engine.device.type != "cpu":
        return
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():  # AVX-512 on x86; torch has no public name for it
        warn("this processor has no bf16 arithmetic, so torch emulates it, slowly: run.precision=fp32 is faster here")


def build_optimizer(
    recipe: TrainingRecipe,
    model: nn.Module,
    names: list[str],
    task: Task,
    engine: Accelerator,
    sample_loss: Callable[[nn.Module], Tensor],
) -> tuple[TrainingState, Any, Any]:
    """Place, shard or wrap the trained modules, and build their optimiser. Maps have no weight decay.

    Returns the state, with the tensors of these ``names``; what a step calls, with DDP, compiled; and timm's
    averaged weights, or None. ``sample_loss`` is the loss of any sample: it shows DDP which parameters have a gradient.
    """
    from timm.optim import create_optimizer_v2
    from timm.utils import ModelEmaV3

    # the modules: with a teacher, a learner that holds the model and the maps
    learner, maps, teacher = model, None, None
    if isinstance(task, Distilled):
        learner, maps, teacher = task.learner, task.learner.maps, task.teacher
    ema = None
    if recipe.optim.ema is not None:  # ModelEmaV3 cannot copy a model on meta
        ema = ModelEmaV3(nn.Linear(1, 1), decay=recipe.optim.ema)
        ema.module = in_mode(copy.deepcopy(model))

    # shard each of them; other layouts of memory are for models that are not sharded
    is_sharded = sharding.is_requested(recipe)
    if is_sharded:
        for part in (model, *(maps or ()), teacher, None if ema is None else ema.module):
            if part is not None and any(True for _ in part.parameters()):
                compile_mode = recipe.run.compile_mode if recipe.run.compile else None
                sharding.shard(part, engine.device, engine.mixed_precision == "bf16", compile_mode)
    elif recipe.run.channels_last:  # FSDP flattens rows and wants them as they are
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    # the optimiser refers to the parameters as they are now, after sharding
    optim = recipe.optim
    options: dict[str, Any] = {}
    if optim.name == "adamw":  # with the fused kernel where the device has one
        options = {"betas": optim.betas, "eps": optim.eps}
        if engine.device.type in ("cpu", "cuda"):
            options["fused"] = True
    optimizer = create_optimizer_v2(model, optim.name, optim.lr, optim.weight_decay, **options)
    if maps is not None and (weights := list(maps.parameters())):
        optimizer.add_param_group({"params": weights, "weight_decay": 0.0})

    # wrap for mixed precision alone, or for DDP, then compile
    if is_sharded:
        wrapped_learner = engine.prepare_model(learner, device_placement=False, evaluation_mode=True)
        prepared_optimizer = engine.prepare(optimizer)
    else:
        if engine.num_processes > 1:
            freeze_unused(learner, sample_loss, engine)
        wrapped_learner, prepared_optimizer = engine.prepare(learner, optimizer)
        if recipe.run.compile:  # after DDP has wrapped it, so that gradients are exchanged during the backward pass
            wrapped_learner = torch.compile(wrapped_learner, mode=recipe.run.compile_mode)
        ema = None if ema is None else ema.to(engine.device)
    ema_model = None if ema is None else ema.module
    state = TrainingState(model, ema_model, learner, maps, prepared_optimizer, engine.scaler, names)
    return state, wrapped_learner, ema


def freeze_unused(model: nn.Module, sample_loss: Callable[[nn.Module], Tensor], engine: Accelerator) -> None:
    """Prepare a model for DDP, which waits for every gradient: freeze weights that only an unused output depends on.

    A pooler never has a gradient when the loss uses hidden states, and one process leaves it as it is; DDP
    would take it as used. A weight that no output depends on may have a gradient for other samples, like an
    expert: DDP then looks in every step.
    """
    # one forward pass, with the outputs recorded
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    outputs: list[Any] = []
    with model.register_forward_hook(lambda *call: outputs.append(call[-1])):
        loss = sample_loss(model)

    # the weights that the loss does not depend on
    by_loss = torch.autograd.grad(loss, weights, retain_graph=True, allow_unused=True)
    without_gradient = [weight for weight, gradient in zip(weights, by_loss, strict=True) if gradient is None]

    # of these, freeze those that some output depends on
    parts = []
    for part in tree_leaves(outputs):
        if isinstance(part, Tensor) and part.requires_grad:
            parts.append(part.float().sum())
    if without_gradient and parts:
        by_output = torch.autograd.grad(torch.stack(parts).sum(), without_gradient, allow_unused=True)
        for weight, gradient in zip(without_gradient, by_output, strict=True):
            weight.requires_grad_(gradient is None)

    # undo the pass's changes of batch norms; DDP looks in every step if unused weights may train later
    for name, buffer in model.named_buffers():
        buffer.copy_(buffers[name])
    if engine.ddp_handler is not None and any(weight.requires_grad for weight in without_gradient):
        engine.ddp_handler.find_unused_parameters = not engine.ddp_handler.static_graph


@contextmanager
def disable_malloc_trim() -> Iterator[None]:
    """Keep freed memory in the C library's heap between steps; trim it on exit.

    By default glibc returns it to the kernel after each step and gets it back page by page, zeroed, which took 5% of
    the time of a small ViT on a CPU. Blocks of 32 MiB and more are still mapped one by one, so the peak does not rise:
    32 and 64 MiB are the upper ends of glibc's adaptive thresholds. Does nothing under other C libraries.
    """
    machine.set_malloc_thresholds(mmap=32 << 20, trim=-1)
    try:
        yield
    finally:
        machine.set_malloc_thresholds(mmap=32 << 20, trim=64 << 20)


@contextmanager
def track_metrics(engine: Accelerator, recipe: Recipe, run: RunDirectory) -> Iterator[None]:
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
