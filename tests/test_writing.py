"""One module writes files, few remove any, and what links in somebody else's folder lead to stays as it is."""

from __future__ import annotations

import ast
import os
import re
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from fuzz_intact import InlineEngine
from test_mistakes import run_here

import leanify
from leanify.comparison.folder import Outcome, StudyFolder
from leanify.comparison.plan import Key
from leanify.core import recipe as recipes
from leanify.core.errors import DirectoryError, LeanifyError
from leanify.core.files.writing import new_directory, open_atomic

PACKAGE = Path(leanify.__file__).parent

FRESH = "into a new folder of this process, which gets its name at the end"
TEMPORARY = "into the system's folder for temporary files, under a name that nobody can foresee"
CACHE = "a folder of the cache, named by a digest of what it holds"
LIBRARY = "a library's own writer; "
ALLOWED = {  # calls outside core/files/writing.py that write, rename or remove, and why they may
    ("cli/__init__.py", "os.open"): "/dev/null",
    ("data/texts/tokens.py", "tofile"): "into a file that core/files/writing.py opened",
    ("data/texts/tokens.py", "rmtree"): CACHE,
    ("data/texts/tokenizers.py", "rmtree"): CACHE,
    ("data/texts/tokenizers.py", "save_pretrained"): LIBRARY + FRESH,
    ("exporting/export.py", "save_file"): LIBRARY + FRESH,
    ("exporting/export.py", "save_pretrained"): LIBRARY + FRESH,
    ("exporting/load_alone.py", "save_file"): LIBRARY + TEMPORARY,
    ("core/machine.py", "write_text"): "the kernel's own file, to reset a counter",
    ("shrinking/folder.py", "open"): "the lock of a folder, an empty file in the user's cache",
    ("core/files/cache.py", "rename"): f"{CACHE}, made beside it",
    ("runs/checkpoint_writing.py", "rename"): "a whole checkpoint gets its name",
    ("runs/checkpoint_writing.py", "rmtree"): "of this process, or a checkpoint that it holds nothing but",
    ("runs/run_directory.py", "rmtree"): "a checkpoint that was left half written",
    ("runs/run_directory.py", "save_pretrained"): LIBRARY + FRESH,
    ("sources/lean_directory.py", "save_file"): LIBRARY + FRESH,
    ("sources/lean_directory.py", "save_pretrained"): LIBRARY + FRESH,
    ("sources/transformers_hooks.py", "unlink"): "the card of a model that save_pretrained overwrites",
    ("comparison/folder.py", "unlink"): "the outcome of a run that failed, by --retry",
    ("shrinking/folder.py", "rename"): "files of the finished model, from its own work folder",
    ("shrinking/folder.py", "unlink"): "what it noted when it wrote it, in its own work folder",
    ("shrinking/folder.py", "rmdir"): "folders of its own work folder that are empty",
    ("upstream/on_disk.py", "NamedTemporaryFile"): "weights that memory does not hold; nameless once they are mapped",
    ("vocabulary/cut_tokenizer.py", "unlink"): "the copy of a model's file in a new folder",
}
NAMES = {
    *("write_text", "write_bytes", "touch", "truncate", "symlink_to", "hardlink_to", "link", "symlink"),
    *("save_file", "save_pretrained", "open_memmap", "copyfile", "copy2", "copytree", "move", "to_csv", "tofile"),
    *("mkstemp", "NamedTemporaryFile", "rename", "rmtree", "unlink", "rmdir"),
}


@cache
def file_calls(path: Path) -> list[tuple[ast.Call, str, str]]:
    """Calls of a module that may concern a file: each with the function's owner and name."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, (ast.Attribute, ast.Name)):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
            if name in (*NAMES, "open", "remove", "replace", "read_text", "read_bytes"):
                owner = ast.unparse(node.func.value) if isinstance(node.func, ast.Attribute) else ""
                found.append((node, owner, name))
    return found


def calls(path: Path) -> Iterator[str]:
    """Calls of a module that may write, rename or remove a file."""
    for node, owner, name in file_calls(path):
        given = [one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)]
        if name == "open" and owner == "os" and "O_RDONLY" not in ast.unparse(node):
            yield "os.open"
        if name == "open" and owner != "os" and any(re.fullmatch(r"[rwaxbt+]*[wax+][bt+]*", mode) for mode in given):
            yield "open"
        if name in NAMES or (owner == "os" and name == "remove"):
            yield name
        if name == "replace" and owner and len(node.args) == 1 and not node.keywords:  # of a path, not of a string
            yield name


def test_one_module_writes_files() -> None:
    """Few modules remove files."""
    found = {
        (path.relative_to(PACKAGE).as_posix(), name)
        for path in sorted(PACKAGE.rglob("*.py"))
        for name in calls(path)
        if path != PACKAGE / "core" / "files" / "writing.py"
    }
    assert found == set(ALLOWED)


PACKAGED = "a file of the package"
READERS = {  # modules besides core/files/reading.py that open files by name, and why they may
    "cli/recipes.py": PACKAGED,
    "data/texts/corpus.py": "Python's own library",
    "exporting/export.py": "what was written a moment ago",
    "core/machine.py": "the kernel's own files",
    "runs/checkpoint_writing.py": "what was written a moment ago",
    "search/published.py": PACKAGED,
    "sources/names.py": "an installed library's own files",
    "shrinking/folder.py": "the lock of a folder, which is not read",
}


def test_one_module_opens_foreign_files() -> None:
    """It refuses pipes and devices, and checks what it opened."""
    found = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        for _, owner, name in file_calls(path):
            reads = name == "open" and not re.search("Directory|Folder|Image|tarfile|picture|fs|is_open|os", owner)
            named = name in ("read_text", "read_bytes") and owner and "resources" not in owner
            if reads or named:
                found.add(path.relative_to(PACKAGE).as_posix())
    assert found - {"core/files/reading.py"} == set(READERS)


# -- links ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / ".bashrc").write_text("alias ll='ls -l'\n")
    return tmp_path / "home" / ".bashrc"


def resumed(run: Path) -> str:
    """What a resume says against it; "" if it goes on to the end."""
    try:
        leanify.train(recipes.load(run / "recipe.toml"), resume=run)
    except LeanifyError as error:
        return str(error)
    return ""


def test_run_writes_through_no_link(run: Path, precious: Path) -> None:
    """``.environment.json -> ~/.bashrc``, and a command in environment.json: the next shell ran it."""
    before = precious.read_bytes()
    for path in [*run.iterdir(), *(run / "checkpoints").iterdir()]:
        if path.is_file():
            path.with_name(f".{path.name}").symlink_to(precious)
    assert resumed(run) == ""
    assert precious.read_bytes() == before


@pytest.mark.parametrize("name", ["environment.json", "metrics.jsonl"])
def test_linked_run_file_is_replaced(run: Path, precious: Path, name: str) -> None:
    """Or refused."""
    if (run / name).exists():
        (run / name).replace(precious)
    (run / name).symlink_to(precious)
    before = precious.read_bytes()
    words = resumed(run)
    assert "unexpected" not in words
    if name == "metrics.jsonl":
        assert "metrics.jsonl could not be written: it is a link" in words
    assert precious.read_bytes() == before


def test_linked_checkpoints_are_refused(run: Path, precious: Path) -> None:
    """Its folders were removed, and checkpoints written among the user's documents."""
    (run / "checkpoints").rename(precious.parent / "docs")
    (run / "checkpoints").symlink_to(precious.parent / "docs")
    before = sorted(precious.parent.rglob("*"))
    assert "run/checkpoints is a link, and leanify writes through none" in resumed(run)
    assert sorted(precious.parent.rglob("*")) == before


def test_hard_links_keep_their_content(run: Path, tmp_path: Path) -> None:
    """As `cp -al` makes them: a resume of the copy cut the log of the original."""
    os.link(run / "metrics.jsonl", tmp_path / "kept.jsonl")
    before = (tmp_path / "kept.jsonl").read_bytes()
    assert resumed(run) == ""
    assert (tmp_path / "kept.jsonl").read_bytes() == before


LINKED = (".study.toml", ".results.json", ".report.html", "results.json", "report.html")


def test_study_writes_through_no_link(compared: Path, tmp_path: Path, precious: Path, capsys: Any) -> None:
    study = shutil.copytree(compared, tmp_path / "study")
    before = precious.read_bytes()
    for name in (*LINKED, "runs/.baseline-0.json", "runs/.baseline-2.json"):
        (study / name).unlink(missing_ok=True)
        (study / name).symlink_to(precious)
    code, _, err = run_here(f"compare {study} --report", capsys)
    assert (code, precious.read_bytes()) == (2, before), err  # results.json, which is no JSON
    (study / "results.json").unlink()
    code, _, err = run_here(f"compare {study} --report", capsys)
    assert (code, precious.read_bytes()) == (0, before), err
    leanify.compare(study, seeds=3, engine=InlineEngine(), measure=False)
    assert precious.read_bytes() == before


@pytest.mark.parametrize("name", ["runs/worker.log", "runs/.baseline-2.lock"])
def test_study_logs_follow_no_link(compared: Path, tmp_path: Path, precious: Path, name: str) -> None:
    """Nor do locks."""
    study, before = shutil.copytree(compared, tmp_path / "study"), precious.read_bytes()
    (study / name).unlink(missing_ok=True)
    (study / name).symlink_to(precious)
    with pytest.raises((LeanifyError, OSError), match="link"):
        leanify.compare(study, seeds=3, engine="local" if name == "runs/worker.log" else InlineEngine())
    assert precious.read_bytes() == before


@pytest.mark.parametrize("name", ["runs", "runs/baseline-2"])
def test_linked_study_folders_are_refused(compared: Path, tmp_path: Path, precious: Path, name: str) -> None:
    study = shutil.copytree(compared, tmp_path / "study")
    target = precious.parent / "docs"
    (study / name).rename(target) if (study / name).exists() else target.mkdir()
    (study / name).symlink_to(target)
    before = sorted(precious.parent.rglob("*"))
    with pytest.raises(LeanifyError, match=f"{name} is a link"):
        leanify.compare(study, seeds=3, engine=InlineEngine(), measure=False)
    assert sorted(precious.parent.rglob("*")) == before


# -- what is the user's -----------------------------------------------------------------------------------------------


def test_users_files_survive_resume(run: Path, trained: Path) -> None:
    saved = run / "checkpoints"
    newest = max((trained / "checkpoints").iterdir())
    for name in ("best-for-paper", "2024", newest.name):
        shutil.copytree(newest, saved / name)
        (saved / name / "checkpoint.json").unlink()  # else it would be the newest one
        (saved / name / "notes.txt").write_text("mine")
    for path in (run / "notes.txt", saved / "notes.txt", saved / ".hidden", run / ".environment.json"):
        path.write_text("mine")
    assert resumed(run) == ""
    kept = [path for path in run.rglob("*") if path.is_file() and path.read_bytes() == b"mine"]
    assert len(kept) == 7
    assert (saved / newest.name / "checkpoint.json").is_file()  # written again; the folder with the notes was renamed


def test_failed_run_keeps_users_file(compared: Path, tmp_path: Path) -> None:
    """The run is renamed and not removed."""
    study = StudyFolder.open(shutil.copytree(compared, tmp_path / "study"))
    key = Key("baseline", 0)
    (study.run(key) / "notes.txt").write_text("mine")
    for _ in range(2):
        study.record(Outcome("baseline", 0, study.plan.fingerprint(key), "failed", "x"))
        study.forget_failures()
    [kept] = (study.path / "runs").glob("baseline-0*")
    assert (kept / "notes.txt").read_text() == "mine"


def test_late_output_is_not_overwritten(tmp_path: Path) -> None:
    """A user's folder was gone, and three redesigns into one directory all reported success."""

    def meanwhile() -> None:
        with new_directory(tmp_path / "y"):
            (tmp_path / "y").mkdir()
            (tmp_path / "y" / "mine.txt").write_text("x")

    def both() -> None:
        with new_directory(tmp_path / "z"), new_directory(tmp_path / "z") as inner:
            (inner / "leanify.json").write_text("1")

    for action in (meanwhile, both):
        with pytest.raises(DirectoryError, match="appeared"):
            action()
    found = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*"))
    assert found == ["y", "y/mine.txt", "z", "z/leanify.json"]


def test_linked_output_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DirectoryError, match="is a link; name the folder that it leads to"):
        new_directory(tmp_path / "out").__enter__()


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc, a folder in which nothing can be made")
def test_folder_that_takes_no_file_ends_with_an_error() -> None:
    """It said for each new name that the folder did not exist, and was asked again without end."""
    with pytest.raises(FileNotFoundError), open_atomic(Path("/proc/x.svg"), sync=False):
        pass
