"""``leanify redesign``; its options are the library's `Options`, and those about weights and output."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer

from leanify.cli.options import output_option, pin, sources_argument
from leanify.cli.output import output_kind, show
from leanify.core.errors import LeanifyError
from leanify.core.terminal import progress
from leanify.search.options import BUDGETS, PINS, Options, flag_name, flags
from leanify.sources.names import parse_overrides

AMOUNT = r"[\d._,]+ *([kmgbt]|%)?"
DEFAULT = "vit_base"
WEIGHTS = "Weights"  # a panel of the help

# the types of options on the command line if they differ from Python: budgets, pins and the width are parsed later
TYPER_TYPES: dict[str, Any] = {
    **dict.fromkeys((*BUDGETS, *PINS, "width"), str | None),
    "target_params": list[str] | None,
    "overrides": list[str] | None,
}


def add_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of `Options` to a command that takes ``**typed``, after its first parameter."""
    # a keyword parameter for each field of Options
    hints = get_type_hints(Options, include_extras=True)
    defaults = {option.name: option.default for option in fields(Options)}
    options = []
    for name, flag in flags().items():
        info = typer.Option(flag_name(name), metavar=flag.metavar, help=flag.help, rich_help_panel=flag.panel)
        annotation: Any = Annotated[TYPER_TYPES.get(name, get_args(hints[name])[0]), info]
        default = None if name in TYPER_TYPES else defaults[name]
        options.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation))

    # they replace **typed in the signature
    signature = inspect.signature(command, eval_str=True)
    parameters = signature.parameters.values()
    first, *others = [parameter for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD]
    command.__signature__ = signature.replace(parameters=[first, *options, *others])  # type: ignore[attr-defined]
    return command


@add_options
def redesign(
    sources: Annotated[
        list[str] | None,
        sources_argument(
            help="timm or transformers names, hub ids, directories, config.json (default: vit_base at half)"
        ),
    ] = None,
    *,
    weights: Annotated[
        str | None,
        typer.Option(metavar="SOURCE", help="carry over these weights instead of new ones", rich_help_panel=WEIGHTS),
    ] = None,
    pretrained: Annotated[
        bool, typer.Option("--pretrained", help="carry over upstream's own weights", rich_help_panel=WEIGHTS)
    ] = False,
    output: Annotated[
        Path | None, output_option("--output", "-o", metavar="DIR", help="write a lean directory")
    ] = None,
    choose: Annotated[
        str | None,
        output_option(
            metavar="NAME|N",
            help="with -o: lean, plain, narrow, balanced, control, or the Nth candidate (default: the first row)",
        ),
    ] = None,
    control: Annotated[bool, output_option("--control", help="with -o: write DIR/lean and DIR/control")] = False,
    format: Annotated[str | None, typer.Option(metavar="table|json|csv|markdown", hidden=True)] = None,
    json: Annotated[
        bool, output_option("--json", help="print one JSON object and nothing else; --format csv|markdown prints rows")
    ] = False,
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
    options = parse_options(typed)
    requests = [replace(options, target_params=budget) for budget in budgets] or [options]

    # refuse contradictions before anything slow
    designs = len(names) * len(requests)
    for flag, is_given in {"--choose": choose is not None, "--control": control}.items():
        if is_given and output is None:
            raise LeanifyError(f"{flag} is about what -o DIR writes; give -o")
    if output is not None and designs > 1:
        raise LeanifyError(f"-o writes one design, and {designs} are asked for: name one")

    with progress("loading PyTorch", None):
        from leanify.cli import plans

    # plan and write
    how: dict[str, Any] = {"weights": weights, "pretrained": pretrained, "control": control, "choose": choose}
    results = list(plans.plan_all(names, requests, typed["overrides"] or (), output, **how))

    # show; a row per design has all of its numbers for CSV, the columns of the table for readers of Markdown
    documents = [plan.to_json() for plan, _ in results]
    rows: list[dict[str, Any]] = []
    for plan, _ in results:
        budget: Any = plan.options.target_params
        if kind == "markdown":
            budget = str(budget or "")
        for row in plans.table_rows(plan) if kind == "markdown" else plan.rows():
            rows.append({"source": plan.source, "budget": budget, **row})
    show(kind, documents[0] if designs == 1 else {"plans": documents}, rows, lambda: plans.render(results))
    if kind != "table":
        for plan, _ in results:
            plans.print_warnings(plan)


def parse_options(typed_values: Mapping[str, Any]) -> Options:
    """Parse typed values, except the budget on parameters. Raises the errors of `Options`."""
    values = dict(typed_values)
    values.pop("target_params")
    overrides = values.pop("overrides")
    for name in PINS:
        values[name] = pin(flag_name(name), values[name])
    options = Options(**values)
    return replace(options, overrides=parse_overrides(overrides)) if overrides else options
