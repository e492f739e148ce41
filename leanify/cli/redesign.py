"""``leanify redesign``"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from leanify.cli import redesign_options as option
from leanify.cli.formats import output_kind, show
from leanify.core.errors import LeanifyError

AMOUNT = r"[\d._,]+ *([kmgbt]|%)?"
DEFAULT = "vit_base"


@option.add_options
def redesign(
    sources: option.Sources = None,
    *,
    weights: option.Weights = None,
    pretrained: option.Pretrained = False,
    output: option.Output = None,
    choose: option.Choose = None,
    control: option.Control = False,
    format: option.Format = None,
    json: option.Json = False,
    **typed: Any,
) -> None:
    """Plan a smaller model under a budget: baseline, lean, control, narrow, balanced and plain side by side.

    Grow adds heads of the same size; split divides the same width into more heads. The control has lean's depth and
    parameters but the old heads: only training lean and the control shows what the extra heads are worth. Narrow
    has the baseline's depth in a smaller residual width, balanced fewer layers and a smaller width, plain fewer layers
    or narrower MLPs. The row listed first is what -o writes; where no lean fits, -o needs --choose.

    \b
    Examples:
      leanify redesign vit_base --target-params 0.5 -o lean
      leanify redesign bert --max-macs 0.6
    """
    kind = output_kind(format, json)
    # an amount after --target-params 0.5 is another budget, not a source
    names, budgets = [], list(typed["target_params"] or [])
    for argument in sources or []:
        if budgets and re.fullmatch(AMOUNT, argument, re.IGNORECASE) and not Path(argument).exists():
            budgets.append(argument)
        else:
            names.append(argument)
    names = names or [DEFAULT]
    options = option.parse_options(typed)
    requests = [replace(options, target_params=budget) for budget in budgets] or [options]

    # refuse contradictions before anything slow
    designs = len(names) * len(requests)
    for flag, is_given in {"--choose": choose is not None, "--control": control}.items():
        if is_given and output is None:
            raise LeanifyError(f"{flag} is about what -o DIR writes; give -o")
    if output is not None and designs > 1:
        raise LeanifyError(f"-o writes one design, and {designs} are asked for: name one")

    from leanify.core.terminal import progress

    with progress("loading PyTorch", None):
        from leanify.cli import planned, plans

    # plan, write and show
    writing = planned.WriteOptions(weights, pretrained, output, control, choose)
    views = list(planned.plan_all(names, requests, writing, typed["overrides"] or ()))
    output_json = views[0].to_json() if len(views) == 1 else {"plans": [view.to_json() for view in views]}
    rows: list[dict[str, Any]] = []
    for view in views:
        rows += view.readable_rows() if kind == "markdown" else view.rows()
    show(kind, output_json, rows, lambda: planned.render(views))
    if kind != "table":
        for view in views:
            plans.print_warnings(view.plan)
