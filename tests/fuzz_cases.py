"""What is fuzzed: kinds of folders, how they are damaged, and what is then done with them.

A case damages files of a folder, or puts links, pipes and devices into it, and uses it once. It may read what a link
leads to, or refuse it; it may not wait, and no byte outside its folder may change.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shlex
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commands import BUG_MESSAGES
from fuzz_files import damage, mutate, mutated_bytes, mutated_value, some_file
from fuzz_intact import HF, RECIPE, SHRUNK, TIMM, InlineEngine

from leanify.core.errors import LeanifyError
from recipes.research import layouts

SHRINK = "--target-params 0.8 --count body --minutes 0 --designs narrow " + " ".join(f"--set {s}" for s in SHRUNK)
CUT = "--data words.txt --vocabulary 250 --designs vocabulary --minutes 0 -o out --set data.length=16"
SMALL_IMAGES = "".join(f" --set model.override.{key}={TIMM[key]}" for key in ("patch_size", "embed_dim", "depth"))
OWN_IMAGES = f"train own-images --dry-run {SMALL_IMAGES} --set model.override.num_heads=2 --set data.path="


def command(*arguments: str) -> None:
    """The command line, as the console script calls it. Raises where a traceback or a bug of leanify's own ends it."""
    from leanify.cli import main

    sys.argv = ["leanify", *arguments]
    stderr = io.StringIO()
    try:
        with contextlib.redirect_stderr(stderr):
            main()
    except SystemExit as error:
        message = stderr.getvalue()
        if {"\x1b", "\x07", "\u202e"} & set(message):
            raise RuntimeError(f"control characters: {message[-300:]!r}") from error
        if any(one in message for one in BUG_MESSAGES) or error.code not in (0, 1, 2, None):
            raise RuntimeError(f"exit code {error.code}: {message[-300:]}") from error
        if error.code:
            raise LeanifyError(message.strip().replace("\n", " ")) from error
    finally:
        sys.stderr.write(stderr.getvalue())


def read_shape(source: Any, **options: Any) -> None:
    from leanify.reshaping import surgery
    from leanify.sources import find

    surgery.read(find.build_on_meta(find.find(source, **options)))


def load_and_save(folder: str) -> None:
    import leanify

    leanify.save(leanify.load(folder), "out")


def more_seeds(folder: str) -> None:
    import leanify

    leanify.compare(folder, seeds=3, engine=InlineEngine(), measure=False)


def read_tensors(file: str) -> None:
    from leanify.sources import tensors

    tensors.read_tensors(Path(file))


def cut_vocabulary(folder: str) -> None:
    from leanify.vocabulary import closure, cut_tokenizer, kinds, ranking

    Path("cut").mkdir()
    for path in Path(folder).iterdir():  # copies, as `shrink` makes them
        if path.is_file() and not path.is_symlink() and path.stat().st_size < 10**8:
            shutil.copy(path, "cut")
    vocabulary = kinds.read_vocabulary(Path("cut"))
    ranked = closure.RankedTokens.of(vocabulary, ranking.rank_tokens(vocabulary, {}))
    cut_tokenizer.cut_tokenizer(Path("cut"), vocabulary, ranked.keep(ranked.total * 9 // 10))


def read_text(file: str) -> None:
    from leanify.core.recipe import DataSection
    from leanify.data.texts import corpus, tokens

    corpus.corpora(DataSection("x", "causal-lm", file, on_error="skip"), 16, 256, corpus.Faults(True))
    if not file.endswith(".txt"):
        list(tokens.read_texts(Path(file)))


# -- folders and files ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """A kind of case: one of some intact files or folders is damaged, then one of the uses is made of it."""

    targets: tuple[str, ...]
    uses: tuple[str | Callable[[str], None], ...]  # command lines; {} is what was damaged
    companions: tuple[str, ...] = ()  # what the uses need besides

    @property
    def inputs(self) -> tuple[str, ...]:
        """The intact folders and files that a case of this kind needs."""
        return tuple(dict.fromkeys(name.partition("/")[0] for name in (*self.targets, *self.companions)))

    def __call__(self, draw: random.Random, home: Path) -> None:
        name = draw.choice(self.targets)
        damage(draw, home / name, home.parent / "outside")
        use = draw.choice(self.uses)
        if callable(use):
            use(name)
        else:
            command(*shlex.split(use.replace("{}", name)))


ROWS = ("rows.jsonl", "rows.csv", "rows.tsv", "rows.txt", "rows.parquet")
SKIP = "--set data.on_error=skip"
DEPTH_1 = "--set model.override.depth=1"
ONE_LAYER = "--set model.override.n_layer=1"
FOLDERS: dict[str, Kind] = {
    "model": Kind(
        ("hf", "bin", "lean-timm", "lean-hf"),
        (
            "condition {} --samples 2", "condition {} --samples 2 --data rows.csv --json",
            "condition {} --samples 2 --plot plot.svg", "profile {} --no-measure", "redesign {} --depth 1 -o out",
            "redesign {} --depth 1 -o out --weights {}", "redesign lean-hf --depth 1 -o lean-hf/out --weights {}",
            "train {} --dry-run --set data.path=rows.jsonl --set data.holdout=0.2", "export {} --format hf -o out",
            "export {} --format timm -o out", "show {}", load_and_save,
        ),
        ("lean-hf", "rows.csv", "rows.jsonl"),
    ),
    "run": Kind(
        ("run",),
        (
            *(["train --resume {}"] * 4),
            "train --resume {} --accept-changed-data",
            "train {} --dry-run",
            "show {} --json",
            "show {} --plot {}/curves.svg",
            "runs . --json",
            "condition --checkpoints {} --samples 2",
            "redesign {} --depth 1 -o {}/out",
            "export {} --format timm -o out",
            load_and_save,
        ),
    ),
    "study": Kind(
        ("study",),
        (
            *(["compare {} --report"] * 2),
            "compare {} --dry-run --designs x=depth:1,heads:2,mlp:24",
            "show {}",
            "runs . --json",
            "train --resume {}/runs/baseline-0",
            "condition --checkpoints {}/runs/baseline-0 --samples 2",
            *([more_seeds] * 2),
        ),
    ),
    "shrink": Kind(("shrunk",), (f"shrink hf --data rows.csv {SHRINK} -o {{}}",), ("hf", "rows.csv")),
    "tables": Kind(
        ROWS,
        (
            f"train hf --dry-run --set data.path={{}} {SKIP}",
            "train hf --dry-run --set data.path={}",
            f"train masked-small --dry-run --set data.length=8 {DEPTH_1} {SKIP} --set data.path={{}}",
            f"train chars --dry-run {ONE_LAYER} --set data.path={{}} {SKIP}",
            "condition hf --samples 2 --data {}",
            read_text,
        ),
        ("hf",),
    ),
    "texts": Kind(
        ("texts",),
        (
            f"train {{}} --dry-run {ONE_LAYER}",
            "condition hf --samples 2 --data {}",
            f"train own-text --dry-run {ONE_LAYER} --set data.path={{}}",
        ),
        ("hf",),
    ),
    "images": Kind(
        ("images", "pictures", "shards", "saved"),
        (
            "train {} --dry-run",
            f"{OWN_IMAGES}{{}}",
            f"{OWN_IMAGES}{{}} {SKIP}",
            f"{OWN_IMAGES}{{}} --set data.workers=0 {SKIP}",
            "condition lean-timm --samples 4 --data {}",
            "predict run-images {}",
        ),
        ("lean-timm", "run-images"),
    ),
    "predict": Kind(
        ("run-images", "run-texts"),
        ("predict {} images", "predict {} rows.csv --format json", "predict {} rows.txt --format csv"),
        ("images", *ROWS),
    ),
    "processor": Kind(
        ("vit/preprocessor_config.json",),
        ("train vit --dry-run --set data.path=images", "condition vit --samples 2 --data images"),
        ("images",),
    ),
    "tokenizer": Kind(
        ("hf/tokenizer.json", "hf/tokenizer_config.json"),
        (
            "train hf --dry-run --set data.path=rows.csv --set data.holdout=0.2",
            "condition hf --samples 2 --data rows.txt",
        ),
        ROWS,
    ),
    "vocabulary": Kind(
        ("cut-WordPiece", "cut-byte-level", "cut-Unigram"),
        (f"shrink {{}} {CUT}", f"shrink {{}} {CUT} --dry-run", *[cut_vocabulary] * 4),
        ("words.txt",),
    ),
    "log": Kind(
        ("run/metrics.jsonl",),
        ("show run --json", "show run --plot p.svg", "runs . --json", "train --resume run", "show run --format csv"),
    ),
    "tensors": Kind(
        ("loose/a.pt", "loose/a.bin", "loose/model.safetensors"),
        (read_tensors, "redesign lean-timm --depth 1 -o out --weights {}"),
        ("lean-timm",),
    ),
}  # fmt: skip


ODD_NAMES = (
    "$\\undefined$", "a$^$", "\x1b]0;x\x07", "\u202egnp", "\udcff", "a\nleanify: done", "-x", "[red]", "{0}", "%s",
    "x" * 200,
)  # fmt: skip
MATPLOTLIBRC = ("text.usetex: True\n", "font.family: x\nfigure.dpi: 99999\n", "backend: module://evil\n", "\xff\0")


def names_case(draw: random.Random, home: Path) -> None:
    """A folder of another name, in a folder with settings of matplotlib's."""
    name = draw.choice(["run", "lean-timm", "images"])
    folder = home / draw.choice(ODD_NAMES)
    (home / name).rename(folder)
    if draw.random() < 0.5:
        (home / "matplotlibrc").write_text(draw.choice(MATPLOTLIBRC), encoding="latin-1")
    uses = {
        "run": ("show {} --plot p.svg", "show {} --json", "train --resume {}", "condition {} --samples 2 --plot p.png"),
        "lean-timm": (
            "profile {} --no-measure",
            "condition {} --samples 2 --plot p.svg",
            "redesign {} --depth 1 -o out",
        ),
        "images": (f"{OWN_IMAGES}{{}}", "train {} --dry-run", "condition lean-hf --samples 2 --data {}"),
    }
    line = draw.choice(uses[name]).split()
    command(*(word.replace("{}", str(folder)) for word in line))


def cache_case(draw: random.Random, home: Path) -> None:
    """What is kept in the user's cache, damaged between two uses: prices, embeddings, token ids, tokenizers, draws."""
    import numpy as np

    from leanify.core.files import cache
    from leanify.data.texts import corpus, tokens

    tokens.LARGE = 100  # bytes: the ids of a small text are kept as those of a large one
    encode, _ = corpus.encoder(None, 256)
    taught = "train hf --teacher hf --dry-run --set data.path=rows.csv --set data.holdout=0.2"
    taught += " --set model.class=BertModel"
    masked = f"train masked-small --dry-run --set data.path={home}/rows.txt --set model.override.depth=1"
    masked += " --set data.tokenizer=wordpiece-100 --set data.length=8"
    uses: list[Callable[[], Any]] = [
        lambda: command("redesign", "lean-timm", "--target-params", "0.9", "--min-depth", "1"),
        lambda: command(*taught.split()),
        lambda: tokens.encode_cached(tokens.Text(home / "rows.txt"), encode, "bytes").ids.sum(),
        lambda: command(*masked.split()),
        lambda: cache.load_or_make("drawn", {"a": 1}, lambda: {"x": np.arange(5), "y": np.zeros((2, 3))}),
    ]
    use = draw.choice(uses)
    use()
    mutate(draw, some_file(draw, cache.home()))  # links are the user's: a cache may lie on another disk
    use()


def greedy_case(draw: random.Random, home: Path) -> None:
    """A tokenizer with rules of `bounds.py`, put together anew, or a picture of any size and layout."""
    import bounds

    os.environ["LEANIFY_MEMORY"] = draw.choice(["200M", "400M"])
    if draw.random() < 0.5:
        file = home / "hf" / "tokenizer.json"
        content = json.loads(file.read_text())
        for name in draw.sample([*bounds.RULES], draw.choice([1, 1, 2])):
            content |= bounds.RULES[name]
        rules = (content.get("normalizer") or {}).get("normalizers")
        if isinstance(rules, list):
            content["normalizer"]["normalizers"] = draw.choices(rules, k=draw.choice([1, 3, 30]))
        file.write_text(json.dumps(content))
        (home / "rows.txt").write_text("中文 aaa é 🙂\n" * draw.choice([1, 3_000]))
        return command("condition", "hf", "--samples", "2", "--data", "rows.txt")
    width, height = (int(10 ** draw.uniform(0, 4.2)) for _ in range(2))
    layout = draw.choice([(1, 0), (8, 0), (8, 2), (8, 6), (16, 0), (16, 2), (16, 4), (16, 6)])
    file = sorted((home / "images").rglob("*.png"))[0]
    file.write_bytes(bounds.png(width, min(height, 40_000_000 // width), *layout))
    return command(*draw.choice([f"{OWN_IMAGES}images", "predict run-images images"]).split())


def layout_case(draw: random.Random, home: Path) -> None:
    """Data as public sets lay it out, damaged: labels, lists beside pictures, chats, tags, boxes."""
    (home / "data").mkdir()
    layouts.make(home / "data", draw.choice([*layouts.LAYOUTS.values()]))
    damage(draw, home / "data", home.parent / "outside")
    uses = (
        "show data",
        f"train hf --dry-run --set data.path=data {SKIP}",
        "train hf --dry-run --set data.path=data",
        "train own-sentences --dry-run --set model.override.num_hidden_layers=1 --set data.path=data",
        f"{OWN_IMAGES}data {SKIP}",
        f"train own-text --dry-run {ONE_LAYER} --set data.path=data",
        "condition hf --samples 2 --data data",
        "predict run-texts data --format json",
        f"shrink hf --data data {SHRINK} -o out --dry-run",
    )
    command(*shlex.split(draw.choice(uses)))


# -- values and command lines -----------------------------------------------------------------------------------------


def source_case(draw: random.Random, home: Path) -> None:
    """Names, overrides and configurations of models."""
    names = ["vit_tiny", "bert", "hf/gpt2", "timm/deit_tiny", "gpt2.py:Gpt2", "digits", str(home), "a/b"]
    kind = draw.choice(list(HF))
    how = draw.randrange(4)
    if how == 0:
        read_shape(mutated_bytes(draw, draw.choice(names).encode()).decode(errors="replace"))
    elif how == 1:
        options = mutated_value(draw, dict(HF[kind]))
        read_shape(kind, overrides=options if isinstance(options, dict) else {"x": options})
    else:
        timm = {"architecture": "vit_tiny_patch16_224", "num_classes": 10, "model_args": TIMM}
        (home / "config.json").write_text(json.dumps(timm if how == 2 else {"model_type": kind, **HF[kind]}))
        mutate(draw, home / "config.json")
        read_shape(str(home / "config.json"))


def recipe_case(draw: random.Random, home: Path) -> None:
    """A recipe's file damaged, or a key of it with anything for a value."""
    from leanify.core import recipe as recipes

    (home / "r.toml").write_text(RECIPE)
    if draw.random() < 0.4:
        mutate(draw, home / "r.toml")
        return command("train", "r.toml", "--dry-run")
    table = recipes.parse(RECIPE).to_dict()
    keys = [f"{section}.{key}" for section, entries in table.items() for key in entries]
    keys += [f"data.{key}" for key in ("path", "tokenizer", "length", "text", "label", "img_size", "workers", "test")]
    keys += ["distill.source", "model.shape", "model.weights", "x", "model", ""]
    settings = []
    for _ in range(draw.choice([1, 2])):
        settings += ["--set", f"{draw.choice(keys)}={draw.choice(VALUES)}"]
    command("train", "r.toml", "--dry-run", *settings)


def command_case(draw: random.Random, home: Path) -> None:
    """Any command with one or two of its options, as it declares them, each with anything for a value."""
    import typer

    from leanify.cli import app

    line = draw.choice(COMMANDS)
    name, *arguments = shlex.split(line)
    click_command: Any = typer.main.get_command(app(name))
    options = [each for each in click_command.params if each.opts[0].startswith("-") and not each.hidden]
    options = [each for each in options if each.opts[0] not in EXCLUDED_OPTIONS]
    for option in draw.sample(options, min(len(options), draw.choice([1, 1, 2]))):
        spelling = draw.choice(option.opts)
        arguments += [spelling] if option.is_flag else [spelling, draw.choice(VALUES)]
    if draw.random() < 0.1:
        arguments = [draw.choice(VALUES) if draw.random() < 0.5 else word for word in arguments]
    command(name, *arguments)


VALUES = (
    "-1", "0", "1", "2", "3", "7", "0.5", "-0.5", "1.5", "1e-400", "1e400", "nan", "inf", "-inf", "1000000",
    "1000000000", "1e308", "\x1b[2J",
    "", " ", "٣", "１２", "²", "½", "1_000", "0x10", "1e3", "+1", "--", "-", "1,2", ",", "1,,2", "-1,2", "2,4,8",
    "a=b", "=", "key=", "=v", "a.b=1", "encoder=6", "x=depth:1", "heads=2,4", "M", "1M", "-1M", "nanM", "12ms",
    "True", "None", "[]", "{}", "all", "auto", "cpu", "cuda:99", "meta", "float16", "hf", "timm", "AutoModel",
    "/dev/null", "/dev/full", "/dev/zero", "/", ".", "..", "nowhere/x", "rows.txt", "lean-timm", "lean-hf", "run",
    "κ×", "a\udcff", "a\nb", "\t", "%s", "{x}", "[red]", "[/red]", "$(ls)", "x.html", "x.png", "images", "*", "?",
    "~", "~nobody/x", "study", "-1GB", "0.5,0.5", str(10**24), "x" * 5000,
)  # fmt: skip
COMMANDS = (
    "redesign lean-timm --target-params 0.9 --min-depth 1 -o out",
    "redesign lean-hf --depth 1",
    "train run --dry-run",
    "train hf --dry-run --set data.path=rows.csv",
    "compare study --report",
    "compare run --dry-run --seeds 2",
    "profile lean-timm --no-measure",
    "profile lean-hf --repeats 1 --batch-size 1",
    "condition lean-timm --samples 2",
    "condition hf --samples 2 --data rows.csv",
    "export nowhere -o out --format hf",
    "export lean-timm -o out/out --format x",
    f"shrink hf --data rows.csv {SHRINK} -o out --dry-run",
    "recipes digits",
    "runs .",
    "show run",
    "show lean-timm",
    "predict run images",
    "zoo --library timm",
)
EXCLUDED_OPTIONS = ("--install-completion", "--show-completion", "--check", "--audit", "--engine")  # write or take long

KINDS: dict[str, Callable[[random.Random, Path], None]] = {
    **FOLDERS,
    "cache": cache_case,
    "greedy": greedy_case,
    "layouts": layout_case,
    "names": names_case,
    "source": source_case,
    "recipe": recipe_case,
    "command": command_case,
}
INPUTS = {name: kind.inputs for name, kind in FOLDERS.items()} | {
    "greedy": ("hf", "images", "run-images", "rows.txt"),
    "layouts": ("hf", "run-texts"),
    "names": ("run", "lean-timm", "lean-hf", "images"),
    "cache": ("hf", "lean-timm", *ROWS),
    "command": ("lean-timm", "lean-hf", "run", "hf", "study", "images", "rows.csv", "rows.txt"),
}
