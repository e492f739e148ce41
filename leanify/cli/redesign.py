"""``leanify redesign``"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leanify.cli.formats import kind_of, show
from leanify.cli.options import Format, Json, ModelClass, Override, Tokens, complete_source, pin
from leanify.errors import LeanifyError

if TYPE_CHECKING:
    from leanify.design.plan import Plan
    from leanify.warm.plan import Carrying

Text = str | None
DEFAULT, HALF = "vit_base", "0.5"
AMOUNT = r"[\d._,]+ *([kmgbt]|%)?"
MODES = ("grow", "split", "auto")


def redesign(
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SOURCE…",
            help=f"timm or transformers names, hub ids, directories, config.json (default: {DEFAULT} at half)",
            autocompletion=complete_source,
        ),
    ] = None,
    target_params: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SHARE|COUNT…",
            help="at most this: 0.5, 43M; for towers encoder=0.75,decoder=0.5; several: 0.5 0.75",
        ),
    ] = None,
    count: Annotated[str, typer.Option(metavar="all|body", help="what that counts: all, or the blocks alone")] = "all",
    max_macs: Annotated[Text, typer.Option(metavar="SHARE|COUNT", help="multiply-adds: 0.5, 8G")] = None,
    max_latency: Annotated[Text, typer.Option(metavar="SHARE|TIME", help="measured here: 0.5, 12ms")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="with --max-latency: samples of a pass")] = 1,
    device: Annotated[Text, typer.Option(help="with --max-latency: cpu, cuda, cuda:1 (default: a GPU if any)")] = None,
    dtype: Annotated[str, typer.Option(help="with --max-latency: float32, bfloat16, float16")] = "float32",
    compiled: Annotated[bool, typer.Option("--compile", help="with --max-latency: torch.compile every shape")] = False,
    latency_of: Annotated[
        str, typer.Option(metavar="pass|token", help="with --max-latency: a forward pass, or one more token")
    ] = "pass",
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
    min_mlp: Annotated[
        float | None, typer.Option(min=0, help="hidden units, in widths (default: 2; 1 where that leaves nothing)")
    ] = None,
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
    format: Format = None,
    json: Json = False,
) -> None:
    """Trade layers for heads under a budget: baseline, lean, control and alternatives side by side.

    Grow adds heads of the same size; split cuts the same width into more heads. The control has lean's depth and
    parameters but the old heads: only beside it can training show what the heads are worth.
    """
    kind = kind_of(format, json)
    asked, budgets = _asked(sources or [], target_params or [])
    limits: dict[str, Any] = {
        "max_macs": max_macs,
        "max_latency": max_latency,
        "max_memory": max_memory,
        "max_active": max_active,
        "max_kv": max_kv,
    }
    pins = {"depth": depth, "heads": heads, "head_dim": head_dim, "mlp": mlp}
    pinned: dict[str, Any] = {name: pin(f"--{name.replace('_', '-')}", value) for name, value in pins.items()}
    if not sources and not any(value is not None for value in (*pinned.values(), *budgets, *limits.values())):
        budgets = [HALF]
    _check(budgets, limits, count, heads_mode)
    pace: dict[str, Any] = {
        "batch_size": batch_size,
        "device": device,
        "dtype": dtype,
        "compiled": compiled,
        "latency_of": latency_of,
    }
    if max_latency is None and list(pace.values()) != [1, None, "float32", False, "pass"]:
        raise LeanifyError(
            "--batch-size, --device, --dtype, --compile and --latency-of say what is timed: give --max-latency too"
        )
    if output is None and as_type is not None:
        raise LeanifyError("--as is about what -o DIR writes; give -o")
    if output is None and (control or force):
        raise LeanifyError(f"{'--control' if control else '--force'} is about what -o DIR writes; give -o")
    if data is not None and weights is None and not pretrained:
        raise LeanifyError("--data chooses which weights are carried over; give --weights SOURCE or --pretrained")
    if output is not None and len(asked) * len(budgets) > 1:
        raise LeanifyError(f"-o writes one design, and {len(asked) * len(budgets)} are asked for: name one")

    from leanify.cli import plans
    from leanify.design.plan import redesign as redesign_source
    from leanify.sources.overrides import parse_overrides
    from leanify.terminal import progress

    overrides = parse_overrides(override or [])
    if output is not None and not force:
        from leanify.sources.lean_directory import check_new_directory

        check_new_directory(output)
    measured = None
    if study is not None:
        from leanify.study.surface import load

        measured = load(study)

    def planned(source: str, budget: Text) -> Shown:
        with progress(f"planning {source}", None):
            plan = redesign_source(
                source,
                target_params=budget,
                count=count,  # type: ignore[arg-type]
                **limits,
                **pinned,
                **pace,
                context=context,
                heads_mode=heads_mode,  # type: ignore[arg-type]
                multiple=multiple,
                tensor_parallel=tensor_parallel,
                min_mlp=min_mlp,
                min_depth=min_depth,
                max_heads=max_heads,
                top=top,
                tokens=tokens,
                overrides=overrides,
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
                carry = {} if carried is None else {"carry": carried}
                plan = plan.save(output, weights, seed, pretrained, control, force, model_type=as_type, **carry)
        predicted = None
        if measured is not None:
            from leanify.study.surface import predictions

            predicted = predictions(plan, *measured)
        return Shown(plan, budget, carried, predicted)

    found = [planned(source, budget) for source in asked for budget in budgets]
    data_of = found[0].to_json() if len(found) == 1 else {"plans": [one.to_json() for one in found]}
    show(kind, data_of, [row for one in found for row in one.rows()], lambda: _render(found))
    for one in found:
        plans.print_warnings(one.plan)


@dataclass(frozen=True)
class Shown:
    """A plan and what belongs to it: the budget as it was asked for, how weights were carried over, predictions."""

    plan: Plan
    budget: Text
    carried: Carrying | None
    predicted: dict[str, Any] | None

    def to_json(self) -> dict[str, Any]:
        found = self.plan.to_json()
        found |= {"carried": self.carried.to_json()} if self.carried else {}
        return found | ({"predicted": self.predicted} if self.predicted else {})

    def rows(self) -> Iterator[dict[str, Any]]:
        """One row a design, for CSV and Markdown."""
        plan = self.plan
        named = [("baseline", plan.baseline), ("lean", plan.chosen), ("control", plan.control)]
        named += [(str(plan.plain_name), plan.plain), *(("also", design) for design in plan.candidates[1:])]
        for name, design in named:
            if design is not None:
                shape = {key: value for key, value in design.to_json().items() if key != "architecture"}
                yield {"source": plan.source, "budget": self.budget, "design": name, **shape}


def _asked(sources: list[str], budgets: list[str]) -> tuple[list[str], list[Text]]:
    """Sources and budgets. What follows ``--target-params 0.5`` and is an amount is a budget too, and no source."""
    more = [
        word for word in sources if budgets and re.fullmatch(AMOUNT, word, re.IGNORECASE) and not Path(word).exists()
    ]
    return [word for word in sources if word not in more] or [DEFAULT], [*budgets, *more] or [None]


def _check(budgets: list[Text], limits: dict[str, Text], count: str, heads_mode: str) -> None:
    """Raise for what no model makes right, before anything is imported that takes seconds."""
    from leanify.design.amounts import check_budget

    for name, value, allowed in (("--count", count, ("all", "body")), ("--heads-mode", heads_mode, MODES)):
        if value not in allowed:
            raise LeanifyError(f"{name} {value!r} is none of {', '.join(allowed)}")
    for budget in budgets:
        check_budget("--target-params", budget)
    for limit, amount in limits.items():
        check_budget(f"--{limit.replace('_', '-')}", amount)


def _render(found: list[Shown]) -> None:
    from leanify.cli import plans, study_tables

    for number, one in enumerate(found):
        if number:
            print()
        plans.render_plan(one.plan)
        if one.predicted is not None:
            study_tables.render_predictions(one.predicted)
        if one.carried is not None:
            plans.render_steps(one.carried)
