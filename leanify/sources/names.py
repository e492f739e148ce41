"""Names of models, looked up in the installed libraries' files and on the hub, or in its local cache offline.

Wrong names are refused without importing a library.
"""

from __future__ import annotations

import difflib
import importlib.util
import json
import logging
import os
import re
import socket
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from leanify.core import recipe
from leanify.core.errors import SourceError
from leanify.core.files.reading import preview
from leanify.core.recipe_code import is_code
from leanify.upstream.libraries import first_line, import_transformers

HUB = (  # the hub's well-known models without a slash, as suggestions
    "bert-base-uncased", "bert-base-cased", "bert-large-uncased", "bert-base-multilingual-cased",
    "distilbert-base-uncased", "roberta-base", "roberta-large", "distilroberta-base", "xlm-roberta-base",
    "albert-base-v2", "gpt2-medium", "gpt2-large", "gpt2-xl", "distilgpt2", "t5-small", "t5-base", "t5-large",
)  # fmt: skip
STANDARD = ("_patch16_224", "_p16_224", "_patch14_224", "_224")  # tried in order to complete a timm family's name
CLOSE = 0.85  # likeness above which a name is taken for a misspelt one
CONFIGURATIONS = "models/*/configuration_*.py"  # a file of transformers for each of its models
KINDS = "timm model, transformers model type, recipe, hub id or path"


def check_names(texts: str | list[str] | None) -> str | list[str] | None:
    """Return a command's SOURCE. Raises SourceError for a name that can only be a mistake."""
    for text in [texts] if isinstance(texts, str) else texts or []:
        is_path = os.path.exists(os.path.expanduser(text))  # noqa: PTH110, PTH111  False for one too long or with a NUL
        is_word = re.fullmatch(r"[A-Za-z][\w.-]*", text) is not None and not Path(text).suffix
        if is_path or not is_word or is_code(text) or recipe.find(text) is not None:
            continue
        bare = text.partition(".")[0]
        if text in HUB or bare.replace("-", "_") in {name.replace("-", "_") for name in model_types()}:
            continue
        try:
            complete_name(text, text)
        except SourceError:
            if "_" in text or f"{bare}_" in " ".join(timm_names()) or not hub_answers():
                raise  # else the hub may know it
    return texts


def complete_name(source: str, name: str) -> str:
    """Complete a short timm name: the name itself, then with a standard suffix, then the only name that starts with it.

    Raises SourceError for ambiguous and unknown names, listing candidates.
    """
    # the name itself, or with one of the usual suffixes
    names = timm_names()
    bare, dot, tag = name.partition(".")
    if bare in names:
        return name
    for suffix in STANDARD:
        if bare + suffix in names:
            return bare + suffix + dot + tag

    def standard_first(member: str) -> tuple[int, int]:
        ranks = [i for i, suffix in enumerate(STANDARD) if member.endswith(suffix)]
        return min(ranks, default=len(STANDARD)), len(member)

    # else names that begin with it, the most usual first; a word that is cut short or misspelt is likely another one
    members = sorted((one for one in names if one.startswith(f"{bare}_")), key=standard_first)
    if len(members) == 1:
        return members[0] + dot + tag
    if not members:
        families = {one.removesuffix(suffix) for one in names for suffix in STANDARD if one.endswith(suffix)}
        similar = difflib.get_close_matches(bare[:200], families, n=3, cutoff=CLOSE)
        if similar:
            raise SourceError(f"{source[:200]!r} is not a {KINDS}; did you mean {' or '.join(similar)}?")
        members = sorted((one for one in names if one.startswith(bare)), key=standard_first)
    if members:
        raise SourceError(f"{source!r} is ambiguous: timm has {preview(members, 8)}")
    # else a message with the nearest names of every kind
    if source.startswith("timm/"):
        raise SourceError(unknown_name(source, bare, sorted(names)))
    raise SourceError(
        unknown_name(source, bare, [*names, *model_types(), *recipe.stems(), *HUB, *similar_paths(source)])
    )


def unknown_name(source: str, name: str, candidates: list[str], kinds: str = KINDS) -> str:
    """The message for a name without a model, with the nearest candidates."""
    full_names = {}
    for full in candidates:
        full_names[full] = full
        for suffix in STANDARD:
            full_names[full.removesuffix(suffix)] = full
    matches = difflib.get_close_matches(name[:200], full_names, n=5, cutoff=0.6)
    similar = ", ".join(dict.fromkeys(full_names[match] for match in matches))
    if re.fullmatch(r"[0-9.]+[%MGk]?", source):
        return f"{source!r} is not the name of a model; a budget is --target-params {source}"
    nearest = f"; nearest: {similar}" if similar else ""
    return f"{source[:200]!r} is not a {kinds}{nearest}"


def timm_names() -> set[str]:
    """timm's models: those that its files register, and those registered since it was imported."""
    timm: Any = sys.modules.get("timm")
    return {*_registered(), *(timm.list_models() if hasattr(timm, "list_models") else ())}


@cache
def _registered() -> frozenset[str]:
    return frozenset(_find_all("timm", "models/*.py", r"^@register_model\s+def (\w+)"))


@cache
def model_types() -> list[str]:
    """transformers' model types: its folders, and the types of parts that its configurations name."""
    names = _find_all("transformers", CONFIGURATIONS, r'^    model_type(?:: str)? = "([\w.-]+)"')
    return sorted({*names, *(path.parent.name for path in _files("transformers", CONFIGURATIONS))})


def is_model_type(name: str) -> bool:
    """Whether transformers has a folder of this name: the models themselves, without their parts."""
    return name.replace("-", "_") in {path.parent.name for path in _files("transformers", CONFIGURATIONS)}


def _find_all(package: str, pattern: str, expression: str) -> set[str]:
    names = set()
    for path in _files(package, pattern):
        names.update(re.findall(expression, path.read_text("utf-8"), re.MULTILINE))
    return names


def _files(package: str, pattern: str) -> list[Path]:
    spec = importlib.util.find_spec(package)
    places = (spec and spec.submodule_search_locations) or []
    return [path for place in places for path in Path(place).glob(pattern)]


def similar_paths(name: str) -> list[str]:
    """Up to three existing paths similar to a missing one, best match first."""
    place = Path(name[:200]).expanduser()
    try:
        siblings = [entry.name for entry in place.parent.iterdir() if not entry.name.startswith(".")]
    except OSError:
        return []
    return [str(place.parent / match) for match in difflib.get_close_matches(place.name, siblings, n=3, cutoff=0.6)]


def parse_overrides(pairs: list[str]) -> dict[str, Any]:
    """Parse ``key=value`` pairs; a value that is not JSON is a string. Raises SourceError for a malformed pair."""
    overrides = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise SourceError(f"--override takes key=value, not {pair!r}")
        try:
            overrides[key] = json.loads(value)
        except (json.JSONDecodeError, RecursionError):
            overrides[key] = {"True": True, "False": False, "None": None}.get(value, value)
    return overrides


# -- the hub -------------


@cache
def hub_answers() -> bool:
    """Whether the hub can be reached (its host name resolves, and offline mode is off).

    If not, callers use only the local cache, without waiting for timeouts.
    """
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:  # then not even a name server is asked
        return False
    try:
        socket.getaddrinfo(urlsplit(constants.ENDPOINT).hostname, 443)
    except OSError:
        return False
    return True


def split_revision(name: str) -> tuple[str, str | None]:
    """(repository, branch, tag or commit) of a hub id: ``org/name@v1`` → ("org/name", "v1")."""
    repository, _, revision = name.partition("@")
    return repository, revision or None


def config_on_hub(name: str) -> dict[str, Any]:
    """Return the configuration of a transformers model on the hub. Raises SourceError if there is none."""
    library = import_transformers()
    logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)  # the message below reports its retries
    try:
        repository, revision = split_revision(name)
        config, _ = library.PreTrainedConfig.get_config_dict(
            repository, revision=revision, local_files_only=not hub_answers()
        )
    except Exception as error:  # the hub client raises from several libraries
        why = (
            f"did not serve it: {first_line(error)}" if hub_answers() else "cannot be reached: this machine is offline"
        )
        similar = ", ".join(similar_paths(name))
        hint = f" (similar: {similar})" if similar else ""
        raise SourceError(f"there is no file or directory {name!r}{hint}, and the Hugging Face hub {why}") from error
    # timm's models on the hub are opened by timm
    if "model_type" not in config or config["model_type"] == "timm_wrapper":
        raise SourceError(f"{name!r} on the hub is not a transformers model; name a timm model as timm/NAME")
    return {**config, "_name_or_path": name}


def download_file(name: str, file: str) -> Path | None:
    """A file of a model on the hub, from the cache or fetched; None if the model has no such file."""
    from huggingface_hub import hf_hub_download

    try:
        repository, revision = split_revision(name)
        return Path(hf_hub_download(repository, file, revision=revision, local_files_only=not hub_answers()))
    except Exception:  # the hub client raises from several libraries
        return None


def snapshot(name: str, patterns: Iterable[str]) -> Path:
    """The folder in the hub's cache that has a model's files of these patterns, fetched where the hub answers."""
    from huggingface_hub import snapshot_download

    repository, revision = split_revision(name)
    offline = not hub_answers()
    folder = snapshot_download(repository, revision=revision, allow_patterns=list(patterns), local_files_only=offline)
    return Path(folder)
