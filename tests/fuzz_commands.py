"""The command line under the fuzzer: any command and option, any key of a recipe, with anything for a value."""

from __future__ import annotations

import contextlib
import io
import random
import sys
from pathlib import Path
from typing import Any

from fuzz_intact import RECIPE, SHRUNK

from leanify.errors import LeanifyError

UNEXPECTED = "leanify: unexpected error"  # what the command line says of an exception that nothing expected


def command(*arguments: str) -> None:
    """The command line, as the console script calls it. Raises where a traceback or a bug of leanify's own ends it."""
    from leanify.cli import main

    sys.argv = ["leanify", *arguments]
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            main()
    except SystemExit as error:
        words = said.getvalue()
        if "Traceback" in words or UNEXPECTED in words or error.code not in (0, 1, 2, None):
            raise RuntimeError(f"exit code {error.code}: {words[-300:]}") from error
        if error.code:
            raise LeanifyError(words.strip().replace("\n", " ")) from error
    finally:
        sys.stderr.write(said.getvalue())


def of_command(draw: random.Random, home: Path) -> None:
    """Any command with one or two of its options, each with anything for a value."""
    name = draw.choice(list(USES))
    words = list(draw.choice(USES[name]))
    options = [one for one in parameters(name) if one.opts[0].startswith("-") and one.opts[0] not in LEFT_OUT]
    for option in draw.sample(options, min(len(options), draw.choice([1, 1, 2]))):
        spelling = draw.choice(option.opts)
        words += [spelling] if option.is_flag else [spelling, draw.choice(WORDS)]
    if draw.random() < 0.1:
        words = [draw.choice(WORDS) if draw.random() < 0.5 else word for word in words]
    command(name, *words)


WORDS = (
    "-1", "0", "1", "2", "3", "7", "0.5", "-0.5", "1.5", "1e-400", "1e400", "nan", "inf", "-inf", "1000000",
    "", " ", "٣", "１２", "²", "½", "1_000", "0x10", "1e3", "+1", "--", "-", "1,2", ",", "1,,2", "-1,2", "2,4,8",
    "a=b", "=", "key=", "=v", "a.b=1", "encoder=6", "x=depth:1", "heads=2,4", "M", "1M", "-1M", "nanM", "12ms",
    "True", "None", "[]", "{}", "all", "auto", "cpu", "cuda:99", "meta", "float16", "hf", "timm", "AutoModel",
    "/dev/null", "/dev/full", "/dev/zero", "/", ".", "..", "nowhere/x", "rows.txt", "lean-timm", "lean-hf", "run",
    "κ×", "a\udcff", "a\nb", "\t", "%s", "{x}", "[red]", "[/red]", "$(ls)", "x.html", "x.png", "images", "*", "?",
    "~", "~nobody/x", "study", "-1GB", "0.5,0.5", str(10**24), "x" * 5000,
)  # fmt: skip
SHRINK = ("--target-params", "0.8", "--count", "body", "--minutes", "0", "--designs", "narrow",
          *(word for setting in SHRUNK for word in ("--set", setting)))  # fmt: skip
USES = {
    "redesign": (["lean-timm", "--target-params", "0.9", "--min-depth", "1", "-o", "out"], ["lean-hf", "--depth", "1"]),
    "train": (["run", "--dry-run"], ["hf", "--dry-run", "--set", "data.path=rows.csv"]),
    "compare": (["study", "--report"], ["run", "--dry-run", "--seeds", "2"]),
    "glue": (["nowhere"], ["hf", "--data", "glue/nothing"]),
    "profile": (["lean-timm", "--no-measure"], ["lean-hf", "--repeats", "1", "--batch-size", "1"]),
    "condition": (["lean-timm", "--samples", "2"], ["hf", "--samples", "2", "--data", "rows.csv"]),
    "export": (["nowhere", "-o", "out", "--format", "hf"], ["lean-timm", "-o", "out/out", "--format", "x"]),
    "shrink": (["hf", "--data", "rows.csv", *SHRINK, "-o", "out", "--dry-run"],),
    "recipes": ([], ["digits"]),
    "runs": ([], ["."]),
    "show": (["run"], ["lean-timm"], ["digits"]),
    "predict": (["run", "images"], ["run", "rows.csv"]),
    "zoo": (["--propose", "nothing"], ["--library", "timm"]),
}
LEFT_OUT = ("--install-completion", "--show-completion", "--check", "--audit", "--engine")  # write or take long


def parameters(name: str) -> list[Any]:
    """The options of a command as the command line declares them, so that a new one is fuzzed as well."""
    import typer

    from leanify.cli import app

    found: Any = typer.main.get_command(app(name))
    return [one for one in found.params if not getattr(one, "hidden", False)]


def of_setting(draw: random.Random, home: Path) -> None:
    """Every key of a recipe with anything for a value."""
    from leanify.runs import recipe as recipes

    table = recipes.parse(RECIPE).to_dict()
    keys = [f"{section}.{key}" for section, entries in table.items() for key in entries]
    keys += [f"data.{key}" for key in ("path", "tokenizer", "length", "text", "label", "img_size", "workers", "test")]
    keys += ["distill.source", "distill.kind", "model.shape", "model.weights", "x", "model", ""]
    settings = [
        part for _ in range(draw.choice([1, 2])) for part in ("--set", f"{draw.choice(keys)}={draw.choice(WORDS)}")
    ]
    command("train", "run", "--dry-run", *settings)
