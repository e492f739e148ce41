"""``leanify zoo``: what leanify can do with each timm and transformers model, and how that was checked."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leanify.cli.formats import kind_of, show
from leanify.cli.next_lines import print_next
from leanify.cli.options import Format, Json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leanify.zoo.verdict import ModelVerdict

_HOW = (
    "read, grow, redesign and control were tried on each model at its default configuration, without weights. The laws "
    "were held on a small version of it, in float64 on random weights: heads doubled with zero output columns gave "
    "the same outputs to 1e-10, the new heads mattered, no attention was missed, one block fewer ran, what was saved "
    "loaded the same, and a design cost what redesign had predicted. supported: four times yes (with rules of "
    "redesign loosened where a note names flags), and every law that "
    "applies held. refused: leanify says why not. failing: neither."
)
STATUSES = ("supported", "refused", "failing")
PLACE = re.compile(r" \([\w.]+\)$")  # where in a model: it tells models of one reason apart
_SIGNS = {True: "yes", False: "no", None: "–"}
_ANSWERS = ("read", "grow", "redesign", "control")


def zoo(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="WORD…", help="list the models with these words in their name: swin")
    ] = None,
    library: Annotated[str | None, typer.Option(metavar="timm|hf", help="only this library")] = None,
    status: Annotated[
        str | None, typer.Option(metavar="supported|refused|failing", help="only models with this status")
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="how it was checked, and which laws a model has no occasion for")
    ] = False,
    check: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="test a model (phi, 'timm/davit_*', '*') against the laws and update the table"
        ),
    ] = None,
    log: Annotated[
        Path | None, typer.Option(metavar="FILE", help="with --check: store verdicts here, and resume from them")
    ] = None,
    propose: Annotated[
        str | None, typer.Option(metavar="NAME", help="suggest rows for a model's classes that have none")
    ] = None,
    format: Format = None,
    as_json: Json = False,
) -> None:
    """Look up what leanify can do with the models of timm and transformers, and the reasons for refusals."""
    from leanify.errors import SourceError

    kind = kind_of(format, as_json)
    if library not in (None, "timm", "hf"):
        raise SourceError(f"--library must be timm or hf, not {library!r}")
    if status not in (None, *STATUSES):
        raise SourceError(f"--status must be {', '.join(STATUSES[:-1])} or {STATUSES[-1]}, not {status!r}")
    if check and propose:
        raise SourceError("--check and --propose cannot be combined; use one at a time")
    if check:
        raise typer.Exit(_check(check, log, kind == "json"))
    if propose:
        raise typer.Exit(_propose(propose, kind == "json"))
    table, models = _found(words or [], library, status)
    asked = bool(words or library or status)
    show(kind, {**table, "models": models}, models, lambda: _print(table, models, asked, explain))


def _found(
    words: Sequence[str], library: str | None, status: str | None
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The table, and its models that have all of the words in their names. Raises SourceError where there is none."""
    from difflib import get_close_matches

    from leanify.errors import SourceError
    from leanify.zoo.shipped import shipped

    table = shipped()
    named = []
    for model in table["models"]:
        name = _name(model).lower()
        if all(word.lower() in name for word in words):
            named.append(model)
    models = [model for model in named if library in (None, model["library"]) and status in (None, model["status"])]
    if models:
        return table, models
    asked = " and ".join(words)
    if named:
        kind = " ".join(filter(None, (status, library)))
        raise SourceError(f"of {len(named)} models with {asked or 'any name'}, none is {kind}: leanify zoo {asked}")
    names = [model["name"] for model in table["models"]]
    known = {*names, *(name.partition("_")[0] for name in names)}
    near = ", ".join(get_close_matches("_".join(words), sorted(known)))
    raise SourceError(f"no model has {asked} in its name{f'; nearest: {near}' if near else ''}")


def _name(model: dict[str, Any]) -> str:
    return f"{model['library']}/{model['name']}"


def _print(table: dict[str, Any], models: list[dict[str, Any]], asked: bool, explain: bool) -> None:
    """Sums, and the list below them; on a terminal the list of all models is left out, and how to search it is said."""
    from collections import Counter

    from leanify.terminal import console

    out = console(width=120)
    if asked or not out.is_terminal:
        print(_listed(models, out.width if out.is_terminal else None, explain), end="\n\n")
    for library in sorted({model["library"] for model in models}):
        counts = Counter(model["status"] for model in models if model["library"] == library)
        version = table["checked_with"].get("transformers" if library == "hf" else library, "")
        name = "hf (transformers)" if library == "hf" else library
        out.print(f"{name} {version}: " + ", ".join(f"{n} {status}" for status, n in counts.most_common()))
    if left := table.get("not_checked", []):
        out.print(f"{len(left)} more are not checked yet (leanify zoo --check NAME): {', '.join(left)}")
    if explain:
        versions = ", ".join(f"{name} {version}" for name, version in table["checked_with"].items())
        out.print(f"\n{_HOW}\n\nchecked with {versions}")
    elif not asked and out.is_terminal:
        print_next(
            "leanify zoo swin              models with this in their name",
            "leanify zoo --status refused  which cannot be redesigned, and why",
            "leanify zoo --explain         how that was checked",
        )
    elif out.is_terminal and (first := next((one for one in models if one["status"] == "supported"), None)):
        print_next(f"leanify redesign {_name(first)}")


def _listed(models: Sequence[dict[str, Any]], width: int | None, explain: bool) -> str:
    """Name and status of each model, and the models of one reason above it; in a pipe (no width) in a line each."""
    from leanify.terminal import wrap

    longest = max(len(_name(model)) for model in models)
    rows = [(f"{_name(model):{longest}}  {model['status']:9}", _notes(model, explain)) for model in models]
    if width is None:
        return "\n".join(f"{name}  {notes}".rstrip() for name, notes in rows)
    groups: dict[str, list[str]] = {}
    for name, notes in rows:
        groups.setdefault(PLACE.sub("", notes), []).append(name.rstrip())
    lines = []
    for notes, names in groups.items():
        lines += [*names, *(f"    {line}" for line in wrap(notes, width - 4).splitlines())]
    return "\n".join(lines)


def _notes(model: dict[str, Any], explain: bool) -> str:
    """Why not, or with which options; with ``explain`` also what was not tried."""
    reason = model["reason"].removeprefix(_name(model)).removeprefix(" cannot be redesigned").removeprefix(": ")
    notes = [reason.lstrip()]
    if model.get("flags"):
        notes.append(f"redesigned with {model['flags']}")
    if explain and model.get("untested"):
        notes.append(f"no occasion for the laws: {', '.join(model['untested'])}")
    if explain and model.get("given"):
        notes.append(f"given {', '.join(model['given'])}, which upstream's default leaves unset")
    return " · ".join(filter(None, notes))


def _named(patterns: list[str]) -> tuple[Any, list[tuple[str, str]]]:
    """The module that keeps the table, and the models of these names, ready to be built without asking the hub."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from leanify.zoo import table, tiny

    models = table.named(patterns)
    tiny.warm()
    return table, models


def _check(patterns: list[str], log: Path | None, as_json: bool) -> int:
    """Check models one by one and update the shipped table. Returns the exit code: 1 if a law is broken."""
    table, models = _named(patterns)
    import torch

    torch.set_num_threads(1)
    made: list[ModelVerdict] = []
    for one in table.checked(models, log):
        made.append(one)
        row = one.to_json()
        answers = ", ".join(f"{answer} {_SIGNS[row[answer]]}" for answer in _ANSWERS)
        line = f"{one.status:9} {one.library}/{one.name}: {answers} · {_notes(row, True)}".removesuffix(" · ")
        print(line, file=sys.stderr if as_json else sys.stdout, flush=True)
    path = table.update(made, whole=patterns == ["*"])
    if as_json:
        print(json.dumps({"models": [one.to_json() for one in made], "checked_with": table.made_with()}, indent=2))
    print(f"written to {path}", file=sys.stderr)
    return int(any(one.status == "failing" for one in made))


def _propose(pattern: str, as_json: bool) -> int:
    """Print the proposed rows as TOML for a table. Returns the exit code: 1 if no row passes the laws."""
    from leanify.errors import SourceError

    _, models = _named([pattern])
    if len(models) > 1:
        raise SourceError(f"--propose needs a single model; {pattern!r} matches {len(models)}")
    from leanify.zoo.propose import propose

    ((library, name),) = models
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
