"""The commands to type after a redesign: write the design or, once it is written, train it. Imports no torch."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from shlex import join
from typing import TYPE_CHECKING

from leanify.core.path_kinds import is_bare_checkpoint, is_run, unused_path
from leanify.core.terminal import console

if TYPE_CHECKING:
    from leanify.search.plan import Plan


def next_lines(plan: Plan, weights: str | None, pretrained: bool, overrides: Sequence[str]) -> list[str]:
    """The commands that compare the design with its baseline and train it alone, with capitals for unknown values.

    A design with transferred weights is healed first. A source that is a recipe or a run names its data. A module of
    the user's own that takes neither token ids nor images is trained by their script, and only its costs are compared.
    """
    # the common arguments: designs, weights and overrides
    designs = [f"{plan.directory}/lean", f"{plan.directory}/control"] if plan.with_control else [str(plan.directory)]
    if not _is_trained_here(plan):
        return [join(["leanify", "profile", plan.source, *designs])]
    rivals = []
    if plan.written == "lean" and plan.control is not None and not plan.with_control:
        rivals.append("control")
    if plan.written == "lean" and plan.narrow is not None:
        rivals.append("narrow")
    compare = ["leanify", "compare", plan.source]
    train = ["leanify", "train", designs[0]]
    if weights is not None:
        compare += ["--weights", weights]
        if not is_bare_checkpoint(Path(weights)):  # which does not name its model, as a teacher must
            train += ["--teacher", weights]
    has_data = _has_data(plan.source)
    if not has_data:
        compare += ["--set", "data.path=DATA"]
        train += ["--set", "data.path=DATA"]
    for pair in overrides:
        key = "model" if pair.startswith("class=") else "model.override"
        compare += ["--set", f"{key}.{pair}"]
    directories = [name if "/" in name else f"./{name}" for name in designs]  # a bare name would be a design's
    names = [Path(name).name for name in designs]  # of the designs in the study; each name counts once
    rivals = [rival for rival in rivals if rival not in names]
    compare += ["--designs", ",".join(["baseline", *directories, *rivals])]

    # training alone needs a recipe of its own; a study's weights come from a directory or a checkpoint
    if has_data:
        return [join(compare)]
    if pretrained:
        return [join(train)]
    return [join(train), join(compare)] if weights else [join(compare), join(train)]


def print_next(*commands: str) -> None:
    """Print the commands to type next, below a blank line and without line breaks; nothing with --quiet."""
    if os.environ.get("LEANIFY_QUIET"):
        return
    for place, command in enumerate(commands):
        console().print(f"      {command}" if place else f"\nnext  {command}", soft_wrap=True)


def typed_without(*flags: str) -> str:
    """The typed command without flags such as --dry-run, --quiet and --no-color."""
    return join(["leanify", *(word for word in sys.argv[1:] if word not in (*flags, "--quiet", "--no-color"))])


def write_lines(choice: str | None) -> list[str]:
    """The typed command with a new folder, and the design to write if one must be named; nothing from Python."""
    arguments = sys.argv[1:]
    if arguments[:1] != ["redesign"] or "--" in arguments:
        return []
    chosen = [] if choice is None else ["--choose", choice]
    return [join(["leanify", *arguments, *chosen, "-o", str(unused_path(Path("lean")))])]


def _is_trained_here(plan: Plan) -> bool:
    """Whether `leanify train` has data for the model's head, and its inputs: token ids by name, or images."""
    source = plan.model_source
    from leanify.sources import find, heads
    from leanify.upstream import user_modules
    from leanify.upstream.inputs import example_inputs

    if heads.OTHER_HEADS.search(source.origin.cls) and source.origin.library == "hf":
        return False
    if not user_modules.is_user_module(source.origin):
        return True
    inputs = example_inputs(find.build_on_meta(source), 1, device="meta")
    return "input_ids" in inputs or next(iter(inputs.values())).dim() == 4


def _has_data(source: str) -> bool:
    """Whether the source is a recipe or a run, which names its data."""
    from leanify.core import recipe

    if is_run(source):
        return recipe.load(Path(source) / "recipe.toml").data is not None
    is_recipe = recipe.find(source) is not None or source.endswith(".toml")
    return is_recipe and recipe.load(source).data is not None
