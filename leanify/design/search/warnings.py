"""Warnings about a plan: where it goes below a published floor or breaks a rule."""

from __future__ import annotations

from collections.abc import Iterator

from leanify.architecture import Architecture
from leanify.design.prices.price_list import PriceList, StageDesign
from leanify.design.search.constraints import depth_floor
from leanify.design.search.control import CLOSE
from leanify.design.search.grid import Candidate, Request
from leanify.design.search.limits import UNSPENT
from leanify.design.search.search import SearchResult, plain_name


def warnings(
    prices: PriceList, request: Request, old: Candidate, found: SearchResult, control: Candidate | None
) -> Iterator[str]:
    """The warnings of a plan."""
    new = found.chosen
    yield from _heads_words(old, new, found)
    yield from _budget_words(request, new)
    yield from _depth_words(prices.architecture, new.applied_to(prices.architecture))
    for i in prices.turned:
        before, design = old.designs[i], new.designs[i]
        assert before is not None
        assert design is not None
        name = f"stage {prices.architecture.stages[i].name}: " if len(prices.turned) > 1 else ""
        primaries = prices.architecture.stages[i].primaries
        if len({(m.heads, m.head_dim) for m in primaries}) > 1 or len({m.mlp for m in primaries if m.mlp}) > 1:
            yield f"{name}layers differ; the first is shown, and the others change in proportion to it"
        yield from (name + words for words in _split_words(before, design))
        yield from (name + words for words in _mlp_words(prices.architecture, i, before, design))
        yield from (name + words for words in _kappa_words(prices.tokens[i], before, design))
    yield from _control_words(prices, request, old, new, control)


def _heads_words(old: Candidate, new: Candidate, found: SearchResult) -> Iterator[str]:
    if found.plain is not None:
        yield (
            f"{plain_name(old, found.plain)} ranks above lean: by what was measured on small models it keeps more, "
            "without more heads"
        )
    pairs = [(a, b) for a, b in zip(old.designs, new.designs, strict=True) if a is not None and b is not None]
    if all(a.depth == b.depth for a, b in pairs) and any(a.heads < b.heads and b.mlp < a.mlp for a, b in pairs):
        yield "no layer is left out: narrower MLPs alone pay for the heads"
    for name in found.headless:
        yield f"{name}: no heads were added; within the rules its budget leaves no layers to trade"


def _budget_words(request: Request, new: Candidate) -> Iterator[str]:
    left = [1 - getattr(new.cost, cost) / limit for cost, limit in request.limits.items()]
    if left and min(left) > UNSPENT:
        yield f"lean leaves {min(left):.1%} of its budget unspent: no sensible design is nearer to it"


def _mlp_words(architecture: Architecture, index: int, before: StageDesign, design: StageDesign) -> Iterator[str]:
    primary = architecture.stages[index].primary
    if primary is None or not design.mlp or design.mlp >= before.mlp:
        return
    units = design.mlp * max(1, design.active or primary.active)
    if units < 2 * primary.width:
        yield f"an MLP of {units} units is below twice the width {primary.width}: no published lean model has so few"


def _control_words(
    prices: PriceList, request: Request, old: Candidate, new: Candidate, control: Candidate | None
) -> Iterator[str]:
    if control is None:
        heads = all(a is None or b is None or a.heads == b.heads for a, b in zip(old.designs, new.designs, strict=True))
        mlp = any(d and d.mlp for d in new.designs)
        yield (
            "no control: lean has the baseline's heads"
            if heads and mlp
            else "no control: these stages have no MLP to widen"
        )
        return
    off = control.cost.params / new.cost.params - 1
    if abs(off) > CLOSE:
        yield f"the control is {off:+.2%} off in parameters: one step of the MLP more or less is as near as it comes"
    rules, stages = request.constraints, prices.architecture.stages
    odd = [d.mlp for i, d in enumerate(control.designs) if d and d.mlp % rules.granule_of(stages[i])]
    if odd:
        yield f"the control's MLP has {odd[0]} units: no coarser step comes within {CLOSE:.1%} of lean's parameters"


def _depth_words(old: Architecture, new: Architecture) -> Iterator[str]:
    """All stages count: what flows through one flows through the next."""
    width = max(layer.width for layer in old.layers())
    floor = min(old.depth, depth_floor(width))
    if new.depth < floor:
        yield (
            f"{new.depth} layers are below {floor}, about log3 of the width {width}: the published depth floor "
            "(Levine et al. 2020)"
        )
    if new.depth <= 2 < old.depth:
        yield f"{new.depth} layers: tasks that need several steps in sequence are not solved so shallow"


def _split_words(before: StageDesign, design: StageDesign) -> Iterator[str]:
    if design.head_dim < before.head_dim:
        harm = "strong evidence of harm" if design.head_dim < 32 else "evidence of harm"
        yield (
            f"heads are split, {before.head_dim} → {design.head_dim} channels each: there is {harm} below the rank "
            "that the data needs (Amsel et al. 2025), and the theorem predicts nothing for a split"
        )


def _kappa_words(tokens: int, before: StageDesign, design: StageDesign) -> Iterator[str]:
    inner, old_inner = design.heads * design.head_dim, before.heads * before.head_dim
    if 0.8 <= inner / tokens <= 1.25:
        yield f"inner {inner} is close to {tokens} tokens, where κ peaks: more or fewer heads condition better"
    elif old_inner < inner < tokens:
        yield f"with {tokens} tokens and inner {inner} more heads make κ worse, until inner passes the tokens"
