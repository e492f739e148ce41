"""An attention without a row is read by trial, or refused with what was tried; wrong rows are named, with their law."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from zoo import laws, tiny
from zoo.propose import propose
from zoo.running import randomise
from zoo.verdict import verdict

import leanify
from leanify.core.errors import LeanifyError
from leanify.discovery import discover
from leanify.discovery.row_laws import Trial
from leanify.lens import families, forwards
from leanify.lens.families import Row
from leanify.upstream.build import build_model
from leanify.upstream.origin import get_origin

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


def forget(model: nn.Module) -> list[str]:
    """Drop the rows of a model's attentions and MLPs. Returns the names of the attentions."""
    names = {f"{type(module).__module__}.{type(module).__qualname__}" for module in model.modules()}
    table = families.all_rows()
    rows = {name: table[name][0] for name in names & table.keys()}
    attentions = [name for name, row in rows.items() if row.is_attention]
    assert attentions
    for name, row in rows.items():
        if row.is_attention or row.is_mlp:
            del table[name]
    return attentions


@pytest.mark.parametrize(
    ("library", "name"),
    [
        ("hf", "bert"),  # its output projection lies outside the class that counts heads
        ("hf", "gpt2"),  # fused queries, keys and values, a transposed map
        ("hf", "llama"),  # key/value groups
        ("hf", "phi3"),  # unequal parts, a configuration that the forward reads
        ("hf", "bart"),
        ("hf", "vit"),
        ("timm", "vit_tiny_patch16_224"),
        ("timm", "swin_tiny_patch4_window7_224"),  # a table of positions a head
    ],
)
def test_unknown_model_obeys_every_law(library: str, name: str) -> None:
    model, call = tiny.build(library, name)
    written = leanify.read(model)
    forget(model)
    assert leanify.read(model) == written
    laws.hold(model, call)


@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_equal_blocks_are_tried_once(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A trial fills a module with weights; on meta, where large models are read, the others of its class need none."""
    origin = get_origin(tiny.build("hf", name)[0])
    model = build_model(replace(origin, options={**origin.options, "use_cache": True}), "meta")
    written = leanify.read(model)
    forget(model)
    tried: list[type] = []
    make = Trial.__init__

    def count(self: Trial, module: nn.Module, *inputs: Any) -> None:
        tried.append(type(module))
        make(self, module, *inputs)

    monkeypatch.setattr(Trial, "__init__", count)
    assert leanify.read(model) == written
    assert len(tried) == len(set(tried)), "a class of equal blocks is tried once"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize(("library", "name"), [("timm", "vit_tiny_patch16_224"), ("hf", "vit"), ("hf", "phi")])
def test_discovery_works_in_every_precision(library: str, name: str, dtype: torch.dtype) -> None:
    model, _ = tiny.build(library, name)
    written = leanify.read(model)
    forget(model)
    assert leanify.read(model.to(dtype)) == written


def test_wrong_row_is_blamed() -> None:
    """Not the model, nor the version of the library alone: whoever wrote the row can mend it."""
    model, _ = tiny.build("timm", "davit_tiny")
    table = families.all_rows()
    name = "timm.models.davit.WindowAttention"
    (row,) = table[name]
    table[name] = [replace(row, edits={"no such words": "-1"})]
    shape = leanify.read(model).grown(factor=2)
    with pytest.raises(leanify.UnsupportedModel, match=f"the row of {name} replaces 'no such words'"):
        leanify.write(model, shape)
    table[name] = [replace(row, rows={"qkv": "2 h d"})]
    with pytest.raises(leanify.UnsupportedModel, match=f"not as the row of {name} describes it: an axis of length"):
        leanify.read(model)
    table[name] = [replace(row, attributes={})]
    with pytest.raises(leanify.UnsupportedModel, match=f"the row of {name} leaves d and h open"):
        leanify.read(model)


@pytest.mark.parametrize(("library", "name"), [("timm", "beit_base_patch16_224"), ("hf", "olmo2")])
def test_unreadable_model_names_attempts(library: str, name: str) -> None:
    model, _ = tiny.build(library, name)
    forget(model)
    with pytest.raises(leanify.UnsupportedModel, match=r"\d+ readings"):
        leanify.read(model)


def test_attention_that_does_not_run_is_refused() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.num_heads = 2
            self.qkv, self.proj = nn.Linear(8, 24), nn.Linear(8, 8)

    with pytest.raises(leanify.UnsupportedModel, match="it could not be run"):
        leanify.read(nn.Sequential(Attention()))
    model, _ = tiny.build("timm", "vit_tiny_patch16_224")
    model.blocks[1].extra = Attention()  # type: ignore[index, union-attr]
    with pytest.raises(leanify.UnsupportedModel, match=r"blocks\.1\.extra.*Attention"):
        leanify.read(model)


def test_discovered_row_is_ordinary() -> None:
    model, _ = tiny.build("hf", "bert")
    (name,) = (one for one in forget(model) if one.endswith("BertAttention"))
    leanify.read(model)
    kept = [row for module in model.modules() if (row := families.attached_row(module)) is not None]
    (attention,) = {repr(row): row for row in kept if row.is_attention}.values()
    (mlp,) = {repr(row): row for row in kept if row.is_mlp}.values()
    assert (attention.name, attention.columns) == (name, {"output.dense": "h d"})
    assert (mlp.rows, mlp.columns) == ({"intermediate.dense": "m"}, {"output.dense": "m"})
    assert families.parse_rows(families.toml(attention)) == [replace(attention, name=families.short(name))]
    assert name not in families.all_rows()
    other, _ = tiny.build("hf", "bert")
    assert not any(families.attached_row(module) for module in other.modules())


# -- proposals of rows ----------------------------------------------------------------------------------------------


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


def test_wrong_row_is_told_from_others(table: dict[str, list[Row]]) -> None:
    name = "timm.models.davit.WindowAttention"
    model, call = tiny.build("timm", "davit_tiny")
    model = randomise(model)
    assert laws.wrong_rows(model, call) == []
    table[name] = [replace(table[name][0], rows={"qkv": "h 3 d"})]
    (words,) = laws.wrong_rows(model, call)
    assert words.startswith("models.davit.WindowAttention (outputs differ by ")
    table[name] = [replace(table[name][0], edits={"reshape(B, N, C)": "reshape(B, N, -1)"})]
    (words,) = laws.wrong_rows(model, call)
    assert f"the row of {name} replaces 'reshape(B, N, C)' in forward" in words


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
