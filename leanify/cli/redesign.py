"""``leanify redesign``"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from leanify.cli import redesign_options as option
from leanify.cli.formats import kind_of, show
from leanify.cli.options import Explain, Format, Json, Push, pushed
from leanify.errors import LeanifyError

AMOUNT = r"[\d._,]+ *([kmgbt]|%)?"
DEFAULT = "vit_base"


@option.with_options
def redesign(
    sources: option.Sources = None,
    *,
    weights: option.Weights = None,
    pretrained: option.Pretrained = False,
    data: option.Data = None,
    samples: option.Samples = None,
    output: option.Output = None,
    choose: option.Choose = "lean",
    control: option.Control = False,
    force: option.Force = False,
    as_type: option.AsType = None,
    push: Push = None,
    seed: option.Seed = 0,
    study: option.Study = None,
    explain: Explain = False,
    format: Format = None,
    json: Json = False,
    **typed: Any,
) -> None:
    """Trade layers for heads under a budget: baseline, lean, control and alternatives side by side.

    Grow adds heads of the same size; split divides the same width into more heads. The control has lean's depth and
    parameters but the old heads: only training lean and the control shows what the extra heads are worth.
    """
    kind = kind_of(format, json)
    named, budgets = [], list(typed["target_params"] or [])
    for word in sources or []:  # an amount behind --target-params 0.5 is another budget, not a source
        if budgets and re.fullmatch(AMOUNT, word, re.IGNORECASE) and not Path(word).exists():
            budgets.append(word)
        else:
            named.append(word)
    named = named or [DEFAULT]
    options = option.options_of(typed)
    asked = [replace(options, target_params=budget) for budget in budgets] or [options]
    designs = len(named) * len(asked)
    wants = {"--as": as_type is not None, "--choose": choose != "lean", "--control": control, "--force": force}
    for flag, is_given in wants.items():
        if is_given and output is None:
            raise LeanifyError(f"{flag} is about what -o DIR writes; give -o")
    if output is not None and designs > 1:
        raise LeanifyError(f"-o writes one design, and {designs} are asked for: name one")
    if data is not None and choose != "lean":
        raise LeanifyError("--data chooses the design that keeps most of the weights; leave out --choose")
    if push is not None and (output is None or control):
        raise LeanifyError("--push pushes the one design that -o DIR writes: give -o, and leave out --control")
    if data is not None and weights is None and not pretrained:
        raise LeanifyError("--data chooses which weights to carry over, so it needs --weights SOURCE or --pretrained")

    from leanify.terminal import progress

    with progress("loading PyTorch", None):
        from leanify.cli import planned, plans

    wanted = planned.Wanted(weights, pretrained, data, samples, seed, output, control, force, as_type, choose)
    found = list(planned.planned(named, asked, wanted, study, typed["overrides"] or ()))
    data_of = found[0].to_json() if len(found) == 1 else {"plans": [one.to_json() for one in found]}
    rows: list[dict[str, Any]] = []
    for one in found:
        rows += one.rows()
    show(kind, data_of, rows, lambda: planned.render(found, explain))
    if kind != "table":
        for one in found:
            plans.print_warnings(one.plan)
    if push is not None:
        pushed(str(output), push)
