"""Small models of libraries that leanify does not depend on; each raises ImportError where the library is missing."""

from __future__ import annotations

from collections.abc import Callable

import torch

from leanify.upstream.libraries import import_timm
from recipes.research.own_modules import Example

WIDTH, HEADS, DEPTH, UNITS = 48, 4, 3, 96


def images() -> torch.Tensor:
    return torch.randn(2, 3, 32, 32)


def torchvision_vit() -> Example:
    import_timm()  # which makes torchvision importable beside a torch without it
    from torchvision.models import VisionTransformer

    return VisionTransformer(32, 8, DEPTH, HEADS, WIDTH, UNITS), images()


def torchvision_swin() -> Example:
    import_timm()
    from torchvision.models import SwinTransformer

    return SwinTransformer([4, 4], 24, [2, 2], [2, 4], [4, 4], stochastic_depth_prob=0.0), images()


def torchvision_maxvit() -> Example:
    import_timm()
    from torchvision.models import MaxVit

    return MaxVit((32, 32), 16, 4, [16, 32], [1, 2], 8, 0.0), images()


def vit_pytorch_vit() -> Example:
    from vit_pytorch import ViT

    sizes = {"dim": WIDTH, "depth": DEPTH, "heads": HEADS, "dim_head": 12, "mlp_dim": UNITS}
    return ViT(image_size=32, patch_size=8, num_classes=5, **sizes), images()


def vit_pytorch_simple() -> Example:
    from vit_pytorch import SimpleViT

    sizes = {"dim": WIDTH, "depth": DEPTH, "heads": HEADS, "dim_head": 12, "mlp_dim": UNITS}
    return SimpleViT(image_size=32, patch_size=8, num_classes=5, **sizes), images()


def vit_pytorch_qk_norm() -> Example:
    from vit_pytorch.simple_vit_with_qk_norm import SimpleViT

    sizes = {"dim": WIDTH, "depth": DEPTH, "heads": HEADS, "dim_head": 12, "mlp_dim": UNITS}
    return SimpleViT(image_size=32, patch_size=8, num_classes=5, **sizes), images()


def vit_pytorch_parallel() -> Example:
    from vit_pytorch.parallel_vit import ViT

    sizes = {"dim": WIDTH, "depth": DEPTH, "heads": HEADS, "dim_head": 12, "mlp_dim": UNITS}
    return ViT(image_size=32, patch_size=8, num_classes=5, **sizes), images()


def vit_pytorch_deep() -> Example:
    from vit_pytorch.deepvit import DeepViT

    sizes = {"dim": WIDTH, "depth": DEPTH, "heads": HEADS, "dim_head": 12, "mlp_dim": UNITS}
    return DeepViT(image_size=32, patch_size=8, num_classes=5, **sizes), images()


def vit_pytorch_cait() -> Example:
    from vit_pytorch.cait import CaiT

    sizes = {"dim": WIDTH, "depth": DEPTH, "heads": HEADS, "dim_head": 12, "mlp_dim": UNITS}
    return CaiT(image_size=32, patch_size=8, num_classes=5, cls_depth=2, **sizes), images()


def open_clip_vision() -> Example:
    from open_clip.transformer import VisionTransformer

    return VisionTransformer(32, 8, WIDTH, DEPTH, HEADS, 2.0, output_dim=20), images()


def open_clip_text() -> Example:
    from open_clip.transformer import TextTransformer

    model = TextTransformer(context_length=9, vocab_size=60, width=WIDTH, heads=HEADS, layers=DEPTH, output_dim=20)
    return model, torch.randint(1, 60, (2, 9))


def x_transformers_encoder() -> Example:
    from x_transformers import Encoder

    return Encoder(dim=WIDTH, depth=DEPTH, heads=HEADS, attn_dim_head=12), torch.randn(2, 7, WIDTH)


LIBRARIES: tuple[Callable[[], Example], ...] = (
    torchvision_vit, torchvision_swin, torchvision_maxvit, vit_pytorch_vit, vit_pytorch_simple, vit_pytorch_qk_norm,
    vit_pytorch_parallel, vit_pytorch_deep, vit_pytorch_cait, open_clip_vision, open_clip_text, x_transformers_encoder,
)  # fmt: skip
