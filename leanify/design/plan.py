"""A plan: what `redesign` found, and its designs built and written."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leanify.architecture import Architecture
from leanify.design.options import Options
from leanify.design.prices.price_list import PriceList
from leanify.design.search.design import Design
from leanify.design.search.ranking import Ranking, Recommendation
from leanify.design.search.request import Request
from leanify.errors import DirectoryError, LeanifyError, ShapeError
from leanify.tabular import Tabular
from leanify.units import binary, gigas, millions, percent
from leanify.units import damage as damage_words

if TYPE_CHECKING:
    from torch import nn

    from leanify.design.measure.limits import Timing
    from leanify.design.prices.cache import Source
    from leanify.sources.source import ModelSource

Carry = Callable[[Callable[[], "nn.Module"], Architecture], "nn.Module"]


@dataclass(frozen=True, repr=False)
class Plan(Tabular):
    """What `redesign` found, best candidate first. It shows itself as a table, in a notebook as well.

    >>> import leanify
    >>> plan = leanify.redesign("vit_tiny", target_params=0.6)
    >>> plan.chosen.params <= 0.6 * plan.baseline.params
    True
    >>> plan.to_frame()["design"].tolist()[:3]
    ['baseline', 'lean', 'control']

    given      the source as it was given; ``source`` is its name
    control    None if the stages have no MLP to widen, or if lean has the baseline's heads
    plain      the best design without more heads, None if there is none; ``plain_name`` says what it has less of
    recommended  which of lean and plain the evidence recommends, and how strongly
    towers     the parts that change independently of each other, by name
    inputs     the input that MACs are counted on, in words
    ranked_by  the rule that ranked the designs, in words
    """

    source: str
    options: Options
    baseline: Design
    chosen: Design
    control: Design | None
    plain: Design | None
    plain_name: str | None
    candidates: list[Design]
    warnings: list[str]
    searched: int
    seconds: float
    tokens: int
    inputs: str
    towers: list[str]
    recommended: Recommendation
    ranked_by: str
    budget: str
    given: Source = field(repr=False, compare=False)
    prices: PriceList = field(repr=False, compare=False)
    request: Request = field(repr=False)
    ranking: Ranking | None = field(default=None, repr=False, compare=False)
    timing: Timing | None = None
    directory: str | None = None
    with_control: bool = False

    @cached_property
    def found(self) -> ModelSource:
        """The resolved source; this imports torch."""
        from leanify.sources import find

        return find.find(self.given, overrides=self.options.overrides, cls=self.options.cls)

    @property
    def name(self) -> str:
        """What the source is called: upstream's name, or that of the user's directory."""
        here = Path(self.source).expanduser()
        named = here.parent.resolve().name if here.is_file() else here.resolve().name
        if here.exists():
            return named
        is_typed = "/" in self.source or ":" in self.source  # a user's module: facts have its whole path
        return self.source if is_typed else self.prices.facts.name

    def to_json(self) -> dict[str, Any]:
        """The object that ``redesign --json`` prints."""
        return {
            "source": self.source,
            "options": self.options.changed,
            "baseline": self.baseline.to_json(),
            "chosen": self.chosen.to_json(),
            "control": self.control and self.control.to_json(),
            "plain": self.plain and {"name": self.plain_name, **self.plain.to_json()},
            "recommended": self.recommended.to_json(),
            "candidates": [design.to_json() for design in self.candidates],
            "warnings": self.warnings,
            "directory": self.directory,
            "searched": self.searched,
            "seconds": self.seconds,
            "tokens": self.tokens,
            "inputs": self.inputs,
            "towers": self.towers,
            "ranked_by": self.ranked_by,
            "timing": self.timing and self.timing.to_json(),
        }

    def designs(self) -> list[tuple[str, Design]]:
        """Every design with its name, each shape once: one that has two names has both (``control, plain``)."""
        named = [("baseline", self.baseline), ("lean", self.chosen), ("control", self.control), ("plain", self.plain)]
        named += [("also", design) for design in self.candidates[1:]]
        found: dict[str, tuple[str, Design]] = {}
        for name, design in named:
            if design is None:
                continue
            shape = str(design.architecture)
            if shape not in found:
                found[shape] = name, design
            elif name != "also":
                found[shape] = f"{found[shape][0]}, {name}", design
        return list(found.values())

    def headline(self) -> str:
        share = self.chosen.params / self.baseline.params
        return f"{self.name} · {self.budget} · lean keeps {percent(share)} of the parameters"

    def rows(self) -> list[dict[str, Any]]:
        found = []
        for name, design in self.designs():
            sizes = design.to_json()
            del sizes["architecture"]
            found.append({"design": name, **sizes})
        return found

    def cells(self) -> list[dict[str, str]]:
        found = []
        for name, design in self.designs():
            row = {"design": name}
            for key in ("depth", "heads", "head_dim", "mlp"):
                size = design.sizes[key]
                row[key] = str(size) if isinstance(size, int) else ", ".join(map(str, size))
            found.append({**row, "params": millions(design.params), "GMACs": gigas(design.macs)})
        return found

    def build(
        self,
        weights: str | Path | None = None,
        seed: int = 0,
        pretrained: bool = False,
        design: Design | None = None,
        carry: Carry | None = None,
    ) -> nn.Module:
        """The module of a design (the chosen one): initialised by upstream, or with the weights of a SOURCE
        carried over by ``carry``, which makes a model of another shape from one with weights, loaded when it
        asks. A module that was given keeps its class, its forward, and of its weights what fits.
        """
        import torch

        from leanify.lens import surgery
        from leanify.sources import find
        from leanify.sources import weights as weights_of

        shape = (design or self.chosen).architecture
        torch.manual_seed(seed)
        live = self.given
        if isinstance(live, torch.nn.Module) and weights is None:
            return carry(lambda: live, shape) if carry else surgery.write(live, shape)
        if weights is None and not pretrained:
            return weights_of.fresh(replace(self.found, architecture=shape))

        def original() -> nn.Module:
            return find.with_weights(self.found, weights, pretrained)

        if carry is None:
            return surgery.write(original(), shape)
        return carry(lambda: weights_of.with_all_layers(original, weights or self.source), shape)

    def made(self, role: str, design: Design, weights: str = "", carry: Carry | None = None) -> dict[str, Any]:
        """How a design was made, for its card: the source, the budget, both shapes, and the damage of carrying."""
        found = getattr(carry, "results", {}).get(role)
        before, after = ({**one.sizes, "params": one.params, "macs": one.macs} for one in (self.baseline, design))
        return {
            "source": self.source,
            "role": role,
            "budget": self.budget,
            "original": before,
            "this": after,
            "weights": weights,
            "damage": None if found is None else f"{found.unit} {damage_words(found.damage)}",
        }

    def picked(self, name: str) -> Design:
        """The design of this name: lean, plain, control, or N for the Nth candidate. Raises ShapeError."""
        if name.isdigit() and 1 <= int(name) <= len(self.candidates):
            return self.candidates[int(name) - 1]
        named = {"lean": self.chosen, "plain": self.plain, "control": self.control}
        known = {known_name: design for known_name, design in named.items() if design is not None}
        if name not in known:
            raise ShapeError(f"--choose {name!r} is none of {', '.join(known)} and 1 to {len(self.candidates)}")
        return known[name]

    def _streamed(
        self, design: Design, weights: str | Path | None, seed: int, directory: str | Path, force: bool
    ) -> bool:
        """Whether the weights lie in shards; they are then carried over tensor by tensor."""
        import torch

        from leanify.sources import find, streaming

        if weights is None:
            return False
        found = replace(self.found, weights=find.find(weights).weights)
        shards = streaming.shards_of(found)
        if shards is None:
            return False
        size = sum(file.stat().st_size for file in set(shards.values()))
        room_on_disk(size * design.params // self.baseline.params, Path(directory))
        torch.manual_seed(seed)
        streaming.save(found, shards, design.architecture, Path(directory), force)
        return True

    def save(
        self,
        directory: str | Path,
        weights: str | Path | None = None,
        seed: int = 0,
        pretrained: bool = False,
        control: bool = False,
        force: bool = False,
        carry: Carry | None = None,
        model_type: str | None = None,
        choose: str = "lean",
    ) -> Plan:
        """Build a model and write it as a lean directory; the plan that knows where it lies.

        ``choose`` names the design (`picked`). With ``control`` lean and control are written side by side, as
        ``lean`` and ``control`` in the directory. With ``force`` what leanify wrote there before is replaced.
        ``model_type`` writes another type of transformers with the same shape. Raises LeanifyError if there
        is no such design.
        """
        from leanify.runs.new_directory import check_new_directory, new_directory
        from leanify.sources import lean_directory

        check_new_directory(directory, force)
        design = self.picked(choose)
        if control and choose != "lean":
            raise LeanifyError(f"--control writes lean and its control, and --choose {choose} another design")
        is_copy = not control and carry is None and model_type is None
        if is_copy and self._streamed(design, weights, seed, directory, force):
            return replace(self, directory=str(directory))

        def write(name: str, one: Design, folder: str | Path, force: bool, title: str) -> None:
            built = self.build(weights, seed, pretrained, one, carry)
            made = self.made(name, one, str(weights or pretrained or ""), carry)
            lean_directory.save(built, folder, force, model_type, title, made=made)

        if not control:
            room_for(4 * design.params, Path(directory))
            write(choose, design, directory, force, lean_directory.TITLE)
            return replace(self, directory=str(directory))
        if self.control is None:
            raise LeanifyError(f"there is no control to write beside lean ({'; '.join(self.warnings)})")
        room_for(4 * (self.chosen.params + self.control.params), Path(directory))
        with new_directory(directory, force) as folder:
            write("lean", self.chosen, folder / "lean", False, lean_directory.TITLE)
            write("control", self.control, folder / "control", False, "The control of a lean model")
        return replace(self, directory=str(directory), with_control=True)


def room_for(size: int, directory: Path) -> None:
    """Raise unless ``size`` bytes of weights fit on the disk and into memory."""
    from leanify import machine

    room_on_disk(size, directory)
    memory = machine.memory("MemAvailable")
    if memory is not None and size > memory:
        raise LeanifyError(
            f"building this model takes {binary(size)} of memory, {binary(memory)} are available; "
            "without -o the redesign is planned in no memory at all"
        )


def room_on_disk(size: int, directory: Path) -> None:
    """Raise unless the disk has room."""
    parent = next(folder for folder in directory.absolute().parents if folder.exists())
    free = shutil.disk_usage(parent).free
    if size > free:
        raise DirectoryError(f"the weights take {binary(size)}; {directory} has {binary(free)} free")
