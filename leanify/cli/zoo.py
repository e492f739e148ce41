"""``leanify zoo``: what leanify can do with each timm and transformers model, and how that was checked."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Annotated, Any

import typer

from leanify.cli.options import Format, Json
from leanify.cli.output import entries, output_kind, print_next, show
from leanify.core.errors import SourceError
from leanify.core.terminal import console
from leanify.lens.zoo import load_table

_HOW = (
    "read, grow, redesign and control were tried on each model at its default configuration, without weights. The laws "
    "were held on a small version of it, in float64 on random weights: heads doubled with zero output columns gave "
    "the same outputs to 1e-10, the new heads mattered, no attention was missed, one block fewer ran, what was saved "
    "loaded the same, and a design cost what redesign had predicted. supported: four times yes (with rules of "
    "redesign loosened where a note names flags), and every law that "
    "applies held. refused: leanify says why not. failing: neither."
)
STATUSES = ("supported", "refused", "failing")
PLACE = re.compile(r" \([\w.]+\)$")  # a place in a model, in which models with the same reason differ


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
    format: Format = None,
    as_json: Json = False,
) -> None:
    """Look up what leanify can do with the models of timm and transformers, and the reasons for refusals.

    \b
    Examples:
      leanify zoo swin
      leanify zoo --status refused
    """
    kind = output_kind(format, as_json)
    if library not in (None, "timm", "hf"):
        raise SourceError(f"--library must be timm or hf, not {library!r}")
    if status not in (None, *STATUSES):
        raise SourceError(f"--status must be {', '.join(STATUSES[:-1])} or {STATUSES[-1]}, not {status!r}")
    table = load_table()
    models = _find_models(table["models"], words or [], library, status)
    is_search = bool(words or library or status)
    show(kind, {**table, "models": models}, models, lambda: _print(table, models, is_search, explain))


def _find_models(
    rows: Sequence[dict[str, Any]], words: Sequence[str], library: str | None, status: str | None
) -> list[dict[str, Any]]:
    """The models that have all words in their names. Raises SourceError if there are none."""
    matches = []
    for model in rows:
        name = _name(model).lower()
        if all(word.lower() in name for word in words):
            matches.append(model)
    models = [model for model in matches if library in (None, model["library"]) and status in (None, model["status"])]
    if models:
        return models

    # no model: name the filter that excludes all, or similar names
    search_text = " and ".join(words)
    if matches:
        kind = " ".join(filter(None, (status, library)))
        raise SourceError(
            f"of {len(matches)} models with {search_text or 'any name'}, none is {kind}: leanify zoo {search_text}"
        )
    names = [model["name"] for model in rows]
    known_words = {*names, *(name.partition("_")[0] for name in names)}
    suggestions = ", ".join(get_close_matches("_".join(words), sorted(known_words)))
    nearest = f"; nearest: {suggestions}" if suggestions else ""
    raise SourceError(f"no model has {search_text} in its name{nearest}")


def _name(model: dict[str, Any]) -> str:
    return f"{model['library']}/{model['name']}"


def _print(table: dict[str, Any], models: list[dict[str, Any]], is_search: bool, explain: bool) -> None:
    """Print the models and their counts; on a terminal the counts of all models alone, and how to search them."""
    out = console(width=120)
    if is_search or not out.is_terminal:
        longest = max(len(_name(model)) for model in models)
        rows = [(f"{_name(model):{longest}}  {model['status']:9}", describe(model, explain)) for model in models]
        if out.is_terminal:  # models with the same reason share it
            groups: dict[str, list[str]] = {}
            for name, notes in rows:
                groups.setdefault(PLACE.sub("", notes), []).append(name.rstrip())
            print(entries([("\n".join(names), notes) for notes, names in groups.items()], out.width), end="\n\n")
        else:
            print("\n".join(f"{name}  {notes}".rstrip() for name, notes in rows), end="\n\n")

    # a line of counts for each library
    for library in sorted({model["library"] for model in models}):
        counts = Counter(model["status"] for model in models if model["library"] == library)
        version = table["checked_with"].get("transformers" if library == "hf" else library, "")
        name = "hf (transformers)" if library == "hf" else library
        out.print(f"{name} {version}: " + ", ".join(f"{n} {status}" for status, n in counts.most_common()))
    if not_checked := table.get("not_checked", []):
        out.print(f"{len(not_checked)} more are not checked yet: {', '.join(not_checked)}")

    # how the table was made, or the commands to type next
    if explain:
        versions = ", ".join(f"{name} {version}" for name, version in table["checked_with"].items())
        out.print(f"\n{_HOW}\n\nchecked with {versions}")
    elif not is_search and out.is_terminal:
        print_next(
            "leanify zoo swin              models with this in their name",
            "leanify zoo --status refused  which cannot be redesigned, and why",
            "leanify zoo --explain         how that was checked",
        )
    elif out.is_terminal and (first := next((model for model in models if model["status"] == "supported"), None)):
        print_next(f"leanify redesign {_name(first)}")


def describe(model: dict[str, Any], explain: bool) -> str:
    """The reason for a refusal, or the options that a model needs; with ``explain`` also the untested laws."""
    reason = model["reason"].removeprefix(_name(model)).removeprefix(" cannot be redesigned").removeprefix(": ")
    notes = [reason.lstrip()]
    if model.get("flags"):
        notes.append(f"redesigned with {model['flags']}")
    if explain and model.get("untested"):
        notes.append(f"no occasion for the laws: {', '.join(model['untested'])}")
    if explain and model.get("given"):
        notes.append(f"given {', '.join(model['given'])}, which upstream's default leaves unset")
    return " · ".join(filter(None, notes))
