"""The Hugging Face hub, or its cache here where there is no network."""

from __future__ import annotations

import logging
import socket
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from leanify.errors import SourceError
from leanify.upstream.libraries import first_line, import_transformers


def config_on_hub(name: str) -> dict[str, Any]:
    """The configuration of a transformers model on the hub. Raises SourceError."""
    library = import_transformers()
    logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)  # the message below reports its retries
    try:
        config, _ = library.PreTrainedConfig.get_config_dict(name, local_files_only=not answers())
    except Exception as error:  # the hub client raises from several libraries
        raise SourceError(
            f"{name!r} is no file or directory here, and the Hugging Face hub did not give it: {first_line(error)}"
        ) from error
    if "model_type" not in config or config["model_type"] == "timm_wrapper":
        raise SourceError(f"{name!r} on the hub is not a transformers model; name a timm model as timm/NAME")
    return {**config, "_name_or_path": name}


@cache
def answers() -> bool:
    """Whether the hub's name resolves; without a network only the local cache is asked, at once."""
    from huggingface_hub import constants

    try:
        socket.getaddrinfo(urlsplit(constants.ENDPOINT).hostname, 443)
    except OSError:
        return False
    return not constants.HF_HUB_OFFLINE
