"""What is fuzzed: a function a kind, of a generator of random numbers and a folder of intact files."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fuzz_commands
import fuzz_links
from fuzz_commands import command
from fuzz_files import mutate, mutated_bytes, mutated_value, some_file
from fuzz_intact import HF, RECIPE, TIMM

SHALLOW = {  # recipes' models with one layer: how deep they are is of no interest here, and costs
    "masked": ("--set", "model.override.depth=1"),
    "text": ("--set", "model.override.n_layer=1"),
    "sentences": ("--set", "model.override.num_hidden_layers=1"),
    "images": [
        part
        for key in ("patch_size", "embed_dim", "depth", "num_heads")
        for part in ("--set", f"model.override.{key}={TIMM[key]}")
    ],
}


def looked_at(source: Any, **words: Any) -> None:
    from leanify.lens import surgery
    from leanify.sources import find

    surgery.read(find.build_on_meta(find.find(source, **words)))


def of_source(draw: random.Random, home: Path) -> None:
    names = ["vit_tiny", "bert", "hf/gpt2", "timm/deit_tiny", "leanify/gpt2-tinystories", "digits", str(home), "a/b"]
    name = mutated_bytes(draw, draw.choice(names).encode()).decode(errors="replace") if draw.random() < 0.7 else "bert"
    draw.choice([lambda: looked_at(name), lambda: command("profile", "--no-measure", "--", name + "x")])()


def of_hf_directory(draw: random.Random, home: Path) -> None:
    """What transformers writes: configuration, shards and their index, tokenizer, generation configuration."""
    folder = draw.choice(["hf", "hf", "bin"])
    for _ in range(draw.choice([1, 1, 2])):
        mutate(draw, some_file(draw, home / folder))
    use_of_model(draw, folder)


def of_adapter(draw: random.Random, home: Path) -> None:
    mutate(draw, some_file(draw, home / draw.choice(["adapter", "adapter", "hf"])))
    use_of_model(draw, "adapter")


def use_of_model(draw: random.Random, source: str) -> None:
    uses = [
        ("condition", source, "--samples", "2"),
        ("condition", source, "--samples", "2", "--data", "rows.csv", "--json"),
        ("profile", source, "--no-measure"),
        ("redesign", source, "--depth", "1", "-o", "out"),
        ("redesign", source, "--depth", "1", "-o", "out", "--weights", source),
        ("redesign", "lean-hf", "--depth", "1", "-o", "out", "--weights", source),
        ("train", source, "--dry-run", "--set", "data.path=rows.jsonl", "--set", "data.holdout=0.2"),
    ]
    command(*draw.choice(uses))


def of_study(draw: random.Random, home: Path) -> None:
    for _ in range(draw.choice([1, 1, 2])):
        mutate(draw, some_file(draw, home / "study"))
    uses = [
        ("compare", "study", "--report"),
        ("compare", "study", "--report", "--json"),
        ("compare", "study", "--dry-run", "--designs", "x=depth:1,heads:2,mlp:24"),
        ("redesign", "lean-timm", "--target-params", "0.9", "--min-depth", "1", "--study", "study"),
        ("runs", "."),
        ("runs", "study", "--json"),
        ("condition", "--checkpoints", str(some_file(draw, home / "study").parent), "--samples", "2"),
    ]
    command(*draw.choice(uses))


def of_labelled(draw: random.Random, home: Path) -> None:
    """A table of labelled texts, a folder of GLUE, a text to mask words of: as the recipes of text read them."""
    mutate(draw, some_file(draw, home, ".csv", ".tsv", ".jsonl", ".parquet", ".txt"))
    skip = ("--set", f"data.on_error={draw.choice(['stop', 'skip'])}")
    table = f"data.path=rows.{draw.choice(['csv', 'jsonl', 'parquet'])}"
    masked = f"data.path={home}/rows.{draw.choice(['txt', 'jsonl', 'parquet', 'csv'])}"
    uses = [
        ("train", "hf", "--dry-run", "--set", table, *skip),
        ("train", "hf", "--dry-run", "--set", table, "--set", "data.holdout=0.2", *skip),
        (
            "train",
            "glue",
            "--dry-run",
            "--set",
            "model.source=hf",
            "--set",
            "data.path=glue",
            "--set",
            "data.length=16",
        ),
        ("train", "masked-small", "--dry-run", "--set", masked, "--set", "data.length=8", *SHALLOW["masked"], *skip),
        ("train", "chars", "--dry-run", "--set", masked, *SHALLOW["text"], *skip),
        ("condition", "hf", "--samples", "2", "--data", table.removeprefix("data.path=")),
    ]
    command(*draw.choice(uses))


def of_probe(draw: random.Random, home: Path) -> None:
    for _ in range(draw.choice([1, 3])):
        mutate(draw, some_file(draw, home / "images"))
    sources = [["lean-timm"], ["lean-timm", "--batch-size", "1"]]
    command("condition", *draw.choice(sources), "--samples", "4", "--data", "images")


def of_override(draw: random.Random, home: Path) -> None:
    name = draw.choice(["vit_tiny_patch16_224", *HF])
    options = mutated_value(draw, dict(TIMM if name.startswith("vit_") else HF[name]))
    looked_at(name, overrides=options if isinstance(options, dict) else {"x": options})


def of_config(draw: random.Random, home: Path) -> None:
    name = draw.choice(list(HF))
    written = {"model_type": name, "architectures": ["BertModel"] if name == "bert" else None, **HF[name]}
    (home / "config.json").write_text(json.dumps(written))
    mutate(draw, home / "config.json")
    looked_at(str(home / "config.json"))


def of_timm_config(draw: random.Random, home: Path) -> None:
    written = {
        "architecture": "vit_tiny_patch16_224",
        "num_classes": 10,
        "model_args": TIMM,
        "pretrained_cfg": {"mean": [0.5]},
    }
    (home / "config.json").write_text(json.dumps(written))
    mutate(draw, home / "config.json")
    looked_at(str(home / "config.json"))


def of_lean_directory(draw: random.Random, home: Path) -> None:
    import leanify

    folder = draw.choice(["lean-timm", "lean-hf"])
    mutate(draw, some_file(draw, home / folder))
    uses = [
        ("profile", folder, "--no-measure"),
        ("redesign", folder, "--depth", "1", "-o", "out"),
        ("redesign", folder, "--depth", "1", "-o", "out", "--weights", folder),
        ("export", folder, "--format", draw.choice(["hf", "timm"]), "-o", "out"),
        ("show", folder),
    ]
    if draw.random() < 0.4:
        leanify.load(home / folder)
    else:
        command(*draw.choice(uses))


def of_run(draw: random.Random, home: Path) -> None:
    import leanify

    for _ in range(draw.choice([1, 1, 3])):
        mutate(draw, some_file(draw, home / "run"))
    uses = [
        ("train", "--resume", "run"),
        ("train", "--resume", "run", "--accept-changed-data"),
        ("train", "run", "--dry-run"),
        ("show", "run"),
        ("show", "run", "--json"),
        ("runs", ".", "--json"),
        ("condition", "--checkpoints", "run", "--samples", "2"),
        ("redesign", "run", "--depth", "1", "-o", "out"),
        ("export", "run", "--format", "timm", "-o", "out"),
    ]
    if draw.random() < 0.3:
        leanify.load(home / "run")
    else:
        command(*draw.choice(uses))


def of_predict(draw: random.Random, home: Path) -> None:
    """A run on own data, or what it is applied to, damaged."""
    run, inputs = draw.choice([("run-images", "images"), ("run-texts", f"rows.{draw.choice(['csv', 'jsonl', 'txt'])}")])
    damaged = home / draw.choice([run, inputs])
    mutate(draw, damaged if damaged.is_file() else some_file(draw, damaged))
    command("predict", run, inputs, "--format", draw.choice(["table", "json", "csv", "markdown"]))


def of_own_data(draw: random.Random, home: Path) -> None:
    """A folder of images, tables or texts: what lies there is looked at, or trained on."""
    folder, recipe = draw.choice(
        [("images", "images"), ("pictures", "images"), ("glue/sst2", "sentences"), ("texts/0.txt", "text")]
    )
    place = home / folder.partition("/")[0]
    for _ in range(draw.choice([1, 1, 4])):
        if any(path.is_file() for path in place.rglob("*")):  # the one before may have taken the last file away
            mutate(draw, some_file(draw, place))
    settings = [f"data.path={home / folder}", f"data.on_error={draw.choice(['stop', 'skip'])}"]
    if draw.random() < 0.2:
        command("train", folder)
    else:
        words = [part for word in settings for part in ("--set", word)]
        command("train", f"own-{recipe}", "--dry-run", *SHALLOW[recipe], *words)


def of_cache(draw: random.Random, home: Path) -> None:
    """What is kept in the user's cache, damaged between two uses: prices, embeddings, token ids, tokenizers, draws."""
    import numpy as np

    from leanify.data.texts import corpus, tokens
    from leanify.runs import cache

    tokens.LARGE = 100  # bytes: the ids of a small text are kept as those of a large one
    encode, _ = corpus.encoder(None, 256)
    teach = ("train", "hf", "--teacher", "hf", "--dry-run", "--set", "data.path=rows.csv", "--set", "data.holdout=0.2")
    words = ("train", "masked-small", "--dry-run", "--set", f"data.path={home}/rows.txt")
    words = (*words, *SHALLOW["masked"], "--set")
    uses: list[Callable[[], Any]] = [
        lambda: command("redesign", "lean-timm", "--target-params", "0.9", "--min-depth", "1"),
        lambda: command(*teach, "--set", "model.class=BertModel"),
        lambda: tokens.of_text(tokens.Text(home / "rows.txt"), encode, "bytes").ids.sum(),
        lambda: command(*words, "data.tokenizer=wordpiece-100", "--set", "data.length=8"),
        lambda: cache.cached("drawn", {"a": 1}, lambda: {"x": np.arange(5), "y": np.zeros((2, 3))}),
    ]
    use = draw.choice(uses)
    use()
    mutate(draw, some_file(draw, cache.home()))
    use()


def of_tensors(draw: random.Random, home: Path) -> None:
    from leanify.sources import tensors

    file = home / "loose" / draw.choice(["a.pt", "a.bin", "model.safetensors"])
    mutate(draw, file)
    if draw.random() < 0.6:
        tensors.read_tensors(file)
    else:
        command("redesign", "lean-timm", "--depth", "1", "-o", "out", "--weights", f"loose/{file.name}")


def of_recipe(draw: random.Random, home: Path) -> None:
    from leanify.runs import recipe as recipes
    from leanify.training.loop import Trainer

    file = home / "r.toml"
    file.write_text(RECIPE)
    if draw.random() < 0.3:
        mutate(draw, file)
        return command("train", str(file), "--dry-run")
    values = mutated_value(draw, recipes.parse(RECIPE).to_dict())
    Trainer(recipes.from_dict(values))


def of_table(draw: random.Random, home: Path) -> None:
    from leanify.data.texts import corpus, text
    from leanify.runs.recipe import DataSection

    file = home / draw.choice(["rows.jsonl", "rows.csv", "rows.tsv", "rows.txt", "rows.parquet"])
    mutate(draw, file)
    skip: Any = draw.choice(["stop", "skip"])
    corpus.corpora(DataSection("x", "causal-lm", str(file), on_error=skip), 16, 256, corpus.Faults(skip == "skip"))
    if file.suffix != ".txt":
        list(text.rows_in(file))


def of_images(draw: random.Random, home: Path) -> None:
    from leanify.data.images.batches import ImageFolder
    from leanify.runs import recipe as recipes
    from leanify.training.loop import Trainer

    for _ in range(draw.choice([1, 1, 4])):
        mutate(draw, some_file(draw, home / "images"))
    if draw.random() < 0.5:
        list(ImageFolder(home / "images").batches(100, 4, (3, 8, 8), [0.5] * 3, [0.5] * 3))
        return
    words = [
        f"data.path={home / 'images'}",
        "data.name=x",
        "data.workers=0",
        "data.samples=",
        "model.override.num_classes=2",
    ]
    skip = f"data.on_error={draw.choice(['stop', 'skip'])}"
    trainer = Trainer(recipes.with_settings(recipes.parse(RECIPE), [*words, skip]))
    list(trainer.batches(0))
    trainer.evaluate()


KINDS: dict[str, Callable[[random.Random, Path], None]] = {
    name.removeprefix("of_"): function
    for name, function in [*vars(fuzz_commands).items(), *vars(fuzz_links).items(), *globals().items()]
    if name.startswith("of_")
}
TEXTS = ("rows.jsonl", "rows.csv", "rows.tsv", "rows.txt", "rows.parquet")
NEEDED = {
    "command": ("lean-timm", "lean-hf", "run", "hf", "study", "images", "rows.csv", "rows.txt"),
    "setting": ("run",),
    "hf_directory": ("hf", "bin", "lean-hf", "rows.csv", "rows.jsonl"),
    "adapter": ("hf", "adapter", "lean-hf", "rows.csv", "rows.jsonl"),
    "study": ("study", "lean-timm"),
    "labelled": ("hf", "glue", *TEXTS),
    "probe": ("lean-timm", "images"),
    "lean_directory": ("lean-timm", "lean-hf"),
    "run": ("run",),
    "predict": ("run-images", "run-texts", "images", *TEXTS),
    "own_data": ("images", "pictures", "glue", "texts", "hf"),
    "cache": ("hf", "lean-timm", *TEXTS),
    "images": ("images",),
    "tensors": ("loose", "lean-timm"),
    "table": TEXTS,
    "linked_run": ("run",),
    "linked_study": ("study", "lean-timm"),
    "linked_shrink": ("hf", "rows.csv", "shrunk"),
    "linked_model": ("hf", "bin", "adapter", "lean-timm", "lean-hf"),
    "linked_data": ("images", "pictures", "glue", "texts", "hf", "lean-timm"),
    "linked_cache": ("lean-timm", "rows.txt"),
    "shards": ("shards",),
}
