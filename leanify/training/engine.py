"""What training runs on: the device and its precision, the optimiser, and the memory that they need."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from leanify.errors import RecipeError
from leanify.sources.recipe import Recipe, TrainingRecipe
from leanify.sources.run_directory import RunDirectory, leaves
from leanify.training import memory


def accelerator_of(recipe: Recipe) -> Any:
    """Accelerate's engine on the device that is there, in the recipe's precision or the one that suits the device."""
    import accelerate
    from accelerate.state import AcceleratorState
    from accelerate.tracking import get_available_trackers

    gpu = torch.cuda.is_available()
    precision = recipe.run.precision or ("bf16" if gpu and torch.cuda.is_bf16_supported() else "fp32")
    if precision == "fp16" and not gpu:
        raise RecipeError("run.precision is fp16, which needs a GPU; here --set run.precision=fp32 or bf16")
    known = [str(name) for name in get_available_trackers()]
    for name in recipe.run.trackers:
        if name not in known:
            extra = "pip install 'leanify[tensorboard]'" if name == "tensorboard" else f"pip install {name}"
            raise RecipeError(f"run.trackers names {name!r}, and installed are {', '.join(known) or 'none'}: {extra}")
    AcceleratorState._reset_state()  # one process may train twice, in another precision
    engine = accelerate.Accelerator(mixed_precision="no" if precision == "fp32" else precision, cpu=not gpu)
    if str(engine.distributed_type).rpartition(".")[2] not in ("NO", "MULTI_CPU", "MULTI_GPU"):
        raise RecipeError(
            f"the launcher asks for {engine.distributed_type}, and training runs in one process or in several that "
            "each have the whole model (DDP): torchrun, or accelerate launch --multi_gpu"
        )
    return engine


@contextmanager
def tracked(engine: Any, recipe: Recipe, run: RunDirectory) -> Iterator[None]:
    """Send rows to the recipe's trackers, too, while a run goes."""
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
    """timm's optimiser by the recipe's name; AdamW fused where the device has that."""
    from timm.optim import create_optimizer_v2

    optim = recipe.optim
    fused = {"fused": True} if device.type in ("cpu", "cuda") else {}
    words = {"betas": optim.betas, "eps": optim.eps, **fused} if optim.name == "adamw" else {}
    optimizer: torch.optim.Optimizer = create_optimizer_v2(model, optim.name, optim.lr, optim.weight_decay, **words)
    return optimizer


def memory_of(recipe: TrainingRecipe, model: nn.Module, engine: Any, teacher: nn.Module | None) -> memory.Need | None:
    """Memory that training by the recipe needs in this process."""
    return memory.need(
        model,
        recipe.data.length,
        optimiser=recipe.optim.name,
        average=recipe.optim.ema is not None,
        teacher=teacher,
        half=engine.mixed_precision != "no",
        recomputed=recipe.run.gradient_checkpointing,
        fused=engine.device.type == "cuda",
    )
