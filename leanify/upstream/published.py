"""Configurations of published checkpoints, for model types whose default transformers cannot build or run."""

from __future__ import annotations

from typing import Any

DBRX: dict[str, Any] = {
    "d_model": 6144,
    "n_heads": 48,
    "n_layers": 40,
    "max_seq_len": 32768,
    "vocab_size": 100352,
    "attn_config": {"kv_n_heads": 8, "clip_qkv": 8.0, "rope_theta": 500000.0},
    "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4},
}
LFM2_8B_A1B: dict[str, Any] = {
    "num_hidden_layers": 24,
    "layer_types": ["full_attention" if i in (2, 6, 10, 14, 18, 21) else "conv" for i in range(24)],
}
HUNYUAN_A13B: dict[str, Any] = {
    "vocab_size": 128167,
    "intermediate_size": 3072,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "num_experts": 64,
    "moe_topk": 8,
    "max_position_embeddings": 32768,
}
LLAVA_1_5_7B: dict[str, Any] = {  # by default the image token's id is beyond the embedding
    "text_config": {"model_type": "llama", "vocab_size": 32064, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5}
}

QWEN2_VL_7B: dict[str, Any] = {  # by default the vision tower ends in another width than the text's
    "text_config": {
        "model_type": "qwen2_vl_text",
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "vocab_size": 152064,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0, "mrope_section": [16, 24, 24]},
    }
}

# model type → checkpoint on the hub, and the keys in which its configuration differs from the type's defaults
PUBLISHED: dict[str, tuple[str, dict[str, Any]]] = {
    "dbrx": ("databricks/dbrx-base", DBRX),
    "hunyuan_v1_moe": ("tencent/Hunyuan-A13B-Instruct", HUNYUAN_A13B),
    "lfm2_moe": ("LiquidAI/LFM2-8B-A1B", LFM2_8B_A1B),
    "qwen2_vl": ("Qwen/Qwen2-VL-7B-Instruct", QWEN2_VL_7B),
    "llava": ("llava-hf/llava-1.5-7b-hf", LLAVA_1_5_7B),
}
