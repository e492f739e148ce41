"""The live model as an appraiser: it is written in another shape on ``meta`` and counted there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from torch import nn

from leanify.architecture import Architecture
from leanify.design.prices.cost import Cost
from leanify.design.prices.counting import (
    count_located,
    macs_by_module,
    observed_on_cpu,
    observed_on_meta,
    parameters,
    token_counts,
    unmasked_inputs,
)
from leanify.design.prices.facts import Facts
from leanify.design.prices.price_list import PriceList
from leanify.errors import UnsupportedModel
from leanify.lens.families import short
from leanify.lens.located import LocatedModel, LocatedStage
from leanify.lens.sites import locate
from leanify.lens.surgery import write_located
from leanify.upstream.caches import kept_by, longest_context, looks_back
from leanify.upstream.inputs import words_of
from leanify.upstream.origin import origin_of

CONTEXT = 4096
COUNTED_IN_MEMORY = 500_000_000  # parameters; a larger model that does not run on meta is not counted whole


class Live:
    """Counts what it is asked for. ``tokens`` is the length of a text input, ``context`` that of the caches."""

    def __init__(self, model: nn.Module, tokens: int | None = None, context: int | None = None) -> None:
        self.model, self._asked, self._context = model, tokens, context
        self._written: dict[str, LocatedModel] = {}  # the last shape: its tokens are asked for after its cost

    @cached_property
    def located(self) -> LocatedModel:
        return locate(self.model)

    @cached_property
    def facts(self) -> Facts:
        """Raises UnsupportedModel, as `locate` does."""
        inputs = words_of(unmasked_inputs(self.model, self._asked))
        stages = self.located.stages
        macs = self._macs()
        origin = origin_of(self.model)
        return Facts(
            library=origin.library if origin else "",
            name=origin.name if origin else type(self.model).__name__,
            architecture=self.located.architecture,
            context=self._context or context_of(self.model),
            inputs=inputs,
            params=parameters(self.model),
            macs=None if macs is None else macs[""],
            kinds=tuple(tuple(_kinds(self.model, stage, macs or {})) for stage in stages),
            causal=tuple(any(looks_back(layer.attention.module) for layer in stage.layers) for stage in stages),
            kept=tuple(
                tuple(tuple(kept_by(self.model, layer.attention.module) for layer in block) for block in stage.blocks)
                for stage in stages
            ),
        )

    def count(self, shape: Architecture) -> Cost:
        """Raises UnsupportedModel, which names the rows of `families` where the model runs in its own shape alone."""
        try:
            return count_located(self._shaped(shape), self._asked, self.facts.context)
        except UnsupportedModel as error:
            if self.facts.macs is None or shape == self.located.architecture:
                raise
            raise UnsupportedModel(_blame(self.located, shape, error.__cause__ or error)) from error

    def tokens(self, shape: Architecture) -> list[int]:
        return token_counts(self._shaped(shape), self._asked)

    def held(self, stages: Sequence[int]) -> int:
        modules = (module for i in stages for module in _modules_of(self.located.stages[i]))
        return sum({id(p): p.numel() for module in modules for p in module.parameters()}.values())

    def _shaped(self, shape: Architecture) -> LocatedModel:
        if str(shape) not in self._written:
            self._written = {str(shape): write_located(self.located, shape)}
        return self._written[str(shape)]

    def _macs(self) -> dict[str, int] | None:
        """The MACs of every module of the model as it stands; None where only a large one in memory would tell."""
        on_meta = observed_on_meta(self.model, self._asked, macs_by_module)
        if on_meta is None and parameters(self.model) < COUNTED_IN_MEMORY:
            return observed_on_cpu(self.model, self._asked, macs_by_module)
        return on_meta


def appraise(
    model: nn.Module,
    tokens: int | None = None,
    turned: Sequence[int] | None = None,
    context: int | None = None,
) -> PriceList:
    """The price list of a live model; ``turned`` are the stages whose designs vary."""
    return PriceList(Live(model, tokens, context), turned)


def _blame(located: LocatedModel, shape: Architecture, error: BaseException) -> str:
    """Which rows are suspect where a model runs as it stands and not in another shape."""
    blocks = (
        pair
        for found, stage in zip(located.stages, shape.stages, strict=True)
        for pair in zip(found.blocks, stage.blocks, strict=False)  # depths may differ
    )
    pairs = [pair for places, block in blocks for pair in zip(places, block, strict=True)]
    sized = [at for at, new in pairs if at.read().head_dim != new.head_dim]
    grown = [at for at, new in pairs if at.read().heads != new.heads]
    sites = [at.attention for at in sized or grown] or [at.mlp or at.attention for at, _ in pairs]
    names = ", ".join(dict.fromkeys(short(site.reading.name) for site in sites))
    hint = '; where upstream makes something for one head_dim, constant = ["d"] belongs there' if sized else ""
    return (
        f"{located.architecture.source} runs as it stands, but not in another shape ({type(error).__name__}: "
        f"{' '.join(str(error).split())[:120]}). The row to correct is that of {names}{hint}"
    )


def context_of(model: nn.Module) -> int:
    """The context at which caches are compared: as long as the model takes, at most 4,096 tokens."""
    return min(longest_context(model) or CONTEXT, CONTEXT)


def _modules_of(stage: LocatedStage) -> list[nn.Module]:
    """What holds a stage's parameters: its list, or without one its attentions and MLPs."""
    if stage.container is not None:
        return [stage.container]
    return [site.module for layer in stage.layers for site in (layer.attention, layer.mlp) if site is not None]


def _kinds(model: nn.Module, stage: LocatedStage, macs: Mapping[str, int]) -> list[int]:
    """For each block the index of the first one that looks like it and takes as many of the ``macs``, by path."""
    if stage.container is None:
        return [0]
    looks = [
        (
            tuple((layer.read(), kept_by(model, layer.attention.module)) for layer in layers),
            tuple(type(module).__qualname__ for module in block.modules()),
            tuple(parameter.shape for parameter in block.parameters()),
            tuple((k, v) for module in block.modules() for k, v in vars(module).items() if isinstance(v, bool)),
            macs.get(f"{stage.name}.{name}"),
        )
        for layers, (name, block) in zip(stage.blocks, stage.container.named_children(), strict=True)
    ]
    return [looks.index(look) for look in looks]
