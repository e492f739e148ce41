"""The paper's models that neither timm nor transformers has, implemented from the papers' descriptions.

    crammed-bert      Geiping & Goldstein 2022, "Cramming: Training a Language Model on a Single GPU in One Day"
    gpt2-tinystories  a GPT-2 of width 512, trained on TinyStories (Eldan & Li 2023)
    point-encoder     Amsel, Yehudai & Bruna 2025: points in, points out, for the farthest-point task
    nystromformer     Xiong et al. 2021, at the small sizes of the Long-Range Arena (Tay et al. 2020)

As a SOURCE they are called ``leanify/NAME``. Each is a plain module whose keyword arguments are its configuration,
including ``depth``, ``heads``, ``head_dim`` and ``mlp``; heads × head_dim need not equal the width.
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
    """The class of one of leanify's models. Raises KeyError for an unknown name."""
    module, _, cls = MODELS[name].rpartition(".")
    return getattr(importlib.import_module(f"leanify.paper.models.{module}"), cls)


def name_of(cls: type) -> str | None:
    """The name of one of leanify's model classes; None for any other class."""
    path = f"{cls.__module__}.{cls.__qualname__}"
    return next((name for name, short in MODELS.items() if path == f"leanify.paper.models.{short}"), None)
