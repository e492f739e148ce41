"""Two modules of others that leanify sees through their import, without importing them itself.

timm.models.vision_transformer   learns leanify's attention strings, so that ``timm.create_model("local-dir:…")`` builds
                                 a lean directory once leanify is imported, before or after timm
torchvision                      imports beside a CPU-only torch: its registry wheels want CUDA, and stop at the missing
                                 schemas of two operators that no model here calls; declaring them is enough
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

Run = Callable[[ModuleType], None]


class _Guide:
    """A finder on ``sys.meta_path`` that finds nothing of its own: it wraps the loaders of two modules."""

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


def _teach_vision_transformer(run: Run, module: ModuleType) -> None:
    run(module)
    _register()


def _register() -> None:
    from leanify.upstream.timm_head_dims import register_head_dims  # imports torch

    register_head_dims()


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


_GUIDES: dict[str, Callable[[Run, ModuleType], None]] = {
    "timm.models.vision_transformer": _teach_vision_transformer,
    "torchvision": _mend_torchvision,
}


def install() -> None:
    """Guide the two imports from now on; calling it again changes nothing."""
    if "timm.models.vision_transformer" in sys.modules:
        _register()
    if not any(isinstance(finder, _Guide) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Guide())
