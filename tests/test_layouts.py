"""Folders as other tools leave them: each is one model for every command, and what ``redesign`` proposes works."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import typed
from runs import add_pooling, change_json, make_documents

import leanify
from leanify.sources import find
from leanify.upstream.libraries import import_timm, import_transformers

SHAPE = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 64}


def bert(cls: str, folder: Path, **more: Any) -> Any:
    """A small BERT of a class with the tokenizer of the documents' checkpoint."""
    library = import_transformers()
    library.BertTokenizerFast.from_pretrained(folder.parent / "words").save_pretrained(folder)
    words = len(library.BertTokenizerFast.from_pretrained(folder))
    torch.manual_seed(0)
    model = getattr(library, cls)(library.BertConfig(vocab_size=words, max_position_embeddings=64, **SHAPE, **more))
    model.save_pretrained(folder)
    return model


def headless(folder: Path) -> None:
    """A bare model whose configuration names a head, as a fine-tuned language model's does after its head was lost."""
    bert("BertModel", folder)
    change_json(folder / "config.json", architectures=["BertForMaskedLM"])


def sentence_transformers(folder: Path) -> None:
    headless(folder)
    add_pooling(folder, pooling_mode_cls_token=True)


def trainer(folder: Path) -> None:
    """What the Trainer of transformers leaves: its own pickles beside the weights."""
    bert("BertForSequenceClassification", folder, num_labels=2)
    for name in ("training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth"):
        torch.save({"of": name}, folder / name)
    (folder / "trainer_state.json").write_text("{}")


def hub(folder: Path) -> None:
    """A snapshot in the hub's cache: links to blobs."""
    sentence_transformers(folder)
    blobs, snapshot = folder / "blobs", folder / "snapshots" / "0123"
    for number, file in enumerate([file for file in folder.rglob("*") if file.is_file()]):
        blob, link = blobs / f"{number:040x}", snapshot / file.relative_to(folder)
        for place in (blob, link):
            place.parent.mkdir(parents=True, exist_ok=True)
        file.rename(blob)
        link.symlink_to(blob)


def timm(folder: Path) -> None:
    library = import_timm()
    shape = {"img_size": 16, "patch_size": 4, "embed_dim": 32, "depth": 4, "num_heads": 2, "num_classes": 2}
    torch.manual_seed(0)
    model = library.create_model("vit_tiny_patch16_224", **shape)
    library.models.save_for_hf(model, folder, model_args=shape)


LAYOUTS: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "sentence-transformers": (sentence_transformers, "BertModel", "reviews"),
    "headless": (headless, "BertModel", "reviews"),
    "trainer": (trainer, "BertForSequenceClassification", "reviews"),
    "hub/snapshots/0123": (hub, "BertModel", "reviews"),
    "timm": (timm, "VisionTransformer", "pets"),
}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("layouts")
    make_documents(folder, images="pets", sentences="reviews", checkpoint="words")
    return folder


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", LAYOUTS)
def test_folder_layouts_work_as_proposed(
    name: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder is one model, and every line that is proposed works, once DATA is replaced."""
    make, cls, data = LAYOUTS[name]
    monkeypatch.chdir(here)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        make(here / name.partition("/")[0])
        assert type(leanify.load(name)).__name__ == cls
    data = f"{data}/train.csv" if data == "reviews" else data
    lean = f"{name.partition('/')[0]}-lean"
    pinned = f"redesign {name} --depth 2 --heads 3 --weights {name}"
    assert typed(f"{pinned} -o {lean}") == 0
    _, _, after = capsys.readouterr().out.partition("\nnext  leanify ")
    lines = [line.strip().removeprefix("leanify ") for line in after.splitlines()]
    assert [line.split()[0] for line in lines] == ["train", "compare"]
    for line in lines:
        assert typed(f"{line.replace('DATA', data)} --dry-run") == 0, (line, capsys.readouterr().err)
    assert type(leanify.load(lean)).__name__ == cls
    said = capsys.readouterr()
    assert "unexpected" not in said.out + said.err


def test_headless_checkpoint_is_bare_model(tmp_path: Path, here: Path) -> None:
    """Weights in torch's tutorials lie under model_state_dict; names with and without the model's prefix are read."""
    folder = here / "named"
    headless(folder)
    tensors = leanify.load(folder).state_dict()
    (folder / "model.safetensors").unlink()
    torch.save({"epoch": 3, "model_state_dict": {f"bert.{k}": v for k, v in tensors.items()}}, folder / "last.pt")
    assert find.find(folder / "last.pt").origin.cls == "BertModel"
    again = leanify.load(folder / "last.pt").state_dict()
    assert all(torch.equal(tensors[key], again[key]) for key in tensors)
