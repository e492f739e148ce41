"""Weights as trainers, wrappers and loaders write them: their names, their files, the averages beside them."""

from __future__ import annotations

import argparse
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import change_json
from safetensors.torch import load_file, save_file
from torch import Tensor

import leanify
from leanify.core.path_kinds import is_checkpoint
from leanify.layouts.recognition import recognise
from leanify.sources import find
from leanify.upstream.libraries import import_transformers

TINY = {"img_size": 16, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 3}
SIZES = {"vocab_size": 40, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24}
Tensors = dict[str, Tensor]
UNREAD = {
    "model-q4_k_m.gguf": "gguf_file=FILE", "tf_model.h5": "from_tf=True", "flax_model.msgpack": "from_flax=True",
    "onnx/model.onnx": "exported from", "global_step10/mp_rank_00_model_states.pt": "zero_to_fp32.py",
    "pytorch_model_fsdp_0/__0_0.distcp": "merge-weights",
}  # fmt: skip


@pytest.fixture(scope="module")
def tensors() -> Tensors:
    return dict(leanify.load("vit_tiny", overrides=TINY).state_dict())


def behind(prefix: str, tensors: Tensors) -> Tensors:
    return {prefix + name: tensor for name, tensor in tensors.items()}


def behind_some(prefix: str, pattern: str, tensors: Tensors) -> Tensors:
    """A prefix before the names that begin as the pattern says, as of a backbone beside its head."""
    return {prefix + name if re.match(pattern, name) else name: tensor for name, tensor in tensors.items()}


def doubled(tensors: Tensors) -> Tensors:
    return {name: 2 * tensor for name, tensor in tensors.items()}


def wrapped(part: str, tensors: Tensors) -> Tensors:
    """As regional compilation and sharding name the parameters of each block."""
    return {name.replace("blocks.1.", f"blocks.1.{part}."): tensor for name, tensor in tensors.items()}


LAYOUTS: dict[str, tuple[Callable[[Tensors], Any], str]] = {
    "compiled.pt": (lambda one: behind("_orig_mod.", one), "'_orig_mod.' was taken off"),
    "parallel.pth": (lambda one: {"state_dict": behind("module.", one)}, "'module.' was taken off"),
    "both.ckpt": (lambda one: behind("module._orig_mod.", one), "'_orig_mod.' and 'module.'"),
    "trainer.ckpt": (
        lambda one: {"state_dict": {**behind("net.encoder.", one), "loss.scale": torch.ones(1)}, "epoch": 3},
        r"'net.encoder.' was taken off .*; 1 others were left out \(loss.scale\)",
    ),
    "backbone.ckpt": (lambda one: behind_some("backbone.", "(?!head)", one), "'backbone.' was taken off"),
    "half.pt": (lambda one: behind_some("model.", r"blocks\.1", one), "'model.' was taken off"),
    "one.pt": (lambda one: behind_some("net.", "head.weight", one), "'net.' was taken off"),
    "averaged.bin": (lambda one: {**behind("module.", one), "n_averaged": torch.tensor(7)}, "'module.' was taken off"),
    "regional.pt": (lambda one: wrapped("_orig_mod", one), "'_orig_mod.' was taken off"),
    "sharded.pt": (lambda one: wrapped("_fsdp_wrapped_module", one), "'_fsdp_wrapped_module.' was taken off"),
    "last": (lambda one: {"model": one}, ""),
    "checkpoint-12.pth.tar": (lambda one: {"state_dict": one, "args": argparse.Namespace(lr=0.1)}, ""),
    "weights.th": (lambda one: {"ema": one}, "averaged weights, 'ema': those were taken"),
    # averages beside other weights are taken as timm takes them
    "model_best.pth.tar": (lambda one: {"state_dict": doubled(one), "state_dict_ema": one}, "'state_dict_ema': those"),
    "model.pth": (lambda one: {"state_dict": doubled(one), "model_ema": one}, "'model_ema': those were taken"),
}
SEVERAL: dict[str, tuple[Callable[[Tensors], Any], str]] = {
    "two networks": (lambda one: {"student": one, "teacher": one, "epoch": 3}, "mean.* checkpoint.'teacher'."),
    "two prefixes": (lambda one: behind("q.", one) | behind("k.", one), r"the model 2 times, under 'q\.', 'k\.'"),
    "in a dict": (lambda one: {"state_dict": behind("a.", one) | behind("b.", one)}, "the model 2 times"),
    "a dict of parts": (lambda one: {"state": {"encoder": one}}, "mean.* checkpoint.'state'."),
}


def load(file: Path) -> tuple[Tensors, str]:
    """The tensors that vit_tiny gets from a file, and what was said."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model = find.load_with_weights(find.find("vit_tiny", overrides=TINY), file)
    return dict(model.state_dict()), "; ".join(str(one.message) for one in said)


@pytest.mark.parametrize("name", LAYOUTS)
def test_foreign_names_fit(name: str, tensors: Tensors, tmp_path: Path) -> None:
    lay_out, expected = LAYOUTS[name]
    torch.save(lay_out(tensors), tmp_path / name)
    loaded, said = load(tmp_path / name)
    assert all(torch.equal(loaded[key], tensor) for key, tensor in tensors.items())
    assert re.search(expected, said) if expected else not said


@pytest.mark.parametrize("name", SEVERAL)
def test_several_models_in_one_file_are_refused(name: str, tensors: Tensors, tmp_path: Path) -> None:
    lay_out, expected = SEVERAL[name]
    torch.save(lay_out(tensors), tmp_path / "several.pth")
    with pytest.raises(leanify.SourceError, match=expected):
        load(tmp_path / "several.pth")


@pytest.mark.parametrize("classes", [0, 2, 7])
def test_other_classes_name_the_setting(classes: int, tensors: Tensors, tmp_path: Path) -> None:
    """A classifier of another size, or none, as pretraining leaves it: with the setting that is named it loads."""
    torch.save(leanify.load("vit_tiny", overrides=TINY | {"num_classes": classes}).state_dict(), tmp_path / "a.pth")
    with pytest.raises(leanify.SourceError, match=f"--override num_classes={classes} builds"):
        load(tmp_path / "a.pth")
    find.load_with_weights(find.find("vit_tiny", overrides=TINY | {"num_classes": classes}), tmp_path / "a.pth")


def test_files_are_told_by_their_contents(tensors: Tensors, tmp_path: Path) -> None:
    torch.save(tensors, tmp_path / "new")
    torch.save(tensors, tmp_path / "old", _use_new_zipfile_serialization=False)
    leanify.save(leanify.load("vit_tiny", overrides=TINY), tmp_path / "lean")
    (tmp_path / "lean" / "model.safetensors").rename(tmp_path / "flat")
    (tmp_path / "text").write_text("PK\n")
    (tmp_path / "archive.tar").write_bytes(b"PK\x03\x04" + bytes(200))
    assert [is_checkpoint(tmp_path / name) for name in ("new", "old", "flat", "text", "archive.tar", "none")] == [
        True, True, True, False, False, False,
    ]  # fmt: skip
    for name in ("new", "old"):
        assert torch.equal(load(tmp_path / name)[0]["cls_token"], tensors["cls_token"])


@pytest.mark.parametrize("prefix", ["module.", "module._orig_mod.", "learner.model."])
@pytest.mark.parametrize("part", ["whole", "base"])
def test_prefixed_transformers_load(prefix: str, part: str, tmp_path: Path) -> None:
    """In a folder, and as a file of the part without its head; the tokenizer beside it is kept."""
    library = import_transformers()
    model = library.BertForMaskedLM(library.BertConfig(num_hidden_layers=1, **SIZES))
    model.config.architectures = ["BertForMaskedLM"]
    model.config.save_pretrained(tmp_path)
    stored = model.state_dict() if part == "whole" else model.bert.state_dict()
    torch.save(behind(prefix, stored), tmp_path / "pytorch_model.bin")
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        loaded = leanify.load(tmp_path)
    assert "was taken off the names" in str(said[0].message)
    name = "encoder.layer.0.output.dense.weight"
    assert torch.equal(loaded.get_parameter(f"bert.{name}"), model.bert.get_parameter(name))
    leanify.save(loaded, tmp_path / "saved")
    assert (tmp_path / "saved" / "vocab.txt").read_bytes() == (tmp_path / "vocab.txt").read_bytes()


@pytest.mark.parametrize("file", UNREAD)
def test_weights_in_other_forms_are_named(file: str, tmp_path: Path) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_bytes(b"GGUF")
    with pytest.raises(leanify.LeanifyError, match=UNREAD[file]):  # alone
        leanify.load(tmp_path)
    import_transformers().BertConfig(num_hidden_layers=1, **SIZES).save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match=f"{UNREAD[file]}.*its weights are new"):  # beside a configuration
        find.find(tmp_path)


def bert(folder: Path, layers: int = 2) -> Path:
    """A small model of transformers, saved; the file of its weights."""
    library = import_transformers()
    library.BertModel(library.BertConfig(num_hidden_layers=layers, **SIZES)).save_pretrained(folder)
    return folder / "model.safetensors"


def test_integers_are_no_weights(tmp_path: Path) -> None:
    file = bert(tmp_path)
    name = "encoder.layer.0.intermediate.dense.weight"
    for kind in (torch.int8, torch.uint8, torch.int32):
        tensors = load_file(file)
        save_file({**tensors, name: tensors[name].mul(50).to(kind)}, file)
        with pytest.raises(leanify.LeanifyError, match="is quantised"):
            leanify.load(tmp_path)


def test_layers_without_a_place_are_said(tmp_path: Path) -> None:
    bert(tmp_path, layers=3)
    change_json(tmp_path / "config.json", num_hidden_layers=2)
    with pytest.warns(UserWarning, match=r"16 tensors of layers that BertModel has not \(encoder.layer.2."):
        leanify.load(tmp_path)


TIED = {
    "llama": {"num_key_value_heads": 2, "intermediate_size": 64},
    "gpt2": {},
    "opt": {"ffn_dim": 64, "word_embed_proj_dim": 32},
    "bert": {"intermediate_size": 64},
}


@pytest.mark.parametrize("kind", TIED)
def test_tied_by_the_configuration_alone(kind: str, tmp_path: Path) -> None:
    transformers = import_transformers()
    sizes = {"vocab_size": 300, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.AutoConfig.for_model(kind, **sizes, **TIED[kind], tie_word_embeddings=False)
    auto = transformers.AutoModelForMaskedLM if kind == "bert" else transformers.AutoModelForCausalLM
    auto.from_config(config).save_pretrained(tmp_path)
    leanify.load(tmp_path)
    change_json(tmp_path / "config.json", tie_word_embeddings=True)
    with pytest.raises(leanify.LeanifyError, match=r"with different values.*tie_word_embeddings"):
        leanify.load(tmp_path)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("library", ["timm", "hf"])
def test_weights_that_are_no_numbers(library: str, value: float, tensors: Tensors, tmp_path: Path) -> None:
    if library == "timm":
        file, name = tmp_path / "tiny.safetensors", "blocks.0.mlp.fc1.weight"
        broken = {key: tensor.clone() for key, tensor in tensors.items()}
    else:
        file, name = bert(tmp_path), "encoder.layer.0.intermediate.dense.weight"
        broken = load_file(file)
    broken[name][0, 0] = value
    save_file(broken, file, metadata={"format": "pt"})
    with pytest.raises(leanify.LeanifyError, match=f"NaN or infinite values in 1 of its tensors .{name}"):
        load(file) if library == "timm" else leanify.load(tmp_path)


def test_pointers_of_git_lfs_are_named(tmp_path: Path) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 123\n"
    bert(tmp_path).write_text(pointer)
    with pytest.raises(leanify.LeanifyError, match="git lfs pull"):
        leanify.load(tmp_path)
    for name in ("train.parquet", "train.csv"):
        (tmp_path / "data").mkdir(exist_ok=True)
        (tmp_path / "data" / name).write_text(pointer)
        assert "git lfs pull" in str(recognise(tmp_path / "data" / name).fault)


def test_scripts_and_unknown_types_are_short(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch means to drop scripts
        torch.jit.trace(torch.nn.Linear(3, 3), torch.zeros(1, 3)).save(tmp_path / "model.pt")
    with pytest.raises(leanify.LeanifyError, match=r"TorchScript archive.*torch.jit.load"):
        leanify.load(tmp_path / "model.pt")
    (tmp_path / "config.json").write_text('{"model_type": "bertt"}')
    with pytest.raises(leanify.LeanifyError, match="no model type 'bertt'; nearest: bert") as refusal:
        leanify.load(tmp_path / "config.json")
    assert len(str(refusal.value)) < 200
