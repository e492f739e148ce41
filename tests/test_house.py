"""The house: which room may import which. A table of it stands in docs/CONTRIBUTING.md, and is held true here."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import leanify
import leanify.errors

PACKAGE = Path(leanify.__file__).parent

# From the ground up: a room imports from its own floor's rooms never, and from floors below it freely.
FLOORS = (
    ("errors",),
    ("units", "machine", "terminal"),
    ("architecture",),
    ("runs",),
    ("upstream",),
    ("lens",),
    ("sources",),
    ("spectra", "data"),
    ("design",),
    ("tasks", "zoo"),
    ("training",),
    ("warm",),
    ("study", "paper", "exporting"),
    ("cli",),
)
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
MODULES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py") if path.name != "__main__.py")


def room_of(parts: tuple[str, ...]) -> str:
    return parts[0].removesuffix(".py")


def imported(path: Path) -> Iterator[str]:
    """The rooms that a module imports from, lazily or at its top, those for the type checker alone left out."""
    tree = ast.parse((PACKAGE / path).read_text(encoding="utf-8"))
    typing_only = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            yield from (name.name.split(".")[1] for name in node.names if name.name.startswith("leanify."))
        if isinstance(node, ast.ImportFrom) and node.module == "leanify":
            yield from (name.name for name in node.names)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("leanify."):
            yield str(node.module).split(".")[1]


@pytest.mark.parametrize("path", [p for p in MODULES if p != Path("__init__.py")], ids=str)
def test_imports_go_down_only(path: Path) -> None:
    room = room_of(path.parts)
    assert room in FLOOR, f"{room} stands on no floor: add it to FLOORS"
    wrong = sorted({other for other in imported(path) if other != room and FLOOR[other] >= FLOOR[room]})
    assert not wrong, f"{path} imports up, or sideways, from {', '.join(wrong)}"


def test_the_top_of_the_package_stays_small() -> None:
    assert sorted(room_of(path.parts) for path in MODULES if len(path.parts) == 1) == [
        "__init__", "architecture", "errors", "machine", "terminal", "units",
    ]  # fmt: skip


GUIDE = (PACKAGE.parent / "docs" / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_the_guide_says_what_is_in_each_room_from_the_top_floor_down() -> None:
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \| .+ \|$", GUIDE, re.MULTILINE)
    assert {room: int(floor) - 1 for floor, room in rows} == FLOOR
    assert [int(floor) for floor, _ in rows] == sorted((int(floor) for floor, _ in rows), reverse=True)


def test_the_commands_that_pre_commit_and_ci_run_are_the_same() -> None:
    hooks = (PACKAGE.parent / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    script = (PACKAGE.parent / ".ci" / "run").read_text(encoding="utf-8")
    for command in re.findall(r"^\.venv/bin/(.+)$", script, re.MULTILINE):
        assert f"entry: {command}\n" in hooks


PUBLIC = """
    Architecture Layer Stage load read write export grow save redesign profile train compare condition
    LeanifyError SourceError UnsupportedModel ShapeError RecipeError BudgetError DataError DirectoryError TrainingError
"""


def test_the_public_names_are_these_and_each_is_there() -> None:
    assert sorted(leanify.__all__) == sorted(PUBLIC.split())
    assert all(getattr(leanify, name).__doc__ for name in leanify.__all__)


def test_the_errors_that_are_drawn_are_public() -> None:
    drawn = re.findall(r"[├└]─ (\w+)", leanify.errors.__doc__ or "")
    assert drawn
    assert set(drawn) <= set(leanify.__all__)
    assert all(issubclass(getattr(leanify, name), leanify.LeanifyError) for name in drawn)


def test_no_room_has_the_name_of_a_public_function() -> None:
    """Importing ``leanify.NAME`` as a package would put the package in the function's place."""
    assert not {room_of(path.parts) for path in MODULES} & set(leanify.__all__)
