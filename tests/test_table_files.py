"""Tables as people have them: encodings, delimiters, stray quotes, fastText's lines, labels that are hidden."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from leanify.core.errors import DataError, SourceError
from leanify.core.files.reading import read_lines
from leanify.core.recipe import DataSection
from leanify.data.texts import own_texts, tokens
from leanify.layouts.faults import Faults
from leanify.layouts.recognition import check_is_no_data, find_own_data, recognise
from leanify.layouts.rows import Row, find_table, read_table
from leanify.training.start import resolve

ROWS = "text,label\n" + "".join(f"sentence number {i},{('neg', 'pos')[i % 2]}\n" for i in range(60))


def read_all(file: Path) -> tuple[list[Row], list[str]]:
    faults = Faults(skip=True)
    return [row for _, row in read_table(file, faults)], faults.names


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_encodings_and_delimiters(tmp_path: Path, encoding: str, mark: str) -> None:
    file = tmp_path / "Train.CSV"
    file.write_text(ROWS.replace(",", mark), encoding)
    rows, faults = read_all(file)
    assert (len(rows), rows[1], faults) == (60, {"text": "sentence number 1", "label": "pos"}, [])
    data = recognise(tmp_path)
    assert (data.kind, data.classes, data.samples) == ("sentences", 2, 60)


@pytest.mark.parametrize("content", [ROWS.encode("utf-32-le"), b"abcd" * 20 + b"x\0abcd"])
def test_zero_bytes_are_refused(tmp_path: Path, content: bytes) -> None:
    """UTF-32 without a mark; and ASCII with one zero byte, which could be read as Chinese letters."""
    for name in ("train.csv", "notes.txt"):
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match="zero bytes"):
        read_all(tmp_path / "train.csv")
    assert recognise(tmp_path / "notes.txt").kind is None
    assert "zero bytes" in recognise(tmp_path / "notes.txt").fault


ENCODINGS = {
    "cp1252": "It\u2019s a \u201ccaf\u00e9\u201d \u2014 sch\u00f6n",
    "utf-16-le": "\u043f\u0440\u0438\u0432\u0435\u0442 a",
    "utf-16-be": "caf\u00e9 a",
}


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_unambiguous_encodings_are_read(tmp_path: Path, encoding: str) -> None:
    """Texts of one possible encoding are read as if they were UTF-8, by tables and texts alike, and it is said."""
    words = ENCODINGS[encoding]
    for name, content in (("a.csv", f"text,label\n{words},0\nb,1\n"), ("a.txt", f"{words}\nb\n" * 99)):
        (tmp_path / name).write_bytes(content.encode(encoding))
    with pytest.warns(UserWarning, match=rf"a\.csv is not UTF-8; it is read as .*{encoding[-4:]}"):
        rows, faults = read_all(tmp_path / "a.csv")
    assert (rows, faults) == ([{"text": words, "label": "0"}, {"text": "b", "label": "1"}], [])
    with pytest.warns(UserWarning, match=r"a\.txt is not UTF-8"):
        assert tokens.Text(tmp_path / "a.txt").read() == f"{words}\nb\n" * 99
    with pytest.warns(UserWarning, match=r"a\.txt is not UTF-8"):
        assert list(read_lines(tmp_path / "a.txt")) == [f"{words}\n", "b\n"] * 99


AMBIGUOUS = {
    "cp1252": "tr\u00e8s",  # what Windows in Prague reads as trčs
    "cp1250": "za\u017c\u00f3\u0142\u0107",
    "cp1251": "\u043f\u0440\u0438\u0432\u0435\u0442",
    "cp1254": "\u0131\u015f\u0131k",
    "koi8-r": "\u0434\u0430",
    "shift-jis": "\u3053\u3093",
    "gbk": "\u4f60\u597d",
    "cp437": "sch\u00f6n",
    "mac-roman": "caf\u00e9",
    "utf-16-le": "\u4e00 a",
}


@pytest.mark.parametrize("encoding", AMBIGUOUS)
def test_ambiguous_encodings_name_remedy(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "a.csv").write_bytes(f"text,label\n{AMBIGUOUS[encoding]},0\nb,1\n".encode(encoding))
    with pytest.raises(DataError, match=r"is not UTF-8 text \(if it is .*: iconv -f \S+ -t UTF-8 a\.csv > new\.csv\)"):
        list(read_table(tmp_path / "a.csv", Faults()))
    damaged = "caf\u00e9 a\n".encode() + b"\xe9"  # UTF-8 with one byte that is not
    (tmp_path / "a.txt").write_bytes(damaged)
    with pytest.raises(DataError, match="is not UTF-8 text"):
        list(read_lines(tmp_path / "a.txt", DataError))


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "ft"])
def test_endless_line_is_refused(tmp_path: Path, suffix: str) -> None:
    """A line of gigabytes, as JSON without ends of lines has, is not read as a whole."""
    file = tmp_path / f"a.{suffix}"
    with file.open("wb") as out:
        out.write(b"__label__a [")
        for _ in range(20):
            out.write(b"[]," * (1 << 20))
    with pytest.raises(DataError, match=r"a line has more than 16,777,216 characters"):
        read_all(file)
    with pytest.raises(DataError, match=r"a line has more than 16,777,216 characters"):
        list(read_lines(file, DataError))


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "json"])
def test_endless_header_is_refused(tmp_path: Path, suffix: str) -> None:
    """Every row takes time for all columns."""
    names = [f"c{number}" for number in range(10_001)]
    mark, row = {"csv": ",", "tsv": "\t"}.get(suffix, ""), json.dumps(dict.fromkeys(names, "a"))
    text = f"{mark.join(names)}\n{mark.join(names)}\n" if mark else f"[{row}]" if suffix == "json" else row
    (tmp_path / f"a.{suffix}").write_text(text)
    with pytest.raises(DataError, match=r"has 10,001 columns, and at most 10,000 are read; keep those you need"):
        read_all(tmp_path / f"a.{suffix}")


@pytest.mark.parametrize("suffix", ["csv", "tsv"])
@pytest.mark.parametrize("stray", [(5,), (5, 40), (5, 20, 50), (0, 59)])
def test_stray_quotes_join_no_rows(tmp_path: Path, suffix: str, stray: tuple[int, ...]) -> None:
    mark = {"csv": ",", "tsv": "\t"}[suffix]
    lines = [f"{chr(34) * (i in stray)}sentence number {i}{mark}{('neg', 'pos')[i % 2]}" for i in range(60)]
    file = tmp_path / f"train.{suffix}"
    file.write_text("\n".join([f"text{mark}label", *lines]) + "\n")
    rows, faults = read_all(file)
    assert len(rows) + len(faults) == 60
    assert len(faults) == (len(stray) if suffix == "csv" else 0)  # tabs need no quotes, so none is wrong there
    for place, fault in zip(stray, faults, strict=False):
        assert f"line {place + 2} has a quote" in fault
    with pytest.raises(DataError, match=rf"line {stray[0] + 2} ") if faults else nullcontext():
        list(read_table(file, Faults()))


def test_swallowed_rows_are_seen(tmp_path: Path) -> None:
    """A stray quote is closed by the inch mark at the end of a later cell."""
    file = tmp_path / "train.csv"
    file.write_text(ROWS.replace("sentence number 5,", '"sentence number 5,').replace("number 40,", 'number 40",'))
    rows, faults = read_all(file)
    assert len(rows) == 59
    assert "line 7 has a quote" in faults[0]


def test_quoted_lines_stay_together(tmp_path: Path) -> None:
    poem = "\n".join(f"line {place}, as long as {place}" for place in "abcdefgh")
    file = tmp_path / "train.csv"
    file.write_text(f'text,label\n"{poem}, with ""quotes""",pos\nplain,neg\n"one\n\n\ntwo",pos\n')
    rows, faults = read_all(file)
    assert [row["text"] for row in rows] == [f'{poem}, with "quotes"', "plain", "one\n\n\ntwo"]
    assert not faults


@pytest.mark.parametrize("name", ["train.txt", "train.ft.txt", "cooking.txt", "cooking.train"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("line", ["{label} {text}", "{label}\t{text}", "\n{label} {text}", "{text} {label}"])
def test_fasttext_lines_are_rows(tmp_path: Path, name: str, encoding: str, line: str) -> None:
    lines = [
        line.format(label=f"__label__{('neg', 'pos')[i % 2]}", text=f"sentence  number {i}") + "\n" for i in range(60)
    ]
    (tmp_path / name).write_text("".join(lines), encoding)
    data = recognise(tmp_path)
    assert (data.kind, data.classes, data.samples, data.columns) == ("sentences", 2, 60, None)
    rows, faults = read_all(tmp_path / name)
    assert (rows[1], faults) == ({"text": "sentence  number 1", "label": "pos"}, [])
    assert find_table(tmp_path, "train") == tmp_path / name
    if name == "cooking.train":
        (tmp_path / "cooking.valid").write_text("".join(lines), encoding)
        assert find_table(tmp_path, "validation") == tmp_path / "cooking.valid"


def test_texts_about_fasttext_are_texts(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("A line begins with __label__ and a name.\n" * 60)
    assert recognise(tmp_path).kind == "text"


@pytest.mark.parametrize("second", ["text_pair", "text2"])
def test_second_text_is_learnt_with_the_first(tmp_path: Path, second: str) -> None:
    rows = "".join(f"sentence number {i},reply number {i},{'ab'[i % 2]}\n" for i in range(60))
    (tmp_path / "train.csv").write_text(f"text,{second},label\n{rows}")
    assert f"rows of texts (text and {second})" in recognise(tmp_path).description


@pytest.mark.parametrize("mark", [";", "\t", ","])
def test_excel_names_its_delimiter(tmp_path: Path, mark: str) -> None:
    (tmp_path / "train.csv").write_text(f"sep={mark}\n" + ROWS.replace(",", mark))
    rows, faults = read_all(tmp_path / "train.csv")
    assert (len(rows), rows[1], faults) == (60, {"text": "sentence number 1", "label": "pos"}, [])


@pytest.mark.parametrize("split", ["test", "validation", "dev"])
@pytest.mark.parametrize(("hidden", "is_validated"), [("-1", False), ("", False), ("?", False), ("neg", True)])
def test_hidden_labels_validate_nothing(tmp_path: Path, split: str, hidden: str, is_validated: bool) -> None:
    (tmp_path / "train.csv").write_text(ROWS)
    (tmp_path / f"{split}.csv").write_text("text,label\n" + f"a sentence,{hidden}\n" * 20)
    data = recognise(tmp_path)
    assert data.is_validated is is_validated
    assert (f"{split}.csv are" in data.description) is not is_validated


@pytest.mark.parametrize("header", ["text,label", "words,kind"])
def test_sorted_classes_are_all_seen(tmp_path: Path, header: str) -> None:
    """A table in the order of its classes, as IMDb's often is: the first thousand rows are of one."""
    rows = [f"sentence number {i} of {2000},{i // 1000}" for i in range(2000)]
    (tmp_path / "train.csv").write_text("\n".join([header, *rows]))
    (tmp_path / "test.csv").write_text("\n".join([header, *reversed(rows)]))
    data = recognise(tmp_path)
    assert (data.kind, data.classes, data.samples, data.is_validated) == ("sentences", 2, 2000, True)


@pytest.mark.parametrize("labels", [("0,5", "1,75"), ("0.5", "nan"), ("-0,25", "NA")])
@pytest.mark.parametrize("line", ["sentence number {};{}", '"sentence number {}","{}"'])
def test_labels_of_numbers_are_numbers(tmp_path: Path, labels: tuple[str, str], line: str) -> None:
    """With a decimal comma, as spreadsheets of half the world write it, and without a number in some rows."""
    mark = ";" if ";" in line else ","
    rows = [line.format(i, labels[i % 2]) for i in range(60)]
    (tmp_path / "train.csv").write_text("\n".join([f"text{mark}score", *rows]))
    data = recognise(tmp_path)
    assert data.task == "text-regression"
    is_missing = labels[1].isalpha()
    assert ("30 rows without a label" in data.description) is is_missing
    section = DataSection("data", "text-regression", str(tmp_path), on_error="skip")
    faults = Faults(skip=True)
    assert len(own_texts.read_split_table(section, "train", faults).rows) == 60 - len(faults.names)
    assert len(faults.names) == 30 * is_missing


@pytest.mark.parametrize("labels", [("1,000", "2,000"), ("0,5,1", "2"), ("nan", "na")])
def test_other_commas_are_no_decimals(tmp_path: Path, labels: tuple[str, str]) -> None:
    rows = [f'sentence number {i},"{labels[i % 2]}"' for i in range(60)]
    (tmp_path / "train.csv").write_text("\n".join(["text,label", *rows]))
    data = recognise(tmp_path)
    assert (data.task, data.classes) == ("text-classification", 2)


@pytest.mark.parametrize("name", ["train.jsonl", "train.ndjson", "train.json"])
def test_first_object_may_lack_keys(tmp_path: Path, name: str) -> None:
    objects: list[dict[str, str]] = [{"text": f"sentence number {i}", "label": "ab"[i % 2]} for i in range(60)]
    del objects[0]["label"]
    (tmp_path / name).write_text("\n".join(map(json.dumps, objects)))
    data = recognise(tmp_path)
    assert (data.kind, data.classes) == ("sentences", 2)
    assert "1 row without a label" in data.description


def test_json_lists_are_tables(tmp_path: Path) -> None:
    (tmp_path / "train.json").write_text(json.dumps([{"text": "a b", "label": 1}, 3, {"text": "c d", "label": 0}]))
    rows, faults = read_all(tmp_path / "train.json")
    assert (len(rows), len(faults)) == (2, 1)
    assert "row 2 is 3, not a table" in faults[0]
    (tmp_path / "train.json").write_text('[{"text": "a b",')
    with pytest.raises(DataError, match="is not JSON"):
        read_all(tmp_path / "train.json")
    (tmp_path / "train.json").rename(tmp_path / "settings.json")
    assert recognise(tmp_path).kind is None, "a folder's only .json may be anything"


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("first", ['{"version": 2, "data": [', '{"data": ['])
def test_object_over_several_lines_is_one(tmp_path: Path, first: str, indent: int | None) -> None:
    inner = json.dumps([{"title": "a", "paragraphs": [{"context": "b", "qas": []}]}] * 3, indent=indent)
    (tmp_path / "train.json").write_text(f"{first}\n{inner[1:]}}}\n")
    assert "is nested (column paragraphs)" in recognise(tmp_path).fault


TEXTS = [f"It was {word} to see" for word in ("good", "nice", "fine", "dull", "sad", "bad")]
LABELS = ["a", "a", "a", "b", "b", "b"]
OBJECT_ROWS = [{"text": text, "label": label} for text, label in zip(TEXTS, LABELS, strict=True)]
BY_INDEX = {str(number): row for number, row in enumerate(OBJECT_ROWS)}
OBJECTS: dict[str, Any] = {  # how the rows of a table make one object, by what writes it so
    "pandas, columns": {key: {number: row[key] for number, row in BY_INDEX.items()} for key in ("text", "label")},
    "pandas, index": BY_INDEX,
    "pandas, split": {"columns": ["text", "label"], "index": [0], "data": [list(row.values()) for row in OBJECT_ROWS]},
    "pandas, table": {"schema": {"fields": []}, "data": OBJECT_ROWS},
    "datasets, to_dict": {"text": TEXTS, "label": LABELS},
    "an interface of the web": {"count": 6, "next": None, "results": OBJECT_ROWS},
}


@pytest.mark.parametrize("writer", OBJECTS)
def test_tables_of_one_object(writer: str, tmp_path: Path) -> None:
    (tmp_path / "train.json").write_text(json.dumps(OBJECTS[writer], indent=1))
    assert [row for _, row in read_table(tmp_path / "train.json", Faults(skip=False))] == OBJECT_ROWS


@pytest.mark.parametrize("column", ["split", "Subset"])
def test_several_splits_are_refused(tmp_path: Path, column: str) -> None:
    """Rows to be tested on would be trained on; a column of another meaning is one like others."""
    rows = [f"sentence number {i},{'ab'[i % 2]},{'train' if i < 45 else 'test'}" for i in range(60)]
    file = tmp_path / "data.csv"
    file.write_text("\n".join([f"text,label,{column}", *rows]))
    with pytest.raises(SourceError, match=rf"several splits \(column {column}: test, train\).* a table for\s+each"):
        find_own_data(str(tmp_path))
    with pytest.raises(DataError, match="several splits"):
        own_texts.read_split_table(DataSection("data", "text-classification", str(tmp_path)), "train", Faults())
    file.write_text(file.read_text().replace("test", "left"))
    assert len(read_all(file)[0]) == 60


@pytest.mark.parametrize(
    ("header", "line", "row"),
    [
        ("label, text", '{1}, "line {0}, and more"', {"label": "b", "text": "line 1, and more"}),
        ('"text, as written";label', "line {0};{1}", {"text, as written": "line 1", "label": "b"}),
    ],
)
def test_quotes_hide_delimiters(tmp_path: Path, header: str, line: str, row: Row) -> None:
    """Also behind a blank, and in names."""
    lines = [line.format(i, "ab"[i % 2]) for i in range(60)]
    (tmp_path / "train.csv").write_text("\n".join([header, *lines]))
    assert read_all(tmp_path / "train.csv")[0][1] == row


def test_other_classes_validate_nothing(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text(ROWS)
    (tmp_path / "validation.csv").write_text(ROWS.replace(",neg", ",0").replace(",pos", ",1"))
    with pytest.raises(SourceError, match=r"none of these classes \(label: 0, 1\): write the labels of both"):
        check_is_no_data(str(tmp_path))


@pytest.mark.parametrize("label", ["name {}", "{}"])
def test_labels_of_each_row_are_refused(tmp_path: Path, label: str) -> None:
    rows = [f"sentence number {i} here,{label.format(i % 5000)}" for i in range(9000)]
    (tmp_path / "train.csv").write_text("\n".join(["text,label", *rows]))
    with pytest.raises(
        SourceError, match=r"5,000 classes.* 1\.8 rows on average.* is label the right column\?"
    ) as raised:
        check_is_no_data(str(tmp_path))
    assert ("data.task=text-regression" in str(raised.value)) is (label == "{}")
    with pytest.raises(DataError, match=r"1\.8 rows on average"):
        resolve("own-sentences", [f"data.path={tmp_path}"])
    if label == "{}":  # the line that helps works
        recipe = resolve("own-sentences", [f"data.path={tmp_path}", "data.task=text-regression"])
        assert recipe.data.task == "text-regression"


@pytest.mark.parametrize("size", [0, 1, 300, 1023])
def test_short_texts_are_refused(tmp_path: Path, size: int) -> None:
    (tmp_path / "notes.txt").write_text(("a few words. " * 100)[:size])
    with pytest.raises(SourceError, match=rf"\({size:,} bytes\); a model needs a text of thousands of bytes"):
        check_is_no_data(str(tmp_path))
    with pytest.raises(DataError, match="thousands of bytes"):
        resolve("own-text", [f"data.path={tmp_path}"])
