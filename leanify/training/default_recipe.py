"""Which recipe a source gets: its own, or the default one for its kind of model, or for the user's data."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

from leanify.core import path_kinds as places
from leanify.core import recipe as recipes
from leanify.core.errors import DataError, RecipeError, SourceError
from leanify.core.recipe import DataSection, DistillSection, ModelSection, OptimSection, Recipe, ScheduleSection
from leanify.data.images.decoding import open_picture
from leanify.data.images.tables import first_pictures
from leanify.data.texts import own_texts
from leanify.layouts import recognition
from leanify.layouts.columns import WITHOUT_LABELS, format_setting
from leanify.layouts.image_files import data_folder
from leanify.layouts.own_data import NO_COLUMNS, NamedColumns, OwnData
from leanify.layouts.rows import find_table
from leanify.runs.run_directory import RunDirectory
from leanify.sources import find, heads
from leanify.sources.overrides import class_name
from leanify.sources.source import ModelSource
from leanify.tasks import UsualSettings, usual_settings
from leanify.training.preparation import find_tokenizer, has_trained_weights
from leanify.upstream import user_modules
from leanify.upstream.inputs import example_inputs, takes_chosen
from leanify.upstream.libraries import drop_type, import_transformers

# the length of runs on own data
SAMPLES = 30_000  # seen in a run: a few minutes on a core
TRAINED_SAMPLES = 10_000  # seen by a model that starts from trained weights, which learns faster
FEW_SAMPLES = 10_000  # of a training split that is learnt in small batches, for enough steps
SMALL_BATCH = 32
WARMUP = 0.1  # of the run: with a sixtieth the same ViT on 500 digits ends anywhere from 70% to 90%
MIN_AUGMENTED_EPOCHS = 10  # a model that sees a picture less often learns faster from whole ones (references.md)
EVALUATIONS, ROWS = 10, 40  # of a run in a study

# the shape of models for own data
OWN_RECIPES = ("own-images", "own-sentences", "own-text")
MAX_PICTURES, FIRST_PICTURES = 60, 1000  # looked at, of the first ones
MAX_SIDE = 64  # pixels
OWN_CROP = (0.9, 1.0)  # as in own-images: a mirror, another colour or a part can make another class of a picture
MAX_PATCHES = 4  # a side: few long ones learn more from few pictures (`recipes/results/references.md`)
TEXT_LENGTHS = (16, 128)  # shortest and longest, in tokens
TOKENS_PER_WORD = 1.5
VOCABULARIES = (512, 1024, 2048, 4096)  # the largest takes a third of own-sentences' parameters


# -- by source --------------------------------------------------------------------------------------------------------


def read_recipe(source: str, path: str | None = None) -> Recipe | None:
    """The recipe that a file, a built-in name or a run holds; None for any other SOURCE.

    One of own data is made for the data at ``path``, not read. Raises RecipeError.
    """
    if places.is_run(source):
        return RunDirectory.open(source).recipe
    file = recipes.find(source)
    if (file is None and Path(source).suffix != ".toml") or (source in OWN_RECIPES and path is not None):
        return None
    return recipes.load(file or Path(source))


def make_recipe(source: str, path: str | None, has_teacher: bool, columns: NamedColumns) -> Recipe:
    """The recipe for a model, or for the user's data: at ``path`` for a recipe of own data, or named by SOURCE.

    ``path`` is the data of a model, too, which decides the task; with a teacher the model decides it. ``columns`` are
    what the user names of a table. Raises RecipeError, and SourceError for an unknown SOURCE.
    """
    if source in OWN_RECIPES and path is not None:
        if source == "own-text":  # texts alone
            columns = replace(columns, task=columns.task or "causal-lm")
        data = recognition.recognise(path, columns)
        if data.kind is None:
            return recipes.load(source)
        if source != f"own-{data.kind}" and columns.task in (None, "causal-lm"):
            line = f"leanify train own-{data.kind} --set data.path={quote(path)}"
            raise RecipeError(f"{source} does not take {path}, which is {data.description}: {line}")
        return data_recipe(data, path)
    own_data = recognition.find_own_data(source, columns)
    if own_data is not None:
        return data_recipe(own_data, source)
    return model_recipe(source, path, has_teacher, columns)


def is_data(source: str) -> bool:
    """Whether a SOURCE is the user's data, of which `make_recipe` makes a recipe."""
    if recipes.find(source) is not None or Path(source).suffix == ".toml" or places.path_kind(source) is not None:
        return False
    return recognition.recognise(source, NO_COLUMNS).kind is not None


def check_data(source: str | Path, recipe: Recipe) -> None:
    """Raise RecipeError, with the command to type, for a model that has neither a recipe nor data."""
    data = recipe.data
    if data is not None and data.name == "data" and data.path is None:
        raise RecipeError(
            f"{source} is a model without a recipe, so it needs data for {data.task}, "
            f"{usual_settings(data.task).layout}: "
            f"leanify train {source} --set data.path=DIR (compare takes the same --set)"
        )


def add_teacher(recipe: Recipe, teacher: str | None) -> Recipe:
    """The recipe with a SOURCE as its teacher, with the usual ``[distill]`` of its task if it has none."""
    if teacher is None:
        return recipe
    if recipe.distill is not None:
        return replace(recipe, distill=replace(recipe.distill, teacher=teacher))
    weight, temperature = usual_settings(recipe.data.task).distill if recipe.data else UsualSettings().distill
    return replace(recipe, distill=DistillSection(teacher, temperature, weight))


def parse_columns(settings: Sequence[str]) -> NamedColumns:
    """The columns and the task of a table that settings name: data.text or data.image, data.label and data.task."""
    values = {key: recipes.parse_value(text) for key, text in map(recipes.split_setting, settings) if text}
    texts = values.get("data.text", [])
    if not isinstance(texts, list):
        texts = [texts]
    columns = {key: str(values[f"data.{key}"]) for key in ("label", "task", "image") if f"data.{key}" in values}
    return NamedColumns(tuple(map(str, texts)), **columns)


def further_settings(data: DataSection) -> str:
    """The settings of a run's data that its path alone does not say, as words for another command."""
    usual = recognition.recognise(str(data.path))
    guesses = parse_columns(usual.settings)
    settings = []
    for key, guess in (("text", guesses.texts), ("image", guesses.image), ("label", guesses.label)):
        names = getattr(data, key)
        if names and names != guess:
            settings.append(f"data.{key}={format_setting(key, [names] if isinstance(names, str) else names)}")
    if data.task in own_texts.TASKS and (usual.task != data.task or usual.fault is not None):
        settings.append(f"data.task={data.task}")
    if data.on_error == "skip":
        settings.append("data.on_error=skip")
    return "".join(f" --set {quote(setting)}" for setting in settings)


# -- the user's data --------------------------------------------------------------------------------------------------


def data_recipe(data: OwnData, path: str) -> Recipe:
    """The built-in recipe for own data, fitted to its pictures or texts; of about the same duration for any size.

    Raises DataError for texts and labels of which nothing can be learnt.
    """
    if data.fault is not None and data.kind != "images":  # settings may choose other splits of pictures
        raise DataError(f"{path}: {data.description}; {data.fault}")
    recipe, settings = recipes.load(f"own-{data.kind}"), [f"data.path={json.dumps(path)}"]
    if data.kind == "text":
        return recipes.apply_settings(recipe, settings)

    # the model's input and output
    if data.classes is not None and data.kind == "images":
        settings.append(f"model.override.num_classes={data.classes}")
    if data.kind == "images":
        settings += _picture_settings(data_folder(Path(path).expanduser()), data)
    if data.words is not None and data.vocabulary is not None:
        shortest, longest = TEXT_LENGTHS
        length = min(longest, max(shortest, 8 * round((TOKENS_PER_WORD * data.words + 4) / 8)))
        size = next((size for size in VOCABULARIES if size >= data.vocabulary), VOCABULARIES[-1])
        settings += [f"data.length={length}", f'data.tokenizer="wordpiece-{size}"', f"model.override.vocab_size={size}"]

    # the task, a part that is held out, the columns, and the length of the run
    if data.task is not None:
        settings.append(f"data.task={data.task}")
    if not data.is_validated:
        settings.append("data.holdout=0.2")
    epochs = count_epochs(data.samples)
    settings += [*data.settings, f"schedule.epochs={epochs}", f"schedule.warmup={WARMUP * epochs:g}"]
    if data.kind == "images" and epochs < MIN_AUGMENTED_EPOCHS:
        settings.append("data.crop=[1.0, 1.0]")
    return recipes.apply_settings(recipe, settings)


def count_epochs(samples: int | None, samples_seen: int = SAMPLES) -> int:
    """The epochs of a run on own data, by the samples of its training split (None if there are many)."""
    return min(100, max(3, samples_seen // (samples or samples_seen)))


def _picture_settings(place: Path, data: OwnData) -> list[str]:
    """Size, patch and channels for pictures in a folder, table or shards: small ones stay, larger ones shrink."""
    # some of the first pictures
    files: Any = ()
    with suppress(DataError):  # training names the fault
        files = first_pictures(place, None if data.columns is None else data.columns[0][0], FIRST_PICTURES)
    sizes, are_grey = [], True
    for index in range(0, len(files), max(1, len(files) // MAX_PICTURES)):
        try:
            with files[index][0] as stream, open_picture(stream) as picture:
                sizes.append(max(picture.size))
                are_grey = are_grey and picture.mode in ("1", "L", "I", "I;16", "F")
        except Exception:  # Pillow's decoders raise many types for damaged files
            continue  # training names the pictures that cannot be read
    if not sizes:
        return []

    # the median size, rounded up so that a patch divides it
    size = min(sorted(sizes)[len(sizes) // 2], MAX_SIDE)
    size += -size % (2 if size < 32 else 4)
    patch = next(side for side in range(2, size + 1) if size % side == 0 and size // side <= MAX_PATCHES)
    settings = [f"model.override.img_size={size}", f"model.override.patch_size={patch}"]
    if are_grey:
        settings.append("model.override.in_chans=1")
    return settings


def set_steps(recipe: Recipe, steps: int) -> Recipe:
    """The recipe for runs of some steps, evaluated and logged evenly."""
    intervals = [f"run.eval_every={max(1, steps // EVALUATIONS)}", f"run.log_every={max(1, steps // ROWS)}"]
    return recipes.apply_settings(recipe, [f"schedule.steps={steps}", *intervals])


# -- a model ----------------------------------------------------------------------------------------------------------


def model_recipe(
    name: str, path: str | None = None, has_teacher: bool = False, columns: NamedColumns = NO_COLUMNS
) -> Recipe:
    """The usual task of a model: classification of images, masked words for an encoder of text, or the next word.

    A text model with a table of labelled texts at ``path`` becomes a classifier or a regressor. A model with a
    teacher keeps the head that both have; an encoder without a head learns the teacher's embeddings.
    """
    # an image model, or an encoder that learns embeddings
    source = find.find(name)
    model = find.build_on_meta(source)
    if next(iter(example_inputs(model, 1, device="meta"))) != "input_ids":
        return _image_recipe(name, path, source, columns)
    if has_teacher and _is_encoder(source):
        return _embedding_recipe(name, source)

    # labelled texts; a student of transformers keeps its head, so it must be a classifier's
    takes_labels = not has_teacher or source.origin.library == user_modules.LIBRARY
    takes_labels = takes_labels or _auto_class(source, "AutoModelForSequenceClassification") == source.origin.cls
    if path is not None and takes_labels:
        labelled = _labelled_recipe(name, path, source, columns)
        if labelled is not None:
            return labelled
    masked_cls = _auto_if_supported(source, "AutoModelForMaskedLM")
    causal_cls = _auto_if_supported(source, "AutoModelForCausalLM")
    if not masked_cls and not causal_cls and source.origin.library == "hf" and _config(source).is_encoder_decoder:
        raise RecipeError(
            f"{name} reads one text and writes another, and no task here trains that: redesign, profile and export "
            "take it. Of labelled texts (text,label in a table) its encoder learns classes"
        )
    task = "masked-lm" if masked_cls or takes_chosen(model) else "causal-lm"
    mask = 0.15 if task == "masked-lm" else 0.0
    data = DataSection("data", task, tokenizer=find_tokenizer(name, source), mask=mask)
    return _usual_recipe(name, source, masked_cls or causal_cls, data)


def _image_recipe(name: str, path: str | None, source: ModelSource, columns: NamedColumns) -> Recipe:
    """Classification of the user's images; a new model gets as many outputs as they have classes."""
    cls = _auto_if_supported(source, "AutoModelForImageClassification")
    if cls is None and source.origin.library == "hf":
        raise RecipeError(
            f"{name}: transformers has no image classifier for the model type {_config(source).model_type!r}; timm may "
            "have the same model with a head (leanify zoo lists it), or add one in a module of your own, "
            "path/to/model.py:make"
        )
    data, override = DataSection("data", "classification"), {}
    images = None if path is None else recognition.recognise(path, columns)
    samples = None
    if images is not None and images.kind == "images":
        samples = images.samples
        data = replace(data, holdout=0.0 if images.is_validated else 0.1)
        if images.columns is not None:
            data = replace(data, image=images.columns[0][0], label=images.columns[1])

        # a model with weights, in a lean shape or of the user's own code keeps its outputs
        is_own_code = source.origin.library == user_modules.LIBRARY
        is_fresh = source.weights is None and source.architecture is None and not is_own_code
        if is_fresh and images.classes is not None:
            override = {"num_labels" if cls else "num_classes": images.classes}
    return _usual_recipe(name, source, cls, data, override, label_smoothing=0.1, samples=samples)


def _usual_recipe(
    name: str,
    source: ModelSource,
    cls: str | None,
    data: DataSection,
    override: Mapping[str, Any] | None = None,
    label_smoothing: float = 0.0,
    samples: int | None = None,
) -> Recipe:
    """A recipe of ten epochs; few ``samples`` are seen more often, in small batches and as they are."""
    is_trained = has_trained_weights(source)
    batch_size, epochs, warmup = usual_settings(data.task).batch_size, 10, 0.5
    if samples is not None and samples < FEW_SAMPLES:
        batch_size = min(batch_size, SMALL_BATCH)
        epochs = count_epochs(samples, TRAINED_SAMPLES if is_trained else SAMPLES)
        warmup = WARMUP * epochs
        data = replace(data, crop=OWN_CROP, flip=0.0, color_jitter=0.0)
    return Recipe(
        model=ModelSection(name, cls=cls if source.architecture is None else None, override=override or {}),
        data=data,
        optim=OptimSection(1e-4 if is_trained else 1e-3, weight_decay=0.05, clip=1.0, label_smoothing=label_smoothing),
        schedule=ScheduleSection(batch_size, epochs=epochs, warmup=warmup),
    )


def _embedding_recipe(name: str, source: ModelSource) -> Recipe:
    """Sentence embeddings by the cosine to the teacher's, with the sequence length of sentence-transformers.

    Without dropout: the targets are a function of the text, and a noisy student follows them less closely
    (``recipes/results/warm-minilm.md``).
    """
    length = heads.read_max_length(Path(name))
    config = _config(source).to_dict()
    no_dropout = {key: 0.0 for key, rate in config.items() if "drop" in key and isinstance(rate, float) and rate > 0}
    return Recipe(
        model=ModelSection(name, cls=heads.encoder_class(source), override=no_dropout),
        data=DataSection("data", "sentence-embedding", tokenizer=find_tokenizer(name, source), length=length),
        optim=OptimSection(5e-4 if has_trained_weights(source) else 1e-3, weight_decay=0.01, clip=1.0),
        schedule=ScheduleSection(64, epochs=3, warmup=0.1),
    )


def _labelled_recipe(name: str, path: str, source: ModelSource, columns: NamedColumns) -> Recipe | None:
    """Fine-tuning with a new head, as Devlin et al. 2019 do (appendix A.3): few epochs, a low rate, a short warm-up.

    Without a validation table a tenth of the samples is held out. None for data without labels.
    """
    # the task, and whether there is a validation table; training names the fault of data that cannot be trained on
    data = recognition.recognise(path, columns)
    if data.kind is None and data.description and columns.task not in WITHOUT_LABELS:
        raise DataError(str(data.problem(path)))
    task = columns.task if columns.task in own_texts.TASKS else data.task
    if task is None:
        return None
    is_validated = data.is_validated
    if data.kind is None:
        is_validated = find_table(data_folder(Path(path).expanduser()), "validation") is not None

    is_trained = has_trained_weights(source)
    epochs = 3
    if data.samples is not None and data.samples < FEW_SAMPLES:  # as many steps as make a head learn
        epochs = count_epochs(data.samples, TRAINED_SAMPLES if is_trained else SAMPLES)
    recipe = Recipe(
        model=ModelSection(name),
        data=DataSection("data", task, holdout=0.0 if is_validated else 0.1),
        optim=OptimSection(3e-5 if is_trained else 5e-4, weight_decay=0.01, clip=1.0),
        schedule=ScheduleSection(32, epochs=epochs, kind="linear", warmup=WARMUP * epochs),
    )
    return recipes.apply_settings(recipe, data.settings)


def _is_encoder(source: ModelSource) -> bool:
    """Whether a model of transformers has no head, or its folder is a sentence-transformers model."""
    if source.origin.library != "hf":
        return False
    folder = Path(str(source.origin.options.get("_name_or_path") or ""))
    # T5 has two classes without a head: the whole, and its encoder alone
    headless_classes = {_auto_class(source, "AutoModel"), _auto_class(source, heads.encoder_class(source))}
    return source.origin.cls in headless_classes or heads.is_encoder(folder)


def _auto_if_supported(source: ModelSource, auto: str) -> str | None:
    """An auto class of transformers if it has one for the model; None for models of other libraries."""
    return None if _auto_class(source, auto) is None else auto


def _auto_class(source: ModelSource, auto: str) -> str | None:
    """The class that an auto class leads to."""
    if source.origin.library != "hf":
        return None
    try:
        return class_name(auto, _config(source))
    except SourceError:
        return None


def _config(source: ModelSource) -> Any:
    """The configuration of a model of transformers."""
    return import_transformers().AutoConfig.for_model(source.origin.name, **drop_type(source.origin.options))
