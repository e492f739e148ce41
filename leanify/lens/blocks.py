"""The blocks of a model, and what they give."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from leanify.lens import sites


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The blocks of all stages, in their order."""
    found = [(stage.name, stage.container) for stage in sites.locate(model)]
    return [
        block
        for name, container in found
        for block in (container.children() if container is not None else [model.get_submodule(name)])
    ]


@contextmanager
def outputs_of(blocks: Sequence[nn.Module]) -> Iterator[list[Tensor]]:
    """What blocks give in the forward passes meanwhile, in the order of ``blocks``."""
    found: list[Any] = [None] * len(blocks)

    def keep(place: int) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            found[place] = output if isinstance(output, Tensor) else output[0]

        return hook

    hooks = [block.register_forward_hook(keep(place)) for place, block in enumerate(blocks)]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()
