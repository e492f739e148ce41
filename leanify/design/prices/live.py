"""A live model on ``meta``: it is written in another shape and counted there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from torch import nn

from leanify.architecture import Architecture
from leanify.design.prices.cost import Cost
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
from leanify.design.prices.facts import Facts
from leanify.design.prices.price_list import PriceList
from leanify.errors import LeanifyError, UnsupportedModel
from leanify.lens.blocks import prefix_of
from leanify.lens.families import short
from leanify.lens.located import LocatedModel, LocatedStage
from leanify.lens.sites import locate
from leanify.lens.surgery import write_located
from leanify.upstream.caches import kept_by, longest_context, looks_back
from leanify.upstream.inputs import words_of
from leanify.upstream.origin import origin_of

CONTEXT = 4096
COUNTED_IN_MEMORY = 500_000_000  # parameters; a larger model that does not run on meta is not counted whole


class LiveModel:
    """A model on ``meta``. ``tokens`` is the length of a text input, ``context`` the number of cached tokens."""

    def __init__(self, model: nn.Module, tokens: int | None = None, context: int | None = None) -> None:
        self.model, self._length, self._context = model, tokens, context
        self._written: tuple[Architecture, LocatedModel] | None = None  # a shape's tokens are asked for after its cost

    @cached_property
    def located(self) -> LocatedModel:
        return locate(self.model)

    @cached_property
    def facts(self) -> Facts:
        """Raises UnsupportedModel, as `locate` does."""
        inputs = words_of(unmasked_inputs(self.model, self._length))
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

    def cost(self, shape: Architecture) -> Cost:
        """The cost in this shape. Raises UnsupportedModel, which names the suspect rows of `families` if the model
        runs in its own shape only.
        """
        try:
            return count_located(self._shaped(shape), self._length, self.facts.context)
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
        return token_counts(self._shaped(shape), self._length)

    def params_of(self, stages: Sequence[int]) -> int:
        """The parameters in the blocks of these stages, shared ones counted once."""
        sizes = {}
        for index in stages:
            for module in _modules_of(self.located.stages[index]):
                sizes.update({id(p): p.numel() for p in module.parameters()})
        return sum(sizes.values())

    def _shaped(self, shape: Architecture) -> LocatedModel:
        if self._written is None or self._written[0] != shape:
            self._written = shape, write_located(self.located, shape)
        return self._written[1]

    def _macs(self) -> dict[str, int] | None:
        """The MACs of every module of the model as it stands; None if only a large model in memory could tell."""
        on_meta = observed_on_meta(self.model, self._length, macs_by_module)
        if on_meta is None and parameters(self.model) < COUNTED_IN_MEMORY:
            return observed_on_cpu(self.model, self._length, macs_by_module)
        return on_meta


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
        f"{located.architecture.source} runs as it stands, but not in another shape ({type(error).__name__}: "
        f"{' '.join(str(error).split())[:120]}). The row to correct is that of {names}{hint}"
    )


def context_of(model: nn.Module) -> int:
    """The number of cached tokens at which caches are compared: the most that the model takes, up to 4,096."""
    return min(longest_context(model) or CONTEXT, CONTEXT)


def _modules_of(stage: LocatedStage) -> list[nn.Module]:
    """The modules that hold a stage's parameters: its list of blocks, or its attentions and MLPs if it has none."""
    if stage.container is not None:
        return list(stage.container.children())
    return [site.module for layer in stage.layers for site in (layer.attention, layer.mlp) if site is not None]


def _kinds(model: nn.Module, stage: LocatedStage, macs: Mapping[str, int]) -> list[int]:
    """For each block the index of the first one that looks like it and has the same MACs (``macs``, by path)."""
    if stage.container is None:
        return [0]
    looks = [
        (
            tuple((layer.read(), kept_by(model, layer.attention.module)) for layer in layers),
            tuple(type(module).__qualname__ for module in block.modules()),
            tuple(parameter.shape for parameter in block.parameters()),
            tuple((k, v) for module in block.modules() for k, v in vars(module).items() if isinstance(v, bool)),
            macs.get(f"{prefix_of(stage.name)}.{name}".lstrip(".")),
        )
        for layers, (name, block) in zip(stage.blocks, stage.container.named_children(), strict=True)
    ]
    return [looks.index(look) for look in looks]
