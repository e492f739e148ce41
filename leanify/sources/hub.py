"""The Hugging Face hub, or its local cache without a network."""

from __future__ import annotations

import difflib
import logging
import socket
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from leanify.core.errors import SourceError
from leanify.upstream.libraries import first_line, import_transformers


def config_on_hub(name: str) -> dict[str, Any]:
    """Return the configuration of a transformers model on the hub. Raises SourceError if there is none."""
    library = import_transformers()
    # the message below reports a failure once
    logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)  # the message below reports its retries
    try:
        config, _ = library.PreTrainedConfig.get_config_dict(name, local_files_only=not answers())
    except Exception as error:  # the hub client raises from several libraries
        why = "did not serve it: " + first_line(error) if answers() else "cannot be reached: this machine is offline"
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
        return Path(hf_hub_download(name, file, local_files_only=not answers()))
    except Exception:  # the hub client raises from several libraries
        return None


def snapshot(name: str, patterns: Iterable[str]) -> Path:
    """The folder in the hub's cache that has a model's files of these patterns, fetched where the hub answers.

    The hub client raises from several libraries.
    """
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(name, allow_patterns=list(patterns), local_files_only=not answers()))


def similar_paths(name: str) -> list[str]:
    """Up to three existing paths similar to a missing one, best match first."""
    place = Path(name[:200]).expanduser()
    try:
        siblings = [entry.name for entry in place.parent.iterdir() if not entry.name.startswith(".")]
    except OSError:
        return []
    return [str(place.parent / match) for match in difflib.get_close_matches(place.name, siblings, n=3, cutoff=0.6)]


@cache
def answers() -> bool:
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
