"""Sharded checkpoints go through a redesign tensor by tensor: the same bits, and memory for a shard."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import nn

import leanify
from leanify.errors import DirectoryError
from leanify.sources import streaming
from leanify.upstream.libraries import import_transformers

SMALL = {
    "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "intermediate_size": 48, "vocab_size": 64, "max_position_embeddings": 32,
}  # fmt: skip


def sharded(folder: Path, cls: str, dtype: Any = torch.float32, **changed: Any) -> nn.Module:
    """A small decoder saved in many shards."""
    library = import_transformers()
    config = getattr(library, cls.replace("ForCausalLM", "Config").replace("LMHeadModel", "Config"))(**changed)
    torch.manual_seed(0)
    model: Any = getattr(library, cls)(config).to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder, max_shard_size="20KB")
    assert (folder / streaming.INDEX).is_file()
    return model  # type: ignore[no-any-return]


GPT2 = {
    "n_embd": 32,
    "n_layer": 4,
    "n_head": 4,
    "vocab_size": 64,
    "n_positions": 32,
    "bos_token_id": 0,
    "eos_token_id": 0,
}


@pytest.mark.parametrize(
    ("cls", "words", "dtype"),
    [
        ("LlamaForCausalLM", SMALL, torch.float32),
        ("LlamaForCausalLM", {**SMALL, "tie_word_embeddings": True}, torch.bfloat16),
        ("GPT2LMHeadModel", GPT2, torch.float32),  # a fused, transposed projection
    ],
)
def test_a_streamed_redesign_has_the_bits_of_one_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cls: str, words: dict[str, Any], dtype: Any
) -> None:
    sharded(tmp_path / "big", cls, dtype, **words)
    plan = leanify.redesign(tmp_path / "big", depth=2, heads=2, mlp=24)
    plan.save(tmp_path / "streamed", weights=tmp_path / "big")
    monkeypatch.setattr(streaming, "shards_of", lambda found: None)
    plan.save(tmp_path / "whole", weights=tmp_path / "big")
    found, wanted = (leanify.load(tmp_path / name).state_dict() for name in ("streamed", "whole"))
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) and found[name].dtype == dtype for name in wanted)
    cards = [json.loads((tmp_path / name / "leanify.json").read_text()) for name in ("streamed", "whole")]
    assert cards[0]["architecture"] == cards[1]["architecture"]
    assert len(list((tmp_path / "streamed").glob("model-*.safetensors"))) > 1


def test_streamed_growth_changes_no_output(tmp_path: Path) -> None:
    model = sharded(tmp_path / "big", "LlamaForCausalLM", **SMALL)
    leanify.redesign(tmp_path / "big", depth=4, heads=8, mlp=64).save(tmp_path / "grown", weights=tmp_path / "big")
    ids = torch.arange(20)[None]
    with torch.no_grad():
        assert (leanify.load(tmp_path / "grown")(ids).logits - model(ids).logits).abs().max() < 1e-5


def test_what_does_not_fit_on_the_disk_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sharded(tmp_path / "big", "LlamaForCausalLM", **SMALL)
    plan = leanify.redesign(tmp_path / "big", depth=2)
    full = os.statvfs_result((512, 512, 100, 1, 1, 0, 0, 0, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: full)
    with pytest.raises(DirectoryError, match="the weights take"):
        plan.save(tmp_path / "lean", weights=tmp_path / "big")
    assert [entry.name for entry in tmp_path.iterdir()] == ["big"]


# -- seven billion parameters -----------------------------------------------------------------------------------------

WIDTH, MLP, LAYERS, WORDS, SHARD = 4096, 11008, 32, 32000, 4.9e9

PEAK = """
import resource, sys
from leanify.cli import main
import torch, transformers, leanify.sources.streaming, leanify.design.plan
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
before = peak()
sys.argv = ["leanify", *sys.argv[1:]]
try:
    main()
except SystemExit as ended:
    assert not ended.code, ended.code
print(peak() - before)
"""


def seven_billion(folder: Path) -> int:
    """Llama 2 7B's shapes in bf16, as sparse files that are zero but for one row; the size of the largest shard."""
    import_transformers().LlamaConfig(
        hidden_size=WIDTH, intermediate_size=MLP, num_hidden_layers=LAYERS, num_attention_heads=32, vocab_size=WORDS,
        architectures=["LlamaForCausalLM"], dtype="bfloat16",
    ).save_pretrained(folder)  # fmt: skip
    shapes = {
        "model.embed_tokens.weight": [WORDS, WIDTH],
        "lm_head.weight": [WORDS, WIDTH],
        "model.norm.weight": [WIDTH],
    }
    for at in range(LAYERS):
        inside = {f"self_attn.{x}_proj": [WIDTH, WIDTH] for x in "qkvo"}
        inside |= {"mlp.gate_proj": [MLP, WIDTH], "mlp.up_proj": [MLP, WIDTH], "mlp.down_proj": [WIDTH, MLP]}
        inside |= {"input_layernorm": [WIDTH], "post_attention_layernorm": [WIDTH]}
        shapes |= {f"model.layers.{at}.{name}.weight": shape for name, shape in inside.items()}
    parts: list[dict[str, list[int]]] = [{}]
    for name, shape in shapes.items():
        if sum(map(bytes_of, parts[-1].values())) + bytes_of(shape) > SHARD:
            parts.append({})
        parts[-1][name] = shape
    named = {}
    for number, part in enumerate(parts):
        header, start = {}, 0
        for name, shape in part.items():
            header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, start + bytes_of(shape)]}
            start, named[name] = start + bytes_of(shape), f"{number}.safetensors"
        text = json.dumps(header).encode()
        with (folder / f"{number}.safetensors").open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            file.write(bytes(range(16)))  # the first tensor's first values: real ones
            file.truncate(8 + len(text) + start)
    (folder / streaming.INDEX).write_text(json.dumps({"metadata": {}, "weight_map": named}))
    return max(file.stat().st_size for file in folder.glob("*.safetensors"))


def bytes_of(shape: list[int]) -> int:
    return 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)


@pytest.mark.long
def test_seven_billion_parameters_take_less_memory_than_their_largest_shard(tmp_path: Path) -> None:
    largest = seven_billion(tmp_path / "big")
    began = time.perf_counter()
    plan = leanify.redesign(tmp_path / "big", target_params=0.5)
    planned = time.perf_counter() - began
    command = ["redesign", "big", "--target-params", "0.5", "--weights", "big", "-o", "lean", "--json"]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PEAK, *command], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    peak = int(done.stdout.split()[-1])
    print(f"{plan.baseline.params / 1e9:.2f} billion parameters, planned in {planned:.1f} s; peak {peak / 1e9:.2f} GB "
          f"above the imports, {peak / largest:.2f} of the largest shard ({largest / 1e9:.2f} GB)")  # fmt: skip
    assert peak < 1.3 * largest
    index = json.loads((tmp_path / "lean" / streaming.INDEX).read_text())["weight_map"]
    with safe_open(tmp_path / "lean" / index["model.embed_tokens.weight"], "pt") as tensors:
        row = tensors.get_slice("model.embed_tokens.weight")[0:1, 0:8].view(torch.uint8).flatten().tolist()
    assert row == list(range(16))
