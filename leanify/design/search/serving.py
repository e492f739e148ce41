"""Serving costs of a decoder: cache bytes per token, MACs of prefill and of decoding one token.

Of an encoder with its decoder the prompt is what the encoder reads, and the decoder's first token: see
`counting.generation`.
"""

from __future__ import annotations

from dataclasses import dataclass

from leanify.design.prices.price_list import PriceList
from leanify.design.search.grid import Candidate
from leanify.upstream.caches import Kept


@dataclass(frozen=True)
class Serving:
    """Of one sequence at a context of N tokens.

    kv_bytes_per_token  bytes of cache divided by N, at two bytes a number
    prefill_macs        multiply-adds of a forward pass over N tokens; masked pairs count, as torch's counter has it. Of
                        an encoder-decoder: the encoder reads N tokens, or its sound or image, the decoder its first one
    decode_macs         multiply-adds of one token behind N cached ones; a window's layers see no more than the window
    """

    context: int
    kv_bytes_per_token: float
    prefill_macs: int | None
    decode_macs: int | None


def serving(prices: PriceList, design: Candidate) -> Serving | None:
    """What a design costs in service; None where no layer keeps a cache.

    With T tokens a decoder takes F(T) = aT + bT² MACs, b of them in its attention maps, so F at one length gives all.
    """
    if not design.cost.kv:
        return None
    n = prices.facts.context
    per_token = design.cost.kv / n
    if any(len(block) > 1 for stage in prices.architecture.stages for block in stage.blocks):
        return Serving(n, per_token, design.cost.prefill or None, design.cost.decode or None)
    pairs = _pairs(prices, design)
    tokens = prices.tokens[prices.turned[0]]
    linear = design.cost.macs - tokens**2 * sum(macs for macs, _ in pairs)
    prefill = n * linear // tokens + n**2 * sum(macs for macs, _ in pairs)
    decode = linear // tokens + sum(macs * (kept.seen(n) if kept else n) for macs, kept in pairs)
    return Serving(n, per_token, prefill, decode)


def _pairs(prices: PriceList, design: Candidate) -> list[tuple[int, Kept | None]]:
    """For every layer the MACs of one query with one key and value, and what the layer keeps."""
    found = []
    stages = design.applied_to(prices.architecture).stages
    for stage, standing in zip(stages, prices.facts.kept, strict=True):
        for i, block in enumerate(stage.blocks):
            for shape, kept in zip(block, standing[min(i, len(standing) - 1)], strict=True):
                found.append((shape.heads * ((kept and kept.pair) or 2 * shape.head_dim), kept))
    return found
