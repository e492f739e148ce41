"""Inputs of transformers model types for which the argument names of their forward are not enough.

Each function makes the tensors of one batch from a configuration, the batch size and a length in tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from transformers import PretrainedConfig

Inputs = dict[str, Tensor]

# image sizes (height, width) of a type's processor, if the configuration has none
IMAGE_SIZES: dict[str, int | tuple[int, int]] = {
    **dict.fromkeys(("detr", "conditional_detr", "dab-detr", "deformable_detr", "table-transformer"), 800),
    **dict.fromkeys(("grounding-dino", "mm-grounding-dino", "pp_doclayout_v3", "pp_doclayout_v4"), 800),
    **dict.fromkeys(("d_fine", "deimv2", "rt_detr", "rt_detr_v2"), 640),
    "efficientloftr": (480, 640),
    "glpn": (480, 640),
    "mask2former": 384,
    "segformer": 512,
}


def side(length: int) -> int:
    """Patches along one side of an image of arbitrary size: 32 (448 / 14 pixels), or 4 for short inputs."""
    return 32 if length >= 64 else 4


def _second_of_sound(config: PretrainedConfig, batch: int, length: int) -> Inputs:
    channels, samples = getattr(config, "audio_channels", 1), getattr(config, "sampling_rate", 16000)
    return {"input_values": torch.randn(batch, channels, samples)}


def _latents(config: PretrainedConfig, batch: int, length: int) -> Inputs:
    return {"latents": torch.randn(batch, config.hidden_size, 8)}


def _codec(config: PretrainedConfig, batch: int, length: int) -> Inputs:
    """A fifth of a second of sound, and the codec's semantic features for the same span."""
    return {
        "input_values": torch.randn(batch, 1, 3200),
        "input_features": torch.randn(batch, 10, 160),
        "input_features_mask": torch.ones(batch, 10, dtype=torch.long),
    }


def _row_of_patches(config: PretrainedConfig, batch: int, length: int) -> Inputs:
    """Images that are a strip of ``length`` patches."""
    return {"pixel_values": torch.randn(1, 3, config.patch_size, side(length) ** 2 * batch * config.patch_size)}


def _frame_pairs(config: PretrainedConfig, batch: int, length: int) -> Inputs:
    """Flattened patches of two frames per image."""
    return {"pixel_values": torch.randn(side(length) ** 2 * batch, 2 * 3 * config.patch_size**2)}


def _video(config: PretrainedConfig, batch: int, length: int) -> Inputs:
    size = config.vision_config.model_args.get("img_size", 336) if config.vision_config.model_args else 336
    return {"pixel_values_videos": torch.randn(batch, 3, 3, size, size)}


def text_behind(word: int, batch: int, images: int, length: int) -> Inputs:
    """``images`` tokens of an image, ``word`` each, before text: ``length`` in all, or 32 of text."""
    image = torch.full((batch, images), word)
    ids = torch.cat([image, torch.randint(5, 50, (batch, max(length - images, 32)))], 1)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _image_and_text(config: PretrainedConfig, batch: int, length: int) -> Inputs:
    """LLaVA: each image patch is a token."""
    vision = config.vision_config
    image = torch.randn(batch, 3, vision.image_size, vision.image_size)
    patches = (vision.image_size // vision.patch_size) ** 2
    return {"pixel_values": image, **text_behind(config.image_token_id, batch, patches, length)}


def _list_of_images_and_text(config: PretrainedConfig, batch: int, length: int) -> Inputs:
    """Idefics 2 and 3: a list of one image, whose patches are merged to fewer tokens."""
    vision = config.vision_config
    perceiver = getattr(config, "perceiver_config", None)
    places = (vision.image_size // vision.patch_size) ** 2
    tokens = perceiver.resampler_n_latents if perceiver else places // config.scale_factor**2
    image = torch.randn(batch, 1, 3, vision.image_size, vision.image_size)
    return {"pixel_values": image, **text_behind(config.image_token_id, batch, tokens, length)}


def _codes(config: PretrainedConfig, batch: int, length: int) -> Inputs:
    """MusicGen: a row of tokens for each codebook."""
    decoder = config.decoder
    return {"decoder_input_ids": torch.randint(0, decoder.vocab_size, (batch * decoder.num_codebooks, length))}


def _features_and_text(config: PretrainedConfig, batch: int, length: int) -> Inputs:
    """Florence-2: each place of the vision tower's last stage is a token, and their mean is one more."""
    size = 224 if length > 64 else 64
    places = (size // math.prod(config.vision_config.patch_stride)) ** 2
    text = text_behind(config.image_token_id, batch, places + 1, length)
    return {"pixel_values": torch.randn(batch, 3, size, size), **text}


def _patches_and_text(config: PretrainedConfig, batch: int, length: int) -> Inputs:
    """Qwen2-VL: patches of two frames; each square of patches is a token. Positions are inputs, because upstream
    would derive them from token values, which ``meta`` does not have.
    """
    # the images: patches of all of them in a row, and their grids
    vision, across = config.vision_config, side(length)
    patches = torch.randn(across**2 * batch, 3 * vision.temporal_patch_size * vision.patch_size**2)
    grid = torch.tensor([[1, across, across]] * batch, device="cpu")

    # the tokens (B, N), which of them are images, and their positions (3, B, N)
    text = text_behind(config.image_token_id, batch, (across // vision.spatial_merge_size) ** 2, length)
    kinds = (text["input_ids"] == config.image_token_id).long()
    places = torch.arange(kinds.shape[1]).expand(3, *kinds.shape)
    inputs = {"pixel_values": patches, "image_grid_thw": grid, **text, "mm_token_type_ids": kinds}
    return {**inputs, "position_ids": places}


def _merged_patches(config: PretrainedConfig, batch: int, length: int) -> Inputs:
    """2 × 2 squares per image, each with as many patches as are merged."""
    size = config.patch_size * config.spatial_merge_size
    return {"pixel_values": torch.randn(4 * batch, size, size, 3), "image_grid_thw": torch.tensor([[1, 2, 2]] * batch)}


def _history(config: PretrainedConfig, batch: int, length: int) -> Inputs:
    """A series as long as the context, without padding, of the first frequency."""
    past_values = torch.randn(batch, config.context_length)
    frequency = torch.zeros(batch, 1, dtype=torch.long)
    return {"past_values": past_values, "past_values_padding": 0 * past_values, "freq": frequency}


OF_TYPE: dict[str, Callable[[Any, int, int], Inputs]] = {
    "florence2": _features_and_text,
    "gemma4_audio": lambda c, batch, length: {"input_features": torch.randn(batch, 32, c.subsampling_conv_channels[0])},
    "gemma4_vision": lambda c, batch, length: {  # 6 × 6 flattened patches with their positions
        "pixel_values": torch.randn(batch, 36, 3 * c.patch_size**2),
        "pixel_position_ids": torch.cartesian_prod(torch.arange(6), torch.arange(6)).expand(batch, 36, 2),
    },
    "granite_speech5_encoder": lambda c, batch, length: {"input_features": torch.randn(batch, 32, 4 * c.num_mel_bins)},
    "idefics": lambda c, batch, length: {
        "pixel_values": torch.randn(batch, 1, 3, c.vision_config.image_size, c.vision_config.image_size),
        "image_attention_mask": torch.ones(batch, length, 1, dtype=torch.long),
    },
    "idefics2": _list_of_images_and_text,
    "idefics3": _list_of_images_and_text,
    "inkling2_vision": _merged_patches,
    "kimi_k25_vision": lambda c, batch, length: {
        "pixel_values": torch.randn(side(length) ** 2 * batch, 3, c.patch_size, c.patch_size)
    },
    "kyutai_speech_to_text": lambda c, batch, length: {
        "input_ids": torch.randint(5, 60, (batch, length, c.num_codebooks + 1))
    },
    "lightglue": lambda c, batch, length: {"pixel_values": torch.rand(batch, 2, 3, 64, 64)},
    "llava": _image_and_text,
    "mimi": _second_of_sound,
    "mimi_decoder": _latents,
    "mimi_encoder": _second_of_sound,
    "minicpm_ocr_vision": _row_of_patches,
    "minicpmv4_7_vision": _row_of_patches,
    "layoutlmv3": lambda c, batch, length: (
        {"pixel_values": torch.randn(batch, 3, c.input_size, c.input_size)} if c.visual_embed else {}
    ),
    "musicgen": _codes,
    "musicgen_melody": _codes,
    "muse_glimmer_assistant": lambda c, batch, length: {
        "noise_embeds": torch.randn(batch, c.block_size, c.hidden_size),
        "context_hidden_states": torch.randn(batch, length, c.hidden_size * len(c.target_layer_ids)),
    },
    "muse_glimmer_vision": _frame_pairs,
    "muse_spark_vision": _frame_pairs,
    "neucodec": _codec,
    "oneformer": lambda c, batch, length: {"task_inputs": torch.randint(0, 90, (batch, c.task_seq_len))},
    "patchtst": lambda c, batch, length: {"past_values": torch.randn(batch, c.context_length, c.num_input_channels)},
    "pe_audio_encoder": _second_of_sound,
    "pe_audio_video_encoder": lambda c, batch, length: {
        **_second_of_sound(c, batch, length),
        **_video(c.video_config, batch, length),
    },
    "pe_video_encoder": _video,
    "pocket_tts_audio_tokenizer": _second_of_sound,
    "pocket_tts_audio_tokenizer_decoder": _latents,
    "pocket_tts_audio_tokenizer_encoder": _second_of_sound,
    "qwen3_asr_encoder": lambda c, batch, length: {
        "input_features": torch.randn(batch, c.num_mel_bins, 4 * c.n_window),
        "input_features_mask": torch.ones(batch, 4 * c.n_window, dtype=torch.long),
    },
    "qwen2_5_vl": _patches_and_text,
    "qwen2_vl": _patches_and_text,
    "sam3_lite_text_text_model": lambda c, batch, length: {
        "input_ids": torch.randint(5, c.vocab_size, (batch, length))
    },
    "seggpt": lambda c, batch, length: dict.fromkeys(  # the configured height counts image and prompt together
        ("pixel_values", "prompt_pixel_values", "prompt_masks"),
        torch.randn(batch, 3, c.image_size[0] // 2, c.image_size[1]),
    ),
    "smolvlm": _list_of_images_and_text,
    "speech_to_text": lambda c, batch, length: {
        "input_features": torch.randn(batch, 8 * length, c.input_feat_per_channel)
    },
    "speecht5": lambda c, batch, length: dict.fromkeys(  # hidden states, because the model's prenets are separate
        ("input_values", "decoder_input_values"), torch.randn(batch, length, c.hidden_size)
    ),
    "timesfm": _history,
    "trocr": lambda c, batch, length: {
        "encoder_hidden_states": torch.randn(batch, length, c.cross_attention_hidden_size or c.d_model)
    },
    "udop": lambda c, batch, length: {
        "bbox": torch.rand(batch, length, 4),
        "pixel_values": torch.randn(batch, 3, c.image_size, c.image_size),
    },
    "video_llama_3_vision": lambda c, batch, length: {
        "pixel_values": torch.randn(side(length) ** 2 * batch, 3 * c.patch_size**2),
        "merge_sizes": torch.tensor([1] * batch),
    },
    "vilt": lambda c, batch, length: {"pixel_values": torch.randn(batch, 3, c.image_size, c.image_size)},
    "xcodec2": _codec,
}
