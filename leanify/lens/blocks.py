"""Where blocks stand: a list (ModuleList, Sequential), a part of one, or numbered attributes of a module.

A stage is named by its place:

    blocks             all entries of the list at this path
    net[1:-2]          the entries of a list without the first one and the last two (an embedding, a head)
    encoder.block*     the attributes block1, block2, … of the module at ``encoder``
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from torch import nn

from leanify.errors import ShapeError

_PART = re.compile(r"(?P<path>.*)\[(?P<before>\d+):-(?P<after>\d+)\]")
_NUMBERED = re.compile(r"(?:(?P<path>.*)\.)?(?P<stem>[A-Za-z_]\w*)\*")
_FIXED = "_leanify_fixed"
_STAGES = "_leanify_stages"


class Skip(nn.Module):
    """Stands for a numbered block that was taken out: returns its first argument."""

    def forward(self, x: Any, *_: Any, **__: Any) -> Any:
        return x


class Run:
    """Blocks that are not all entries of a list, with what a list of blocks offers."""

    def __init__(self, parent: nn.Module) -> None:
        self.parent = parent

    def named_children(self) -> Iterator[tuple[str, nn.Module]]:
        raise NotImplementedError

    def children(self) -> Iterator[nn.Module]:
        return (child for _, child in self.named_children())

    def __len__(self) -> int:
        return len(list(self.named_children()))


class Part(Run):
    """The entries of a list between its first and its last ones."""

    def __init__(self, parent: nn.Module, before: int, after: int) -> None:
        super().__init__(parent)
        self.before, self.after = before, after

    def named_children(self) -> Iterator[tuple[str, nn.Module]]:
        every = list(self.parent._modules.items())
        return ((name, child) for name, child in every[self.before : len(every) - self.after] if child is not None)

    def __delitem__(self, which: slice) -> None:
        blocks = list(self.children())
        del blocks[which]
        self._put(blocks)

    def append(self, block: nn.Module) -> None:
        self._put([*self.children(), block])

    def _put(self, blocks: list[nn.Module]) -> None:
        every: list[Any] = list(self.parent._modules.values())
        names = list(self.parent._modules)
        end = len(names) - self.after
        new = [*every[: self.before], *blocks, *every[end:]]
        if all(name.isdigit() for name in names):
            names = [str(i) for i in range(len(new))]
        else:
            kept = names[: min(self.before + len(blocks), end)]
            stem = kept[-1].rstrip("0123456789")
            added = [f"{stem}{i}" for i in range(len(kept), self.before + len(blocks))]
            names = [*kept, *added, *names[end:]]
        self.parent._modules.clear()
        self.parent._modules.update(dict(zip(names, new, strict=True)))


class Numbered(Run):
    """Attributes of one name with numbers; the forward calls each by its name."""

    def __init__(self, parent: nn.Module, stem: str) -> None:
        super().__init__(parent)
        self.stem = stem

    def named_children(self) -> Iterator[tuple[str, nn.Module]]:
        named = re.compile(rf"{re.escape(self.stem)}\d+")
        every = self.parent.named_children()
        return ((name, child) for name, child in every if named.fullmatch(name) and not isinstance(child, Skip))

    def __delitem__(self, which: slice) -> None:
        for name, _ in list(self.named_children())[which]:
            setattr(self.parent, name, Skip())

    def append(self, block: nn.Module) -> None:
        raise ShapeError(
            f"the blocks {self.stem}… of {type(self.parent).__name__} are called one by one in its forward, so there "
            f"cannot be more of them; at most the {len(self)} that there are"
        )


def container_of(model: nn.Module, name: str) -> Any:
    """The list of blocks at a stage's place: a module, or a `Run`."""
    around = model.get_submodule(prefix_of(name))
    part, numbered = _PART.fullmatch(name), _NUMBERED.fullmatch(name)
    if part:
        return Part(around, int(part["before"]), int(part["after"]))
    if numbered:
        return Numbered(around, numbered["stem"])
    if isinstance(around, nn.Sequential) and not all(key.isdigit() for key in around._modules):
        return Part(around, 0, 0)  # whose own deletion would give numbers for names
    return around


def prefix_of(name: str) -> str:
    """The path of the module whose children the blocks of a stage are."""
    found = _PART.fullmatch(name) or _NUMBERED.fullmatch(name)
    return name if found is None else found["path"] or ""


def paths_of(model: nn.Module, name: str) -> list[str]:
    """The paths of a stage's blocks."""
    return [f"{prefix_of(name)}.{child}".lstrip(".") for child, _ in container_of(model, name).named_children()]


def numbered_place(parent: nn.Module, path: str, name: str) -> str | None:
    """The place of the numbered attributes that ``name`` is one of; None if it has no equals."""
    stem = name.rstrip("0123456789")
    if stem in ("", name):
        return None
    kind = type(getattr(parent, name))
    alike = [child for child, module in parent.named_children() if child.rstrip("0123456789") == stem]
    same = all(type(getattr(parent, child)) in (kind, Skip) for child in alike)
    return f"{path}.{stem}*".lstrip(".") if len(alike) > 1 and same else None


def fix(model: nn.Module, name: str, why: str) -> None:
    """Remember with the model that the depth of a stage cannot change."""
    model.get_submodule(prefix_of(name)).__dict__.setdefault(_FIXED, {})[name] = why


def why_fixed(model: nn.Module, name: str) -> str | None:
    """Why the depth of a stage cannot change; None if it can."""
    found: str | None = vars(model.get_submodule(prefix_of(name))).get(_FIXED, {}).get(name)
    return found


def remember(model: nn.Module, names: list[str]) -> None:
    """Keep the names of the stages with the model: one that is cut to a single block looks like none."""
    model.__dict__[_STAGES] = tuple(names)


def is_remembered(model: nn.Module, place: str) -> bool:
    """Whether a stage, or the list that it lies in, was one before the model was cut."""
    names: tuple[str, ...] = vars(model).get(_STAGES, ())
    return place in names or place in {prefix_of(name) for name in names if not name.endswith("*")}
