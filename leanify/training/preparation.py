"""Before a run: check that a recipe can be trained, and build the model that it starts from."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from leanify.core.errors import RecipeError, SourceError
from leanify.core.files.reading import preview, read_json
from leanify.core.path_kinds import CARD
from leanify.core.recipe import DataSection, ModelSection, Recipe, TrainingRecipe
from leanify.core.recipe_code import is_code
from leanify.data.labels import config_names, match_labels
from leanify.data.samples import Splits
from leanify.data.splits import load_splits
from leanify.data.texts import own_texts, tokenizers
from leanify.reshaping import surgery
from leanify.sources import find, weights
from leanify.sources.overrides import override_source
from leanify.sources.source import ModelSource, build_on_meta
from leanify.sources.tensors import describe_misfits, tensor_shapes
from leanify.tasks import check_fit
from leanify.upstream import user_modules
from leanify.upstream.origin import get_origin, in_mode, is_hf, set_origin


def trainable(recipe: Recipe) -> TrainingRecipe:
    """The recipe with all its sections. Raises RecipeError for settings that contradict each other."""
    complete = recipe.to_train()
    data, schedule, run = complete.data, complete.schedule, complete.run

    # settings that belong to one task
    if data.task == "sentence-embedding" and recipe.distill is None:
        raise RecipeError("sentence-embedding learns a teacher's embeddings: name one, --teacher SOURCE")
    if data.mask and data.task != "masked-lm":
        raise RecipeError(f"data.mask is for masked-lm, and the task is {data.task}; leave it out")

    # settings that exclude each other
    if run.compile and recipe.distill is not None:
        raise RecipeError("run.compile and [distill] do not go together: a compiled model does not show its layers")
    if complete.parallel.static_graph and run.accumulate > 1:
        raise RecipeError("parallel.static_graph and run.accumulate above 1 do not go together: DDP refuses them")
    if run.compile and run.compile_mode != "default" and run.accumulate > 1:
        raise RecipeError(
            f"run.compile_mode={run.compile_mode} and run.accumulate above 1 do not go together: a replayed CUDA graph "
            "overwrites the gradients of the pass before; run.compile_mode=default adds them up"
        )

    # numbers of something
    counts = {**vars(schedule), **vars(run), **vars(data)}
    for key in ("batch_size", "accumulate", "prefetch", "log_every", "eval_every", "checkpoint_every", "eval_batches"):
        if counts[key] is not None and counts[key] < 1:
            raise RecipeError(f"{key} is below 1")
    return complete


def has_weights(recipe: Recipe) -> bool:
    """Whether a recipe's model starts from weights and keeps their shape."""
    model = recipe.model
    return not model.reshapes and find.section_source(model).weights is not None


def has_trained_weights(source: ModelSource) -> bool:
    """Whether a model starts from weights that were trained: those that `redesign` writes may be fresh ones."""
    if source.weights is None:
        return False
    card = Path(str(source.weights)) / CARD
    return not (card.is_file() and read_json(card).get("initialised", False))


def model_on_meta(section: ModelSection) -> nn.Module:
    """Build the model of a [model] section on torch's meta device, in the section's shape."""
    model = build_on_meta(find.section_source(section))
    return surgery.write(model, section.shape(surgery.read(model))) if section.reshapes else model


def build_model(recipe: Recipe, on_meta: bool = False) -> nn.Module:
    """The model of a recipe in training mode: with weights, or re-initialised in its shape."""
    # tensors that are neither parameters nor buffers must be real
    model = _load_model(recipe, on_meta)
    if on_meta and _has_loose_tensors(model):
        model = _load_model(recipe, False)
    return prepare_model(recipe, model)


def prepare_model(recipe: Recipe, model: nn.Module) -> nn.Module:
    """Return a recipe's model in training mode, in place: without cached keys, with recomputed blocks if asked for."""
    # record the origin before the configuration changes: a checkpoint names the original one
    set_origin(model, get_origin(model))
    if is_hf(model) and hasattr(model.config, "use_cache"):
        model.config.use_cache = False  # cached keys and values are for generation
    if recipe.run.gradient_checkpointing:
        checkpoint_gradients(model)
    return in_mode(model, True)


def build_data(recipe: TrainingRecipe, model: nn.Module) -> Splits:
    """The splits of a recipe's data, in the form that the model takes. Raises DataError and RecipeError."""
    splits = load_splits(data_section(recipe), model)
    check_fit(model, splits)
    return splits


def _load_model(recipe: Recipe, on_meta: bool) -> nn.Module:
    model, data = recipe.model, recipe.data

    # labelled texts decide the head
    if data is not None and data.task in own_texts.TASKS and not is_code(data.name):
        names = _order_classes(model, own_texts.find_classes(data))
        return add_head(model, len(names) or 1, names, on_meta=on_meta)
    model_source = find.section_source(model)
    if model.reshapes:
        architecture = model.shape(surgery.read(build_on_meta(model_source)))
        model_source = replace(model_source, architecture=architecture, weights=None)
    return build_on_meta(model_source) if on_meta else weights.load(model_source)


def _order_classes(model: ModelSection, names: Sequence[str]) -> Sequence[str]:
    """The classes of a table in the order of a trained classifier's outputs; as they are for any other model."""
    source = find.find(find.recorded_source(model.source), cls=model.cls)
    if source.weights is None or not source.origin.cls.endswith("ForSequenceClassification"):
        return names
    labels = match_labels(names, config_names(source.origin.options))
    if labels.kind == "other":
        warnings.warn(
            f"{model.source} was trained for other labels, and learns these as a new task: {labels.lists}", stacklevel=2
        )
    return labels.names


def _has_loose_tensors(model: nn.Module) -> bool:
    """Whether a module keeps a tensor on meta that is neither a parameter nor a buffer, so that nothing fills it."""
    for module in model.modules():
        for name, value in vars(module).items():
            if isinstance(value, Tensor) and value.is_meta and not name.startswith("_"):
                return True
    return False


def checkpoint_gradients(model: Any) -> None:
    """Recompute blocks in the backward pass. Raises RecipeError if upstream's model does not support it."""
    try:
        if is_hf(model):
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        else:
            model.set_grad_checkpointing(True)
    except (AssertionError, ValueError, AttributeError) as error:
        raise RecipeError(f"run.gradient_checkpointing: {type(model).__name__} has none") from error


def data_section(recipe: TrainingRecipe) -> DataSection:
    """[data] of a recipe; texts with labels or a teacher get the model's tokenizer if the recipe names none."""
    data = recipe.data
    if data.task not in ("sentence-embedding", *own_texts.TASKS) or data.tokenizer is not None:
        return data
    model_source = find.find(find.recorded_source(recipe.model.source), cls=recipe.model.cls)
    if isinstance(model_source.weights, str):
        return replace(data, tokenizer=recipe.model.source)
    return replace(data, tokenizer=find_tokenizer(recipe.model.source, model_source))


def find_tokenizer(source: str | Path, model_source: ModelSource) -> str | None:
    """The folder of a model's tokenizer: the folder of its weights, or the source of its configuration."""
    folders = []
    place = Path(source).expanduser()
    if place.exists():
        folders.append(place if place.is_dir() else place.parent)
    base = model_source.origin.options.get("_name_or_path")
    if isinstance(base, str) and base:
        folders.append(Path(base))
    return next((str(folder) for folder in folders if folder.is_dir() and tokenizers.has_tokenizer(folder)), None)


# -- a new head on a text encoder -------------------------------------------------------------------------------------


def add_head(model: ModelSection, outputs: int, names: Sequence[str] = (), on_meta: bool = False) -> nn.Module:
    """Return a recipe's model with a new head of ``outputs`` outputs; warn about tensors that it does not take over.

    ``names`` are class names, stored in transformers' configuration; with ``on_meta`` the model has shapes only.
    Raises SourceError for a model that takes no text or has no known head.
    """
    # the source of the model with a head, in the recipe's shape
    encoder = find.find(find.recorded_source(model.source), cls=model.cls)
    classifier = _classifier_source(encoder, model, outputs, names)
    if model.reshapes:
        architecture = model.shape(surgery.read(build_on_meta(classifier)))
        classifier = replace(classifier, architecture=architecture, weights=None)

    # transformers loads the encoder's weights by itself
    if on_meta:
        built = build_on_meta(classifier)
    elif classifier.weights is not None and classifier.origin.library != "hf":
        built = _transfer_weights(encoder, classifier, model.source)
    else:
        if classifier.weights is None:
            warnings.warn(f"{model.source} has no weights: encoder and head are randomly initialised", stacklevel=2)
        built = weights.load(classifier)
    set_origin(built, classifier.origin)
    return built


def _classifier_source(encoder: ModelSource, model: ModelSection, outputs: int, names: Sequence[str]) -> ModelSource:
    """The encoder's source with a head; overrides go to its constructor or configuration."""
    origin = encoder.origin
    if origin.library == "hf":
        overrides = {**model.override, "num_labels": outputs}
        if names:
            overrides |= {"id2label": dict(enumerate(names)), "label2id": {name: i for i, name in enumerate(names)}}
        return override_source(encoder, overrides, "AutoModelForSequenceClassification")
    if user_modules.takes_argument(origin, "classes"):
        options = {**origin.options, **model.override, "classes": outputs}
        return replace(encoder, origin=replace(origin, options=options))
    reason = "takes images" if origin.library == "timm" else "has no head for text classification"
    raise SourceError(
        f"{model.source} ({origin}) {reason}; name a text encoder: a BERT, or own code whose make() takes classes"
    )


def _transfer_weights(encoder: ModelSource, classifier: ModelSource, name: str) -> nn.Module:
    """Build the user's module with a head and load the encoder's weights; warns about new and unused tensors."""
    source_tensors = weights.load(encoder).state_dict()
    built = weights.load(replace(classifier, weights=None))
    tensors = built.state_dict()

    # the tensors that both have, except the head's, in equal shapes
    shared_keys = [key for key in tensors if key in source_tensors and not key.startswith("classifier.")]
    loaded_tensors = {key: source_tensors[key] for key in shared_keys}
    problems = describe_misfits(
        tensor_shapes({key: tensors[key] for key in shared_keys}), tensor_shapes(loaded_tensors)
    )
    if not shared_keys:
        problems = problems or "no tensor name in common"
    if problems:
        raise SourceError(f"{name} does not fit the model with a head: {problems}")
    built.load_state_dict(loaded_tensors, strict=False)

    # report the rest
    fresh_keys, unused_keys = sorted(set(tensors) - set(shared_keys)), sorted(set(source_tensors) - set(shared_keys))
    unused = f", {len(unused_keys)} unused ({preview(unused_keys)})" if unused_keys else ""
    fresh = f"{len(fresh_keys)} re-initialised ({preview(fresh_keys)})"
    warnings.warn(f"{name}: {len(shared_keys)} tensors carried over, {fresh}{unused}", stacklevel=3)
    return built
