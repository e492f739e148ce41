"""Small versions of both libraries' models, on which the laws take seconds; `build` returns a model and a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from leanify.upstream.libraries import import_timm, import_transformers
from leanify.zoo import tiny_timm, tiny_transformers

LIBRARIES = ("timm", "hf")


def warm() -> None:
    """Import what every model needs before processes are forked."""
    import_timm()
    import_transformers()


def build(library: str, name: str) -> tuple[nn.Module, Callable[[nn.Module], Any]]:
    """Return the small model, and a function that runs it (or a reshaped version) on fixed random inputs."""
    return tiny_timm.build(name) if library == "timm" else tiny_transformers.build(name)


def names(library: str) -> list[str]:
    """Every model of a library that may have attention layers."""
    return tiny_timm.names() if library == "timm" else tiny_transformers.names()
