"""``leanify export``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from leanify.cli.options import Source
from leanify.cli.output import print_json
from leanify.core.terminal import console, progress


def export(
    source: Source,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="OUT", help="a directory (hf, timm) or a file")],
    format: Annotated[str, typer.Option(metavar="hf|timm|onnx|torch-export", help="the format")],
    with_code: Annotated[
        bool, typer.Option("--with-code", help="hf: add modelling code if transformers cannot express the shape")
    ] = False,
    fixed: Annotated[
        bool, typer.Option("--fixed", help="onnx, torch-export: accept a program for one batch or length alone")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="print one JSON object and nothing else")] = False,
) -> None:
    """Write a model in another format, verified by loading and running it; on failure nothing is written.

    \b
    Example:
      leanify export lean --format onnx -o lean.onnx
    """
    with progress(f"exporting {source}", None):
        from leanify.exporting.export import export as export_model

        path = export_model(source, format=format, output=output, with_code=with_code, fixed=fixed)
    if json:
        print_json({"source": source, "format": format, "output": str(path)})
    else:
        console().print(f"written to {path}, loaded there and run: the same outputs", soft_wrap=True)
