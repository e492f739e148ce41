"""Before a run: whether a recipe can be trained by at all, and the model that it begins with."""

from __future__ import annotations

from torch import nn

from leanify import planning, surgery, upstream, zoo
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
    refused = {
        "data.mask": bool(data.mask),
        "data.test": data.test is not None,
    }
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
    return built.train()
