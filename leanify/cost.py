"""What a shape costs: parameters and multiply-adds, counted on ``meta``, and a price list from a handful of counts.

Nothing is modelled. A block's parameters and MACs are affine in its heads at a fixed head_dim and affine in its MLP's
hidden units, whatever the family, because projections, attention maps and per-head parameters all are; so three counts
of a shortened model price every head count and every MLP of a stage, and the search is integer arithmetic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from leanify import sites, surgery
from leanify.architecture import Architecture, Block, Stage
from leanify.errors import LeanifyError, UnsupportedModel
from leanify.inputs import example_inputs
from leanify.theory import gaussian_kappa


@dataclass(frozen=True)
class Cost:
    """Parameters (all, and of the blocks alone) and multiply-adds of one forward pass of one sample."""

    params: int
    params_body: int
    macs: int

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.params + other.params, self.params_body + other.params_body, self.macs + other.macs)

    def __sub__(self, other: Cost) -> Cost:
        return Cost(self.params - other.params, self.params_body - other.params_body, self.macs - other.macs)

    def __mul__(self, times: int) -> Cost:
        return Cost(self.params * times, self.params_body * times, self.macs * times)


def parameters(module: nn.Module) -> int:
    """The number of parameters, shared ones once."""
    return sum(parameter.numel() for parameter in module.parameters())


def body(model: nn.Module) -> int:
    """The parameters of the blocks: everything but embeddings, final norms and classifier."""
    shared: dict[int, int] = {}
    for stage in sites.locate(model):
        modules = stage.container.children() if stage.container is not None else [stage.blocks[0][0].attention.module]
        shared.update((id(p), p.numel()) for module in modules for p in module.parameters())
    return sum(shared.values())


def call(model: nn.Module, inputs: dict[str, Tensor]) -> object:
    """One forward pass; timm takes its image by position."""
    return model(inputs["x"]) if set(inputs) == {"x"} else model(**inputs)


def macs(model: nn.Module, inputs: dict[str, Tensor]) -> int:
    """Multiply-adds of one forward pass (FLOPs are twice as many), by torch's counter; exact on ``meta``."""
    from torch.utils.flop_counter import FlopCounterMode

    with plain(model), FlopCounterMode(display=False) as counter:
        call(model, inputs)
    return int(counter.get_total_flops()) // 2


@contextmanager
def plain(model: nn.Module) -> Iterator[None]:
    """Without gradients: torch's counter trips over views of parameters that want one."""
    wanting = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        for parameter in wanting:
            parameter.requires_grad_(False)
        with torch.no_grad():
            yield
    finally:
        for parameter in wanting:
            parameter.requires_grad_(True)


def meta_inputs(model: nn.Module, tokens: int | None = None) -> dict[str, Tensor]:
    """One sample without memory; a mask would be looked into, and on ``meta`` there is nothing to see."""
    inputs = example_inputs(model, 1, tokens, "meta")
    return {name: value for name, value in inputs.items() if name != "attention_mask"}


def count(model: nn.Module, tokens: int | None = None) -> Cost:
    """The cost of a model on ``meta``. Raises UnsupportedModel where upstream's forward does not run there."""
    try:
        spent = macs(model, meta_inputs(model, tokens))
    except LeanifyError:
        raise
    except Exception as error:  # whatever upstream's code raises where it was never tried
        raise UnsupportedModel(
            f"{type(model).__name__} cannot be priced: a forward pass without weights, on torch's meta device, failed "
            f"with {type(error).__name__}: {' '.join(str(error).split())[:200]}. leanify.read, write and grow may "
            "still do for it"
        ) from error
    return Cost(parameters(model), body(model), spent)


def token_counts(model: nn.Module, tokens: int | None = None) -> list[int]:
    """The number of tokens N of A in each stage: the rows of the input of its main output projection, on ``meta``."""
    seen: dict[str, int] = {}
    hooks = []
    located = sites.locate(model)
    for stage in located:
        places = next(block for block in stage.blocks if block)
        main = max(places, key=lambda place: place.read().width)

        def note(_: nn.Module, args: tuple[Tensor, ...], name: str = stage.name) -> None:
            shape = args[0].shape
            seen[name] = shape[-2] if len(shape) < 4 else shape[-2] * shape[-3]

        hooks.append(main.output.register_forward_pre_hook(note))
    try:
        with plain(model):
            call(model, meta_inputs(model, tokens))
    finally:
        for hook in hooks:
            hook.remove()
    return [seen.get(stage.name, 1) for stage in located]


# -- prices -------------------------------------------------------------------------------------------------------


class Design(NamedTuple):
    """What a search turns in one stage. ``mlp`` may be an array: a design for each of its entries."""

    depth: int
    heads: int
    head_dim: int
    mlp: Any


@dataclass(frozen=True)
class Line:
    """How the price of one block changes with its heads and its MLP, at one head_dim; affine in both.

    ``step`` is how many heads come at a time: whole key/value groups.
    """

    heads: int
    step: int
    mlp: int
    at: Cost
    per_step: Cost
    per_unit: Cost

    def __call__(self, heads: int, mlp: Any) -> Cost:
        change: Cost = self.at + self.per_step * ((heads - self.heads) // self.step) + self.per_unit * (mlp - self.mlp)
        return change


class PriceList:
    """Prices of every block of a model, counted when they are first asked for.

    turned  the stages whose designs vary, by index
    base    the model with a single block in each of them
    tokens  N of A in each stage

    Blocks that look alike (same layers, same modules, same parameters) share a price.
    """

    def __init__(self, model: nn.Module, tokens: int | None = None, turned: Sequence[int] | None = None) -> None:
        self._asked = tokens
        self.architecture = surgery.read(model)
        self.turned = tuple(self.architecture.varied if turned is None else turned)
        self._kinds = [_kinds(stage) for stage in sites.locate(model)]
        self.model = model
        short = surgery.write(model, self._stages({}))
        self.base = count(short, tokens)
        self.tokens = token_counts(short, tokens)
        self._block = cache(self._count_block)
        self._line = cache(self._count_line)

    def total(self, designs: Sequence[Design | None]) -> Cost:
        """The cost of a design in each stage; None leaves a stage as it is. Arrays of mlp give arrays of costs."""
        cost = self.base
        for index, design in enumerate(designs):
            if design is None:
                continue
            for kind, times in Counter(self._kind(index, i) for i in range(1, design.depth)).items():
                cost = cost + self._block(index, kind) * times
            for kind, times in Counter(self._kind(index, i) for i in range(design.depth)).items():
                if self.architecture.stages[index].blocks[kind]:
                    line = self._line(index, kind, design.head_dim, self._anchor(index, design))
                    cost = cost + line(design.heads, design.mlp) * times
        return cost

    def kappa(self, designs: Sequence[Design | None]) -> float:
        """The predicted κ of the worst stage that a design turns (Theorem 3.2); the others are the same in all."""
        return max(
            gaussian_kappa(design.heads * design.head_dim, tokens)
            for design, tokens in zip(designs, self.tokens, strict=True)
            if design is not None
        )

    def _kind(self, index: int, block: int) -> int:
        """The first block that looks like this one; blocks beyond the last repeat it."""
        kinds = self._kinds[index]
        return kinds[min(block, len(kinds) - 1)]

    def _anchor(self, index: int, design: Design) -> int:
        """Where a line is counted: at the stage's own heads, or at each split's."""
        main = self.architecture.stages[index].main
        assert main is not None
        return main.heads if design.head_dim == main.head_dim else design.heads

    def _stages(self, changes: dict[int, Stage]) -> Architecture:
        """One block in every turned stage, but for some stages as given."""
        stages = enumerate(self.architecture.stages)
        return replace(
            self.architecture,
            stages=tuple(changes.get(i, stage.reshape(depth=1) if i in self.turned else stage) for i, stage in stages),
        )

    def _count(self, index: int, blocks: tuple[Block, ...]) -> Cost:
        stage = replace(self.architecture.stages[index], blocks=blocks)
        return count(surgery.write(self.model, self._stages({index: stage})), self._asked)

    def _count_block(self, index: int, kind: int) -> Cost:
        """A block as it stands: a model that ends with one, less a model that ends before it."""
        last = next(i for i in range(1, len(self._kinds[index]) + 1) if self._kind(index, i) == kind)
        blocks = self.architecture.stages[index].reshape(depth=last + 1).blocks
        return self._count(index, blocks) - self._count(index, blocks[:-1])

    def _count_line(self, index: int, kind: int, head_dim: int, heads: int) -> Line:
        stage = self.architecture.stages[index]
        main = stage.main
        assert main is not None
        before, block = stage.blocks[:kind], replace(stage, blocks=(stage.blocks[kind],))

        def at(heads: int, mlp: int) -> Cost:
            return self._count(index, before + block.reshape(heads=heads, head_dim=head_dim, mlp=mlp).blocks)

        here = at(heads, main.mlp)
        per_step = at(heads + main.group, main.mlp) - here
        per_unit = at(heads, main.mlp + 1) - here if main.mlp else Cost(0, 0, 0)
        change = here - self._count(index, (*before, stage.blocks[kind]))
        return Line(heads, main.group, main.mlp, change, per_step, per_unit)


def _kinds(stage: sites.Located) -> list[int]:
    """For each block the index of the first one that looks like it."""
    if stage.container is None:
        return [0]
    looks = [
        (
            tuple(place.read() for place in places),
            tuple(type(module).__qualname__ for module in block.modules()),
            tuple(parameter.shape for parameter in block.parameters()),
        )
        for places, block in zip(stage.blocks, stage.container.children(), strict=True)
    ]
    return [looks.index(look) for look in looks]
