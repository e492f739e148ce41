"""Small models of libraries from the registry that nobody named, and the shapes that their authors would say.

Installed by the reader: ``pip install x-transformers vit-pytorch openai-whisper performer-pytorch open_clip_torch
fair-esm tab-transformer-pytorch conformer linformer nystrom-attention linear-attention-transformer``.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from leanify.upstream.libraries import import_timm

WIDTH, HEADS, SIZE, DEPTH, UNITS = 48, 4, 12, 3, 96
SHAPE = f"{DEPTH} × [{HEADS}×{SIZE}, mlp {UNITS}, width {WIDTH}]"
Example = tuple[nn.Module, Any]


def part(module: str, name: str) -> Any:
    """A class of a library. Raises ImportError where the library is missing."""
    import_timm()  # which makes torchvision importable beside a torch without it
    try:
        return getattr(importlib.import_module(module), name)
    except (RuntimeError, AttributeError) as error:
        raise ImportError(f"{module}.{name}: {error}") from error


def images(size: int = 32) -> Tensor:
    return torch.randn(2, 3, size, size)


def vectors(tokens: int = 8) -> Tensor:
    return torch.randn(2, tokens, WIDTH)


def words(tokens: int = 8) -> Tensor:
    return torch.randint(4, 24, (2, tokens))


def vit(module: str, name: str = "ViT", example: Callable[[], Any] = images, **changes: Any) -> Callable[[], Example]:
    """The function that makes a model of vit-pytorch."""
    sizes: dict[str, Any] = {"image_size": 32, "patch_size": 8, "num_classes": 5, "dim": WIDTH, "depth": DEPTH}
    sizes |= {"heads": HEADS, "dim_head": SIZE, "mlp_dim": UNITS} | changes
    arguments = {key: value for key, value in sizes.items() if value is not None}
    return lambda: (part(f"vit_pytorch.{module}", name)(**arguments), example())


def x_layers(kind: str, **switches: Any) -> Callable[[], Example]:
    """Layers of x-transformers."""
    sizes = {"dim": WIDTH, "depth": DEPTH, "heads": HEADS, "attn_dim_head": SIZE, "ff_mult": 2}
    return lambda: (part("x_transformers", kind)(**sizes, **switches), vectors())


def x_words(**switches: Any) -> Callable[[], Example]:
    def make() -> Example:
        layers = x_layers("Decoder", **switches)()[0]
        wrapper = part("x_transformers", "TransformerWrapper")
        return wrapper(num_tokens=50, max_seq_len=16, attn_layers=layers), words()

    return make


def whisper() -> Example:
    sizes = part("whisper.model", "ModelDimensions")(8, 10, WIDTH, HEADS, DEPTH, 50, 12, WIDTH, HEADS, DEPTH)
    return part("whisper.model", "Whisper")(sizes), (torch.randn(2, 8, 20), words())


def whisper_encoder() -> Example:
    return part("whisper.model", "AudioEncoder")(8, 10, WIDTH, HEADS, DEPTH), torch.randn(2, 8, 20)


def performer() -> Example:
    sizes = {"dim": WIDTH, "depth": DEPTH, "heads": HEADS, "dim_head": SIZE, "ff_mult": 2, "nb_features": 8}
    return part("performer_pytorch", "Performer")(**sizes), vectors()


def esm2() -> Example:
    return part("esm.model.esm2", "ESM2")(num_layers=DEPTH, embed_dim=WIDTH, attention_heads=HEADS), words()


def tab_transformer() -> Example:
    sizes = {"dim": WIDTH, "depth": DEPTH, "heads": HEADS, "dim_head": SIZE, "dim_out": 1, "num_residual_streams": 1}
    model = part("tab_transformer_pytorch", "TabTransformer")(categories=(5, 6, 7), num_continuous=2, **sizes)
    return model, (torch.randint(0, 5, (2, 3)), torch.randn(2, 2))


def ft_transformer() -> Example:
    sizes = {"dim": WIDTH, "depth": DEPTH, "heads": HEADS, "dim_head": SIZE, "dim_out": 1, "num_residual_streams": 1}
    model = part("tab_transformer_pytorch", "FTTransformer")(categories=(5, 6, 7), num_continuous=2, **sizes)
    return model, (torch.randint(0, 5, (2, 3)), torch.randn(2, 2))


def conformer() -> Example:
    model = part("conformer", "Conformer")(dim=WIDTH, depth=DEPTH, heads=HEADS, dim_head=SIZE, ff_mult=2)
    return model, vectors()


def linformer() -> Example:
    return part("linformer", "Linformer")(dim=WIDTH, seq_len=8, depth=DEPTH, heads=HEADS, k=5), vectors()


def nystromformer() -> Example:
    model = part("nystrom_attention", "Nystromformer")(
        dim=WIDTH, depth=DEPTH, heads=HEADS, dim_head=SIZE, num_landmarks=4, pinv_iterations=6
    )
    return model, vectors()


def linear_transformer() -> Example:
    kind = part("linear_attention_transformer", "LinearAttentionTransformer")
    return kind(dim=WIDTH, depth=DEPTH, heads=HEADS, max_seq_len=8), vectors()


def palm() -> Example:
    kind = part("palm_rlhf_pytorch", "PaLM")
    return kind(num_tokens=50, dim=WIDTH, depth=DEPTH, heads=HEADS, dim_head=SIZE, ff_mult=2), words()


def clip_vision() -> Example:
    kind = part("open_clip.transformer", "VisionTransformer")
    return kind(32, 8, WIDTH, DEPTH, HEADS, 2.0, output_dim=20), images()


def clip_text() -> Example:
    kind = part("open_clip.transformer", "TextTransformer")
    return kind(context_length=9, vocab_size=60, width=WIDTH, heads=HEADS, layers=DEPTH, output_dim=20), words(9)


def torchvision_vit() -> Example:
    return part("torchvision.models", "VisionTransformer")(32, 8, DEPTH, HEADS, WIDTH, UNITS), images()


def torchvision_swin() -> Example:
    kind = part("torchvision.models", "SwinTransformer")
    return kind([4, 4], 24, [2, 2], [2, 4], [4, 4], stochastic_depth_prob=0.0), images()


def torchvision_maxvit() -> Example:
    random.seed(0)
    return part("torchvision.models", "MaxVit")((32, 32), 16, 4, [16, 32], [1, 2], 8, 0.0), images()


ONE_KEY = SHAPE.replace("12,", "12 on 1 kv,")
WIDE = SHAPE.replace("mlp 96", "mlp 192")
PARALLEL = f"3 × [{', '.join(['4×12, mlp 96, width 48'] * 2)}]"
MAXVIT = "1 × [2×8, mlp 64, width 16, 2×8, mlp 64, width 16]; 2 × [4×8, mlp 128, width 32, 4×8, mlp 128, width 32]"
# name → how it is made, and its shape as its author would say it
LIBRARY_MODELS: dict[str, tuple[Callable[[], Example], str | None]] = {
    "vit_pytorch ViT": (vit("vit"), SHAPE),
    "vit_pytorch SimpleViT": (vit("simple_vit", "SimpleViT"), SHAPE),
    "vit_pytorch qk norm": (vit("simple_vit_with_qk_norm", "SimpleViT"), SHAPE),
    "vit_pytorch parallel": (vit("parallel_vit"), PARALLEL),
    "vit_pytorch DeepViT": (vit("deepvit", "DeepViT"), None),  # a norm over heads: more heads change the old ones
    "vit_pytorch CaiT": (vit("cait", "CaiT", cls_depth=2), f"{SHAPE}; {SHAPE.replace('3 ×', '2 ×', 1)}"),
    "vit_pytorch small data": (vit("vit_for_small_dataset"), SHAPE),
    "vit_pytorch registers": (vit("simple_vit_with_register_tokens", "SimpleViT"), SHAPE),
    "vit_pytorch value residual": (vit("simple_vit_with_value_residual", "SimpleViT"), SHAPE),
    "vit_pytorch learnable memory": (vit("learnable_memory_vit"), SHAPE),
    "vit_pytorch patch dropout": (vit("simple_vit_with_patch_dropout", "SimpleViT", patch_dropout=0.0), SHAPE),
    "vit_pytorch flash": (vit("simple_flash_attn_vit", "SimpleViT", use_flash=True), SHAPE),
    "x_transformers Encoder": (x_layers("Encoder"), SHAPE),
    "x_transformers Decoder": (x_layers("Decoder"), SHAPE),
    "x_transformers GLU, RMSNorm": (x_layers("Encoder", ff_glu=True, use_rmsnorm=True), SHAPE),
    "x_transformers rotary": (x_layers("Decoder", rotary_pos_emb=True), SHAPE),
    "x_transformers T5 bias": (x_layers("Encoder", rel_pos_bias=True), SHAPE),
    "x_transformers one key": (x_layers("Decoder", attn_one_kv_head=True), ONE_KEY),
    "x_transformers of words": (x_words(), SHAPE),
    "whisper encoder": (whisper_encoder, WIDE),
    "whisper": (whisper, f"{WIDE}; 3 × [4×12, mlp 0, width 48, 4×12, mlp 192, width 48]"),
    "performer": (performer, SHAPE),
    "ESM-2": (esm2, WIDE),
    "TabTransformer": (tab_transformer, WIDE),
    "FT-Transformer": (ft_transformer, WIDE),
    "conformer": (conformer, SHAPE),
    "linformer": (linformer, WIDE),
    "nystrom_attention": (nystromformer, None),  # a maximum over all heads
    "linear_attention_transformer": (linear_transformer, WIDE),
    "PaLM": (palm, ONE_KEY),
    "open_clip image": (clip_vision, SHAPE),
    "open_clip text": (clip_text, WIDE),
    "torchvision ViT": (torchvision_vit, SHAPE),
    "torchvision Swin": (torchvision_swin, "2 × [2×12, mlp 96, width 24]; 2 × [4×12, mlp 192, width 48]"),
    "torchvision MaxVit": (torchvision_maxvit, MAXVIT),
}
