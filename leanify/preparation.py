"""Before a run: whether a recipe can be trained by at all, and the model that it begins with."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from leanify import memory, planning, surgery, upstream, zoo
from leanify.errors import RecipeError
from leanify.recipe import Recipe


def check_supported(recipe: Recipe) -> None:
    """Refuse what a recipe can say and this loop cannot do, and what contradicts itself."""
    for name in ("data", "optim", "schedule"):
        if getattr(recipe, name) is None:
            raise RecipeError(f"this recipe has no [{name}], so there is nothing to train by")
    data, schedule, run = recipe.data, recipe.schedule, recipe.run
    assert data is not None
    assert schedule is not None
    if data.task not in ("classification", "causal-lm"):
        raise RecipeError(f"the task {data.task} cannot be trained yet; classification and causal-lm can")
    if data.task == "classification" and data.length is not None:
        raise RecipeError("classification of token sequences cannot be trained yet; that of images can")
    refused = {"data.mask": bool(data.mask)}
    for key in (key for key, given in refused.items() if given):
        raise RecipeError(f"{key} cannot be trained with yet; leave it out")
    low: dict[str, int | None] = {"batch_size": schedule.batch_size, "accumulate": run.accumulate}
    low |= {name: getattr(run, name) for name in ("log_every", "eval_every", "checkpoint_every", "eval_batches")}
    for key in (key for key, value in low.items() if value is not None and value < 1):
        raise RecipeError(f"{key} is below 1")


def build(recipe: Recipe) -> nn.Module:
    """The model of a recipe in training mode: its shape drawn anew by upstream's initialiser, or with its weights."""
    model = recipe.model
    if not model.reshapes:
        built = zoo.load(model.source, overrides=model.override, cls=model.cls)
    else:
        found = zoo.find(model.source, overrides=model.override, cls=model.cls)
        built = planning.build_fresh(found, model.shape(surgery.read(zoo.build_on_meta(found))))
    upstream.stamp(built, upstream.origin_of(built))
    if upstream.is_hf(built) and hasattr(built.config, "use_cache"):
        built.config.use_cache = False  # keys and values are for generation; its origin is stamped already
    if recipe.run.gradient_checkpointing:
        _checkpoint_gradients(built)
    return built.train()


def _checkpoint_gradients(model: Any) -> None:
    try:
        if upstream.is_hf(model):
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        else:
            model.set_grad_checkpointing(True)
    except (AssertionError, ValueError, AttributeError) as error:
        raise RecipeError(f"run.gradient_checkpointing: {type(model).__name__} has none") from error


def accelerator_of(recipe: Recipe) -> Any:
    """Accelerate's engine on the device that is there, in the recipe's precision or the one that suits the device."""
    import accelerate
    from accelerate.tracking import get_available_trackers

    gpu = torch.cuda.is_available()
    precision = recipe.run.precision or ("bf16" if gpu and torch.cuda.is_bf16_supported() else "fp32")
    if precision == "fp16" and not gpu:
        raise RecipeError("run.precision is fp16, which needs a GPU; here fp32 and bf16 run")
    known = [str(name) for name in get_available_trackers()]
    for name in recipe.run.trackers:
        if name not in known:
            extra = "pip install 'leanify[tensorboard]'" if name == "tensorboard" else f"pip install {name}"
            raise RecipeError(f"run.trackers names {name!r}, and installed are {', '.join(known) or 'none'}: {extra}")
    engine = accelerate.Accelerator(mixed_precision="no" if precision == "fp32" else precision, cpu=not gpu)
    if str(engine.distributed_type).rpartition(".")[2] not in ("NO", "MULTI_CPU", "MULTI_GPU"):
        raise RecipeError(
            f"the launcher asks for {engine.distributed_type}, and training runs in one process or in several that "
            "each have the whole model (DDP): torchrun, or accelerate launch --multi_gpu"
        )
    return engine


def optimizer_of(recipe: Recipe, model: nn.Module, device: torch.device) -> torch.optim.Optimizer:
    """timm's optimiser by the recipe's name; AdamW fused where the device has that."""
    from timm.optim import create_optimizer_v2

    optim = recipe.optim
    assert optim is not None
    fused = {"fused": True} if device.type in ("cpu", "cuda") else {}
    words = {"betas": optim.betas, "eps": optim.eps, **fused} if optim.name == "adamw" else {}
    optimizer: torch.optim.Optimizer = create_optimizer_v2(model, optim.name, optim.lr, optim.weight_decay, **words)
    return optimizer


def memory_of(recipe: Recipe, model: nn.Module, engine: Any, teacher: nn.Module | None) -> memory.Need | None:
    """What training by the recipe takes in this process."""
    assert recipe.data is not None
    assert recipe.optim is not None
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
