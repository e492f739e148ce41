"""The documentation: every command block runs, every picture and link is there, the site builds, the examples work."""

from __future__ import annotations

import doctest
import io
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import documents
import pytest
import typer

import leanify
from leanify.cli import COMMANDS, app
from recipes.research import checkpoint_page, claims

EXAMPLES = documents.ROOT / "docs" / "examples"
LINK = re.compile(r"\]\((?!https?://|#)([^)#\s]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize("page", documents.pages(), ids=lambda page: str(page.relative_to(documents.ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Each file is there, and by its own path: neither GitHub nor the site follows docs/results, a symbolic link."""
    missing = []
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        linked = page.parent.resolve() / target
        if not linked.exists() or os.path.normpath(linked) != str(linked.resolve()):
            missing.append(target)
    assert not missing


def test_claims_match_their_tables() -> None:
    """What the README and the evidence say of designs is what the tables of results say, by the product's own rule."""
    for page, text in claims.pages().items():
        assert page.read_text(encoding="utf-8") == text, page


@pytest.mark.parametrize(
    ("table", "before", "after"),
    [("ranking.csv", ",0.370974,", ",0.380974,"), ("width.csv", "-0.086,-0.170,-0.001", "-0.086,-0.170,0.001")],
)
def test_changed_digit_changes_a_claim(table: str, before: str, after: str, tmp_path: Path) -> None:
    for file in claims.RESULTS.glob("*.csv"):
        shutil.copy(file, tmp_path)
    assert claims.pages(tmp_path) == claims.pages()
    text = (tmp_path / table).read_text(encoding="utf-8")
    assert text.count(before) == 1
    (tmp_path / table).write_text(text.replace(before, after), encoding="utf-8")
    changed = claims.pages(tmp_path)
    assert any(changed[page] != text for page, text in claims.pages().items())


def test_checkpoints_match_their_table() -> None:
    """The page, and the README's block, are what the program writes of checkpoints.csv."""
    rows = checkpoint_page.measured(checkpoint_page.CSV)
    page = documents.ROOT / "recipes" / "results" / "checkpoints.md"
    lines = checkpoint_page.page(rows, checkpoint_page.read_preface())
    assert page.read_text(encoding="utf-8") == "\n".join(lines) + "\n"
    assert "\n".join(checkpoint_page.readme(rows)) in (documents.ROOT / "README.md").read_text(encoding="utf-8")


def test_peers_are_compared_at_their_better() -> None:
    """Where healing costs a peer what is measured, its weights before healing answer to the claim."""
    rows = []
    for seed, noise in enumerate((0.0, 0.001, 0.003)):
        for arm, stage, value in (
            ("leanify shrink", "healed", 0.85),
            ("peer", "carried", 0.9),
            ("peer", "healed", 0.8),
        ):
            row = {"checkpoint": "model", "budget": "0.5", "arm": arm, "seed": str(seed), "stage": stage}
            rows.append({**row, "metric": "cosine", "value": str(value + noise * (stage == "healed"))})
    (sentence,) = checkpoint_page.claims(rows)
    assert sentence.startswith("- cosine: -0.049 to the best peer, *peer, not healed* (95% ")
    assert sentence.endswith("): **worse**.")


def test_checker_finds_missing_output(tmp_path: Path) -> None:
    blocks = [block for page in documents.pages() for block in documents.parse_blocks(page.read_text(encoding="utf-8"))]
    assert sum(block.not_run is None for block in blocks) > 20
    assert all(block.not_run != "" for block in blocks)
    page = tmp_path / "page.md"
    page.write_text(
        "```console\n$ echo one 0.2 s\none 0.1 s\n```\n\n```console\n$ echo two\nthree\n```\n\n```sh\nfalse\n```\n"
    )
    differs, fails = documents.check_page(page, write=False)
    assert "the output differs" in differs
    assert "exit 1, expected 0" in fails
    documents.check_page(page, write=True)
    assert documents.check_page(page, write=False) == [fails]

    # long commands are shortened where they are only checked
    page.write_text("<!-- shorter: --seeds 1 -->\n```sh\nleanify() { [ $# = 3 ]; }\nleanify compare\n```\n")
    (block,) = documents.parse_blocks(page.read_text())
    assert documents.shorten(block).body.splitlines()[1:] == ["leanify compare --seeds 1"]
    assert documents.check_page(page, write=False) == []


@pytest.mark.docs
@pytest.mark.parametrize("page", documents.pages(), ids=lambda page: str(page.relative_to(documents.ROOT)))
def test_pages_do_what_they_say(page: Path) -> None:
    assert not documents.check_page(page, write=False)


@pytest.mark.docs
def test_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "docs", str(tmp_path)]
    done = subprocess.run(command, cwd=documents.ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "start.html").exists()
    page = (tmp_path / "reference" / "commands.html").read_text(encoding="utf-8")
    for command in COMMANDS:
        for option in typer.main.get_command(app(command)).params:
            long = next((name for name in option.opts if name.startswith("--")), None)
            if long is not None and not getattr(option, "hidden", False):  # the help lists no hidden option
                assert page.count(f'<a id="{command}{long[1:]}"></a>') == 1, (command, long)


@pytest.mark.docs
def test_scripts_and_gate(tmp_path: Path) -> None:
    table = tmp_path / "designs.csv"
    documents.shell(f"{sys.executable} {EXAMPLES}/sweep_to_csv.py vit_tiny {table}", tmp_path)
    assert table.read_text(encoding="utf-8").count("lean") >= 2
    printed = documents.shell(f"{sys.executable} {EXAMPLES}/train_and_profile.py runs 10", tmp_path)
    assert [line.partition(":")[0] for line in printed.splitlines()] == ["baseline", "lean"]
    documents.shell(f"{EXAMPLES}/gate.sh vit_tiny 6M 2G", tmp_path)
    documents.shell(f"{EXAMPLES}/gate.sh vit_tiny 5M 2G", tmp_path, exit_code=1)
    documents.shell(f"{EXAMPLES}/gate.sh vit_tiny", tmp_path, exit_code=2)


def _exact_outputs(notebook: Any) -> list[str]:
    """The printed results of cells that compute no random number: they count parameters and MACs."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code" and "torch" not in cell.source]
    outputs = [output for cell in cells if "settings=" not in cell.source for output in cell.outputs]
    return [output["data"]["text/plain"] for output in outputs if "data" in output]


@pytest.mark.docs
@pytest.mark.filterwarnings("ignore")  # the kernel's own
def test_notebook_runs_in_full() -> None:
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(EXAMPLES / "first_steps.ipynb", as_version=4)
    stored = _exact_outputs(notebook)
    assert stored
    NotebookClient(notebook, timeout=300).execute()
    assert _exact_outputs(notebook) == stored, "the stored outputs are stale: run the notebook and save it"


@pytest.mark.docs
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["load", "read", "write", "grow", "redesign", "profile", "condition"])
def test_docstring_examples_run(name: str) -> None:
    examples = doctest.DocTestFinder(recurse=False).find(getattr(leanify, name), name, globs={})
    assert sum(len(example.examples) for example in examples) > 1
    report = io.StringIO()
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    for example in examples:
        runner.run(example, out=report.write)
    assert not runner.failures, report.getvalue()
