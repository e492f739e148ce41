"""An attention without a row is read live, by the law on one module, or refused with what was tried."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import nn

import leanify
from leanify.lens import families
from leanify.lens.families import Reading
from leanify.upstream.build import build_model
from leanify.upstream.origin import origin_of
from leanify.zoo import laws, tiny, tiny_shapes


@pytest.fixture(autouse=True)
def learned() -> Iterator[None]:
    """What a test learns or forgets is put back."""
    torch.set_num_threads(1)
    tiny.warm()
    table = families.known()
    before = dict(table)
    yield
    table.clear()
    table.update(before)


def forget(model: nn.Module) -> list[str]:
    """Drop the rows of a model's attentions. Returns their names."""
    names = {f"{type(module).__module__}.{type(module).__qualname__}" for module in model.modules()}
    table = families.known()
    attentions = [name for name in names & table.keys() if table[name][0].is_attention]
    assert attentions
    for name in attentions:
        del table[name]
    return attentions


@pytest.mark.filterwarnings("ignore")
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
def test_what_no_row_describes_is_found_and_obeys_every_law(library: str, name: str) -> None:
    model, call = tiny.build(library, name)
    written = leanify.read(model)
    forget(model)
    assert leanify.read(model) == written
    laws.hold(model, call)


def test_it_is_found_without_memory() -> None:
    origin = origin_of(tiny.build("hf", "llama")[0])
    assert origin is not None
    model = build_model(replace(origin, options={**origin.options, "use_cache": True}), "meta")
    forget(model)
    assert leanify.read(model).stages[0].depth == tiny_shapes.LAYERS


@pytest.mark.parametrize(("library", "name"), [("timm", "beit_base_patch16_224"), ("hf", "olmo2")])
@pytest.mark.filterwarnings("ignore")
def test_what_no_reading_explains_is_refused_with_what_was_tried(library: str, name: str) -> None:
    model, _ = tiny.build(library, name)
    gone = forget(model)
    with pytest.raises(leanify.UnsupportedModel, match=r"\d+ readings of its parts were tried, and under none"):
        leanify.read(model)
    assert not families.known().keys() & set(gone)


def test_what_cannot_be_run_is_refused() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.num_heads = 2
            self.qkv, self.proj = nn.Linear(8, 24), nn.Linear(8, 8)

    with pytest.raises(leanify.UnsupportedModel, match="it could not be run"):
        leanify.read(nn.Sequential(Attention()))


def test_a_learned_row_is_a_row_like_any_other() -> None:
    model, _ = tiny.build("hf", "bert")
    (name,) = (one for one in forget(model) if one.endswith("BertAttention"))
    leanify.read(model)
    assert isinstance(families.known()[name][0], Reading)
    assert families.known()[name][0].columns == {"output.dense": "h d"}
