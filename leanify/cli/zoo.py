"""``leanify zoo``: what leanify can do with each timm and transformers model, and how that was checked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leanify.cli.formats import Kind, kind_of, show
from leanify.cli.options import Format, Json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leanify.zoo.verdict import Verdict

_HOW = (
    "read, grow, redesign and control were tried on each model at its default configuration, without weights. The laws "
    "were held on a small version of it, in float64 on random weights: heads doubled with zero output columns gave "
    "the same outputs to 1e-10, the new heads mattered, no attention was missed, one block fewer ran, what was saved "
    "loaded the same, and a design cost what redesign had predicted. supported: four times yes (with rules of "
    "redesign loosened where a note names flags), and every law that "
    "applies held. refused: leanify says why not. failing: neither."
)
_SIGNS = {True: "yes", False: "no", None: "–"}
_ANSWERS = ("read", "grow", "redesign", "control")


def zoo(
    library: Annotated[str | None, typer.Option(metavar="timm|hf", help="only this library")] = None,
    check: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Test a model (phi, 'timm/davit_*', '*') against the laws and update the table."
        ),
    ] = None,
    log: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With --check: store verdicts here, and resume from them.")
    ] = None,
    propose: Annotated[
        str | None, typer.Option(metavar="NAME", help="Suggest rows for a model's classes that have none.")
    ] = None,
    format: Format = None,
    as_json: Json = False,
) -> None:
    """List what leanify can do with the models of timm and transformers, and the reasons for refusals."""
    from leanify.errors import SourceError

    kind = kind_of(format, as_json)
    if library not in (None, "timm", "hf"):
        raise SourceError(f"--library must be timm or hf, not {library!r}")
    if check and propose:
        raise SourceError("--check and --propose cannot be combined; use one at a time")
    if check:
        raise typer.Exit(_check(check, log, kind == "json"))
    if propose:
        raise typer.Exit(_propose(propose, kind == "json"))
    _show(library, kind)


def _show(library: str | None, kind: Kind) -> None:
    from leanify.zoo.shipped import shipped

    table = shipped()
    models = [model for model in table["models"] if library in (None, model["library"])]
    show(kind, {**table, "models": models}, models, lambda: _print(table, models))


def _print(table: dict[str, Any], models: list[dict[str, Any]]) -> None:
    from collections import Counter

    from leanify.terminal import console

    out = console(width=120)
    print(_listed(models, out.width), end="\n\n")
    libraries = sorted({model["library"] for model in models})
    for name in libraries:
        counts = Counter(model["status"] for model in models if model["library"] == name)
        out.print(f"{name}: " + ", ".join(f"{n} {status}" for status, n in counts.most_common()))
    if left := [name for name in table.get("not_checked", []) if name.partition("/")[0] in libraries]:
        out.print(f"{len(left)} more are not checked yet (leanify zoo --check NAME): {', '.join(left)}")
    versions = ", ".join(f"{name} {version}" for name, version in table["checked_with"].items())
    out.print(f"checked with {versions}\n\n{_HOW}")
    later = Counter(model["checked_with"]["code"] for model in models if "checked_with" in model)
    for code, count in later.items():
        out.print(f"{count} of these rows were checked again, with code {code}")


def _listed(models: Sequence[dict[str, Any]], width: int) -> str:
    """Name, status and, from 100 columns on, the answers in a line; below it reasons, and laws that did not apply."""
    from leanify.cli.tables import WIDE, entries

    asked = _ANSWERS if width >= WIDE else ()
    names = [f"{one['library']}/{one['name']}" for one in models]
    longest = max(map(len, names), default=0)
    rows = [(f"{'model':{longest}}  {'status':9}" + "".join(f"  {answer:8}" for answer in asked), "")]
    for name, one in zip(names, models, strict=True):
        answers = "".join(f"  {_SIGNS[one.get(answer)]:8}" for answer in asked)
        notes = _notes(one if asked else {**one, "untested": ()})
        rows.append((f"{name:{longest}}  {one['status']:9}{answers}".rstrip(), notes))
    return entries(rows, width)


def _notes(model: dict[str, Any]) -> str:
    untested, given = model.get("untested"), model.get("given")
    laws = f"not applicable: {', '.join(untested)}" if untested else ""
    needed = f"given {', '.join(given)}, which upstream's default leaves unset" if given else ""
    flags = f"redesigned with {model['flags']}" if model.get("flags") else ""
    return " · ".join(filter(None, (model["reason"], laws, needed, flags)))


def _check(patterns: list[str], log: Path | None, as_json: bool) -> int:
    """Check models one by one and update the shipped table. Returns the exit code: 1 if a law is broken."""
    import json
    import os
    import sys

    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch

    from leanify.zoo import table, tiny

    torch.set_num_threads(1)
    models = table.named(patterns)
    tiny.warm()
    made: list[Verdict] = []
    for one in table.checked(models, log):
        made.append(one)
        row = one.to_json()
        answers = ", ".join(f"{answer} {_SIGNS[row[answer]]}" for answer in _ANSWERS)
        line = f"{one.status:9} {one.library}/{one.name}: {answers} · {_notes(row)}".removesuffix(" · ")
        print(line, file=sys.stderr if as_json else sys.stdout, flush=True)
    path = table.update(made, whole=patterns == ["*"])
    if as_json:
        print(json.dumps({"models": [one.to_json() for one in made], "checked_with": table.made_with()}, indent=2))
    print(f"written to {path}", file=sys.stderr)
    return int(any(one.status == "failing" for one in made))


def _propose(pattern: str, as_json: bool) -> int:
    """Print the proposed rows as TOML for a table. Returns the exit code: 1 if no row passes the laws."""
    import json
    import os
    import sys

    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from leanify.errors import SourceError
    from leanify.zoo import table, tiny
    from leanify.zoo.propose import propose

    models = table.named([pattern])
    if len(models) > 1:
        raise SourceError(f"--propose needs a single model; {pattern!r} matches {len(models)}")
    ((library, name),) = models
    tiny.warm()
    found = propose(library, name)
    if as_json:
        print(json.dumps({"rows": found.toml(), "known": [row.name for row in found.known], "broken": found.broken}))
        return int(bool(found.broken))
    print(found.toml(), end="")
    if not found.rows:
        print(f"every attention and MLP found in {library}/{name} has a row already", file=sys.stderr)
    else:
        file = "timm.toml" if library == "timm" else "transformers.toml"
        print(f"# put into leanify/lens/families/{file}, then: leanify zoo --check {library}/{name}", file=sys.stderr)
    if found.broken:
        print(f"with these rows a law is broken: {found.broken}", file=sys.stderr)
    return int(bool(found.broken))
