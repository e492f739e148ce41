"""What is fuzzed: a function a kind, of a generator of random numbers and a folder of intact files."""

from __future__ import annotations

import contextlib
import io
import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fuzz_files import HF, RECIPE, TIMM, mutate, mutated_bytes, mutated_value, some_file

from leanify.errors import LeanifyError

UNEXPECTED = "leanify: unexpected error"  # what the command line says of an exception that nothing expected


def command(*arguments: str) -> None:
    """The command line, as the console script calls it. Raises where a traceback or a bug of leanify's own ends it."""
    from leanify.cli import main

    sys.argv = ["leanify", *arguments]
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            main()
    except SystemExit as error:
        words = said.getvalue()
        if "Traceback" in words or UNEXPECTED in words or error.code not in (0, 1, 2, None):
            raise RuntimeError(f"exit code {error.code}: {words[-300:]}") from error
        if error.code:
            raise LeanifyError(words.strip().replace("\n", " ")) from error
    finally:
        sys.stderr.write(said.getvalue())


def looked_at(source: Any, **words: Any) -> None:
    from leanify.lens import surgery
    from leanify.sources import find

    surgery.read(find.build_on_meta(find.find(source, **words)))


def of_source(draw: random.Random, home: Path) -> None:
    names = ["vit_tiny", "bert", "hf/gpt2", "timm/deit_tiny", "leanify/gpt2-tinystories", "digits", str(home), "a/b"]
    name = mutated_bytes(draw, draw.choice(names).encode()).decode(errors="replace") if draw.random() < 0.7 else "bert"
    draw.choice([lambda: looked_at(name), lambda: command("profile", "--no-measure", "--", name + "x")])()


def of_command(draw: random.Random, home: Path) -> None:
    """Any command with one or two of its options, each with anything for a value."""
    name = draw.choice(list(USES))
    words = list(draw.choice(USES[name]))
    options = [one for one in parameters(name) if one.opts[0].startswith("-") and one.opts[0] not in LEFT_OUT]
    for option in draw.sample(options, min(len(options), draw.choice([1, 1, 2]))):
        spelling = draw.choice(option.opts)
        words += [spelling] if option.is_flag else [spelling, draw.choice(WORDS)]
    if draw.random() < 0.1:
        words = [draw.choice(WORDS) if draw.random() < 0.5 else word for word in words]
    command(name, *words)


WORDS = (
    *(
        "-1",
        "0",
        "1",
        "2",
        "3",
        "7",
        "0.5",
        "-0.5",
        "1.5",
        "1e-400",
        "1e400",
        "nan",
        "inf",
        "-inf",
        "1000000",
        str(10**24),
    ),
    *(
        "",
        " ",
        "٣",
        "１２",
        "²",
        "½",
        "1_000",
        "0x10",
        "1e3",
        "+1",
        "--",
        "-",
        "1,2",
        ",",
        "1,,2",
        "-1,2",
        "2,4,8",
        "0.5,0.5",
    ),
    *(
        "a=b",
        "=",
        "key=",
        "=v",
        "a.b=1",
        "encoder=6",
        "x=depth:1",
        "heads=2,4",
        "M",
        "1M",
        "-1M",
        "nanM",
        "12ms",
        "-1GB",
    ),
    *(
        "True",
        "None",
        "[]",
        "{}",
        "all",
        "auto",
        "cpu",
        "cuda:99",
        "meta",
        "float16",
        "hf",
        "timm",
        "AutoModel",
        "x" * 5000,
    ),
    *(
        "/dev/null",
        "/dev/full",
        "/dev/zero",
        "/",
        ".",
        "..",
        "nowhere/x",
        "rows.txt",
        "lean-timm",
        "lean-hf",
        "run",
        "study",
    ),
    *(
        "κ×",
        "a\udcff",
        "a\nb",
        "\t",
        "%s",
        "{x}",
        "[red]",
        "$(ls)",
        "x.html",
        "x.png",
        "images",
        "*",
        "?",
        "~",
        "~nobody/x",
    ),
)
USES = {
    "redesign": (["lean-timm", "--target-params", "0.9", "-o", "out"], ["lean-hf", "--depth", "1"]),
    "train": (["run", "--dry-run"], ["hf", "--dry-run", "--set", "data.path=rows.csv"]),
    "compare": (["study", "--report"], ["run", "--dry-run", "--seeds", "2"]),
    "glue": (["nowhere"], ["hf", "--data", "glue/nothing"]),
    "profile": (["lean-timm", "--no-measure"], ["lean-hf", "--repeats", "1", "--batch-size", "1"]),
    "condition": (["lean-timm", "--samples", "2"], ["hf", "--samples", "2", "--data", "rows.csv"]),
    "export": (["nowhere", "-o", "out", "--format", "hf"], ["lean-timm", "-o", "out/out", "--format", "x"]),
    "recipes": ([], ["digits"]),
    "runs": ([], ["."]),
    "show": (["run"], ["lean-timm"], ["digits"]),
    "predict": (["run", "images"], ["run", "rows.csv"]),
    "zoo": (["--propose", "nothing"], ["--library", "timm"]),
}
LEFT_OUT = (
    "--install-completion",
    "--show-completion",
    "--check",
    "--audit",
    "--engine",
    "--jobs",
)  # write or take long


def parameters(name: str) -> list[Any]:
    """The options of a command as the command line declares them, so that a new one is fuzzed as well."""
    import typer

    from leanify.cli import app

    found: Any = typer.main.get_command(app(name))
    return [one for one in found.params if not getattr(one, "hidden", False)]


def of_setting(draw: random.Random, home: Path) -> None:
    """Every key of a recipe with anything for a value."""
    from leanify.sources import recipe as recipes

    table = recipes.parse(RECIPE).to_dict()
    keys = [f"{section}.{key}" for section, entries in table.items() for key in entries]
    keys += [f"data.{key}" for key in ("path", "tokenizer", "length", "text", "label", "img_size", "workers", "test")]
    keys += ["distill.source", "distill.kind", "model.shape", "model.weights", "x", "model", ""]
    settings = [
        part for _ in range(draw.choice([1, 2])) for part in ("--set", f"{draw.choice(keys)}={draw.choice(WORDS)}")
    ]
    command("train", "run", "--dry-run", *settings)


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
        ("compare", "study", "--dry-run", "--designs", "mlp-only"),
        ("redesign", "lean-timm", "--target-params", "0.9", "--study", "study"),
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
        ("train", "masked-small", "--dry-run", "--set", masked, *skip),
        ("train", "chars", "--dry-run", "--set", masked, *skip),
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

    folder = home / draw.choice(["lean-timm", "lean-hf"])
    mutate(draw, some_file(draw, folder))
    leanify.load(folder)


def of_run(draw: random.Random, home: Path) -> None:
    import leanify

    for _ in range(draw.choice([1, 1, 3])):
        mutate(draw, some_file(draw, home / "run"))
    draw.choice([lambda: leanify.load(home / "run"), lambda: command("train", "--resume", str(home / "run"))])()


def of_tensors(draw: random.Random, home: Path) -> None:
    from leanify.sources import tensors

    file = home / draw.choice(["a.pt", "a.safetensors"])
    mutate(draw, file)
    tensors.read_tensors(file)


def of_recipe(draw: random.Random, home: Path) -> None:
    from leanify.sources import recipe as recipes
    from leanify.training.loop import Trainer

    file = home / "r.toml"
    file.write_text(RECIPE)
    if draw.random() < 0.3:
        mutate(draw, file)
        return command("train", str(file), "--dry-run")
    values = mutated_value(draw, recipes.parse(RECIPE).to_dict())
    Trainer(recipes.from_dict(values))


def of_table(draw: random.Random, home: Path) -> None:
    from leanify.data import corpus, text
    from leanify.sources.recipe import DataSection

    file = home / draw.choice(["rows.jsonl", "rows.csv", "rows.tsv", "rows.txt", "rows.parquet"])
    mutate(draw, file)
    skip: Any = draw.choice(["stop", "skip"])
    corpus.corpora(DataSection("x", "causal-lm", str(file), on_error=skip), 16, 256, corpus.Faults(skip == "skip"))
    if file.suffix != ".txt":
        list(text.rows_in(file))


def of_images(draw: random.Random, home: Path) -> None:
    from leanify.data.image_batches import ImageFolder
    from leanify.sources import recipe as recipes
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
    name.removeprefix("of_"): function for name, function in list(globals().items()) if name.startswith("of_")
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
    "images": ("images",),
    "tensors": ("a.pt", "a.safetensors"),
    "table": TEXTS,
}
