"""Exports: written for another loader, loaded there, with the same outputs; or refused, with nothing left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import CASES, Case
from safetensors.torch import load_file, save_file

import leanify
from leanify.carrying.blocks import disable_cache
from leanify.core.errors import LeanifyError, UnsupportedModel
from leanify.exporting import load_alone
from leanify.exporting.export import _compare, _rounding
from leanify.exporting.load_alone import output_tensors
from leanify.profiling.forward import call
from leanify.sources import modelling
from leanify.upstream.inputs import example_inputs
from leanify.upstream.libraries import import_transformers

SWIN = {"img_size": 56, "embed_dim": 24, "depths": (1, 1, 3, 1), "num_heads": (2, 4, 8, 16), "num_classes": 7}
T5 = {"d_model": 48, "d_kv": 12, "d_ff": 96, "num_layers": 3, "num_decoder_layers": 3, "num_heads": 4, "vocab_size": 67}
MIXTRAL = {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
           "num_key_value_heads": 2, "num_local_experts": 3, "vocab_size": 67}  # fmt: skip
FAMILIES = CASES | {
    "swin": Case("swin_tiny_patch4_window7_224", SWIN), "t5": Case("t5", T5), "mixtral": Case("hf/mixtral", MIXTRAL),
}  # fmt: skip
LONG = pytest.mark.long


def saved(name: str, place: Path, lean: bool = True) -> Path:
    """A lean directory of a core family: one block fewer and twice the heads, or as upstream has it."""
    model = FAMILIES[name].load()
    shape = leanify.read(model)
    if lean:
        longest = max(shape.stages, key=lambda stage: stage.depth)
        shorter = longest.reshape(depth=max(longest.shortest, longest.depth - 1))
        shape = replace(shape, stages=tuple(shorter if stage is longest else stage for stage in shape.stages))
        model = leanify.write(model, shape.grown(factor=2))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.02 * torch.randn_like(parameter))
    leanify.save(model, place / "lean")
    return place / "lean"


@pytest.mark.parametrize(
    ("name", "format"),
    [
        ("vit", "torch-export"),
        ("gpt2", "onnx"),
        pytest.param("mixtral", "onnx", marks=pytest.mark.slow),
        *(
            pytest.param(name, format, marks=LONG)
            for name in ("vit", "swin", "bert", "gpt2", "llama", "t5")
            for format in ("torch-export", "onnx")
            if (name, format) not in {("vit", "torch-export"), ("gpt2", "onnx")}
        ),
    ],
)
def test_lean_model_exports(name: str, format: str, tmp_path: Path) -> None:
    """`export` runs what it wrote, in torch.export or in onnxruntime, and compares; torch 2.6 cannot trace a ViT."""
    lean = saved(name, tmp_path)
    if (name, format) == ("vit", "torch-export") and torch.__version__.startswith("2.6."):
        with pytest.raises(UnsupportedModel, match=r"torch\.export cannot trace"):
            leanify.export(lean, format=format, output=tmp_path / "model")
        return
    written = leanify.export(lean, format=format, output=tmp_path / "model")
    assert written.stat().st_size > 10_000
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lean", "model"]


@pytest.mark.parametrize("name", [pytest.param("bert", marks=LONG), "gpt2", pytest.param("llama", marks=LONG)])
def test_custom_shape_loads_with_code(name: str, tmp_path: Path) -> None:
    lean = saved(name, tmp_path)
    model: Any = leanify.load(lean)
    if name == "llama":
        model = leanify.write(model, unequal(leanify.read(model)))
        leanify.save(model, tmp_path / "unequal")
        lean = tmp_path / "unequal"
    with pytest.raises(UnsupportedModel, match="with_code"):
        leanify.export(lean, format="hf", output=tmp_path / "hf")
    assert not (tmp_path / "hf").exists()
    out = leanify.export(lean, format="hf", output=tmp_path / "hf", with_code=True)
    assert "import leanify" not in (out / modelling.FILE).read_text()
    autos = json.loads((out / "config.json").read_text())["auto_map"]
    auto = getattr(import_transformers(), next(iter(autos)))
    loaded = auto.from_pretrained(out, trust_remote_code=True)
    if name != "bert":
        ids = torch.randint(5, 60, (1, 6), generator=torch.Generator().manual_seed(0))
        expected = model.generate(ids, max_new_tokens=6, do_sample=False, pad_token_id=0)
        for cache in (True, False):
            again = loaded.generate(ids, max_new_tokens=6, do_sample=False, use_cache=cache, pad_token_id=0)
            assert torch.equal(again, expected)


def unequal(shape: Any) -> Any:
    """Blocks of different shapes, which no configuration of transformers can say."""
    stage = shape.stages[0]
    first = stage.reshape(mlp=stage.primary.mlp // 2).blocks[:1]
    return replace(shape, stages=(replace(stage, blocks=(*first, *stage.blocks[1:])),))


@pytest.mark.parametrize(
    ("name", "format"),
    [("vit", "timm"), *(pytest.param(*of, marks=LONG) for of in (("swin", "timm"), ("bert", "hf"), ("t5", "hf")))],
)
def test_upstream_shapes_load_without_leanify(name: str, format: str, tmp_path: Path) -> None:
    lean = saved(name, tmp_path, lean=False)
    out = leanify.export(lean, format=format, output=tmp_path / "out")
    assert (out / "config.json").is_file()
    assert not (out / "leanify.json").exists()


@pytest.mark.parametrize(
    ("name", "format", "words"),
    [
        ("vit", "timm", "cannot express"),
        ("vit", "hf", "not a transformers model"),
        ("bert", "timm", "not a timm model"),
    ],
)
def test_unloadable_shapes_are_refused(name: str, format: str, words: str, tmp_path: Path) -> None:
    lean = saved(name, tmp_path)
    with pytest.raises(UnsupportedModel, match=words):
        leanify.export(lean, format=format, output=tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["lean"]


def test_bad_requests_are_refused(tmp_path: Path) -> None:
    with pytest.raises(LeanifyError, match="is not one of hf, timm"):
        leanify.export("bert", format="gguf", output=tmp_path / "x")
    with pytest.raises(LeanifyError, match="without weights"):
        leanify.export("bert", format="hf", output=tmp_path / "x")
    with pytest.raises(LeanifyError, match="exists already"):
        leanify.export("bert", format="hf", output=tmp_path)
    with pytest.raises(LeanifyError, match="takes none"):
        leanify.export("bert", format="onnx", output=tmp_path / "x", with_code=True)


def test_every_output_tensor_is_compared() -> None:
    a, b = torch.ones(2), torch.zeros(3)
    outputs = {"one": a, "past_key_values": (a, a), "rest": (b, [a], torch.ones(1).long())}
    assert [len(x) for x in output_tensors(outputs)] == [2, 3, 2]


def test_rounding_is_no_export_difference() -> None:
    """T5 does not divide its logits: with large ones float32 itself is further from float64 than two runtimes are."""
    shape = {"num_layers": 2, "num_decoder_layers": 2, "d_model": 32, "d_kv": 8, "num_heads": 4, "d_ff": 48}
    model = leanify.load("t5", overrides={**shape, "vocab_size": 99}).eval()
    inputs = example_inputs(model, 2, 16)
    roundings = []
    for _ in range(2):
        with torch.no_grad(), disable_cache(model):
            given = output_tensors(call(model, inputs))
            roundings.append(_rounding(model, inputs, given))
            for name, parameter in model.named_parameters():
                parameter.mul_(100 if name.endswith(".q.weight") else 1)
    assert 0 < 3 * roundings[0] < roundings[1]
    wanted = [torch.ones(3)]
    _compare("onnx", wanted, [torch.full((3,), 1.0005)], lambda: 4e-4)
    for off, own in ((1.0005, 1e-5), (1.2, 1.0)):
        with pytest.raises(UnsupportedModel, match="different outputs"):
            _compare("onnx", wanted, [torch.full((3,), off)], lambda own=own: own)


@pytest.mark.parametrize("format", ["onnx", "torch-export"])
def test_program_takes_any_batch_and_length(format: str, tmp_path: Path) -> None:
    """A BERT's table of positions ends at 40: torch.export wants that said, and 40 tokens are taken."""
    library = import_transformers()
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    torch.manual_seed(0)
    model = library.BertModel(library.BertConfig(vocab_size=50, max_position_embeddings=40, **shape)).eval()
    model.save_pretrained(tmp_path / "source")
    file = leanify.export(tmp_path / "source", format=format, output=tmp_path / "program")
    for batch, tokens in ((1, 40), (5, 7)):
        ids = torch.randint(0, 50, (batch, tokens))
        mask = torch.ones_like(ids)
        with torch.no_grad():
            wanted = model(input_ids=ids, attention_mask=mask).last_hidden_state
        if format == "onnx":
            session = pytest.importorskip("onnxruntime").InferenceSession(str(file))
            names = [each.name for each in session.get_inputs()]
            arrays = {name: value.numpy() for name, value in zip(names, (ids, mask), strict=True)}
            given = torch.from_numpy(session.run(None, arrays)[0])
        else:
            given = torch.export.load(file).module()(ids, mask)[0]
        assert torch.allclose(given, wanted, atol=1e-4)


@pytest.mark.parametrize(
    "name", ["bert", pytest.param("gpt2", marks=LONG), pytest.param("llama", marks=pytest.mark.slow)]
)
def test_free_shape_opens_alone(name: str, tmp_path: Path) -> None:
    """A lean directory whose blocks differ opens in transformers where leanify cannot be imported, and is refused
    there without trust_remote_code; leanify reads it as before.
    """
    model: Any = CASES[name].load()
    model = leanify.write(model, unequal(leanify.read(model)))
    leanify.save(model, tmp_path / "free")
    again = leanify.load(tmp_path / "free")
    assert leanify.read(again) == leanify.read(model)
    assert not hasattr(again.config, "auto_map")
    inputs = example_inputs(model, 2, 8)
    with torch.no_grad(), disable_cache(model):
        reference = output_tensors(call(model.eval(), inputs))
    autos = json.loads((tmp_path / "free" / "config.json").read_text())["auto_map"]
    auto = next(name for name in autos if name != "AutoConfig")
    outputs = open_alone(tmp_path, auto, inputs)
    assert all(torch.equal(a, b) for a, b in zip(outputs, reference, strict=True))
    with pytest.raises(AssertionError, match=r"custom code|leanify_|trust_remote_code"):
        open_alone(tmp_path, type(model).__name__, inputs)


@pytest.mark.slow
def test_replaced_modules_get_no_code(tmp_path: Path) -> None:
    """BigBird replaces its attention where a text is short: what the model then holds is not what its class builds."""
    sizes = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
    model: Any = leanify.load("hf/big_bird", overrides={**sizes, "vocab_size": 60})
    inputs = {"input_ids": torch.arange(5, 17)[None]}
    with torch.no_grad():
        model.eval()(**inputs)
        model = leanify.write(model, unequal(leanify.read(model)))
        reference = model(**inputs)[0]
    leanify.save(model, tmp_path / "free")
    assert "auto_map" not in json.loads((tmp_path / "free" / "config.json").read_text())
    with torch.no_grad():
        assert torch.equal(leanify.load(tmp_path / "free").eval()(**inputs)[0], reference)


def open_alone(place: Path, cls: str, inputs: Any) -> list[torch.Tensor]:
    """The outputs of a directory in a process that cannot import leanify; AssertionError with what it says."""
    save_file({key: value.contiguous() for key, value in inputs.items()}, place / "inputs.safetensors")
    words = [place / "free", "hf", cls, place / "inputs.safetensors", place / "outputs.safetensors"]
    environment = {**os.environ, "HF_MODULES_CACHE": str(place / "modules"), "HF_HUB_OFFLINE": "1"}
    process = subprocess.run(
        [sys.executable, "-P", load_alone.__file__, *map(str, words)], capture_output=True, text=True, env=environment
    )
    assert process.returncode == 0, process.stderr
    outputs = load_file(place / "outputs.safetensors")
    return [outputs[key] for key in sorted(outputs)]
