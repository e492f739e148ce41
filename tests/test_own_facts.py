"""A checkpoint's own facts rule: the original's figure is that of its own library, and the facts are written again."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from runs import add_pooling, make_documents
from test_shrink_heads import SIZES, drawn

import leanify
from leanify.shrinking.judging import judge
from leanify.shrinking.resolve import resolve
from leanify.sources import find
from leanify.upstream.libraries import import_timm, import_transformers

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
SIDE = 20
FACTS = {
    "input_size": [1, SIDE, SIDE],
    "mean": [0.13],
    "std": [0.31],
    "crop_pct": 1.0,
    "crop_mode": "squash",
    "interpolation": "bilinear",
    "fixed_input_size": True,
}
SHAPE = {"img_size": SIDE, "patch_size": 4, "embed_dim": 32, "depth": 4, "num_heads": 2, "in_chans": 1}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Grey pictures of two classes, 28 × 22, and a timm and a transformers ViT that say how they take them."""
    folder = tmp_path_factory.mktemp("facts")
    random = np.random.default_rng(0)
    for split, count in (("train", 40), ("validation", 60)):
        for number, name in enumerate(("ants", "bees")):
            place = folder / "data" / split / name
            place.mkdir(parents=True)
            for index in range(count):
                pixels = random.integers(0, 200, (28, 22), dtype=np.uint8)
                half = pixels[:, 11 * number : 11 * number + 11]
                half -= half // 12
                Image.fromarray(pixels).save(place / f"{index:03d}.png")
    timm = import_timm()
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", num_classes=2, **SHAPE)
    model.pretrained_cfg = {**model.pretrained_cfg, **FACTS}
    arguments = {**SHAPE, "num_classes": 2}
    names = {"label_names": ["bees", "ants"]}
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
    pixels = torch.stack([transform(Image.open(file).convert("L")) for file, _ in files(folder)])
    fit_head(model.head, model.eval().forward_head(model.forward_features(pixels), pre_logits=True), folder)
    timm.models.save_for_hf(model, folder / "vit", model_config=names, model_args=arguments)

    classes = {"id2label": {0: "bees", 1: "ants"}, "label2id": {"bees": 0, "ants": 1}}
    classifier = drawn("ViTForImageClassification", image_size=SIDE, patch_size=4, **SIZES, **classes)
    statistics = {"image_mean": [0.2, 0.3, 0.4], "image_std": [0.3, 0.2, 0.1]}
    processor = import_transformers().ViTImageProcessor(size={"height": SIDE, "width": SIDE}, resample=2, **statistics)
    pictures = [Image.open(file).convert("RGB") for file, _ in files(folder)]
    hidden = classifier.eval().vit(processor(pictures, return_tensors="pt")["pixel_values"]).last_hidden_state[:, 0]
    fit_head(classifier.classifier, hidden, folder)
    classifier.save_pretrained(folder / "hf")
    processor.save_pretrained(folder / "hf")
    return folder


def fit_head(head: torch.nn.Linear, features: torch.Tensor, folder: Path) -> None:
    """Fit a head to every third picture: bees are output 0, so that the folders' order is the wrong one."""
    targets = torch.tensor([1.0 if name == "bees" else -1.0 for _, name in files(folder)])
    rows = torch.cat([features.detach(), torch.ones(len(features), 1)], 1)[::3].double()
    ridge = rows.T @ rows + 1e-4 * torch.eye(rows.shape[1])  # so that rounding of pixels decides nothing
    solution = torch.linalg.solve(ridge, rows.T @ targets[::3].double()).float()
    with torch.no_grad():
        head.weight.copy_(torch.stack([solution[:-1], -solution[:-1]]))
        head.bias.copy_(torch.stack([solution[-1], -solution[-1]]))


def files(here: Path) -> list[tuple[Path, str]]:
    return [(file, file.parent.name) for file in sorted((here / "data" / "validation").rglob("*.png"))]


def accuracy(answers: dict[Path, str], here: Path) -> float:
    right = sum(answers[file] == name for file, name in files(here))
    return 100 * right / len(answers)


@torch.no_grad()
def timm_answers(here: Path) -> dict[Path, str]:
    """What timm alone answers for each picture."""
    timm = import_timm()
    model = timm.create_model(f"local-dir:{here / 'vit'}", pretrained=True).eval()
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
    pictures = {file: transform(Image.open(file).convert("L"))[None] for file, _ in files(here)}
    return {file: ("bees", "ants")[int(model(picture).argmax())] for file, picture in pictures.items()}


@torch.no_grad()
def transformers_answers(here: Path) -> dict[Path, str]:
    library = import_transformers()
    model = library.AutoModelForImageClassification.from_pretrained(here / "hf").eval()
    processor = library.AutoImageProcessor.from_pretrained(here / "hf")
    pictures = {file: processor(Image.open(file).convert("RGB"), return_tensors="pt") for file, _ in files(here)}
    return {file: model.config.id2label[int(model(**each).logits.argmax())] for file, each in pictures.items()}


@pytest.mark.parametrize(("name", "answer"), [("vit", timm_answers), ("hf", transformers_answers)])
def test_figure_equals_own_library(name: str, answer: Any, here: Path) -> None:
    """On all samples of the split, in halves: one chooses and the other judges."""
    original = resolve(here / name, here / "data", [])
    answers = answer(here)
    found = judge(original, original.module)
    sizes = [len(part) for part in (original.splits.validation, original.splits.test) if part is not None]
    measured = np.dot([found.chosen_on, found.quality], sizes) / sum(sizes)
    assert measured == pytest.approx(accuracy(answers, here), abs=1e-9)
    assert 30 < measured < 95  # neither a constant answer nor a perfect one


def test_timm_facts_are_written_again(here: Path, tmp_path: Path) -> None:
    model: Any = leanify.load(here / "vit")
    stored = json.loads((here / "vit" / "config.json").read_text())["pretrained_cfg"]
    assert {
        key: list(v) if isinstance(v, tuple) else v for key, v in model.pretrained_cfg.items() if key in FACTS
    } == FACTS
    narrow = leanify.read(model).map_layers(lambda layer: replace(layer, mlp=64))
    leanify.save(leanify.write(model, narrow), tmp_path / "again")
    again = json.loads((tmp_path / "again" / "config.json").read_text())["pretrained_cfg"]
    assert again.pop("label_names") == ["bees", "ants"]
    assert {key: again[key] for key in FACTS} == {key: stored[key] for key in FACTS}
    opened = import_timm().create_model(f"local-dir:{tmp_path / 'again'}", pretrained=True)
    assert list(opened.pretrained_cfg["mean"]) == FACTS["mean"]


@pytest.mark.parametrize(("key", "value"), [("mean", "0.5"), ("interpolation", "guess"), ("crop_pct", 0)])
def test_damaged_facts_are_refused(key: str, value: Any, here: Path, tmp_path: Path) -> None:
    config = json.loads((here / "vit" / "config.json").read_text())
    config["pretrained_cfg"][key] = value
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(leanify.LeanifyError, match=key):
        find.find(tmp_path)


def test_sources_of_weights_are_dropped(here: Path, tmp_path: Path) -> None:
    """A folder's pretrained_cfg may name files and addresses; timm never sees them."""
    config = json.loads((here / "vit" / "config.json").read_text())
    config["pretrained_cfg"] |= {"file": "evil.pth", "url": "http://localhost/evil", "custom_load": True}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert not {"file", "url", "custom_load"} & set(find.find(tmp_path).origin.pictures)


def test_sentence_embeddings_equal_own_library(tmp_path: Path) -> None:
    """The targets of a sentence encoder are what sentence-transformers computes, by its pooling and its length."""
    import_transformers()
    from sentence_transformers import SentenceTransformer

    make_documents(tmp_path, sentences="reviews", checkpoint="encoder")
    modes = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    folder = add_pooling(tmp_path / "encoder", word_embedding_dimension=64, **modes)
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 12}')

    original = resolve(folder, tmp_path / "reviews", [])
    own = SentenceTransformer(str(folder), device="cpu")
    with (tmp_path / "reviews" / "validation.csv").open() as file:
        texts = [row["text"] for row in csv.DictReader(file)]
    ids = own.tokenizer(texts, truncation=True, max_length=12)["input_ids"]
    embeddings = own.encode(texts, convert_to_tensor=True, normalize_embeddings=True)
    expected = {tuple(row): embedding for row, embedding in zip(ids, embeddings, strict=True)}

    inputs, targets = original.evaluator.splits.validation.batch(np.arange(16))
    masks = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"]))
    for row, mask, target in zip(inputs["input_ids"], masks, targets, strict=True):
        assert torch.allclose(expected[tuple(row[mask.bool()].tolist())], target, atol=1e-3)  # kept in float16
    assert judge(original, original.module).quality == pytest.approx(1.0, abs=1e-4)
