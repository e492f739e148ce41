"""Nyströmformer (Xiong et al. 2021) at the Long-Range Arena's sizes: width 64, heads of 32 channels, 64 landmarks.

Attention over N tokens is approximated through L landmarks, the means of L segments (eq. 10):

    softmax(q kᵀ) ≈ softmax(q k̃ᵀ) · softmax(q̃ k̃ᵀ)⁺ · softmax(q̃ kᵀ)         q̃, k̃: landmarks of q and k

The pseudo-inverse is computed iteratively. Its initial value is scaled per sample and head, so that an output
depends only on its own sample. The optional convolution over v is omitted, as in the Long-Range Arena runs.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leaner_layers import ATTENTION, Attention, Block, Mlp, TokenModel, boolean
from leanify.lens.families import attach

ITERATIONS = 6  # of the pseudo-inverse
HALF = (torch.float16, torch.bfloat16)
HIDDEN = 128  # hidden units of the classifier
NYSTROM = replace(ATTENTION, object="A_i approximates softmax(q kᵀ) v by landmarks")


def pseudo_inverse(matrix: Tensor, iterations: int = ITERATIONS) -> Tensor:
    """Approximate the Moore–Penrose inverse by the iteration of Razavi et al. 2014 (eq. 11). …, L, L"""
    sizes = matrix.abs()
    bound = sizes.sum(-1).amax(-1) * sizes.sum(-2).amax(-1)  # ‖A‖_∞ ‖A‖_1 of each matrix
    inverse = matrix.mT / bound[..., None, None]
    eye = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    for _ in range(iterations):
        product = matrix @ inverse
        inverse = 0.25 * inverse @ (13 * eye - product @ (15 * eye - product @ (7 * eye - product)))
    return inverse


def segment_means(x: Tensor, counts: Tensor, landmarks: int) -> Tensor:
    """The mean of each of L equal segments, over tokens that are not padding. B, h, N, d → B, h, L, d"""
    kept = counts.reshape(len(x), 1, landmarks, -1, 1)  # B, 1, L, N/L, 1
    total = (x.reshape(*x.shape[:2], landmarks, -1, x.shape[-1]) * kept).sum(3)
    return total / kept.sum(3).clamp(min=1)


class NystromAttention(Attention):
    """Attention through landmarks; exact if there are no more tokens than landmarks. No attention dropout.

    Under half precision, the three maps are computed in float32, because the iteration amplifies rounding
    errors.
    """

    def __init__(self, width: int, heads: int, head_dim: int, *, landmarks: int) -> None:
        super().__init__(width, heads, head_dim, qkv_bias=True, bias=True, causal=False, dropout=0.0)
        self.landmarks = landmarks
        attach(self, NYSTROM)

    def mix(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """B, h, N, d → B, h, N, d"""
        tokens = q.shape[2]
        if tokens <= self.landmarks:
            return super().mix(q, k, v, mask)
        if mask is None:
            mask = torch.ones(q.shape[0], tokens, dtype=torch.bool, device=q.device)
        if surplus := -tokens % self.landmarks:
            q, k, v = (F.pad(x, (0, 0, 0, surplus)) for x in (q, k, v))
            mask = F.pad(mask, (0, surplus))
        if q.dtype not in HALF:
            return nystrom(q, k, v, mask, self.landmarks)[:, :, :tokens]
        with nullcontext() if q.is_meta else torch.autocast(q.device.type, enabled=False):
            return nystrom(q.float(), k.float(), v.float(), mask, self.landmarks)[:, :, :tokens].to(q.dtype)


def nystrom(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, landmarks: int, iterations: int = ITERATIONS) -> Tensor:
    """Eq. 13, multiplied from the right so that no matrix is N × N. B, h, N, d → B, h, N, d"""
    q = q * q.shape[-1] ** -0.5
    counts = mask.to(q.dtype)
    middle_q, middle_k = segment_means(q, counts, landmarks), segment_means(k, counts, landmarks)
    hidden = torch.finfo(q.dtype).min * (1 - counts)[:, None, None, :]
    first = (q @ middle_k.mT).softmax(-1)  # B, h, N, L
    middle = (middle_q @ middle_k.mT).softmax(-1)  # B, h, L, L
    last = (middle_q @ k.mT + hidden).softmax(-1)  # B, h, L, N
    return first @ (pseudo_inverse(middle, iterations) @ (last @ v))


class Nystromformer(TokenModel):
    """Classifies the mean of a sequence's tokens; with ``pair``, [a, b, a·b, a−b] of two sequences."""

    def __init__(
        self,
        *,
        vocab: int = 512,
        length: int = 1024,
        width: int = 64,
        depth: int = 2,
        heads: int = 2,
        head_dim: int = 32,
        mlp: int = 128,
        landmarks: int = 64,
        classes: int = 10,
        pair: bool = False,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.vocab, self.length, self.pair, self.classes = vocab, length, pair, classes
        self.embedding = nn.Embedding(vocab, width)
        self.positions = nn.Embedding(length, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(
            Block(
                width,
                NystromAttention(width, heads, head_dim, landmarks=landmarks),
                Mlp(width, mlp, nn.GELU()),
                eps=1e-5,
                dropout=dropout,
            )
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)
        self.classifier = nn.Sequential(
            nn.Linear(4 * width if pair else width, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, classes)
        )
        self.init_weights()

    def _init_weights(self, module: nn.Module) -> None:
        """Initialise embeddings from N(0, 0.02); linear maps keep torch's default."""
        if isinstance(module, nn.Linear):
            module.reset_parameters()
        else:
            super()._init_weights(module)

    def example_ids(self, batch: int, tokens: int | None = None) -> Tensor:
        """→ B, N; with ``pair`` B, 2, N"""
        ids = super().example_ids(2 * batch if self.pair else batch, tokens)
        return ids.view(batch, 2, -1) if self.pair else ids

    def encode(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """B, N → B, D: the mean over tokens that are not padding."""
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.dropout(self.embedding(input_ids) + self.positions(places))
        mask = boolean(attention_mask)
        for block in self.blocks:
            x = block(x, mask)
        tokens: Tensor = self.norm(x)
        if attention_mask is None:
            return tokens.mean(1)
        kept = attention_mask[:, :, None].to(tokens.dtype)
        return (tokens * kept).sum(1) / kept.sum(1).clamp(min=1)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """B, N → B, classes; with ``pair`` B, 2, N → B, classes."""
        if self.pair:
            flat_mask = None if attention_mask is None else attention_mask.flatten(0, 1)
            both = self.encode(input_ids.flatten(0, 1), flat_mask)  # 2·B, D
            a, b = both[0::2], both[1::2]  # each B, D
            features = torch.cat((a, b, a * b, a - b), dim=-1)
        else:
            features = self.encode(input_ids, attention_mask)
        classes: Tensor = self.classifier(features)
        return classes
