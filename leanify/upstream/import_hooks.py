"""Patch modules of other libraries when they are imported, before or after leanify, without importing them here.

`install` takes a mapping from module names to functions that patch the module once it is imported. One module needs
help during its import: torchvision's wheels on the package index are built for CUDA, and with a CPU-only torch their
import fails because the schemas of two operators are missing. No model here calls them, so declaring them is enough.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

Run = Callable[[ModuleType], None]
Lesson = Callable[[ModuleType], None]


class _Guide:
    """A finder on ``sys.meta_path`` that only wraps the loaders of the modules in _GUIDES."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        guide = _GUIDES.get(fullname)
        spec = PathFinder.find_spec(fullname, path, target) if guide else None
        if guide is None or spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module
        spec.loader.exec_module = lambda module: guide(run, module)  # type: ignore[method-assign]
        return spec


def _mend_torchvision(run: Run, module: ModuleType) -> None:
    try:
        run(module)
    except RuntimeError as error:
        if "operator torchvision::" not in str(error):
            raise
        for name in [name for name in sys.modules if name.startswith("torchvision.")]:
            del sys.modules[name]
        _declare_torchvision_operators()
        run(module)


_TORCHVISION: list[Any] = []  # the library object must live as long as its schemas


def _declare_torchvision_operators() -> None:
    import torch

    library: Any = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _TORCHVISION.append(library)


_GUIDES: dict[str, Callable[[Run, ModuleType], None]] = {"torchvision": _mend_torchvision}


def install(lessons: Mapping[str, Lesson]) -> None:
    """Patch each module when it is imported, or now if it already is; and fix torchvision's import."""
    for name, teach in lessons.items():
        if name in _GUIDES:
            continue
        _GUIDES[name] = _afterwards(teach)
        if name in sys.modules:
            teach(sys.modules[name])
    if not any(isinstance(finder, _Guide) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Guide())


def _afterwards(teach: Lesson) -> Callable[[Run, ModuleType], None]:
    def guide(run: Run, module: ModuleType) -> None:
        run(module)
        teach(module)

    return guide
