"""A live model on ``meta``, which is written in other shapes and counted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from typing import Any

from torch import nn

from leanify.core.architecture import Architecture
from leanify.core.errors import LeanifyError, ShapeError, UnsupportedModel
from leanify.lens.blocks import container_prefix
from leanify.lens.families import short
from leanify.lens.located import LocatedModel, LocatedStage
from leanify.lens.parameter_parts import describe_kept
from leanify.profiling import counting
from leanify.profiling.causality import causal_stages
from leanify.profiling.cost import Cost, ModelFacts
from leanify.profiling.forward import observe_on_cpu, observe_on_meta, unmasked_inputs
from leanify.reshaping.sites import locate
from leanify.reshaping.surgery import write_located
from leanify.reshaping.width import differs_in_width
from leanify.upstream.inputs import describe_inputs
from leanify.upstream.libraries import format_error, reraise_as
from leanify.upstream.origin import get_origin
from leanify.upstream.spelling import CacheSize, cache_size, longest_context

CONTEXT = 4096
COUNTED_IN_MEMORY = 500_000_000  # parameters; a larger model that does not run on meta is not counted whole


class LiveModel:
    """A model on ``meta``. ``tokens`` is the length of a text input, ``context`` the number of cached tokens."""

    def __init__(self, model: nn.Module, tokens: int | None = None, context: int | None = None) -> None:
        self.model, self._length, self._context = model, tokens, context

    @cached_property
    def located_model(self) -> LocatedModel:
        return locate(self.model)

    @cached_property
    def facts(self) -> ModelFacts:
        """Raises UnsupportedModel, as `locate` does."""
        # MACs of each module in one pass: on meta, or for small models with zeros in memory
        inputs = describe_inputs(unmasked_inputs(self.model, self._length))
        macs = observe_on_meta(self.model, self._length, counting.module_macs_by_path)
        if macs is None and counting.parameters(self.model) < COUNTED_IN_MEMORY:
            macs = observe_on_cpu(self.model, self._length, counting.module_macs_by_path)
        # for each stage: the caches that its layers keep, which blocks are alike, and whether it looks back only
        kinds, caches = [], []
        for stage in self.located_model.stages:
            stage_caches = []
            for block in stage.blocks:
                stage_caches.append(tuple(cache_size(self.model, layer.attention.module) for layer in block))
            caches.append(tuple(stage_caches))
            kinds.append(tuple(_kinds(stage, caches[-1], macs or {})))
        origin = get_origin(self.model)
        return ModelFacts(
            library=origin.library if origin else "",
            name=origin.name if origin else type(self.model).__name__,
            architecture=self.located_model.architecture,
            context=self._context or min(longest_context(self.model) or CONTEXT, CONTEXT),
            inputs=inputs,
            params=counting.parameters(self.model),
            macs=None if macs is None else macs[""],
            kinds=tuple(kinds),
            causal=tuple(causal_stages(self.located_model, self._length)),
            caches=tuple(caches),
            notes=tuple(describe_kept(self.located_model)),
            maps_heads=any(layer.attention.maps_heads for layer in self.located_model.layers),
        )

    def cost(self, shape: Architecture) -> Cost:
        """The cost in this shape. Raises UnsupportedModel, which names the suspect rows of `families` if the
        model runs in its own shape only.
        """
        try:
            return counting.count_located(write_located(self.located_model, shape), self._length, self.facts.context)
        except UnsupportedModel as error:
            if self.facts.macs is None or shape == self.located_model.architecture:
                raise
            cause = error.__cause__ or error
            if differs_in_width(self.located_model.architecture, shape):
                source = self.located_model.architecture.source
                raise UnsupportedModel(f"{source} does not run at this width: {format_error(cause, 160)}") from error
            reason = self._describe_lost_blocks(shape) or _describe_wrong_rows(self.located_model, shape, cause)
            raise UnsupportedModel(reason) from error

    def _describe_lost_blocks(self, shape: Architecture) -> str:
        """An error message if the model does not run with fewer of its own blocks in a stage; else ""."""
        # one stage after the other loses a block, as far as the shape asks
        architecture = self.located_model.architecture
        for index, (old, new) in enumerate(zip(architecture.stages, shape.stages, strict=True)):
            if new.depth >= old.depth:
                continue
            cut = replace(old, blocks=old.blocks[: new.depth])
            trial = replace(architecture, stages=(*architecture.stages[:index], cut, *architecture.stages[index + 1 :]))
            try:
                counting.count_located(write_located(self.located_model, trial), self._length)
            except LeanifyError as error:
                cause = error.__cause__ or error
                if isinstance(cause, MemoryError):
                    return ""
                return (
                    f"{architecture.source} cannot lose blocks in {old.name}: with {new.depth} of {old.depth} its "
                    f"forward fails with {type(cause).__name__} ({' '.join(str(cause).split())[:120]}), as if a module "
                    "outside takes the states after certain blocks. leanify.read, write and grow work at its depth"
                )
        return ""

    def tokens(self, shape: Architecture) -> list[int]:
        """The number of tokens N of A in each stage."""
        return counting.token_counts(write_located(self.located_model, shape), self._length)

    def sizes(self, shape: Architecture) -> list[int]:
        """Return all parameters in this shape, and the parameters of the blocks; no forward pass is needed."""
        with reraise_as("no other width is built", ShapeError):  # upstream's constructors may raise anything
            new_model = write_located(self.located_model, shape)
        return [counting.parameters(new_model.model), counting.body_parameters(new_model)]

    def written(self, shape: Architecture) -> LiveModel:
        """A live model in another shape, for example of another width."""
        return LiveModel(write_located(self.located_model, shape).model, self._length, self._context)

    def stage_params(self, stages: Sequence[int]) -> int:
        """The parameters in the blocks of these stages, shared ones counted once."""
        modules: list[nn.Module] = []
        for index in stages:
            stage = self.located_model.stages[index]
            if stage.container is not None:
                modules += stage.container.children()
            else:
                modules += [site.module for layer in stage.layers for site in layer.sites]
        return counting.parameters(nn.ModuleList(modules))


def _describe_wrong_rows(located_model: LocatedModel, shape: Architecture, error: BaseException) -> str:
    """An error message for a model that runs in its own shape only, with the rows of `families` that may be wrong."""
    # the rows whose sizes the shape changed, in this order of suspicion
    size_rows, head_rows, all_rows = [], [], []
    for located_stage, stage in zip(located_model.stages, shape.stages, strict=True):
        for layers, block in zip(located_stage.blocks, stage.blocks, strict=False):  # depths may differ
            for layer, new in zip(layers, block, strict=True):
                old = layer.read()
                all_rows.append(layer.mlp or layer.attention)
                if old.head_dim != new.head_dim:
                    size_rows.append(layer.attention)
                if old.heads != new.heads:
                    head_rows.append(layer.attention)
    names = ", ".join(dict.fromkeys(short(site.reading.name) for site in size_rows or head_rows or all_rows))
    hint = '; if upstream makes a part for one head_dim, it needs constant = ["d"]' if size_rows else ""
    return (
        f"{located_model.architecture.source} runs as it stands, but not in another shape "
        f"({format_error(error, 120)}): its code holds numbers that leanify does not follow. The row to correct is "
        f"that of {names}{hint}"
    )


def _kinds(
    stage: LocatedStage, layer_caches: Sequence[tuple[CacheSize | None, ...]], macs: Mapping[str, int]
) -> Iterator[int]:
    """Yield for each block the index of the first one that looks like it and has the same MACs (``macs``, by path)."""
    if stage.container is None:
        yield 0
        return
    # blocks are alike if layers, caches, modules, tensors, switches and MACs are
    looks: list[Any] = []
    for layers, caches, (name, block) in zip(stage.blocks, layer_caches, stage.container.named_children(), strict=True):
        modules = list(block.modules())
        settings = chain.from_iterable(vars(module).items() for module in modules)
        look = (
            [layer.read() for layer in layers],
            caches,
            [type(module).__qualname__ for module in modules],
            [parameter.shape for parameter in block.parameters()],
            [(name, value) for name, value in settings if isinstance(value, bool)],
            macs.get(f"{container_prefix(stage.name)}.{name}".lstrip(".")),
        )
        looks.append(look)
        yield looks.index(look)
