"""The options of ``leanify redesign`` that are not `Options` of the library: what is written, and with which weights.

`with_options` adds those of the library to the command's signature, from which typer makes its help and its parser.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer

from leanify.cli.options import complete_source, pin
from leanify.design.options import BUDGETS, Options, flag_of, flags
from leanify.design.search.towers import PINS

Text = str | None

Sources = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="SOURCE…",
        help="timm or transformers names, hub ids, directories, config.json (default: vit_base at half)",
        autocompletion=complete_source,
    ),
]
Weights = Annotated[Text, typer.Option(metavar="SOURCE", help="carry over these weights instead of new ones")]
Pretrained = Annotated[bool, typer.Option("--pretrained", help="carry over upstream's own weights")]
Data = Annotated[Path | None, typer.Option(metavar="DATA", help="with weights: data to choose what to keep")]
Samples = Annotated[
    int | None, typer.Option(metavar="N", min=2, help="samples of the data; a quarter measure (default: 8,192 tokens)")
]
Output = Annotated[Path | None, typer.Option("--output", "-o", metavar="DIR", help="write a lean directory")]
Control = Annotated[bool, typer.Option("--control", help="with -o: write DIR/lean and DIR/control")]
Choose = Annotated[
    str, typer.Option("--choose", metavar="lean|plain|control|N", help="with -o: which design; N: the Nth candidate")
]
Force = Annotated[bool, typer.Option("--force", help="replace a directory that leanify wrote")]
AsType = Annotated[
    Text, typer.Option("--as", metavar="TYPE", help="save as another transformers type of the same shape")
]
Seed = Annotated[int, typer.Option(metavar="N", help="seed of the new weights")]
Study = Annotated[Path | None, typer.Option(metavar="STUDY", help="rank by a leanify compare study of your own task")]

# How an option is typed, where that is not its type in Python: budgets and pins are parsed later, with their errors.
TYPED: dict[str, Any] = {
    **dict.fromkeys((*BUDGETS, *PINS), Text),
    "target_params": list[str] | None,
    "overrides": list[str] | None,
}


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command that takes ``**typed`` the options of `Options`, behind its first parameter."""
    hints = get_type_hints(Options, include_extras=True)
    options = []
    for option in fields(Options):
        flag = flags()[option.name]
        kind = TYPED.get(option.name, get_args(hints[option.name])[0])
        info = typer.Option(flag_of(option.name), metavar=flag.metavar, help=flag.help, min=flag.min)
        default = None if option.name in TYPED else option.default
        annotation: Any = Annotated[kind, info]
        parameter = inspect.Parameter(
            option.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
        )
        options.append(parameter)
    signature = inspect.signature(command, eval_str=True)
    first, *own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
    command.__signature__ = signature.replace(parameters=[first, *options, *own])  # type: ignore[attr-defined]
    return command


def options_of(typed: Mapping[str, Any]) -> Options:
    """What was typed as a value, without a budget on parameters. Raises what `Options` raises."""
    from leanify.sources.overrides import parse_overrides

    values: dict[str, Any] = {
        name: pin(flag_of(name), value) if name in PINS else value for name, value in typed.items()
    }
    values["overrides"] = parse_overrides(values["overrides"] or [])
    values.pop("target_params")
    return Options(**values)
