"""A probe as JSON, as tables of up to 100 columns, and warnings about its numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from leanify.core.files.reading import preview
from leanify.core.units import short_paths
from leanify.spectra.results import LayerProbe, Point, Probe

WIDE = 1.1  # upper bound / lower bound of κ, above which both are shown

# -- JSON ----------


def _number(value: float | None) -> float | str | None:
    """A number for JSON, which has no infinity: "inf"; null if κ is undefined."""
    if value is None or math.isnan(value):
        return None
    return value if math.isfinite(value) else "inf"


def _numbers_json(values: Sequence[float]) -> list[float | str | None]:
    return [_number(value) for value in values]


def model_json(source: str, probe: Probe, data: str) -> dict[str, Any]:
    return {
        "source": source,
        "layers": [_layer_json(layer) for layer in probe.layers],
        "kappa_mean": _number(probe.kappa),
        "samples": probe.samples,
        "data": data,
    }


def _layer_json(layer: LayerProbe) -> dict[str, Any]:
    has_kappa = not layer.is_vector
    weights = {}
    for name, kappas in layer.weights.items():
        weights[name] = {"kappa": _number(sum(kappas) / len(kappas)), "kappas": _numbers_json(kappas)}
    return {
        **{name: getattr(layer, name) for name in ("name", "object", "tokens", "inner", "heads", "head_dim")},
        "kappa": _number(layer.kappa) if has_kappa else None,
        "kappa_quartiles": _numbers_json(layer.quartiles) if has_kappa else None,
        "kappas": _numbers_json(layer.kappas) if has_kappa else None,
        "kappa_error": _number(max(sample.error for sample in layer.samples)),
        "kappa_bounds": _numbers_json(layer.bounds) if has_kappa else None,
        "kappa_theory": _number(layer.kappa_theory),
        "rank": layer.rank,
        "full_rank": layer.full_rank,
        "stable_rank": _number(layer.mean("stable_rank")),
        "effective_rank": _number(layer.mean("effective_rank")),
        "sigma_max": layer.mean("largest"),
        "sigma_min": layer.mean("smallest"),
        "spectrum": list(layer.spectrum),
        "per_head": _numbers_json(layer.per_head),
        "weights": weights,
    }


def point_json(point: Point) -> dict[str, Any]:
    return {
        **{name: getattr(point, name) for name in ("mode", "heads", "head_dim", "inner", "tokens")},
        "kappa": _number(point.kappa),
        "kappa_median": _number(point.median),
        "kappa_quartiles": _numbers_json(point.quartiles),
        "kappa_theory": _number(point.theory),
        "layers": _numbers_json(point.layers),
    }


def layer_row(layer: Mapping[str, Any]) -> dict[str, Any]:
    """A layer's rounded scalars, a row of CSV and Markdown."""
    keys = ("name", "tokens", "inner", "heads", "kappa", "kappa_theory", "rank", "stable_rank", "effective_rank")
    return {key: figures(layer[key]) for key in (*keys, "sigma_max", "sigma_min")}


def point_row(point: Point) -> dict[str, Any]:
    """A point's rounded scalars, a row of CSV and Markdown."""
    return {key: figures(value) for key, value in point_json(point).items() if not isinstance(value, list)}


# -- tables ----------


def figures(value: Any) -> str:
    """A number with three significant digits, or a placeholder."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if value == "inf" or (isinstance(value, float) and math.isinf(value)):
        return "∞"
    if not isinstance(value, float):
        return str(value)
    if 1e-3 <= value < 99.95:
        return f"{value:#.3g}"
    if 99.95 <= value < 1e8:
        return f"{float(f'{value:.3g}'):,.0f}"
    mantissa, e, exponent = f"{value:.3g}".partition("e")
    return f"{mantissa}e{int(exponent)}" if e else mantissa


def _table(title: str, *columns: str) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for index, name in enumerate(columns):
        table.add_column(name, justify="left" if index == 0 else "right", no_wrap=True)
    return table


CAPTION = (
    "κ = σ_max/σ_min of a layer's concatenated heads, tokens × inner: its mean and quartiles over the samples. stable: "
    "‖A‖_F²/σ_max²; eff.: exp of the entropy of σ/Σσ."
)


def layer_tables(
    source: str, probe: Probe, data: str, *, theory: bool = False, per_head: bool = False, weights: bool = False
) -> list[Any]:
    """The table of layers, optionally followed by tables of single heads and of their weights."""
    # a row for each layer
    tables = [_layers_table(f"{source} · {probe.samples} samples · {data}", probe, theory)]
    names = short_paths([layer.name for layer in probe.layers])[0]
    # a row for each layer with κ of its heads
    if per_head:
        columns = ("lowest", "median", "highest", "heads, in order")
        table = _table("κ of single heads A_i, tokens × head_dim", "layer", *columns)
        for name, layer in zip(names, probe.layers, strict=True):
            ascending = sorted(layer.per_head)
            ends = (ascending[0], ascending[len(ascending) // 2], ascending[-1])
            cell = " ".join(map(figures, layer.per_head[:8])) + " …" * (layer.heads > 8)
            table.add_row(name, *map(figures, ends), cell)
        tables.append(table)
    # a row for each layer with κ of each head's projections
    if weights:
        table = _table("κ of single heads' weights: mean (lowest–highest)", "layer", "W_q", "W_k", "W_v", "W_o")
        for name, layer in zip(names, probe.layers, strict=True):
            cells = []
            for kappas in (layer.weights.get(role) for role in "qkvo"):
                cell = "–"
                if kappas:
                    cell = f"{figures(sum(kappas) / len(kappas))} ({figures(min(kappas))}–{figures(max(kappas))})"
                cells.append(cell)
            table.add_row(name, *cells)
        tables.append(table)
    return tables


def _layers_table(title: str, probe: Probe, theory: bool) -> Any:
    # the names without their common part, which is in the title
    names, pattern = short_paths([layer.name for layer in probe.layers])
    theory_column = ("theory",) if theory else ()
    columns = ("tokens", "heads", "κ mean", "25–75%", *theory_column, "rank", "stable", "eff.", "σ max", "σ min")
    table = _table(f"{title}\nlayers {pattern}" if pattern else title, "layer", *columns)
    for name, layer in zip(names, probe.layers, strict=True):
        kappa, middle = "–", "–"
        if not layer.is_vector:
            low, _, high = layer.quartiles
            kappa, middle = format_kappa(layer.kappa, layer.bounds), f"{figures(low)}–{figures(high)}"
        table.add_row(
            name,
            str(layer.tokens),
            f"{layer.heads}×{layer.head_dim}",
            kappa,
            middle,
            *(figures(layer.kappa_theory) for _ in theory_column),
            str(layer.rank) if layer.rank == layer.full_rank else f"{layer.rank}/{layer.full_rank}",
            *(figures(layer.mean(what)) for what in ("stable_rank", "effective_rank", "largest", "smallest")),
        )
    if len(probe.layers) > 1:
        table.add_section()
        table.add_row("mean", "", "", format_kappa(probe.kappa, probe.bounds))
    return table


def format_kappa(kappa: float | None, bounds: tuple[float, float] | None) -> str:
    """κ; its bounds if they are a tenth apart; the lower one alone if rounding leaves κ unbounded above."""
    if kappa is None or bounds is None:
        return figures(kappa)
    low, high = bounds
    if math.isinf(high):
        return f"> {figures(low)}"
    return f"{figures(low)}–{figures(high)}" if high > WIDE * low else figures(kappa)


def heads_table(source: str, points: Sequence[Point], data: str) -> Any:
    title = f"{source} re-initialised · {points[0].seeds} seeds · {data}"
    table = _table(title, "heads", "mode", "head_dim", "inner", "κ median", "quartiles", "mean", "theory")
    for point in points:
        low, median, high = point.quartiles
        table.add_row(
            str(point.heads),
            point.mode,
            str(point.head_dim),
            str(point.inner),
            figures(median),
            f"{figures(low)}–{figures(high)}",
            figures(point.kappa),
            figures(point.theory),
        )
    return table


def training_table(source: str, steps: Sequence[tuple[int, Probe]], data: str) -> Any:
    first = steps[0][1].layers
    row_indices = [0, len(first) // 2, len(first) - 1] if len(first) > 3 else list(range(len(first)))
    title = f"{source} over training · {steps[0][1].samples} samples · {data}"
    table = _table(title, "step", "κ mean over layers", *(first[index].name for index in row_indices))
    for step, probe in steps:
        table.add_row(f"{step:,}", figures(probe.kappa), *(figures(probe.layers[index].kappa) for index in row_indices))
    return table


# -- warnings ----------


def cautions(probe: Probe, requested_samples: int) -> list[str]:
    """Warnings that are needed to interpret the numbers."""
    notes = []
    # layers that were not measured
    if probe.samples < requested_samples:
        notes.append(f"only {probe.samples} of {requested_samples} samples were found")
    if probe.unseen:
        notes.append(
            f"not measured, because the forward pass never calls their output projection: {', '.join(probe.unseen[:3])}"
        )
    # layers whose κ is unbounded above: a singular value that rounding cannot tell from zero
    unbounded_layers = [layer for layer in probe.matrices if math.isinf(layer.bounds[1])]
    if unbounded_layers:
        ranks = [f"{layer.name} (rank {layer.rank} of {layer.full_rank})" for layer in unbounded_layers]
        notes.append(
            f"{len(unbounded_layers)} layers are rank-deficient, or nearly, in at least one sample: to the precision "
            f"of their entries κ has no upper bound, and the least it can be is shown: {preview(ranks)}"
        )
    # layers whose κ is not known to 1e-6
    doubtful = []
    for layer in probe.layers:
        if layer not in unbounded_layers and max(sample.error for sample in layer.samples) > 1e-6:
            doubtful.append(layer.name)
    if doubtful:
        notes.append(f"float64 does not resolve κ to 1e-6 in {', '.join(doubtful[:3])}")
    # layers of which something else than tokens × inner was measured
    objects = {layer.object for layer in probe.layers if layer.object != "tokens × inner"}
    for kind in sorted(objects):
        names = [layer.name for layer in probe.layers if layer.object == kind]
        names = names if len(names) <= 3 else [names[0], "…", names[-1]]
        notes.append(f"{kind}: {', '.join(names)}")
    return notes
