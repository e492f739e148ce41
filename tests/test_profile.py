"""What a model costs: exact counts, a second opinion, and measurements that are there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from allocated import ADAMW, training_peak, weights_of
from cases import CASES, Case, batch
from torch.utils.flop_counter import FlopCounterMode

import leanify
from leanify.design.measure import peak, profiling
from leanify.design.prices import counting
from leanify.design.search.grid import primary_of

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


def test_at_448_pixels_the_lean_model_saves_less_than_fvcore_alone_says() -> None:
    large = {"img_size": 448}
    old = leanify.profile("vit_base", measure=False, overrides=large)
    lean = leanify.redesign("vit_base", depth=8, heads=24, overrides=large).chosen
    assert 1 - lean.macs / old.macs == pytest.approx(0.046, abs=0.0005)
    attention = 2 * 785**2 * 64
    blind = 1 - (lean.macs - 8 * 24 * attention) / (old.macs - 12 * 12 * attention)
    assert blind == pytest.approx(0.110, abs=0.001)


@EVERY
def test_two_counters_agree_on_every_family(case: Case) -> None:
    model = case.load("meta")
    counted = counting.count(model)
    products, uncounted, note = profiling.fvcore_macs(model)
    assert note is None
    assert products == counted.macs
    assert "scaled_dot_product_attention" not in uncounted


def test_a_disagreement_is_named() -> None:
    assert profiling._agreement(100, 90) == "torch's counter says 100 MACs, fvcore 90 (-10.00%)"
    assert profiling._agreement(100, None) == "no second count"


@pytest.mark.parametrize("name", ["vit", "gpt2", "llama", "xcit"])
def test_the_count_on_meta_equals_the_count_of_plain_attention(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An oracle: attention written out as two matrix products, counted on a CPU."""

    def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
        groups = q.shape[-3] // k.shape[-3]
        k, v = (x.repeat_interleave(groups, -3) for x in (k, v))
        return torch.softmax(q @ k.transpose(-1, -2), -1) @ v

    model = CASES[name].load()
    inputs = profiling.example_inputs(model, 1)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", plain)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        counting.call(model, inputs)
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
def test_predicted_training_memory_is_what_torchs_allocator_holds(source: str, overrides: dict[str, Any]) -> None:
    """At two batches; a kernel's own scratch space is a MB or so, whatever the model."""
    shell = leanify.load(source, overrides=overrides, device="meta")
    need = peak.Need(ADAMW * weights_of(shell), peak.lines_of(shell, 64))
    for size in (1, 6):
        assert need.of(size) == pytest.approx(training_peak(shell, size, 64), rel=0.02, abs=2_000_000)


@pytest.mark.parametrize("source", ["hf/bart", pytest.param("hf/mixtral", marks=pytest.mark.long)])
def test_training_memory_is_predicted_where_upstream_asks_for_values(source: str) -> None:
    facts = leanify.profile(source, measure=False, batch_size=1)
    assert facts.memory.train_predicted_bytes > 4 * facts.weights_bytes


def test_where_upstream_must_see_values_zeros_tell_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = CASES["bert"].load("meta")
    by_sizes = peak.lines_of(shell, 8)
    monkeypatch.setattr(peak, "_of_sizes", lambda *_: None)
    assert peak.lines_of(shell, 8) == by_sizes


def test_measurements_are_there_and_json_is_the_contract() -> None:
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
def test_surgery_keeps_the_kernels_of_attention(case: Case) -> None:
    """Half the blocks with one group of heads more call the same kernels, whatever they are."""
    base = case.load().eval()
    old_shape = leanify.read(base)
    stage, *others = old_shape.stages
    fewer = stage.reshape(stage.depth // 2, primary_of(stage).heads + stage.group)
    shape = replace(old_shape, stages=(fewer, *others))
    lean = leanify.write(base, shape).eval()
    old, new = (profiling.kernels_of(model, batch(model)) for model in (base, lean))
    assert old
    assert old.keys() == new.keys()


def test_plain_attention_is_told_from_a_fused_kernel() -> None:
    model: Any = CASES["bert"].load().eval()
    fused = profiling.kernels_of(model, batch(model))
    model.set_attn_implementation("eager")
    plain = profiling.kernels_of(model, batch(model))
    assert "softmax" not in fused
    assert plain == {"softmax": sum(fused.values())} == {"softmax": 4}


def test_counting_leaves_the_model_as_it_was() -> None:
    model = CASES["gpt2"].load("meta")
    counting.count(model)
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert model.config.use_cache


def test_an_unknown_precision_is_said() -> None:
    with pytest.raises(leanify.LeanifyError, match="floating-point"):
        leanify.profile("vit_base", measure=False, dtype="int8", overrides=CASES["vit"].overrides)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_on_a_gpu_torchs_peaks_and_nvmls_figure_stand_side_by_side() -> None:
    memory = leanify.profile("vit_base", overrides=CASES["vit"].overrides, batch_size=2, repeats=3).memory
    assert memory.forward_peak_bytes
    assert memory.forward_reserved_bytes
    assert memory.train_peak_bytes
    assert memory.nvml_used_bytes
    assert memory.train_peak_bytes <= memory.nvml_used_bytes


def test_what_was_counted_or_shown_is_kept_and_read_without_torch(tmp_path: Path) -> None:
    """The second time for the same source, code and options; another option is counted anew."""
    script = (
        "import sys; from leanify.cli import main; sys.argv[0] = 'leanify'\n"
        "try: main()\n"
        "finally: print('torch' in sys.modules, file=sys.stderr)"
    )
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    environment.pop("LEANIFY_PRICES", None)

    def typed(*words: str) -> tuple[str, bool]:
        done = subprocess.run(
            [sys.executable, "-c", script, *words], capture_output=True, text=True, check=True, env=environment
        )
        return done.stdout, done.stderr.split()[-1] == "True"

    count, look = ("profile", "test_vit", "--no-measure"), ("show", "test_vit")
    for command in (count, look):
        first, second = typed(*command), typed(*command)
        assert first[0] == second[0]
        assert (first[1], second[1]) == (True, False)
    assert typed(*count, "--batch-size", "4")[1]


@pytest.mark.parametrize("name", ["batch_size", "repeats"])
def test_counts_of_samples_and_passes_are_at_least_one(name: str) -> None:
    with pytest.raises(leanify.LeanifyError, match=f"{name}.0 is below 1"):
        leanify.profile("vit_tiny", **{name: 0})
