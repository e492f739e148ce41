"""Shapes as makers choose them: exponents of published families, and the proportions of narrower layers."""

from __future__ import annotations

from typing import Any

import pytest

import leanify
from leanify.core.architecture import Layer
from leanify.profiling.counting import body_parameters
from leanify.reshaping.sites import locate
from leanify.search.narrow_shape import keeps_proportions, narrow_layer
from leanify.search.published import families, families_like

QWEN, SMOLLM = Layer(896, 14, 2, 64, 4864), Layer(576, 9, 3, 64, 1536)
DEEPSEEK, OWN = Layer(7168, 128, 128, 128, 2048), Layer(64, 2, 2, 32, 256)


def test_exponents_of_published_families() -> None:
    """SmolLM2, Qwen2.5 and DeiT by their configurations; DeiT changes the width alone, so params go with its square."""
    exponents = {family.name: family.exponent for family in families()}
    assert exponents["DeiT"] == pytest.approx(0.5, abs=0.001)
    assert exponents["SmolLM2"] == pytest.approx(0.47, abs=0.005)
    assert exponents["Qwen2.5"] == pytest.approx(0.42, abs=0.005)
    assert all(0.2 < exponent <= 0.51 for exponent in exponents.values())


@pytest.mark.parametrize(
    ("name", "model", "overrides"),
    [
        ("SmolLM2", "llama", {"tie_word_embeddings": True}),
        ("BERT", "bert", {}),
    ],
)
def test_members_have_the_parameters_of_upstream(name: str, model: str, overrides: dict[str, Any]) -> None:
    (family,) = (family for family in families() if family.name == name)
    depth, width, heads, kv_heads, _, mlp = family.members[-1]
    sizes = {"num_hidden_layers": depth, "hidden_size": width, "num_attention_heads": heads, "intermediate_size": mlp}
    if model == "llama":
        sizes["num_key_value_heads"] = kv_heads
    built = leanify.load(model, overrides={**sizes, **overrides}, device="meta")
    assert family.body_params[-1] == pytest.approx(body_parameters(locate(built)), rel=0.005)


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("vit_tiny", ["DeiT", "ViT"]),
        ("bert", ["BERT"]),
        ("gpt2", ["SmolLM2", "Qwen2.5", "Qwen3", "Llama 3.2", "Pythia"]),
        pytest.param("t5", ["T5"], marks=pytest.mark.slow),
        pytest.param("hf/wav2vec2", ["Whisper"], marks=pytest.mark.slow),
    ],
)
def test_kind_of_a_model(source: str, names: list[str]) -> None:
    plan = leanify.redesign(source, depth=4)
    assert [family.name for family in families_like(plan.prices)] == names


@pytest.mark.parametrize(
    ("layer", "width", "heads", "kv_heads", "head_dim"),
    [
        (QWEN, 640, 10, 2, 64),  # groups of five, where the baseline has seven
        (QWEN, 768, 12, 2, 64),
        (SMOLLM, 384, 6, 2, 64),
        (OWN, 48, 2, 2, 24),  # not one head of 32
        (Layer(64, 4, 4, 16, 256), 48, 3, 3, 16),
        (Layer(768, 12, 12, 64, 3072), 512, 8, 8, 64),
    ],
)
def test_narrower_layers_keep_proportions(layer: Layer, width: int, heads: int, kv_heads: int, head_dim: int) -> None:
    narrow = narrow_layer(layer, width)
    assert (narrow.heads, narrow.kv_heads, narrow.head_dim) == (heads, kv_heads, head_dim)
    assert narrow.inner / width == layer.inner / layer.width
    assert keeps_proportions(layer, narrow)


@pytest.mark.parametrize(
    ("layer", "width"),
    [
        (DEEPSEEK, 4992),  # 89 heads
        (SMOLLM, 448),  # seven heads have no two key/value heads
        (Layer(768, 12, 12, 64, 3072), 544),  # 8 × 64 = 512
        (Layer(768, 12, 12, 64, 3072), 64),  # one head
    ],
)
def test_other_widths_are_out_of_proportion(layer: Layer, width: int) -> None:
    assert not keeps_proportions(layer, narrow_layer(layer, width))


@pytest.mark.parametrize(("source", "share"), [("vit_small", 0.5), ("gpt2", 0.7), ("distilbert", 0.5)])
def test_narrow_and_balanced_fill_the_budget(source: str, share: float) -> None:
    """The width is a multiple of 64, inner is the width, the parameters are within 3% below the budget."""
    plan = leanify.redesign(source, target_params=share)
    limit, old = share * plan.baseline.params, plan.baseline.architecture.stages[0].primary
    for design in filter(None, (plan.narrow, plan.balanced)):
        assert 0.97 * limit <= design.params <= limit
        new = design.architecture.stages[0].primary
        assert new.width % 64 == 0  # type: ignore[union-attr]
        assert new.inner == new.width < old.width  # type: ignore[union-attr]
        assert 2 <= new.mlp / new.width <= 6  # type: ignore[union-attr]
    assert plan.narrow.depth == plan.baseline.depth  # type: ignore[union-attr]
    assert plan.balanced is None or plan.balanced.depth < plan.baseline.depth
