"""Small versions of both zoos' models, and a fixed random input for each."""

# ruff: noqa: E501

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from leanify.errors import SourceError
from leanify.sources import find
from leanify.upstream.build import build_model
from leanify.upstream.inputs import example_inputs
from leanify.upstream.libraries import first_line, import_timm, import_transformers
from leanify.upstream.origin import Origin

BUILD = {"depth": 3, "depths": 2}


def warm() -> None:
    """Import what every model needs, before processes are forked."""
    import_timm()
    import_transformers()
    _shrink_mvitv2()


def _shrink_mvitv2() -> None:
    """MViTv2's shapes are no arguments of its constructor: they are made small where it keeps them."""
    from timm.models import mvitv2

    for name, cfg in mvitv2.model_cfgs.items():
        depths = tuple(min(depth, 3) for depth in cfg.depths)
        mvitv2.model_cfgs[name] = replace(cfg, depths=depths, embed_dim=tuple(24 * heads for heads in cfg.num_heads))


def build(library: str, name: str) -> tuple[nn.Module, Any]:
    return build_timm(name) if library == "timm" else build_hf(name)


@functools.cache
def timm_names() -> list[str]:
    """Every timm model, by name; which of them have attention, only building them shows."""
    return import_timm().list_models()


ONE_LIST = {"embed_dim": 48, "depth": 3, "num_heads": 3}
SHRINK: dict[str, list[dict[str, Any]]] = {
    "swin_transformer": [{"embed_dim": 24, "depths": (1, 1, 3, 1), "num_heads": (2, 4, 8, 16)}],
    "swin_transformer_v2": [{"embed_dim": 24, "depths": (1, 1, 3, 1), "num_heads": (2, 4, 8, 16)}],
    "swin_transformer_v2_cr": [{"embed_dim": 24, "depths": (1, 1, 3, 1), "num_heads": (2, 4, 8, 16)}],
    "davit": [{"embed_dims": (24, 48, 96, 192), "depths": (1, 1, 3, 1), "num_heads": (2, 4, 8, 16)}],
    "volo": [{"layers": (2, 2, 3, 2), "embed_dims": (24, 48, 48, 48), "num_heads": (2, 4, 4, 4)}],
    "tnt": [{"embed_dim": 60, "depth": 3, "num_heads_outer": 3}],
    "hiera": [{"embed_dim": 24, "num_heads": 2, "stages": (1, 1, 2, 2)}],
    "gcvit": [],
    "twins": [
        {"depths": (1, 1, 2, 1), "embed_dims": (32, 32, 64, 64), "num_heads": (2, 2, 4, 4)},
        {"depths": (1, 1, 2, 1)},
    ],
    "pvt_v2": [{"depths": (1, 1, 2, 1), "embed_dims": (16, 32, 48, 64), "num_heads": (2, 2, 3, 4)}],
    "nest": [],
    "pit": [{"base_dims": (8, 8, 8), "depth": (1, 2, 1), "heads": (2, 4, 8)}],
    "metaformer": [],
    "fastvit": [{"layers": (1, 1, 1, 2)}, {"layers": (1, 1, 1, 1, 2)}],
    "hieradet_sam2": [{"embed_dim": 24, "num_heads": 2, "stages": (1, 1, 3, 2), "global_att_blocks": (3,)}],
    "edgenext": [{"depths": (1, 2, 2, 2)}],
    "eva": [ONE_LIST, {**ONE_LIST, "num_heads": 6, "num_kv_heads": [3, 3, 3]}, {"depth": 3}],
    "mvitv2": [],
    "maxxvit": [{"depths": (1, 1, 3, 1), "embed_dim": (32, 32, 64, 64)}],
    "crossvit": [{"embed_dim": (24, 48), "num_heads": (3, 3), "depth": ((1, 2, 0), (1, 2, 0)), "mlp_ratio": (2, 2, 4)}],
}


def _options(name: str) -> list[dict[str, Any]]:
    """Ways to make a model small, smallest first; which of them its constructor takes, only trying shows."""
    from timm.models._registry import _model_to_module

    shrunk = SHRINK.get(_model_to_module[name], [ONE_LIST, {"depth": 3}])
    return [
        {**extra, **options}
        for options in [*shrunk, {}]
        for extra in ({"img_size": 64}, {"img_size": 56}, {"img_size": 96}, {})
    ]


def build_timm(name: str) -> tuple[nn.Module, Any]:
    """The smallest version of a timm model that builds and runs, and a call on two random images."""
    model: nn.Module | None = None
    error: Exception | None = None
    for options in _options(name):
        try:
            model = build_model(Origin("timm", name, {**options, "num_classes": 7}))
            return model, _call_timm(model, options.get("img_size"))
        except Exception as failed:
            error = failed
    if model is None:
        raise error or AssertionError
    return model, lambda m: m(torch.zeros(0))  # it builds and does not run: it may yet be refused


def _call_timm(model: nn.Module, fixed: int | None) -> Any:
    error: Exception | None = None
    channels, *native = model.pretrained_cfg["input_size"]
    for size in [fixed] if fixed else [64, 56, 96, 128, native[0]]:
        x = torch.randn(2, channels, size, size, generator=torch.Generator().manual_seed(1))
        try:
            with torch.no_grad():
                model(x)
        except Exception as failed:
            error = failed
            continue
        x = x.double()
        return lambda m: m(x)
    raise error or AssertionError


# -- transformers -----------------------------------------------------------------------------------------------------

WIDTH, HEADS, KV_HEADS, HEAD_DIM, HIDDEN, LAYERS, VOCABULARY = 48, 6, 3, 8, 40, 3, 99
EXACT: dict[str, Any] = {
    "head_dim": HEAD_DIM, "d_kv": HEAD_DIM, "attention_head_size": HEAD_DIM, "attention_key_size": HEAD_DIM, "global_head_dim": HEAD_DIM,
    "swa_head_dim": HEAD_DIM, "key_value_proj_dim": HEAD_DIM, "kv_channels": HEAD_DIM,
    "qk_nope_head_dim": HEAD_DIM, "qk_rope_head_dim": HEAD_DIM, "v_head_dim": HEAD_DIM, "qk_head_dim": 2 * HEAD_DIM,
    "kv_lora_rank": 24, "q_lora_rank": 20, "rotary_dim": 4, "index_n_heads": 2, "index_head_dim": HEAD_DIM, "index_topk": 4,
    "vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
    "max_position_embeddings": 64, "n_positions": 64, "n_ctx": 64, "max_source_positions": 64, "max_target_positions": 64,
    "image_size": 32, "patch_size": 8, "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "moe_num_experts": 4,
    "num_experts_per_tok": 2, "num_selected_experts": 2, "top_k": 2, "n_group": 1, "topk_group": 1, "moe_topk": 2, "moe_k": 2,
    "upsample_groups": 1, "num_experts_per_token": 2, "crop_size": 32, "frames_per_clip": 4, "dim_bbox_projection": HEAD_DIM, "codebook_size": 64,
    "use_cache": False, "type_vocab_size": 2, "num_mel_bins": 16, "sliding_window": 16, "attention_window": 4, "window_size": 4,
    "hidden_dropout": 0.0, "layerdrop": 0.0, "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0,
}  # fmt: skip
HEAD_KEYS = (
    "num_attention_heads",
    "num_heads",
    "n_head",
    "n_heads",
    "attention_heads",
    "nhead",
    "num_mha_heads",
    "n_query_heads",
)
KV_KEYS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num", "num_global_key_value_heads")
LAYER_KEYS = (
    "num_hidden_layers",
    "num_layers",
    "n_layer",
    "n_layers",
    "encoder_layers",
    "decoder_layers",
    "depth",
    "num_decoder_layers",
)
HIDDEN_KEYS = (
    "intermediate_size",
    "ffn_dim",
    "d_ff",
    "n_inner",
    "feed_forward_size",
    "d_inner",
    "dim_feedforward",
    "hidden_dim_ffn",
)
WIDTH_KEYS = ("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "hidden_dim", "emb_dim", "attention_hidden_size")
DROPPED = (
    "id2label",
    "label2id",
    "out_features",
    "out_indices",
    "stage_names",
    "_out_features",
    "_out_indices",
    "per_layer_config",
    "architectures",
    "transformers_version",
)
LISTED = {
    "image_size": 32,
    "num_attention_heads": HEADS,
    "hidden_sizes": WIDTH,
    "depths": 2,
    "encoder_attention_heads": HEADS,
}
MROPE = {"mrope_section": [2, 1, 1], "rope_type": "default", "rope_theta": 10000.0, "type": "default"}
SWIN = {
    "embed_dim": WIDTH, "depths": [1, 2], "num_heads": [HEADS, 2 * HEADS], "num_layers": 2, "window_size": 2, "image_size": 32,
    "patch_size": 4, "hidden_size": 2 * WIDTH, "encoder_stride": 8,
}  # fmt: skip
FOUR_STAGES = {
    "out_features": ["stage1", "stage2", "stage3", "stage4"],
    "out_indices": None,
    "embed_dim": 24,
    "depths": [1, 1, 2, 1],
    "num_heads": [1, 2, 4, 8],
    "patch_size": 4,
    "image_size": 64,
}
PE = {"img_size": 28, "embed_dim": 48, "depth": 2, "num_heads": 6}
OVERRIDES: dict[str, dict[str, Any]] = {
    "distilbert": {"hidden_dim": HIDDEN},
    "swin": SWIN,
    "swinv2": SWIN,
    "donut-swin": SWIN,
    "maskformer-swin": SWIN,
    "clap_audio_model": {},
    "swin2sr": {**SWIN, "num_heads": [HEADS, HEADS], "image_size": 16, "patch_size": 1, "hidden_size": WIDTH},
    "autoformer": {"prediction_length": 4, "context_length": 8},
    "informer": {"prediction_length": 4, "context_length": 8},
    "time_series_transformer": {"prediction_length": 4, "context_length": 8},
    "bailing_hybrid": {"num_expert_group": 2, "linear_head_dim": 8},
    "big_bird": {"block_size": 1},
    "bigbird_pegasus": {"block_size": 1},
    "cohere_compass_text": {"rope_parameters": {"full_attention": {**MROPE, "mrope_section": [2, 1, 1]}}},
    "dbrx": {
        "attn_config": {"kv_n_heads": KV_HEADS, "rope_theta": 10000.0, "clip_qkv": 8.0},
        "ffn_config": {"ffn_hidden_size": HIDDEN},
    },
    "hrm_text": {"num_layers_per_stack": None, "num_hidden_layers": LAYERS},
    "funnel": {"block_sizes": [2, 2], "block_repeats": [1, 1], "d_head": HEAD_DIM},
    "bamba": {"mamba_n_heads": 12, "mamba_d_head": 8, "mamba_expand": 2, "attn_layer_indices": [1, 2]},
    "gemma3n_text": {
        "intermediate_size": [HIDDEN] * LAYERS,
        "activation_sparsity_pattern": [0.0] * LAYERS,
        "num_kv_shared_layers": 0,
        "hidden_size_per_layer_input": 16,
        "vocab_size_per_layer_input": VOCABULARY,
    },
    "gemma4_text": {"hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": VOCABULARY},
    "gemma4_audio": {"subsampling_conv_channels": [16, 8]},
    "glm5_next_text": {
        "index_topk": 16,
        "index_head_dim": HEAD_DIM,
        "index_n_heads": 2,
        "num_key_value_heads": HEADS,
        "qk_rope_head_dim": 0,
        "qk_nope_head_dim": HEAD_DIM,
        "v_head_dim": HEAD_DIM,
        "head_dim": 0,
        "linear_head_dim": 8,
        "num_hidden_layers": 4,
        "layer_types": ["linear_attention", "indexed_attention"] * 2,
        "mlp_layer_types": ["dense", "sparse"] * 2,
        "indexer_types": ["full"] * 4,
        "kv_lora_rank": 24,
        "q_lora_rank": 20,
    },
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_dt_rank": 4},
    "mistral_large4_text": {
        "num_hidden_layers": 3,
        "kv_source_layers": [0, 1, 2],
        "layer_types": ["indexed_attention"] * 3,
        "indexer_types": ["full"] * 3,
        "no_rope_layers": [1, 1, 0],
        "mlp_layer_types": ["dense", "sparse", "sparse"],
        "num_key_value_heads": HEADS,
        "index_topk": 16,
        "index_head_dim": HEAD_DIM,
        "index_n_heads": 2,
    },
    "mistral4": {
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "llama_4_scaling_beta": 0.1,
            "original_max_position_embeddings": 64,
        }
    },
    "moonshine_streaming": {"num_key_value_heads": HEADS},
    "nemotron_h": {
        "n_groups": 2,
        "mamba_num_heads": 12,
        "mamba_head_dim": 8,
        "ssm_state_size": 8,
        "layers_block_type": ["linear_attention", "full_attention", "mlp", "full_attention", "mlp"],
    },
    "neucodec": {"hidden_size": 96, "head_dim": 16, "quantization_dim": 144, "num_key_value_heads": HEADS},
    "xcodec2": {"hidden_size": 96, "head_dim": 16, "quantization_dim": 144, "num_key_value_heads": HEADS},
    "lfm2_moe": {"layer_types": ["conv", "full_attention", "full_attention"]},
    "qwen4_exp_text": {
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": HEAD_DIM,
        "indexer_budget": 16,
        "indexer_compress_ratio": 2,
        "hc_lowrank": 16,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
    },
    "qwen3_asr_encoder": {"output_dim": WIDTH, "downsample_hidden_size": 16},
    "sapiens2": {
        "num_key_value_heads_per_layer": [KV_HEADS] * LAYERS,
        "num_first_full_attention_layers": 0,
        "num_last_full_attention_layers": 0,
        "out_features": None,
        "out_indices": None,
    },
    "seggpt": {
        "image_size": [64, 32],
        "mlp_dim": HIDDEN,
        "num_hidden_layers": 4,
        "intermediate_hidden_state_indices": [1, 2],
        "merge_index": 0,
        "pretrain_image_size": 32,
    },
    "speech_to_text": {"conv_channels": 32, "input_feat_per_channel": 80},
    "timesfm": {"patch_length": 4, "context_length": 16},
    "tvp": {"visual_prompt_size": 8, "max_img_size": 64, "num_frames": 2},
    "exaone4_5_vision": {"window_size": 32},
    "granitemoehybrid": {
        "mamba_n_heads": 12,
        "mamba_d_head": 8,
        "mamba_expand": 2,
        "layer_types": ["mamba", "attention", "attention"],
    },
    "falcon_h1": {"mamba_n_heads": 12, "mamba_d_head": 8, "mamba_d_ssm": 96, "mamba_expand": 2},
    "codegen": {"n_head": 8, "n_embd": 64, "rotary_dim": 4},
    "csm": {"codebook_size": 64},
    "kyutai_speech_to_text": {"codebook_size": 64},
    "diffllama": {"num_key_value_heads": 2, "num_attention_heads": 4, "hidden_size": 32},
    "dots1": {"n_shared_experts": 1},
    "dots3_note_text": {"num_key_value_heads": HEADS},
    "esmc": {"num_key_value_heads": HEADS},
    "glm4v_text": {"rope_parameters": MROPE},
    "glm4v_moe_text": {"rope_parameters": {**MROPE, "partial_rotary_factor": 1.0}},
    "glm_image_text": {"rope_parameters": MROPE},
    "glm_ocr_text": {"rope_parameters": MROPE},
    "qwen2_vl_text": {"rope_parameters": MROPE},
    "qwen2_5_vl_text": {"rope_parameters": MROPE},
    "qwen2_5_omni_talker": {"rope_parameters": MROPE},
    "cosmos3_edge_text": {"rope_parameters": MROPE},
    "hunyuan_vl_text": {"rope_parameters": {**MROPE, "mrope_section": [1, 1, 1, 1]}},
    "gpt_neo": {
        "attention_types": [[["global", "local"], 2]],
        "num_layers": 4,
        "attention_layers": ["global", "local"] * 2,
    },
    "gradium_phonon_tts": {"num_key_value_heads": HEADS},  # as its checkpoints fuse them
    "granite_speech5_encoder": {"context_size": 16, "num_key_value_heads": HEADS},
    "phi4_multimodal": {
        "audio_config": {
            "nemo_conv_channels": WIDTH,
            "ext_pw_out_channel": WIDTH,
            "depthwise_separable_out_channel": WIDTH,
        }
    },
    "pe_audio_video_encoder": {"video_config": {"vision_config": {"model_args": PE}}},
    "bridgetower": {
        "num_hidden_layers": 2,
        "hidden_size": 192,
        "text_config": {"hidden_size": 192},
        "vision_config": {"hidden_size": 192},
    },
    "chameleon": {
        "vocabulary_map": {"<image>": 4},
        "vq_config": {
            "base_channels": 32,
            "num_embeddings": 16,
            "resolution": 32,
            "channel_multiplier": [1, 1],
            "latent_channels": 8,
            "num_res_blocks": 1,
        },
    },
    "muse_glimmer_assistant": {"layer_types": ["full_attention"] * LAYERS},
    "pe_video_encoder": {"vision_config": {"model_args": PE}},
    "minicpm_ocr_vision": {"insert_layer_id": 1},
    "minicpmv4_7_vision": {"insert_layer_id": 1},
    "layoutlmv3": {"coordinate_size": 8, "shape_size": 8},
    "mobilebert": {"true_hidden_size": 48, "intra_bottleneck_size": 48, "embedding_size": 48, "hidden_size": 48},
    "moonshine": {
        "num_key_value_heads": HEADS,
        "encoder_num_key_value_heads": HEADS,
        "decoder_num_key_value_heads": HEADS,
    },
    "nemotron": {"num_key_value_heads": KV_HEADS},
    "laguna": {"num_attention_heads_per_layer": [HEADS] * LAYERS},
    "mask2former": {
        "backbone_config": FOUR_STAGES,
        "hidden_dim": 64,
        "feature_size": 64,
        "mask_feature_size": 64,
        "num_attention_heads": 4,
    },
    "maskformer": {"fpn_feature_size": 64, "mask_feature_size": 64},
    "oneformer": {
        "backbone_config": FOUR_STAGES,
        "hidden_dim": 64,
        "conv_dim": 64,
        "mask_dim": 64,
        "num_attention_heads": 4,
    },
    "mimi": {
        "audio_channels": 1,
        "hidden_size": 48,
        "num_filters": 4,
        "codebook_dim": 16,
        "upsample_groups": 48,
        "vector_quantization_hidden_dimension": 16,
    },
    "patchtst": {"context_length": 16, "patch_length": 4, "patch_stride": 4, "num_input_channels": 2},
    "xlnet": {"d_head": HEAD_DIM, "n_head": HEADS},
    "reformer": {
        "axial_pos_embds_dim": [16, 32],
        "axial_pos_shape": [4, 3],
        "attn_layers": ["local", "lsh", "local"],
        "lsh_attn_chunk_length": 4,
        "local_attn_chunk_length": 4,
        "num_buckets": 2,
    },
    "neomme": {
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0},
        }
    },
    "qwen2_5_vl_vision": {"window_size": 32},
    "xmod": {"default_language": "en_XX"},
    "zaya": {"num_experts_per_tok": 1},
    "zamba": {
        "mamba_expand": 2,
        "n_mamba_heads": 2,
        "attention_hidden_size": 96,
        "attention_head_dim": 16,
        "mamba_dt_rank": 4,
        "num_hidden_layers": 4,
        "layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid"],
    },
    "zamba2": {
        "mamba_expand": 2,
        "n_mamba_heads": 12,
        "mamba_headdim": 8,
        "mamba_ngroups": 1,
        "attention_hidden_size": 96,
        "attention_head_dim": 16,
        "num_hidden_layers": 4,
        "layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid"],
        "hybrid_layer_ids": [1, 3],
    },
}


def _noise(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


def _ids(*shape: int) -> torch.Tensor:
    return torch.randint(5, VOCABULARY - 2, shape)


INPUTS: dict[str, Callable[[Any], dict[str, Any]]] = {  # beside, or in the place of, what leanify.inputs makes
    "csm": lambda c: {"input_ids": (ids := torch.randint(1, 60, (2, 12, c.num_codebooks))), "labels": ids, "attention_mask": None},
    "fun_asr_nano_encoder": lambda c: {"input_features": _noise(2, 12, c.num_mel_bins * c.num_stacked_frames), "input_features_mask": torch.ones(2, 12, dtype=torch.long)},
    "tvp": lambda c: {"input_ids": _ids(1, 12), "attention_mask": torch.ones(1, 12, dtype=torch.long), "pixel_values": _noise(1, c.num_frames, 3, 64, 64)},
    "bridgetower": lambda c: {"pixel_values": _noise(2, 3, 32, 32), "pixel_mask": torch.ones(2, 32, 32, dtype=torch.long)},
    "mask2former": lambda c: {"pixel_values": _noise(2, 3, 64, 64)},
}  # fmt: skip


# towers that a forward leaves alone, or hides behind codes: where they are, and what they are run on
TOWERS: dict[str, dict[str, Callable[[Any], dict[str, Any]]]] = {
    "csm": {"codec_model": lambda c: {"input_values": _noise(2, 1, 4000)}},
    "phi4_multimodal": {
        "embed_tokens_extend.image_embed.img_processor": lambda c: {"pixel_values": _noise(2, 3, 32, 32), "patch_attention_mask": torch.ones(2, 4, 4, dtype=torch.bool)},
        "embed_tokens_extend.audio_embed.encoder": lambda c: {"hidden_states": _noise(2, 32, c.audio_config.input_size), "mask": torch.ones(2, 32, dtype=torch.bool)},
    },
    "neucodec": {"semantic_encoder": lambda c: {"input_features": _noise(2, 10, 160)}},
    "xcodec2": {"semantic_encoder": lambda c: {"input_features": _noise(2, 10, 160)}},
    "seamless_m4t": {
        "speech_encoder": lambda c: {"input_features": _noise(2, 16, c.feature_projection_input_dim)},
        "t2u_model": lambda c: {"inputs_embeds": _noise(2, 6, WIDTH), "decoder_input_ids": _ids(2, 6)},
    },
    "seamless_m4t_v2": {
        "speech_encoder": lambda c: {"input_features": _noise(2, 16, c.feature_projection_input_dim)},
        "t2u_model": lambda c: {"inputs_embeds": _noise(2, 6, WIDTH), "char_input_ids": _ids(2, 12), "char_count_per_id": torch.full((2, 6), 2)},
    },
}  # fmt: skip


@functools.cache
def hf_names() -> list[str]:
    """Every transformers type with a base model whose configuration has layers and heads."""
    library = import_transformers()
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    return [kind for kind in MODEL_MAPPING_NAMES if _counts(library, kind)]


def _counts(library: Any, kind: str) -> bool:
    try:
        config = library.AutoConfig.for_model(kind)
        return config.num_attention_heads is not None and config.num_hidden_layers is not None
    except AttributeError:
        return False
    except Exception:
        return True


def _widths(config: Any) -> set[int]:
    if isinstance(config, dict):
        own = {config[key] for key in WIDTH_KEYS if type(config.get(key)) is int}
        return own.union(*(_widths(value) for value in config.values()))
    return set()


def tiny(config: Any, widths: set[int], key: str = "") -> Any:
    """A configuration as a dictionary with every size made small, key by key."""
    if isinstance(config, dict):
        return {k: tiny(v, widths, str(k)) for k, v in config.items() if k not in DROPPED}
    if isinstance(config, bool) or config is None or isinstance(config, (str, float)):
        return EXACT.get(key, config) if not isinstance(config, bool) or key == "use_cache" else config
    if isinstance(config, (list, tuple)):
        if key in ("layer_types", "layers_block_type", "block_types", "mlp_layer_types"):
            kinds = list(dict.fromkeys(config))
            return (kinds * LAYERS)[: max(LAYERS, len(kinds))]
        return [LISTED.get(key, item) if type(item) is int else tiny(item, widths) for item in config]
    if key in EXACT:
        return EXACT[key]
    if any(key.endswith(name) for name in KV_KEYS):
        return KV_HEADS if config > 1 else 1
    if any(key.endswith(name) for name in HEAD_KEYS):
        return HEADS
    if any(key.endswith(name) for name in LAYER_KEYS):
        return LAYERS if config > 1 else config
    if any(key.endswith(name) for name in HIDDEN_KEYS):
        return HIDDEN
    if key in WIDTH_KEYS or (
        config in widths and config >= 64 and any(w in key for w in ("size", "dim", "embd", "d_model", "width"))
    ):
        return WIDTH
    if key.endswith("_token_id") and config >= VOCABULARY:
        return VOCABULARY - 1
    return config


def tiny_config(kind: str) -> Any:
    library = import_transformers()
    config = library.AutoConfig.for_model(kind)
    full = config.to_dict()
    small = tiny(full, _widths(full))
    if small.get("kv_lora_rank") is not None:  # latent attention has no key/value groups
        small["num_key_value_heads"] = HEADS
    small = _merged(small, OVERRIDES.get(kind, {}))
    layers = small.get("num_hidden_layers")
    kinds = [
        len(small[k]) for k in ("layer_types", "layers_block_type", "mlp_layer_types") if isinstance(small.get(k), list)
    ]
    if kinds and layers:
        small["num_hidden_layers"] = max(kinds)
    if isinstance(getattr(type(config), "layers_block_type", None), property):  # computed from other keys
        small.pop("layer_types", None)
        small.pop("layers_block_type", None)
    return type(config)(**{k: v for k, v in small.items() if k not in ("model_type", "transformers_version")})


def _merged(config: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """A configuration with changes, those of the configurations inside it one by one."""
    inner = {k: _merged(config[k], v) if k.endswith("_config") else v for k, v in changes.items()}
    return {**config, **inner}


def build_hf(kind: str) -> tuple[nn.Module, Any]:
    """A tiny base model of a transformers type, and a call on random inputs."""
    library = import_transformers()
    config = tiny_config(kind)
    torch.manual_seed(0)
    experts = {"experts_implementation": "eager"} if _has_experts(config) else {}
    try:
        model = getattr(library, find.class_name("AutoModel", config))._from_config(config, **experts).eval()
    except ImportError as error:
        raise SourceError(f"transformers does not build it here: {first_line(error)}") from error
    for path, buffer in model.named_buffers():
        if path.endswith("embed_sum"):  # a codebook that nothing was learned for yet: all its codes alike
            buffer.normal_()
    inputs: dict[str, Any] = {**example_inputs(model, 2, tokens=12), **INPUTS.get(kind, lambda config: {})(config)}
    towers = {path: make(config) for path, make in TOWERS.get(kind, {}).items()}
    return model, functools.partial(_run, inputs=_double(inputs), towers={k: _double(v) for k, v in towers.items()})


def _double(inputs: dict[str, Any]) -> dict[str, Any]:
    return {k: v.double() if v is not None and v.is_floating_point() else v for k, v in inputs.items()}


def _run(model: nn.Module, inputs: dict[str, Any], towers: dict[str, dict[str, Any]]) -> Any:
    """The model's outputs, and those of towers that its forward leaves alone, where it has them."""
    result = model(**inputs)
    return (result, *(model.get_submodule(path)(**given) for path, given in towers.items())) if towers else result


def _has_experts(config: Any) -> bool:
    return any("expert" in key for key in config.to_dict())
