"""``leanify redesign``"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from leanify.cli import redesign_options as option
from leanify.cli.formats import kind_of, show
from leanify.cli.options import Format, Json, ModelClass, Override, Tokens, pin
from leanify.errors import LeanifyError

AMOUNT = r"[\d._,]+ *([kmgbt]|%)?"
MODES = ("grow", "split", "auto")


def redesign(
    sources: option.Sources = None,
    target_params: option.TargetParams = None,
    count: option.Count = "all",
    max_macs: option.MaxMacs = None,
    max_latency: option.MaxLatency = None,
    batch_size: option.BatchSize = 1,
    device: option.Device = None,
    dtype: option.Dtype = "float32",
    compiled: option.Compiled = False,
    latency_of: option.LatencyOf = "pass",
    max_memory: option.MaxMemory = None,
    max_active: option.MaxActive = None,
    max_kv: option.MaxKv = None,
    context: option.Context = None,
    depth: option.Depth = None,
    heads: option.Heads = None,
    head_dim: option.HeadDim = None,
    mlp: option.Mlp = None,
    experts: option.Experts = None,
    active_experts: option.ActiveExperts = None,
    heads_mode: option.HeadsMode = "grow",
    multiple: option.Multiple = None,
    tensor_parallel: option.TensorParallel = None,
    min_mlp: option.MinMlp = None,
    min_depth: option.MinDepth = None,
    max_heads: option.MaxHeads = 3.0,
    weights: option.Weights = None,
    pretrained: option.Pretrained = False,
    data: option.Data = None,
    samples: option.Samples = None,
    top: option.Top = 3,
    output: option.Output = None,
    control: option.Control = False,
    force: option.Force = False,
    as_type: option.AsType = None,
    seed: option.Seed = 0,
    study: option.Study = None,
    tokens: Tokens = None,
    override: Override = None,
    model_class: ModelClass = None,
    format: Format = None,
    json: Json = False,
) -> None:
    """Trade layers for heads under a budget: baseline, lean, control and alternatives side by side.

    Grow adds heads of the same size; split divides the same width into more heads. The control has lean's depth and
    parameters but the old heads: only training lean and the control shows what the extra heads are worth.
    """
    kind = kind_of(format, json)
    named, budgets = _asked(sources or [], target_params or [])
    limits = {
        "max_macs": max_macs,
        "max_latency": max_latency,
        "max_memory": max_memory,
        "max_active": max_active,
        "max_kv": max_kv,
    }
    shape = {"depth": depth, "heads": heads, "head_dim": head_dim, "mlp": mlp}
    shape |= {"experts": experts, "active_experts": active_experts}
    pins = {name: pin(f"--{name.replace('_', '-')}", value) for name, value in shape.items()}
    if not sources and not any(value is not None for value in (*pins.values(), *budgets, *limits.values())):
        budgets = [option.HALF]
    _check(budgets, limits, count, heads_mode)
    pace = {
        "batch_size": batch_size,
        "device": device,
        "dtype": dtype,
        "compiled": compiled,
        "latency_of": latency_of,
    }
    if max_latency is None and list(pace.values()) != [1, None, "float32", False, "pass"]:
        raise LeanifyError(
            "--batch-size, --device, --dtype, --compile and --latency-of configure timing and need --max-latency"
        )
    _check_written(output, as_type, control, force, len(named) * len(budgets))
    if data is not None and weights is None and not pretrained:
        raise LeanifyError("--data chooses which weights to carry over, so it needs --weights SOURCE or --pretrained")

    from leanify.terminal import progress

    with progress("loading PyTorch", None):
        from leanify.cli import planned, plans
        from leanify.sources.overrides import parse_overrides

    rules = {
        "multiple": multiple,
        "tensor_parallel": tensor_parallel,
        "min_mlp": min_mlp,
        "min_depth": min_depth,
        "max_heads": max_heads,
    }
    around = {"count": count, "heads_mode": heads_mode, "context": context, "top": top, "tokens": tokens}
    arguments: dict[str, Any] = {**limits, **pins, **pace, **rules, **around, "cls": model_class}
    arguments["overrides"] = parse_overrides(override or [])
    carried = planned.Carried(weights, pretrained, data, samples, seed)
    written = planned.Written(output, control, force, as_type)
    found = list(planned.planned(named, budgets, arguments, carried, written, study, override or ()))
    data_of = found[0].to_json() if len(found) == 1 else {"plans": [one.to_json() for one in found]}
    show(kind, data_of, [row for one in found for row in one.rows()], lambda: planned.render(found))
    for one in found if kind != "table" else ():
        plans.print_warnings(one.plan)


def _asked(sources: list[str], budgets: list[str]) -> tuple[list[str], list[option.Text]]:
    """Separate sources from budgets: an amount after ``--target-params 0.5`` is another budget, not a source."""
    more = [
        word for word in sources if budgets and re.fullmatch(AMOUNT, word, re.IGNORECASE) and not Path(word).exists()
    ]
    return [word for word in sources if word not in more] or [option.DEFAULT], [*budgets, *more] or [None]


def _check(budgets: list[option.Text], limits: dict[str, option.Text], count: str, heads_mode: str) -> None:
    """Raise LeanifyError for mistakes that are detectable without the slow imports."""
    from leanify.design.search.amounts import check_budget

    for name, value, allowed in (("--count", count, ("all", "body")), ("--heads-mode", heads_mode, MODES)):
        if value not in allowed:
            raise LeanifyError(f"{name} {value!r} is none of {', '.join(allowed)}")
    for budget in budgets:
        check_budget("--target-params", budget)
    for limit, amount in limits.items():
        check_budget(f"--{limit.replace('_', '-')}", amount)


def _check_written(output: Path | None, as_type: option.Text, control: bool, force: bool, designs: int) -> None:
    """Raise LeanifyError for options that need ``-o``, and for more than one design with it."""
    if output is None and as_type is not None:
        raise LeanifyError("--as is about what -o DIR writes; give -o")
    if output is None and (control or force):
        raise LeanifyError(f"{'--control' if control else '--force'} is about what -o DIR writes; give -o")
    if output is not None and designs > 1:
        raise LeanifyError(f"-o writes one design, and {designs} are asked for: name one")
