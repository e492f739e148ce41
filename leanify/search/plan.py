"""A plan: the result of `redesign`, with methods to build and save its designs."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leanify.core.architecture import primary_layer
from leanify.core.errors import DirectoryError, LeanifyError, ShapeError
from leanify.core.tabular import Tabular
from leanify.core.units import format_bytes, format_count, format_gigas, format_share, format_sizes
from leanify.profiling.price_list import PriceList
from leanify.search.design import Design
from leanify.search.options import Options
from leanify.search.ranking import Ranking
from leanify.search.request import Request
from leanify.search.towers import towers

if TYPE_CHECKING:
    from torch import nn

    from leanify.profiling.cost_model import Source
    from leanify.search.measured_limits import Timing
    from leanify.sources.source import ModelSource


@dataclass(frozen=True, repr=False)
class Plan(Tabular):
    """The result of `redesign`, best candidate first. It is displayed as a table, also in notebooks.

    >>> import leanify
    >>> plan = leanify.redesign("vit_tiny", target_params=0.6)
    >>> plan.chosen.params <= 0.6 * plan.baseline.params
    True
    >>> plan.chosen == plan.lean
    True
    >>> plan.to_frame()["design"].tolist()[:3]
    ['baseline', 'lean', 'control']

    given      the source as passed by the user; ``source`` is its name
    chosen     the design that is listed first, named ``first``, for the ``reason`` given; `save` writes it
    lean       fewer layers and more heads, within the published bounds; None if no such design fits
    needs      what lean would need if there is none
    control    None if the stages have no MLP to widen, or if lean has the baseline's heads
    narrow     the baseline's depth with a smaller residual width; None if the model has no other width
    balanced   fewer layers and a smaller width, as published families divide a budget; None if no such design fits
    plain      the best design without more heads, or None; ``plain_name`` names its difference to the baseline
    follows    description of the published row or rule that lean follows
    warnings   published bounds that the plan crosses because of the user's options
    remarks    costs of lean compared with control and plain, and other notes
    towers     parts that change independently of each other, by name
    inputs     description of the input for which MACs are counted
    """

    source: str
    options: Options
    baseline: Design
    first: str
    reason: str
    chosen: Design
    lean: Design | None
    control: Design | None
    narrow: Design | None
    balanced: Design | None
    plain: Design | None
    plain_name: str | None
    candidates: list[Design]
    warnings: list[str]
    remarks: list[str]
    searched: int
    seconds: float
    tokens: int
    inputs: str
    towers: list[str]
    follows: str
    needs: str | None
    budget: str
    source_value: Source = field(repr=False, compare=False)
    prices: PriceList = field(repr=False, compare=False)
    request: Request = field(repr=False)
    ranking: Ranking | None = field(default=None, repr=False, compare=False)
    timing: Timing | None = None
    directory: str | None = None
    written: str | None = None
    with_control: bool = False

    @cached_property
    def model_source(self) -> ModelSource:
        """The resolved source; resolving it imports torch."""
        from leanify.sources import find

        return find.find(self.source_value, overrides=self.options.overrides)

    @property
    def name(self) -> str:
        """The display name of the source: upstream's name, or the user's directory."""
        source_path = Path(self.source).expanduser()
        folder_name = source_path.parent.resolve().name if source_path.is_file() else source_path.resolve().name
        if source_path.exists():
            return folder_name
        is_typed = "/" in self.source or ":" in self.source  # a user's module: the facts contain its full path
        return self.source if is_typed else self.prices.facts.name

    def to_json(self) -> dict[str, Any]:
        """Return the object that ``redesign --json`` prints."""
        return {
            "source": self.source,
            "options": self.options.changed_options,
            "baseline": self.baseline.to_json(),
            "first": self.first,
            "chosen": self.chosen.to_json(),
            "lean": self.lean and self.lean.to_json(),
            "control": self.control and self.control.to_json(),
            "narrow": self.narrow and self.narrow.to_json(),
            "balanced": self.balanced and self.balanced.to_json(),
            "plain": self.plain and {"name": self.plain_name, **self.plain.to_json()},
            "follows": self.follows if self.lean else None,
            "needs": self.needs,
            "recommended": None,  # filled in by a study of this model
            "candidates": [design.to_json() for design in self.candidates],
            "warnings": self.warnings,
            "remarks": self.remarks,
            "directory": self.directory,
            "searched": self.searched,
            "seconds": self.seconds,
            "tokens": self.tokens,
            "inputs": self.inputs,
            "towers": self.towers,
            "timing": self.timing and self.timing.to_json(self.chosen),
        }

    @property
    def named_designs(self) -> dict[str, Design | None]:
        """The named designs except the baseline; None if a design does not exist."""
        return {name: getattr(self, name) for name in ("lean", "control", "balanced", "narrow", "plain")}

    def designs(self) -> list[tuple[str, Design]]:
        """Return every design with its names; a shape with two names appears once, with both (``control, plain``)."""
        roles: list[tuple[str, Design | None]] = [("baseline", self.baseline), (self.first, self.chosen)]
        roles += [(name, design) for name, design in self.named_designs.items() if name != self.first]
        roles += [("also", design) for design in self.candidates[1:]]
        # one entry per shape, with all of its names
        designs_by_shape: dict[str, tuple[str, Design]] = {}
        for name, design in roles:
            if design is None:
                continue
            shape = str(design.architecture)
            if shape not in designs_by_shape:
                designs_by_shape[shape] = name, design
            elif name != "also":
                designs_by_shape[shape] = f"{designs_by_shape[shape][0]}, {name}", design
        return list(designs_by_shape.values())

    def headline(self) -> str:
        share = self.chosen.params / self.baseline.params
        return f"{self.name} · {self.budget} · {self.first} keeps {format_share(share)} of the parameters"

    def rows(self) -> list[dict[str, Any]]:
        row_list = []
        for name, design in self.designs():
            sizes = design.to_json()
            del sizes["architecture"]
            row_list.append({"design": name, **sizes})
        return row_list

    def cells(self) -> list[dict[str, str]]:
        changed_towers = towers(self.prices.architecture, self.prices.stage_indices)
        cell_list = []
        for design_name, design in self.designs():
            row = {"design": design_name}
            for key in ("depth", "width", "heads", "head_dim", "mlp"):
                parts = {}
                for tower in changed_towers:
                    stage = design.architecture.stages[tower.lead]
                    parts[tower.name] = stage.depth if key == "depth" else getattr(primary_layer(stage), key)
                row[key] = format_sizes(design.sizes[key], ", ")
                if len(set(parts.values())) > 1:  # encoder 6, decoder 4
                    row[key] = ", ".join(f"{name} {size}" for name, size in parts.items())
            cell_list.append({**row, "params": format_count(design.params), "GMACs": format_gigas(design.macs)})
        return cell_list

    def build(
        self, weights: str | Path | None = None, seed: int = 0, pretrained: bool = False, design: Design | None = None
    ) -> nn.Module:
        """Build a design (the chosen one by default), initialised by upstream or with weights from a SOURCE.

        A module passed by the user keeps its class, its forward, and the weights that fit.
        """
        import torch

        from leanify.reshaping import surgery
        from leanify.sources import find
        from leanify.sources import weights as weights_of

        # the user's own module, or a fresh model of upstream's
        shape = (design or self.chosen).architecture
        torch.manual_seed(seed)
        live = self.source_value
        if isinstance(live, torch.nn.Module) and weights is None:
            return surgery.write(live, shape)
        if weights is None and not pretrained:
            return weights_of.build_fresh(replace(self.model_source, architecture=shape))
        # trained weights: those that fit
        return surgery.write(find.load_with_weights(self.model_source, weights, pretrained), shape)

    def pick_design(self, name: str | None = None) -> Design:
        """Return the design named lean, plain, narrow, balanced or control, N for the Nth candidate, or by default the
        one that is listed first. Raises ShapeError; also without a name if lean is missing.
        """
        available = {known_name: design for known_name, design in self.named_designs.items() if design is not None}
        if name is None and self.lean is None:
            raise ShapeError(f"there is no lean ({self.needs}): name a design, --choose {' or '.join(available)}")
        if name is None:
            return self.chosen
        if name.isdigit() and 1 <= int(name) <= len(self.candidates):
            return self.candidates[int(name) - 1]
        if name not in available:
            raise ShapeError(f"--choose {name!r} is not one of {', '.join(available)} and 1 to {len(self.candidates)}")
        return available[name]

    def save(
        self,
        directory: str | Path,
        weights: str | Path | None = None,
        seed: int = 0,
        pretrained: bool = False,
        control: bool = False,
        force: bool = False,
        choose: str | None = None,
    ) -> Plan:
        """Build a model, write it as a lean directory, and return the plan with the directory's path.

        ``choose`` names the design (`pick_design`), by default the first one. With ``control``, lean and control are
        written to the subdirectories ``lean`` and ``control``. With ``force``, earlier output of leanify in the
        directory is replaced.
        Raises LeanifyError if the design does not exist.
        """
        from leanify.core.files.writing import check_new_directory, new_directory
        from leanify.sources import lean_directory
        from leanify.upstream.build import check_memory

        check_new_directory(directory, force)
        design = self.pick_design("lean" if control else choose)
        if control and choose not in (None, "lean"):
            raise LeanifyError(f"--control writes lean and its control, and --choose {choose} another design")

        origin, is_fresh = "New weights: it has not been trained.", isinstance(self.source_value, str | Path)
        if pretrained or weights is not None:
            origin, is_fresh = "Weights of the original in new shapes; it has not been trained since.", False

        def write(one: Design, folder: str | Path, force: bool, title: str) -> None:
            check_memory(self.source, 4 * one.params)  # building checks the original's size, and pins may ask for more
            built = self.build(weights, seed, pretrained, one)
            params = f"{format_count(one.params)} of {format_count(self.baseline.params)} parameters"
            macs = f"{format_gigas(one.macs)} of {format_gigas(self.baseline.macs)} GMACs"
            note = f"{params}, {macs}; {self.budget}. {origin}"
            lean_directory.save(built, folder, force, title, note=note, is_initialised=is_fresh)

        # one design, or lean and control side by side in a folder that appears whole
        if not control:
            check_disk_space(4 * design.params, Path(directory))
            name = choose or self.first
            write(design, directory, force, lean_directory.TITLE)
            return replace(self, directory=str(directory), written=name)
        if self.control is None:
            raise LeanifyError(f"lean has no control to write ({'; '.join(self.warnings)})")
        check_disk_space(4 * (design.params + self.control.params), Path(directory))
        with new_directory(directory, force) as folder:
            write(design, folder / "lean", False, lean_directory.TITLE)
            write(self.control, folder / "control", False, "The control of a lean model")
        return replace(self, directory=str(directory), written="lean", with_control=True)


def check_disk_space(size: int, directory: Path) -> None:
    """Raise DirectoryError unless ``size`` bytes of weights fit on the disk."""
    parent = next(folder for folder in directory.absolute().parents if folder.exists())
    free = shutil.disk_usage(parent).free
    if size > free:
        raise DirectoryError(f"the weights take {format_bytes(size)}; {directory} has {format_bytes(free)} free")
