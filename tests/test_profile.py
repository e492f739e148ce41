"""What a model costs: exact counts, a second opinion, and measurements that are there."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from allocated import ADAMW, training_peak, weight_bytes
from cases import CASES, Case, batch
from torch.utils.flop_counter import FlopCounterMode

import leanify
from leanify.profiling import counting, measuring
from leanify.profiling import profile as profiling
from leanify.profiling import training_memory as peak
from leanify.profiling.forward import call
from leanify.search.grid import primary_layer

EVERY = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def test_vit_base_takes_17_56_gmacs() -> None:
    """By hand: 12 layers of 4·D²·N + 2·N²·D + 8·D²·N, the patches and the classifier; fvcore alone misses 2·N²·D."""
    facts = leanify.profile("vit_base", measure=False)
    tokens, width = 197, 768
    attention = 12 * 2 * tokens**2 * width
    projections = 12 * tokens * (4 * width**2 + 8 * width**2)
    assert facts.macs == attention + projections + 196 * 768 * 768 + 768 * 1000 == 17_563_828_224
    assert facts.fvcore_macs == facts.macs
    assert facts.flops == 2 * facts.macs
    assert facts.cross_check == "torch's counter and fvcore agree"
    assert facts.uncounted == ["add", "gelu"]
    assert (facts.macs - attention) / 1e9 == pytest.approx(16.85, abs=0.01)


def test_fvcore_overstates_lean_savings() -> None:
    """At 448 pixels the lean model saves less than fvcore alone says."""
    large = {"img_size": 448}
    old = leanify.profile("vit_base", measure=False, overrides=large)
    lean = leanify.redesign("vit_base", depth=8, heads=24, overrides=large).chosen
    assert 1 - lean.macs / old.macs == pytest.approx(0.046, abs=0.0005)
    attention = 2 * 785**2 * 64
    blind = 1 - (lean.macs - 8 * 24 * attention) / (old.macs - 12 * 12 * attention)
    assert blind == pytest.approx(0.110, abs=0.001)


@EVERY
def test_counters_agree_on_every_family(case: Case) -> None:
    """And leave the model as it was."""
    model = case.load("meta")
    counted = counting.count(model)
    products, uncounted, note = profiling.fvcore_macs(model)
    assert not note
    assert products == counted.macs
    assert "scaled_dot_product_attention" not in uncounted
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_disagreement_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where fvcore counts otherwise, and where it does not run."""
    model = CASES["gpt2"].load("meta")
    macs = counting.count(model).macs
    counts = {
        f"torch's counter says {macs:,} MACs, fvcore {2 * macs:,} (+100.00%)": (2 * macs, [], ""),
        "fvcore did not run": (None, [], "fvcore did not run"),
    }
    for words, found in counts.items():
        monkeypatch.setattr(profiling, "fvcore_macs", lambda *_, found=found: found)
        assert leanify.profile(model, measure=False).cross_check == words


@pytest.mark.parametrize("name", ["vit", "gpt2", "llama", "xcit"])
def test_meta_count_equals_plain_attention(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An oracle: attention written out as two matrix products, counted on a CPU."""

    def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
        groups = q.shape[-3] // k.shape[-3]
        k, v = (x.repeat_interleave(groups, -3) for x in (k, v))
        return torch.softmax(q @ k.transpose(-1, -2), -1) @ v

    model = CASES[name].load()
    inputs = profiling.example_inputs(model, 1)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", plain)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        call(model, inputs)
    assert counter.get_total_flops() // 2 == counting.count(CASES[name].load("meta")).macs


@pytest.mark.parametrize(
    ("source", "overrides"),
    [
        ("vit_tiny_patch16_224", {"depth": 2}),
        ("swin_tiny_patch4_window7_224", {"depths": (1, 1, 2, 1)}),
        ("hf/gpt2", {"n_layer": 2, "n_embd": 192, "vocab_size": 5000}),
        ("hf/t5", {"num_layers": 1, "d_model": 128, "d_ff": 64, "vocab_size": 30000}),  # embeddings used three times
    ],
)
def test_predicted_memory_matches_allocator(source: str, overrides: dict[str, Any]) -> None:
    """At two batches; a kernel's own scratch space is a MB or so, whatever the model."""
    shell = leanify.load(source, overrides=overrides, device="meta")
    need = peak.MemoryNeed(ADAMW * weight_bytes(shell), peak.fit_lines(shell, 64))
    for size in (1, 6):
        assert need.of(size) == pytest.approx(training_peak(shell, size, 64), rel=0.02, abs=2_000_000)
        assert peak.trace_peak(shell, size, 64) == pytest.approx(need.of(size) - need.fixed_bytes, rel=1e-3)


@pytest.mark.parametrize("source", ["hf/bart", pytest.param("hf/mixtral", marks=pytest.mark.long)])
def test_memory_prediction_handles_value_access(source: str) -> None:
    """Upstream asks for values while the model is on meta."""
    facts = leanify.profile(source, measure=False, batch_size=1)
    assert facts.memory.train_predicted_bytes > 4 * facts.weights_bytes


def test_zeros_stand_for_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where upstream must see values, zeros tell the same."""
    shell = CASES["bert"].load("meta")
    by_sizes = peak.fit_lines(shell, 8)
    monkeypatch.setattr(peak, "_trace_sizes", lambda *_: None)
    assert peak.fit_lines(shell, 8) == by_sizes


def test_measurements_follow_json_contract() -> None:
    facts = leanify.profile("vit_base", overrides=CASES["vit"].overrides, batch_size=2, repeats=3, device="cpu")
    data = json.loads(json.dumps(facts.to_json(), allow_nan=False))
    keys = "source params params_body macs flops uncounted weights_bytes latency_s throughput_per_s memory device"
    assert set(keys.split()) <= data.keys()
    wanted = "forward_peak_bytes train_peak_bytes train_predicted_bytes nvml_used_bytes"
    assert set(wanted.split()) <= data["memory"].keys()
    assert data["latency_s"] > 0
    assert data["throughput_per_s"] > 0
    assert data["memory"]["nvml_used_bytes"] is None
    assert "resident set" in data["device"]
    assert data["weights_bytes"] == 4 * data["params"]


@EVERY
def test_surgery_keeps_attention_kernels(case: Case) -> None:
    """Half the blocks with one group of heads more call the same kernels, whatever they are."""
    base = case.load().eval()
    old_shape = leanify.read(base)
    stage, *others = old_shape.stages
    fewer = stage.reshape(stage.depth // 2, primary_layer(stage).heads + stage.group)
    shape = replace(old_shape, stages=(fewer, *others))
    lean = leanify.write(base, shape).eval()
    old, new = (measuring.attention_kernels(model, batch(model)) for model in (base, lean))
    assert old
    assert old.keys() == new.keys()


def test_plain_attention_is_detected() -> None:
    """It is told from a fused kernel."""
    model: Any = CASES["bert"].load().eval()
    fused = measuring.attention_kernels(model, batch(model))
    model.set_attn_implementation("eager")
    plain = measuring.attention_kernels(model, batch(model))
    assert "softmax" not in fused
    assert plain == {"softmax": sum(fused.values())} == {"softmax": 4}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_gpu_shows_torch_and_nvml() -> None:
    """torch's peaks and NVML's figure stand side by side."""
    memory = leanify.profile("vit_base", overrides=CASES["vit"].overrides, batch_size=2, repeats=3).memory
    assert memory.forward_peak_bytes
    assert memory.forward_reserved_bytes
    assert memory.train_peak_bytes
    assert memory.nvml_used_bytes
    assert memory.train_peak_bytes <= memory.nvml_used_bytes


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [("batch_size", 0, "0 is below 1"), ("repeats", 0, "0 is below 1"), ("dtype", "int8", "floating-point")],
)
def test_bad_settings_are_refused(name: str, value: Any, words: str) -> None:
    with pytest.raises(leanify.LeanifyError, match=rf"{name}.*{words}"):
        leanify.profile("vit_tiny", measure=False, **{name: value})
