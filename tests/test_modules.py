"""Transformers that somebody wrote: read from one example of their input, grown and written without a change."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import leanify
from leanify.discovery.row_laws import InDouble
from leanify.lens import families
from leanify.upstream import user_modules
from leanify.upstream.example_inputs import inputs_by_name
from leanify.upstream.inputs import example_inputs
from recipes.research import own_modules
from recipes.research.own_modules import (
    DEPTH,
    EXAMPLES,
    HEADS,
    UNITS,
    WIDTH,
    Example,
    PlainBlock,
    gpt,
    inline,
    kernels,
    torch_encoder,
    tower,
)

MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "train": torch.enable_grad, "eval": torch.enable_grad, "no_grad": torch.no_grad, "inference": torch.inference_mode,
}  # fmt: skip
FREE = {"multiple": 4, "min_mlp": 0.3, "min_depth": 1}  # the bounds of plans are made for larger models


def made(make: Callable[[], Example]) -> tuple[nn.Module, dict[str, Any]]:
    torch.manual_seed(0)
    model, inputs = make()
    return model.eval(), inputs_by_name(model, inputs)


def outputs(model: nn.Module, inputs: dict[str, Any], mode: str = "no_grad") -> list[Tensor]:
    """The floating-point tensors that a model returns, in float64."""
    model.train(mode == "train")
    wide = {name: x.double() if x.is_floating_point() else x for name, x in inputs.items()}
    with MODES[mode](), InDouble():
        result = model(**wide)
    found = result if isinstance(result, (tuple, list)) else [result]
    return [tensor.detach() for tensor in found if isinstance(tensor, Tensor)]


def difference(one: list[Tensor], other: list[Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("make", EXAMPLES, ids=lambda make: make.__name__)
def test_own_module_is_read(make: Callable[[], Example]) -> None:
    model, inputs = made(make)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    shape = leanify.read(model, inputs=inputs)
    for stage in shape.stages:
        assert (stage.depth, stage.is_fixed) == (DEPTH, False)
        assert (stage.primary.heads, stage.primary.head_dim, stage.primary.mlp) == (HEADS, WIDTH // HEADS, UNITS)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert leanify.read(model) == shape  # what was found is kept with the model
    # other shapes are written and read back; its own shape computes the same
    one, lean = (
        replace(shape, stages=tuple(stage.reshape(**sizes) for stage in shape.stages))
        for sizes in ({"depth": 1}, {"depth": 2, "heads": HEADS + 2, "mlp": UNITS // 2})
    )
    assert leanify.read(leanify.write(model, one)) == one
    written = leanify.write(model, lean)
    assert leanify.read(written) == lean
    assert difference(outputs(written.double(), inputs), outputs(copy.deepcopy(written), inputs)) == 0
    same = leanify.write(model, shape)
    assert difference(outputs(model.double(), inputs), outputs(same.double(), inputs)) == 0


@pytest.mark.parametrize("make", EXAMPLES, ids=lambda make: make.__name__)
def test_growth_keeps_outputs(make: Callable[[], Example]) -> None:
    """In every mode."""
    model, inputs = made(make)
    model = model.double()
    grown = leanify.grow(model, factor=2, inputs=inputs)
    assert all(layer.heads == 2 * HEADS for layer in leanify.read(grown).layers())
    for mode in MODES:
        assert difference(outputs(model, inputs, mode), outputs(grown, inputs, mode)) < 1e-13, mode
    with torch.no_grad():
        for module in grown.modules():
            if (row := families.find_row(module)) and row.is_attention:
                for parameter in module.parameters():
                    parameter.normal_()
    assert difference(outputs(model, inputs), outputs(grown, inputs)) > 1e-6  # the new heads are alive


def test_discovered_row_prints_and_parses() -> None:
    model, inputs = made(gpt)
    shape = leanify.read(model, inputs=inputs)
    rows = {families.toml(row) for module in model.modules() if (row := families.attached_row(module)) is not None}
    attention, mlp = sorted(rows, key=lambda row: "c_fc" in row)
    assert 'rows = { c_attn = "3 h d" }' in attention
    assert 'columns = { c_proj = "h d" }' in attention
    assert 'rows = { "mlp.c_fc" = "m" }' in mlp
    fresh, _ = made(gpt)
    assert leanify.read(fresh, rows=attention + mlp) == shape


def test_missing_example_input_is_named() -> None:
    model, _ = made(gpt)
    with pytest.raises(leanify.UnsupportedModel, match=r"inputs=batch"):
        leanify.read(model)


@pytest.mark.filterwarnings("ignore")
def test_reading_takes_five_forwards() -> None:
    for make in EXAMPLES:
        model, inputs = made(make)
        kind = type(model)
        calls = 0

        def counted(self: nn.Module, *args: Any, _of: Any = kind.forward, **kwargs: Any) -> Any:
            nonlocal calls
            calls += self._leanify_root if hasattr(self, "_leanify_root") else 0
            return _of(self, *args, **kwargs)

        model.__dict__["_leanify_root"] = 1
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(kind, "forward", counted)
            leanify.read(model, inputs=inputs)
        assert calls <= 5, make


def test_weight_norm_trial_checks_sizes() -> None:
    """torch's kernel reads past the end of a scale that is too short, which ends the process."""
    v = torch.randn(8, 4, 16, dtype=torch.float64)
    with InDouble():
        whole = torch._weight_norm(v, torch.norm_except_dim(v, 2, 2), 2)
        with pytest.raises(RuntimeError, match="size"):
            torch._weight_norm(v, torch.ones(1, 1, 2, dtype=torch.float64), 2)
    torch.testing.assert_close(whole, v)


@pytest.mark.filterwarnings("ignore")  # torch's own, of what it imports to compile
@pytest.mark.parametrize(("wrap", "words"), [(torch.compile, "_orig_mod"), (nn.DataParallel, r"model\.module")])
def test_wrapper_is_refused_untouched(wrap: Callable[[nn.Module], Any], words: str) -> None:
    model, inputs = made(torch_encoder)
    with pytest.raises(leanify.UnsupportedModel, match=words):
        leanify.grow(wrap(model), factor=2, inputs=inputs)


@pytest.mark.parametrize("make", EXAMPLES, ids=lambda make: make.__name__)
def test_plan_prices_and_builds_module(make: Callable[[], Example]) -> None:
    model, inputs = made(make)
    plan = leanify.redesign(model, inputs=inputs, target_params=0.75, max_macs=0.9, **FREE)
    lean = plan.build()
    assert type(lean) is type(model)
    assert leanify.read(lean) == plan.chosen.architecture
    assert sum(parameter.numel() for parameter in lean.parameters()) == plan.chosen.params
    for whole, priced in ((model, plan.baseline), (lean, plan.chosen)):
        assert macs_of(whole, inputs) == priced.macs
    for parameter in lean.parameters():
        assert parameter.isfinite().all()
    trained(lean, inputs)
    if make is kernels:  # whose output projection is a parameter, which no hook sees
        with pytest.raises(leanify.UnsupportedModel, match="bare parameter"):
            leanify.condition(model, inputs)
    else:
        assert all(layer.kappa >= 1 for layer in leanify.condition(model, inputs).layers)


def macs_of(model: nn.Module, inputs: dict[str, Any]) -> int:
    """Multiply-adds by torch's own counter, which sees into no fused kernel."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad(), FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
            model.eval()(**inputs)
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    return int(counter.get_total_flops()) // 2


def trained(model: nn.Module, inputs: dict[str, Any], steps: int = 10) -> None:
    """A few steps of descent, which must lower the outputs' squares."""
    optimiser = torch.optim.SGD(model.train().parameters(), 1e-2)
    losses = []
    for _ in range(steps):
        result = model(**inputs)
        loss = (result[0] if isinstance(result, tuple) else result).float().pow(2).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("make", [gpt, kernels, torch_encoder], ids=lambda make: make.__name__)
def test_named_code_rebuilds_saved_model(
    make: Callable[[], Example], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "mine.py"
    file.write_text(Path(own_modules.__file__).read_text("utf-8"), encoding="utf-8")
    model, inputs = made(make)
    lean = leanify.redesign(model, inputs=inputs, target_params=0.8, **FREE).build()
    leanify.save(lean, tmp_path / "lean", source=f"{file}:{make.__name__}")
    again = leanify.load(tmp_path / "lean")
    assert difference(outputs(lean.double(), inputs), outputs(again.double(), inputs)) == 0
    assert leanify.read(again) == leanify.read(lean)
    file.write_text(file.read_text("utf-8") + "\n# changed\n", encoding="utf-8")
    with pytest.raises(leanify.SourceError, match=r"mine\.py:\w+ has changed"):
        leanify.load(tmp_path / "lean")


def test_directory_code_needs_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that a directory names does not run before the user names it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "mine"))
    file = tmp_path / "mine.py"
    code = Path(own_modules.__file__).read_text("utf-8")
    file.write_text(f"{code}\nopen({str(tmp_path / 'ran')!r}, 'a').close()\n", encoding="utf-8")
    model, inputs = made(gpt)
    leanify.read(model, inputs=inputs)
    leanify.save(model, tmp_path / "lean", source=f"{file}:gpt")
    (tmp_path / "ran").unlink()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "others"))
    monkeypatch.setattr(user_modules, "ALLOWED_SOURCES", set())
    sys.modules.pop(next(name for name in sys.modules if name.startswith("_leanify_mine")))
    with pytest.raises(leanify.SourceError, match="not named here before"):
        leanify.load(tmp_path / "lean")
    assert not (tmp_path / "ran").exists()


def test_saving_needs_named_code(tmp_path: Path) -> None:
    model, inputs = made(gpt)
    leanify.read(model, inputs=inputs)
    with pytest.raises(leanify.SourceError, match=r"source='path/to/model\.py:make'"):
        leanify.save(model, tmp_path / "lean")
    assert not (tmp_path / "lean").exists()


@pytest.mark.filterwarnings("ignore:.*its depth stays")
def test_tied_blocks_stay_tied() -> None:
    """A block that stands twice keeps its depth."""
    model, inputs = made(inline)
    blocks: Any = model.get_submodule("blocks")
    blocks[1].qkv.weight = blocks[0].qkv.weight
    grown = leanify.grow(model, factor=2, inputs=inputs)
    assert grown.get_parameter("blocks.0.qkv.weight") is grown.get_parameter("blocks.1.qkv.weight")
    assert difference(outputs(model.double(), inputs), outputs(grown.double(), inputs)) < 1e-13
    twice, inputs = made(inline)
    blocks = twice.get_submodule("blocks")
    blocks[2] = blocks[0]
    with pytest.warns(UserWarning, match="its depth stays"):
        shape = leanify.read(twice, inputs=inputs)
    assert all(stage.is_fixed for stage in shape.stages)
    grown = leanify.grow(twice, factor=2)
    assert difference(outputs(twice.double(), inputs), outputs(grown.double(), inputs)) < 1e-13


def test_same_named_classes_are_separate() -> None:
    first, inputs = made(inline)
    other = type("InlineBlock", (PlainBlock,), {"__module__": own_modules.__name__})
    shape = leanify.read(first, inputs=inputs)
    second, _ = tower(other)
    assert leanify.read(second, inputs=inputs) == shape  # of the same sizes, in other parts
    assert families.attached_row(second.get_submodule("blocks.0")) is None


def test_user_hooks_see_no_trial() -> None:
    model, inputs = made(gpt)
    seen: list[str] = []
    for name, module in model.named_modules():
        module.register_forward_hook(lambda *_, name=name: seen.append(name))
    leanify.read(model, inputs=inputs)
    assert seen == []


class TakesBatch(nn.Module):
    """A forward that takes tensors in a container, and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = made(kernels)[0]

    def forward(self, batch: Any, start: int = 0, mask: None = None) -> Tensor:
        return self.inner(batch["x"] if isinstance(batch, dict) else batch[0]) * (start + 1)


@pytest.mark.parametrize("wrap", [lambda x: {"x": x}, lambda x: (x, [x]), lambda x: [x]])
def test_inputs_may_be_in_containers(wrap: Callable[[Tensor], Any]) -> None:
    model, inputs = TakesBatch(), (wrap(next(iter(made(kernels)[1].values()))), 1)
    plan = leanify.redesign(model, inputs=inputs, target_params=0.9, min_depth=1, min_mlp=0, multiple=1)
    assert plan.chosen is not None
    assert sum(parameter.numel() for parameter in plan.build().parameters()) == plan.chosen.params
    assert leanify.profile(model, inputs=inputs, repeats=1).params == plan.baseline.params
    batch = example_inputs(leanify.grow(model, factor=2), 3)["batch"]
    assert len(batch["x"] if isinstance(batch, dict) else batch[0]) == 3
