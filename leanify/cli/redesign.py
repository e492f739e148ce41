"""``leanify redesign``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from leanify.cli.options import Json, ModelClass, Override, Source, Tokens, pin

Text = str | None


def redesign(
    source: Source,
    target_params: Annotated[
        Text, typer.Option(metavar="SHARE|COUNT", help="at most this: 0.5, 43M; for towers encoder=0.75,decoder=0.5")
    ] = None,
    count: Annotated[str, typer.Option(metavar="all|body", help="what that counts: all, or the blocks alone")] = "all",
    max_macs: Annotated[Text, typer.Option(metavar="SHARE|COUNT", help="multiply-adds: 0.5, 8G")] = None,
    max_latency: Annotated[Text, typer.Option(metavar="SHARE|TIME", help="measured here: 0.5, 12ms")] = None,
    max_memory: Annotated[Text, typer.Option(metavar="SHARE|BYTES", help="training, predicted: 0.5, 8GB")] = None,
    max_active: Annotated[
        Text, typer.Option(metavar="SHARE|COUNT", help="parameters that a token meets: 0.5, 3B")
    ] = None,
    max_kv: Annotated[Text, typer.Option(metavar="SHARE|BYTES", help="key/value cache of a token: 0.5, 64KB")] = None,
    context: Annotated[int | None, typer.Option(min=1, help="tokens in the cache (default: at most 4096)")] = None,
    depth: Annotated[Text, typer.Option(metavar="N[,N…]", help="pin the blocks: 8, one a stage, or encoder=6")] = None,
    heads: Annotated[Text, typer.Option(metavar="N[,N…]", help="pin the heads")] = None,
    head_dim: Annotated[Text, typer.Option(metavar="N[,N…]", help="pin the channels of a head")] = None,
    mlp: Annotated[Text, typer.Option(metavar="N[,N…]", help="pin the hidden units of the MLP")] = None,
    heads_mode: Annotated[
        str, typer.Option(metavar="grow|split|auto", help="more heads of the same size, or the same width cut finer")
    ] = "grow",
    multiple: Annotated[
        int | None, typer.Option(min=1, help="of hidden units and inner (default: 64, narrow: 8)")
    ] = None,
    tensor_parallel: Annotated[int | None, typer.Option(min=1, help="devices that heads and MLP divide by")] = None,
    min_mlp: Annotated[float, typer.Option(min=0, help="hidden units, in widths")] = 1.0,
    min_depth: Annotated[int | None, typer.Option(min=1, help="blocks (default: log3 of the width, a third)")] = None,
    max_heads: Annotated[float, typer.Option(min=1, help="times the baseline's")] = 3.0,
    weights: Annotated[
        Text, typer.Option(metavar="SOURCE", help="carry these weights over instead of new ones")
    ] = None,
    pretrained: Annotated[bool, typer.Option("--pretrained", help="carry over upstream's own weights")] = False,
    data: Annotated[
        Path | None, typer.Option(metavar="DATA", help="with weights: choose by this data what is carried over")
    ] = None,
    samples: Annotated[int, typer.Option(min=2, help="of the data: half to choose, half to measure")] = 64,
    top: Annotated[int, typer.Option(help="how many candidates to show", min=1)] = 3,
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="DIR", help="write a lean directory")] = None,
    control: Annotated[bool, typer.Option("--control", help="with -o: write DIR/lean and DIR/control")] = False,
    force: Annotated[bool, typer.Option("--force", help="replace a directory that leanify wrote")] = False,
    as_type: Annotated[
        Text, typer.Option("--as", metavar="TYPE", help="write it as another transformers type of the same shape")
    ] = None,
    seed: Annotated[int, typer.Option(help="of the new weights")] = 0,
    study: Annotated[
        Path | None, typer.Option(metavar="STUDY", help="rank by what leanify compare measured on your own task")
    ] = None,
    tokens: Tokens = None,
    override: Override = None,
    model_class: ModelClass = None,
    json: Json = False,
) -> None:
    """Trade layers for heads under a budget: baseline, lean, control and alternatives side by side.

    Grow adds heads of the same size; split cuts the same width into more heads. The control has lean's depth and
    parameters but the old heads: only beside it can training show what the heads are worth.
    """
    from leanify.cli import plans, study_tables, tables
    from leanify.design.plan import redesign as redesign_source
    from leanify.errors import LeanifyError
    from leanify.sources.lean_directory import check_new_directory
    from leanify.sources.overrides import parse_overrides
    from leanify.terminal import progress

    for name, value, allowed in (("--count", count, ("all", "body")), ("--heads-mode", heads_mode, MODES)):
        if value not in allowed:
            raise LeanifyError(f"{name} {value!r} is none of {', '.join(allowed)}")
    if output is None and as_type is not None:
        raise LeanifyError("--as is about what -o DIR writes; give -o")
    if output is None and (control or force):
        raise LeanifyError(f"{'--control' if control else '--force'} is about what -o DIR writes; give -o")
    if data is not None and weights is None and not pretrained:
        raise LeanifyError("--data chooses which weights are carried over; give --weights SOURCE or --pretrained")
    if output is not None and not force:
        check_new_directory(output)
    measured = None
    if study is not None:
        from leanify.study.surface import load

        measured = load(study)
    with progress(f"planning {source}", None):
        plan = redesign_source(
            source,
            target_params=target_params,
            count=count,  # type: ignore[arg-type]
            max_macs=max_macs,
            max_latency=max_latency,
            max_memory=max_memory,
            max_active=max_active,
            max_kv=max_kv,
            context=context,
            depth=pin("--depth", depth),
            heads=pin("--heads", heads),
            head_dim=pin("--head-dim", head_dim),
            mlp=pin("--mlp", mlp),
            heads_mode=heads_mode,  # type: ignore[arg-type]
            multiple=multiple,
            tensor_parallel=tensor_parallel,
            min_mlp=min_mlp,
            min_depth=min_depth,
            max_heads=max_heads,
            top=top,
            tokens=tokens,
            overrides=parse_overrides(override or []),
            cls=model_class,
            ranking=None if measured is None else measured[1].ranking,
        )
    carried = None
    if data is not None:
        from leanify.warm.plan import Carrying

        carried = Carrying(plan, data, samples, tokens, weights)
        if output is None:
            plan.build(weights, seed, pretrained, carry=carried)
    if output is not None:
        with progress(f"writing {output}", None):
            if carried is None:
                plan = plan.save(output, weights, seed, pretrained, control, force, model_type=as_type)
            else:
                plan = plan.save(output, weights, seed, pretrained, control, force, carried, as_type)
    predicted = None
    if measured is not None:
        from leanify.study.surface import predictions

        predicted = predictions(plan, *measured)
    if json:
        more = {
            **({"carried": carried.to_json()} if carried else {}),
            **({"predicted": predicted} if predicted else {}),
        }
        tables.print_json({**plan.to_json(), **more})
    else:
        plans.render_plan(plan)
        if predicted is not None:
            study_tables.render_predictions(predicted)
        if carried is not None:
            plans.render_steps(carried)
    plans.print_warnings(plan)


MODES = ("grow", "split", "auto")
