"""Avoid importing torch's compiler in commands that never compile: it takes 1.7 s, a third of a ``redesign``.

torchvision (which timm imports) needs one function of ``torch._dynamo.utils``, and torch itself needs
``torch._dynamo.disable`` when the first meta operator runs. A stand-in provides both. transformers needs a file of the
package that stands alone, and marks some functions for the compiler, which is told once it is there. Any other access
(by ``torch.compile``, for instance) first loads the real module and undoes what the stand-in did.

Only the command line installs it: a program that imports leanify keeps torch as it is.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

NAME, UTILS = "torch._dynamo", "torch._dynamo.utils"
ALONE = "torch._dynamo._trace_wrapped_higher_order_op"  # needs nothing else of the package
_undecorated: list[Any] = []  # functions that torch now regards as disabled
_later: list[Callable[[Any], Any]] = []  # what the compiler is to be told of functions, once it is there


def install() -> None:
    """Install the stand-in, unless the real module is already loaded."""
    if NAME not in sys.modules:
        sys.modules[NAME] = _Dynamo(NAME)
        sys.modules[NAME].__path__ = []  # a package: its parts can be imported
        sys.modules[UTILS] = _Utils(UTILS)
        sys.meta_path.insert(0, _Finder())


def _real() -> ModuleType:
    """Load the real ``torch._dynamo`` and make torch forget functions that the stand-in left unwrapped."""
    if isinstance(sys.modules.get(NAME), _Dynamo):
        del sys.modules[NAME], sys.modules[UTILS]
        sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Finder)]
        for function in _undecorated:
            vars(function).pop("__dynamo_disable", None)  # torch._compile caches the wrapped function there
        real = importlib.import_module(NAME)
        if ALONE in sys.modules:
            setattr(real, ALONE.rpartition(".")[2], sys.modules[ALONE])
        while _later:
            _later.pop()(real)
    return importlib.import_module(NAME)


class _Dynamo(ModuleType):
    @staticmethod
    def disable(fn: Any = None, recursive: bool = True, **options: Any) -> Any:
        """Return the function unchanged: without a compiler there is nothing to disable."""
        if not recursive:  # what it calls may be compiled: the same as skipping its own frames
            return _Dynamo._told(fn, lambda real, fn: real.decorators.skip(fn))
        if fn is None:
            return _real().disable(fn, recursive, **options)
        _undecorated.append(fn)
        return fn

    @staticmethod
    def assume_constant_result(fn: Any) -> Any:
        """Mark the function for the compiler, as the real one does."""
        fn._dynamo_marked_constant = True
        return fn

    @staticmethod
    def allow_in_graph(fn: Any) -> Any:
        return _Dynamo._told(fn, lambda real, fn: real.allow_in_graph(fn))

    @staticmethod
    def _told(fn: Any, tell: Callable[[Any, Any], Any]) -> Any:
        def told(fn: Any) -> Any:
            _later.append(lambda real: tell(real, fn))
            return fn

        return told if fn is None else told(fn)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # inspection probes every module for dunder names
            raise AttributeError(name)
        return getattr(_real(), name)


class _Utils(ModuleType):
    @staticmethod
    def is_compile_supported(device: str) -> Any:
        return _real().utils.is_compile_supported(device)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(_real().utils, name)


class _Finder:
    """Loads the real package when any other part of the compiler is imported."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if not name.startswith(f"{NAME}."):
            return None
        if name == ALONE:
            import torch

            return PathFinder.find_spec(name, [f"{folder}/_dynamo" for folder in torch.__path__])
        _real()
        loader: Any = _Loaded(lambda: importlib.import_module(name))
        return ModuleSpec(name, loader)


class _Loaded:
    """A loader for a module that is already loaded; no subclass of Loader, whose import takes 10 ms."""

    def __init__(self, module: Callable[[], ModuleType]) -> None:
        self.module = module

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self.module()

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: the module has been executed."""
