"""``leanify export``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from leanify.cli.options import Json, Source


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
    json: Json = False,
) -> None:
    """Write a model in another format, verified by loading and running it; on failure nothing is written."""
    from leanify.cli.formats import print_json
    from leanify.terminal import console, progress

    with progress(f"exporting {source}", None):
        from leanify.exporting.export import export as export_model

        written = export_model(source, format=format, output=output, with_code=with_code, fixed=fixed)
    if json:
        print_json({"source": source, "format": format, "output": str(written)})
    else:
        console().print(f"written to {written}, loaded there and run: the same outputs", soft_wrap=True)
