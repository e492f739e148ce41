"""Sources and lean directories: what loads back, what must fail, what is never half written."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import CASES, Case, equal, outputs
from flows import missing_schemas
from safetensors.torch import load_file, save_file

import leanify
from leanify.sources import find, lean_directory, names
from leanify.upstream.libraries import import_timm, import_transformers

timm, transformers = import_timm(), import_transformers()


def lean_of(case: Case) -> Any:
    model = case.load()
    shape = leanify.read(model)
    stages = list(shape.stages)
    for i in shape.variable_stages:
        stages[i] = stages[i].reshape(depth=2, heads=2 * stages[i].primary.heads)
    return leanify.write(model, replace(shape, stages=tuple(stages))).eval()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_lean_directory_loads_in_upstream(case: Case, tmp_path: Path) -> None:
    lean = lean_of(case)
    folder = leanify.save(lean, tmp_path / "lean")
    card = json.loads((folder / "leanify.json").read_text())
    assert card["upstream"] == case.native
    assert {"torch", "timm" if card["origin"]["library"] == "timm" else "transformers"} <= card["requires"].keys()
    again = leanify.load(folder)
    assert leanify.read(again) == leanify.read(lean)
    assert equal(outputs(lean), outputs(again))
    if card["origin"]["library"] == "timm":
        upstream = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    else:
        upstream = getattr(transformers, card["origin"]["cls"]).from_pretrained(folder).eval()
    assert equal(outputs(lean), outputs(upstream))
    grown_again = leanify.save(leanify.grow(again, factor=2), tmp_path / "again")
    assert torch.allclose(outputs(leanify.load(grown_again))[0], outputs(lean)[0], atol=1e-5)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def mixed_bert(folder: Path) -> tuple[Any, Path]:
    """Every tensor fits the configuration that upstream builds; only the heads differ from layer to layer."""
    model = CASES["bert"].load()
    shape = leanify.read(model)
    blocks = shape.stages[0].blocks
    mixed = replace(shape, stages=(replace(shape.stages[0], blocks=((blocks[0][0].set_heads(6, 10),), *blocks[1:])),))
    return mixed, leanify.save(leanify.write(model, mixed), folder / "mixed")


def test_upstream_keeps_varying_heads(tmp_path: Path) -> None:
    mixed, folder = mixed_bert(tmp_path)
    for load in (leanify.load, transformers.AutoModel.from_pretrained, transformers.BertModel.from_pretrained):
        assert leanify.read(load(folder)) == mixed


@pytest.mark.slow
@pytest.mark.parametrize("order", ["import leanify", missing_schemas()], ids=["before", "after"])
def test_timm_builds_with_leanify_imported(order: str, tmp_path: Path) -> None:
    folder = leanify.save(leanify.grow(CASES["vit"].load(), heads=4), tmp_path / "lean")
    build = f"print(timm.create_model('local-dir:{folder}').blocks[0].attn.head_dim)"
    code = f"import torch\n{order}\nimport timm, leanify\n{build}"
    both = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert both.stdout.strip() == "20", both.stderr


# -- sources ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("short", "full"),
    [
        ("vit_base", "vit_base_patch16_224"), ("timm/vit_large", "vit_large_patch16_224"),
        ("vit_huge", "vit_huge_patch14_224"), ("deit_base", "deit_base_patch16_224"),
        ("xcit_medium_24", "xcit_medium_24_p16_224"), ("tnt_b", "tnt_b_patch16_224"), ("volo_d3", "volo_d3_224"),
        ("swin_tiny", "swin_tiny_patch4_window7_224"), ("davit_base", "davit_base"),
        ("vit_tiny_patch16_384", "vit_tiny_patch16_384"),
    ],
)  # fmt: skip
def test_short_names_complete(short: str, full: str) -> None:
    assert str(find.find(short).origin) == f"timm/{full}"


def test_model_types_take_overrides() -> None:
    sizes = {"n_layer": 3, "hidden_size": 60, "num_attention_heads": 3}
    found = find.find("hf/gpt2", overrides=sizes, cls="GPT2LMHeadModel")
    assert (found.origin.library, found.origin.cls, found.origin.options["n_layer"]) == ("hf", "GPT2LMHeadModel", 3)
    assert find.find("gpt2").origin.cls == "GPT2Model"
    assert find.find("llama", cls="AutoModelForCausalLM").origin.cls == "LlamaForCausalLM"
    wider = find.find("llama", overrides={"hidden_size": 8192, "num_attention_heads": 64})
    assert wider.origin.options["head_dim"] == 128
    assert names.parse_overrides(["a=1", "b=x", "c=[1,2]", "d=True", "e=None", "f=1e-3"]) == {
        "a": 1, "b": "x", "c": [1, 2], "d": True, "e": None, "f": 1e-3,
    }  # fmt: skip
    with pytest.raises(leanify.SourceError, match="takes key=value"):
        names.parse_overrides(["img_size"])


@pytest.mark.parametrize(
    ("source", "arguments", "message"),
    [
        ("hf/bertt", {}, "nearest: bert"),
        ("nobody/nomodel", {}, "there is no file or directory 'nobody/nomodel', and the Hugging Face hub"),
        ("./nowhere", {}, "does not exist"),
        ("model.safetensors", {}, "does not exist"),
        ("vit_base", {"overrides": {"imgsize": 3}}, "imgsize.*nearest: img_size"),
        ("bert", {"overrides": {"hidden_sise": 3}}, "nearest: hidden_size"),
        ("llama", {"overrides": {"num_attention_heads": 7}}, r"not a multiple.*\(7\)"),
        ("vit_base", {"cls": "AutoModel"}, "is not a transformers model"),
        ("bert", {"cls": "AutoModelForNothing"}, "no class 'AutoModelForNothing'"),
    ],
)
def test_unknown_names_are_refused(source: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(leanify.SourceError, match=message):
        leanify.load(source, device="meta", **arguments)


@pytest.fixture
def bert_folder(tmp_path: Path) -> Path:
    CASES["bert"].load().save_pretrained(tmp_path / "bert")
    return tmp_path / "bert"


def test_upstream_directories_are_sources(bert_folder: Path) -> None:
    """So are configurations and checkpoints."""
    model = CASES["bert"].load()
    for source in (bert_folder, bert_folder / "model.safetensors"):
        assert equal(outputs(leanify.load(source)), outputs(model))
    assert leanify.read(leanify.load(bert_folder / "config.json")) == leanify.read(model)
    torch.save({"state_dict": model.state_dict()}, bert_folder / "weights.pt")
    (bert_folder / "model.safetensors").unlink()
    assert equal(outputs(leanify.load(bert_folder / "weights.pt")), outputs(model))


@pytest.mark.parametrize("name", ["model.safetensors", "model.pt"])
def test_damaged_checkpoints_are_named(bert_folder: Path, name: str) -> None:
    file = bert_folder / name
    if name.endswith(".pt"):
        torch.save(load_file(bert_folder / "model.safetensors"), file)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(leanify.SourceError, match=r"truncated|damaged"):
        leanify.load(file)


def test_mismatched_checkpoint_names_keys(tmp_path: Path) -> None:
    save_file({"a.weight": torch.zeros(2)}, tmp_path / "x.safetensors")
    with pytest.raises(leanify.SourceError, match=r"config\.json"):
        leanify.load(tmp_path / "x.safetensors")
    plan = leanify.redesign("vit_base", heads=4, overrides=CASES["vit"].overrides)
    with pytest.raises(leanify.SourceError, match=r"missing \(cls_token, pos_embed.*1 unknown \(a.weight\)"):
        plan.build(weights=tmp_path / "x.safetensors")


def test_non_model_directories_are_refused(tmp_path: Path) -> None:
    with pytest.raises(leanify.SourceError, match="found nothing"):
        leanify.load(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(leanify.SourceError, match="names no model"):
        leanify.load(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(leanify.SourceError, match="is not JSON"):
        leanify.load(tmp_path)
    (tmp_path / "leanify.json").write_text('{"format": 1}')
    with pytest.raises(leanify.DirectoryError, match="is damaged"):
        leanify.load(tmp_path)


def test_unwritable_outputs_are_refused(tmp_path: Path) -> None:
    model = CASES["vit"].load()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    (tmp_path / "file").touch()
    for name, message in (("full", "is not empty"), ("file", "is a file"), ("file/below", "this is a file: ")):
        with pytest.raises(leanify.DirectoryError, match=message):
            leanify.save(model, tmp_path / name)
    (tmp_path / "empty").mkdir()
    leanify.save(model, tmp_path / "empty")
    with pytest.raises(leanify.UnsupportedModel, match="no attention layer"):
        leanify.save(torch.nn.Linear(2, 2), tmp_path / "linear")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["empty", "file", "full"]


def test_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(lean_directory, "save_file", full)
    with pytest.raises(leanify.DirectoryError, match="No space left"):
        leanify.save(CASES["vit"].load(), tmp_path / "lean")
    assert list(tmp_path.iterdir()) == []
