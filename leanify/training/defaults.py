"""A default recipe for a model that has none: the usual one for its kind, on the data that the user names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from leanify.data import fitting
from leanify.data import found as data_found
from leanify.data.found import GUESSED, Named
from leanify.data.texts import own_texts
from leanify.errors import RecipeError, SourceError
from leanify.runs import places
from leanify.runs import recipe as recipes
from leanify.runs.recipe import DataSection, DistillSection, ModelSection, OptimSection, Recipe, ScheduleSection
from leanify.runs.run_directory import RunDirectory
from leanify.sources import find, heads, pooling
from leanify.sources.overrides import class_name
from leanify.sources.source import ModelSource
from leanify.sources.text_classifier import CLASSIFIER
from leanify.tasks import Usual, usual_of
from leanify.training.preparation import tokenizer_beside
from leanify.upstream import modules
from leanify.upstream.inputs import example_inputs
from leanify.upstream.libraries import import_transformers, without_type

SEEN = 30_000  # samples of a run on data of one's own: a few minutes on a core
WARMUP = 0.1  # of the run: with a sixtieth the same ViT on 500 digits ends anywhere from 70% to 90%
AUGMENTED = 10  # epochs: a model that sees a picture less often learns faster from whole ones (references.md)
OWN = ("own-images", "own-sentences", "own-text")  # built-in recipes for it


def recipe_of(
    source: str | Path, path: str | None = None, teacher: str | None = None, named: Named = GUESSED
) -> Recipe:
    """A recipe from a file, a built-in name or a run; else the default recipe of the model that SOURCE names.

    ``path`` is the user's data, which decides the task; with a teacher the model decides it. ``named`` are the columns
    and the task that the user names.

    Raises RecipeError, and SourceError for what names nothing.
    """
    text = str(source)
    if places.is_run(text):
        return with_teacher(RunDirectory.open(text).recipe, teacher)
    if text in OWN and path is not None and (found := data_found.recognise(path, named)) is not None:
        return with_teacher(of_data(found, path), teacher)
    if recipes.find(text) is not None or Path(text).suffix == ".toml":
        return with_teacher(recipes.load(text), teacher)
    if places.kind_of(text) is None and (found := data_found.recognise(text, named)) is not None:
        return with_teacher(of_data(found, text), teacher)
    return with_teacher(usual(text, path, teacher is not None, named), teacher)


def is_usual(recipe: str | Path | Recipe) -> bool:
    """Whether `recipe_of` makes the recipe of this, instead of reading one."""
    if isinstance(recipe, Recipe):
        return False
    return not places.is_run(str(recipe)) and recipes.find(str(recipe)) is None and Path(recipe).suffix != ".toml"


def is_data(source: str, named: Named = GUESSED) -> bool:
    """Whether a SOURCE is the user's data, of which `recipe_of` makes a recipe."""
    if recipes.find(source) is not None or Path(source).suffix == ".toml" or places.kind_of(source) is not None:
        return False
    return data_found.recognise(source, named) is not None


def of_data(found: data_found.Found, path: str) -> Recipe:
    """The built-in recipe for own data, fitted to its pictures or texts; of about the same duration for any size."""
    settings = fitting.settings_for(found, path)
    if found.kind != "text":
        epochs = min(100, max(3, SEEN // (found.samples or SEEN)))
        settings += [f"schedule.epochs={epochs}", f"schedule.warmup={WARMUP * epochs:g}"]
        if found.kind == "images" and epochs < AUGMENTED:
            settings.append("data.crop=[1.0, 1.0]")
    return recipes.with_settings(recipes.load(found.recipe), settings)


def with_teacher(recipe: Recipe, teacher: str | None) -> Recipe:
    """The recipe with a SOURCE as its teacher, by the usual ``[distill]`` of its task where it has none."""
    if teacher is None:
        return recipe
    if recipe.distill is not None:
        return replace(recipe, distill=replace(recipe.distill, teacher=teacher))
    weight, temperature = usual_of(recipe.data.task).distill if recipe.data else Usual().distill
    return replace(recipe, distill=DistillSection(teacher, temperature, weight))


def named_in(settings: Sequence[str]) -> Named:
    """What settings say of a table: data.text or data.image, data.label and data.task."""
    given = {key: recipes.value_of(text) for key, text in map(recipes.split_setting, settings) if text}
    texts = given.get("data.text", [])
    if not isinstance(texts, list):
        texts = [texts]
    named = {key: str(given[f"data.{key}"]) for key in ("label", "task", "image") if f"data.{key}" in given}
    return Named(tuple(map(str, texts)), **named)


def usual(source: str, path: str | None = None, taught: bool = False, named: Named = GUESSED) -> Recipe:
    """The usual task of a model: classification for images, masked words for an encoder of text, else the next word.

    A text model with a table of labelled texts at ``path`` becomes a classifier, a tagger or a regressor. One that is
    ``taught`` keeps the head that it shares with its teacher; an encoder without a head learns the teacher's
    embeddings.

    AdamW and a cosine with a short warm-up; the learning rate suits a freshly initialised model; a tenth of it one
    that comes with weights.
    """
    found = find.find(source)
    if next(iter(example_inputs(find.build_on_meta(found), 1, device="meta"))) != "input_ids":
        return _of_images(source, path, found, named)
    if taught and _embeds(found):
        return _of_sentences(source, found)
    takes_labels = not taught or found.origin.library == "leanify" or _named(found, CLASSIFIER) == found.origin.cls
    if path is not None and takes_labels:
        labelled = _labelled(path, named)
        if labelled is not None:
            task, validated, settings = labelled
            return recipes.with_settings(_of_labelled(source, found, task, validated), settings)
    masked = _class(found, "AutoModelForMaskedLM")
    task = "masked-lm" if masked or found.origin.name == "crammed-bert" else "causal-lm"
    mask = 0.15 if task == "masked-lm" else 0.0
    data = DataSection("data", task, tokenizer=tokenizer_beside(source, found), mask=mask)
    return _usual(source, found, masked or _class(found, "AutoModelForCausalLM"), data)


def _of_images(source: str, path: str | None, found: ModelSource, named: Named) -> Recipe:
    """Classification of the user's images; a new model gets as many outputs as they have classes."""
    cls = _class(found, "AutoModelForImageClassification")
    data, override = DataSection("data", "classification"), {}
    images = None if path is None else data_found.recognise(path, named)
    if images is not None and images.kind == "images":
        data = replace(data, holdout=0.0 if images.validated else 0.1)
        if images.columns is not None:
            data = replace(data, image=images.columns[0][0], label=images.columns[1])
        fresh = found.weights is None and found.architecture is None and found.origin.library != modules.LIBRARY
        if fresh and images.classes is not None:
            override = {"num_labels" if cls else "num_classes": images.classes}
    return _usual(source, found, cls, data, override, label_smoothing=0.1)


def _usual(
    source: str,
    found: ModelSource,
    cls: str | None,
    data: DataSection,
    override: Mapping[str, Any] | None = None,
    label_smoothing: float = 0.0,
) -> Recipe:
    lr = 1e-3 if found.weights is None else 1e-4
    return Recipe(
        model=ModelSection(source, cls=cls if found.architecture is None else None, override=override or {}),
        data=data,
        optim=OptimSection(lr, weight_decay=0.05, clip=1.0, label_smoothing=label_smoothing),
        schedule=ScheduleSection(usual_of(data.task).batch_size, epochs=10, warmup=0.5),
    )


def _labelled(path: str, named: Named) -> tuple[str, bool, list[str]] | None:
    """(task, whether there is a validation table, guessed columns) of labelled texts; None where there are none."""
    found = data_found.recognise(path, named)
    task = None if found is None else found.task
    if named.task in own_texts.TASKS:
        task = named.task
    if task is None:
        return None
    if found is None:
        return task, own_texts.find_table(Path(path).expanduser(), "validation") is not None, []
    return task, found.validated, found.settings


def _embeds(found: Any) -> bool:
    """Whether a model of transformers is one without a head, or one that sentence-transformers knows."""
    place = Path(str(found.origin.options.get("_name_or_path") or ""))
    bare = _named(found, "AutoModel") == found.origin.cls
    return found.origin.library == "hf" and (bare or pooling.is_encoder(place))


def _of_sentences(source: str, found: Any) -> Recipe:
    """Every sentence's embedding, by the cosine to the teacher's; as long as sentence-transformers makes a sentence.

    Without dropout: the targets are a function of the text, and a noisy student follows them less closely
    (``recipes/results/warm-minilm.md``).
    """
    length = pooling.longest_of(Path(source))
    return Recipe(
        model=ModelSection(source, cls=heads.encoder_class(found), override=_without_dropout(found)),
        data=DataSection("data", "sentence-embedding", tokenizer=tokenizer_beside(source, found), length=length),
        optim=OptimSection(1e-3 if found.weights is None else 5e-4, weight_decay=0.01, clip=1.0),
        schedule=ScheduleSection(64, epochs=3, warmup=0.1),
    )


def _without_dropout(found: Any) -> dict[str, Any]:
    """Overrides that switch off the dropout of a model of transformers, whatever its configuration calls it."""
    config = import_transformers().AutoConfig.for_model(found.origin.name, **without_type(found.origin.options))
    rates = {key: value for key, value in config.to_dict().items() if "drop" in key}
    return {key: 0.0 for key, rate in rates.items() if isinstance(rate, float) and rate > 0}


def _of_labelled(source: str, found: Any, task: str, validated: bool) -> Recipe:
    """Fine-tuning with a new head, as Devlin et al. 2019 do (appendix A.3): few epochs, a low rate, a short warm-up.

    Without a validation table a tenth of the samples is held out.
    """
    lr = 5e-4 if found.weights is None else 3e-5
    return Recipe(
        model=ModelSection(source),
        data=DataSection("data", task, holdout=0.0 if validated else 0.1),
        optim=OptimSection(lr, weight_decay=0.01, clip=1.0),
        schedule=ScheduleSection(32, epochs=3, kind="linear", warmup=0.3),
    )


def _class(found: Any, auto: str) -> str | None:
    """An auto class of transformers if it has one for the model; None for models of other libraries."""
    return None if _named(found, auto) is None else auto


def _named(found: Any, auto: str) -> str | None:
    """The class that an auto class leads to."""
    if found.origin.library != "hf":
        return None
    config = import_transformers().AutoConfig.for_model(found.origin.name, **without_type(found.origin.options))
    try:
        return class_name(auto, config)
    except SourceError:
        return None


def check_data(source: str | Path, recipe: Recipe) -> None:
    """Raise, with the command to type, where a model without a recipe was given no data."""
    data = recipe.data
    if data is not None and data.name == "data" and data.path is None:
        raise RecipeError(
            f"{source} is a model without a recipe, so it needs data for {data.task}, {usual_of(data.task).layout}: "
            f"leanify train {source} --set data.path=DIR (compare takes the same --set)"
        )
