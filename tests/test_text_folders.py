"""Texts in folders of classes or splits, or saved by datasets, hold the samples of the tables that they could be."""

from __future__ import annotations

from pathlib import Path

import pytest

import leanify
from leanify.core.recipe import DataSection
from leanify.data.texts import corpus, own_texts, sentences
from leanify.layouts.faults import Faults
from leanify.layouts.recognition import recognise
from leanify.layouts.rows import find_table
from leanify.training import start
from leanify.training.predicting import _rows

CLASSES = ("alt.atheism", "sci.space", "sci.med")
TEXTS = [(f"a text of {name}\n\nwith {i}, more words", name) for i in range(8) for name in CLASSES]


def write_folders(place: Path, texts: list[tuple[str, str]], suffix: str) -> Path:
    for number, (text, name) in enumerate(texts):
        (place / name).mkdir(parents=True, exist_ok=True)
        (place / name / f"{1000 + number}{suffix}").write_text(text)
    return place


def section(place: Path, *settings: str) -> DataSection:
    data = start.resolve(str(place), settings).data
    assert isinstance(data, DataSection)
    return data


@pytest.mark.parametrize(("train", "validation"), [("train", "test"), ("20news-bydate-train", "20news-bydate-test")])
@pytest.mark.parametrize("suffix", [".txt", ""])
def test_folders_of_classes_are_a_table(tmp_path: Path, train: str, validation: str, suffix: str) -> None:
    write_folders(tmp_path / train, TEXTS, suffix)
    write_folders(tmp_path / train / "unsup", [("a text", "")] * 3, suffix)
    write_folders(tmp_path / validation, TEXTS[:6], suffix)
    found = recognise(tmp_path)
    assert (found.kind, found.classes, found.samples, found.is_validated) == ("sentences", 3, len(TEXTS), True)
    assert "unsup has no labels and is left out" in found.description
    data = section(tmp_path)
    rows = own_texts.read_split_table(data, "train", Faults()).rows
    assert sorted(rows) == sorted(((text,), name) for text, name in TEXTS)
    assert {name for _, name in rows[:3]} == set(CLASSES), "the first rows have all classes"
    assert len(own_texts.read_split_table(data, "validation", Faults()).rows) == 6


def test_labels_are_left_out_where_none_are_learnt(tmp_path: Path) -> None:
    """A language model and a sentence encoder learn the same texts without their classes."""
    place = write_folders(tmp_path / "news", TEXTS, ".txt")
    data = section(place)
    file = sentences.find_file(place, "train")
    assert file is not None
    assert sorted(sentences.read_sentences(file, data, Faults())) == sorted(text for text, _ in TEXTS)
    found = corpus.find_texts(DataSection("text", "causal-lm", path=str(place), length=8), Faults())[0]
    assert all(text in "".join(map(str, found)) for text, _ in TEXTS)
    assert sorted(texts for _, (texts,) in _rows(str(place), data)) == sorted(text for text, _ in TEXTS)


def test_folders_of_splits_are_their_texts(tmp_path: Path) -> None:
    parts = {
        split: [f"{split} {number} " + "words of a text " * 100 for number in range(3)] for split in ("train", "val")
    }
    for split, texts in parts.items():
        (tmp_path / split).mkdir()
        for number, text in enumerate(texts):
            (tmp_path / split / f"{number}.txt").write_text(text)
    assert (recognise(tmp_path).kind, recognise(tmp_path).is_validated) == ("text", True)
    texts = corpus.find_texts(section(tmp_path), Faults())[0]
    assert [text if isinstance(text, str) else text.read() for text in texts] == [
        corpus.END.join(parts[split]) for split in ("train", "val")
    ]


def test_unreadable_text_is_named(tmp_path: Path) -> None:
    place = write_folders(tmp_path, TEXTS, ".txt")
    bad = place / CLASSES[0] / "1000.txt"
    bad.write_bytes(bytes(range(256)) * 20)
    with pytest.raises(leanify.DataError, match=f"{bad}.*data.on_error=skip"):
        own_texts.read_split_table(section(place), "train", Faults())
    assert len(own_texts.read_split_table(section(place), "train", Faults(skip=True)).rows) == len(TEXTS) - 1
    bad.write_bytes("a café was here".encode("cp1252"))
    with pytest.warns(UserWarning, match="1 texts in .* are not UTF-8; they are read as windows-1252"):
        rows = own_texts.read_split_table(section(place), "train", Faults()).rows
    assert (("a café was here",), CLASSES[0]) in rows


@pytest.mark.parametrize("is_split", [True, False])
def test_saved_texts_are_a_table(tmp_path: Path, is_split: bool) -> None:
    """Classes keep their names; a language model takes the texts alone."""
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    texts, names = zip(*TEXTS, strict=True)
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=[*CLASSES])})
    rows = datasets.Dataset.from_dict(
        {"text": texts, "label": [CLASSES.index(name) for name in names]}, features=features
    )
    rows = datasets.DatasetDict({"train": rows, "test": rows.select(range(6))}) if is_split else rows
    rows.save_to_disk(tmp_path / "kept")
    found = recognise(tmp_path / "kept")
    assert (found.kind, found.classes, found.samples, found.is_validated) == ("sentences", 3, len(TEXTS), is_split)
    table = own_texts.read_split_table(section(tmp_path / "kept"), "train", Faults())
    assert table.rows == [((text,), name) for text, name in TEXTS]
    assert table.names == [*CLASSES]
    data = DataSection("text", "causal-lm", path=str(tmp_path / "kept"), length=8)
    first = corpus.find_texts(data, Faults())[0][0]
    assert texts[0] in (first if isinstance(first, str) else first.read())


def test_saved_texts_unpack_within_bound(tmp_path: Path) -> None:
    """A file of some kilobytes that is compressed, and unpacks to half a gigabyte."""
    datasets = pytest.importorskip("datasets")
    import pyarrow

    datasets.disable_progress_bars()
    datasets.Dataset.from_dict({"text": ["a text"] * 8, "label": [0, 1] * 4}).save_to_disk(tmp_path)
    cells = pyarrow.array([" " * 2**20] * 64)
    labels = pyarrow.array([0, 1] * 32)
    schema = pyarrow.schema([("text", pyarrow.string()), ("label", pyarrow.int64())])
    options = pyarrow.ipc.IpcWriteOptions(compression="zstd")
    with pyarrow.ipc.new_stream(next(tmp_path.glob("*.arrow")), schema, options=options) as file:
        for _ in range(8):
            file.write_batch(pyarrow.record_batch([cells, labels], schema=schema))
    assert "write it without compression" in str(recognise(tmp_path).fault)


@pytest.mark.parametrize("other", ["0.png", "a.md"])
def test_other_folders_are_no_classes(tmp_path: Path, other: str) -> None:
    """Captions beside pictures, a text alone: neither makes a class."""
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / other).touch()
        (tmp_path / name / "0.txt").write_text("a caption of it")
    assert find_table(tmp_path, "train") is None
