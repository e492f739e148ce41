"""The lens held against its laws, over every core family."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from cases import CASES, GROUPED_QUERY, Case, batch, equal, outputs
from test_shrink_heads import SIZES, drawn
from torch import nn
from transformers.pytorch_utils import Conv1D
from zoo import laws, running, tiny
from zoo.running import randomise

import leanify
from leanify.core.architecture import Architecture, primary_layer
from leanify.lens.resize import linear_features
from leanify.profiling.forward import call
from leanify.reshaping import sites, surgery
from leanify.sources.source import find_expression
from leanify.upstream.build import build_model
from leanify.upstream.derived_attributes import drop_path_rates
from leanify.upstream.origin import get_origin

EVERY = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def lean_shapes(architecture: Architecture) -> dict[str, Architecture]:
    """Grown, split and shrunk versions of a shape, the way a redesign turns it."""

    def turned(**shape: Any) -> Architecture:
        stages = enumerate(architecture.stages)
        return replace(
            architecture,
            stages=tuple(s.reshape(**shape) if i in architecture.variable_stages else s for i, s in stages),
        )

    primary = primary_layer(architecture.stages[architecture.variable_stages[0]])
    return {
        "grown": turned(heads=primary.heads + 2 * primary.group),
        "split": turned(heads=2 * primary.heads, head_dim=primary.head_dim // 2),
        "lean": turned(depth=2, heads=2 * primary.heads, mlp=32),
        "narrow": turned(depth=3, heads=primary.group, mlp=16),
        "deeper": turned(depth=6),
    }


@EVERY
def test_families_obey_every_law(case: Case) -> None:
    model = case.load()
    inputs = {name: x.double() if x.is_floating_point() else x for name, x in batch(model).items()}
    laws.hold(model, lambda m: call(m, inputs))
    laws.check_saving(model, lambda m: call(m, inputs))


@EVERY
def test_written_shape_reads_back(case: Case) -> None:
    """The old model is untouched."""
    model = case.load()
    before = copy.deepcopy(model.state_dict())
    located = sites.locate(model)
    shape = located.architecture
    shapes = lean_shapes(shape)
    for wanted in shapes.values():
        # the new layers' positions are derived from the old model's; `locate` looks at the new modules and tensors
        derived = surgery.write_located(located, wanted)
        found = sites.locate(derived.model)
        assert {s.path: s for s in derived.sites} == {s.path: s for s in found.sites}
        assert (derived.stages, found.architecture) == (found.stages, wanted)
        for lean in (derived.model, leanify.write(model, wanted, "fresh")):
            assert leanify.read(lean) == wanted
            assert all(torch.isfinite(x).all() for x in outputs(lean))
    twice = leanify.write(leanify.write(model, shapes["lean"]), shapes["split"])
    assert leanify.read(twice) == shapes["split"]
    assert leanify.read(model) == shape
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_model_is_located_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(sites, "find_sites", lambda model, real=sites.find_sites: (calls.append(1), real(model))[1])
    model = CASES["vit"].load()
    shape = leanify.read(model)
    for act, most in (
        (lambda: leanify.write(model, shape.grown(factor=2)), 1),
        (lambda: leanify.grow(model, factor=2), 1),
        (lambda: leanify.redesign("vit_base", target_params=0.5), 12),  # each narrower model is built, by two spellings
    ):
        calls.clear()
        act()
        assert 1 <= len(calls) <= most


@EVERY
def test_surgery_equals_upstream_constructor(case: Case) -> None:
    """Where upstream can express a shape, the result of surgery equals what it builds, given the same weights."""
    model = case.load()
    origin = get_origin(model)
    shape = leanify.read(model)
    for name, wanted in lean_shapes(shape).items():
        lean = leanify.write(model, wanted).eval()
        native = find_expression(lean, origin, wanted)
        if name == "grown":
            assert (native is not None) == case.native
        if native is None:
            continue
        built = build_model(native)
        built.load_state_dict(lean.state_dict())
        assert equal(outputs(lean), outputs(built)), name


def test_fresh_weights_match_upstream() -> None:
    """Not torch's default: a lean ViT drawn anew has the spread that timm gives it, and GPT-2's depends on depth."""
    vit = CASES["vit"].load()
    lean = leanify.write(vit, lean_shapes(leanify.read(vit))["lean"], "fresh")
    assert lean.blocks[0].attn.proj.weight.detach().std() == pytest.approx(0.02, rel=0.1)
    assert not lean.blocks[0].attn.proj.bias.any()
    gpt2 = CASES["gpt2"].load()
    lean = leanify.write(gpt2, lean_shapes(leanify.read(gpt2))["lean"], "fresh")
    assert lean.transformer.h[0].attn.c_proj.weight.detach().std() == pytest.approx(0.02 / 2, rel=0.1)
    assert lean.lm_head.weight is lean.transformer.wte.weight


@pytest.mark.parametrize("name", ["gpt2", "llama"])
@pytest.mark.parametrize("shape", ["grown", "split", "lean"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_cached_generation_survives_surgery(name: str, shape: str) -> None:
    model = CASES[name].load()
    lean = leanify.write(model, lean_shapes(leanify.read(model))[shape], "fresh").eval()
    prompt = torch.arange(1, 6).view(1, 5)
    settings = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    cached = lean.generate(prompt, attention_mask=torch.ones_like(prompt), use_cache=True, **settings)
    uncached = lean.generate(prompt, attention_mask=torch.ones_like(prompt), use_cache=False, **settings)
    assert cached.shape == (1, 17)
    assert torch.equal(cached, uncached)


def test_drop_path_follows_depth() -> None:
    """So does feature_info."""
    model = CASES["vit, drop path"].load()
    lean = leanify.write(model, lean_shapes(leanify.read(model))["narrow"])
    assert drop_path_rates(list(lean.blocks)) == pytest.approx([0, 0.15, 0.3])
    assert [entry["module"] for entry in lean.feature_info] == ["blocks.0", "blocks.1", "blocks.2"]


def test_config_and_rotary_tables_follow() -> None:
    """So do the cache's indices."""
    model = CASES["llama"].load()
    split = leanify.write(model, lean_shapes(leanify.read(model))["split"])
    assert (split.config.num_attention_heads, split.config.num_key_value_heads, split.config.head_dim) == (12, 4, 8)
    assert split.model.rotary_emb.inv_freq.shape == (4,)
    assert model.config.num_attention_heads == 6
    deeper = leanify.write(model, lean_shapes(leanify.read(model))["deeper"])
    assert [layer.self_attn.layer_idx for layer in deeper.model.layers] == list(range(6))
    assert deeper.config.num_hidden_layers == 6


def test_kv_groups_grow_whole() -> None:
    """A single key-value head stays."""
    assert {(x.heads, x.kv_heads) for x in leanify.read(leanify.grow(CASES["llama"].load(), heads=12)).layers()} == {
        (12, 4)
    }
    single = leanify.grow(CASES["llama, one kv head"].load(), heads=7)
    assert {(x.heads, x.kv_heads) for x in leanify.read(single).layers()} == {(7, 1)}
    with pytest.raises(leanify.ShapeError, match="must be a multiple of 3"):
        leanify.grow(CASES["llama"].load("meta"), heads=8)


@pytest.mark.parametrize("factor", [2, 3])
def test_copied_heads_survive_joint_norm(factor: int) -> None:
    """Mean and variance over k copies of all channels are those over one."""
    normed = leanify.load("vit_base", overrides={**CASES["vit"].overrides, "scale_attn_norm": True}).double().eval()
    normed = randomise(normed)
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    heads = leanify.read(normed).stages[0].blocks[0][0].heads
    grown = leanify.grow(normed, factor=factor)
    assert leanify.read(grown) == leanify.read(normed).grown(factor=factor)
    with torch.no_grad():
        torch.testing.assert_close(grown(images), normed(images), rtol=0, atol=1e-10)
    with pytest.raises(leanify.UnsupportedModel, match=f"norm over all {heads} heads.*multiples of {heads}"):
        leanify.grow(normed, heads=heads + 1)
    assert leanify.read(leanify.write(normed, leanify.read(normed).grown(heads=heads + 1))).depth == 4


def test_misfit_shapes_are_refused() -> None:
    model = CASES["vit"].load("meta")
    shape = leanify.read(model)
    with pytest.raises(leanify.ShapeError, match="positive"):
        leanify.write(model, shape.map_layers(lambda layer: replace(layer, width=0)))
    with pytest.raises(leanify.ShapeError, match="stages"):
        leanify.write(model, leanify.read(CASES["xcit"].load("meta")))
    with pytest.raises(leanify.ShapeError, match="positive"):
        leanify.write(model, shape.map_layers(lambda layer: replace(layer, mlp=0)))
    with pytest.raises(leanify.ShapeError, match="at least 1"):
        shape.stages[0].reshape(depth=0)
    with pytest.raises(leanify.ShapeError, match="has 3 already"):
        leanify.grow(model, heads=2)


@pytest.mark.parametrize("name", ["vit", "xcit", "bert", "llama"])
def test_deeper_model_repeats_last_block(name: str) -> None:
    """Every block beyond the old ones holds the last one's tensors, not another's, in storage of its own."""
    model = randomise(CASES[name].load())
    deeper = leanify.write(model, lean_shapes(leanify.read(model))["deeper"])
    stage = leanify.read(model).stages[0]
    old, new = (list(one.get_submodule(stage.name).children()) for one in (model, deeper))
    last, before = old[-1].state_dict(), old[-2].state_dict()
    assert any(not torch.equal(last[key], before[key]) for key in last), "blocks that differ"
    assert len(new) == 6
    for block in new[len(old) :]:
        found = block.state_dict()
        assert found.keys() == last.keys()
        assert all(torch.equal(found[key], last[key]) for key in last)
    pointers = [tensor.data_ptr() for block in new for tensor in block.parameters()]
    assert len(set(pointers)) == len(pointers)


def test_tied_parameters_stay_tied() -> None:
    """Also those that surgery replaces: a map shared by two layers is resized in both, and stays shared."""
    model = CASES["bert"].load()
    first, second = model.encoder.layer[0], model.encoder.layer[1]
    second.attention.self.query.weight = first.attention.self.query.weight
    second.intermediate.dense.weight = first.intermediate.dense.weight
    for name, wanted in lean_shapes(leanify.read(model)).items():
        lean = leanify.write(model, wanted)
        one, two = lean.encoder.layer[0], lean.encoder.layer[1]
        assert one.attention.self.query.weight is two.attention.self.query.weight, name
        assert one.intermediate.dense.weight is two.intermediate.dense.weight, name
        assert one.output.dense.weight is not two.output.dense.weight, name


def test_shared_configs_are_numbered() -> None:
    """Phi-3's attentions read their heads from the model's configuration; here each has another number of them."""
    options = {**GROUPED_QUERY, "num_hidden_layers": 2, "pad_token_id": 0}
    torch.manual_seed(0)
    model = randomise(leanify.load("phi3", overrides=options).double()).eval()
    shape = leanify.read(model)
    (stage,) = shape.stages
    blocks = tuple(
        (block[0].set_heads(block[0].heads * factor),) for block, factor in zip(stage.blocks, (2, 3), strict=True)
    )
    mixed = leanify.write(model, replace(shape, stages=(replace(stage, blocks=blocks),)))
    heads = [layer.self_attn.config.num_attention_heads for layer in mixed.layers]
    assert heads == [12, 18]
    assert model.config.num_attention_heads == 6
    torch.testing.assert_close(outputs(mixed), outputs(model), rtol=0, atol=1e-10)


# -- linear maps in all their forms -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "module",
    [
        nn.Linear(6, 10),
        Conv1D(10, 6),
        nn.Conv2d(6, 10, 1),
        nn.Conv2d(6, 10, 3, groups=2),
        nn.Conv1d(6, 10, 1),
        nn.ConvTranspose2d(6, 10, 2),
        nn.ConvTranspose2d(6, 10, 2, groups=2),
    ],
    ids=lambda module: type(module).__name__,
)
def test_map_reads_own_numbers(module: nn.Module) -> None:
    """Which axis of the weight is which, whatever the class: the sizes that it was made with, and its bias."""
    found = linear_features(module)
    assert (found.outputs, found.inputs) == (10, 6)
    weight = module.weight
    assert isinstance(weight, torch.Tensor)
    groups = getattr(module, "groups", 1)
    lengths = weight.shape[found.output_axis], weight.shape[found.input_axis]
    divided = (10 // groups, 6) if isinstance(module, nn.ConvTranspose2d) else (10, 6 // groups)
    assert lengths == divided
    assert (getattr(module, found.output_name), getattr(module, found.input_name)) == (10, 6)
    for norm, name in ((nn.LayerNorm(7), "normalized_shape"), (nn.BatchNorm1d(7), "num_features")):
        one = linear_features(norm)
        assert (one.outputs, one.inputs, one.output_axis, one.input_axis) == (7, 7, 0, 0)
        assert (one.output_name, one.input_name) == (name, name)


def test_old_head_caches_are_dropped() -> None:
    """LeViT keeps its attention's biases by head once it has run; new heads add nothing, and fewer run."""
    model, run = tiny.build("timm", "levit_128s")
    model = randomise(model).eval()
    before = running.outputs(model, run)
    shape = leanify.read(model)
    grown = leanify.write(model, shape.map_layers(lambda layer: layer.set_heads(2 * layer.heads)))
    assert running.difference(running.outputs(grown, run), before) < 1e-4
    assert running.difference(running.outputs(model, run), before) == 0
    fewer = leanify.write(grown, shape)
    assert running.difference(running.outputs(fewer, run), before) < 1e-4


def test_position_maps_follow_heads() -> None:
    """DeBERTa-v2 that does not share its keys projects the relative positions for each head, too."""
    options = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "share_att_key": False}
    model = drawn("DebertaV2Model", vocab_size=60, **SIZES, **options).eval()
    shape = leanify.read(model)
    new = leanify.write(model, replace(shape, stages=(shape.stages[0].reshape(heads=3),))).eval()
    attention = new.encoder.layer[0].attention.self
    assert attention.pos_key_proj.out_features == attention.pos_query_proj.out_features == 48
    assert new(torch.arange(1, 9)[None])[0].isfinite().all()
