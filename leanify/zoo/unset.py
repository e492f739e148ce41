"""Settings that transformers' default configuration of a type lacks or contradicts, with working values.

Such a default builds no model, or one that does not run. The zoo therefore uses these values, which are a checkpoint's
where one is named. The table lists them; users set them with ``--override`` or name a checkpoint.
"""

from __future__ import annotations

from typing import Any

MROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [8, 12, 12], "partial_rotary_factor": 0.5}
UNSET: dict[str, dict[str, Any]] = {
    "autoformer": {"prediction_length": 24},
    "bamba": {"attn_layer_indices": [9, 18, 27]},  # ibm-ai-platform/Bamba-9B
    "chameleon": {"vocabulary_map": {"<image>": 8711}},  # facebook/chameleon-7b
    "cohere_compass_text": {"rope_parameters": {"full_attention": {**MROPE, "partial_rotary_factor": 1.0}}},
    "dbrx": {"attn_config": {"kv_n_heads": 8, "clip_qkv": 8.0, "rope_theta": 500000.0}},  # databricks/dbrx-base
    "deepseek_v2": {"num_experts_per_tok": 6, "n_group": 1, "topk_group": 1},  # deepseek-ai/DeepSeek-V2-Lite
    "dots1": {"n_routed_experts": 128, "num_experts_per_tok": 6, "n_shared_experts": 2},  # rednote-hilab/dots.llm1.base
    "esm": {"vocab_size": 33, "pad_token_id": 1},  # facebook/esm2
    "glm4v_moe_text": {"rope_parameters": {**MROPE, "mrope_section": [3, 4, 4]}},  # a default head has 42 channels
    "glm4v_text": {"rope_parameters": MROPE},  # zai-org/GLM-4.1V-9B
    "glm_image_text": {"rope_parameters": MROPE},
    "hunyuan_v1_dense": {"head_dim": 128},  # tencent/Hunyuan-7B
    "hunyuan_v1_moe": {"head_dim": 128},  # tencent/Hunyuan-A13B
    "hunyuan_vl_text": {"head_dim": 128, "rope_parameters": {**MROPE, "mrope_section": [16, 16, 16, 16]}},
    "informer": {"prediction_length": 24},
    "ministral": {"head_dim": 128},  # mistralai/Ministral-8B-Instruct-2410
    "nemotron": {"num_key_value_heads": 8},  # nvidia/Minitron-8B-Base
    "time_series_transformer": {"prediction_length": 24},
}
