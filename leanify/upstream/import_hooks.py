"""Modules of others that leanify changes as they are imported, before or after leanify, without importing them itself.

`install` is given the lessons: the name of a module, and what to do with it once it is imported. One module needs help
during its import: torchvision's registry wheels want CUDA, and beside a CPU-only torch they stop at the missing schemas
of two operators that no model here calls; declaring them is enough.
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
    """A finder on ``sys.meta_path`` that finds nothing of its own: it wraps the loaders of the modules in _GUIDES."""

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
    """Teach each module once it is imported, at once where it is already; and mend torchvision's import."""
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
