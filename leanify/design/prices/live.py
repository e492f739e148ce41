"""A live model on ``meta``: it is written in another shape and counted there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from torch import nn

from leanify.architecture import Architecture
from leanify.design.prices.costs import ModelCosts
from leanify.design.prices.counting import (
    count_located,
    macs_by_module,
    observed_on_cpu,
    observed_on_meta,
    parameters,
    token_counts,
    unmasked_inputs,
)
from leanify.design.prices.price_list import PriceList
from leanify.design.prices.shapes import Cost, Facts
from leanify.errors import LeanifyError, UnsupportedModel
from leanify.lens.blocks import prefix_of
from leanify.lens.families import short
from leanify.lens.located import LocatedModel, LocatedStage
from leanify.lens.sites import locate
from leanify.lens.surgery import write_located
from leanify.upstream.caches import Kept, kept_by, longest_context, looks_back
from leanify.upstream.inputs import words_of
from leanify.upstream.libraries import in_words
from leanify.upstream.origin import origin_of

CONTEXT = 4096
COUNTED_IN_MEMORY = 500_000_000  # parameters; a larger model that does not run on meta is not counted whole


class LiveModel:
    """A model on ``meta``. ``tokens`` is the length of a text input, ``context`` the number of cached tokens."""

    def __init__(self, model: nn.Module, tokens: int | None = None, context: int | None = None) -> None:
        self.model, self._length, self._context = model, tokens, context

    @cached_property
    def located(self) -> LocatedModel:
        return locate(self.model)

    @cached_property
    def facts(self) -> Facts:
        """Raises UnsupportedModel, as `locate` does."""
        inputs = words_of(unmasked_inputs(self.model, self._length))
        macs = observed_on_meta(self.model, self._length, macs_by_module)
        if macs is None and parameters(self.model) < COUNTED_IN_MEMORY:
            macs = observed_on_cpu(self.model, self._length, macs_by_module)
        kinds, causal, kept = [], [], []
        for stage in self.located.stages:
            attentions = [[layer.attention.module for layer in block] for block in stage.blocks]
            kept.append(tuple(tuple(kept_by(self.model, one) for one in block) for block in attentions))
            kinds.append(tuple(_kinds(stage, kept[-1], macs or {})))
            causal.append(any(looks_back(one) for block in attentions for one in block))
        origin = origin_of(self.model)
        return Facts(
            library=origin.library if origin else "",
            name=origin.name if origin else type(self.model).__name__,
            architecture=self.located.architecture,
            context=self._context or min(longest_context(self.model) or CONTEXT, CONTEXT),
            inputs=inputs,
            params=parameters(self.model),
            macs=None if macs is None else macs[""],
            kinds=tuple(kinds),
            causal=tuple(causal),
            kept=tuple(kept),
        )

    def cost(self, shape: Architecture) -> Cost:
        """The cost in this shape. Raises UnsupportedModel, which names the suspect rows of `families` if the
        model runs in its own shape only.
        """
        try:
            return count_located(write_located(self.located, shape), self._length, self.facts.context)
        except UnsupportedModel as error:
            if self.facts.macs is None or shape == self.located.architecture:
                raise
            reason = self._needs_depth(shape) or _suspects(self.located, shape, error.__cause__ or error)
            raise UnsupportedModel(reason) from error

    def _needs_depth(self, shape: Architecture) -> str:
        """An error message if the model does not run with fewer of its own blocks in a stage; else ""."""
        whole = self.located.architecture
        for index, (old, new) in enumerate(zip(whole.stages, shape.stages, strict=True)):
            if new.depth >= old.depth:
                continue
            stages = [*whole.stages]
            stages[index] = replace(old, blocks=old.blocks[: new.depth])
            try:
                count_located(write_located(self.located, replace(whole, stages=tuple(stages))), self._length)
            except LeanifyError as error:
                failed = error.__cause__ or error
                if isinstance(failed, MemoryError):
                    return ""
                return (
                    f"{whole.source} cannot lose blocks in {old.name}: with {new.depth} of {old.depth} its forward "
                    f"fails with {type(failed).__name__} ({' '.join(str(failed).split())[:120]}), as where something "
                    "outside takes the states after certain blocks. leanify.read, write and grow do for it at its depth"
                )
        return ""

    def tokens(self, shape: Architecture) -> list[int]:
        """The number of tokens N of A in each stage."""
        return token_counts(write_located(self.located, shape), self._length)

    def params_of(self, stages: Sequence[int]) -> int:
        """The parameters in the blocks of these stages, shared ones counted once.

        Without a list of blocks, they are those of its attentions and MLPs.
        """
        sizes: dict[int, int] = {}
        for index in stages:
            stage = self.located.stages[index]
            if stage.container is not None:
                modules = list(stage.container.children())
            else:
                sites = [site for layer in stage.layers for site in (layer.attention, layer.mlp)]
                modules = [site.module for site in sites if site is not None]
            for module in modules:
                sizes.update({id(p): p.numel() for p in module.parameters()})
        return sum(sizes.values())


def prices_of(
    model: nn.Module,
    tokens: int | None = None,
    changed: Sequence[int] | None = None,
    context: int | None = None,
) -> PriceList:
    """The price list of a model on meta; ``changed`` are the stages whose shape may change."""
    return PriceList(ModelCosts(lambda: (LiveModel(model, tokens, context), False)), changed)


def _suspects(located: LocatedModel, shape: Architecture, error: BaseException) -> str:
    """An error message: the rows that may be wrong if a model runs as it stands and not in another shape."""
    sized, grown, every = [], [], []
    for found, stage in zip(located.stages, shape.stages, strict=True):
        for places, block in zip(found.blocks, stage.blocks, strict=False):  # depths may differ
            for place, new in zip(places, block, strict=True):
                old = place.read()
                every.append(place.mlp or place.attention)
                if old.head_dim != new.head_dim:
                    sized.append(place.attention)
                if old.heads != new.heads:
                    grown.append(place.attention)
    names = ", ".join(dict.fromkeys(short(site.reading.name) for site in sized or grown or every))
    hint = '; where upstream makes something for one head_dim, constant = ["d"] belongs there' if sized else ""
    return (
        f"{located.architecture.source} runs as it stands, but not in another shape ({in_words(error, 120)}). The row "
        f"to correct is that of {names}{hint}"
    )


def _kinds(stage: LocatedStage, kept: Sequence[tuple[Kept | None, ...]], macs: Mapping[str, int]) -> Iterator[int]:
    """For each block the index of the first one that looks like it and has the same MACs (``macs``, by path)."""
    if stage.container is None:
        yield 0
        return
    looks: list[Any] = []
    for layers, caches, (name, block) in zip(stage.blocks, kept, stage.container.named_children(), strict=True):
        modules = list(block.modules())
        look = (
            [layer.read() for layer in layers],
            caches,
            [type(module).__qualname__ for module in modules],
            [parameter.shape for parameter in block.parameters()],
            [switch for module in modules for switch in vars(module).items() if isinstance(switch[1], bool)],
            macs.get(f"{prefix_of(stage.name)}.{name}".lstrip(".")),
        )
        looks.append(look)
        yield looks.index(look)
