"""The commands of README.md and docs/: run as they stand, and their output written back.

    python tests/documents.py            runs every block; exit 1 where one fails or its output differs
    python tests/documents.py --write    runs them and writes the output of ``console`` blocks into the pages

A page's blocks run in order in one new folder. ``console`` blocks hold commands behind ``$`` and their standard output,
which must be equal but for durations and rates; ``sh`` and ``python`` blocks must succeed. A comment before a block
changes that:

    <!-- not run: WHY -->      it is left out
    <!-- output varies -->     what it prints is kept, and not compared
    <!-- exit N -->            the exit code that its last command has; what it says on stderr is shown, too
    <!-- run before … -->      commands that a reader does not need: they make sample data
    <!-- shorter: WORDS -->   what its first leanify command has, too, where it is only checked; its output varies then

``<!-- json: COMMAND -->`` stands above a section that must name every key that COMMAND prints.
``<!-- written: keys -->`` … ``<!-- end -->`` holds the tables of a recipe's keys.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SAMPLES = Path(__file__).parent / "fixtures" / "documents"  # scripts that make sample data
BLOCK = re.compile(
    r"(?P<notes>(?:<!--(?:(?!-->)[\s\S])*-->\n)*)^```(?P<kind>console|sh|python)\n(?P<body>[\s\S]*?)^```$", re.MULTILINE
)
NOTE = re.compile(r"<!--\s*([\s\S]*?)\s*-->")
GENERATED = re.compile(r"(<!-- written: keys -->\n)[\s\S]*?(<!-- end -->)")
TIMES = re.compile(r"\d[\d,.]*(?:–\d[\d,.]*)?\s*(?:µs|ms|seconds|s|min|h|/s|hours)(?![\w/])")
JSON = re.compile(r"<!-- json: (.*?) -->")
OPAQUE_KEYS = ("architecture", "weights", "fronts", "spectrum", "given")  # of values, or named by the user


@dataclass(frozen=True)
class Block:
    """A fenced block of a page; ``start`` and ``end`` are where its body lies."""

    kind: str
    body: str
    start: int
    end: int
    setup: str = ""
    not_run: str | None = None
    varies: bool = False
    exit_code: int = 0
    shorter: str = ""

    @property
    def commands(self) -> list[str]:
        """The commands of a console block, in order; a line that ends in a backslash goes on."""
        return re.findall(r"^\$ ((?:.*\\\n)*.*)$", self.body, re.MULTILINE)


class BlockFailed(Exception):
    """A block did not do what its page says."""


def pages() -> list[Path]:
    paths = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in paths if page.name != "CHANGELOG.md"]


def parse_blocks(text: str) -> Iterator[Block]:
    for match in BLOCK.finditer(text):
        block = Block(match["kind"], match["body"], match.start("body"), match.end("body"))
        for note in NOTE.findall(match["notes"]):
            if note.startswith("run before"):
                block = replace(block, setup=note.removeprefix("run before"))
            elif note.startswith("not run:"):
                block = replace(block, not_run=note.removeprefix("not run:").strip())
            elif note.startswith("exit "):
                block = replace(block, exit_code=int(note.removeprefix("exit ")))
            elif note.startswith("shorter:"):
                block = replace(block, shorter=note.removeprefix("shorter:").strip(), varies=True)
            elif note == "output varies":
                block = replace(block, varies=True)
        yield block


def normalise(output: str) -> str:
    """Output without what differs from machine to machine: durations, rates, and the width of columns."""
    return "\n".join(" ".join(TIMES.sub("TIME", line).split()) for line in output.strip().splitlines())


def shell(command: str, folder: Path, exit_code: int = 0) -> str:
    """What a command prints, and where it is to fail what it says of it. Raises BlockFailed if it ends otherwise."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "COLUMNS": "88", "NO_COLOR": "1", "TERM": "dumb"}
    environment |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    process = subprocess.run(
        ["bash", "-e", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, timeout=900
    )
    if process.returncode != exit_code:
        raise BlockFailed(
            f"$ {command}\nexit {process.returncode}, expected {exit_code}\n"
            f"{process.stdout[-800:]}{process.stderr[-1500:]}"
        )
    return process.stdout + (process.stderr if exit_code else "")


def run(block: Block, folder: Path) -> str:
    """Run a block and return its body as it is now. Raises BlockFailed."""
    if block.setup:
        shell(block.setup, folder)
    if block.kind != "console":
        (folder / "block.py").write_text(block.body, encoding="utf-8")
        shell(block.body if block.kind == "sh" else f"{sys.executable} block.py", folder, block.exit_code)
        return block.body
    *others, last = block.commands
    outputs = [(command, shell(command, folder)) for command in others]
    outputs.append((last, shell(last, folder, block.exit_code)))
    lines = []
    for command, output in outputs:
        said = "\n".join(line.rstrip() for line in output.rstrip().splitlines())
        lines.append(f"$ {command}\n{said}\n")
    return "\n".join(lines)


def shorten(block: Block) -> Block:
    """The block with less to do: more words for its first leanify command."""
    if not block.shorter:
        return block
    return replace(block, body=re.sub(r"(leanify (?:.*\\\n)*.*)", rf"\1 {block.shorter}", block.body, count=1))


def check_page(page: Path, write: bool) -> list[str]:
    """Run a page's blocks; what is wrong with them. With ``write`` the page is brought up to date."""
    text, errors, offset = page.read_text(encoding="utf-8"), [], 0
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        for script in (*SAMPLES.glob("*.py"), *(ROOT / "docs" / "examples").glob("*.py")):
            (folder / script.name).write_bytes(script.read_bytes())
        for block in parse_blocks(text):
            if block.not_run is not None:
                continue
            try:
                body = run(block if write else shorten(block), folder)
            except BlockFailed as failure:
                errors.append(str(failure))
                continue
            if write:
                text = text[: block.start + offset] + body + text[block.end + offset :]
                offset += len(body) - len(block.body)
            elif block.kind == "console" and not block.varies and normalise(body) != normalise(block.body):
                errors.append(f"the output differs; python tests/documents.py --write\n{body}")
        try:
            errors += undocumented_keys(text, folder)
        except BlockFailed as failure:
            errors.append(str(failure))
    updated_text = GENERATED.sub(lambda match: match[1] + keys() + match[2], text)
    if write:
        page.write_text(updated_text, encoding="utf-8")
    elif updated_text != text:
        errors.append("a written part is out of date; python tests/documents.py --write")
    return errors


def undocumented_keys(text: str, folder: Path) -> Iterator[str]:
    """Keys of a command's JSON that the section below its comment does not name."""
    for match in JSON.finditer(text):
        section = text[match.end() :].partition("<!-- json:")[0]
        for key in sorted(json_keys(json.loads(shell(match[1], folder)))):
            if f"`{key}`" not in section:
                yield f"{match[1]}: the key {key!r} is not documented"


def json_keys(value: Any) -> set[str]:
    """The keys of nested JSON, but those below an architecture and below a map by design."""
    if isinstance(value, list):
        return set().union(*map(json_keys, value))
    if not isinstance(value, dict):
        return set()
    return set(value).union(*(json_keys(part) for key, part in value.items() if key not in OPAQUE_KEYS))


def keys() -> str:
    """Tables of all recipe keys, a section each."""
    from leanify.core.recipe import SECTIONS
    from leanify.core.strict_toml import describe_keys

    parts = []
    for section, kind in SECTIONS.items():
        rows = ["| key | type | default | meaning |", "|---|---|---|---|"]
        for key in describe_keys(kind):
            default = "required" if key.required else f"`{key.default}`" if key.default else "–"
            about = key.about.replace("|", "\\|")  # a cell ends at a bar, in code as well
            rows.append(f"| `{key.name}` | {key.type} | {default} | {about} |")
        parts.append("\n".join([f"## [{section}]\n", " ".join((kind.__doc__ or "").split()) + "\n", *rows]))
    return "\n\n".join(parts) + "\n\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", type=Path)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    count = 0
    for page in options.pages or pages():
        for error in check_page(page, options.write):
            count += 1
            print(f"{page}: {error}\n", flush=True)
        print(page, flush=True)
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main())
