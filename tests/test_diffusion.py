"""diffusers' image transformers: DiT and PixArt as sources, redesigned, written, loaded."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import leanify
from leanify.design.prices import counting
from leanify.lens import surgery
from leanify.upstream.inputs import example_inputs
from leanify.zoo import running

pytest.importorskip("diffusers")
pytestmark = pytest.mark.filterwarnings("ignore")

SIZES = {
    "num_attention_heads": 6,
    "attention_head_dim": 8,
    "num_layers": 6,
    "sample_size": 8,
    "num_embeds_ada_norm": 10,
}
CAPTIONS = {"cross_attention_dim": 48, "caption_channels": 24, "out_channels": 8}
SOURCES: dict[str, dict[str, Any]] = {
    "diffusers/dit": SIZES,
    "diffusers/pixart": {**SIZES, **CAPTIONS, "use_additional_conditions": True},
}


def outputs(model: nn.Module) -> Tensor:
    torch.manual_seed(0)
    with torch.no_grad():
        found: Any = counting.call(model.eval(), example_inputs(model, 2))
    sample: Tensor = found.sample
    return sample


@pytest.mark.parametrize("source", SOURCES)
def test_more_heads_without_output_columns_change_nothing(source: str) -> None:
    model = running.randomised(leanify.load(source, overrides=SOURCES[source])).float()
    shape = leanify.read(model)
    (first, *_, last) = (*shape.stages[0].blocks[0], shape.stages[0].blocks[0][-1])
    assert (first.heads, first.head_dim, first.width, last.mlp) == (6, 8, 48, 192)
    grown = leanify.grow(model, factor=2)
    assert leanify.read(grown) == shape.grown(factor=2)
    torch.testing.assert_close(outputs(grown), outputs(model))


@pytest.mark.parametrize("source", SOURCES)
def test_a_plan_costs_what_is_built_and_survives_the_disk(source: str, tmp_path: Path) -> None:
    plan = leanify.redesign(source, overrides=SOURCES[source], target_params=0.7, min_depth=1)
    assert plan.control is not None
    assert abs(plan.control.params / plan.chosen.params - 1) < 0.01
    for design in (plan.baseline, plan.chosen, plan.control):
        built = plan.build(design=design)
        assert surgery.read(built) == design.architecture
        assert sum(parameter.numel() for parameter in built.parameters()) == design.params
        with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
            counting.call(built, example_inputs(built, 1))
        assert counter.get_total_flops() // 2 == design.macs
    lean = plan.build()
    leanify.save(lean, tmp_path / "lean")
    again = leanify.load(tmp_path / "lean")
    assert leanify.read(again) == plan.chosen.architecture
    assert torch.equal(outputs(again), outputs(lean))
    with pytest.raises(OSError, match=r"config\.json"):  # upstream's words do not say this shape, so upstream refuses
        type(lean).from_pretrained(tmp_path / "lean")  # type: ignore[attr-defined]


@pytest.mark.parametrize("source", SOURCES)
def test_what_diffusers_can_say_is_its_own_folder(source: str, tmp_path: Path) -> None:
    plan = leanify.redesign(source, overrides=SOURCES[source], depth=3)
    plan.save(tmp_path / "short")
    words = json.loads((tmp_path / "short" / "config.json").read_text())
    assert words["_class_name"] == type(plan.build()).__name__
    upstream = type(plan.build()).from_pretrained(tmp_path / "short")  # type: ignore[attr-defined]
    assert torch.equal(outputs(upstream), outputs(leanify.load(tmp_path / "short")))
    upstream.save_pretrained(tmp_path / "theirs")
    assert torch.equal(outputs(leanify.load(tmp_path / "theirs")), outputs(upstream))
    carried = leanify.redesign(tmp_path / "theirs", heads=7).build(weights=tmp_path / "theirs")
    torch.testing.assert_close(outputs(carried), outputs(upstream))  # the new head's output columns are zero


@pytest.mark.parametrize(
    ("source", "overrides", "words"),
    [
        ("diffusers/unet", {}, "'unet' is none of the models of diffusers that leanify knows: DiTTransformer2DModel"),
        ("diffusers/dit", {"num_layer": 3}, "has no argument 'num_layer'; nearest: num_layers"),
        ("diffusers/dit", {"num_layers": 10**6}, "more than 1,024 blocks"),
    ],
)
def test_what_is_no_model_is_refused_in_words(source: str, overrides: dict[str, Any], words: str) -> None:
    with pytest.raises(leanify.SourceError, match=words):
        leanify.redesign(source, overrides=overrides, target_params=0.5)


def test_without_diffusers_there_is_one_message(tmp_path: Path) -> None:
    """A path with everything but diffusers: its metadata cannot be found."""
    code = (
        "import importlib.metadata as m, sys; real = m.version\n"
        "def version(name):\n"
        "    if name == 'diffusers': raise m.PackageNotFoundError(name)\n"
        "    return real(name)\n"
        "m.version = version; sys.modules['diffusers'] = None\n"
        "sys.argv = ['leanify', 'redesign', 'diffusers/dit', '--target-params', '0.5']\n"
        "from leanify.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert "pip install 'leanify[diffusers]'" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
