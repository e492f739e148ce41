"""A newcomer's ten minutes: rows are proposed from a model alone; a wrong row is named, with the law that it breaks."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from leanify.errors import LeanifyError
from leanify.lens import families, forwards
from leanify.lens.families import Reading
from leanify.zoo import tiny
from leanify.zoo.laws import blamed
from leanify.zoo.propose import propose, toml
from leanify.zoo.running import randomised
from leanify.zoo.verdict import verdict

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def table() -> Iterator[dict[str, list[Reading]]]:
    """The table of rows; what a test learns or forgets is put back."""
    torch.set_num_threads(1)
    tiny.warm()
    rows, freed = families.known(), forwards._FREED
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
def test_what_is_proposed_is_what_the_table_says(
    table: dict[str, list[Reading]], library: str, name: str, package: str
) -> None:
    gone = {path: table.pop(path)[0] for path in list(table) if path.startswith(package)}
    found = propose(library, name)
    assert not found.broken
    rows = tomllib.loads(found.toml())["reading"]
    assert {f"{row['classes']}" for row in rows} <= {f"{[families.short(path)]}" for path in gone}
    for row in found.rows:
        written = gone[row.name]
        assert row.columns.items() <= written.columns.items()
        assert row.rows.items() <= written.rows.items()
        assert row.attributes.items() <= written.attributes.items()
        assert (row.edits, row.constant) == (written.edits, written.constant)


def test_a_model_that_is_known_needs_no_row() -> None:
    found = propose("hf", "gpt2")
    assert (found.rows, found.broken) == ([], "")
    assert {row.name.rpartition(".")[2] for row in found.known} == {"GPT2Attention", "GPT2MLP"}


def test_a_wrong_row_is_blamed(table: dict[str, list[Reading]]) -> None:
    name = "timm.models.davit.WindowAttention"
    model, call = tiny.build("timm", "davit_tiny")
    model = randomised(model)
    assert blamed(model, call) == []
    table[name] = [replace(table[name][0], rows={"qkv": "h 3 d"})]
    (words,) = blamed(model, call)
    assert words.startswith("models.davit.WindowAttention (outputs differ by ")


def test_an_edit_that_meets_nothing_is_the_rows_fault(table: dict[str, list[Reading]]) -> None:
    name = "timm.models.davit.WindowAttention"
    table[name] = [replace(table[name][0], edits={"reshape(B, N, C)": "reshape(B, N, -1)"})]
    (words,) = blamed(randomised(tiny.build("timm", "davit_tiny")[0]), tiny.build("timm", "davit_tiny")[1])
    assert "the row of timm.models.davit.WindowAttention replaces 'reshape(B, N, C)' in forward" in words


def test_a_model_that_was_read_by_trial_is_not_supported(table: dict[str, list[Reading]]) -> None:
    del table["transformers.models.phi.modeling_phi.PhiAttention"]
    found = verdict("hf", "phi")
    assert (found.status, found.read) == ("failing", True)
    assert found.reason.startswith("no row describes phi.PhiAttention")  # and what else this process has learned
    assert found.reason.endswith(": leanify zoo --propose hf/phi prints one")


def test_a_row_with_an_unknown_field_is_named() -> None:
    with pytest.raises(LeanifyError, match=r"a\.B .*timm\.toml .*colums.*classes, when"):
        families._of_row({"classes": ["a.B"], "colums": {"proj": "h d"}}, "timm")


def test_a_row_is_written_as_the_table_has_it() -> None:
    row = families.known()["transformers.models.gpt2.modeling_gpt2.GPT2Attention"][0]
    (read,) = families._of_row(tomllib.loads(toml(row))["reading"][0], "transformers")
    assert read == row
