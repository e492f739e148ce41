"""The zoo's table, one verdict per model, shipped as `table.json` beside this file, and its updates."""

from __future__ import annotations

import fnmatch
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from importlib import metadata
from pathlib import Path

from leanify.errors import DirectoryError, SourceError
from leanify.runs import writing
from leanify.runs.files import read_text
from leanify.upstream.libraries import nearest
from leanify.zoo import tiny
from leanify.zoo.shipped import shipped as shipped
from leanify.zoo.shipped import supported as supported
from leanify.zoo.verdict import ModelVerdict, verdicts, without_attention

PACKAGE = Path(__file__).parents[1]


def named(patterns: Sequence[str]) -> list[tuple[str, str]]:
    """(library, name) of every model of a pattern: ``phi``, ``timm/davit_*``, ``*``. Raises SourceError."""
    models = [(library, name) for library in tiny.LIBRARIES for name in tiny.names(library)]
    found: list[tuple[str, str]] = []
    for pattern in patterns:
        matches = [m for m in models if fnmatch.fnmatch(m[1], pattern) or fnmatch.fnmatch("/".join(m), pattern)]
        if not matches:
            near = nearest(pattern.rpartition("/")[2], [name for _, name in models], 5)
            raise SourceError(f"no model of timm or transformers is called {pattern!r}{near}")
        found += matches
    return list(dict.fromkeys(found))


def checked(models: Sequence[tuple[str, str]], log: Path | None = None) -> Iterator[ModelVerdict]:
    """Yield the models' verdicts. A ``log`` stores them one by one, and verdicts already in it are reused.

    Raises DirectoryError if the log was made with other code or library versions.
    """
    done: dict[tuple[str, str], ModelVerdict] = {}
    if log is not None and log.exists():
        lines = read_text(log, DirectoryError).splitlines(keepends=True)
        if not lines or json.loads(lines[0]) != made_with():
            raise DirectoryError(f"{log} was made with other code or library versions; use another --log, or delete it")
        for line in lines[1:]:
            if line.endswith("\n"):  # a killed run leaves half a line
                row = json.loads(line)
                one = ModelVerdict(**{**row, "untested": tuple(row["untested"])})
                done[one.library, one.name] = one
    yield from (done[model] for model in models if model in done)
    if log is not None and not log.exists():
        writing.write(log, json.dumps(made_with()) + "\n")
    for one in verdicts([model for model in models if model not in done]):
        if log is not None:
            with writing.appending(log) as file:
                file.write(json.dumps(one.to_json()) + "\n")
        yield one


def update(made: Iterable[ModelVerdict], whole: bool) -> Path:
    """Write verdicts to the shipped table, replacing all rows (``whole``) or only their own. Raises DirectoryError.

    One model per line, so that a change is one line in a diff.
    """
    table = shipped()
    rows = [one.to_json() for one in made if not without_attention(one)]
    if whole:
        table = {"checked_with": made_with(), "models": rows}
    else:
        if table["checked_with"] != made_with():
            rows = [{**row, "checked_with": made_with()} for row in rows]
        new = {(row["library"], row["name"]): row for row in rows}
        table["not_checked"] = [name for name in table.get("not_checked", []) if tuple(name.split("/")) not in new]
        old = [new.pop((row["library"], row["name"]), row) for row in table["models"]]
        table["models"] = [*old, *new.values()]
    models = sorted(table["models"], key=lambda row: (tiny.LIBRARIES.index(row["library"]), row["name"]))
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in models)
    head = "".join(f'"{key}": {json.dumps(value)},\n' for key, value in table.items() if key != "models")
    path = PACKAGE / "zoo" / "table.json"
    try:
        writing.write(path, f'{{{head}"models": [\n{lines}\n]}}\n')
    except OSError as error:
        raise DirectoryError(f"the table {path} cannot be written: {error.strerror}") from error
    return path


def made_with() -> dict[str, str]:
    """What verdicts depend on: library versions, and a digest of leanify's code and family tables."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*")):
        if path.suffix in (".py", ".toml") and "_recipes" not in path.parts:
            digest.update(path.relative_to(PACKAGE).as_posix().encode() + path.read_bytes())
    versions = {name: metadata.version(name) for name in ("leanify", "timm", "transformers", "torch")}
    return {**versions, "code": digest.hexdigest()[:12]}
