"""The house: which room may import which. docs/internals/layout.md has it as a table, which is checked here."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import leanify
import leanify.core.errors

PACKAGE = Path(leanify.__file__).parent

# From the ground up: a room imports from its own floor's rooms never, and from floors below it freely.
FLOORS = (
    ("core",), ("runs", "upstream"), ("lens", "layouts"), ("discovery",), ("reshaping",), ("sources",),
    ("spectra", "data"), ("profiling", "vocabulary"), ("search", "tasks"), ("training", "carrying"), ("shrinking",),
    ("comparison", "exporting"), ("cli",),
)  # fmt: skip
FLOOR = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
MODULES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py") if path.name != "__main__.py")


def room_of(parts: tuple[str, ...]) -> str:
    return parts[0].removesuffix(".py")


def imports(path: Path, typing: bool) -> set[str]:
    """The modules of leanify that a module imports, lazily or at its top, by path; ``typing``: also for types alone."""
    tree = ast.parse((PACKAGE / path).read_text(encoding="utf-8"))
    left_out: set[int] = set()
    for block in ast.walk(tree):
        if not typing and isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING":
            left_out |= {id(node) for node in ast.walk(block)}
    found = set()
    for node in ast.walk(tree):
        if id(node) in left_out:
            continue
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        if isinstance(node, ast.ImportFrom):
            for name in node.names:
                inner = f"{node.module}.{name.name}"
                found.add(inner if file_of(inner) in MODULES else str(node.module))
    return {name for name in found if name.split(".")[0] == "leanify"}


def file_of(module: str) -> Path | None:
    """The file of a module, relative to the package."""
    place = Path(*module.split(".")[1:])
    return next((path for path in (place.with_suffix(".py"), place / "__init__.py") if path in MODULES), None)


BELOW = [path for path in MODULES if path != Path("__init__.py")]


@pytest.mark.parametrize("path", BELOW, ids=str)
def test_imports_go_down_only(path: Path) -> None:
    """Those for the type checker too. Nothing in a room imports the package itself, which imports them all."""
    room = room_of(path.parts)
    assert room in FLOOR, f"{room} stands on no floor: add it to FLOORS"
    wanted = imports(path, typing=True)
    assert "leanify" not in wanted, f"{path} imports the whole package"
    rooms = {module.split(".")[1] for module in wanted} - {room}
    wrong = sorted(other for other in rooms if FLOOR[other] >= FLOOR[room])
    assert not wrong, f"{path} imports up, or sideways, from {', '.join(wrong)}"


def test_modules_have_no_import_circle() -> None:
    """Neither inside a room, nor by imports inside functions: taken away from the bottom, no module is left."""
    left = {path: {file_of(module) for module in imports(path, typing=False)} - {path} for path in BELOW}
    while free := {path for path, wanted in left.items() if not wanted & left.keys()}:
        left = {path: wanted for path, wanted in left.items() if path not in free}
    assert not left, f"a circle among {', '.join(map(str, left))}"


def test_package_top_stays_small() -> None:
    assert sorted(room_of(path.parts) for path in MODULES if len(path.parts) == 1) == ["__init__"]


GUIDE = (PACKAGE.parent / "docs" / "internals" / "layout.md").read_text(encoding="utf-8")


def test_guide_lists_rooms_in_order() -> None:
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \| .+ \|$", GUIDE, re.MULTILINE)
    assert {room: int(floor) - 1 for floor, room in rows} == FLOOR
    assert [int(floor) for floor, _ in rows] == sorted((int(floor) for floor, _ in rows), reverse=True)


def test_precommit_and_ci_agree() -> None:
    hooks = (PACKAGE.parent / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    script = (PACKAGE.parent / ".ci" / "run").read_text(encoding="utf-8")
    for command in re.findall(r"^ +\.venv/bin/(.+)$", script, re.MULTILINE):
        assert f"entry: {command}\n" in hooks


PUBLIC = """
    Architecture Layer Stage load read write export grow save shrink redesign profile train compare
    condition
    LeanifyError SourceError UnsupportedModel ShapeError RecipeError BudgetError DataError DirectoryError TrainingError
"""


def test_public_names_exist() -> None:
    assert sorted(leanify.__all__) == sorted(PUBLIC.split())
    assert all(getattr(leanify, name).__doc__ for name in leanify.__all__)


def test_drawn_errors_are_public() -> None:
    drawn = re.findall(r"[├└]─ (\w+)", leanify.core.errors.__doc__ or "")
    assert drawn
    assert set(drawn) <= set(leanify.__all__)
    assert all(issubclass(getattr(leanify, name), leanify.LeanifyError) for name in drawn)


def test_rooms_are_no_public_functions() -> None:
    """Importing ``leanify.NAME`` as a package would put the package in the function's place."""
    assert not {room_of(path.parts) for path in MODULES} & set(leanify.__all__)


def test_slow_cases_name_tests() -> None:
    tests = Path(__file__).parent
    for line in (tests / "slow.txt").read_text("utf-8").splitlines():
        file, _, case = line.partition("::")
        assert f"def {case.partition('[')[0]}(" in (tests / file).read_text("utf-8"), line


def test_promises_name_their_tests() -> None:
    guide = (Path(__file__).parent.parent / "docs" / "SECURITY.md").read_text()
    promised, _ = guide.split("## Limits")
    lines = re.split(r"\n- \*\*", promised)[1:]
    assert [line.partition(".")[0] for line in lines if "::test_" not in line] == ["Upstream's source"]
    for file, name in re.findall(r"`(test_\w+\.py)::(\w+)`", promised):
        assert f"\ndef {name}(" in (Path(__file__).parent / file).read_text(), name
