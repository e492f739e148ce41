"""What a decoder costs in service: cache bytes per token, MACs of the prompt and of decoding one token.

For an encoder with its decoder, the encoder reads the prompt and the decoder its first token: see
`counting.generation`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from leanify.architecture import Architecture
from leanify.design.prices.cost import Cost
from leanify.design.prices.price_list import PriceList
from leanify.upstream.caches import Kept


@dataclass(frozen=True)
class Serving:
    """For one sequence at a context of N tokens.

    kv_bytes_per_token  bytes of cache divided by N, at two bytes a number
    prefill_macs        multiply-adds of a forward pass over N tokens, masked pairs included, as torch counts them. For
                        an encoder-decoder: the encoder reads N tokens, or its sound or image, the decoder its first one
    decode_macs         multiply-adds of one token behind N cached ones; layers with a window see at most the window
    """

    context: int
    kv_bytes_per_token: float
    prefill_macs: int | None
    decode_macs: int | None


def serving(prices: PriceList, architecture: Architecture, cost: Cost) -> Serving | None:
    """What the model costs in service in this shape; None if no layer keeps a cache.

    A decoder takes F(T) = aT + bT² MACs for T tokens, b in its attention maps; so F at one length gives all lengths.
    """
    if not cost.kv:
        return None
    n = prices.facts.context
    per_token = cost.kv / n
    if any(len(block) > 1 for stage in prices.architecture.stages for block in stage.blocks):
        return Serving(n, per_token, cost.prefill or None, cost.decode or None)
    pairs = list(_pairs(prices, architecture))
    quadratic = sum(macs for macs, _ in pairs)
    tokens = prices.tokens[prices.changed[0]]
    linear = cost.macs - tokens**2 * quadratic
    row = sum(macs * (kept.seen(n) if kept else n) for macs, kept in pairs)
    return Serving(n, per_token, n * linear // tokens + n**2 * quadratic, linear // tokens + row)


def _pairs(prices: PriceList, architecture: Architecture) -> Iterator[tuple[int, Kept | None]]:
    """For every layer the MACs of one query with one key and value, and what the layer caches."""
    for stage, known in zip(architecture.stages, prices.facts.kept, strict=True):
        for i, block in enumerate(stage.blocks):
            for layer, kept in zip(block, known[min(i, len(known) - 1)], strict=True):
                pair = (kept and kept.pair) or 2 * layer.head_dim
                yield layer.heads * pair, kept
