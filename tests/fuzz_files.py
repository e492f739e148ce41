"""What the fuzzer starts from: small intact files of every kind, and the ways in which they are damaged."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

HOSTILE = (
    None, True, -1, 0, 1, 3, 7, 10**6, 10**24, -0.5, 1e400, float("nan"), "", "x", "0", "None", "../..", "/dev/zero",
    "κ×\ud800", "a" * 5000, [], [1], ["a"], [[]], {}, {"a": 1}, "__import__('os')", "hf-hub:a/b", [32, 32], "float16",
)  # fmt: skip


def mutated_value(draw: random.Random, value: Any) -> Any:
    """A JSON value with one place changed: another value, a key more, a key less, a type turned."""
    places = list(_places(value))
    if not places or draw.random() < 0.1:
        return draw.choice(HOSTILE)
    table, key = draw.choice(places)
    how = draw.randrange(4)
    if how == 0 and isinstance(table, dict):
        del table[key]
    elif how == 1 and isinstance(table, dict):
        table[draw.choice(["", "x", "checkpoint_path", "_class", str(key) + "s"])] = draw.choice(HOSTILE)
    elif how == 2 and isinstance(table[key], int | float):
        table[key] = draw.choice([-table[key], table[key] * 1000, table[key] + 1, str(table[key]), [table[key]]])
    else:
        table[key] = draw.choice(HOSTILE)
    return value


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in pairs:
        yield value, key
        yield from _places(item)


def mutated_bytes(draw: random.Random, data: bytes) -> bytes:
    """Cut, flipped, doubled, emptied, or with something put in."""
    place, other = sorted((draw.randrange(len(data) + 1), draw.randrange(len(data) + 1)))
    return draw.choice(
        [
            lambda: data[:place],
            lambda: data[:place] + bytes([draw.randrange(256)]) + data[place + 1 :],
            lambda: (
                data[:place]
                + draw.choice([b"\0", b"\xff\xfe", b"\n", b'"', b"{" * 50_000, b"\xed\xa0\x80"])
                + data[place:]
            ),
            lambda: data[:place] + data[other:],
            lambda: data[place:other] * 3,
            lambda: data + data,
            lambda: b"",
        ]
    )()


def mutate(draw: random.Random, file: Path) -> None:
    """Change a file in place, or what it is: gone, a folder, a pipe, a link to nothing or to itself, a device."""
    how = draw.randrange(10)
    value = _json(file) if file.suffix == ".json" else None
    if how >= 4 and value is not None:
        for _ in range(draw.choice([1, 1, 2, 5])):
            value = mutated_value(draw, value)
        file.write_text(json.dumps(value))
    elif how >= 2:
        file.write_bytes(mutated_bytes(draw, file.read_bytes()))
    else:
        file.unlink()
        draw.choice(
            [
                lambda: None,
                file.mkdir,
                lambda: os.mkfifo(file),
                lambda: file.symlink_to("nowhere"),
                lambda: file.symlink_to(file.name),
                lambda: file.symlink_to("/dev/zero"),
            ]
        )()


def _json(file: Path) -> Any:
    try:
        return json.loads(file.read_text())
    except (ValueError, RecursionError):  # it was changed before
        return None


def some_file(draw: random.Random, folder: Path, *suffixes: str) -> Path:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix in (suffixes or path.suffix)]
    return draw.choice(files)


# -- what is intact ----------------------------------------------------------------------------------------------------

TIMM = {"img_size": 8, "patch_size": 4, "in_chans": 1, "num_classes": 10, "embed_dim": 8, "depth": 2, "num_heads": 2}
SMALL = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
HF = {
    "bert": SMALL | {"vocab_size": 300},
    "gpt2": {"n_embd": 8, "n_layer": 2, "n_head": 2, "vocab_size": 300, "n_positions": 32},
    "llama": SMALL | {"vocab_size": 300},
    "vit": SMALL | {"image_size": 8, "patch_size": 4},
}
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


def samples_in(home: Path) -> None:
    """The intact files that cases are made of; made once."""
    import torch

    import leanify
    from leanify.sources import recipe as recipes

    leanify.train(recipes.parse(RECIPE), home / "run")
    leanify.save(leanify.load("vit_tiny_patch16_224", overrides=TIMM), home / "lean-timm")
    grown = leanify.grow(leanify.load("bert", overrides=HF["bert"]), factor=2)
    leanify.save(grown, home / "lean-hf")
    torch.save({"a": torch.ones(3, 4), "b": torch.arange(5)}, home / "a.pt")
    shutil.copy(home / "lean-timm" / "model.safetensors", home / "a.safetensors")
    designs = ("baseline", "small=depth:1,heads:2,mlp:32")
    pool = ThreadPoolExecutor(1)
    leanify.compare(recipes.parse(RECIPE), home / "study", seeds=2, designs=designs, engine=pool, measure=False)
    _tables(home)
    _images(home / "images")
    _upstreams(home)


def _tables(home: Path) -> None:
    """Texts with and without labels: lines, commas, tabs, columns; and a folder as GLUE has it."""
    import pyarrow
    import pyarrow.parquet

    rows = [{"text": f"here are {i} cats, a κ and {i * i} mice", "label": i % 2} for i in range(30)]
    (home / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (home / "rows.csv").write_text("text,label\n" + "".join(f'"{row["text"]}",{row["label"]}\n' for row in rows))
    tabs = "sentence\tlabel\n" + "".join(f"{row['text']}\t{row['label']}\n" for row in rows)
    (home / "rows.tsv").write_text(tabs)
    (home / "rows.txt").write_text("<|endoftext|>".join(str(row["text"]) for row in rows))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), home / "rows.parquet")
    (home / "glue" / "sst2").mkdir(parents=True)
    for split in ("train", "dev"):
        (home / "glue" / "sst2" / f"{split}.tsv").write_text(tabs)


def _images(folder: Path) -> None:
    import numpy as np
    from PIL import Image

    for split in ("train", "validation"):
        for kind in ("a", "b"):
            (folder / split / kind).mkdir(parents=True)
            for number, suffix in enumerate(("png", "jpg", "gif", "tif", "webp", "bmp")):
                pixels = np.full((8, 8, 3), 30 * number, dtype=np.uint8)
                Image.fromarray(pixels).save(folder / split / kind / f"{number}.{suffix}")


def _upstreams(home: Path) -> None:
    """Directories as transformers writes them: shards and a tokenizer, a torch file, an adapter of PEFT."""
    import torch

    import leanify
    from leanify.data.vocabulary import tokenizer_of

    model: Any = leanify.load("bert", overrides=HF["bert"] | {"max_position_embeddings": 32})
    model.save_pretrained(home / "hf", max_shard_size="5KB")
    tokenizer_of("bytes", lambda: [], "")[0].save_pretrained(home / "hf")
    (home / "hf" / "generation_config.json").write_text(json.dumps({"max_length": 20, "temperature": 1.0}))
    (home / "bin").mkdir()
    shutil.copy(home / "hf" / "config.json", home / "bin")
    torch.save(model.state_dict(), home / "bin" / "pytorch_model.bin")
    (home / "adapter").mkdir()
    adapter = {"peft_type": "LORA", "task_type": None, "r": 2, "lora_alpha": 4, "target_modules": ["query"]}
    (home / "adapter" / "adapter_config.json").write_text(json.dumps(adapter | {"base_model_name_or_path": "hf"}))
    rank = {"lora_A": torch.ones(2, 8), "lora_B": torch.ones(8, 2)}
    name = "base_model.model.encoder.layer.0.attention.self.query"
    save_file({f"{name}.{k}.weight": v for k, v in rank.items()}, home / "adapter" / "adapter_model.safetensors")
