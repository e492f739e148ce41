"""The house: which room may import which. A picture of it stands in docs/CONTRIBUTING.md, and is held true here."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import leanify

PACKAGE = Path(leanify.__file__).parent

# From the ground up: a room imports from its own floor's rooms never, and from floors below it freely.
FLOORS = (
    ("errors",),
    ("units", "machine", "terminal"),
    ("architecture", "models"),
    ("upstream",),
    ("lens",),
    ("sources",),
    ("spectra", "data"),
    ("design",),
    ("tasks", "zoo"),
    ("training",),
    ("warm",),
    ("study",),
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
