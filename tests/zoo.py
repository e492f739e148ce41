"""Hold every model of both zoos against the laws and write the table that ``leanify zoo`` shows.

    python tests/zoo.py                     everything, hours on two cores
    python tests/zoo.py --library timm      one library
    python tests/zoo.py --only 'vit_*'      some models, printed, nothing written

Each model is built small (timm: few pixels, and few blocks where its constructor takes them; transformers: a tiny
configuration), in a process of its own, with a time limit. ``supported`` means that every law of `laws` holds,
``refused`` that leanify says why not, ``failing`` everything else.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import json
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import apart

TABLE = Path(__file__).parent.parent / "leanify" / "families" / "zoo.json"
SECONDS = 300  # for one model


def check(library: str, name: str) -> dict[str, str]:
    """One model against the laws, in this process."""
    import small

    from leanify.errors import SourceError

    warnings.simplefilter("ignore")
    try:
        model, call = small.build(library, name)
    except SourceError as error:
        return {"status": "refused", "reason": _line(error)}
    except Exception as error:
        return {"status": "failing", "reason": f"no small example: {_line(error)}"}
    twin = (library, signature(model))
    if twin not in _DONE:
        _DONE[twin] = _held(model, call)
    return _DONE[twin]


def _held(model: Any, call: Any) -> dict[str, str]:
    import laws

    from leanify.errors import UnsupportedModel

    try:
        shape = laws.hold(model, call)
        laws.kept(model, call)
        laws.priced(model)
    except UnsupportedModel as error:
        return {"status": "refused", "reason": _line(error)}
    except Exception as error:
        return {"status": "failing", "reason": _line(error)}
    return {"status": "supported", "reason": "", "shape": str(shape)}


_DONE: dict[tuple[str, str], dict[str, str]] = {}  # results by signature


def signature(model: Any) -> str:
    """A hash of every module's class, numbers and tensor shapes: models alike in all of them are held once."""
    facts = []
    for path, module in model.named_modules():
        numbers = sorted((k, v) for k, v in vars(module).items() if isinstance(v, (bool, int, float, str)))
        shapes = [(name, tuple(p.shape)) for name, p in module.named_parameters(recurse=False)]
        facts.append((path, type(module).__module__, type(module).__qualname__, numbers, shapes))
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def _line(error: Exception) -> str:
    text = " ".join(str(error).split())[:300]
    return (
        text
        if type(error).__name__ in ("UnsupportedModel", "SourceError", "LawBroken")
        else f"{type(error).__name__}: {text}"
    )


def check_all(library: str, some: list[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Every model against the laws, in child processes."""
    yield from apart.each(partial(check, library), some, SECONDS, lambda why: {"status": "failing", "reason": why})


def names(library: str) -> list[str]:
    import small

    return small.timm_names() if library == "timm" else small.hf_names()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", choices=("timm", "hf"))
    parser.add_argument("--only", default=["*"], nargs="+")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch

    torch.set_num_threads(1)
    import small

    warnings.simplefilter("ignore")
    small.warm()
    rows: list[dict[str, Any]] = []
    for library in [options.library] if options.library else ["timm", "hf"]:
        some = [name for pattern in options.only for name in fnmatch.filter(names(library), pattern)]
        start = time.time()
        for name, result in check_all(library, some):
            rows.append({"library": library, "name": name, **result})
            detail = result["reason"] or result["shape"]
            print(f"{result['status']:9} {library}/{name} {time.time() - start:.1f}s {detail}", flush=True)
            start = time.time()
    print(Counter((row["library"], row["status"]) for row in rows))
    if options.only == ["*"] and not options.library:
        write(rows, TABLE)
    elif options.out:
        write(rows, options.out)


def write(rows: list[dict[str, Any]], path: Path) -> None:
    """The table as JSON, a model a line; timm's models without any attention (ResNets, …) are none of its business."""
    versions = {name: metadata.version(name) for name in ("leanify", "timm", "transformers", "torch")}
    rows = [row for row in rows if row["library"] != "timm" or "has no attention layer" not in row["reason"]]
    lines = [json.dumps({key: row[key] for key in ("library", "name", "status", "reason")}) for row in rows]
    models = ",\n".join(lines)
    path.write_text(f'{{"checked_with": {json.dumps(versions)},\n"models": [\n{models}\n]}}\n')


if __name__ == "__main__":
    main()
