"""Ordinary dirty data, right use that used to fail, and streams: one message that names the place, or it works."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bounds
import numpy as np
import pytest
import tokenizers as rust
from commands import CODE
from PIL import Image
from runs import DIGITS, Warnings, change_json, make_pictures, refused
from test_hostile_runs import TEXT

from leanify.core import recipe as recipes
from leanify.core.errors import DataError, LeanifyError, RecipeError, SourceError
from leanify.core.files import cache
from leanify.core.recipe import DataSection
from leanify.data.common import apportion, choose_indices
from leanify.data.images import folder as image_folder
from leanify.data.images import tables as image_tables
from leanify.data.probe_inputs import ImageFolder, text_encoder
from leanify.data.texts import masked, tokenizers, tokens
from leanify.data.texts.corpus import encoder
from leanify.data.texts.encoded import Sentences
from leanify.data.texts.own_texts import LabelledTable
from leanify.layouts.faults import Faults
from leanify.layouts.own_data import OwnData
from leanify.layouts.recognition import recognise
from leanify.layouts.rows import read_table
from leanify.lens.families import parse_rows
from leanify.runs.run_directory import RunDirectory
from leanify.sources import find
from leanify.training import loop, teachers
from leanify.training import start as training
from leanify.training.default_recipe import data_recipe
from leanify.upstream.libraries import import_transformers

GOOD = '{"text": "the quick brown fox jumps over the lazy dog"}\n'
IMAGES = """
[model]
source = "vit_tiny_patch16_224"
override = { img_size = 8, patch_size = 4, embed_dim = 16, depth = 1, num_heads = 2, num_classes = 2 }
[data]
name = "pictures"
task = "classification"
workers = 0
[optim]
lr = 1e-3
[schedule]
epochs = 1
batch_size = 4
"""


# -- tables of texts --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ('{"text": null}', "text is null, not a string"),
        ("[1]", r"is \[1\], not a table"),
        ('{"text": "a\\ud800"}', "text has a lone surrogate at character 1"),
        ('{"text": ', "is not JSON"),
    ],
)
def test_dirty_rows_are_named_or_counted(tmp_path: Path, row: str, words: str) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(GOOD * 2 + row + "\n" + GOOD * 40)
    with refused(DataError, rf"rows\.jsonl, line 3:? {words}.*; fix it, .*data\.on_error=skip", tmp_path / "run"):
        training.train(recipes.parse(TEXT), tmp_path / "run", settings=[f"data.path={file}"])

    callback = Warnings()
    settings = [f"data.path={file}", "data.on_error=skip"]
    run = RunDirectory.open(training.train(recipes.parse(TEXT), tmp_path / "run", settings=settings, callback=callback))
    assert run.summary()["skipped"] == 1
    assert "rows.jsonl, line 3" in run.skipped_samples()[0]
    assert "1 sample was skipped" in callback.warnings[-1]


ROWS = [(f"a text, number {i}", i % 2) for i in range(4)]
CELLS = "text,label\n" + "".join(f'"{text}",{label}\n' for text, label in ROWS)
BAD_ROWS = {
    "surplus.csv": (b"a comma, unquoted,1\n", r"line 6 has 3 cells for 2 columns"),
    "latin.tsv": ('"voil\u00e0"\t1\n'.encode("latin-1"), "line 6 is not UTF-8 text"),
    "short.csv": (b'"a text"\n', r"line 6: label is None, not a label"),
    "deep.jsonl": (b"[" * 100_000, "line 6 is not JSON"),
    "table.jsonl": (b'{"text": "a", "label": {"a": 1}}\n', r"line 6: label is \{'a': 1\}, not a label"),
    "null.jsonl": (b'{"text": null, "label": "a"}\n', "line 6: text is null, not a string"),
    "number.jsonl": (b'{"text": 3, "label": "a"}\n', "line 6: text is 3, not a string"),
    "long.jsonl": (b'{"text": "a", "label": "%s"}\n' % (b"a " * 600), "line 6: label is .a a a .*, not a label"),
    "list.jsonl": (b'["x"]\n', r'line 6 is \["x"\], not a table of columns'),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_misread_rows_are_named_or_skipped(tmp_path: Path, name: str) -> None:
    """Nothing is cut, replaced or moved to another column in silence, whichever reader opens the table."""
    row, words = BAD_ROWS[name]
    good = CELLS.encode()
    if name.endswith(".tsv"):
        good = good.replace(b'",', b'"\t').replace(b"t,l", b"t\tl")
    if name.endswith(".jsonl"):
        good = b"\n" + b"".join(json.dumps({"text": text, "label": label}).encode() + b"\n" for text, label in ROWS)
    file = tmp_path / name
    file.write_bytes(good + row)
    with pytest.raises(DataError, match=words):
        LabelledTable.read(file, DataSection("x", "text-classification"), Faults())
    faults = Faults(skip=True)
    kept = LabelledTable.read(file, DataSection("x", "text-classification"), faults).rows
    assert kept == [((text,), str(label)) for text, label in ROWS]
    assert len(faults.names) == 1
    assert recognise(file) is not None


@pytest.mark.parametrize("content", ["5", '"words"', '{"text": "a b"}\n5\nnot JSON'])
def test_first_value_without_columns_is_named(tmp_path: Path, content: str) -> None:
    """A number or a string instead of rows, and the first of several faults."""
    file = tmp_path / "train.json"
    file.write_text(content)
    with pytest.raises(DataError, match=r'line [12] is (5|"words"), not a table of columns'):
        list(read_table(file, Faults()))


def test_spreadsheet_tables_are_read(tmp_path: Path) -> None:
    data, whole = DataSection("x", "text-classification"), [((text,), str(label)) for text, label in ROWS]
    file = tmp_path / "a.csv"
    file.write_bytes(CELLS.replace("\n", "\r\n").encode("utf-8-sig"))
    assert LabelledTable.read(file, data, Faults()).rows == whole
    found = recognise(file)
    assert (found.kind, found.classes) == ("sentences", 2)
    file.write_text(CELLS.replace("\n", ",\n"))  # an empty cell at every end
    assert LabelledTable.read(file, data, Faults()).rows == whole
    file.write_text(CELLS.replace("text", "label", 1))
    with pytest.raises(DataError, match="column label"):
        LabelledTable.read(file, data, Faults())
    file.write_text(f"text,label\na,{'1' * 5000}\nb,2\n")
    with pytest.raises(DataError, match=r"line 2: label is '1+, not a label"):
        LabelledTable.read(file, data, Faults())


def test_stray_quotes_are_kept(tmp_path: Path) -> None:
    """A quote that encloses no cell opens none: GLUE's rows would else end rows later, in silence."""
    texts = ['"Yes," he said', 'no "quotes" here', '"Enclosed"', 'it ends"', "plain"]
    file = tmp_path / "train.tsv"
    lines = [f"{text}\t{number % 2}" for number, text in enumerate(texts)]
    file.write_text("\n".join(["text\tlabel", *lines]), encoding="utf-8-sig")
    assert [list(row.values()) for _, row in read_table(file, Faults())] == [line.split("\t") for line in lines]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_tabs_and_quotes_round_trip(tmp_path: Path, end: str) -> None:
    cells = ["plain", 'a "word"', '"whole"', "a\ttab", "two\nlines", '"stray', ""]
    table = [(first, second) for first in cells for second in cells if first or second]
    for rows in (table, table[:1], [row for row in table if '"stray' not in row]):
        with (tmp_path / "train.tsv").open("w", newline="") as file:
            csv.writer(file, delimiter="\t", lineterminator=end).writerows([("text", "more"), *rows])
        assert [tuple(row.values()) for _, row in read_table(tmp_path / "train.tsv", Faults())] == rows


@pytest.mark.parametrize("cell", [3, {"a": 1}, "a\0b"])
def test_non_image_cell_is_named(tmp_path: Path, cell: Any) -> None:
    rows = [{"image": "a.png", "label": "x"}, {"image": cell, "label": "y"}]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(DataError, match=r"train\.jsonl, line 2: image"):
        image_tables.readers(DataSection("x", "classification", holdout=0.5), tmp_path)


def test_pipes_are_refused(tmp_path: Path) -> None:
    for name in ("pipe", "pipe.toml", "pipe.py"):
        os.mkfifo(tmp_path / name)
    with pytest.raises(DataError, match="is a pipe"):
        training.train(recipes.parse(TEXT), tmp_path / "run", settings=[f"data.path={tmp_path / 'pipe'}"])
    (tmp_path / "zero.toml").symlink_to("/dev/zero")
    for place in (tmp_path / "pipe.toml", tmp_path / "zero.toml", tmp_path):
        with pytest.raises(RecipeError, match="pipe"):
            recipes.load(place)
    with pytest.raises(SourceError, match=r"pipe\.py"):
        find.find(f"{tmp_path}/pipe.py:make")
    with pytest.raises(LeanifyError, match=r"pipe\.toml"):
        parse_rows(tmp_path / "pipe.toml")
    with (tmp_path / "large.toml").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(RecipeError, match=r"has 1,099,511,627,776 bytes"):
        recipes.load(tmp_path / "large.toml")


def test_pipe_pictures_are_not_opened(tmp_path: Path) -> None:
    """A picture that is a device is not opened to see its size."""
    for name in ("a", "b"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        Image.new("L", (12, 12)).save(tmp_path / "pictures" / name / "1.png")
    (tmp_path / "pictures" / "a" / "0.png").symlink_to("/dev/zero")
    data = OwnData("images", "2 classes", is_validated=False, classes=2)
    assert data_recipe(data, str(tmp_path / "pictures")).model.override["img_size"] == 12


def test_missing_unknown_token_is_one_message(tmp_path: Path) -> None:
    """transformers would look for it in place of itself, without end."""
    made = rust.Tokenizer(rust.models.WordLevel({"a": 0, "[PAD]": 1, "[UNK]": 2}, unk_token="[UNK]"))
    wrapped = import_transformers().PreTrainedTokenizerFast(tokenizer_object=made, pad_token="[PAD]")
    wrapped.save_pretrained(tmp_path)
    change_json(tmp_path / "tokenizer_config.json", unk_token="")
    with pytest.raises(DataError, match="has no token '', its own unk_token"):
        tokenizers.load(tmp_path)


def test_runaway_tokenizer_is_one_message(tmp_path: Path) -> None:
    made = rust.Tokenizer(rust.models.WordLevel({"[UNK]": 0, "[PAD]": 1, "b": 2}, unk_token="[UNK]"))
    made.pre_tokenizer = rust.pre_tokenizers.Split(rust.Regex(r"(a+)+$"), "isolated")
    names = {"unk_token": "[UNK]", "pad_token": "[PAD]"}
    tokenizer = import_transformers().PreTrainedTokenizerFast(tokenizer_object=made, **names)
    tokenizer.save_pretrained(tmp_path)
    words = "a" * 50 + "!"
    with pytest.raises(DataError, match="retry-limit"):
        masked.encoder(tokenizer)(words)
    with pytest.raises(DataError, match="retry-limit"):
        Sentences([((words,), 0)], tokenizer, 8, types=False)
    with pytest.raises(DataError, match=f"{tmp_path.name}.*retry-limit"):
        text_encoder(tmp_path, 256)[0]([words], True)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("lr = " + "1" * 5000, "this is not TOML: Exceeds the limit"),
        ("lr = " + "1" * 400, r"optim\.lr is 1+; it must be a finite number"),
        ("x = " + "[" * 50_000, "nested too deeply"),
    ],
)
def test_unbounded_recipe_is_one_message(tmp_path: Path, line: str, words: str) -> None:
    (tmp_path / "r.toml").write_text(DIGITS.replace("lr = 2e-3", line))
    with pytest.raises(RecipeError, match=words) as found:
        recipes.load(tmp_path / "r.toml")
    assert len(str(found.value)) < 300


def test_windows_recipe_is_read(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_bytes(DIGITS.replace("\n", "\r\n").encode("utf-8-sig"))
    assert recipes.load(tmp_path / "r.toml") == recipes.parse(DIGITS)


def test_broken_tokenizer_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(DataError, match=r"the tokenizer in .* cannot be read: Expecting") as found:
        text_encoder(tmp_path, 100)
    assert "\n" not in str(found.value)


def test_empty_tokenizer_is_refused(tmp_path: Path) -> None:
    """transformers finds no spiece.model for an ALBERT, and builds a tokenizer that knows special words alone."""
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\nC\nO\n")
    (tmp_path / "tokenizer_config.json").write_text("{}")
    (tmp_path / "config.json").write_text('{"model_type": "albert"}')
    with refused(DataError, r"is empty.* spiece\.model"):
        text_encoder(tmp_path, 100)


# -- what is kept in the cache -----------------------------------------------------------------------------------------


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "gone": lambda file: file.unlink(),
    "cut": lambda file: file.write_bytes(file.read_bytes()[:-1]),
    "folder": lambda file: (file.unlink(), file.mkdir()),
    "endless": lambda file: (file.unlink(), file.symlink_to("/dev/zero")),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_cache_is_rebuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(tokens, "LARGE", 0)
    (tmp_path / "text").write_text("some words")
    ids = tokens.encode_cached(tokens.Text(tmp_path / "text"), encoder(None, 256)[0], "bytes").ids.tolist()
    arrays, file = cache.load_or_make("drawn", {}, lambda: {"x": np.arange(3)})
    cache.write_value(tmp_path / "price", "key", [1])
    np.save(tmp_path / "answers.npy", np.ones((3, 2), np.float16))
    kept = [path for path in (tmp_path / "leanify" / "tokens").rglob("*") if path.is_file()]
    assert len(kept) == 2
    for path in kept:
        DAMAGE[damage](path)
        assert tokens.encode_cached(tokens.Text(tmp_path / "text"), encoder(None, 256)[0], "bytes").ids.tolist() == ids
    for path in (file, tmp_path / "price", tmp_path / "answers.npy"):
        DAMAGE[damage](path)
    assert cache.read_value(tmp_path / "price", "key", list) is None
    assert teachers.read_embeddings(tmp_path / "answers.npy", 3) is None
    if damage == "folder":
        with pytest.raises(DataError, match=r"could not be saved in .*XDG_CACHE_HOME"):
            cache.load_or_make("drawn", {}, lambda: {"x": np.arange(3)})
    else:
        assert cache.load_or_make("drawn", {}, lambda: {"x": np.arange(3)})[0].keys() == arrays.keys()


# -- images -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Two classes of twelve images to train, four to validate."""
    return make_pictures(tmp_path / "data", train=12, validation=4)


BROKEN: dict[str, tuple[Callable[[Path], Any], str]] = {
    "pipe": (os.mkfifo, "is a pipe or a device"),
    "link": (lambda file: file.symlink_to("nowhere.png"), "is a broken link"),
    "bomb": (lambda file: file.write_bytes(bounds.png_file(20_000, 20_000, 8, 0, b"")), "exceeds limit"),
    "cut": (lambda file: file.write_bytes(file.with_name("1.png").read_bytes()[:50]), "cannot be"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_dirty_images_are_named_or_counted(pictures: Path, tmp_path: Path, how: str) -> None:
    write, words = BROKEN[how]
    file = pictures / "train" / "a" / "99.png"
    write(file)
    settings = [f"data.path={pictures}"]
    with pytest.raises(DataError, match=rf"the image {file} .*{words}.*data\.on_error=skip"):
        training.train(recipes.parse(IMAGES), tmp_path / "run", settings=settings)
    settings += ["data.on_error=skip", "data.workers=1", "schedule.epochs=2"]
    run = RunDirectory.open(training.train(recipes.parse(IMAGES), tmp_path / "skipped", settings=settings))
    assert run.summary()["skipped"] == 1  # in two epochs, of one file
    assert str(file) in run.skipped_samples()[0]
    assert run.rows()[-1]["top1"] >= 0

    found = ImageFolder(pictures / "train")
    assert sum(len(batch) for batch in found.batches(100, 8, (3, 8, 8), [0.5] * 3, [0.5] * 3)) == 24
    assert found.skipped == [file]


# -- subsets ----------------------------------------------------------------------------------------------------------


@dataclass
class Sorted:
    """A data set that lies class by class, as folders do."""

    labels: Any

    def __len__(self) -> int:
        return len(self.labels)


def test_subset_keeps_class_proportions() -> None:
    """It is the same for every run."""
    labels = np.repeat([3, 5, 9], [100, 300, 600])
    data = Sorted(labels)
    places = choose_indices(data, 50, "random")
    assert np.unique(labels[places], return_counts=True)[1].tolist() == [5, 15, 30]
    assert (np.diff(places) > 0).all()
    assert places.tolist() == choose_indices(data, 50, "random").tolist() != list(range(50))
    assert choose_indices(data, 50, "first").tolist() == list(range(50))
    assert choose_indices(data, 5000, "random").tolist() == list(range(1000))
    assert len(choose_indices(Sorted(np.linspace(0, 1, 77)), 10, "random")) == 10  # numbers are no classes
    for samples in range(1, 40):
        assert apportion(np.array([7, 11, 13, 9]), samples).sum() == samples


def test_small_samples_have_all_classes(pictures: Path) -> None:
    """Few images of a folder and few batches of validation have all classes."""
    settings = [f"data.path={pictures}", "data.samples=6", "run.eval_batches=1"]
    trainer = loop.Trainer(recipes.apply_settings(recipes.parse(IMAGES), settings))
    train: Any = trainer.splits.train
    assert np.bincount(train.labels).tolist() == [3, 3]
    places = choose_indices(trainer.splits.validation, 4, "random")
    assert np.bincount(trainer.splits.validation.labels[places]).tolist() == [2, 2]  # type: ignore[attr-defined]
    assert trainer.evaluate()["top1"] in (0, 25, 50, 75, 100)


# -- right use --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["True", "yes"])
def test_booleans_parse_as_typed(word: str) -> None:
    value = recipes.apply_settings(recipes.parse(DIGITS), [f"run.compile={word}"])
    assert value.run.compile is True
    assert recipes.parse(value.to_toml()) == value
    assert recipes.apply_settings(value, ["run.compile=No"]).run.compile is False
    with pytest.raises(RecipeError, match=r'run\.compile is "maybe"; it must be true or false'):
        recipes.apply_settings(value, ["run.compile=maybe"])


def test_duration_units_replace_each_other() -> None:
    value = recipes.parse(DIGITS)  # 3 epochs, 1 of them warm-up
    other = recipes.apply_settings(value, ["schedule.steps=300"]).schedule
    assert (other.epochs, other.steps, other.warmup) == (None, 300, 100)
    kept = recipes.apply_settings(value, ["schedule.steps=300", "schedule.warmup=7"]).schedule
    assert kept.warmup == 7
    longer = recipes.apply_settings(value, ["schedule.epochs=6"]).schedule
    assert (longer.epochs, longer.warmup) == (6, 1)
    with pytest.raises(RecipeError, match="epochs and steps"):
        recipes.apply_settings(value, ["schedule.steps=300", "schedule.epochs=2"])


def test_timm_augmentation_runs_with_pillow(pictures: Path) -> None:
    settings = [f"data.path={pictures}", "data.rand_augment=rand-m9-mstd0.5-inc1"]
    trainer = loop.Trainer(recipes.apply_settings(recipes.parse(IMAGES), settings))
    image = Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3))
    assert np.asarray(image_folder.posterize(image, 0)).max() == 0
    assert np.asarray(image_folder.posterize(image, 1)).tolist() == (np.asarray(image) & 0x80).tolist()
    train: Any = trainer.splits.train
    [augment] = [part for part in train.transform.transforms if hasattr(part, "ops")]
    hits = [operation for operation in augment.ops if operation.name.startswith("Posterize")]
    assert hits
    for operation in hits:
        operation.prob, operation.magnitude, operation.magnitude_std = 1.0, 10, 0
        operation(image)


# -- streams ----------------------------------------------------------------------------------------------------------


def test_missing_directory_is_one_message(tmp_path: Path) -> None:
    """The current directory was removed."""
    (tmp_path / "gone").mkdir()
    line = 'cd "$1" && rmdir "$1" && exec "$2" -c "$3" runs'
    command = ["bash", "-c", line, "x", str(tmp_path / "gone"), sys.executable, CODE]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "leanify: the current directory no longer exists" in done.stderr.splitlines()[-1]
