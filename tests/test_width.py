"""The residual width: written by upstream's own constructors, read back, permuted, priced, saved and refused."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flows import missing_schemas
from studies import RECIPE
from zoo import tiny, widths
from zoo.running import LawBroken

import leanify
from leanify.comparison import planning
from leanify.comparison.folder import StudyFolder
from leanify.comparison.verdicts import question_margins
from leanify.core import recipe as recipes
from leanify.core.architecture import Architecture
from leanify.core.errors import LeanifyError, ShapeError
from leanify.profiling import counting
from leanify.profiling.forward import call, observe_on_cpu
from leanify.profiling.live_model import LiveModel
from leanify.search.narrow_shape import WidthScale
from leanify.search.redesign import live_model
from leanify.upstream.inputs import example_inputs
from recipes.research.own_modules import torch_encoder

STUDY = recipes.apply_settings(recipes.parse(RECIPE), ["model.override.embed_dim=64", "model.override.num_heads=4"])
SMALL_VIT = {"depth": 3, "img_size": 32}
FAMILIES = [
    "timm/vit_tiny_patch16_224", "timm/xcit_nano_12_p16_224", "timm/cait_xxs24_224", "timm/eva02_tiny_patch14_224",
    "hf/bert", "hf/gpt2", "hf/llama", "hf/bart", "hf/mixtral", "hf/roformer", "hf/canine", "hf/data2vec-audio",
    "hf/videomae", "timm/davit_tiny", "timm/volo_d1_224", "timm/tnt_b_patch16_224", "hf/t5", "hf/clip", "hf/qwen3",
    "hf/deberta-v2", "hf/seamless_m4t", "hf/phi4_multimodal",
]  # fmt: skip


def narrowed(shape: Architecture, share: float) -> Architecture:
    scale = WidthScale.read(shape)
    return scale.reshape(min(scale.smaller_units(), key=lambda unit: abs(unit - share * scale.unit)))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FAMILIES)
def test_permuted_channels_compute_the_same(name: str) -> None:
    library, _, model = name.partition("/")
    assert widths.check_permuted(*tiny.build(library, model))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("roc_bert", "beside 512 others"),
        ("recurrent_gemma", "an order of their own"),
        pytest.param("mobilebert", "runs as it is, but not in the requested shape", marks=pytest.mark.slow),
    ],
)
def test_weights_of_unclear_channels_are_refused(name: str, words: str) -> None:
    model, _ = tiny.build("hf", name)
    with pytest.raises(LeanifyError, match=words):
        leanify.write(model, narrowed(leanify.read(model), 2 / 3))


@pytest.mark.parametrize("forgotten", ["pos_embed", "blocks.1.norm2.weight", "blocks.2.mlp.fc2.weight"])
def test_forgotten_axis_breaks_the_law(forgotten: str) -> None:
    with pytest.raises(LawBroken, match="permuted"):
        widths.check_permuted(*tiny.build("timm", "vit_tiny_patch16_224"), forgotten=forgotten)


@pytest.mark.parametrize("name", ["vit_base", "volo_d3", "davit_base", "bert", "gpt2", "t5"])
def test_written_width_is_read_back(name: str) -> None:
    model = leanify.load(name, device="meta")
    target = narrowed(leanify.read(model), 0.75)
    assert leanify.read(leanify.write(model, target)) == target


def test_first_channels_are_kept() -> None:
    model = leanify.load("vit_tiny", overrides=SMALL_VIT)
    narrow = leanify.write(model, narrowed(leanify.read(model), 0.5))
    old, new = model.state_dict(), narrow.state_dict()
    assert torch.equal(new["pos_embed"], old["pos_embed"][..., :96])
    assert torch.equal(new["blocks.1.norm1.weight"], old["blocks.1.norm1.weight"][:96])
    # where an axis holds the width several times, as of four merged pixels: the first of each
    swin = leanify.load("swin_tiny_patch4_window7_224", overrides={"img_size": 56, "depths": (1, 1, 1, 1)})
    name = "layers.1.downsample.reduction.weight"
    before, after = swin.state_dict()[name], leanify.write(swin, narrowed(leanify.read(swin), 0.5)).state_dict()[name]
    kept = torch.arange(384).view(4, 96)[:, :48].flatten()
    assert torch.equal(after, before[kept[:96]][:, kept])


def test_new_width_keeps_runtime_settings() -> None:
    model = leanify.load("bert", overrides={"num_hidden_layers": 2, "vocab_size": 99}).to(torch.bfloat16)
    model.set_attn_implementation("eager")
    narrow = leanify.write(model, narrowed(leanify.read(model), 0.5))
    assert (narrow.config._attn_implementation, narrow.dtype) == ("eager", torch.bfloat16)


@pytest.mark.parametrize("share", [0.25, 0.5, 0.6, 0.75, 0.9])
def test_prices_equal_counts(share: float) -> None:
    model = leanify.load("vit_tiny", overrides=SMALL_VIT, device="meta")
    target = narrowed(leanify.read(model), share)
    live = LiveModel(model)
    built = leanify.write(leanify.load("vit_tiny", overrides=SMALL_VIT), target)
    assert live.sizes(target)[0] == sum(parameter.numel() for parameter in built.parameters())
    assert live.cost(target).macs == observe_on_cpu(built, None, counting.macs)


MODULE = """
import torch
from torch import nn
class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.fc1, self.fc2, self.act = nn.Linear(width, 2 * width), nn.Linear(2 * width, width), nn.GELU()
        self.num_heads = heads
    def forward(self, x):
        B, N, C = x.shape
        q, k, v = (f(x).view(B, N, self.num_heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        a = torch.softmax(q @ k.transpose(-1, -2), -1) @ v
        x = x + self.o(a.transpose(1, 2).reshape(B, N, -1))
        return x + self.fc2(self.act(self.fc1(x)))
class Model(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.stem, self.blocks = nn.Linear(6, width), nn.Sequential(*(Block(width, heads) for _ in range(3)))
    def forward(self, x):
        return self.blocks(self.stem(x))
def make(ARGUMENTS):
    return Model(VALUES), torch.randn(1, 5, 6)
"""


@pytest.mark.parametrize(
    ("arguments", "values", "refusal"),
    [
        ("width=32, heads=4", "width, heads", ""),
        ("width=32, heads=4", "32, heads", "builds 32 wide"),  # it ignores its argument
        ("", "32, 4", "no argument width"),
        (None, "", r"make\(width=…\)"),  # a module in memory, which no function makes
    ],
)
def test_own_function_takes_the_width(tmp_path: Path, arguments: str | None, values: str, refusal: str) -> None:
    if arguments is None:
        model, inputs = torch_encoder()
        shape = leanify.read(model, inputs)
    else:
        file = tmp_path / "model.py"
        file.write_text(MODULE.replace("ARGUMENTS", arguments).replace("VALUES", values))
        model = leanify.load(f"{file}:make")
        shape = leanify.read(model)
    target = shape.map_layers(lambda layer: replace(layer.set_heads(2), width=layer.width // 2, mlp=32))
    if refusal:
        with pytest.raises(ShapeError, match=refusal):
            leanify.write(model, target)
        return
    narrow = leanify.write(model, target)
    assert leanify.read(narrow) == target
    assert narrow(torch.randn(1, 5, 6)).shape == (1, 5, 16)


def test_study_asks_a_third_question(tmp_path: Path) -> None:
    designs = ("baseline", "lean", "control", "narrow")
    plan = planning.make_plan(planning.Request(STUDY, designs=designs, target_params=0.7, seeds=(0, 1)))
    assert plan.rivals == ("control", "narrow")
    assert list(question_margins(plan, 1.0)) == ["baseline", "control", "narrow"]
    lean, narrow = plan.design("lean"), plan.design("narrow")
    assert (lean.width, lean.model.width) == (64, None)
    assert narrow.width == narrow.model.width < 64
    assert abs(narrow.params / lean.params - 1) <= 0.005
    folder = StudyFolder.create(tmp_path / "study", plan)
    assert folder.plan == plan
    named = ("baseline", "lean", "narrow=depth:2,heads:4")  # a shape that is only called so is no rival
    assert planning.make_plan(planning.Request(STUDY, designs=named, target_params=0.7)).rivals == ()


def test_pinned_width_is_the_budget() -> None:
    plan = leanify.redesign("vit_tiny", width=144)
    assert (plan.narrow.width, plan.narrow.heads, plan.narrow.depth) == (144, 2, 12)
    assert plan.chosen.params <= plan.narrow.params


@pytest.mark.slow
def test_width_is_pinned_per_stage_or_tower() -> None:
    """Numbers and shares alike; depth and head_dim stay, and heads and MLP follow their stage's width."""
    widths = leanify.redesign("davit_base", width=[96, 192, 384, 768]).narrow
    shares = leanify.redesign("davit_base", width="0.75,0.75,0.75,0.75").narrow
    assert (widths.width, widths.heads, widths.head_dim) == ([96, 192, 384, 768], [3, 6, 12, 24], 32)
    assert shares.architecture == widths.architecture
    clip = leanify.redesign("clip", width={"text_model": 384})
    assert (clip.narrow.width, clip.narrow.heads) == ([384, 768], [6, 12])


@pytest.mark.parametrize("source", ["vit_tiny", "gpt2"])
def test_lean_may_be_narrower(source: str) -> None:
    """With the axis of the width, lean, control and plain share a smaller width; prices equal counts."""
    plan = leanify.redesign(source, target_params=0.5, axes="depth,heads,mlp,width")
    for design in (plan.lean, plan.control, plan.plain):
        assert design.width == plan.lean.width < plan.baseline.width
        assert design.params <= 0.5 * plan.baseline.params
        live, _ = live_model(source, plan.options)
        assert counting.parameters(live.written(design.architecture).model) == design.params
    assert plan.lean.depth < plan.baseline.depth
    assert plan.lean.heads / plan.lean.width > plan.baseline.heads / plan.baseline.width


@pytest.mark.parametrize(("source", "share"), [("vit_tiny", 0.7), ("davit_tiny", 0.9)])
def test_left_out_axes_keep_their_sizes(source: str, share: float) -> None:
    plan = leanify.redesign(source, target_params=share, axes="depth,mlp")
    assert (plan.chosen.heads, plan.chosen.width) == (plan.baseline.heads, plan.baseline.width)
    assert plan.chosen.params < plan.baseline.params


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"axes": "width"}, "at least one of the first three"),
        ({"axes": "depth,size"}, "it takes depth, heads, mlp, width"),
        ({"axes": "heads,mlp", "depth": 3}, "leaves out depth, and depth fixes it"),
        ({"axes": "heads,mlp", "target_params": 0.3}, "below every design .* with axes heads,mlp: the smallest"),
        ({"axes": "depth,heads,mlp,width", "max_latency": 0.5}, "needs a budget on parameters or MACs"),
        ({"axes": "depth,heads,mlp,width", "depth": 3}, "needs a budget on parameters or MACs"),
    ],
)
def test_impossible_axes_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(LeanifyError, match=words):
        leanify.redesign("vit_tiny", **options)


@pytest.mark.parametrize(("width", "heads"), [(32, 2), (64, 4)])
def test_few_possible_widths_spend_the_budget(width: int, heads: int) -> None:
    overrides = {"img_size": 8, "patch_size": 4, "num_classes": 10, "embed_dim": width}
    overrides |= {"depth": 8, "num_heads": heads}
    plan = leanify.redesign("vit_tiny", target_params=0.5, overrides=overrides)
    assert 0.995 <= plan.narrow.params / plan.chosen.params <= 1


@pytest.mark.parametrize(
    ("source", "width", "words"),
    [
        ("vit_tiny", 150, "go in steps of 8; the nearest is 152"),
        ("vit_tiny", 192, "must be below the model's width, 192"),
        ("vit_tiny", "192,96", "2 values; this model has 1 stages"),
        ("davit_tiny", "72,144,288,800", "800 for stages.3.blocks is above the stage's, 768"),
        ("davit_tiny", "1,1,1,1", "no stage gets another width"),
        ("t5", "encoder=384,decoder=256", "256 for decoder.block is unlike 384 of a stage as wide"),
        ("vit_tiny", -1, "a number of channels"),
        ("vit_tiny", "abc", "width abc: it must be a number of channels"),
    ],
)
def test_impossible_width_names_the_nearest(source: str, width: Any, words: str) -> None:
    with pytest.raises(ShapeError, match=words):
        leanify.redesign(source, width=width)


@pytest.mark.slow
def test_width_that_does_not_run_is_named() -> None:
    with pytest.raises(LeanifyError, match="mobilebert does not run at this width"):
        leanify.redesign("mobilebert", width=64, overrides={"num_hidden_layers": 6, "vocab_size": 99})


FOLDERS = [  # source, its small size, the width: heads divide it, so that upstream alone builds the shape
    ("vit_tiny", {"depth": 3, "img_size": 32}, 128),
    ("deit_tiny", {"depth": 3, "img_size": 32}, 128),
    ("xcit_nano_12_p16_224", {"depth": 3, "img_size": 32}, 96),
    ("cait_xxs24_224", {"depth": 3, "img_size": 32}, 96),
    ("swin_tiny_patch4_window7_224", {"img_size": 56}, 256),
    ("davit_tiny", {}, 256),
    ("bert", {"num_hidden_layers": 3, "vocab_size": 99}, 512),
    ("gpt2", {"n_layer": 3, "vocab_size": 99}, 512),
    ("llama", {"num_hidden_layers": 3, "vocab_size": 99, "hidden_size": 256, "intermediate_size": 512,
               "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 64}, 128),
    ("t5", {"num_layers": 3, "vocab_size": 99}, 256),
    ("vit", {"num_hidden_layers": 3, "image_size": 32}, 512),
]  # fmt: skip
OPEN = """
import sys, torch
folder, library, name = sys.argv[1:]
if library == "timm":
    import timm
    model = timm.create_model(f"local-dir:{folder}", pretrained=True)
else:
    import transformers
    model = getattr(transformers, name).from_pretrained(folder)
assert "leanify" not in sys.modules
inputs = torch.load(folder + "-inputs.pt")
with torch.no_grad():
    result = model.eval()(inputs["x"]) if library == "timm" else model.eval()(**inputs)[0]
torch.save(result, folder + "-outputs.pt")
"""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("source", "overrides", "width"),
    [FOLDERS[0], *(pytest.param(*folder, marks=pytest.mark.slow) for folder in FOLDERS[1:])],
)
def test_upstream_alone_opens_narrow_folders(
    tmp_path: Path, source: str, overrides: dict[str, Any], width: int
) -> None:
    model = leanify.load(source, overrides=overrides)
    shape = leanify.read(model)
    scale = WidthScale.read(shape)
    unit = next(unit for unit in scale.smaller_units() if scale.width(unit) == width)
    narrow = leanify.write(model, scale.reshape(unit)).eval()
    folder = tmp_path / "narrow"
    leanify.save(narrow, folder)
    inputs = example_inputs(narrow, 1, tokens=12)
    torch.save(inputs, f"{folder}-inputs.pt")
    library = "timm" if set(inputs) == {"x"} else "hf"
    words = [sys.executable, "-c", missing_schemas() + OPEN, str(folder), library, type(narrow).__name__]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with torch.no_grad():
        result: Any = call(narrow, inputs)
    expected = result if library == "timm" else result[0]
    assert torch.allclose(torch.load(f"{folder}-outputs.pt"), expected, atol=1e-5)
    assert leanify.read(leanify.load(folder)) == leanify.read(narrow)
