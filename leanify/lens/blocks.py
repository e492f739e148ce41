"""The position of blocks in a model: a list (ModuleList, Sequential), a slice of one, or numbered attributes.

A stage is named by the position of its blocks:

    blocks             all entries of the list at this path
        net[1:-2]          the list without its first entry and its last two (an embedding, a head)
    net[1:-2:2]        every second entry of these; those between (a dropout, a norm) go with the block after them
    encoder.block*     the attributes block1, block2, … of the module at ``encoder``
"""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Iterator
from itertools import chain
from typing import Any

from torch import nn

from leanify.core.errors import ShapeError
from leanify.upstream.origin import get_record

_PART = re.compile(r"(?P<path>.*)\[(?P<before>\d+):-(?P<after>\d+)(:(?P<step>\d+))?\]")
NUMBERED_PATTERN = re.compile(r"(?:(?P<path>.*)\.)?(?P<stem>[A-Za-z_]\w*)\*")
FIXED_KEY = "_leanify_fixed"


class Skip(nn.Module):
    """Replaces a numbered block that was removed: returns its first argument."""

    def forward(self, x: Any, *_: Any, **__: Any) -> Any:
        return x


class Run:
    """A sequence of blocks that is only part of a list or module, with the methods of a list of blocks."""

    def __init__(self, parent: nn.Module) -> None:
        self.parent = parent

    def named_children(self) -> Iterator[tuple[str, nn.Module]]:
        raise NotImplementedError

    def children(self) -> Iterator[nn.Module]:
        return (child for _, child in self.named_children())

    def __len__(self) -> int:
        return len(list(self.named_children()))


class Part(Run):
    """The entries of a list without some at its start and its end; of these, every ``step``-th is a block."""

    def __init__(self, parent: nn.Module, before: int, after: int, step: int = 1) -> None:
        super().__init__(parent)
        self.before, self.after, self.step = before, after, step

    def _entries(self) -> list[tuple[str, nn.Module]]:
        children = list(self.parent._modules.items())
        entries = children[self.before : len(children) - self.after]
        return [(name, child) for name, child in entries if child is not None]

    def named_children(self) -> Iterator[tuple[str, nn.Module]]:
        return iter(self._entries()[:: self.step])

    def _groups(self) -> list[list[Any]]:
        """Return each block behind the entries between it and the block before."""
        entries = [child for _, child in self._entries()]
        ends = range(1, len(entries) + 1, self.step)
        return [entries[max(0, end - self.step) : end] for end in ends]

    def __delitem__(self, which: slice) -> None:
        groups = self._groups()
        del groups[which]
        self._replace([*chain(*groups)])

    def append(self, block: nn.Module) -> None:
        groups = self._groups()
        between = [copy.deepcopy(module) for module in groups[-1][:-1]]
        self._replace([*chain(*groups), *between, block])

    def _replace(self, blocks: list[nn.Module]) -> None:
        # the new entries: those before the part, the blocks, those after it
        children: list[Any] = list(self.parent._modules.values())
        names = list(self.parent._modules)
        end = len(names) - self.after
        new = [*children[: self.before], *blocks, *children[end:]]
        # names: numbers are counted again; other names keep their stem and continue its numbers
        if all(name.isdigit() for name in names):
            names = [str(i) for i in range(len(new))]
        else:
            old_names = names[: min(self.before + len(blocks), end)]
            stem = old_names[-1].rstrip("0123456789")
            new_names = [f"{stem}{i}" for i in range(len(old_names), self.before + len(blocks))]
            names = [*old_names, *new_names, *names[end:]]
        self.parent._modules.clear()
        self.parent._modules.update(dict(zip(names, new, strict=True)))


class Sparse(Part):
    """A list that holds None between its blocks, in places that a forward counts; None goes with the block before."""

    def __init__(self, parent: nn.Module) -> None:
        super().__init__(parent, 0, 0)

    def _groups(self) -> list[list[Any]]:
        entries = list(self.parent._modules.values())
        starts = [index for index, entry in enumerate(entries) if entry is not None]
        bounds = [0, *starts[1:], len(entries)]
        return [entries[start:end] for start, end in itertools.pairwise(bounds)]

    def append(self, block: nn.Module) -> None:
        raise ShapeError(
            f"a list of {len(self)} blocks holds None between them, so there cannot be more of them; at most as many "
            "as there are"
        )


class Numbered(Run):
    """Numbered attributes with one stem, each of which the forward calls by its name."""

    def __init__(self, parent: nn.Module, stem: str) -> None:
        super().__init__(parent)
        self.stem = stem

    def named_children(self) -> Iterator[tuple[str, nn.Module]]:
        pattern = re.compile(rf"{re.escape(self.stem)}\d+")
        children = self.parent.named_children()
        return ((name, child) for name, child in children if pattern.fullmatch(name) and not isinstance(child, Skip))

    def __delitem__(self, which: slice) -> None:
        for name, _ in list(self.named_children())[which]:
            setattr(self.parent, name, Skip())

    def append(self, block: nn.Module) -> None:
        raise ShapeError(
            f"the blocks {self.stem}… of {type(self.parent).__name__} are called one by one in its forward, so there "
            f"cannot be more of them; at most the {len(self)} that there are"
        )


def get_container(model: nn.Module, name: str) -> Any:
    """Return the list of blocks of a stage: a module, or a `Run`."""
    parent = model.get_submodule(container_prefix(name))
    part_match, numbered_match = _PART.fullmatch(name), NUMBERED_PATTERN.fullmatch(name)
    if part_match:
        return Part(parent, int(part_match["before"]), int(part_match["after"]), int(part_match["step"] or 1))
    if numbered_match:
        return Numbered(parent, numbered_match["stem"])
    if isinstance(parent, nn.Sequential) and not all(key.isdigit() for key in parent._modules):
        return Part(parent, 0, 0)  # its own deletion would rename the entries to numbers
    if isinstance(parent, nn.ModuleList) and None in parent._modules.values():
        return Sparse(parent)
    return parent


def container_prefix(name: str) -> str:
    """Return the path of the module whose children are the blocks of a stage."""
    match = _PART.fullmatch(name) or NUMBERED_PATTERN.fullmatch(name)
    return name if match is None else match["path"] or ""


def block_paths(model: nn.Module, name: str) -> list[str]:
    """The paths of a stage's blocks."""
    return [f"{container_prefix(name)}.{child}".lstrip(".") for child, _ in get_container(model, name).named_children()]


def numbered_place(parent: nn.Module, path: str, name: str) -> str | None:
    """Return the stage name of the numbered attributes that include ``name``; None if it is the only one."""
    stem = name.rstrip("0123456789")
    if stem in ("", name):
        return None
    kind = type(getattr(parent, name))
    siblings = [child for child, module in parent.named_children() if child.rstrip("0123456789") == stem]
    same = all(type(getattr(parent, child)) in (kind, Skip) for child in siblings)
    return f"{path}.{stem}*".lstrip(".") if len(siblings) > 1 and same else None


def fix(model: nn.Module, name: str, why: str) -> None:
    """Record in the model that the depth of a stage cannot change."""
    model.get_submodule(container_prefix(name)).__dict__.setdefault(FIXED_KEY, {})[name] = why


def why_fixed(model: nn.Module, name: str) -> str | None:
    """Return why the depth of a stage cannot change; None if it can."""
    reason: str | None = vars(model.get_submodule(container_prefix(name))).get(FIXED_KEY, {}).get(name)
    return reason


def is_remembered(model: nn.Module, place: str) -> bool:
    """Whether a stage, or the list that contains it, was recorded before the model was cut."""
    names = get_record(model).stages
    return place in names or place in {container_prefix(name) for name in names if not name.endswith("*")}
