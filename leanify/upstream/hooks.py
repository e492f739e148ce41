"""The changes that ``import leanify`` makes in other libraries, with their reasons. It makes no others.

Each change is made when its module is imported, before or after leanify; nothing is imported here. If a library
has a registry, the change is an entry in it.

``LEANIFY_HOOKS=0`` in the environment turns all of them off. timm and transformers then refuse the lean models
that only leanify can express; so does leanify if it needs transformers to build or save them. A failing import of
torchvision is repaired all the same (`_load_torchvision`): without it neither library could be imported.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from leanify.core.errors import SourceError

OFF = os.environ.get("LEANIFY_HOOKS") == "0"

CHANGES = {  # a library's module → leanify's function that is called with it after its import
    # entries in timm's ATTN_LAYERS: attentions of any head_dim, which VisionTransformer does not pass on
    "timm.models.vision_transformer": "upstream.spelling.register_head_dims",
    # an entry in timm's registry (register_model): the architecture `leanify`, so that create_model builds any lean
    # shape; without leanify timm answers 'Unknown model'
    "timm.models": "sources.timm_hooks.register",
    # save_config_for_hf, which alone writes timm's config.json, describes the live model instead of the arguments that
    # it was once built with; timm has no registry for that
    "timm.models._hub": "sources.timm_hooks.describe_when_saving",
    # a lean shape is written under a model type that transformers alone refuses, and read back under its own
    "transformers.configuration_utils": "sources.transformers_hooks.convert_configurations",
    # a model class whose configuration has a lean shape builds that shape, and saves the shape that it has
    "transformers.modeling_utils": "sources.transformers_hooks.build_and_save_lean",
}


def install() -> None:
    """Make every change when its module is imported, or now if it already is; make torchvision importable."""
    if any(isinstance(finder, _ChangingFinder) for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, _ChangingFinder())
    for name in CHANGES:
        if name in sys.modules and not OFF:
            _apply(sys.modules[name])


def check_on(what: str) -> None:
    """Raise SourceError if the changes are switched off and ``what`` relies on them."""
    if OFF:
        raise SourceError(
            f"{what} has a shape that transformers' own configuration cannot express, and LEANIFY_HOOKS=0 leaves "
            "transformers untouched: unset it"
        )


def _apply(module: ModuleType) -> None:
    home, _, name = CHANGES[module.__name__].rpartition(".")
    getattr(importlib.import_module(f"leanify.{home}"), name)(module)


class _ChangingFinder:
    """An entry of ``sys.meta_path`` that wraps the loaders of the modules to change, and finds no others."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        # leave other modules to the other finders
        is_changed = fullname in CHANGES and not OFF
        if not is_changed and fullname != "torchvision":
            return None

        # the usual spec, whose loader applies the change after the import
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def load_and_change(module: ModuleType) -> None:
            if is_changed:
                load(module)
                _apply(module)
            else:
                _load_torchvision(load, module)

        spec.loader.exec_module = load_and_change  # type: ignore[method-assign]
        return spec


_schemas: list[Any] = []  # the library object must live as long as its schemas


def _load_torchvision(load: Callable[[ModuleType], None], module: ModuleType) -> None:
    """Import torchvision, and declare two of its operators if they are missing: no model here calls them.

    Its wheels on the package index are built for CUDA, and their import fails with a CPU-only torch.
    """
    try:
        load(module)
    except RuntimeError as error:
        if "operator torchvision::" not in str(error):
            raise

        # forget the half-imported package, declare the operators, and import again
        for name in [name for name in sys.modules if name.startswith("torchvision.")]:
            del sys.modules[name]
        import torch

        library: Any = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _schemas.append(library)
        load(module)
