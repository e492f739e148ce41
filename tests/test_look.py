"""The look at own data before a run: what is suspicious is said with its file, what is senseless is refused."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from commands import run as command
from PIL import Image
from runs import make_documents, write_shard

from leanify.core.errors import DataError
from leanify.data.data_checks import Look, inspect_splits, inspect_tokens
from leanify.data.samples import Splits
from leanify.data.texts.encoded import Sentences
from leanify.data.texts.masked import Masked
from leanify.shrinking.resolve import resolve as resolve_original
from leanify.training import start
from leanify.training.preparation import build_data, build_model
from leanify.training.start import resolve
from leanify.upstream.libraries import import_transformers

pytestmark = pytest.mark.filterwarnings("ignore:(hf/)?bert has no weights")

RNG = np.random.default_rng(5)
SMALL = ["data.workers=0", "model.override.depth=1"]
THIN = ["model.override.num_hidden_layers=1", "model.override.hidden_size=16", "model.override.intermediate_size=16"]


def pictures(folder: Path, counts: dict[str, int], level: int | None = None) -> Path:
    """Random pictures of 8 × 8 pixels, or of one grey level."""
    for name, count in counts.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            values = RNG.integers(0, 255, (8, 8), np.uint8) if level is None else np.full((8, 8), level, np.uint8)
            Image.fromarray(values).save(folder / name / f"{number}.png")
    return folder


def look_at(name: str, *settings: str) -> Look:
    recipe = resolve(name, settings)
    return inspect_splits(build_data(recipe, build_model(recipe)))


def look(folder: Path, *settings: str) -> Look:
    name, small = ("own-images", SMALL) if any(folder.rglob("*.png")) else ("own-sentences", THIN)
    return look_at(name, f"data.path={folder}", *small, *settings)


def test_sound_data_raises_no_warning(tmp_path: Path) -> None:
    pictures(tmp_path / "train", {"cat": 6, "dog": 4})
    pictures(tmp_path / "val", {"cat": 2, "dog": 2})
    seen = look(tmp_path)
    assert seen.line == "10 training, 4 validation samples; 2 classes of 4 (dog) to 6 (cat)"
    assert not seen.warnings


def test_poor_pictures_are_named(tmp_path: Path) -> None:
    pictures(tmp_path / "train", {"cat": 6, "dog": 1, "fox": 3})
    pictures(tmp_path / "val", {"cat": 2, "dog": 2})
    pictures(tmp_path / "train", {"fox": 2}, level=9)
    shutil.copy(tmp_path / "train" / "cat" / "3.png", tmp_path / "val" / "cat" / "copy.png")
    warnings = look(tmp_path).warnings
    assert "1 class has one training sample: dog" in warnings
    assert "1 class has no validation sample: fox" in warnings
    assert f"2 of 10 pictures looked at are of one flat colour, as {tmp_path}/train/fox/0.png" in warnings
    copy, original = tmp_path / "val" / "cat" / "copy.png", tmp_path / "train" / "cat" / "3.png"
    assert f"1 of 5 validation samples are among the training samples, too: {copy} is {original}" in warnings


@pytest.mark.parametrize("level", [0, 255])
def test_uniform_pictures_are_refused(tmp_path: Path, level: int) -> None:
    pictures(tmp_path, {"cat": 5, "dog": 5}, level)
    with pytest.raises(DataError, match=r"one flat colour, as .* all of the same: there is nothing to learn"):
        look(tmp_path)


def test_flat_colours_may_be_classes(tmp_path: Path) -> None:
    pictures(tmp_path, {"dark": 5}, 20)
    pictures(tmp_path, {"light": 5}, 220)
    [warning] = [warning for warning in look(tmp_path).warnings if "flat colour" in warning]
    assert "8 of 8 pictures" in warning


def table(folder: Path, rows: list[tuple[str, str]], name: str = "train") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.csv").write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in rows))
    return folder


def test_poor_texts_are_named(tmp_path: Path) -> None:
    rows = [(f"a sentence of number {i}", ("neg", "pos")[i % 2]) for i in range(40)]
    table(tmp_path, [*rows, ("...", "rare"), ('" "', "neg")])
    table(tmp_path, [*rows[:3], ("quite another text", "pos")], "validation")
    warnings = look(tmp_path).warnings
    assert "1 class has one training sample: rare" in warnings
    assert "1 class has no validation sample: rare" in warnings
    assert "1 training text has no word: sample 42" in warnings
    assert "3 of 4 validation samples are among the training samples, too: sample 1 is sample 1" in warnings


@pytest.mark.parametrize("task", ["text-classification", "masked-lm"])
def test_unknown_words_are_said(task: str, tmp_path: Path) -> None:
    """Of the tokenizer's own texts nothing; of half another alphabet the share; of another alone a refusal."""
    (tmp_path / "vocab.txt").write_text(
        "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "one", "two", "three"])
    )
    tokenizer = import_transformers().BertTokenizer(str(tmp_path / "vocab.txt"))
    for text, share in ((["one", "two"], 0), (["one", "δύο"], 0.5), (["ένα", "δύο"], 1)):
        ids = tokenizer([" ".join(text * 8)] * 4)["input_ids"]
        rows = [((" ".join(text * 8),), 0)] * 4
        samples = Sentences(rows, tokenizer, 32, False)
        if task == "masked-lm":
            samples = Masked(np.array(ids).flatten(), 8, 0.15, tokenizer, "", False)
        splits = Splits(samples, samples, "", tokenizer=tokenizer)
        if share == 1:
            with pytest.raises(DataError, match="100% of the tokens of the training texts are unknown"):
                inspect_tokens(splits)
        else:
            expected = [f"{share:.0%} of the tokens of the training texts are unknown"] * (share > 0)
            assert [warning.partition(" to the")[0] for warning in inspect_tokens(splits)] == expected
        # as in GPT-2, which ends texts with its unknown token and knows every word
        knowing = import_transformers().BertTokenizer(str(tmp_path / "vocab.txt"), eos_token="[UNK]")
        assert not any("unknown" in warning for warning in inspect_tokens(replace(splits, tokenizer=knowing)))


def test_shrink_says_unknown_words(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    make_documents(tmp_path, sentences="reviews", checkpoint="old")
    [file] = (tmp_path / "reviews").glob("train.*")
    words = file.read_text().splitlines()[1].split()
    (tmp_path / "half.txt").write_text("\n".join(" ".join(words + ["ξέρω"] * len(words)) for _ in range(40)))
    resolve_original(tmp_path / "old", tmp_path / "half.txt", [])
    assert "of the tokens of the training texts are unknown to the tokenizer" in capsys.readouterr().err


def test_constant_label_is_refused(tmp_path: Path) -> None:
    table(tmp_path, [(f"a sentence of number {i}", "1.5") for i in range(40)])
    with pytest.raises(DataError, match=r"all 32 training samples have the label 1\.5"):
        look(tmp_path, "data.task=text-regression")


def saved_pictures(contents: list[bytes]) -> datasets.Dataset:
    """Under names that say nothing: the types tell which column is which."""
    datasets.disable_progress_bars()
    cells = {"photo": [{"bytes": content, "path": None} for content in contents], "kind": [0, 1] * (len(contents) // 2)}
    features = datasets.Features({"photo": datasets.Image(), "kind": datasets.ClassLabel(names=["x", "y"])})
    return datasets.Dataset.from_dict(cells, features=features)


@pytest.mark.parametrize("kind", ["csv", "parquet", "tar", "saved"])
def test_equal_pictures_of_tables_are_named(tmp_path: Path, kind: str) -> None:
    """As in folders: whatever holds the pictures, their bytes are compared."""
    files = sorted(pictures(tmp_path / "all", {"a": 10}).rglob("*.png"))
    data = [file.read_bytes() for file in files]
    place = tmp_path / "data"
    place.mkdir()
    saved: dict[str, Any] = {}
    for split, chosen in (("train", range(8)), ("validation", (7, 8, 9, 0))):
        if kind == "csv":
            rows = [f"{files[i]},{'xy'[number % 2]}" for number, i in enumerate(chosen)]
            (place / f"{split}.csv").write_text("\n".join(["image,label", *rows]))
        elif kind == "parquet":
            cells = [{"image": {"bytes": data[i], "path": None}, "label": n % 2} for n, i in enumerate(chosen)]
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(cells), place / f"{split}.parquet")
        elif kind == "saved":
            saved[split] = saved_pictures([data[i] for i in chosen])
        else:
            labels = [b"x", b"y"] * (len(chosen) // 2)
            write_shard(place / f"{split}-000000.tar", zip([data[i] for i in chosen], labels, strict=True))
    if kind == "saved":
        datasets.DatasetDict(saved).save_to_disk(place)
    [warning] = look_at("own-images", f"data.path={place}", *SMALL).warnings
    assert warning.startswith("2 of 4 validation samples are among the training samples, too")


class Sized:
    """Pictures of which only the sizes may be asked, as if reading one took long."""

    def __init__(self, *sizes: int) -> None:
        self.files, self.sizes = self, sizes

    def __len__(self) -> int:
        return len(self.sizes)

    def size(self, index: int) -> int:
        return self.sizes[index]

    def filename(self, index: int, absolute: bool) -> str:
        raise AssertionError(f"picture {index} is read")

    __getitem__ = filename


def test_pictures_of_other_sizes_are_not_read() -> None:
    """Not even for their names: in a data set on disk these take reading the row."""
    splits = Splits(Sized(10, 11, -1), Sized(12, -1), "")
    assert inspect_splits(splits).warnings == []


@pytest.mark.parametrize("start", [0, 333])
def test_equal_texts_are_named(tmp_path: Path, start: int) -> None:
    """A validation text that is cut from the training text, anywhere."""
    words = [f"word{number}" for number in RNG.integers(0, 10_000, 4000)]
    text, other = " ".join(words[:3000]), " ".join(words[3000:])
    (tmp_path / "train.txt").write_text(text)
    for validation, expected in ((text[start : start + 3000], True), (other, False)):
        (tmp_path / "validation.txt").write_text(validation)
        warnings = look_at("own-text", f"data.path={tmp_path}").warnings
        assert any("of the validation text are in the training text, too" in each for each in warnings) is expected


def test_dry_run_warns_too(tmp_path: Path) -> None:
    folder = pictures(tmp_path / "pictures", {"cat": 5, "dog": 5, "owl": 1})
    words = [word for setting in (f"data.path={folder}", *SMALL) for word in ("--set", setting)]
    done = command("train", "own-images", *words, "--dry-run")
    assert done.returncode == 0
    assert "leanify: 1 class has" in done.stderr


def test_look_precedes_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = pictures(tmp_path / "pictures", {"cat": 5, "dog": 5})
    settings = [f"data.path={folder}", *SMALL, "schedule.epochs=1"]
    start.train("own-images", tmp_path / "run", settings=settings)
    assert "data: 8 training, 2 validation samples; 2 classes of 3 (cat) to 5 (dog)" in capsys.readouterr().err
    pictures(folder, {"cat": 5, "dog": 5}, 7)
    with pytest.raises(DataError, match="nothing to learn"):
        start.train("own-images", tmp_path / "second", settings=settings)
    assert not (tmp_path / "second").exists()


def test_names_of_one_class_are_named(tmp_path: Path) -> None:
    for names, said in ((("pos", "Pos ", "neg", "neutral"), "Pos, pos"), (("1", "1.0", "2", "3"), "1, 1.0")):
        seen = look(table(tmp_path / names[0], [(f"sentence number {i}", names[i % 4]) for i in range(60)]))
        assert f"classes that may be one: {said}" in seen.warnings
