"""Before a run: check that a recipe can be trained, and build the model that it starts from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from leanify.data.texts import own_texts, vocabulary
from leanify.errors import RecipeError, SourceError
from leanify.lens import surgery
from leanify.runs.recipe import DataSection, Recipe, TrainingRecipe
from leanify.sources import find, lean_directory, text_classifier, weights
from leanify.sources.source import ModelSource
from leanify.tasks import glue
from leanify.upstream.origin import is_hf, origin_of, set_origin


def trainable(recipe: Recipe) -> TrainingRecipe:
    """The recipe with all its sections. Raises RecipeError for settings that contradict each other."""
    checked = recipe.to_train()
    data, schedule, run = checked.data, checked.schedule, checked.run
    if data.task == "sentence-embedding" and recipe.distill is None:
        raise RecipeError("sentence-embedding learns a teacher's embeddings: name one, --teacher SOURCE")
    if data.task == "multi-label-classification" and recipe.distill is not None and recipe.distill.weight:
        raise RecipeError(
            "a teacher's softmax says nothing about labels that do not exclude each other: distill.weight=0 with a "
            "distill.hidden_weight learns from its layers alone"
        )
    if data.mask and data.task != "masked-lm":
        raise RecipeError(f"data.mask is for masked-lm, and the task is {data.task}; leave it out")
    if run.compile and recipe.distill is not None:
        raise RecipeError("run.compile and [distill] do not go together: a compiled model does not show its layers")
    if checked.parallel.static_graph and run.accumulate > 1:
        raise RecipeError("parallel.static_graph and run.accumulate above 1 do not go together: DDP refuses them")
    if run.compile and run.compile_mode != "default" and run.accumulate > 1:
        raise RecipeError(
            f"run.compile_mode={run.compile_mode} and run.accumulate above 1 do not go together: a replayed CUDA graph "
            "overwrites the gradients of the pass before; run.compile_mode=default adds them up"
        )
    counts = {**vars(schedule), **vars(run), **vars(data)}
    for key in ("batch_size", "accumulate", "prefetch", "log_every", "eval_every", "checkpoint_every", "eval_batches"):
        if counts[key] is not None and counts[key] < 1:
            raise RecipeError(f"{key} is below 1")
    return checked


def has_weights(recipe: Recipe) -> bool:
    """Whether a recipe's model starts from weights, in their own shape."""
    model = recipe.model
    return not model.reshapes and find.find(model.source, overrides=model.override, cls=model.cls).weights is not None


def build(recipe: Recipe, on_meta: bool = False) -> nn.Module:
    """The model of a recipe in training mode: with weights, or re-initialised in its shape."""
    built = _built(recipe, on_meta)
    if on_meta and _has_loose_tensors(built):  # upstream keeps tensors elsewhere than in parameters and buffers
        built = _built(recipe, False)
    set_origin(built, origin_of(built))
    if is_hf(built) and hasattr(built.config, "use_cache"):
        built.config.use_cache = False  # keys and values are for generation; its origin is stamped already
    if recipe.run.gradient_checkpointing:
        checkpoint_gradients(built)
    return built.train()


def _built(recipe: Recipe, on_meta: bool) -> nn.Module:
    model, data = recipe.model, recipe.data
    if data is not None and data.task == "glue":
        return text_classifier.with_head(model, glue.TASKS[glue.name_of(data)].outputs, on_meta=on_meta)
    if data is not None and data.task in own_texts.TASKS:
        names = own_texts.classes_of(data)
        return text_classifier.with_head(model, len(names) or 1, names, on_meta=on_meta, task=data.task)
    found = find.find(model.source, overrides=model.override, cls=model.cls)
    if model.reshapes:
        found = replace(found, architecture=model.shape(surgery.read(find.build_on_meta(found))), weights=None)
    return find.build_on_meta(found) if on_meta else weights.load(found)


def _has_loose_tensors(model: nn.Module) -> bool:
    """Whether a module keeps a tensor on meta that nothing would fill: no parameter and no buffer."""
    for module in model.modules():
        for name, value in vars(module).items():
            if isinstance(value, Tensor) and value.is_meta and not name.startswith("_"):
                return True
    return False


def checkpoint_gradients(model: Any) -> None:
    """Have blocks computed again in the backward pass. Raises RecipeError where upstream cannot."""
    try:
        if is_hf(model):
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        else:
            model.set_grad_checkpointing(True)
    except (AssertionError, ValueError, AttributeError) as error:
        raise RecipeError(f"run.gradient_checkpointing: {type(model).__name__} has none") from error


def card_of(recipe: Recipe, model: nn.Module, classes: Sequence[str] = ()) -> str:
    """The text of a run's leanify.json: how upstream builds its model, and its shape. Raises SourceError."""
    origin = origin_of(model)
    if origin is None:
        raise SourceError(f"this {type(model).__name__} was not created by leanify, timm or transformers")
    card = {
        "format": lean_directory.FORMAT,
        "origin": vars(origin),
        "architecture": surgery.read(model).to_json(),
        "params": sum(parameter.numel() for parameter in model.parameters()),
        "tied": lean_directory.untied(model)[1],
        "requires": lean_directory.requirements(origin),
        "recipe": recipe.to_dict(),
        "classes": list(classes),
    }
    return json.dumps(card, indent=2) + "\n"


def data_of(recipe: TrainingRecipe) -> DataSection:
    """[data] of a recipe; labelled texts take the tokenizer beside the model where the recipe names none."""
    data = recipe.data
    if data.task not in ("glue", "sentence-embedding", *own_texts.TASKS) or data.tokenizer is not None:
        return data
    found = find.find(recipe.model.source, cls=recipe.model.cls)
    if isinstance(found.weights, str):
        return replace(data, tokenizer=recipe.model.source)
    return replace(data, tokenizer=tokenizer_beside(recipe.model.source, found))


def tokenizer_beside(source: str | Path, found: ModelSource) -> str | None:
    """The folder of a model's tokenizer: beside its weights, else where an adapter's base model lies."""
    place = Path(source).expanduser()
    base = found.origin.options.get("_name_or_path")
    folders = [place if place.is_dir() else place.parent] if place.exists() else []
    folders += [Path(base)] if isinstance(base, str) and base else []
    return next((str(folder) for folder in folders if folder.is_dir() and vocabulary.lies_in(folder)), None)
