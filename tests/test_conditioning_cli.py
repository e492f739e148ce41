"""The command: what it prints, what it writes, and what it says of bad input."""

from __future__ import annotations

import csv
import json
import math
import shlex
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import torch
from commands import run_here
from PIL import Image
from safetensors.torch import save_file

from leanify import condition
from leanify.sources.find import load
from leanify.sources.names import parse_overrides
from leanify.upstream.build import build_model
from leanify.upstream.origin import Origin

TINY_VIT = ["vit_tiny_patch16_224", *(f"--override={o}" for o in ("img_size=32", "patch_size=8", "depth=2"))]
TINY_VIT += [f"--override={o}" for o in ("embed_dim=48", "num_heads=4", "num_classes=3")]
TINY_BERT = ["bert", "--override=hidden_size=48", "--override=num_hidden_layers=2", "--override=num_attention_heads=4"]
TINY_BERT += ["--override=intermediate_size=64", "--override=vocab_size=300", "--override=max_position_embeddings=40"]


@pytest.fixture
def leanify(capsys):
    """Run the console script; returns its exit code, stdout and stderr."""
    return lambda *arguments: run_here(shlex.join(["condition", *map(str, arguments)]), capsys)


@pytest.fixture
def images(tmp_path):
    (tmp_path / "images" / "cat").mkdir(parents=True)
    for index in range(5):
        pixels = torch.randint(256, (50, 40, 3), dtype=torch.uint8).numpy()
        Image.fromarray(pixels).save(tmp_path / "images" / "cat" / f"{index}.png")
    return tmp_path / "images"


def test_json_has_contract_keys(leanify):
    code, out, err = leanify(*TINY_VIT, "--samples", 3, "--json")
    assert (code, err) == (0, "")
    (model,) = json.loads(out)["models"]
    assert model["source"] == TINY_VIT[0]
    assert model["samples"] == 3
    assert model["fresh_weights"] is True
    assert model["data"].startswith("random input")
    assert len(model["layers"]) == 2
    layer = model["layers"][0]
    assert layer["name"] == "blocks.0.attn"
    assert (layer["tokens"], layer["inner"], layer["heads"], layer["rank"]) == (17, 48, 4, 17)
    assert layer["kappa_theory"] == pytest.approx((math.sqrt(48) + math.sqrt(17)) / (math.sqrt(48) - math.sqrt(17)))
    assert layer["kappa"] == pytest.approx(sum(layer["kappas"]) / 3)
    assert model["kappa_mean"] == pytest.approx(sum(layer["kappa"] for layer in model["layers"]) / 2)
    assert layer["spectrum"] == sorted(layer["spectrum"], reverse=True)
    assert {role: len(found["kappas"]) for role, found in layer["weights"].items()} == dict.fromkeys("qkvo", 4)

    # the library's probe gives the same
    torch.manual_seed(0)
    same = load(TINY_VIT[0], overrides=parse_overrides([o.removeprefix("--override=") for o in TINY_VIT[1:]]))
    torch.manual_seed(0)
    probe = condition(same, torch.randn(3, 3, 32, 32))
    assert model["layers"][1]["kappas"] == pytest.approx(list(probe.layers[1].kappas), rel=1e-5)


def test_batching_changes_nothing(leanify, images):
    runs = [leanify(*TINY_VIT, "--data", images, "--samples", 5, "--batch-size", size, "--json")[1] for size in (1, 3)]
    one, three = (json.loads(out)["models"][0]["layers"][1]["kappas"] for out in runs)
    assert one == pytest.approx(three, rel=1e-4)


def test_kappa_is_explained_once(leanify):
    code, out, _ = leanify(TINY_VIT[0], TINY_VIT[0], *TINY_VIT[1:], "--samples", 1)
    assert (code, out.count("κ = σ_max/σ_min"), out.count("layers blocks.*.attn")) == (0, 1, 2)
    assert "theory" not in out
    assert "theory" in leanify(*TINY_VIT, "--samples", 1, "--theory")[1]


def test_tables_fit_100_columns(leanify):
    code, out, _ = leanify(*TINY_BERT, "--samples", 2, "--tokens", 12, "--per-head", "--weights")
    assert code == 0
    assert max(len(line) for line in out.splitlines() if not line.startswith("next  ")) <= 100
    assert "layers encoder.layer.*.attention" in out
    assert "W_o" in out
    assert "…" not in out


def test_class_and_channel_attention_are_noted(leanify):
    """Class attention has a vector for A, and channel attention is said."""
    options = [f"--override={o}" for o in ("img_size=32", "depth=2", "embed_dim=48", "num_heads=4")]
    code, out, err = leanify("xcit_nano_12_p16_224", *options, "--samples", 2, "--json")
    assert code == 0
    channel, *_, vector = json.loads(out)["models"][0]["layers"]
    assert "head_dim × head_dim" in channel["object"]
    assert channel["kappa_theory"] is None
    assert vector["tokens"] == 1
    assert vector["kappa"] is None
    _, out, err = leanify("xcit_nano_12_p16_224", *options, "--samples", 2)
    assert "over channels, not tokens" in err
    assert "a vector, so there is no κ" in err


def test_rank_deficiency_is_infinite_kappa(leanify, tmp_path):
    """κ is inf, and the rank stands beside it."""
    directory = saved_vit(tmp_path / "model", lambda tensors: tensors["blocks.1.attn.qkv.weight"][96:].zero_())
    code, out, _ = leanify(directory, "--samples", 2, "--json")
    first, second = json.loads(out)["models"][0]["layers"]
    assert code == 0
    assert isinstance(first["kappa"], float)
    assert (second["kappa_bounds"][1], second["rank"], second["full_rank"]) == ("inf", 1, 17)
    assert second["kappa_bounds"][0] > 1e5
    _, out, err = leanify(directory, "--samples", 2)
    assert "1/17" in out
    assert "> " in out
    assert "rank-deficient" in err


def saved_vit(directory, change=lambda tensors: None):
    """A timm directory of the tiny ViT, its value biases drawn at random, and whatever ``change`` does to it."""
    options = {"img_size": 32, "patch_size": 8, "depth": 2, "embed_dim": 48, "num_heads": 4}
    torch.manual_seed(1)
    model = build_model(Origin("timm", "vit_tiny_patch16_224", options))
    tensors = model.state_dict()
    for index in range(2):
        tensors[f"blocks.{index}.attn.qkv.bias"].normal_()
    change(tensors)
    directory.mkdir(parents=True)
    save_file(tensors, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps({"architecture": "vit_tiny_patch16_224", "model_args": options}))
    return directory


def test_heads_option_draws_figure_2(leanify, tmp_path):
    plot = tmp_path / "figure2.svg"
    arguments = (*TINY_VIT, "--heads", "1,2,4,5,8", "--samples", 3, "--seeds", 2, "--theory", "--plot", plot)
    code, out, _ = leanify(*arguments, "--json")
    assert code == 0
    points = json.loads(out)["models"][0]["heads"]
    expected = [(mode, h, 12 * h if mode == "grow" else 48) for h in (1, 2, 4, 5, 8) for mode in ("grow", "split")]
    expected.remove(("split", 5, 48))  # which they do not divide
    assert [(p["mode"], p["heads"], p["inner"]) for p in points] == expected
    at_source = [p["kappa"] for p in points if p["heads"] == 4]
    assert at_source[0] == at_source[1]
    assert ET.parse(plot).getroot().tag.endswith("svg")
    code, out, err = leanify(*arguments)
    assert code == 0
    assert "Split (inner 48 throughout)" in out
    assert "left out: split into 5 heads" in err


def test_run_checkpoints_follow_in_order(leanify, tmp_path):
    run = tmp_path / "run"
    for step in (100, 20, 3):
        saved_vit(run / "checkpoints" / str(step), lambda t, s=step: t["blocks.0.attn.qkv.weight"].mul_(1 + s / 50))
    source = run / "checkpoints" / "3"
    plot = tmp_path / "run.png"
    code, out, _ = leanify(source, "--checkpoints", run, "--samples", 2, "--json", "--plot", plot)
    assert code == 0
    models = json.loads(out)["models"]
    assert [model["step"] for model in models] == [3, 20, 100]
    for model in models:
        _, alone, _ = leanify(run / "checkpoints" / str(model["step"]), "--samples", 2, "--json")
        assert json.loads(alone)["models"][0]["layers"] == model["layers"]
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["plot.pdf", "plot.html", "nowhere/plot.png"])
def test_unwritable_picture_is_refused_first(leanify, tmp_path, name):
    code, out, err = leanify("vit_tiny", "--plot", tmp_path / name)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "plot" in err


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_plot_replaces_only_own_file(leanify, tmp_path, kind):
    plot = tmp_path / f"plot.{kind}"
    plot.write_text("somebody's own notes")
    code, out, err = leanify(*TINY_VIT, "--samples", 1, "--plot", plot)
    assert (code, out, plot.read_text()) == (2, "", "somebody's own notes")
    assert "was not written by leanify" in err
    plot.unlink()
    written = set()
    for _ in range(2):
        assert leanify(*TINY_VIT, "--samples", 1, "--plot", plot)[0] == 0
        written.add(plot.read_bytes())
    assert len(written) == 1, "equal numbers make equal files"
    assert [path.name for path in tmp_path.iterdir()] == [plot.name]


@pytest.mark.parametrize("name", ["flaubert", "xlm"])
def test_heads_sweep_without_block_list(leanify, name):
    tiny = [f"--override={o}" for o in ("n_layers=2", "emb_dim=64", "n_heads=4")]
    code, out, _ = leanify(name, *tiny, "--heads", "2,4", "--samples", 2, "--tokens", 16, "--json")
    assert code == 0
    assert {point["heads"] for point in json.loads(out)["models"][0]["heads"]} == {2, 4}


def test_unreadable_images_are_counted(leanify, images):
    (images / "cat" / "bad.jpg").write_bytes(b"no image")
    (images / "cat" / "empty.png").write_bytes(b"")
    code, out, err = leanify(*TINY_VIT, "--data", images, "--samples", 7, "--json")
    assert code == 0
    found = json.loads(out)
    assert found["models"][0]["samples"] == 5
    assert "2 images could not be read and were skipped" in " ".join(found["warnings"])
    _, _, err = leanify(*TINY_VIT, "--data", images, "--samples", 7)
    assert "bad.jpg" in err
    assert "empty.png" in err
    assert "only 5 of 7" in err


def test_text_defaults_to_bytes(leanify, tmp_path):
    text = tmp_path / "some.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 20)
    code, out, _ = leanify(*TINY_BERT, "--data", text, "--samples", 4, "--tokens", 30, "--json")
    assert code == 0
    text.rename(tmp_path / "train.txt")  # of a folder, its training split
    again, of_folder, _ = leanify(*TINY_BERT, "--data", tmp_path, "--samples", 4, "--tokens", 30, "--json")
    assert again == 0
    assert json.loads(of_folder)["models"][0]["layers"] == json.loads(out)["models"][0]["layers"]
    (model,) = json.loads(out)["models"]
    assert "bytes modulo 300" in model["data"]
    assert model["samples"] == 4
    assert model["layers"][0]["tokens"] == 30


def test_padding_is_no_row(leanify, tmp_path):
    """Rows of a table have their own lengths; each sample's κ is that of the sample alone."""
    texts = ["short", "a sentence of some length", "0123456789" * 3]
    table = tmp_path / "some.csv"
    with table.open("w", newline="") as file:
        csv.writer(file).writerows([("label", "text"), *((0, text) for text in texts)])
    code, out, _ = leanify(*TINY_BERT, "--data", table, "--samples", 3, "--json")
    together = json.loads(out)["models"][0]["layers"][1]
    assert code == 0
    assert (together["tokens"], together["rank"]) == (30, 30)
    for kappa, text in zip(together["kappas"], texts, strict=True):
        (tmp_path / "alone.txt").write_text(text)
        _, out, _ = leanify(*TINY_BERT, "--data", tmp_path / "alone.txt", "--samples", 1, "--json")
        assert json.loads(out)["models"][0]["layers"][1]["kappa"] == pytest.approx(kappa, rel=1e-4)


def refused(result: tuple[int, str, str], *words: str) -> None:
    code, out, err = result
    assert (code, out) == (2, "")
    assert err.startswith("leanify: ")
    assert "Traceback" not in err
    for word in words:
        assert word in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["resnet18"], ["no attention"]),
        ([*TINY_VIT, "--samples", "0"], ["the number of samples is 0; it must be at least 1"]),
        ([*TINY_VIT, "--data", "nothing"], ["no image"]),
        ([*TINY_BERT, "--data", "empty.txt"], ["no text"]),
        ([*TINY_VIT, "--data", "bad"], ["none of the 1 images"]),
        ([*TINY_VIT, "--data", "some.txt"], ["folder of images"]),
        ([*TINY_BERT, "--data", "images"], ["takes text"]),
        ([*TINY_BERT, "--data", "none.txt"], ["does not exist"]),
        ([*TINY_BERT, "--data", "odd.csv"], ["no text column", "found a, b"]),
        ([*TINY_VIT, "--checkpoints", "nothing"], ["no checkpoint"]),
        ([*TINY_VIT, "--checkpoints", "none"], ["not a directory"]),
        ([*TINY_VIT, "--checkpoints", "bad"], ["is not a safetensors file"]),
        ([*TINY_VIT, "--heads", "two"], ["2,4,8"]),
        ([*TINY_VIT, "--heads", "0"], ["the number of heads is 0; it must be at least 1"]),
        ([*TINY_VIT, "bert", "--heads", "2"], ["one SOURCE"]),
        ([*TINY_VIT, "--batch-size", "0"], ["--batch-size"]),
    ],
)
def test_wrong_use_is_one_message(leanify, images, monkeypatch, arguments, words):
    monkeypatch.chdir(images.parent)
    for folder in ("nothing", "bad"):
        Path(folder).mkdir()
    for name, text in (("empty.txt", ""), ("some.txt", "text"), ("odd.csv", "a,b\n1,2\n"), ("bad/step1.png", "x")):
        Path(name).write_text(text)
    Path("bad/step1.safetensors").write_bytes(b"nothing")
    refused(leanify(*arguments), *words)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nonfinite_weights_are_named(leanify, tmp_path, bad):
    directory = saved_vit(tmp_path / "model", lambda tensors: tensors["blocks.1.attn.proj.weight"][0, :2].fill_(bad))
    refused(leanify(directory), "NaN or infinite", "blocks.1.attn.proj.weight")


def test_mismatched_checkpoint_keys_are_named(leanify, tmp_path):
    run = tmp_path / "run" / "checkpoints" / "7"
    saved_vit(run, lambda tensors: (tensors.pop("norm.weight"), tensors.update(extra=torch.ones(3))))
    good = saved_vit(tmp_path / "good")
    refused(leanify(run), "norm.weight", "extra")
    refused(leanify(good, "--checkpoints", tmp_path / "run"), "norm.weight", "extra", "7")
