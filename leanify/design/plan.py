"""`redesign`: a source and a budget in, a plan out; and the plan built.

find → price → search → choose → (build → save)
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from leanify import machine
from leanify.architecture import Architecture
from leanify.design import profiling, search
from leanify.design.prices import PriceList, StageDesign
from leanify.design.search import Candidate, HeadsMode, Pin, Request
from leanify.errors import BudgetError, DirectoryError, LeanifyError, ShapeError, SourceError
from leanify.lens import surgery
from leanify.sources import find, lean_directory
from leanify.sources.find import ModelSource
from leanify.units import millions
from leanify.upstream.build import build_model
from leanify.upstream.inputs import example_inputs
from leanify.upstream.origin import is_hf, set_origin

Budget = float | int | str | None


@dataclass(frozen=True)
class Design:
    """One shape with its costs. The numbers are integers, or a list with one for every stage where stages differ."""

    depth: int | list[int]
    heads: int | list[int]
    head_dim: int | list[int]
    inner: int | list[int]
    mlp: int | list[int]
    params: int
    params_body: int
    macs: int
    kappa_predicted: float
    architecture: Architecture

    def to_json(self) -> dict[str, Any]:
        """JSON has no infinity: an infinite κ is written as the string ``inf``."""
        plain = {name: value for name, value in vars(self).items() if name != "architecture"}
        kappa = "inf" if self.kappa_predicted == float("inf") else self.kappa_predicted
        return {**plain, "kappa_predicted": kappa, "architecture": self.architecture.to_json()}


@dataclass(frozen=True)
class Plan:
    """What `redesign` found, best candidate first. ``control`` is None where the stages have no MLP to widen."""

    source: str
    baseline: Design
    chosen: Design
    control: Design | None
    candidates: list[Design]
    warnings: list[str]
    searched: int
    seconds: float
    tokens: int
    budget: str
    found: ModelSource = field(repr=False)
    directory: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The object that ``redesign --json`` prints."""
        return {
            "source": self.source,
            "baseline": self.baseline.to_json(),
            "chosen": self.chosen.to_json(),
            "control": self.control and self.control.to_json(),
            "candidates": [design.to_json() for design in self.candidates],
            "warnings": self.warnings,
            "directory": self.directory,
            "searched": self.searched,
            "seconds": self.seconds,
            "tokens": self.tokens,
        }

    def build(self, weights: str | Path | None = None, seed: int = 0, pretrained: bool = False) -> nn.Module:
        """The chosen model: drawn anew by upstream's initialiser, or with the weights of a SOURCE carried over."""
        torch.manual_seed(seed)
        if weights is not None or pretrained:
            donor = _with_weights_of(self.found, weights if weights is not None else str(self.found.origin), pretrained)
            return surgery.write(donor, self.chosen.architecture, "keep")
        return build_fresh(self.found, self.chosen.architecture)

    def save(
        self, directory: str | Path, weights: str | Path | None = None, seed: int = 0, pretrained: bool = False
    ) -> Plan:
        """Build the chosen model and write it as a lean directory; the plan that knows where it lies."""
        lean_directory.check_new_directory(directory)
        room_for(4 * self.chosen.params, Path(directory))
        lean_directory.save(self.build(weights, seed, pretrained), directory)
        return replace(self, directory=str(directory))


def redesign(
    source: str | Path,
    *,
    target_params: Budget = None,
    count: Literal["all", "body"] = "all",
    max_macs: Budget = None,
    max_latency: Budget = None,
    max_memory: Budget = None,
    depth: Pin = None,
    heads: Pin = None,
    head_dim: Pin = None,
    mlp: Pin = None,
    heads_mode: HeadsMode = "grow",
    top: int = 3,
    tokens: int | None = None,
    overrides: Mapping[str, Any] | None = None,
    cls: str | None = None,
) -> Plan:
    """Trade layers for heads: the plan that ``leanify redesign`` prints. Nothing is built but on ``meta``.

    A budget is a share of the baseline (``0.5``), a count (``43_000_000``, ``"43M"``), or for latency and memory an
    amount (``"12ms"``, ``"8GB"``); latency is measured here at batch 1, memory predicted for a training step of batch
    1. Pins fix a value, or one a stage. Raises SourceError, UnsupportedModel, ShapeError, BudgetError.
    """
    found = find.find(source, overrides=overrides, cls=cls)
    model = find.build_on_meta(found)
    request = Request(count=count, heads_mode=heads_mode, depth=depth, heads=heads, head_dim=head_dim, mlp=mlp)
    turned = search.turned_stages(surgery.read(model), request)
    if not turned:
        raise ShapeError(
            f"{source} keeps its attentions in no list of blocks, so there is no depth to trade; leanify.grow and "
            "leanify.write change its heads"
        )
    prices = PriceList(model, tokens, turned)
    baseline = search.baseline(prices)
    spent = baseline.cost.params if count == "all" else baseline.cost.params_body
    request = replace(
        request,
        max_params=_limit("--target-params", target_params, spent, COUNTS),
        max_macs=_limit("--max-macs", max_macs, baseline.cost.macs, COUNTS),
    )
    pins = (depth, heads, head_dim, mlp)
    measured = _measured_limits(model, tokens, max_latency, max_memory)
    if not request.limited and not measured and all(pin is None for pin in pins):
        raise BudgetError("nothing is asked for: give a budget (--target-params 0.5) or a shape (--depth 7 --heads 16)")
    began = time.perf_counter()
    outcome = _search(prices, request, measured, max(top, 1))
    seconds = time.perf_counter() - began
    control = search.control(prices, outcome.chosen)
    design = _designer(prices)
    return Plan(
        source=str(source),
        baseline=design(baseline),
        chosen=design(outcome.chosen),
        control=None if control is None else design(control),
        candidates=[design(candidate) for candidate in outcome.front],
        warnings=list(_warnings(prices, baseline, outcome.chosen, control)),
        searched=outcome.searched,
        seconds=seconds,
        tokens=prices.tokens[search.lead_of(prices.architecture, prices.turned)],
        budget=_budget_words(request, spent),
        found=found,
    )


def _designer(prices: PriceList) -> Callable[[Candidate], Design]:
    def design(candidate: Candidate) -> Design:
        architecture = candidate.applied_to(prices.architecture)
        stages = [(stage.depth, stage.main) for stage in architecture.stages]
        rows = [(d, m.heads, m.head_dim, m.inner, m.mlp) for d, m in stages if m is not None]
        depth, heads, head_dim, inner, mlp = (
            column[0] if len(set(column)) == 1 else list(column) for column in zip(*rows, strict=True)
        )
        c = candidate.cost
        costs = (c.params, c.params_body, c.macs, candidate.kappa)
        return Design(depth, heads, head_dim, inner, mlp, *costs, architecture)

    return design


# -- budgets ------------------------------------------------------------------------------------------------------

COUNTS = {"k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "t": 1e12}
TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
BYTES = {"kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12, "kib": 2**10, "mib": 2**20, "gib": 2**30}


def parse_budget(name: str, value: float | int | str, baseline: float, units: Mapping[str, float]) -> float:
    """A budget in absolute terms: a share of ``baseline`` (at most 1, or with %), or an amount with its unit.

    A whole number of a thousand or more needs no unit where a count is asked for. Raises BudgetError.
    """
    text = str(value).strip().lower().replace("_", "").replace(",", "")
    unit = next((unit for unit in sorted([*units, "%"], key=len, reverse=True) if text.endswith(unit)), "")
    try:
        number = float(text.removesuffix(unit))
    except ValueError:
        raise BudgetError(f"{name} {value!r} is no budget; {_forms(units)}") from None
    if not number > 0 or number == float("inf"):
        raise BudgetError(f"{name} {value} is no budget: it must be above zero; {_forms(units)}")
    share = number / 100 if unit == "%" else number
    if unit in ("%", "") and share <= 1:
        return share * baseline
    if unit == "%" or (not unit and (units is not COUNTS or number < 1000 or number != int(number))):
        raise BudgetError(f"{name} {value} is above 1 and has no unit; {_forms(units)}")
    return number * units.get(unit, 1.0)


def _forms(units: Mapping[str, float]) -> str:
    example = {"k": "43M or 43000000", "us": "12ms", "kb": "8GB"}[next(iter(units))]
    return f"say a share of the baseline (0.5 or 50%) or an amount ({example})"


def _limit(name: str, value: Budget, baseline: int, units: Mapping[str, float]) -> int | None:
    return None if value is None else int(parse_budget(name, value, baseline, units))


@dataclass(frozen=True)
class Measured:
    """A limit on what only a built or traced model shows; ``measure`` gives it for a model on ``meta``."""

    name: str
    limit: float
    unit: str
    measure: Callable[[nn.Module], float]


def _measured_limits(model: nn.Module, tokens: int | None, latency: Budget, memory: Budget) -> list[Measured]:
    def seconds(design: nn.Module) -> float:
        real = profiling.fresh(design, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
        inputs = example_inputs(real, 1, tokens, next(real.parameters()).device)
        return profiling.seconds(real, inputs, 5)

    def training_bytes(design: nn.Module) -> float:
        return profiling.predicted_training_bytes(design, 1, tokens, torch.cuda.is_available())

    wanted = (("--max-latency", latency, TIMES, "s", seconds), ("--max-memory", memory, BYTES, "bytes", training_bytes))
    return [
        Measured(name, parse_budget(name, value, measure(model), units), unit, measure)
        for name, value, units, unit, measure in wanted
        if value is not None
    ]


def _search(prices: PriceList, request: Request, measured: list[Measured], most: int) -> search.SearchResult:
    """Search; while the chosen design measures above a limit, ask for one with so many MACs fewer."""
    if not measured:
        return search.search(prices, request, most)
    request = replace(request, max_macs=request.max_macs or search.baseline(prices).cost.macs)
    over = float("inf")
    for _ in range(12):
        try:
            outcome = search.search(prices, request, most)
        except BudgetError:
            break
        model = surgery.write(prices.model, outcome.chosen.applied_to(prices.architecture))
        over = max(limit.measure(model) / limit.limit for limit in measured)
        if over <= 1:
            return outcome
        request = replace(request, max_macs=int(outcome.chosen.cost.macs * min(0.98, 0.5 + 0.5 / over)))
    asked = " and ".join(f"{limit.name} {limit.limit:.4g} {limit.unit}" for limit in measured)
    raise BudgetError(f"no design was found within {asked}; the last one tried was {over:.2f} times over; loosen it")


# -- words --------------------------------------------------------------------------------------------------------


def _budget_words(request: Request, spent: int) -> str:
    if request.max_params is None:
        return "no budget on parameters"
    what = "" if request.count == "all" else " in the blocks"
    share = request.max_params / spent
    return f"budget {millions(request.max_params)}{what}, {share:.0%} of {millions(spent)}"


def _warnings(prices: PriceList, old: Candidate, new: Candidate, control: Candidate | None) -> Iterator[str]:
    """What a published floor says about the chosen design, in words."""
    yield from _depth_words(prices.architecture, new.applied_to(prices.architecture))
    if new != old and control is not None and control.designs == new.designs:
        yield "no heads were added: depth and MLP alone meet what was asked, so lean is its own control"
    for i in prices.turned:
        before, design = old.designs[i], new.designs[i]
        assert before is not None
        assert design is not None
        name = f"stage {prices.architecture.stages[i].name}: " if len(prices.turned) > 1 else ""
        if len({(m.heads, m.head_dim, m.mlp) for m in prices.architecture.stages[i].mains}) > 1:
            yield f"{name}layers differ; the first is shown, and the others change in proportion to it"
        yield from (name + words for words in _split_words(before, design))
        yield from (name + words for words in _kappa_words(prices.tokens[i], before, design))
    if control is None:
        yield "no control: these stages have no MLP to widen"
    elif abs(control.cost.params / new.cost.params - 1) > 0.001:
        off = control.cost.params / new.cost.params - 1
        yield f"the control is {off:+.2%} off in parameters: one hidden unit more or less is as near as it comes"


def _depth_words(old: Architecture, new: Architecture) -> Iterator[str]:
    """All stages count: what flows through one flows through the next."""
    width = max(layer.width for layer in old.layers())
    floor = search.depth_floor(width, old.depth)
    if new.depth < floor:
        yield (
            f"{new.depth} layers are below {floor}, about log3 of the width {width}: the published depth floor "
            "(Levine et al. 2020)"
        )
    if new.depth <= 2 < old.depth:
        yield f"{new.depth} layers: tasks that need several steps in sequence are not solved so shallow"


def _split_words(before: StageDesign, design: StageDesign) -> Iterator[str]:
    if design.head_dim < before.head_dim:
        harm = "strong evidence of harm" if design.head_dim < 32 else "evidence of harm"
        yield (
            f"heads are split, {before.head_dim} → {design.head_dim} channels each: there is {harm} below the rank "
            "that the data needs (Amsel et al. 2025), and the theorem predicts nothing for a split"
        )


def _kappa_words(tokens: int, before: StageDesign, design: StageDesign) -> Iterator[str]:
    inner, old_inner = design.heads * design.head_dim, before.heads * before.head_dim
    if 0.8 <= inner / tokens <= 1.25:
        yield f"inner {inner} is close to {tokens} tokens, where κ peaks: more or fewer heads condition better"
    elif old_inner < inner < tokens:
        yield f"with {tokens} tokens and inner {inner} more heads make κ worse, until inner passes the tokens"


# -- building -----------------------------------------------------------------------------------------------------


def build_fresh(found: ModelSource, architecture: Architecture) -> nn.Module:
    """A model of this shape as upstream draws it: by upstream's constructor where it can, else by surgery."""
    on_meta = surgery.write(find.build_on_meta(found), architecture)
    native = lean_directory.expressed(on_meta, found.origin, architecture)
    if native is None:
        return surgery.write(build_model(found.origin), architecture, "fresh")
    model = build_model(native)
    set_origin(model, found.origin)
    return model


def _with_weights_of(found: ModelSource, weights: str | Path, pretrained: bool) -> nn.Module:
    """The source with the weights of a SOURCE: a checkpoint file, a directory, a hub id, upstream's own."""
    path = Path(weights)
    if path.is_file() and path.suffix in find.CHECKPOINTS:
        tensors = lean_directory.read_tensors(path)
    elif find.find(weights, pretrained=pretrained).weights is None:
        raise SourceError(f"{weights} names a model without weights: name a checkpoint, a directory or a hub id")
    else:
        tensors = dict(find.load(weights, pretrained=pretrained).state_dict())
    model = lean_directory.shell(found.origin, found.architecture)
    lean_directory.load_weights(model, tensors, weights)
    if is_hf(model):
        model.tie_weights()  # type: ignore[operator]
    return model


def room_for(size: int, directory: Path) -> None:
    """Refuse before hours are lost: ``size`` bytes of weights need room on the disk and in memory."""
    free = shutil.disk_usage(directory.absolute().parent).free
    if size > free:
        raise DirectoryError(f"the weights take {size / 1e9:.1f} GB; {directory} has {free / 1e9:.1f} GB free")
    memory = machine.memory("MemAvailable")
    if memory is not None and size > memory:
        raise LeanifyError(
            f"building this model takes {size / 1e9:.1f} GB of memory, {memory / 1e9:.1f} GB are available; "
            "without -o the redesign is planned in no memory at all"
        )
