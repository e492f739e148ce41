"""In every family the probed matrix is the concatenation of softmax(q kᵀ) v, head by head, and weights split likewise.

The oracle watches torch's attention kernel: what q, k and v a family hands to it, and with what mask and scale. From
these each head is computed plainly in float64 and held against its columns of the output projection's input. XCiT's
cross-covariance attention uses no kernel: there q, k and v come from its equation.
"""

from __future__ import annotations

import math
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leanify.lens.resize import weighted_part
from leanify.reshaping import sites
from leanify.spectra.measure import CHANNELS, OBJECTS, condition, head_weights
from leanify.upstream.build import build_model
from leanify.upstream.origin import Origin

_BERT = {
    "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 99,
    "max_position_embeddings": 40,
}  # fmt: skip
_LLAMA = {**_BERT, "num_key_value_heads": 2, "head_dim": 12}
_GPT2 = {"n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 40, "vocab_size": 99}
_IMAGES = {"img_size": 32, "depth": 2, "embed_dim": 48, "num_heads": 4}

FAMILIES = {
    "vit": Origin("timm", "vit_tiny_patch16_224", {**_IMAGES, "patch_size": 8}),
    "deit": Origin("timm", "deit_tiny_patch16_224", {**_IMAGES, "patch_size": 8}),
    "deit distilled": Origin("timm", "deit_tiny_distilled_patch16_224", {**_IMAGES, "patch_size": 8}),
    "vit with attention pooling": Origin(
        "timm", "vit_tiny_patch16_224", {**_IMAGES, "patch_size": 8, "global_pool": "map", "class_token": False}
    ),
    "xcit": Origin("timm", "xcit_nano_12_p16_224", _IMAGES),
    "hf vit": Origin("hf", "vit", {**_BERT, "image_size": 32, "patch_size": 8}, "ViTModel"),
    "bert": Origin("hf", "bert", _BERT, "BertModel"),
    "roberta": Origin("hf", "roberta", _BERT, "RobertaModel"),
    "gpt2": Origin("hf", "gpt2", _GPT2, "GPT2Model"),
    "llama, grouped": Origin("hf", "llama", _LLAMA, "LlamaModel"),
    "qwen2, grouped": Origin("hf", "qwen2", _LLAMA, "Qwen2Model"),
}


@pytest.fixture(params=FAMILIES)
def model(request):
    torch.manual_seed(0)
    return build_model(FAMILIES[request.param])


def batch_for(model) -> dict[str, Tensor]:
    name = getattr(model, "main_input_name", "x")
    if name == "input_ids":
        return {"input_ids": torch.randint(3, 99, (3, 20))}
    return {name: torch.randn(3, 3, 32, 32)}


@contextmanager
def watching(model, places):
    """Kernel calls (q, k, v, mask, scale) and inputs of the output projections, in order of their making."""
    kernel, calls, inputs = F.scaled_dot_product_attention, [], []

    def watch(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
        assert dropout_p == 0.0
        if is_causal:
            attn_mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
        calls.append((q, k, v, attn_mask, scale))
        return kernel(q, k, v, attn_mask=attn_mask, scale=scale, enable_gqa=enable_gqa)

    def cross_covariance(module, args):
        """XCiT, eq. 2 (El-Nouby et al. 2021), with k, q and v as d × N: A_iᵀ = softmax(q̂ k̂ᵀ τ) v."""
        qkv = module.qkv(args[0]).unflatten(-1, (3, module.num_heads, -1)).permute(2, 0, 3, 4, 1)
        q, k = (F.normalize(x, dim=-1) for x in qkv[:2])
        calls.append((q * module.temperature, k, qkv[2], None, 1.0))

    handles = [place.output.register_forward_pre_hook(lambda _, args: inputs.append(args[0])) for place in places]
    for place in places:
        if OBJECTS.get(place.attention.reading.name) == CHANNELS:
            handles.append(place.attention.module.register_forward_pre_hook(cross_covariance))
    F.scaled_dot_product_attention = watch
    try:
        yield calls, inputs
    finally:
        F.scaled_dot_product_attention = kernel
        for handle in handles:
            handle.remove()


def one_head(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float | None) -> Tensor:
    """softmax(q kᵀ · scale) v in float64, from the definition."""
    logits = q.double() @ k.double().mT * (scale if scale is not None else 1 / math.sqrt(q.shape[-1]))
    if mask is not None:
        logits = logits.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else logits + mask.double()
    return logits.softmax(-1) @ v.double()


@torch.no_grad()
def test_a_concatenates_heads(model):
    places = list(sites.locate(model).layers)
    with watching(model, places) as (calls, inputs):
        model(**batch_for(model))
    assert len(calls) == len(inputs) == len(places)
    for place, (q, k, v, mask, scale), a in zip(places, calls, inputs, strict=True):
        layer = place.read()
        assert a.shape[-1] == layer.inner
        over_channels = OBJECTS.get(place.attention.reading.name) == CHANNELS
        for i in range(layer.heads):
            kv = i * k.shape[1] // layer.heads  # a group of heads shares one key/value head
            local = mask[:, min(i, mask.shape[1] - 1)] if mask is not None and mask.dim() == 4 else mask
            expected = one_head(q[:, i], k[:, kv], v[:, kv], local, scale)
            columns = a[..., i * layer.head_dim : (i + 1) * layer.head_dim].double()
            torch.testing.assert_close(columns, expected.mT if over_channels else expected, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_head_weights_give_head_values(model):
    """v_i = x W_v[i]ᵀ + b, and A W_oᵀ = Σ A_i W_o[i]ᵀ: no rotation or norm stands between."""
    places = list(sites.locate(model).layers)
    xs: dict[nn.Module, Tensor] = {}
    makers = [_maker_of_v(place) for place in places]
    hooks = [maker.register_forward_pre_hook(lambda module, args: xs.update({module: args[0]})) for maker in makers]
    with watching(model, places) as (calls, inputs):
        model(**batch_for(model))
    for hook in hooks:
        hook.remove()
    for place, maker, (_, _, v, _, _), a in zip(places, makers, calls, inputs, strict=True):
        x = xs[maker]
        weights, layer = head_weights(place.attention), place.read()
        assert {role: w.shape[0] for role, w in weights.items()} == {
            "q": layer.heads, "k": layer.kv_heads, "v": layer.kv_heads, "o": layer.heads,
        }  # fmt: skip
        if OBJECTS.get(place.attention.reading.name) == CHANNELS:
            v = v.mT
        for i, w in enumerate(weights["v"]):
            got = v[:, i * v.shape[1] // layer.kv_heads]
            made = x @ w.T
            bias = (got - made).mean(dim=(0, 1))
            torch.testing.assert_close(got, made + bias, rtol=1e-4, atol=1e-5)
        parts = a.unflatten(-1, (layer.heads, layer.head_dim))
        summed = sum(parts[..., i, :] @ w.T for i, w in enumerate(weights["o"]))
        bias = place.output.bias if place.output.bias is not None else 0
        torch.testing.assert_close(summed + bias, place.output(a), rtol=1e-4, atol=1e-5)


def _maker_of_v(place) -> nn.Module:
    """The projection that makes v, alone or fused: its input is the attention's x."""
    rows = [part for part in place.attention.reading.rows if "norm" not in part and part != "gate"]
    rows = [part for part in rows if weighted_part(place.attention.module, part) is not None]
    part = next((p for p in rows if p.rpartition(".")[2][0] == "v"), rows[-1])
    return place.attention.module.get_submodule(part)


@torch.no_grad()
def test_kappa_matches_reference(model):
    """Hooks, float64 svdvals, one sample at a time; the model is as it was."""
    places = list(sites.locate(model).layers)
    batch = batch_for(model)
    with watching(model, places) as (_, inputs):
        model(**batch)
    before = {name: value.clone() for name, value in model.train().state_dict().items()}
    probe = condition(model, batch if len(batch) > 1 or "input_ids" in batch else next(iter(batch.values())))
    assert all(module.training for module in model.modules())
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [layer.name for layer in probe.layers] == [place.attention.path for place in places]
    for layer, a in zip(probe.layers, inputs, strict=True):
        for kappa, one in zip(layer.kappas, a, strict=True):
            s = torch.linalg.svdvals(one.double())
            assert kappa == pytest.approx((s[0] / s[-1]).item(), rel=1e-6)


@torch.no_grad()
def test_windows_average_per_sample():
    """TNT's inner attention runs within each patch: (images · patches, pixels, inner)."""
    torch.manual_seed(0)
    model = build_model(Origin("timm", "tnt_s_patch16_224", {"img_size": 64, "depth": 1}))
    seen: list[Tensor] = []
    handle = model.blocks[0].attn_in.proj.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    images = torch.randn(3, 3, 64, 64)
    model(images)
    handle.remove()
    (layer,) = (layer for layer in condition(model, images).layers if layer.name == "blocks.0.attn_in")
    values = torch.linalg.svdvals(seen[0].double())
    expected = (values[:, 0] / values[:, -1]).view(3, 16).mean(1)
    assert layer.kappas == pytest.approx(expected.tolist(), rel=1e-6)
    assert layer.object == "tokens × inner, in each of 16 windows"
    assert layer.tokens == 16
