"""A newcomer's ten minutes: rows are proposed from a model alone; a wrong row is named, with the law that it breaks."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import replace

import pytest
from zoo import tiny
from zoo.laws import wrong_rows
from zoo.propose import propose, toml
from zoo.running import randomise
from zoo.verdict import verdict

from leanify.core.errors import LeanifyError
from leanify.discovery import discover
from leanify.lens import families, forwards
from leanify.lens.families import Row

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def table() -> Iterator[dict[str, list[Row]]]:
    """The table of rows; what a test learns or forgets is put back."""
    tiny.warm()
    rows, freed = families.all_rows(), forwards.FREED_CLASSES
    before, freed_before = dict(rows), dict(freed)
    freed.clear()
    yield rows
    for now, then in ((rows, before), (freed, freed_before)):
        now.clear()
        now.update(then)


@pytest.mark.parametrize(
    ("library", "name", "package"),
    [
        ("timm", "davit_tiny", "timm.models.davit."),  # a forward that takes the width for inner
        ("hf", "bert", "transformers.models.bert."),  # an output projection outside, an MLP in the layer itself
        ("hf", "phi", "transformers.models.phi."),  # a head_dim that stays
    ],
)
def test_proposal_equals_the_table(table: dict[str, list[Row]], library: str, name: str, package: str) -> None:
    gone = {path: table.pop(path)[0] for path in list(table) if path.startswith(package)}
    found = propose(library, name)
    assert not found.broken_law
    rows = tomllib.loads(found.toml())["reading"]
    assert {f"{row['classes']}" for row in rows} <= {f"{[families.short(path)]}" for path in gone}
    for row in found.rows:
        written = gone[row.name]
        assert row.columns.items() <= written.columns.items()
        assert row.rows.items() <= written.rows.items()
        assert row.attributes.items() <= written.attributes.items()
        assert (row.edits, row.constant) == (written.edits, written.constant)


def test_known_model_needs_no_row() -> None:
    found = propose("hf", "gpt2")
    assert (found.rows, found.broken_law) == ([], "")
    assert {row.name.rpartition(".")[2] for row in found.existing_rows} == {"GPT2Attention", "GPT2MLP"}


def test_wrong_row_is_blamed(table: dict[str, list[Row]]) -> None:
    name = "timm.models.davit.WindowAttention"
    model, call = tiny.build("timm", "davit_tiny")
    model = randomise(model)
    assert wrong_rows(model, call) == []
    table[name] = [replace(table[name][0], rows={"qkv": "h 3 d"})]
    (words,) = wrong_rows(model, call)
    assert words.startswith("models.davit.WindowAttention (outputs differ by ")


def test_ineffective_edit_blames_the_row(table: dict[str, list[Row]]) -> None:
    name = "timm.models.davit.WindowAttention"
    table[name] = [replace(table[name][0], edits={"reshape(B, N, C)": "reshape(B, N, -1)"})]
    (words,) = wrong_rows(randomise(tiny.build("timm", "davit_tiny")[0]), tiny.build("timm", "davit_tiny")[1])
    assert "the row of timm.models.davit.WindowAttention replaces 'reshape(B, N, C)' in forward" in words


def test_trial_reading_is_not_supported(table: dict[str, list[Row]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discover, "SECONDS", 100)  # however slow the machine
    del table["transformers.models.phi.modeling_phi.PhiAttention"]
    found = verdict("hf", "phi")
    assert (found.status, found.read) == ("failing", True), found.reason
    assert found.reason.startswith("no row describes phi.PhiAttention")  # and what else this process has learned
    assert found.reason.endswith(": python -m tests.zoo --propose hf/phi prints one")


def test_unknown_row_field_is_named() -> None:
    with pytest.raises(LeanifyError, match=r"a\.B .*timm\.toml .*colums.*classes, when"):
        list(families._parse_tables([{"classes": ["a.B"], "colums": {"proj": "h d"}}], "timm"))


def test_row_prints_as_in_table() -> None:
    row = families.all_rows()["transformers.models.gpt2.modeling_gpt2.GPT2Attention"][0]
    (read,) = families._parse_tables(tomllib.loads(toml(row))["reading"], "transformers")
    assert read == row
