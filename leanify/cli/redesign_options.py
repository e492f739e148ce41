"""The options of ``leanify redesign`` about weights and output, which are not among the library's `Options`.

`add_options` adds the library's options to the command's signature, from which typer makes its help and its parser.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer

from leanify.cli.options import check_source, complete_source, pin
from leanify.search.options import BUDGETS, OUTPUT, PINS, Options, flag_name, flags

Text = str | None
WEIGHTS = "Weights"

Sources = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="SOURCE…",
        help="timm or transformers names, hub ids, directories, config.json (default: vit_base at half)",
        autocompletion=complete_source,
        callback=check_source,
    ),
]
Weights = Annotated[
    Text, typer.Option(metavar="SOURCE", help="carry over these weights instead of new ones", rich_help_panel=WEIGHTS)
]
Pretrained = Annotated[
    bool, typer.Option("--pretrained", help="carry over upstream's own weights", rich_help_panel=WEIGHTS)
]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="DIR", help="write a lean directory", rich_help_panel=OUTPUT)
]
Control = Annotated[
    bool, typer.Option("--control", help="with -o: write DIR/lean and DIR/control", rich_help_panel=OUTPUT)
]
Choose = Annotated[
    Text,
    typer.Option(
        metavar="NAME|N",
        help="with -o: lean, plain, narrow, balanced, control, or the Nth candidate (default: the first row)",
        rich_help_panel=OUTPUT,
    ),
]
Json = Annotated[
    bool,
    typer.Option(
        "--json",
        help="print one JSON object and nothing else; --format csv|markdown prints rows",
        rich_help_panel=OUTPUT,
    ),
]
Format = Annotated[Text, typer.Option(metavar="table|json|csv|markdown", hidden=True)]

# the types of options on the command line if they differ from Python: budgets, pins and the width are parsed later
TYPER_TYPES: dict[str, Any] = {
    **dict.fromkeys((*BUDGETS, *PINS, "width"), Text),
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


def parse_options(typed_values: Mapping[str, Any]) -> Options:
    """Parse typed values, except the budget on parameters. Raises the errors of `Options`."""
    from leanify.sources.overrides import parse_overrides

    values = dict(typed_values)
    values.pop("target_params")
    for name in PINS:
        values[name] = pin(flag_name(name), values[name])
    values["overrides"] = parse_overrides(values["overrides"] or [])
    return Options(**values)
