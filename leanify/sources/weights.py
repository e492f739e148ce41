"""Load the model of a resolved SOURCE with its weights: by upstream's loader, or into a shell."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from leanify.core.errors import SourceError
from leanify.core.files.reading import is_file, preview, read_object
from leanify.core.files.tensor_files import check_header, open_tensors
from leanify.core.path_kinds import WEIGHTS, is_checkpoint
from leanify.reshaping import surgery
from leanify.sources.names import hub_answers, split_revision
from leanify.sources.overrides import full_config, own_code, quantisation_method
from leanify.sources.source import ModelSource, build_on_meta, find_expression
from leanify.sources.tensors import (
    UNQUANTISED,
    UPSTREAM,
    check_sum,
    fit_names,
    load_into,
    read_tensors,
    upstream_file,
    weight_map,
)
from leanify.upstream.build import build_model, build_shell, check_memory
from leanify.upstream.libraries import import_timm, import_transformers, reraise_as
from leanify.upstream.origin import Origin, get_record, in_mode, note_fact, set_origin

# File name prefixes that trainers leave next to the weights: pickles of their own state, which are never opened.
LITTER = ("training_args", "optimizer", "scheduler", "scaler", "rng_state", "trainer_state", "adapter_model")


PACKED = ("I8", "U8", "I32")  # types of tensors that hold packed weights
# Files of weights that are not read → what makes others of them.
UNREAD = {
    "*.gguf": "transformers unpacks it, AutoModelForCausalLM.from_pretrained(DIR, gguf_file=FILE).save_pretrained(NEW)",
    "tf_model.h5": "transformers 4 converts it, from_pretrained(DIR, from_tf=True).save_pretrained(NEW)",
    "flax_model.msgpack": "transformers 4 converts it, from_pretrained(DIR, from_flax=True).save_pretrained(NEW)",
    "global_step*": "DeepSpeed's script beside it gathers the shards, python zero_to_fp32.py DIR NEW",
    "pytorch_model_fsdp_*": "accelerate gathers the shards, accelerate merge-weights SHARDS NEW",
    "*.onnx": "take the weights that it was exported from",
    "onnx/*.onnx": "take the weights that they were exported from",
}


def is_headless(model: nn.Module) -> bool:
    """Whether a part of the model that makes its outputs was initialised when it was loaded, so that they say nothing.

    What lies below the head, such as a pooler, changes no hidden state.
    """
    base: Any = getattr(model, "base_model", model)
    prefix = f"{getattr(model, 'base_model_prefix', '')}."
    new_tensors = get_record(model).new_tensors
    return base is not model and any(not name.startswith(prefix) for name in new_tensors)


def load_complete(source: ModelSource, name: str | Path) -> nn.Module:
    """`load`, but raise SourceError if tensors of layers were missing and therefore initialised.

    A new head or pooler is acceptable; a layer with random weights is not part of the trained model.
    """
    model = load(source)
    lost = [tensor for tensor in get_record(model).new_tensors if re.search(r"\.\d+\.", tensor)]
    if lost:
        raise SourceError(
            f"{name} lacks {len(lost)} tensors of layers in its configuration ({preview(lost)}), which would be "
            "random; check that the checkpoint is complete"
        )
    return model


@reraise_as("the model does not load")
def load(source: ModelSource) -> nn.Module:
    """Return the found model in eval mode, with its weights or freshly initialised. Raises SourceError."""
    where, origin = source.weights, source.origin
    # no weights: drawn by upstream's initialiser
    if where is None:
        return build_fresh(source)
    if isinstance(where, Path):
        check_memory(where, _size(where))
    # transformers opens its own folders, whatever their files
    if origin.library == "hf" and source.architecture is None:
        return _load_transformers(origin, where)
    # timm fetches its pretrained weights by name
    if isinstance(where, str):
        could_not = f"the pretrained weights of {origin} could not be fetched"
        if not hub_answers():
            raise SourceError(f"{could_not}: the Hugging Face hub cannot be reached")
        with reraise_as(could_not):
            model: nn.Module = import_timm().create_model(origin.name, pretrained=True, **origin.options)
    # a file of weights into the model of the card or the configuration, tied tensors under all their names
    else:
        file = where if where.is_file() else find_weights(where)
        model = shell(source)
        tensors = read_tensors(file, origin.library)
        load_into(model, {**tensors, **{a: tensors[b] for a, b in source.tied.items() if b in tensors}}, file)
    _check_values(model, where)
    set_origin(model, origin)
    return in_mode(model)


def load_teacher_weights(source: ModelSource, teacher: ModelSource, what: str | Path) -> nn.Module:
    """Return the found model with the teacher's weights; ``what`` names the teacher in messages.

    transformers matches models with and without a head by its own rules; newly initialised tensors raise a
    warning. For timm and leanify every tensor must fit. Raises SourceError.
    """
    if teacher.weights is None:
        raise SourceError(f"{what} has no weights; name a checkpoint, a directory with weights or a hub id")
    if source.origin.library == "hf" and source.architecture is None:
        if teacher.origin.library == "hf" and teacher.architecture is None:
            return _load_transformers(source.origin, teacher.weights)
        return _load_transformers(source.origin, what, dict(load(teacher).state_dict()))
    model = shell(source)
    load_into(model, dict(load(teacher).state_dict()), what)
    return in_mode(model)


def build_fresh(source: ModelSource) -> nn.Module:
    """Return the found model in its shape, freshly initialised by upstream's rules.

    Upstream's constructor builds the shapes that it can express, surgery and upstream's initialiser the others. This is
    the only place where models are initialised, so one seed gives the same model in a plan, a recipe and a training.
    """
    if source.architecture is None:
        return build_model(source.origin)
    native = find_expression(build_on_meta(source), source.origin, source.architecture)
    if native is None:
        return surgery.write(build_model(source.origin), source.architecture, "fresh")
    model = build_model(native)
    set_origin(model, source.origin)
    return model


def shell(source: ModelSource) -> nn.Module:
    """Build a model to load weights into: parameters on meta, buffers real."""
    model = build_shell(source.origin)
    return model if source.architecture is None else surgery.write(model, source.architecture)


# -- files -------------


def has_weights(directory: Path) -> bool:
    """Whether a directory has weights; a trainer's own state does not count."""
    return upstream_file(directory) is not None or bool(_others(directory))


def _others(directory: Path) -> list[Path]:
    """Checkpoints whose names upstream's loaders do not look for."""
    checkpoints = [path for path in directory.iterdir() if is_checkpoint(path)]
    return sorted(path for path in checkpoints if not path.name.startswith(LITTER) and path.name not in UPSTREAM)


def describe_unread(place: Path) -> str:
    """What makes others of a file of weights that is not read, or of such files in a directory; "" for others."""
    for pattern, remedy in UNREAD.items():
        files = sorted(str(path.relative_to(place)) for path in place.glob(pattern))
        if files or (place.is_file() and place.match(pattern)):
            what = f" ({preview(files)})" if files else ""
            return f"{place} has weights in a form that is not read{what}: {remedy}"
    return ""


def _size(where: Path) -> int:
    """Bytes that loading a file or directory brings into memory at least, without opening a file."""
    file = where if where.is_file() else upstream_file(where)
    if file is None or ".safetensors" not in file.suffixes:
        return 0
    files = where.glob("model-*.safetensors") if file.suffix == ".json" else [file]
    return sum(file.stat().st_size for file in files)


def find_weights(directory: Path) -> Path:
    """The weights file in a directory: by upstream's name, or the only one. Raises SourceError if unclear."""
    for name in ("model.safetensors", "pytorch_model.bin"):
        if (directory / name).is_file():
            return directory / name
    others = _others(directory)
    if len(others) != 1:
        listing = preview([p.name for p in others]) or "no weights"
        raise SourceError(f"{directory} has {listing}; name the file to load")
    return others[0]


def _check_files(directory: Path) -> None:
    """Check the files that transformers would open. Raises SourceError for a damaged or unsafe one."""
    # the file that transformers would choose, and the shards that its index names
    file = upstream_file(directory)
    if file is None:
        listing = preview([p.name for p in _others(directory)])
        raise SourceError(f"{directory} has no weights that transformers opens; found {listing}: name the file to load")
    files = [file]
    if file.suffix == ".json":
        shards = weight_map(file)
        if shards is None or not all(isinstance(shard, str) for shard in shards.values()):
            raise SourceError(f"{file} is damaged: it has no weight_map from tensor names to files")
        for shard in shards.values():  # a link is followed: the hub's cache consists of links
            if Path(shard).name != shard or Path(shard).suffix not in WEIGHTS or not is_file(directory / shard):
                raise SourceError(f"{file} names {shard[:80]!r}, which is not a file of weights beside it")
        files = [directory / shard for shard in sorted(set(shards.values()))]
    # checksums of safetensors, and no pickle that would run code
    for file in files:
        if file.suffix == ".safetensors":
            check_header(file)
            check_sum(file)
            with open_tensors(file) as tensors:
                names = [name for name in tensors.keys() if name.endswith(".weight")]  # noqa: SIM118  not a dict
                packed = [name for name in names if tensors.get_slice(name).get_dtype() in PACKED]
            if packed:
                raise SourceError(f"{directory} is quantised: {preview(packed)} are integers; {UNQUANTISED}")
        else:
            read_tensors(file)  # refuses a pickle that would run code, with leanify's own message


# -- upstream -------------


def _load_transformers(origin: Origin, weights: Path | str, tensors: dict[str, Tensor] | None = None) -> nn.Module:
    """Load by transformers' own loader, which handles shards, old tensor names and added heads; warn of new tensors."""
    # given tensors, a file of them, or a folder that transformers reads itself
    where: Path | str | None = weights
    file: Path | None = None  # one file of weights, whose names may have to be fitted
    if isinstance(weights, Path) and weights.is_file():
        file, tensors = weights, read_tensors(weights)
    elif isinstance(weights, Path) and tensors is None:
        method = quantisation_method(read_object(weights / "config.json"))
        if method:
            raise SourceError(
                f"{weights} is quantised ({method}): its tensors are packed, so heads and hidden units cannot be "
                f"removed from them; {UNQUANTISED}"
            )
        _check_files(weights)
        file = upstream_file(weights)
    if tensors is not None:
        where = None
    revision = None
    if isinstance(where, str):
        where, revision = split_revision(where)
    # the whole model by upstream's loader, which reports missing tensors
    config = full_config(origin.name, origin.options)
    cls: Any = getattr(import_transformers(), origin.cls)
    options: dict[str, Any] = {"output_loading_info": True, "ignore_mismatched_sizes": True}  # they are in the info
    if revision is not None:
        options["revision"] = revision
    with reraise_as(f"{weights} does not load as {origin.cls}"):
        model, info = cls.from_pretrained(where, config=config, state_dict=tensors, **options)
        if file is not None and file.suffix != ".json" and info["missing_keys"] and info["unexpected_keys"]:
            tensors_by_name = read_tensors(file) if tensors is None else tensors
            fitting = fit_names(tensors_by_name, model.state_dict(), file, f"{model.base_model_prefix}.")
            if fitting is not tensors_by_name:  # with the names that upstream knows
                where = None
                model, info = cls.from_pretrained(where, config=config, state_dict=fitting, **options)
    if where is None:  # from_pretrained forgets the directory, where the tokenizer lies
        model.config._name_or_path = origin.options.get("_name_or_path") or ""
    _check_fit(model, info, weights, own_code(origin.options))
    _warn_about_names(model, info, weights)
    _check_values(model, weights)
    set_origin(model, origin)
    result: nn.Module = in_mode(model)
    return result


def _check_fit(model: Any, info: dict[str, Any], weights: Path | str, code: str) -> None:
    """Raise SourceError for tensors that do not fit; ``code`` is the authors' own, which leanify does not run."""
    # layers whose tensors mean something else in the authors' code
    lost = sorted(name for name in (*info["missing_keys"], *info["unexpected_keys"]) if re.search(r"\.\d+\.", name))
    if code and lost:
        raise SourceError(
            f"{weights} was made by code of its own ({code}), which leanify does not run, and transformers' "
            f"{type(model).__name__} is another model: {len(lost)} tensors of layers do not fit ({preview(lost)}); "
            "build the model with that code, and give path/to/model.py:make, or the module and its inputs"
        )

    # tensors of another shape, except in a head with another number of classes
    odd = sorted((str(name), tuple(stored), tuple(built)) for name, stored, built in info["mismatched_keys"])
    config = read_object(Path(weights) / "config.json")
    labels = config.get("id2label") or (0, 1)  # transformers' default is two
    if config and len(labels) != model.config.num_labels and model.base_model is not model:
        odd = [entry for entry in odd if entry[0].startswith(f"{model.base_model_prefix}.")]
    if odd:
        mismatches = preview([f"{name} {shape} instead of {expected_shape}" for name, shape, expected_shape in odd])
        raise SourceError(f"{weights} does not fit {type(model).__name__}: {len(odd)} of another shape ({mismatches})")

    # tensors that the configuration ties and the file does not, which transformers leaves apart with a line in its
    # log: plans would count too few
    tied = model.get_expanded_tied_weights_keys(all_submodels=True)
    for name in sorted(tied.keys() - model.all_tied_weights_keys.keys()):
        raise SourceError(
            f"{weights} holds {name} and {tied[name]} with different values, but its configuration ties them; set "
            '"tie_word_embeddings": false in its config.json'
        )


def _check_values(model: nn.Module, weights: Path | str) -> None:
    """Raise SourceError for parameters that are not finite, as of a training that diverged."""
    broken = []
    for name, parameter in model.named_parameters():
        has_extremes = parameter.numel() and parameter.is_floating_point() and parameter.element_size() > 1
        extremes = parameter.detach().aminmax() if has_extremes else ()  # torch has none of eight bits
        if not all(bool(extreme.isfinite()) for extreme in extremes):
            broken.append(name)
    if broken:
        raise SourceError(
            f"{weights} has NaN or infinite values in {len(broken)} of its tensors ({preview(broken)}), so every "
            "answer would be NaN; take a checkpoint from before its training diverged"
        )


def _warn_about_names(model: Any, info: dict[str, Any], weights: Path | str) -> None:
    # names of new tensors, and of tensors that were not used
    model_names = list(model.state_dict())
    new, left_over = sorted(info["missing_keys"]), sorted(info["unexpected_keys"])
    new = sorted({*new, *(str(entry[0]) for entry in info["mismatched_keys"])})
    name = type(model).__name__
    if len(new) == len(model_names):
        raise SourceError(f"{weights} has no tensor of {name}; the first missing ones: {preview(new)}")
    if new:
        rest = f", {len(left_over)} unused ({preview(left_over)})" if left_over else ""
        warnings.warn(
            f"{weights} as {name}: {len(model_names) - len(new)} tensors carried over, {len(new)} re-initialised "
            f"({preview(new)}){rest}",
            stacklevel=4,
        )
    elif lost := [name for name in left_over if re.search(r"\.\d+\.", name)]:
        message = f"{weights} has {len(lost)} tensors of layers that {name} has not ({preview(lost)})"
        warnings.warn(message, stacklevel=4)
    note_fact(model, new_tensors=tuple(new))
