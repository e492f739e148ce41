"""The user's cache of prices: one JSON file for each key, and the key of a SOURCE. Imports no torch.

A key holds all that a price depends on: the source, the contents of the local files that say its shape, the
options that change the model, leanify's own code and the versions of the libraries. Damaged or foreign files
are ignored; writes are atomic.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import warnings
from collections.abc import Callable
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from leanify.design.options import Options
from leanify.errors import RecipeError
from leanify.runs import recipe
from leanify.runs.cache import home, read_value, write_value
from leanify.runs.files import read_text

if TYPE_CHECKING:
    from torch import nn

    from leanify.sources.source import ModelSource

    Source: TypeAlias = str | Path | recipe.Recipe | ModelSource | nn.Module  # what `sources.find.find` takes

Value = TypeVar("Value")
CacheFile = tuple[Path, str]  # a file of the cache, and the key that it must hold
FORMAT = 2
SHAPE_FILES = ("config.json", "leanify.json", "recipe.toml", "modules.json")  # of a model's directory
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
ROOMS = ("architecture.py", "design", "lens", "paper", "runs", "sources", "spectra", "upstream")  # code behind prices


def key_of(source: Source, options: Options) -> str | None:
    """All that the prices depend on, as text; None if somebody else would have to be asked (a model on the hub).

    Builds of one torch version count alike.
    """
    files = _contents(source)
    if files is None:
        return None
    name = str(source) if isinstance(source, (str, Path)) else ""
    changes = [dict(options.overrides), options.cls, options.tokens, options.context]
    libraries = ("leanify", "timm", "transformers", "torch")
    versions = {library: metadata.version(library).partition("+")[0] for library in libraries}
    try:
        return json.dumps([FORMAT, name, files, changes, versions, _code_digest()], sort_keys=True)
    except TypeError:  # an override that is not JSON
        return None


def _contents(source: Source) -> list[Any] | None:
    """The files that say the shape of a source, with their contents: [] for a name.

    None for a model on the hub, and for a user's own module, whose code may do anything.
    """
    if isinstance(source, recipe.Recipe):
        inner = _contents(source.model.source)
        return None if inner is None else [source.to_toml(), *inner]
    if not isinstance(source, (str, Path)):
        found: Any = source
        if getattr(getattr(found, "origin", None), "library", "live") in ("module", "live"):
            return None
        shape = found.architecture and found.architecture.to_json()
        return None if isinstance(found.weights, str) else [asdict(found.origin), shape]
    name, path = str(source), Path(source).expanduser()
    if ":" in name and not path.exists():
        return None
    try:
        if path.suffix == ".toml" or not path.exists():
            file = path if path.exists() else recipe.find(name)
            if file is not None:
                inner = _contents(recipe.load(file).model.source)
                return None if inner is None else [str(file), read_text(file), *inner]
            on_hub = "/" in name and name.split("/")[0] not in ("timm", "hf", "diffusers", "leanify")
            return None if on_hub or name.startswith((".", "/", "~")) else []
        folder = path if path.is_dir() else path.parent
        files = [path] if path.suffix == ".json" else [folder / shape_file for shape_file in SHAPE_FILES]
        found = [[str(file.absolute()), read_text(file)] for file in files if file.is_file()]
        stored = [folder / name for name in WEIGHTS]
        times = [[file.name, file.stat().st_mtime_ns] for file in stored if file.is_file()]  # they decide on the head
        return found + times if found else None
    except (OSError, ValueError, RecipeError):
        return None


def _code_digest() -> str:
    """A digest of the code that finds, builds, reads and prices a model, and of its tables."""
    package = Path(__file__).parents[2]
    digest = hashlib.sha256()
    for room in ROOMS:
        for path in sorted([package / room] if room.endswith(".py") else (package / room).rglob("*")):
            if path.suffix in (".py", ".toml"):
                digest.update(path.relative_to(package).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def file_of(kind: str, source: Source, options: Options, *more: object) -> CacheFile | None:
    """Where an answer about a source is kept; None if it cannot be kept or LEANIFY_PRICES=off forbids it.

    ``more``: what the answer depends on besides what `key_of` knows.
    """
    key = key_of(source, options)
    return None if key is None else place_of(kind, " ".join([key, *map(str, more)]))


def heard(work: Callable[[], Value]) -> tuple[Value, bool]:
    """Do the work; its value, and whether it warned: then it is not cached, as the warning must come each time."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        value = work()
    for one in said:
        warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
    return value, bool(said)


def place_of(kind: str, key: str) -> CacheFile | None:
    """The file for a key, and the key; None if LEANIFY_PRICES=off forbids it."""
    if os.environ.get("LEANIFY_PRICES") == "off":
        return None
    return home() / kind / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json", key


def kept(file: CacheFile | None, parse: Callable[[Any], Value]) -> Value | None:
    """What was kept there, parsed; None where nothing was."""
    return None if file is None else read_value(*file, parse)


def keep(file: CacheFile | None, answers: Any) -> None:
    """Keep a JSON value for the next time, if the cache can be written."""
    if file is not None:
        with contextlib.suppress(OSError):
            write_value(*file, answers)
