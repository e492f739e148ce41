"""The paper's systems that neither timm nor transformers has, written from the papers' descriptions.

    crammed-bert      Geiping & Goldstein 2022, "Cramming: Training a Language Model on a Single GPU in One Day"
    gpt2-tinystories  the 512 wide GPT-2 that is trained on TinyStories (Eldan & Li 2023)
    point-encoder     Amsel, Yehudai & Bruna 2025: points in, points out, to be trained on the farthest point
    nystromformer     Xiong et al. 2021, in the small sizes of the Long-Range Arena (Tay et al. 2020)

A SOURCE calls them ``leanify/NAME``. Each is a plain module whose keyword arguments are its configuration, with
``depth``, ``heads``, ``head_dim`` and ``mlp`` among them: heads × head_dim need not equal the width.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

MODELS: Mapping[str, str] = {
    "crammed-bert": "crammed_bert.CrammedBert",
    "gpt2-tinystories": "gpt2.Gpt2",
    "nystromformer": "nystromformer.Nystromformer",
    "point-encoder": "point_encoder.PointEncoder",
}


def model_class(name: str) -> Any:
    """The class of a model of our own; KeyError where there is none."""
    module, _, cls = MODELS[name].rpartition(".")
    return getattr(importlib.import_module(f"leanify.models.{module}"), cls)


def name_of(cls: type) -> str | None:
    """The name of a class of ours, None for any other."""
    path = f"{cls.__module__}.{cls.__qualname__}"
    return next((name for name, short in MODELS.items() if path == f"leanify.models.{short}"), None)
