"""Configurations of published models: code of their own, lists with a value for each layer, measured positions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from runs import change_json

import leanify
from leanify.core.architecture import Architecture
from leanify.core.errors import SourceError
from leanify.sources import overrides
from leanify.upstream.inputs import example_inputs
from leanify.upstream.libraries import import_transformers

SIZES = {"hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 24, "vocab_size": 50}
DECODER = {**SIZES, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def write_config(folder: Path, kind: str, cls: str, **keys: Any) -> Path:
    config = getattr(import_transformers(), kind)(**keys)
    config.architectures = [cls]
    config.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("kind", "cls"), [("Bert", "BertForMaskedLM"), ("Llama", "LlamaForCausalLM"), ("ViT", "ViTForImageClassification")]
)
@pytest.mark.filterwarnings("ignore:.*re-initialised:UserWarning")
def test_code_of_its_own_is_said(kind: str, cls: str, tmp_path: Path) -> None:
    """Of a type that transformers knows; with tensors that its model has not, the weights are refused."""
    write_config(tmp_path, f"{kind}Config", cls, **SIZES)
    change_json(tmp_path / "config.json", auto_map={"AutoConfig": "own.Config", "AutoModel": f"own.{kind}WithGates"})
    library = import_transformers()
    model = getattr(library, cls)(library.AutoConfig.from_pretrained(tmp_path))
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.warns(UserWarning, match=f"code of its own .{kind}WithGates.*which leanify does not run"):
        assert leanify.read(leanify.load(tmp_path)).stages[0].depth == 4
    name = next(name for name in model.state_dict() if ".0." in name)
    torch.save({**model.state_dict(), f"{name}.gate": torch.zeros(2)}, tmp_path / "pytorch_model.bin")
    with (
        pytest.warns(UserWarning, match="code of its own"),
        pytest.raises(leanify.SourceError, match="is another model: 1 tensors of layers do not fit"),
    ):
        leanify.load(tmp_path)


@pytest.mark.parametrize("shape", [{"depth": 2}, {"depth": 6}, {"depth": 3, "mlp": 8}, {"mlp": 40}], ids=str)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_lists_follow_the_layers(shape: dict[str, int], tmp_path: Path) -> None:
    """Gemma 3n lists the hidden units and a sparsity of each layer."""
    per_layer = {"intermediate_size": [24] * 4, "activation_sparsity_pattern": [0.9, 0.9, 0.0, 0.0]}
    keys = {"head_dim": 8, "num_key_value_heads": 1, "hidden_size_per_layer_input": 4, "laurel_rank": 4}
    keys |= {"num_kv_shared_layers": 0, "vocab_size_per_layer_input": 50, "altup_num_inputs": 2}
    folder = write_config(tmp_path / "old", "Gemma3nTextConfig", "Gemma3nForCausalLM", **DECODER | keys | per_layer)
    model = leanify.load(folder)
    before = leanify.read(model)
    new = leanify.write(model, Architecture(before.source, (before.stages[0].reshape(**shape),)))
    leanify.save(new, tmp_path / "new")
    again: Any = leanify.load(tmp_path / "new")
    assert leanify.read(again) == leanify.read(new)
    layers = leanify.read(again).stages[0]
    assert again.config.intermediate_size == [shape.get("mlp", 24)] * layers.depth
    assert len(again.config.activation_sparsity_pattern) == len(again.config.layer_types) == layers.depth


@pytest.mark.parametrize("kind", ["Phi3", "Llama", "Qwen2"])
def test_measured_positions_keep_their_head_dim(kind: str, tmp_path: Path) -> None:
    """LongRoPE has a factor for each pair of channels: a split is refused in one sentence."""
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    positions = {"max_position_embeddings": 64, "rope_parameters": {**rope, "original_max_position_embeddings": 32}}
    keys = {**DECODER, **positions, "num_key_value_heads": 2}
    folder = write_config(tmp_path, f"{kind}Config", f"{kind}ForCausalLM", **keys)
    with pytest.raises(leanify.LeanifyError, match="made for a head_dim of 8; heads can be added"):
        leanify.redesign(folder, target_params=0.7, heads_mode="split")


def test_pictures_of_documents_are_counted() -> None:
    model = leanify.load("layoutlmv3", device="meta")
    assert example_inputs(model, 1, 16, "meta")["pixel_values"].shape == (1, 3, 224, 224)


@pytest.mark.parametrize(
    ("kind", "auto"), [("depth_anything", "AutoModelForDepthEstimation"), ("trocr", "AutoModelForCausalLM")]
)
def test_types_without_a_bare_model_have_a_class(kind: str, auto: str) -> None:
    library = import_transformers()
    config = library.AutoConfig.for_model(kind)
    with pytest.raises(SourceError, match="no AutoModel"):
        overrides.class_name("AutoModel", config)
    assert overrides.hf_origin(kind, {}).cls == overrides.class_name(auto, config)
