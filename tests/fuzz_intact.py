"""What the fuzzer starts from: small intact files of every kind."""

from __future__ import annotations

import contextlib
import json
import shutil
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import vocabularies
from runs import write_shard
from safetensors.torch import load_file

TIMM = {"img_size": 8, "patch_size": 4, "in_chans": 1, "num_classes": 10, "embed_dim": 8, "depth": 2, "num_heads": 2}
SMALL = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
HF = {
    "bert": SMALL | {"vocab_size": 300},
    "gpt2": {"n_embd": 8, "n_layer": 2, "n_head": 2, "vocab_size": 300, "n_positions": 32},
    "llama": SMALL | {"vocab_size": 300},
    "vit": SMALL | {"image_size": 8, "patch_size": 4},
}
CUT = {
    "WordPiece": ("bert", "BertModel"),
    "byte-level BPE": ("gpt2", "GPT2LMHeadModel"),
    "Unigram": ("bert", "BertModel"),
}
SHRUNK = ["data.holdout=0.4", "schedule.batch_size=4"]
RECIPE = """
[model]
source = "vit_tiny_patch16_224"
override = { img_size = 8, patch_size = 4, in_chans = 1, num_classes = 10, embed_dim = 8, depth = 2, num_heads = 2 }
[data]
name = "digits"
task = "classification"
samples = 60
mixup = 0.8
[optim]
lr = 2e-3
clip = 1.0
ema = 0.9
[schedule]
epochs = 1
batch_size = 32
[run]
checkpoint_every = 1
"""


class InlineEngine:
    """An engine that trains in this process: a worker of its own would first import everything again."""

    def submit(self, function: Any, /, study: str, design: str, seed: int, rate: float | None) -> Future[None]:
        from leanify.comparison import worker
        from leanify.comparison.folder import StudyFolder
        from leanify.comparison.plan import Key

        worker.execute_run(StudyFolder.open(Path(study)), Key(design, seed, rate))
        future: Future[None] = Future()
        future.set_result(None)
        return future


def make_intact(home: Path) -> None:
    """The intact files that cases are made of; made once."""
    import torch

    import leanify
    from leanify.core import recipe as recipes

    leanify.train(recipes.parse(RECIPE), home / "run")
    leanify.save(leanify.load("vit_tiny_patch16_224", overrides=TIMM), home / "lean-timm")
    grown = leanify.grow(leanify.load("bert", overrides=HF["bert"]), factor=2)
    leanify.save(grown, home / "lean-hf")
    (home / "loose").mkdir()  # weights in every format, beside the configuration that they belong to
    for name in ("config.json", "model.safetensors"):
        shutil.copy(home / "lean-timm" / name, home / "loose" / name)
    tensors = load_file(home / "loose" / "model.safetensors")
    torch.save(tensors, home / "loose" / "a.pt")
    torch.save({"state_dict": tensors, "epoch": 3, "args": {"lr": [0.1]}}, home / "loose" / "a.bin")
    shapes = ("small=depth:1,heads:2,mlp:32", "wide=depth:1,heads:4,mlp:16", "thin=depth:2,heads:2,mlp:16")
    designs = ("baseline", *shapes)
    settings = {"seeds": 2, "designs": designs, "rates": (1,)}
    leanify.compare(recipes.parse(RECIPE), home / "study", engine=InlineEngine(), measure=False, **settings)
    _tables(home)
    _images(home)
    _saved(home / "saved")
    _upstream_folders(home)
    _cuttable(home)
    _processed(home)
    _runs_on_own_data(home)
    _half_shrunk(home)


def _cuttable(home: Path) -> None:
    """Checkpoints whose vocabulary can be cut, one of each kind of tokenizer, and texts for them."""
    for kind, (family, cls) in CUT.items():
        words = vocabularies.tokenizer(kind)
        vocabularies.checkpoint(home / f"cut-{kind.split()[0]}", family, cls, words)
    (home / "words.txt").write_text("\n".join(vocabularies.texts(60)))


def _processed(home: Path) -> None:
    """A classifier of images with the processor that makes its pictures."""
    import leanify

    model: Any = leanify.load("hf/vit", overrides=HF["vit"] | {"class": "AutoModelForImageClassification"})
    model.save_pretrained(home / "vit")
    side, statistics = {"height": 8, "width": 8}, {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    words = {"image_processor_type": "ViTImageProcessor", "size": side, "crop_size": side, "do_center_crop": True}
    (home / "vit" / "preprocessor_config.json").write_text(json.dumps(words | statistics | {"rescale_factor": 1 / 255}))


def _half_shrunk(home: Path) -> None:
    """A shrink that was stopped once its weights were carried."""
    import leanify
    from leanify.shrinking.folder import ShrinkFolder

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        patch.chdir(home)
        patch.setattr(ShrinkFolder, "finish", interrupt)
        leanify.shrink("hf", "rows.csv", 0.8, 0, "shrunk", count="body", designs=["narrow"], settings=SHRUNK)


def _runs_on_own_data(home: Path) -> None:
    """A run on images and one on labelled texts, for `leanify predict`."""
    import leanify
    from leanify.core import recipe as recipes

    pictures = ["data.name=x", "data.samples=", "data.workers=0", "data.mixup=0", "data.holdout=0"]
    pictures += ["model.override.in_chans=3", "model.override.num_classes=2"]
    leanify.train(recipes.parse(RECIPE), home / "run-images", settings=[*pictures, f"data.path={home / 'images'}"])
    texts = [f"data.path={home / 'rows.csv'}", "data.holdout=0.2", "schedule.epochs=1", "schedule.batch_size=8"]
    leanify.train(home / "hf", home / "run-texts", settings=[*texts, "schedule.warmup=0"])


def _tables(home: Path) -> None:
    """Texts with and without labels: lines, commas, tabs, columns."""
    import pyarrow
    import pyarrow.parquet

    rows = [{"text": f"here are {i} cats, a κ and {i * i} mice", "label": i % 2} for i in range(30)]
    (home / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (home / "rows.csv").write_text("text,label\n" + "".join(f'"{row["text"]}",{row["label"]}\n' for row in rows))
    tabs = "sentence\tlabel\n" + "".join(f"{row['text']}\t{row['label']}\n" for row in rows)
    (home / "rows.tsv").write_text(tabs)
    (home / "rows.txt").write_text("<|endoftext|>".join(str(row["text"]) for row in rows))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), home / "rows.parquet")
    (home / "texts").mkdir()
    for number in range(4):
        (home / "texts" / f"{number}.txt").write_text("a line of a text, and one more\n" * 20)


def _images(home: Path) -> None:
    """The same pictures in folders of classes, with tables beside them, and in shards."""
    from PIL import Image

    (home / "pictures").mkdir()
    for split in ("train", "validation"):
        rows = ["path,label\n"]
        for kind in ("a", "b"):
            (home / "images" / split / kind).mkdir(parents=True)
            for number, suffix in enumerate(("png", "jpg", "gif", "tif", "webp", "bmp")):
                name = f"{split}/{kind}/{number}.{suffix}"
                Image.new("RGB", (8, 8), (30 * number,) * 3).save(home / "images" / name)
                rows.append(f"{name},{kind}\n")
        (home / "pictures" / f"{split}.csv").write_text("".join(rows))
    shutil.copytree(home / "images", home / "pictures", dirs_exist_ok=True)
    (home / "shards").mkdir()
    files = sorted((home / "images" / "train").rglob("*.png"))
    for split in ("train", "val"):
        samples = [(file.read_bytes(), file.parent.name.encode()) for file in files]
        write_shard(home / "shards" / f"{split}-000000.tar", samples)


def _saved(folder: Path) -> None:
    """Images as `datasets` saves them to disk."""
    import datasets
    from PIL import Image

    shades = [Image.new("RGB", (8, 8), (9 * number, 0, 0)) for number in range(24)]
    features = datasets.Features(image=datasets.Image(), label=datasets.ClassLabel(names=["a", "b"]))
    rows = datasets.Dataset.from_dict({"image": shades, "label": [0, 1] * 12}, features=features)
    datasets.DatasetDict(train=rows, validation=rows).save_to_disk(folder)


def _upstream_folders(home: Path) -> None:
    """Directories as transformers writes them: shards and a tokenizer, and a torch file."""
    import torch

    import leanify
    from leanify.data.texts.tokenizers import make_tokenizer

    model: Any = leanify.load("bert", overrides=HF["bert"] | {"max_position_embeddings": 32})
    model.save_pretrained(home / "hf", max_shard_size="5KB")
    make_tokenizer("bytes", lambda: [], "")[0].save_pretrained(home / "hf")
    (home / "hf" / "generation_config.json").write_text(json.dumps({"max_length": 20, "temperature": 1.0}))
    (home / "bin").mkdir()
    shutil.copy(home / "hf" / "config.json", home / "bin")
    torch.save(model.state_dict(), home / "bin" / "pytorch_model.bin")
