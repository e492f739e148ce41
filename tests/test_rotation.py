"""One rotation of the residual stream: exact where the stream lies in fewer dimensions, refused where it is not."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from subprocess import run
from typing import Any

import pytest
import torch
from flows import missing_schemas
from test_shrink_heads import drawn
from test_warm_shrink import built, data
from torch import Tensor, nn
from zoo.running import randomise

import leanify
from leanify.carrying import rotation
from leanify.carrying.residual import Residual, residuals
from leanify.carrying.rotation import rotate, rotated_architecture
from leanify.carrying.teacher import CalibratedTeacher
from leanify.core.errors import ShapeError
from leanify.data.texts.tokenizers import make_tokenizer
from leanify.profiling.cost_model import ModelCosts
from leanify.profiling.live_model import LiveModel
from leanify.reshaping import surgery
from leanify.reshaping.sites import locate
from leanify.search.options import Options
from leanify.shrinking.candidates import Prices, candidates
from leanify.shrinking.original import Original
from leanify.sources import find

SIZES = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 60}
GROUPED = {**SIZES, "num_key_value_heads": 2}
GPT2 = {"n_embd": 48, "n_layer": 3, "n_head": 4, "vocab_size": 60, "n_positions": 20, "bos_token_id": 0}
LANGUAGE = {"llama": GROUPED, "qwen2": GROUPED, "gemma": {**GROUPED, "head_dim": 12}, "gpt_neox": SIZES, "gpt2": GPT2}
IMAGES = [
    "vit_base_patch16_224", "vit_small_patch14_dinov2", "beit_base_patch16_224", "deit_base_distilled_patch16_224"
]  # fmt: skip


def language_model(name: str, is_tied: bool) -> tuple[nn.Module, list[dict[str, Tensor]]]:
    settings = {**LANGUAGE[name], "class": "AutoModelForCausalLM", "tie_word_embeddings": is_tied}
    model = randomise(find.load(f"hf/{name}", overrides=settings))
    torch.manual_seed(0)
    return model, [{"input_ids": torch.randint(3, 60, (3, 12))} for _ in range(4)]


def with_data(name: str) -> tuple[nn.Module, list[dict[str, Tensor]]]:
    model, _ = built(name)
    return model, data(model, 4)


def teacher_of(model: nn.Module, batches: list[dict[str, Tensor]]) -> CalibratedTeacher:
    return CalibratedTeacher(model, batches[:3], batches[3:])


@torch.no_grad()
def confine(model: nn.Module, batches: list[dict[str, Tensor]], dimensions: int) -> None:
    """Confine the residual stream to some dimensions in which its channels sum to zero, in place."""
    located = locate(model)
    width = located.architecture.stages[0].primaries[0].width
    narrow = leanify.write(model, rotated_architecture(located.architecture, width - 8), weights="fresh")
    axes = rotation._differing_axes(model, narrow)
    blocks = residuals(located, located.stages[0].name, lambda module: rotation.run(module, batches[0]))
    for block in blocks:
        assert isinstance(block, Residual)
        for sublayer in block.sublayers:
            if sublayer.scale:
                block.block.get_parameter(sublayer.scale).fill_(0.5)
    # a copy tells which weights read the stream, and which vectors belong to norms
    copy = rotation._Rotation(locate(rotation.deep_copy(model)), axes)
    copy.fold_norms(batches[0])
    random = torch.randn(width, dimensions, dtype=torch.float64)
    basis = torch.linalg.qr(random - random.mean(0)).Q
    for name, tensor in model.named_parameters():
        for axis in axes.get(name, ()):
            if name not in (*copy.gains, *copy.constants, *copy.readers):
                value = tensor.double().movedim(axis, -1)
                tensor.copy_((value @ basis @ basis.T).movedim(-1, axis))


@pytest.mark.parametrize("name", [*IMAGES, *(name for name in LANGUAGE if name != "gemma")])
def test_confined_stream_is_kept(name: str) -> None:
    """A stream in 30 of 48 dimensions goes into 40 channels without loss, and not into 24."""
    model, batches = language_model(name, False) if name in LANGUAGE else with_data(f"timm/{name}")
    confine(model, batches, 30)
    teacher = teacher_of(model, batches)
    kept = rotate(teacher, rotated_architecture(teacher.architecture, 40))
    assert leanify.read(kept.model) == rotated_architecture(teacher.architecture, 40)
    assert type(kept.model).__name__ == type(model).__name__
    assert kept.damage < 1e-6
    assert rotate(teacher, rotated_architecture(teacher.architecture, 24)).damage > 1e-4


def test_tied_head_becomes_its_own() -> None:
    model, batches = language_model("llama", True)
    teacher = teacher_of(model, batches)
    new: Any = rotate(teacher, rotated_architecture(teacher.architecture, 40)).model
    assert not new.config.tie_word_embeddings
    assert new.lm_head.weight is not new.model.embed_tokens.weight
    assert model.config.tie_word_embeddings, "the original is untouched"


@pytest.mark.parametrize(
    ("name", "words"),
    [("hf/bert", "post-norm"), ("hf/t5", "one list of blocks"), ("timm/vit_base_patch16_clip_224", "2 norms")],
)
def test_other_models_are_refused(name: str, words: str) -> None:
    teacher = teacher_of(*with_data(name))
    with pytest.raises(ShapeError, match=words):
        rotate(teacher, rotated_architecture(teacher.architecture, 40))


def test_constants_of_the_width_are_noticed() -> None:
    """Gemma multiplies its embeddings by the root of the width, in code."""
    teacher = teacher_of(*language_model("gemma", False))
    with pytest.raises(ShapeError, match="at the new width it computes something else"):
        rotate(teacher, rotated_architecture(teacher.architecture, 32))


def test_forgotten_axis_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    teacher = teacher_of(*with_data("timm/vit_base_patch16_224"))
    read_axes = rotation._differing_axes

    def forget(model: nn.Module, narrow: nn.Module) -> dict[str, list[int]]:
        axes = read_axes(model, narrow)
        assert axes.pop("pos_embed") == [2]
        narrow.get_parameter("pos_embed").data = torch.zeros_like(model.get_parameter("pos_embed"))
        return axes

    monkeypatch.setattr(rotation, "_differing_axes", forget)
    with pytest.raises(ShapeError, match="with all components it computes something else"):
        rotate(teacher, rotated_architecture(teacher.architecture, 40))


def priced(place: Path, options: Options) -> Prices:
    """The prices of a checkpoint, without data."""
    source = find.find(place)
    shell = find.build_on_meta(source)
    costs, nothing = ModelCosts(lambda: (LiveModel(shell), True)), Any
    original = Original(
        str(place), source, locate(shell), costs, nothing, nothing, {}, nothing, partial(surgery.write, shell)
    )
    return Prices(original, options)


def test_width_fits_the_budget(tmp_path: Path) -> None:
    """The widest that fits, its head counted once more where it was the embeddings."""
    drawn("LlamaForCausalLM", **GROUPED, tie_word_embeddings=True).save_pretrained(tmp_path)
    prices = priced(tmp_path, Options(target_params=0.8))
    [candidate] = candidates(prices, ["rotated"])
    model = leanify.load(tmp_path)
    rotation.untie_head(model)
    sizes = {}
    for width in (8, 16, 24, 32, 40):
        written = leanify.write(model, rotated_architecture(prices.baseline.architecture, width))
        sizes[width] = sum(parameter.numel() for parameter in written.parameters())
    assert candidate.design is not None
    assert candidate.design.width == max(width for width, size in sizes.items() if size <= 0.8 * prices.baseline.params)


@pytest.mark.slow
def test_impossible_widths_are_passed_over(tmp_path: Path) -> None:
    """Nine heads on three groups divide few widths: the widest that upstream builds within the budget is taken."""
    sizes = {"hidden_size": 144, "num_attention_heads": 9, "num_key_value_heads": 3}
    drawn("LlamaForCausalLM", **{**GROUPED, **sizes}).save_pretrained(tmp_path)
    prices = priced(tmp_path, Options(target_params=0.8, count="body"))
    assert "rotated" not in [candidate.name for candidate in candidates(prices)], "by name only"
    [candidate] = candidates(prices, ["rotated"])
    assert candidate.design is not None
    assert 0 < candidate.design.width < 144
    assert (candidate.design.heads, candidate.design.head_dim, candidate.design.mlp) == (9, 16, 64)


@pytest.mark.slow
def test_shrunk_model_opens_in_its_library(tmp_path: Path) -> None:
    """A language model with tied embeddings, shrunk, healed for a few steps, and opened by transformers alone."""
    sizes = {**GROUPED, "vocab_size": 300, "max_position_embeddings": 64}
    drawn("LlamaForCausalLM", **sizes, tie_word_embeddings=True).save_pretrained(tmp_path / "llama")
    make_tokenizer("bytes", lambda: [], "")[0].save_pretrained(tmp_path / "llama")
    (tmp_path / "text.txt").write_text("".join(f"line {i} of a text about {i * i}\n" for i in range(2000)))
    settings = ["data.length=32", "schedule.steps=4", "schedule.batch_size=4", "data.samples=64"]
    result = leanify.shrink(
        tmp_path / "llama", tmp_path / "text.txt", 0.8, 1, tmp_path / "out", count="body", designs=["rotated"],
        rates=[1e-4], settings=settings,
    )  # fmt: skip
    [candidate] = result.report["candidates"]
    assert candidate["carried"]["params"] == candidate["params"]
    words = [sys.executable, "-m", "leanify", "shrink", str(tmp_path / "out"), "--report"]
    table = run(words, check=True, capture_output=True, text=True).stdout
    assert f"3 × 4, 64, {candidate['width']} wide" in table
    read = missing_schemas() + "import sys, torch\nfrom transformers import AutoModelForCausalLM as M\n"
    read += "m = M.from_pretrained(sys.argv[1], trust_remote_code=True).eval()\n"
    read += "torch.save(m(torch.arange(8)[None]).logits, sys.argv[2])\nassert 'leanify' not in sys.modules"
    run([sys.executable, "-c", read, tmp_path / "out", tmp_path / "logits.pt"], check=True)
    with torch.no_grad():
        expected = result.build()(input_ids=torch.arange(8)[None]).logits
    assert torch.allclose(torch.load(tmp_path / "logits.pt"), expected, atol=1e-5)
