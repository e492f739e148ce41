"""The GPU's page: its parts run on a CPU at tiny sizes, and without a GPU it says so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from benchmarks import gpu

ROOT = Path(__file__).parents[1]
TINY = gpu.Size(
    vit="vit_tiny_patch16_224",
    override={"img_size": 32, "patch_size": 8, "depth": 8, "embed_dim": 48, "num_heads": 3},
    image=32,
    batch=4,
    memory=(2,),
    text={
        "gpt2": {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 256},
        "bert": {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32},
    },
    tokens=16,
    sequences=2,
    product=64,
    steps=2,
    compiled=False,
    probed=2,
)


SLOW = ("ViT-B, throughput", "GPT-2 and BERT beside Trainer")  # they build trainers


@pytest.mark.slow
@pytest.mark.parametrize("title", [pytest.param(name, marks=[pytest.mark.long] * (name in SLOW)) for name in gpu.PARTS])
@pytest.mark.filterwarnings("ignore")
def test_a_part_runs_on_a_cpu(title: str) -> None:
    lines = gpu.PARTS[title](gpu.Bench(torch.device("cpu"), TINY))
    assert lines
    assert not any("nan" in line for line in lines)


@pytest.mark.skipif(torch.cuda.is_available(), reason="here is a GPU")
def test_without_a_gpu_it_says_so_and_writes_nothing(tmp_path: Path) -> None:
    page = tmp_path / "gpu.md"
    words = [sys.executable, "-m", "tests.benchmarks.gpu", "-o", str(page)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "no NVIDIA GPU" in done.stderr
    assert not page.exists()
