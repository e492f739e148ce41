"""A user's own module as a SOURCE: ``path/to/model.py:make``, ``package.module:make``, or an existing module.

``make`` is a function or class; called with the overrides it returns a module, or a module and an example of its input.
The file is code that runs. It runs if the user names it: the code in a lean directory, a recipe or a run runs only if
this user has named it before with the same contents (`parse_module_source`), or if it ships with the built-in recipes.
A recipe's ``data.name`` names code by the same rule.
"""

from __future__ import annotations

import copy
import hashlib
import importlib
import importlib.util
import inspect
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from leanify.core import recipe_code as code
from leanify.core.errors import LeanifyError, SourceError
from leanify.core.files import cache, writing
from leanify.core.files.reading import read_bytes
from leanify.upstream.example_inputs import give
from leanify.upstream.libraries import format_error
from leanify.upstream.origin import Origin, get_record, set_origin

LIBRARY, LIVE = "module", "live"
ALLOWED_SOURCES: set[tuple[str, str]] = set()  # names and digests
MODEL, DATA = "this model is built by", "this data is read by"
HOW_TO_NAME = {  # the line that names code, by its purpose
    MODEL: "leanify profile {name}, or leanify.load({name!r})",
    DATA: "--set data.name={name}, or leanify.train(recipe, settings=['data.name={name}'])",
}


def parse_module_source(text: str) -> Origin:
    """The origin of code that the user names, which from now on may run. Raises SourceError if it does not exist.

    The name and the contents are remembered in this process and in the user's cache.
    """
    origin = origin_of_code(text)
    if is_shipped(origin):
        return origin
    ALLOWED_SOURCES.add((origin.name, origin.cls))
    record = _record(origin)
    with suppress(OSError):  # without a cache it holds for this process
        record.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        writing.write(record, json.dumps({"code": origin.name, "sha256": origin.cls}) + "\n")
    return origin


def origin_of_code(text: str) -> Origin:
    """The origin of code with its file's digest. Runs neither the code nor the packages around it.

    Code that ships with the built-in recipes changes only with leanify and has no digest.
    """
    parts = code.split_code(text)
    if parts is None:
        raise SourceError(f"{text[:200]!r} is not of the form path/to/model.py:make or package.module:make")

    # a file, by its absolute path
    place, _ = parts
    if place.endswith(".py"):
        code_name = code.resolve_code(text, Path.cwd())
        origin = Origin(LIBRARY, code.find_shipped(text) if code_name == text else code_name)
        if is_shipped(origin):
            return origin
        file = Path(place).expanduser().absolute()
        if not file.is_file():
            raise SourceError(f"{text}: there is no file {file}")
        return replace(origin, name=code_name, cls=_digest(file))

    # a module of the current folder or an installed package
    with _here_on_the_path(Path.cwd()):
        spec = _find_spec(place)
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        raise SourceError(
            f"{text}: there is no Python module {place} to import; a file is named as path/to/model.py:make"
        )
    return Origin(LIBRARY, text, {}, _digest(Path(spec.origin)))


def is_shipped(origin: Origin) -> bool:
    """Whether an origin is code that ships with the built-in recipes."""
    return origin.library == LIBRARY and origin.name in code.SHIPPED_CODE


def is_user_module(origin: Origin) -> bool:
    """Whether a module is the user's own, as code or as an existing module: it is built on the CPU, then read."""
    return origin.library in (LIBRARY, LIVE) and not is_shipped(origin)


def _find_spec(place: str) -> ModuleSpec | None:
    """The spec of a module, without running its parent packages as `importlib.util.find_spec` does."""
    # from the outermost package inwards
    spec, path = None, None
    try:
        for end in range(1, place.count(".") + 2):
            name = ".".join(place.split(".")[:end])
            specs = (finder.find_spec(name, path, None) for finder in sys.meta_path)
            spec = next((spec for spec in specs if spec is not None), None)
            if spec is None:
                return None
            path = list(spec.submodule_search_locations or ())
    except (ImportError, KeyError, ValueError):  # KeyError: of a namespace inside a namespace
        return None
    return spec


def build(origin: Origin, device: str) -> nn.Module:
    """Build the module on the CPU or on meta. Raises SourceError for code that may not be run."""
    if origin.library == LIVE:
        model = copy.deepcopy(origin.live)
    else:
        # call the user's code
        function = load_function(origin, MODEL)
        try:
            result = function(**origin.options)
        except LeanifyError:  # raised by hooks that count parts and bytes during construction
            raise
        except Exception as error:  # the user's code may raise anything
            raise SourceError(f"{origin.name} does not give a module: {format_error(error, 300)}") from error

        # a module, or a module with an example of its input
        model, inputs = result if isinstance(result, tuple) and len(result) == 2 else (result, None)
        if not isinstance(model, nn.Module):
            raise SourceError(
                f"{origin.name} returned a {type(model).__name__}; it must return a torch.nn.Module, or a module and "
                "an example of its input"
            )
        if inputs is not None:
            give(model, inputs)
        model.eval()
    if not get_record(model).is_stamped:
        set_origin(model, origin)
    return copy_to_meta(model) if device == "meta" else model


def load_function(origin: Origin, what: str) -> Any:
    """The function or class of named code; ``what`` is MODEL or DATA, for the message of a refusal.

    Raises SourceError for code that this user never named, that changed, or that lacks the function.
    """
    _check(origin, what)
    place, _, name = origin.name.rpartition(":")
    try:
        module = _import_code(place)
    except Exception as error:  # the user's code may raise anything
        raise SourceError(f"{place} cannot be imported: {format_error(error, 300)}") from error
    if not callable(function := getattr(module, name, None)):
        raise SourceError(f"{place} has no function {name!r}")
    return function


def takes_argument(origin: Origin, name: str) -> bool:
    """Whether the code that builds a model takes an argument of this name."""
    return origin.library == LIBRARY and name in inspect.signature(load_function(origin, MODEL)).parameters


def _import_code(place: str) -> Any:
    if not place.endswith(".py"):
        with _here_on_the_path(Path.cwd()):
            return importlib.import_module(place)

    # a file is imported under a name with its digest, so that a changed file is imported again
    file = code.code_file(place)
    name = f"_leanify_{file.stem}_{_digest(file)[:8]}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            with _here_on_the_path(file.parent):  # like a script, it can import files of its folder
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


def _check(origin: Origin, what: str) -> None:
    """Raise SourceError if this user never named the code, or if it changed since then. Imports nothing."""
    if is_shipped(origin):
        return

    # named, as it is now or as it was when the model was written
    now = origin_of_code(origin.name)
    versions = [version for version in (origin, now) if version.cls]
    if not any((one.name, one.cls) in ALLOWED_SOURCES or _record(one).is_file() for one in versions):
        raise SourceError(
            f"{what} code, {origin.name}, which was not named here before, so it was not run. If you trust the file, "
            f"name it once: {HOW_TO_NAME[what].format(name=origin.name)}"
        )

    # unchanged
    if origin.cls and now.cls != origin.cls:
        raise SourceError(
            f"{origin.name} has changed: its SHA-256 was {origin.cls[:12]}… when this model was written, and is "
            f"{now.cls[:12]}… now. Restore the old file, or build the model again from the new one"
        )


def _record(origin: Origin) -> Path:
    digest = hashlib.sha256(f"{origin.name}\n{origin.cls}".encode()).hexdigest()
    return cache.home() / "named-code" / f"{digest}.json"


def copy_to_meta(model: nn.Module) -> nn.Module:
    """A copy with all tensors on meta: parameters, buffers and plain attributes. Inputs stay."""
    # deepcopy takes the copies of tensors from its memo
    memo: dict[int, Any] = {}
    for parameter in model.parameters():
        memo[id(parameter)] = nn.Parameter(parameter.detach().to("meta"), requires_grad=parameter.requires_grad)
    for module in model.modules():
        for value in (*module.buffers(recurse=False), *vars(module).values()):
            if isinstance(value, Tensor):
                memo[id(value)] = value.detach().to("meta")
    meta_model: nn.Module = copy.deepcopy(model, memo)
    return meta_model


def empty_attributes(model: nn.Module, device: str | torch.device) -> None:
    """Replace tensors on meta that are neither parameters nor buffers by zeros, in place."""
    for module in model.modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, Tensor) and value.is_meta:
                vars(module)[name] = torch.zeros_like(value, device=device)
