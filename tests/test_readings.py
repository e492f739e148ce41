"""Blocks of many styles are read as their authors would say, or refused with what is in the way."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import commands
import own_styles
import pytest
import torch
from own_modules import Example

import leanify
from leanify.core import machine
from leanify.lens.ledger import describe_kept, read_ledger
from leanify.lens.sites import locate


@pytest.mark.parametrize("style", own_styles.STYLES, ids=lambda style: style[0].__name__)
def test_style_is_read_right(style: own_styles.Shape) -> None:
    make, heads, head_dim, kv_heads, units, experts = style
    torch.manual_seed(0)
    model, inputs = make()
    shape = leanify.read(model, inputs=inputs)
    layers = list(shape.layers())
    assert [(one.heads, one.head_dim, one.kv_heads, one.mlp, one.experts) for one in layers] == [
        (heads, head_dim, kv_heads, units, experts)
    ] * len(model.blocks)


@pytest.mark.parametrize("make", [one[0] for one in own_styles.STYLES], ids=lambda make: make.__name__)
def test_style_grows_and_shrinks(make: Callable[[], Example]) -> None:
    """Growth keeps the outputs, and a design has the parameters that its price said."""
    torch.manual_seed(0)
    model, inputs = make()
    model, inputs = model.double().eval(), inputs.double()
    grown = leanify.grow(model, factor=2, inputs=inputs)
    with torch.no_grad():
        assert float((grown(inputs) - model(inputs)).abs().max()) < 1e-10
    plan = leanify.redesign(model, inputs=inputs, target_params=0.95)
    lean = plan.build()
    assert sum(parameter.numel() for parameter in lean.parameters()) == plan.chosen.params
    lean(inputs).sum().backward()


@pytest.mark.parametrize("make", [one[0] for one in own_styles.STYLES], ids=lambda make: make.__name__)
def test_ledger_holds_every_parameter(make: Callable[[], Example]) -> None:
    model, inputs = make()
    ledgers = read_ledger(locate(model, inputs))
    sizes = [sum(parameter.numel() for parameter in block.parameters()) for block in model.blocks]
    assert [ledger.params for ledger in ledgers] == [ledger.total for ledger in ledgers] == sizes
    assert ledgers[0].share("attention") > 0.1
    assert ledgers[0].share("mlp") + ledgers[0].share("experts") > 0.1


def test_ledger_names_what_stays() -> None:
    """Adapters are kept and reported; unread maps are reported above a twentieth of the block."""
    model, inputs = own_styles.houlsby_adapters()
    (adapters,) = describe_kept(locate(model, inputs))[:1]
    assert "kept: attn.adapter (6.2%), mlp.adapter (6.2%), narrower" in adapters
    model, inputs = own_styles.conformer()
    plan = leanify.redesign(model, inputs=inputs, target_params=0.95)
    (unread,) = [warning for warning in plan.warnings if "cannot read" in warning]
    assert "21.2% of a block" in unread
    assert "conv.up (14.1%), conv.down (7.1%)" in unread
    before, after = model.blocks[0].conv, plan.build().blocks[0].conv
    assert before.up.weight.shape == after.up.weight.shape
    assert not describe_kept(locate(*own_styles.macaron()))


def test_show_prints_the_ledger() -> None:
    page = json.loads(commands.run("show", f"{own_styles.__file__}:routed_experts", "--json").stdout)
    assert [block["block"] for block in page["ledger"]] == ["blocks.0", "blocks.1", "blocks.2"]
    assert {part["kind"] for part in page["ledger"][0]["parts"]} == {"norm", "attention", "experts", "kept"}


@pytest.mark.parametrize("name", ["window_table", "shuffled_tokens"])
def test_index_buffers_survive_saving(name: str, tmp_path: Path) -> None:
    """A copy without values is not run: its indices would be whatever the memory held."""
    plan = leanify.redesign(f"{own_styles.__file__}:{name}", target_params=0.9)
    plan.save(tmp_path / "lean")
    _, inputs = getattr(own_styles, name)()
    lean = leanify.load(tmp_path / "lean")
    assert torch.isfinite(lean(inputs)).all()


def test_pooled_maximum_is_refused() -> None:
    """New heads as small as an initialiser draws them would change nothing; as large as the old ones, they do."""
    model, inputs = own_styles.pooled_maximum()
    with pytest.raises(leanify.UnsupportedModel, match=r"none holds; the likeliest failed: .*outputs change"):
        leanify.read(model, inputs=inputs)


def test_grown_module_runs_before_it_returns() -> None:
    model, inputs = own_styles.regional_bias()
    shape = leanify.read(model, inputs=inputs)
    for change in (lambda: leanify.grow(model, heads=8), lambda: leanify.write(model, shape.grown(heads=8))):
        with pytest.raises(leanify.UnsupportedModel, match="runs as it is, but not in the requested shape"):
            change()


def test_nvml_is_asked_by_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVML ignores CUDA_VISIBLE_DEVICES: its number 0 is another card than torch's."""
    stub: Any = types.ModuleType("pynvml")
    stub.NVMLError = type("NVMLError", (Exception,), {})
    stub.nvmlInit = lambda: None
    stub.nvmlDeviceGetHandleByIndex = lambda index: index
    stub.nvmlDeviceGetHandleByUUID = lambda uuid: {"GPU-b": 1, "MIG-c": 2}[uuid]
    stub.nvmlDeviceGetMemoryInfo = lambda handle: types.SimpleNamespace(used=(11, 22, 33)[handle])
    monkeypatch.setitem(sys.modules, "pynvml", stub)
    for visible, used in (("1", 22), ("GPU-b", 22), ("MIG-c", 33), ("1,0", 22), ("", 11)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert machine.nvml_used(torch.device("cuda", 0)) == used
