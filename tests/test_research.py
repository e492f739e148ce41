"""Every script of recipes/research runs in small, and every command that stands beside a number can be typed."""

from __future__ import annotations

import argparse
import copy
import csv
import importlib
import importlib.util
import math
import os
import random
import re
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import ModuleType

import commands
import pytest
import torch
import typer
from PIL import Image
from runs import add_pooling
from test_shrink_heads import drawn

from leanify import cli
from leanify.cli import COMMANDS
from leanify.core import recipe as recipes
from leanify.data.texts.own_texts import read_split_table
from leanify.layouts.faults import Faults
from recipes.research.checkpoint_subject import Small, Subject

ROOT = Path(__file__).parents[1]
RESEARCH = ROOT / "recipes" / "research"
RESULTS = ROOT / "recipes" / "results"
PAGES = [*sorted(RESULTS.glob("*.md")), ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


SCRIPTS = sorted(
    ".".join(path.relative_to(RESEARCH).with_suffix("").parts)
    for path in RESEARCH.rglob("*.py")
    if 'if __name__ == "__main__":' in path.read_text(encoding="utf-8")
)


# -- every script in small --------------------------------------------------------------------------------------------

SMALL: dict[str, tuple[str, ...]] = {  # one after the other, in a folder that has the data below
    "checkpoint_page": ("", "--readme"),
    "checkpoints": (
        "minilm --data imdb --small --seeds 0 --budget 0.7 --arms 'vocabulary by counts + Block Influence'",
        "vit --data pictures --small --seeds 0 --budget 0.7 --arms 'leanify shrink' "
        "'vocabulary by counts + Block Influence' 'vocabulary by counts + MLP units by Torch-Pruning'",
        "pairs --data pairs-data --small --seeds 0 --budget 0.8 --arms 'leanify shrink'",
        "masked --data text --small --seeds 0 --budget 0.8 --arms 'leanify shrink'",
    ),
    "claims": ("--check",),
    "folders": ("Swin",),
    "gpu": ("--small -o gpu.md",),
    "layouts": ("'class folders'",),
    "learning": (
        "log.jsonl text imdb --set schedule.steps=4 --set schedule.warmup=1",
        "log.jsonl text imdb",  # nothing is measured again
        "log.jsonl --table",
    ),
    "recipe_costs": ("digits -o costs.json",),
    "speed": ("startup large checkpoint latency --small -o speed.md",),
    "statistics_simulated": ("--studies 1",),
    "trips": ("--designs narrow",),
    "vocabulary": ("minilm --data imdb --other imdb/test.csv --size 27",),
    "vocabulary_law": ("minilm imdb/train.csv imdb/test.csv --size 27 --texts 4",),
}


def test_scripts_have_small_runs() -> None:
    assert list(SMALL) == SCRIPTS


def script(name: str, *arguments: str) -> None:
    """Run a script in a process that is to end with it."""
    os.environ["PYTHONPATH"] = str(ROOT)  # for processes of its own
    sys.path.insert(0, str(ROOT))
    sys.argv = [name, *arguments]
    importlib.import_module(f"recipes.research.{name}").main()
    sys.stdout.flush()


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_run_in_small(name: str, folder: Path) -> None:
    for line in SMALL[name]:
        words = shlex.split(line)
        done = commands.start("test_research:script", name, *words, cwd=folder).wait()
        assert done.returncode == 0, done.stderr[-3000:]
        assert "Failed" not in done.stdout
    if name == "checkpoints":
        with (folder / "checkpoints.csv").open(newline="") as file:
            counts = Counter(row["checkpoint"] for row in csv.DictReader(file) if row["metric"] == "parameters")
        # the original, and each arm carried and healed; a peer that is not installed is left out
        peers = 2 if importlib.util.find_spec("torch_pruning") else 1
        counts_by_name = {"minilm": 3, "vit": 3 + 2 * peers, "pairs": 3, "masked": 3}
        assert counts == {f"{name} in small": count for name, count in counts_by_name.items()}
        done = commands.start("test_research:script", "checkpoint_page", "checkpoints.csv", cwd=folder).wait()
        assert "## vit in small, 70% of all parameters" in done.stdout, done.stderr


@pytest.mark.slow
@torch.no_grad()
def test_answers_to_pairs_are_those_of_transformers(folder: Path) -> None:
    """Both texts, and which of them a token belongs to; what is written for `leanify shrink` says the same."""
    subject = Subject(folder / "pairs", folder / "pairs-data", small=True)
    model, tokenizer = subject.original.model, subject.original.reader
    first, second = zip(*(texts for texts, _ in subject.judging), strict=True)
    inputs = tokenizer(list(first), list(second), padding=True, return_tensors="pt")
    assert inputs["token_type_ids"].any()
    assert torch.equal(subject.answer(subject.original, subject.judging), model(**inputs).logits)
    (folder / "written").mkdir()
    subject.write(folder / "written" / "train", subject.judging)
    section = replace(subject.section, path=str(folder / "written"))
    rows = read_split_table(section, "train", Faults()).rows
    assert [(texts, model.config.label2id[label]) for texts, label in rows] == subject.judging


@pytest.mark.slow
@torch.no_grad()
def test_masked_model_is_judged_by_bytes(folder: Path) -> None:
    """A model that knows nothing loses log V nats a masked token, each of which stands for seven."""
    subject = Subject(folder / "masked", folder / "text", small=True)
    model, tokenizer = copy.deepcopy(subject.original.model), subject.original.reader
    for parameter in model.parameters():
        parameter.zero_()
    sample = subject.judging[0]
    counts = len(tokenizer.tokenize(sample[0][0])[:62])  # of 64 with [CLS] and [SEP]
    expected = 7 * math.ceil(counts / 7) * math.log(len(tokenizer)) / len(sample[0][0].encode())
    torch.testing.assert_close(float(subject.answer(Small(model, tokenizer), [sample])), expected)


@pytest.mark.skipif(torch.cuda.is_available(), reason="here is a GPU")
def test_gpu_page_needs_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    page = tmp_path / "gpu.md"
    monkeypatch.setattr(sys, "argv", ["gpu", "-o", str(page)])
    assert importlib.import_module("recipes.research.gpu").main() == 2
    assert "no NVIDIA GPU" in capsys.readouterr().err
    assert not page.exists()


@pytest.fixture
def folder(data: Path, tmp_path: Path) -> Path:
    shutil.copytree(data, tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sentence encoder, a classifier of pictures and one of pairs; reviews, pictures, pairs, and a text."""
    place, draw = tmp_path_factory.mktemp("research"), random.Random(0)

    def sentence() -> str:
        return "".join(draw.choices("abcdefgh", k=3)) + " " + " ".join(draw.choices(("one", "two", "film", "bad"), k=8))

    write_encoder(place / "minilm")
    (place / "imdb").mkdir()
    for split, count in (("train", 40), ("validation", 10), ("test", 40)):
        with (place / "imdb" / f"{split}.csv").open("w", newline="") as file:
            rows = [". ".join(sentence() for _ in range(20)) + "." for _ in range(count)]
            csv.writer(file).writerows([("text",), *((row,) for row in rows)])
    shape = {"hidden_size": 24, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 48}
    shape |= {"image_size": 16, "patch_size": 8, "id2label": {0: "a", 1: "b"}, "label2id": {"a": 0, "b": 1}}
    drawn("ViTForImageClassification", **shape).save_pretrained(place / "vit")
    for split, number in product(("train", "validation"), range(40)):
        (place / "pictures" / split / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        noise = Image.effect_noise((16, 16), 20 + 40 * (number % 2))
        noise.convert("RGB").save(place / "pictures" / split / "ab"[number % 2] / f"{number}.png")
    write_encoder(place / "pairs", "BertForSequenceClassification")
    write_encoder(place / "masked", "BertForMaskedLM")
    (place / "pairs-data").mkdir()
    for split in ("train", "validation"):
        rows = [f"{sentence()},{sentence()},{'no' if number % 2 else 'yes'}" for number in range(80)]
        (place / "pairs-data" / f"{split}.csv").write_text("\n".join(["text1,text2,label", *rows]))
    (place / "text").mkdir()
    for split in ("train", "validation"):
        (place / "text" / f"{split}.txt").write_text(" ".join(sentence() for _ in range(1500)))
    return place


def write_encoder(place: Path, cls: str = "BertModel") -> None:
    """MiniLM's layers, heads and hidden units, 48 wide, in sentence-transformers' layout."""
    import transformers

    place.mkdir()
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "one", "two", "film", "bad", ".", *"abcdefgh"]
    words += [f"##{letter}" for letter in "abcdefgh"]
    (place / "vocab.txt").write_text("\n".join(words))
    transformers.BertTokenizerFast(str(place / "vocab.txt"), model_max_length=64).save_pretrained(place)
    shape = {"hidden_size": 48, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
    labels = {} if cls == "BertModel" else {"id2label": {0: "no", 1: "yes"}, "label2id": {"no": 0, "yes": 1}}
    drawn(cls, vocab_size=len(words), max_position_embeddings=64, **shape, **labels).save_pretrained(place)
    if cls == "BertModel":
        add_pooling(place, word_embedding_dimension=48, pooling_mode_mean_tokens=True)


# -- commands in the pages --------------------------------------------------------------------------------------------

INLINE = re.compile(r"`((?:python|leanify) [^`]+)`")
LISTED = re.compile(r"^(?:    |\$ |(?=python ))((?:python |leanify )[^`\n]*)", re.MULTILINE)
OURS = ("python -m recipes.research", "python -m tests.zoo", "python tests/")


def commands_of(page: Path) -> Iterator[str]:
    """The commands of a page, one line each: all in results, elsewhere those of the repository's own scripts."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    for written in [*INLINE.findall(text), *LISTED.findall(text)]:
        for part in written.split(";"):
            # neither the shell's redirections and comments nor the marks of what is left out
            line = re.split(r"[>|]|\s#\s", " ".join(part.split()))[0].replace("…", "").strip()
            if page.parent == RESULTS or line.startswith(OURS):
                yield line


LINES = sorted({(str(page.relative_to(ROOT)), line) for page in PAGES for line in commands_of(page)})


class Parsed(Exception):
    """A script has parsed its arguments, and is to do nothing more."""


@pytest.mark.slow
@pytest.mark.parametrize(("page", "line"), LINES)
def test_page_commands_can_be_typed(page: str, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first, *words = shlex.split(line)
    if first == "leanify":
        check_leanify(words)
    elif words[0] == "-m":
        name = words[1] if words[1].startswith("recipes.") else f"{words[1].removeprefix('tests.')}.__main__"
        check_script(importlib.import_module(name), words[2:], monkeypatch)
    else:
        path = ROOT / words[0]
        assert path.is_file()
        if "argparse" in path.read_text(encoding="utf-8"):
            check_script(load_script(path), words[1:], monkeypatch)


def load_script(path: Path) -> ModuleType:
    """A script that is called by its path, as a module."""
    spec = importlib.util.spec_from_file_location(f"script_{path.stem}", path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check_script(module: ModuleType, words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its parser takes these words, whatever the capital letters in them stand for."""
    parse_args = argparse.ArgumentParser.parse_args

    def parse_and_stop(parser: argparse.ArgumentParser) -> None:
        parse_args(parser, words)
        raise Parsed

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_and_stop)
    with pytest.raises(Parsed):
        module.main()


def check_leanify(words: list[str]) -> None:
    """The command, its options, the recipe and the keys of ``--set`` are there."""
    if words == ["--help"]:
        return
    name, *words = words
    assert name in COMMANDS
    known = {option for each in typer.main.get_command(cli.app(name)).params for option in each.opts}
    known |= {"-h", "--help"}
    assert {word for word in words if re.match(r"--?[a-z]", word)} <= known
    settings = [words[place + 1] for place, word in enumerate(words) if word == "--set"]
    if name == "train" and words and words[0].islower() and not words[0].startswith("-"):
        recipes.apply_settings(recipes.load(words[0]), settings)
