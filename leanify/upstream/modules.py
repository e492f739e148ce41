"""A user's own module as a SOURCE: ``path/to/model.py:make``, ``package.module:make``, or a module that lives already.

``make`` is a function or class; called with the overrides it returns a module, or a module and an example of its input.
The file is code that runs. It runs where the user names it, and is never found by itself: what a lean directory, a
recipe or a run names is run only if it was named here before, by this user, with the same contents (`allow`).
"""

from __future__ import annotations

import copy
import hashlib
import importlib
import importlib.util
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from leanify.errors import SourceError
from leanify.runs import writing
from leanify.runs.files import read_bytes
from leanify.upstream.given import give
from leanify.upstream.libraries import in_words
from leanify.upstream.origin import Origin, set_origin

LIBRARY, LIVE = "module", "live"
_TEXT = re.compile(r"(?P<place>.+\.py|[A-Za-z_]\w*(\.\w+)*):(?P<name>[A-Za-z_]\w*)")


def is_code(text: str) -> bool:
    """Whether a SOURCE has the form ``file.py:make`` or ``package.module:make``."""
    return _TEXT.fullmatch(text) is not None


def named(text: str) -> Origin:
    """The origin of code that the user names, which from now on may be run. Raises SourceError if it is not there.

    That it was named, with these contents, is remembered in this process and in the user's cache.
    """
    origin = origin_of_code(text)
    _ALLOWED.add(_key(origin))
    record = _record(origin)
    with suppress(OSError):  # without a cache it holds for this process
        record.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        writing.write(record, json.dumps({"code": origin.name, "sha256": origin.cls}) + "\n")
    return origin


def origin_of_code(text: str) -> Origin:
    """Where the code is, absolute, with its file's digest; neither it nor the packages around it are run."""
    found = _TEXT.fullmatch(text)
    if found is None:
        raise SourceError(f"{text[:200]!r} is not of the form path/to/model.py:make or package.module:make")
    place, name = found["place"], found["name"]
    if place.endswith(".py"):
        file = Path(place).expanduser().absolute()
        if not file.is_file():
            raise SourceError(f"{text}: there is no file {file}")
        return Origin(LIBRARY, f"{file}:{name}", {}, _digest(file))
    with _here_on_the_path(Path.cwd()):
        spec = _spec_of(place)
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        raise SourceError(
            f"{text}: there is no Python module {place} to import; a file is named as path/to/model.py:make"
        )
    return Origin(LIBRARY, text, {}, _digest(Path(spec.origin)))


def _spec_of(place: str) -> ModuleSpec | None:
    """What an import would find, without running the packages around it, as `importlib.util.find_spec` does."""
    found, path = None, None
    try:
        for end in range(1, place.count(".") + 2):
            name = ".".join(place.split(".")[:end])
            specs = (finder.find_spec(name, path, None) for finder in sys.meta_path)
            found = next((spec for spec in specs if spec is not None), None)
            if found is None:
                return None
            path = list(found.submodule_search_locations or ())
    except (ImportError, KeyError, ValueError):  # KeyError: of a namespace inside a namespace
        return None
    return found


def live_origin(model: nn.Module) -> Origin:
    """The origin of a module that the caller holds; it can be copied, not written down."""
    return Origin(LIVE, type(model).__name__, {}, "", model)


def build(origin: Origin, device: str) -> nn.Module:
    """Build the module on the CPU or on meta. Raises SourceError for code that may not be run."""
    if origin.library == LIVE:
        model = copy.deepcopy(origin.live)
    else:
        _check(origin)
        place, _, name = origin.name.rpartition(":")
        try:
            made = getattr(_imported(place), name)(**origin.options)
        except Exception as error:  # the user's code may raise anything
            raise SourceError(f"{origin.name} does not give a module: {in_words(error, 300)}") from error
        model, inputs = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
        if not isinstance(model, nn.Module):
            raise SourceError(
                f"{origin.name} returned a {type(model).__name__}; it must return a torch.nn.Module, or a module and "
                "an example of its input"
            )
        if inputs is not None:
            give(model, inputs)
        model.eval()
    if "_leanify_origin" not in vars(model):
        set_origin(model, origin)
    return on_meta(model) if device == "meta" else model


def _imported(place: str) -> Any:
    if not place.endswith(".py"):
        with _here_on_the_path(Path.cwd()):
            return importlib.import_module(place)
    file = Path(place)
    name = f"_leanify_{file.stem}_{_digest(file)[:8]}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            with _here_on_the_path(file.parent):  # as for a script: files beside it can be imported
                spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


@contextmanager
def _here_on_the_path(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        with suppress(ValueError):
            sys.path.remove(str(folder))


def _digest(file: Path) -> str:
    return hashlib.sha256(read_bytes(file)).hexdigest()


def _check(origin: Origin) -> None:
    """Raise SourceError if the code was never named by this user, or changed since it was written down.

    Nothing is run or imported before.
    """
    now = origin_of_code(origin.name)
    known = [one for one in (origin, now) if one.cls]
    if not any(_key(one) in _ALLOWED or _record(one).is_file() for one in known):
        raise SourceError(
            f"this model is built by code, {origin.name}, which was not named here before, so it was not run. If you "
            f"trust the file, name it once: leanify profile {origin.name}, or leanify.load({origin.name!r})"
        )
    if origin.cls and now.cls != origin.cls:
        raise SourceError(
            f"{origin.name} has changed: its SHA-256 was {origin.cls[:12]}… when this model was written, and is "
            f"{now.cls[:12]}… now. Put the old file back, or build the model anew from the new one"
        )


_ALLOWED: set[str] = set()


def _key(origin: Origin) -> str:
    return hashlib.sha256(f"{origin.name}\n{origin.cls}".encode()).hexdigest()


def _record(origin: Origin) -> Path:
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "leanify" / "named-code" / f"{_key(origin)}.json"


def on_meta(model: nn.Module) -> nn.Module:
    """A copy with all tensors on meta: parameters, buffers and those that are plain attributes. Inputs stay."""
    memo: dict[int, Any] = {}
    for parameter in model.parameters():
        memo[id(parameter)] = nn.Parameter(parameter.detach().to("meta"), requires_grad=parameter.requires_grad)
    for module in model.modules():
        for value in (*module.buffers(recurse=False), *vars(module).values()):
            if isinstance(value, Tensor):
                memo[id(value)] = value.detach().to("meta")
    copied: nn.Module = copy.deepcopy(model, memo)
    return copied


def plain_tensors(model: nn.Module) -> Iterator[tuple[dict[str, Any], str, Tensor]]:
    """(attributes, name, tensor) of every tensor that is neither a parameter nor a buffer."""
    for module in model.modules():
        held: Mapping[str, Any] = vars(module)
        for name, value in list(held.items()):
            if isinstance(value, Tensor):
                yield vars(module), name, value


def empty_attributes(model: nn.Module, device: str | torch.device) -> None:
    """Replace plain tensors on meta by zeros, in place."""
    for attributes, name, value in plain_tensors(model):
        if value.is_meta:
            attributes[name] = torch.zeros_like(value, device=device)
