"""Inputs that some transformers types need in addition to, or instead of, those of `upstream.inputs`."""

# ruff: noqa: E501

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from leanify.zoo.tiny_shapes import VOCABULARY, WIDTH


def _noise(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


def _ids(*shape: int) -> torch.Tensor:
    return torch.randint(5, VOCABULARY - 2, shape)


INPUTS: dict[str, Callable[[Any], dict[str, Any]]] = {  # in addition to, or instead of, the inputs of upstream.inputs
    "csm": lambda c: {"input_ids": (ids := torch.randint(1, 60, (2, 12, c.num_codebooks))), "labels": ids, "attention_mask": None},
    "fun_asr_nano_encoder": lambda c: {"input_features": _noise(2, 12, c.num_mel_bins * c.num_stacked_frames), "input_features_mask": torch.ones(2, 12, dtype=torch.long)},
    "tvp": lambda c: {"input_ids": _ids(1, 12), "attention_mask": torch.ones(1, 12, dtype=torch.long), "pixel_values": _noise(1, c.num_frames, 3, 64, 64)},
    "bridgetower": lambda c: {"pixel_values": _noise(2, 3, 32, 32), "pixel_mask": torch.ones(2, 32, 32, dtype=torch.long)},
    "mask2former": lambda c: {"pixel_values": _noise(2, 3, 64, 64)},
}  # fmt: skip


# towers that the model's forward does not run, or hides behind discrete codes: path → their own inputs
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
