"""``leanify profile``"""

from __future__ import annotations

from typing import Annotated

import typer

from leanify.cli.options import Json, ModelClass, Override, Tokens


def profile(
    sources: Annotated[list[str], typer.Argument(metavar="SOURCE…", help="one column each; ratios are to the first")],
    batch_size: Annotated[int, typer.Option(min=1, help="of throughput and training")] = 8,
    device: Annotated[str | None, typer.Option(help="cuda, cpu, … (default: cuda where there is one)")] = None,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16, float16")] = "float32",
    tokens: Tokens = None,
    img_size: Annotated[int | None, typer.Option("--img-size", help="side of the input image")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="forward passes a latency is the median of")] = 10,
    measure: Annotated[bool, typer.Option("--measure/--no-measure", help="run it, or count alone")] = True,
    override: Override = None,
    model_class: ModelClass = None,
    json: Json = False,
) -> None:
    """Count parameters, MACs and memory of models, and measure latency, throughput and peaks on the device."""
    from leanify.cli import tables
    from leanify.design import profiling
    from leanify.sources.overrides import parse_overrides
    from leanify.terminal import track

    overrides = parse_overrides(override or [])
    if img_size is not None:
        overrides |= {"img_size": img_size}
    profiles = []
    for source in track(sources, "profiling"):
        profiles.append(
            profiling.profile(
                source,
                batch_size=batch_size,
                device=device,
                dtype=dtype,
                tokens=tokens,
                repeats=repeats,
                measure=measure,
                overrides=overrides,
                cls=model_class,
            )
        )
    if json:
        tables.print_json({"models": [facts.to_json() for facts in profiles]})
    else:
        tables.render_profiles(profiles)
