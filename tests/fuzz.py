"""A seeded fuzzer of files: what somebody hands over, damaged or made up, and what leanify makes of it.

    python tests/fuzz.py 10000              every kind in turn; prints what failed, each as KIND SEED
    python tests/fuzz.py KIND SEED          one case again, with its traceback

A case is a function of (kind, seed). It runs in a fork of this process, with limits on memory and processor time, and
ends well where it returns or raises LeanifyError. A traceback, a hang, more than two gigabytes, or an output folder
that is there in part is a finding.
"""

from __future__ import annotations

import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

SECONDS, WALL = 10, 300  # of the processor, after which a case hangs; and of the clock, for one that only waits
GIGABYTES = 2
HOSTILE = (
    None, True, -1, 0, 1, 3, 7, 10**6, 10**24, -0.5, 1e400, float("nan"), "", "x", "0", "None", "../..", "/dev/zero",
    "κ×\ud800", "a" * 5000, [], [1], ["a"], [[]], {}, {"a": 1}, "__import__('os')", "hf-hub:a/b", [32, 32], "float16",
)  # fmt: skip


# -- mutations --------------------------------------------------------------------------------------------------------


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


# -- what is fuzzed ---------------------------------------------------------------------------------------------------

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
    import numpy as np
    import torch
    from PIL import Image

    import leanify
    from leanify.sources import recipe as recipes

    leanify.train(recipes.parse(RECIPE), home / "run")
    leanify.save(leanify.load("vit_tiny_patch16_224", overrides=TIMM), home / "lean-timm")
    grown = leanify.grow(leanify.load("bert", overrides=HF["bert"]), factor=2)
    leanify.save(grown, home / "lean-hf")
    torch.save({"a": torch.ones(3, 4), "b": torch.arange(5)}, home / "a.pt")
    shutil.copy(home / "lean-timm" / "model.safetensors", home / "a.safetensors")
    rows = [{"text": f"here are {i} cats, a κ and {i * i} mice", "label": i % 2} for i in range(30)]
    (home / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (home / "rows.csv").write_text("text,label\n" + "".join(f'"{row["text"]}",{row["label"]}\n' for row in rows))
    (home / "rows.tsv").write_text("sentence\tlabel\n" + "".join(f"{row['text']}\t{row['label']}\n" for row in rows))
    (home / "rows.txt").write_text("<|endoftext|>".join(str(row["text"]) for row in rows))
    for split in ("train", "validation"):
        for kind in ("a", "b"):
            (home / "images" / split / kind).mkdir(parents=True)
            for number, suffix in enumerate(("png", "jpg", "gif", "tif", "webp", "bmp")):
                pixels = np.full((8, 8, 3), 30 * number, dtype=np.uint8)
                Image.fromarray(pixels).save(home / "images" / split / kind / f"{number}.{suffix}")


def command(*arguments: str) -> None:
    """The command line, as the console script calls it."""
    from leanify.cli import main

    sys.argv = ["leanify", *arguments]
    try:
        main()
    except SystemExit as error:
        if error.code not in (0, 1, 2, None):
            raise RuntimeError(f"exit code {error.code}") from error


def looked_at(source: Any, **words: Any) -> None:
    from leanify.lens import surgery
    from leanify.sources import find

    surgery.read(find.build_on_meta(find.find(source, **words)))


def of_source(draw: random.Random, home: Path) -> None:
    names = ["vit_tiny", "bert", "hf/gpt2", "timm/deit_tiny", "leanify/gpt2-tinystories", "digits", str(home), "a/b"]
    name = mutated_bytes(draw, draw.choice(names).encode()).decode(errors="replace") if draw.random() < 0.7 else "bert"
    draw.choice([lambda: looked_at(name), lambda: command("profile", "--no-measure", "--", name + "x")])()


def of_option(draw: random.Random, home: Path) -> None:
    commands = {
        "redesign": ["--target-params", "--depth", "--heads", "--head-dim", "--mlp", "--top", "--tokens", "--max-macs"],
        "profile": ["--batch-size", "--device", "--dtype", "--tokens", "--img-size", "--repeats"],
        "condition": ["--samples", "--batch-size", "--tokens", "--heads", "--seed", "--device", "--plot"],
        "train": ["--set", "--resume", "-o"],
    }  # fmt: skip
    name = draw.choice(list(commands))
    value = draw.choice([str(value) for value in HOSTILE if value is not None and "\ud800" not in str(value)])
    os.chdir(home)
    extra = ["-o", str(home / "out")] if name == "redesign" else ["--dry-run"] if name == "train" else []
    source = str(home / "lean-timm") if name != "train" else str(home / "run")
    command(name, source, draw.choice(commands[name]), value, *extra)


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

    file = home / draw.choice(["rows.jsonl", "rows.csv", "rows.tsv", "rows.txt"])
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

NEEDED = {
    "option": ("lean-timm", "run"), "lean_directory": ("lean-timm", "lean-hf"), "run": ("run",), "images": ("images",),
    "tensors": ("a.pt", "a.safetensors"), "table": ("rows.jsonl", "rows.csv", "rows.tsv", "rows.txt"),
}  # fmt: skip


# -- running ----------------------------------------------------------------------------------------------------------


def run(kind: str, seed: int, intact: Path, shown: bool = False) -> str | None:
    """What a case came to: None where it ended well, else what was found."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        home = Path(folder) / "home"
        home.mkdir()
        for name in NEEDED.get(kind, ()):
            copy = shutil.copytree if (intact / name).is_dir() else shutil.copy
            copy(intact / name, home / name)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            _child(kind, seed, home, writer, shown)
        os.close(writer)
        return _outcome(child, reader) or _partial(home)


def _child(kind: str, seed: int, home: Path, writer: int, shown: bool) -> None:
    """Run the case and write what went wrong, if anything, to the pipe; never returns."""
    from leanify.errors import LeanifyError

    space = int(re.findall(r"\d+", Path("/proc/self/statm").read_text())[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (space + GIGABYTES * 2**30, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    if not shown:
        for stream in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    found = ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            KINDS[kind](random.Random(f"{kind} {seed}"), home)
    except LeanifyError as error:
        found = f"a message of {len(str(error).splitlines())} lines" if "\n" in str(error).strip() else ""
        if shown:
            print(f"LeanifyError: {error}", file=sys.stderr)
    except BaseException as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        ours = [entry for entry in traceback.extract_tb(error.__traceback__) if "/leanify/" in entry.filename]
        place = "/".join(Path(ours[-1].filename).parts[-2:]) if ours else frame.filename
        found = f"{type(error).__name__}: {str(error)[:100]!r} by {place}"
        if shown:
            traceback.print_exc()
    os.write(writer, found.encode(errors="replace")[:2000])
    os._exit(0)


def _outcome(child: int, reader: int) -> str | None:
    deadline = time.monotonic() + WALL
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(reader)
            return f"hangs for {WALL} s"
        time.sleep(0.01)
    found = os.read(reader, 4000).decode(errors="replace")
    os.close(reader)
    code = os.waitstatus_to_exitcode(status)
    if code == -signal.SIGXCPU or code == -signal.SIGKILL:
        return f"over {SECONDS} s of the processor"
    return found or (f"ended with {code}" if code else None)


def _partial(home: Path) -> str | None:
    """An output folder that is not whole, or what a command left beside it."""
    left = [path.name for path in home.iterdir() if path.name.startswith(".")]
    out = home / "out"
    if out.exists() and not ((out / "leanify.json").is_file() or (out / "lean" / "leanify.json").is_file()):
        left.append("out")
    return f"left {', '.join(left)}" if left else None


def warm() -> Path:
    """Import what cases need, and make the intact files."""
    import torch

    from leanify.upstream.libraries import import_timm, import_transformers

    torch.set_num_threads(1)
    import_timm(), import_transformers()
    home = Path(tempfile.mkdtemp(prefix="fuzz-intact-"))
    samples_in(home)
    for name in HF:
        looked_at(name, overrides=HF[name])
    return home


def main(arguments: list[str]) -> None:
    intact = warm()
    try:
        if len(arguments) == 2:
            print(run(arguments[0], int(arguments[1]), intact, shown=True) or "well")
            return
        names = list(KINDS)
        found = 0
        for number in range(int(arguments[0])):
            kind, seed = names[number % len(names)], number // len(names)
            if (words := run(kind, seed, intact)) is not None:
                found += 1
                print(kind, seed, words, flush=True)
        print(f"{found} of {arguments[0]} cases ended badly")
    finally:
        shutil.rmtree(intact)


if __name__ == "__main__":
    main(sys.argv[1:])
