"""Verdicts of many models, and updates of the shipped table, `leanify/lens/zoo.json`."""

from __future__ import annotations

import fnmatch
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from importlib import metadata
from pathlib import Path

import leanify
from leanify.core.errors import DirectoryError, SourceError
from leanify.core.files import writing
from leanify.core.files.reading import read_text
from leanify.lens.zoo import load_table
from leanify.upstream.libraries import nearest

from . import tiny
from .verdict import ModelVerdict, has_no_attention, verdicts

PACKAGE = Path(leanify.__file__).parent
PATH = PACKAGE / "lens" / "zoo.json"


def supported_models(library: str) -> list[str]:
    """The models of a library that are supported according to the shipped table."""
    models = load_table()["models"]
    return [model["name"] for model in models if model["library"] == library and model["status"] == "supported"]


def matching_models(patterns: Sequence[str]) -> list[tuple[str, str]]:
    """(library, name) of every model that a pattern matches: ``phi``, ``timm/davit_*``, ``*``. Raises SourceError."""
    models = [(library, name) for library in tiny.LIBRARIES for name in tiny.names(library)]
    all_matches: list[tuple[str, str]] = []
    for pattern in patterns:
        matches = [m for m in models if fnmatch.fnmatch(m[1], pattern) or fnmatch.fnmatch("/".join(m), pattern)]
        if not matches:
            suggestions = nearest(pattern.rpartition("/")[2], [name for _, name in models], 5)
            raise SourceError(f"no model of timm or transformers is called {pattern!r}{suggestions}")
        all_matches += matches
    return list(dict.fromkeys(all_matches))


def check(models: Sequence[tuple[str, str]], log: Path | None = None) -> Iterator[ModelVerdict]:
    """Yield the models' verdicts. A ``log`` stores them one by one, and verdicts already in it are reused.

    Raises DirectoryError if the log was made with other code or library versions.
    """
    log_verdicts: dict[tuple[str, str], ModelVerdict] = {}
    if log is not None and log.exists():
        lines = read_text(log, DirectoryError).splitlines(keepends=True)
        if not lines or json.loads(lines[0]) != versions():
            raise DirectoryError(f"{log} was made with other code or library versions; use another --log, or delete it")
        for line in lines[1:]:
            if line.endswith("\n"):  # a killed run leaves half a line
                row = json.loads(line)
                verdict = ModelVerdict(**{**row, "untested": tuple(row["untested"])})
                log_verdicts[verdict.library, verdict.name] = verdict
    yield from (log_verdicts[model] for model in models if model in log_verdicts)
    if log is not None and not log.exists():
        writing.write(log, json.dumps(versions()) + "\n")
    for verdict in verdicts([model for model in models if model not in log_verdicts]):
        if log is not None:
            with writing.open_append(log) as file:
                file.write(json.dumps(verdict.to_json()) + "\n")
        yield verdict


def update(new_verdicts: Iterable[ModelVerdict], full: bool) -> None:
    """Write verdicts to the shipped table, replacing all rows (``full``) or only their own.

    One model per line, so that a change is one line in a diff.
    """
    table = load_table()
    rows = [verdict.to_json() for verdict in new_verdicts if not has_no_attention(verdict)]
    if full:
        table = {"checked_with": versions(), "models": rows}
    else:
        if table["checked_with"] != versions():
            rows = [{**row, "checked_with": versions()} for row in rows]
        new = {(row["library"], row["name"]): row for row in rows}
        table["not_checked"] = [name for name in table.get("not_checked", []) if tuple(name.split("/")) not in new]
        old = [new.pop((row["library"], row["name"]), row) for row in table["models"]]
        table["models"] = [*old, *new.values()]
    models = sorted(table["models"], key=lambda row: (tiny.LIBRARIES.index(row["library"]), row["name"]))
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in models)
    head = "".join(f'"{key}": {json.dumps(value)},\n' for key, value in table.items() if key != "models")
    writing.write(PATH, f'{{{head}"models": [\n{lines}\n]}}\n')


def versions() -> dict[str, str]:
    """What verdicts depend on: library versions, and a digest of leanify's code, its family tables and the laws."""
    digest = hashlib.sha256()
    for folder in (PACKAGE, Path(__file__).parent):
        for path in sorted(folder.rglob("*")):
            if path.suffix in (".py", ".toml") and "_recipes" not in path.parts:
                digest.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
    library_versions = {name: metadata.version(name) for name in ("leanify", "timm", "transformers", "torch")}
    return {**library_versions, "code": digest.hexdigest()[:12]}
