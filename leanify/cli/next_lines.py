"""The commands that go on with a design: that write it or, once it is written, train it. Imports no torch."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from shlex import join, quote
from typing import TYPE_CHECKING

from leanify.terminal import console

if TYPE_CHECKING:
    from leanify.design.plan import Plan


def next_lines(
    plan: Plan, weights: str | None, data: Path | None, pretrained: bool, overrides: Sequence[str], cls: str | None
) -> list[str]:
    """Compare the design with its baseline and, alone, train it; in capitals what is not known.

    Carried weights are healed first. What the source is trained on is known where it is a recipe or a run.
    """
    where = str(plan.directory)
    designs = [f"{where}/lean", f"{where}/control"] if plan.with_control else [where]
    own = _has_data(plan.source)
    compare = ["leanify", "compare", quote(plan.source)]
    train = ["leanify", "train", quote(designs[0])]
    if weights is not None:
        compare += ["--weights", quote(weights)]
        train += ["--teacher", quote(weights)]
    if not own:
        path = "DATA" if data is None else quote(str(data))
        compare += ["--set", f"data.path={path}"]
        train += ["--set", f"data.path={path}"]
    for pair in overrides:
        compare += ["--set", quote(f"model.override.{pair}")]
    if cls is not None:
        compare += ["--set", f"model.class={quote(cls)}"]
    compare += ["--designs", quote(",".join(["baseline", *designs]))]
    lines = [" ".join(compare), " ".join(train)]
    if own:
        return lines[:1]
    if pretrained:  # a study's weights come from a directory or a checkpoint
        return lines[1:]
    return lines[::-1] if weights else lines


def print_next(*commands: str) -> None:
    """Print the commands to type next, below a blank line; a terminal breaks none of them."""
    for place, command in enumerate(commands):
        console().print(f"      {command}" if place else f"\nnext  {command}", soft_wrap=True)


def typed_without(*flags: str) -> str:
    """The command that was typed, without flags such as --dry-run, and without what only changes how it looks."""
    return join(["leanify", *(word for word in sys.argv[1:] if word not in (*flags, "--quiet", "--no-color"))])


def to_write(arguments: Sequence[str], recommended: str = "lean") -> list[str]:
    """The command that was typed, with a folder that is not there yet; none where it was called from Python.

    Where another design than lean is ``recommended``, the line that writes that one comes first.
    """
    if arguments[:1] != ["redesign"] or "--" in arguments:
        return []
    asked = [word for word in arguments if word != "--explain"]
    lines = [f"leanify {join([*asked, '-o', _new_folder('lean')])}"]
    if recommended != "lean" and not any(word.startswith("--choose") for word in asked):
        other = [*asked, "--choose", recommended, "-o", _new_folder(recommended)]
        lines.insert(0, f"leanify {join(other)}")
    return lines


def after_profile(sources: Sequence[str]) -> list[str]:
    """The command that goes on after costs were shown: measure what was only counted, or redesign a model by name."""
    if "--no-measure" in sys.argv:
        return [typed_without("--no-measure")]
    return [f"leanify redesign {quote(name)}" for name in sources if len(sources) == 1 and not Path(name).exists()]


def _new_folder(name: str) -> str:
    """The name, or with the first number under which nothing is there yet."""
    folder, number = name, 2
    while Path(folder).exists():
        folder, number = f"{name}-{number}", number + 1
    return folder


def _has_data(source: str) -> bool:
    """Whether the source is a recipe or a run, which names its data."""
    from leanify.runs import recipe
    from leanify.runs.places import is_run
    from leanify.runs.run_directory import RunDirectory

    if is_run(source):
        return RunDirectory.open(source).recipe.data is not None
    named = recipe.find(source) is not None or Path(source).suffix == ".toml"
    return named and recipe.load(source).data is not None
