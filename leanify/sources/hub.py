"""The Hugging Face hub, or its local cache without a network."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from leanify.core.errors import SourceError
from leanify.sources.names import hub_answers, similar_paths
from leanify.upstream.libraries import first_line, import_transformers


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
            "did not serve it: " + first_line(error) if hub_answers() else "cannot be reached: this machine is offline"
        )
        similar = similar_paths(name)
        hint = f" (similar: {', '.join(similar)})" if similar else ""
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
    """The folder in the hub's cache that has a model's files of these patterns, fetched where the hub answers.

    The hub client raises from several libraries.
    """
    from huggingface_hub import snapshot_download

    repository, revision = split_revision(name)
    offline = not hub_answers()
    folder = snapshot_download(repository, revision=revision, allow_patterns=list(patterns), local_files_only=offline)
    return Path(folder)
