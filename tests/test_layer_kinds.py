"""Models of several kinds of layers lose any block: their configuration's lists follow the blocks that stay."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import leanify
from leanify.carrying.blocks import replace_blocks, stage_blocks
from leanify.carrying.teacher import CalibratedTeacher
from leanify.carrying.transfer import transfer_weights
from leanify.core.errors import UnsupportedModel
from leanify.reshaping.sites import locate
from leanify.upstream.libraries import import_transformers

IDLE = (0, 1, 3)  # blocks that add nothing to the residual stream
SIZES: dict[str, Any] = {
    "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 200,
    "max_position_embeddings": 128, "num_hidden_layers": 8, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
WINDOWS = {"sliding_window": 4, "layer_types": (["sliding_attention"] * 3 + ["full_attention"]) * 2}


def kinds_of_layers(name: str) -> nn.Module:
    """A model of 8 blocks of two kinds, of which three do nothing."""
    transformers = import_transformers()
    configs = {
        "smollm3": lambda: transformers.SmolLM3Config(**SIZES, no_rope_layers=[1, 1, 1, 0] * 2),
        "gemma3_text": lambda: transformers.Gemma3TextConfig(**SIZES, head_dim=16, **WINDOWS),
        "cohere2": lambda: transformers.Cohere2Config(**SIZES, **WINDOWS),
        "olmo3": lambda: transformers.Olmo3Config(**SIZES, **WINDOWS),
        "qwen2": lambda: transformers.Qwen2Config(**SIZES, **WINDOWS, use_sliding_window=True),
    }
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(configs[name]())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
        for index, block in enumerate(model.model.layers):
            for last in (block.self_attn.o_proj, block.mlp.down_proj):
                last.weight.mul_(0 if index in IDLE else 2)
            norms = [norm for norm_name, norm in block.named_children() if norm_name.startswith("post_")]
            for norm in norms if index in IDLE and name == "olmo3" else []:
                norm.weight.zero_()
    return model.eval()


def carried(model: nn.Module, *sizes: int, **more: int) -> tuple[Any, dict[str, Tensor]]:
    """The model with a stage of these sizes, blocks dropped by drawn tokens; and a batch of them."""
    batches = [{"input_ids": torch.randint(3, 200, (2, 12))} for _ in range(4)]
    shape = leanify.read(model)
    wanted = replace(shape, stages=(shape.stages[0].reshape(*sizes, **more),))
    return transfer_weights(CalibratedTeacher(model, batches[:2], batches[2:]), wanted, moves=("drop",)), batches[0]


@pytest.mark.parametrize("name", ["smollm3", "gemma3_text", "cohere2", "olmo3", "qwen2"])
def test_any_kind_of_layer_is_lost(name: str, tmp_path: Path) -> None:
    """Dropping the blocks that do nothing changes nothing, also in the folder that upstream's classes open."""
    model = kinds_of_layers(name)
    result, batch = carried(model, 5)
    assert sorted(step.blocks for step in result.steps[1:]) == [(index,) for index in IDLE]
    assert result.damage < 1e-6
    leanify.save(result.model, tmp_path / "lean")
    for opened in (result.model, leanify.load(tmp_path / "lean")):
        with torch.no_grad():
            before, after = (one.eval()(**batch).logits for one in (model, opened))
        assert float((before - after).abs().max()) < 1e-4


@pytest.mark.parametrize("name", ["smollm3", "cohere2"])
def test_kinds_stay_with_other_heads(name: str, tmp_path: Path) -> None:
    result, batch = carried(kinds_of_layers(name), 5, 6, mlp=96)
    leanify.save(result.model, tmp_path / "lean")
    again = leanify.load(tmp_path / "lean")
    with torch.no_grad():
        now, later = (one.eval()(**batch).logits for one in (result.model, again))
    assert float((now - later).abs().max()) < 1e-4
    kinds = [block.self_attn.__dict__.get("use_rope", block.self_attn.sliding_window) for block in again.model.layers]
    assert len(set(kinds)) == 2


def test_kinds_are_stored_with_free_heads(tmp_path: Path) -> None:
    """ModernBERT cannot say heads whose sum is not its width: its folder has the lists for upstream's constructor."""
    library = import_transformers()
    sizes = {key: value for key, value in SIZES.items() if key != "num_key_value_heads"}
    config = library.ModernBertConfig(**sizes | {"num_hidden_layers": 4}, global_attn_every_n_layers=2)
    torch.manual_seed(0)
    model = library.ModernBertModel(config).eval()
    result, batch = carried(model, 2, 6)
    located = locate(model)
    [stage] = leanify.read(model).stages
    with pytest.raises(UnsupportedModel, match="another block would stand at place 0"):  # the first one has no norm
        replace_blocks(located, {stage.name: [*enumerate(stage_blocks(located, stage.name))][1:3]})
    leanify.save(result.model, tmp_path / "lean")
    with torch.no_grad():
        now, later = (one.eval()(**batch)[0] for one in (result.model, leanify.load(tmp_path / "lean")))
    assert torch.equal(now, later)
