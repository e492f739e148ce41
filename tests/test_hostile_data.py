"""Ordinary dirty data, right use that used to fail, and streams: one message that names the place, or it works."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import tokenizers
import torch
from PIL import Image
from runs import DIGITS
from test_hostile_runs import TEXT, Watcher

from leanify import machine
from leanify.data import probe_inputs
from leanify.data.common import chosen, shares
from leanify.data.faults import Faults
from leanify.data.fitting import settings_for
from leanify.data.found import Found, recognise
from leanify.data.images import folder as image_folder
from leanify.data.images import tables as image_tables
from leanify.data.images.batches import ImageFolder
from leanify.data.texts import masked, text, tokens
from leanify.data.texts.corpus import encoder
from leanify.data.texts.encoded import Sentences
from leanify.data.texts.labelled_text import Labelled
from leanify.errors import DataError, LeanifyError, RecipeError, SourceError
from leanify.lens.families import rows_of
from leanify.runs import cache
from leanify.runs import recipe as recipes
from leanify.runs.recipe import DataSection
from leanify.runs.run_directory import RunDirectory
from leanify.sources import find
from leanify.training import loop, taught
from leanify.training import start as training
from leanify.training.predicting import _images
from leanify.upstream.libraries import import_transformers

CODE = "import sys; sys.argv[0] = 'leanify'; from leanify.cli import main; main()"
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
        ('{"text": 3.5}', "text is 3.5, not a string"),
        ('{"text": ["a"]}', r'text is \["a"\], not a string'),
        ('{"other": "a"}', "has no text"),
        ("[1]", r"is \[1\], not a table"),
        ('{"text": "a\\ud800"}', "text has a lone surrogate at character 1"),
        ('{"text": ', "is not JSON"),
        ("[" * 100_000, "is not JSON"),
    ],
)
def test_a_dirty_row_is_named_or_skipped_and_counted(tmp_path: Path, row: str, words: str) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(GOOD * 2 + row + "\n" + GOOD * 40)
    with pytest.raises(DataError, match=rf"rows\.jsonl, line 3:? {words}.*; fix it, .*data\.on_error=skip") as found:
        training.train(recipes.parse(TEXT), tmp_path / "run", settings=[f"data.path={file}"])
    assert "\n" not in str(found.value)
    assert not (tmp_path / "run").exists()

    watcher = Watcher()
    settings = [f"data.path={file}", "data.on_error=skip"]
    run = RunDirectory.open(training.train(recipes.parse(TEXT), tmp_path / "run", settings=settings, watcher=watcher))
    assert run.summary()["skipped"] == 1
    assert "rows.jsonl, line 3" in run.skipped()[0]
    assert "1 sample was skipped" in watcher.warnings[-1]


def test_short_rows_and_nulls_of_other_tables_are_named(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    (tmp_path / "a.csv").write_text("id,text\n1,one\n2\n3,three\n")
    pyarrow.parquet.write_table(pyarrow.table({"text": ["one", None, "three"]}), tmp_path / "a.parquet")
    for name, place in (("a.csv", "line 3"), ("a.parquet", "row 2")):
        with pytest.raises(DataError, match=rf"{name}, {place}: .*null"):
            list(text.rows_in(tmp_path / name))
        faults = Faults(skip=True)
        assert list(text.rows_in(tmp_path / name, faults)) == ["one", "three"]
        assert len(faults.names) == 1


ROWS = [(f"a text, number {i}", i % 2) for i in range(4)]
CELLS = "text,label\n" + "".join(f'"{text}",{label}\n' for text, label in ROWS)
BAD_ROWS = {
    "surplus.csv": (b"a comma, unquoted,1\n", r"line 6 has 3 cells for 2 columns"),
    "latin.csv": ('"caf\u00e9",1\n'.encode("latin-1"), "line 6 is not UTF-8 text"),
    "latin.tsv": ('"caf\u00e9"\t1\n'.encode("latin-1"), "line 6 is not UTF-8 text"),
    "short.csv": (b'"a text"\n', r"line 6: label is None, not a label"),
    "latin.jsonl": ('{"text": "caf\u00e9", "label": 1}\n'.encode("latin-1"), "line 6 is not UTF-8 text"),
    "list.jsonl": (b'["text", 1]\n', r"line 6 is \[\"text\", 1\], not a table of columns"),
    "deep.jsonl": (b"[" * 100_000, "line 6 is not JSON"),
    "table.jsonl": (b'{"text": "a", "label": {"a": 1}}\n', r"line 6: label is \{'a': 1\}, not a label"),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_a_row_that_would_be_read_wrongly_is_named_or_skipped(tmp_path: Path, name: str) -> None:
    """Nothing is cut, replaced or moved to another column in silence, whichever reader opens the table."""
    row, words = BAD_ROWS[name]
    good = CELLS.encode().replace(b'",', b'"\t').replace(b"t,l", b"t\tl") if name.endswith(".tsv") else CELLS.encode()
    if name.endswith(".jsonl"):
        good = b"\n" + b"".join(json.dumps({"text": text, "label": label}).encode() + b"\n" for text, label in ROWS)
    file = tmp_path / name
    file.write_bytes(good + row)
    with pytest.raises(DataError, match=words):
        Labelled.read(file, DataSection("x", "text-classification"), Faults())
    faults = Faults(skip=True)
    kept = Labelled.read(file, DataSection("x", "text-classification"), faults).rows
    assert kept == [((text,), str(label)) for text, label in ROWS]
    assert len(faults.names) == 1
    assert recognise(file) is not None


def test_tables_as_spreadsheets_write_them_are_read_or_named(tmp_path: Path) -> None:
    data, whole = DataSection("x", "text-classification"), [((text,), str(label)) for text, label in ROWS]
    file = tmp_path / "a.csv"
    file.write_bytes(CELLS.replace("\n", "\r\n").encode("utf-8-sig"))
    assert Labelled.read(file, data, Faults()).rows == whole
    found = recognise(file)
    assert found is not None
    assert (found.kind, found.classes) == ("sentences", 2)
    file.write_text(CELLS.replace("\n", ",\n"))  # an empty cell at every end
    assert Labelled.read(file, data, Faults()).rows == whole
    for encoding in ("utf-16", "utf-32"):
        file.write_bytes(CELLS.encode(encoding))
        with pytest.raises(DataError, match=r"a\.csv .*UTF-8"):
            Labelled.read(file, data, Faults())
        assert recognise(file) is None
    file.write_text(CELLS.replace("text", "label", 1))
    with pytest.raises(DataError, match="column label"):
        Labelled.read(file, data, Faults())
    file.write_text(f"text,label\na,{'1' * 5000}\nb,2\n")
    assert len(Labelled.read(file, data, Faults()).names) == 2


def test_what_parquet_holds_and_python_does_not_is_one_message(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    days = pyarrow.array([10**7], pyarrow.int32()).cast(pyarrow.date32())  # in the year 29349
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a"], "label": days}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet .*out of range"):
        Labelled.read(tmp_path / "a.parquet", DataSection("x", "text-classification"), Faults())
    assert recognise(tmp_path / "a.parquet") is None


@pytest.mark.parametrize("cell", [3, ["a"], {"a": 1}, "", "a\0b", None])
def test_a_cell_that_is_no_image_is_named(tmp_path: Path, cell: Any) -> None:
    rows = [{"image": "a.png", "label": "x"}, {"image": cell, "label": "y"}]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(DataError, match=r"train\.jsonl, line 2: image"):
        image_tables.readers(DataSection("x", "classification", holdout=0.5), tmp_path)


def test_a_pipe_is_no_data_and_no_recipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    os.mkfifo(tmp_path / "pipe.toml")
    with pytest.raises(DataError, match="is a pipe"):
        training.train(recipes.parse(TEXT), tmp_path / "run", settings=[f"data.path={tmp_path / 'pipe'}"])
    for place in (tmp_path / "pipe.toml", tmp_path):
        with pytest.raises(RecipeError, match="pipe"):
            recipes.load(place)
    (tmp_path / "zero.toml").symlink_to("/dev/zero")
    with pytest.raises(RecipeError, match="pipe"):
        recipes.load(tmp_path / "zero.toml")
    os.mkfifo(tmp_path / "pipe.py")
    with pytest.raises(SourceError, match=r"pipe\.py"):
        find.find(f"{tmp_path}/pipe.py:make")
    with pytest.raises(LeanifyError, match=r"pipe\.toml"):
        rows_of(tmp_path / "pipe.toml")
    with (tmp_path / "large.toml").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(RecipeError, match=r"has 1,099,511,627,776 bytes"):
        recipes.load(tmp_path / "large.toml")


@pytest.mark.parametrize("leads_to", ["pipe", "/dev/zero"])
def test_a_picture_that_is_a_pipe_is_not_opened_to_see_its_size(tmp_path: Path, leads_to: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("a", "b"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        Image.new("L", (12, 12)).save(tmp_path / "pictures" / name / "1.png")
    (tmp_path / "pictures" / "a" / "0.png").symlink_to(tmp_path / leads_to)
    settings = settings_for(Found("images", "2 classes", validated=False, classes=2), str(tmp_path / "pictures"))
    assert "model.override.img_size=12" in settings


@pytest.mark.parametrize("leads_to", ["pipe", "/dev/zero", "/proc/kmsg"])
def test_a_picture_that_is_a_pipe_is_not_opened_to_be_predicted(tmp_path: Path, leads_to: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    Image.new("L", (16, 16)).save(tmp_path / "1.png")
    (tmp_path / "2.png").symlink_to(tmp_path / leads_to)
    recipe = recipes.parse(IMAGES)
    model = timm.create_model("vit_tiny_patch16_224", img_size=16, patch_size=8, embed_dim=12, depth=1, num_heads=1)
    assert recipe.data is not None
    ((names, _, pixels),) = _images(recipe.data, model, [tmp_path / "1.png"])
    assert (names, pixels.shape[0]) == ([str(tmp_path / "1.png")], 1)
    with pytest.raises(DataError, match=r"2\.png"):
        list(_images(recipe.data, model, [tmp_path]))


def test_a_tokenizer_that_runs_away_is_one_message(tmp_path: Path) -> None:
    library = import_transformers()
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "[PAD]": 1, "b": 2}, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex(r"(a+)+$"), "isolated")
    tokenizer = library.PreTrainedTokenizerFast(tokenizer_object=made, unk_token="[UNK]", pad_token="[PAD]")
    tokenizer.save_pretrained(tmp_path)
    words = "a" * 50 + "!"
    with pytest.raises(DataError, match="retry-limit"):
        masked.encoder(tokenizer)(words)
    with pytest.raises(DataError, match="retry-limit"):
        Sentences([((words,), 0)], tokenizer, 8, types=False)
    with pytest.raises(DataError, match=f"{tmp_path.name}.*retry-limit"):
        text.encoder(tmp_path, 256)[0](words, True)


def test_bytes_are_no_text_to_probe_with(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(b"PK\x03\x04\xee\xff" * 100)
    with pytest.raises(DataError, match=r"a\.zip is not UTF-8 text"):
        list(text.batches(tmp_path / "a.zip", encoder(None, 256)[0], 2, 2, 8))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("lr = " + "1" * 5000, "this is not TOML: Exceeds the limit"),
        ("lr = " + "1" * 400, r"optim\.lr is 1+; it must be a number"),
        ("x" + ".x" * 50_000 + " = 1", "a line has more than 200 dots"),
        ("x = " + "[" * 50_000, "nested too deeply"),
    ],
)
def test_a_recipe_without_bound_is_one_message(tmp_path: Path, line: str, words: str) -> None:
    (tmp_path / "r.toml").write_text(DIGITS.replace("lr = 2e-3", line))
    with pytest.raises(RecipeError, match=words) as found:
        recipes.load(tmp_path / "r.toml")
    assert len(str(found.value)) < 300


def test_a_recipe_as_windows_writes_it_is_a_recipe(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_bytes(DIGITS.replace("\n", "\r\n").encode("utf-8-sig"))
    assert recipes.load(tmp_path / "r.toml") == recipes.parse(DIGITS)


def test_a_broken_tokenizer_beside_a_model_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(DataError, match="tokenizer in ") as found:
        text.encoder(tmp_path, 100)
    assert "\n" not in str(found.value)


def test_a_tokenizer_without_words_is_refused(tmp_path: Path) -> None:
    """transformers finds no spiece.model for an ALBERT, and builds a tokenizer that knows special words alone."""
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\nC\nO\n")
    (tmp_path / "tokenizer_config.json").write_text("{}")
    (tmp_path / "config.json").write_text('{"model_type": "albert"}')
    with pytest.raises(DataError, match=r"is empty.* spiece\.model") as found:
        text.encoder(tmp_path, 100)
    assert "\n" not in str(found.value)


# -- what is kept in the cache -----------------------------------------------------------------------------------------


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "gone": lambda file: file.unlink(),
    "empty": lambda file: file.write_bytes(b""),
    "cut": lambda file: file.write_bytes(file.read_bytes()[:-1]),
    "others": lambda file: file.write_bytes(b"[]"),
    "folder": lambda file: (file.unlink(), file.mkdir()),
    "pipe": lambda file: (file.unlink(), os.mkfifo(file)),
    "endless": lambda file: (file.unlink(), file.symlink_to("/dev/zero")),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_cache_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(tokens, "LARGE", 0)
    (tmp_path / "text").write_text("some words")
    ids = tokens.of_text(tokens.Text(tmp_path / "text"), encoder(None, 256)[0], "bytes").ids.tolist()
    arrays, file = cache.cached("drawn", {}, lambda: {"x": np.arange(3)})
    cache.write_value(tmp_path / "price", "key", [1])
    np.save(tmp_path / "answers.npy", np.ones((3, 2), np.float16))
    kept = [path for path in (tmp_path / "leanify" / "tokens").rglob("*") if path.is_file()]
    assert len(kept) == 2
    for path in kept:
        DAMAGE[damage](path)
        assert tokens.of_text(tokens.Text(tmp_path / "text"), encoder(None, 256)[0], "bytes").ids.tolist() == ids
    for path in (file, tmp_path / "price", tmp_path / "answers.npy"):
        DAMAGE[damage](path)
    assert cache.read_value(tmp_path / "price", "key", list) is None
    assert taught._read(tmp_path / "answers.npy", 3) is None
    if damage == "folder":
        with pytest.raises(DataError, match=r"could not be saved in .*XDG_CACHE_HOME"):
            cache.cached("drawn", {}, lambda: {"x": np.arange(3)})
    else:
        assert cache.cached("drawn", {}, lambda: {"x": np.arange(3)})[0].keys() == arrays.keys()


# -- images -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Two classes of twelve images to train, four to validate."""
    for split, number in (("train", 12), ("validation", 4)):
        for kind in ("a", "b"):
            (tmp_path / "data" / split / kind).mkdir(parents=True)
            for name in range(number):
                pixels = np.full((8, 8, 3), 10 * name, dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / "data" / split / kind / f"{name}.png")
    return tmp_path / "data"


def broken(folder: Path, how: str) -> Path:
    """An image that cannot be read."""
    file = folder / "train" / "a" / "99.png"
    if how == "pipe":
        os.mkfifo(file)
    elif how == "link":
        file.symlink_to("nowhere.png")
    elif how == "bomb":
        import struct
        import zlib

        def chunk(kind: bytes, data: bytes) -> bytes:
            return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

        header = struct.pack(">IIBBBBB", 20_000, 20_000, 8, 0, 0, 0, 0)
        file.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b""))
    else:
        file.write_bytes((folder / "train/a/1.png").read_bytes()[:50])
    return file


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("pipe", "is a pipe or a device"),
        ("link", "is a broken link"),
        ("bomb", "exceeds limit"),
        ("cut", "cannot be"),
    ],
)
def test_a_dirty_image_is_named_or_skipped_and_counted(pictures: Path, tmp_path: Path, how: str, words: str) -> None:
    file = broken(pictures, how)
    settings = [f"data.path={pictures}"]
    with pytest.raises(DataError, match=rf"the image {file} .*{words}.*data\.on_error=skip"):
        training.train(recipes.parse(IMAGES), tmp_path / "run", settings=settings)
    settings += ["data.on_error=skip", "data.workers=1", "schedule.epochs=2"]
    run = RunDirectory.open(training.train(recipes.parse(IMAGES), tmp_path / "skipped", settings=settings))
    assert run.summary()["skipped"] == 1  # in two epochs, of one file
    assert str(file) in run.skipped()[0]
    assert run.rows()[-1]["top1"] >= 0

    found = ImageFolder(pictures / "train")
    assert sum(len(batch) for batch in found.batches(100, 8, (3, 8, 8), [0.5] * 3, [0.5] * 3)) == 24
    assert found.skipped == [file]


def test_folders_that_editors_leave_are_no_classes(pictures: Path) -> None:
    train = pictures / "train"
    before = image_folder.classes_in(train)
    (train / ".ipynb_checkpoints").mkdir()
    assert image_folder.classes_in(train) == before
    (train / "empty").mkdir()
    with pytest.raises(DataError, match="class empty "):
        image_folder.classes_in(train)


def test_a_data_set_that_skips_nothing_says_so(tmp_path: Path) -> None:
    value = recipes.with_settings(recipes.load("listops-small"), ["data.on_error=skip"])
    with pytest.raises(RecipeError, match=r"on_error.*lra-listops"):
        training.train(value, tmp_path / "run")


# -- subsets ----------------------------------------------------------------------------------------------------------


class Sorted:
    """A data set that lies class by class, as folders do."""

    def __init__(self, labels: Any) -> None:
        self.labels = labels

    def __len__(self) -> int:
        return len(self.labels)


def test_a_subset_has_the_classes_in_proportion_and_is_the_same_for_every_run() -> None:
    labels = np.repeat([3, 5, 9], [100, 300, 600])
    places = chosen(Sorted(labels), 50, "random")
    assert np.unique(labels[places], return_counts=True)[1].tolist() == [5, 15, 30]
    assert (np.diff(places) > 0).all()
    assert places.tolist() == chosen(Sorted(labels), 50, "random").tolist() != list(range(50))
    assert chosen(Sorted(labels), 50, "first").tolist() == list(range(50))
    assert chosen(Sorted(labels), 5000, "random").tolist() == list(range(1000))
    assert len(chosen(Sorted(np.linspace(0, 1, 77)), 10, "random")) == 10  # numbers are no classes
    for samples in range(1, 40):
        assert shares(np.array([7, 11, 13, 9]), samples).sum() == samples


def test_few_images_of_a_folder_and_few_batches_of_validation_have_all_classes(pictures: Path) -> None:
    trainer = loop.Trainer(
        recipes.with_settings(recipes.parse(IMAGES), [f"data.path={pictures}", "data.samples=6", "run.eval_batches=1"])
    )
    train: Any = trainer.splits.train
    assert np.bincount(train.labels).tolist() == [3, 3]
    places = chosen(trainer.splits.validation, 4, "random")
    assert np.bincount(trainer.splits.validation.labels[places]).tolist() == [2, 2]  # type: ignore[attr-defined]
    assert trainer.evaluate()["top1"] in (0, 25, 50, 75, 100)


# -- right use --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["True", "true", "yes", "on", "1"])
def test_truths_are_taken_as_people_type_them(word: str) -> None:
    value = recipes.with_settings(recipes.parse(DIGITS), [f"run.compile={word}"])
    assert value.run.compile is True
    assert recipes.parse(value.to_toml()) == value
    assert recipes.with_settings(value, ["run.compile=No"]).run.compile is False
    with pytest.raises(RecipeError, match=r'run\.compile is "maybe"; it must be true or false'):
        recipes.with_settings(value, ["run.compile=maybe"])


def test_a_length_in_another_unit_replaces_the_recipes() -> None:
    value = recipes.parse(DIGITS)  # 3 epochs, 1 of them warm-up
    other = recipes.with_settings(value, ["schedule.steps=300"]).schedule
    assert other is not None
    assert (other.epochs, other.steps, other.warmup) == (None, 300, 100)
    kept = recipes.with_settings(value, ["schedule.steps=300", "schedule.warmup=7"]).schedule
    assert kept is not None
    assert kept.warmup == 7
    longer = recipes.with_settings(value, ["schedule.epochs=6"]).schedule
    assert longer is not None
    assert (longer.epochs, longer.warmup) == (6, 1)
    with pytest.raises(RecipeError, match="epochs and steps"):
        recipes.with_settings(value, ["schedule.steps=300", "schedule.epochs=2"])


def test_timms_own_augmentation_runs_with_any_pillow(pictures: Path) -> None:
    settings = [f"data.path={pictures}", "data.rand_augment=rand-m9-mstd0.5-inc1"]
    trainer = loop.Trainer(recipes.with_settings(recipes.parse(IMAGES), settings))
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


def test_a_device_that_is_not_there_is_named() -> None:
    assert machine.device_of("cpu") == torch.device("cpu")
    for name in ("x", "cuda:99", "cpu:x", "meta", ""):
        with pytest.raises(LeanifyError, match="the device") as found:
            machine.device_of(name)
        assert "\n" not in str(found.value)


def test_no_samples_are_refused() -> None:
    model: Any = None
    with pytest.raises(DataError, match="at least 1"):
        probe_inputs.feed(model, samples=0)


# -- streams ----------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("arguments", [["--help"], ["recipes"], ["train", "--list", "--json"]])
def test_a_full_standard_output_is_one_message(arguments: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([sys.executable, "-c", CODE, *arguments], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr == "leanify: standard output could not be written: No space left on device\n"


def test_a_locale_without_greek_gets_question_marks() -> None:
    env = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run([sys.executable, "-c", CODE, "condition", "--help"], capture_output=True, env=env)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"condition number ?" in done.stdout


def test_a_current_directory_that_is_gone_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    line = 'cd "$1" && rmdir "$1" && exec "$2" -c "$3" runs'
    command = ["bash", "-c", line, "x", str(tmp_path / "gone"), sys.executable, CODE]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "leanify: the current directory no longer exists" in done.stderr.splitlines()[-1]
