"""Vision-language models: a picture, the text behind its tokens, and two towers that change on their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import flows
import pytest
import torch
from test_warm_shrink import built

import leanify
from leanify.profiling.counting import count, macs
from leanify.profiling.forward import observe_on_cpu, observe_on_meta
from leanify.reshaping import surgery
from leanify.sources import find
from leanify.upstream.inputs import example_inputs
from tests.zoo.running import difference, outputs, randomise

pytestmark = pytest.mark.filterwarnings("ignore:transformers cannot run:UserWarning")

TEXT = {
    "vocab_size": 99, "hidden_size": 48, "num_hidden_layers": 4, "num_attention_heads": 6, "num_key_value_heads": 3,
    "intermediate_size": 96,
}  # fmt: skip
CLIP = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64, "image_size": 32}
LLAVA = {
    "text_config": {"model_type": "llama", **TEXT},
    "vision_config": {"model_type": "clip_vision_model", "patch_size": 8, **CLIP},
    "image_token_index": 98,
}
ROTARY = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
QWEN2_VL = {
    "text_config": {**TEXT, "rope_parameters": ROTARY},
    "vision_config": {"embed_dim": 32, "hidden_size": 48, "depth": 3, "num_heads": 4, "mlp_ratio": 2, "patch_size": 4},
    "image_token_id": 98,
    "video_token_id": 97,
    "vision_start_token_id": 96,
    "vision_end_token_id": 95,
}


@pytest.mark.parametrize(
    ("source", "options", "cls", "tokens", "towers"),
    [
        ("hf/llava", LLAVA, "LlavaForConditionalGeneration", 80, ["vision_tower", "language_model"]),
        ("hf/qwen2_vl", QWEN2_VL, "Qwen2VLForConditionalGeneration", 40, ["visual", "language_model"]),
    ],
)
def test_plans_price_save_and_load(
    source: str, options: dict[str, Any], cls: str, tokens: int, towers: list[str], tmp_path: Path
) -> None:
    import transformers

    overrides = {**options, "class": cls}
    plan = leanify.redesign(source, target_params=0.85, overrides=overrides, min_depth=1, tokens=tokens)
    assert plan.towers == towers
    assert all(layer.mlp for layer in plan.baseline.architecture.layers())
    assert plan.chosen.params <= 0.85 * plan.baseline.params
    for design in (plan.baseline, plan.chosen):
        model = surgery.write(leanify.load(source, overrides=options, cls=cls, device="meta"), design.architecture)
        cost = count(model, tokens)
        assert (cost.params, cost.macs) == (design.params, design.macs)
    plan.save(tmp_path / "lean")
    lean = leanify.load(tmp_path / "lean")
    assert leanify.read(lean) == plan.chosen.architecture
    again = getattr(transformers, cls).from_pretrained(tmp_path / "lean")
    inputs = example_inputs(lean, 2, tokens)
    with torch.no_grad():
        assert torch.equal(lean(**inputs)[0], again(**inputs)[0])
    flows.assert_same_model(lean, again)


def test_default_llava_is_published_one() -> None:
    """By its default configuration the image's token has no row in the embedding. LLaVA 1.5: 7.06 B parameters."""
    with pytest.warns(UserWarning, match="using llava-hf/llava-1.5-7b-hf"):
        model = leanify.load("llava", device="meta", cls="LlavaForConditionalGeneration")
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(7.06e9, rel=0.002)


def test_qwen2_vl_needs_no_memory() -> None:
    """On meta, where upstream's checks of values cannot pass, as many MACs as with values; its 7B size runs there."""
    small = leanify.load("hf/qwen2_vl", overrides=QWEN2_VL, device="meta")
    on_meta = observe_on_meta(small, 40, macs)
    assert on_meta == observe_on_cpu(small, 40, macs) > 0
    large = leanify.load("hf/qwen2_vl", device="meta")
    assert observe_on_meta(large, None, macs) is not None


@pytest.mark.parametrize("name", ["align", "idefics2", "idefics3", "pvt"])
def test_types_outside_the_zoo_grow(name: str) -> None:
    model, run = built(f"hf/{name}")
    assert difference(outputs(leanify.grow(model, factor=2), run), outputs(model, run)) < 1e-10


LEVIT = {
    "image_size": 64, "hidden_sizes": [32, 48], "num_attention_heads": [2, 3], "depths": [2, 2], "key_dim": [8, 8],
    "mlp_ratio": [2, 2], "attention_ratio": [2, 2], "down_ops": [["Subsample", 8, 4, 4, 2, 2], [""]],
}  # fmt: skip
CAPTIONS = {
    "encoder": {"model_type": "vit", "patch_size": 8, **CLIP},
    "decoder": {
        "model_type": "gpt2",
        "vocab_size": 99,
        "n_embd": 48,
        "n_layer": 2,
        "n_head": 6,
        "add_cross_attention": True,
    },
}
INTERN = {
    "text_config": {"model_type": "qwen2", **TEXT},
    "vision_config": {**CLIP, "image_size": [32, 32], "patch_size": [8, 8]},
    "image_token_id": 98,
    "image_seq_length": 4,
}


@pytest.mark.parametrize(
    ("source", "options"),
    [
        ("hf/llava", LLAVA), ("hf/qwen2_vl", QWEN2_VL), ("hf/levit", LEVIT), ("hf/vision-encoder-decoder", CAPTIONS),
        ("hf/internvl", INTERN),
    ],
)  # fmt: skip
def test_growth_keeps_outputs(source: str, options: dict[str, Any]) -> None:
    model = randomise(leanify.load(source, overrides=options))
    inputs = {name: x.double() if x.is_floating_point() else x for name, x in example_inputs(model, 2, 40).items()}
    large = leanify.grow(model, factor=2)
    assert difference(outputs(large, lambda one: one(**inputs)), outputs(model, lambda one: one(**inputs))) < 1e-10


@pytest.mark.parametrize(("name", "more"), [("llava_next", "image_sizes"), ("gemma4", "pixel_values_videos")])
def test_refusals_name_inputs(name: str, more: str) -> None:
    """Of a type whose processor makes more than leanify does, in place of what upstream's code raised."""
    with pytest.raises(leanify.UnsupportedModel, match=rf"does not run on the .*may make more \({more}"):
        leanify.redesign(f"hf/{name}", target_params=0.7)


def test_bare_model_has_the_whole_configuration() -> None:
    """MusicGen's AutoModel is of its decoder's configuration."""
    assert find.find("hf/musicgen").origin.cls == "MusicgenForConditionalGeneration"
