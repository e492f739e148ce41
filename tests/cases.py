"""Small sources of the core families: every stage and layer kind, sizes all different."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import leanify
from leanify.profiling.cost_model import ModelCosts
from leanify.profiling.forward import call
from leanify.profiling.live_model import LiveModel
from leanify.profiling.price_list import PriceList
from leanify.profiling.training_memory import flatten_tensors
from leanify.upstream.inputs import example_inputs

IMAGE = {"img_size": 32, "embed_dim": 60, "depth": 4, "num_heads": 3, "num_classes": 7}
TEXT = {"hidden_size": 60, "num_hidden_layers": 4, "num_attention_heads": 3, "intermediate_size": 96, "vocab_size": 67}
GPT2 = {"n_embd": 60, "n_layer": 4, "n_head": 3, "vocab_size": 67}
GROUPED_QUERY = {**TEXT, "hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 2}


@dataclass(frozen=True)
class Case:
    """A SOURCE with what makes it small. ``native``: upstream itself expresses a grown shape of it."""

    source: str
    overrides: dict[str, Any] = field(default_factory=dict)
    cls: str | None = None
    native: bool = True

    def load(self, device: str = "cpu", **more: Any) -> nn.Module:
        torch.manual_seed(0)
        return leanify.load(self.source, overrides={**self.overrides, **more}, cls=self.cls, device=device)


CASES = {
    "vit": Case("vit_base", IMAGE),
    "vit, drop path": Case("vit_small_patch16_224", {**IMAGE, "drop_path_rate": 0.3}),
    "vit, pooling head": Case("vit_base_patch16_siglip_224", IMAGE, native=False),
    "vit, parallel layers": Case("vit_small_patch16_18x2_224", IMAGE),
    "vit, gated mlp": Case("vit_giant_patch14_dinov2", {**IMAGE, "img_size": 28, "mlp_ratio": 3.2}),
    "vit, post-norm": Case("vit_base_patch16_rpn_224", IMAGE),
    "deit": Case("deit_tiny_patch16_224", IMAGE),
    "deit, distilled": Case("deit_tiny_distilled_patch16_224", IMAGE),
    "xcit": Case("xcit_nano_12_p16_224", IMAGE, native=False),
    "hf vit": Case("vit", {**{k: v for k, v in TEXT.items() if k != "vocab_size"}, "image_size": 32}),
    "bert": Case("bert", TEXT, native=False),
    "roberta": Case("roberta", TEXT, native=False),
    "gpt2": Case("gpt2", GPT2, "AutoModelForCausalLM", native=False),
    "llama": Case("llama", GROUPED_QUERY, "AutoModelForCausalLM"),
    "llama, one kv head": Case("llama", {**GROUPED_QUERY, "num_key_value_heads": 1}),
    "qwen2": Case("qwen2", GROUPED_QUERY),
}


def outputs(model: nn.Module, inputs: dict[str, Tensor] | None = None) -> list[Tensor]:
    """What a model gives on a fixed random batch of two."""
    with torch.no_grad():
        return list(flatten_tensors(call(model, batch(model) if inputs is None else inputs)))


def batch(model: nn.Module) -> dict[str, Tensor]:
    """A fixed random batch in the model's own precision."""
    torch.manual_seed(1)
    kind = next(model.parameters()).dtype
    inputs = example_inputs(model, 2, 9 if "vocab_size" in dir(getattr(model, "config", None)) else None)
    return {name: x.to(kind) if x.is_floating_point() else x for name, x in inputs.items()}


def equal(first: list[Tensor], second: list[Tensor]) -> bool:
    return len(first) == len(second) and all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def price_list(model: nn.Module, tokens: int | None = None) -> PriceList:
    """The price list of a model on meta."""
    return PriceList(ModelCosts(lambda: (LiveModel(model, tokens), False)))


def bart_prices(**sizes: int) -> PriceList:
    """Two towers: an encoder and a decoder with MLPs of another width."""
    small = {"d_model": 16, "encoder_layers": 6, "decoder_layers": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 32}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "vocab_size": 100}
    return price_list(leanify.load("bart", overrides={**small, **heads, **sizes}, device="meta"), 16)
