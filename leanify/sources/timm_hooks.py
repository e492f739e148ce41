"""How timm loads and saves lean models (listed in `upstream.hooks`).

A shape that timm's constructors cannot express is saved with the architecture ``leanify``, an entry point
registered with timm; ``model_args`` then hold the base model, its arguments and the lean shape. Without
leanify, timm answers "Unknown model (leanify)". ``save_config_for_hf``, the only function that writes timm's
config.json, is wrapped so that it describes the live module.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import TYPE_CHECKING, Any

from leanify.core.architecture import Architecture

if TYPE_CHECKING:
    from torch import nn

    from leanify.sources.source import ModelSource

NAME = "leanify"
PRETRAINED_KEYS = ("input_size", "fixed_input_size", "mean", "std", "interpolation", "crop_pct", "crop_mode",
                   "first_conv", "classifier")  # fmt: skip


def leanify(
    pretrained: bool = False,
    pretrained_cfg: Any = None,
    pretrained_cfg_overlay: dict[str, Any] | None = None,
    cache_dir: Any = None,
    *,
    base: str,
    shape: dict[str, Any],
    pretrained_model_args: dict[str, Any] | None = None,
    **options: Any,
) -> nn.Module:
    """timm entry point for lean models: build the base, reshape it, load weights if ``pretrained``."""
    from timm.models._builder import load_pretrained, resolve_pretrained_cfg

    from leanify.reshaping import surgery
    from leanify.upstream.build import build_model
    from leanify.upstream.origin import Origin

    # the base model as timm builds it, with its settings, in the lean shape
    config = resolve_pretrained_cfg(NAME, pretrained_cfg=pretrained_cfg, pretrained_cfg_overlay=pretrained_cfg_overlay)
    options.setdefault("num_classes", config.num_classes)
    base_model = build_model(Origin("timm", base, options))
    model: Any = surgery.write(base_model, Architecture.from_json(shape), "fresh").train()
    model.pretrained_cfg = model.default_cfg = config.to_dict()
    # timm's own loader adapts channels and classes
    if pretrained:
        channels = model.pretrained_cfg["input_size"][0]
        load_pretrained(model, model.pretrained_cfg, model.num_classes, options.get("in_chans", channels))
    return model  # type: ignore[no-any-return]


def timm_arguments(source: ModelSource) -> tuple[str, dict[str, Any]]:
    """timm's ``architecture`` and ``model_args`` for a described model."""
    base = source.origin.name.partition(".")[0]
    if source.architecture is None:
        return base, dict(source.origin.options)
    return NAME, {**source.origin.options, "base": base, "shape": source.architecture.to_json()}


def timm_config(model: Any, source: ModelSource) -> dict[str, Any]:
    """The contents of config.json for ``timm.create_model("local-dir:…")``."""
    architecture, arguments = timm_arguments(source)
    pretrained_cfg = getattr(model, "pretrained_cfg", None) or {}
    classes = getattr(model, "num_classes", None)
    pretrained = {key: value for key, value in pretrained_cfg.items() if key in PRETRAINED_KEYS}
    # the image settings of the source's folder stay; names of other classes are dropped
    pretrained |= source.origin.pictures
    if len(pretrained.get("label_names") or ()) != classes:
        pretrained.pop("label_names", None)
    return {
        "architecture": architecture,
        "num_classes": classes,
        "num_features": getattr(model, "num_features", None),
        "model_args": arguments,
        "pretrained_cfg": {**pretrained, "num_classes": classes, "custom_load": False},
    }


def register(module: ModuleType) -> None:  # timm.models
    module.register_model(leanify)


def describe_when_saving(module: ModuleType) -> None:  # timm.models._hub
    save = module.save_config_for_hf

    @functools.wraps(save)
    def save_config_for_hf(model: Any, config_path: Any, *positional: Any, **named: Any) -> None:
        from leanify.sources.source import describe
        from leanify.upstream.origin import get_record

        # a model that leanify did not build is timm's to describe
        if not get_record(model).is_stamped:
            save(model, config_path, *positional, **named)
            return
        # for the time of the call, the name and arguments that build this shape
        architecture, arguments = timm_arguments(describe(model))
        attributes = model.pretrained_cfg, getattr(model, "_model_args", {})
        model.pretrained_cfg = {**model.pretrained_cfg, "architecture": architecture}
        model._model_args = arguments
        try:
            save(model, config_path, *positional, **named)
        finally:
            model.pretrained_cfg, model._model_args = attributes

    module.save_config_for_hf = save_config_for_hf  # type: ignore[attr-defined]
