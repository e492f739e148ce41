"""Whether attention is causal is measured, tower by tower: not what upstream's attributes say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import leanify
from leanify.profiling.causality import causal_stages
from leanify.profiling.live_model import LiveModel
from leanify.reshaping.sites import locate
from leanify.sources import find

SIZES: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64}
TEXT = {**SIZES, "vocab_size": 60}
VISION = {**SIZES, "image_size": 32, "patch_size": 16}
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 3, "num_heads": 4, "vocab_size": 60}
BART = {"d_model": 32, "encoder_layers": 3, "decoder_layers": 3, "encoder_attention_heads": 4, "vocab_size": 60,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}  # fmt: skip
OWN_GPT = Path(__file__).parents[1] / "docs" / "examples" / "own_gpt.py"


@pytest.mark.parametrize(
    ("source", "overrides", "causal"),
    [
        ("hf/bert", TEXT, [False]),
        ("hf/bert", {**TEXT, "is_decoder": True}, [True]),
        ("hf/gpt2", {"n_embd": 32, "n_layer": 3, "n_head": 4, "vocab_size": 60}, [True]),
        ("hf/llama", {**TEXT, "num_key_value_heads": 2}, [True]),
        ("hf/llama", {**TEXT, "hidden_size": 4096, "num_attention_heads": 32, "vocab_size": 32000}, [True]),
        ("hf/gemma4_text", {}, [True]),  # at its sizes an early token moves the last one by less than rounding
        pytest.param("hf/qwen3_next", {}, [True], marks=pytest.mark.slow),  # 512 experts of 25 GB are measured in 2
        pytest.param("hf/gemma3n_text", {}, [True], marks=pytest.mark.slow),  # its blocks pass four streams
        pytest.param("hf/csm", {}, [True] * 4, marks=pytest.mark.slow),  # texts do not reach its codec's stacks
        ("hf/electra", {**TEXT, "embedding_size": 32}, [False]),
        ("hf/gpt_neox", TEXT, [True]),
        ("hf/clip", {"text_config": TEXT, "vision_config": VISION}, [True, False]),
        ("hf/siglip", {"text_config": TEXT, "vision_config": VISION}, [False, False, False]),
        ("hf/t5", T5, [False, True]),
        ("hf/bart", BART, [False, True]),
        ("hf/git", {**TEXT, "vision_config": VISION}, [True, False]),
        ("vit_tiny_patch16_224", {"embed_dim": 32, "depth": 3, "num_heads": 4}, [False]),
        (f"{OWN_GPT}:make", {}, [True]),
    ],
)
def test_direction_is_measured(source: str, overrides: dict[str, Any], causal: list[bool]) -> None:
    located = locate(leanify.load(source, overrides=overrides, device="meta"))
    names = [stage.name for stage in located.stages]
    measured = dict(zip(names, causal_stages(located), strict=True))
    if source == "hf/git":  # text behind an image: only the text is causal
        causal = ["vision" not in name for name in names]
    assert list(measured.values()) == causal


class Masked(nn.Module):
    """Blocks of torch's own attention under a mask that only the caller has; a window looks to its side alone."""

    def __init__(self, mask: torch.Tensor) -> None:
        super().__init__()
        self.mask = mask  # neither a parameter nor a buffer
        self.embed = nn.Embedding(20, 32)
        layers = [nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0) for _ in range(3)]
        self.blocks = nn.ModuleList(layers)
        for layer in layers:
            nn.init.zeros_(layer.self_attn.out_proj.weight)  # drawn so, no token reaches another

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(ids)
        for block in self.blocks:
            hidden = block(hidden, src_mask=self.mask)
        return hidden


@pytest.mark.parametrize("kind", ["causal", "both", "window"])
def test_plain_masks_are_seen(kind: str) -> None:
    places = torch.arange(16)
    later = places[None, :] > places[:, None]
    far = (places[None, :] - places[:, None]).abs() > 2
    mask = {"causal": later, "both": later & False, "window": far}[kind]
    model = Masked(mask).eval()
    leanify.read(model, inputs=torch.randint(1, 20, (1, 16)))
    facts = LiveModel(find.build_on_meta(find.find(model))).facts
    assert set(facts.causal) == {kind == "causal"}
