"""Small versions of both libraries' models, on which the laws take seconds; `build` returns a model and a call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from leanify.upstream.build import build_model
from leanify.upstream.libraries import import_timm, import_transformers
from leanify.upstream.origin import Origin

from . import tiny_transformers

LIBRARIES = ("timm", "hf")


def warm() -> None:
    """Import what every model needs before processes are forked."""
    import_timm()
    import_transformers()


def build(library: str, name: str) -> tuple[nn.Module, Callable[[nn.Module], Any]]:
    """Return the small model, and a function that runs it (or a reshaped version) on fixed random inputs."""
    return _build_timm(name) if library == "timm" else tiny_transformers.build(name)


def names(library: str) -> list[str]:
    """Every model of a library that may have attention layers; of timm's, that is known once they are built."""
    if library == "timm":
        return [name for name in import_timm().list_models() if name != "leanify"]  # whose constructor is ours
    return tiny_transformers.names()


ONE_LIST = {"embed_dim": 48, "depth": 3, "num_heads": 3}
SWIN = {"embed_dim": 24, "depths": (1, 1, 3, 1), "num_heads": (2, 4, 8, 16)}
SHRINK: dict[str, list[dict[str, Any]]] = {
    **{kind: [SWIN] for kind in ("swin_transformer", "swin_transformer_v2", "swin_transformer_v2_cr")},
    "davit": [{"embed_dims": (24, 48, 96, 192), "depths": (1, 1, 3, 1), "num_heads": (2, 4, 8, 16)}],
    "volo": [{"layers": (2, 2, 3, 2), "embed_dims": (24, 48, 48, 48), "num_heads": (2, 4, 4, 4)}],
    "tnt": [{"embed_dim": 60, "depth": 3, "num_heads_outer": 3}],
    "hiera": [{"embed_dim": 24, "num_heads": 2, "stages": (1, 1, 2, 2)}],
    "twins": [
        {"depths": (1, 1, 2, 1), "embed_dims": (32, 32, 64, 64), "num_heads": (2, 2, 4, 4)},
        {"depths": (1, 1, 2, 1)},
    ],
    "pvt_v2": [{"depths": (1, 1, 2, 1), "embed_dims": (16, 32, 48, 64), "num_heads": (2, 2, 3, 4)}],
    "pit": [{"base_dims": (8, 8, 8), "depth": (1, 2, 1), "heads": (2, 4, 8)}],
    "fastvit": [{"layers": (1, 1, 1, 2)}, {"layers": (1, 1, 1, 1, 2)}],
    "hieradet_sam2": [{"embed_dim": 24, "num_heads": 2, "stages": (1, 1, 3, 2), "global_att_blocks": (3,)}],
    "edgenext": [{"depths": (1, 2, 2, 2)}],
    "eva": [ONE_LIST, {**ONE_LIST, "num_heads": 6, "num_kv_heads": [3, 3, 3]}, {"depth": 3}],
    **{kind: [] for kind in ("gcvit", "nest", "metaformer", "mvitv2")},  # as they are
    "maxxvit": [{"depths": (1, 1, 3, 1), "embed_dim": (32, 32, 64, 64)}],
    "crossvit": [{"embed_dim": (24, 48), "num_heads": (3, 3), "depth": ((1, 2, 0), (1, 2, 0)), "mlp_ratio": (2, 2, 4)}],
}


@contextmanager
def small_tables() -> Iterator[None]:
    """Shrink MViTv2's shapes in timm's own tables, because its constructor has no arguments for them."""
    from timm.models import mvitv2

    before = dict(mvitv2.model_cfgs)
    for name, cfg in before.items():
        depths = tuple(min(depth, 3) for depth in cfg.depths)
        mvitv2.model_cfgs[name] = replace(cfg, depths=depths, embed_dim=tuple(24 * heads for heads in cfg.num_heads))
    try:
        yield
    finally:
        mvitv2.model_cfgs.update(before)


def _build_timm(name: str) -> tuple[nn.Module, Any]:
    """Return the smallest version of a timm model that builds and runs, and a call on two random images.

    Which options its constructor accepts, and which image size its forward, is found by trying.
    """
    from timm.models._registry import _model_to_module

    model: Any = None
    error: Exception = AssertionError()
    shrunk = SHRINK.get(_model_to_module[name], [ONE_LIST, {"depth": 3}])
    for options in [*shrunk, {}]:
        for fixed in (64, 56, 96, None):
            image = {} if fixed is None else {"img_size": fixed}
            try:
                model = build_model(Origin("timm", name, {**image, **options, "num_classes": 7}))
                channels, *native = model.pretrained_cfg["input_size"]
            except Exception as failed:
                error = failed
                continue
            for size in [fixed] if fixed else [64, 56, 96, 128, native[0]]:
                x = torch.randn(2, channels, size, size, generator=torch.Generator().manual_seed(1))
                try:
                    with torch.no_grad():
                        model(x)
                except Exception:  # another size, or other options, may do
                    continue
                x = x.double()
                return model, lambda m, x=x: m(x)
    if model is None:
        raise error
    return model, lambda m: m(torch.zeros(0))  # builds but does not run: its class may be refused
