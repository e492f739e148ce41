"""What an encoder with its decoder takes to generate, against upstream's own cache and a count by hooks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import leanify
from leanify.profiling.price_list import PriceList
from leanify.search.design import Design, make_design
from leanify.search.options import Options
from leanify.search.redesign import model_costs
from leanify.upstream.inputs import example_inputs

CONTEXT = 20
SIDES = {
    "d_model": 48, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 96, "decoder_ffn_dim": 80, "vocab_size": 99,
}  # fmt: skip
SOURCES: dict[str, dict[str, Any]] = {
    "t5": {
        "d_model": 48, "d_kv": 12, "d_ff": 96, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4,
        "vocab_size": 99,
    },
    "bart": {**SIDES, "max_position_embeddings": 64},
    "whisper": {**SIDES, "max_source_positions": 25, "max_target_positions": 40, "num_mel_bins": 8, "pad_token_id": 0},
}  # fmt: skip
pytestmark = pytest.mark.filterwarnings("ignore")


def generated(model: Any) -> tuple[int, int]:
    """MACs of the prompt with one decoder token, and of the token that is the last of CONTEXT, both with a cache."""
    inputs = example_inputs(model, 1, CONTEXT)
    inputs = {name: value for name, value in inputs.items() if name not in ("attention_mask", "decoder_input_ids")}
    words = torch.arange(10, 10 + CONTEXT)[None]
    with torch.no_grad():
        with FlopCounterMode(display=False) as prompt:
            model(**inputs, decoder_input_ids=words[:, :1], use_cache=True)
        before = model(**inputs, decoder_input_ids=words[:, :-1], use_cache=True)
        with FlopCounterMode(display=False) as token:
            cached = {"past_key_values": before.past_key_values, "use_cache": True}
            model(encoder_outputs=(before.encoder_last_hidden_state,), decoder_input_ids=words[:, -1:], **cached)
    return prompt.get_total_flops() // 2, token.get_total_flops() // 2


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("cls", [None, "AutoModelForSeq2SeqLM"])
def test_cached_generation_cost_matches_upstream(name: str, cls: str | None) -> None:
    cls = "WhisperForConditionalGeneration" if cls and name == "whisper" else cls
    overrides = SOURCES[name] | ({"class": cls} if cls else {})
    prices = PriceList(model_costs(name, Options(overrides=overrides, context=CONTEXT)), (0, 1))
    encoder, decoder = prices.baseline
    other = encoder._replace(heads=8, mlp=64), decoder._replace(depth=2, heads=6, mlp=160)
    for design in (make_design(prices, (encoder, decoder)), make_design(prices, other)):
        model = leanify.load(name, overrides=SOURCES[name], cls=cls)
        lean = leanify.write(model, design.architecture)
        lean.set_attn_implementation("eager")  # type: ignore[operator]
        said = design.serving
        assert (said.prefill_macs, said.decode_macs) == generated(lean)
        if cls is None:
            assert said.decode_macs == by_hand(prices, design)


def by_hand(prices: PriceList, design: Design) -> int:
    """A token's share of every weight but those that make keys and values of the encoder's output, and one row of the
    decoder's own maps (CONTEXT keys) and of those on the encoder (all that it gives out).
    """
    shape = design.architecture
    (decoder,) = (stage for stage in shape.stages if "decoder" in stage.name)
    encoded = 25 if "Whisper" in type(prices.costs.live.model).__name__ else CONTEXT
    total = 0
    for own, cross in decoder.blocks:
        total += 4 * own.width * own.inner + 2 * own.inner * CONTEXT
        total += 2 * cross.width * cross.inner + 2 * cross.inner * encoded + 2 * cross.width * cross.mlp
    return total
