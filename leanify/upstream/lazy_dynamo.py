"""Keep torch's compiler out of commands that never compile: importing it takes 1.7 s, a third of a ``redesign``.

torchvision (which timm imports) asks ``torch._dynamo.utils`` for one function, and torch itself asks ``torch._dynamo``
for ``disable`` when the first meta operator runs. A stand-in answers both. Whatever else is asked of it (by
``torch.compile``, for instance) loads the real module first and undoes what the stand-in did.

Only the command line installs it: a program that imports leanify keeps torch as it is.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

NAME, UTILS = "torch._dynamo", "torch._dynamo.utils"
_undecorated: list[Any] = []  # functions that torch now takes for disabled ones


def install() -> None:
    """Put the stand-in in place, unless the real module is loaded already."""
    if NAME not in sys.modules:
        sys.modules[NAME] = _Dynamo(NAME)
        sys.modules[NAME].__path__ = []  # a package: its parts can be imported
        sys.modules[UTILS] = _Utils(UTILS)
        sys.meta_path.insert(0, _Finder())


def _real() -> ModuleType:
    """The real ``torch._dynamo``, loaded now if need be; functions that it should have wrapped are forgotten."""
    if isinstance(sys.modules.get(NAME), _Dynamo):
        del sys.modules[NAME], sys.modules[UTILS]
        sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Finder)]
        for function in _undecorated:
            vars(function).pop("__dynamo_disable", None)  # torch._compile keeps its decision there
    return importlib.import_module(NAME)


class _Dynamo(ModuleType):
    @staticmethod
    def disable(fn: Any = None, recursive: bool = True, **options: Any) -> Any:
        """The function itself: without a compiler there is nothing to disable."""
        if fn is None:
            return _real().disable(fn, recursive, **options)
        _undecorated.append(fn)
        return fn

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what inspection looks for in every module
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
    """Any other part of the compiler that is imported loads the real package first."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if not name.startswith(f"{NAME}."):
            return None
        _real()
        return ModuleSpec(name, _Loaded(lambda: importlib.import_module(name)))


class _Loaded(Loader):
    """Hands over a module that is loaded already."""

    def __init__(self, module: Callable[[], ModuleType]) -> None:
        self.module = module

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self.module()

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is left to do."""
