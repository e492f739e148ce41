"""Lines for the shell that make tables of files: of parts, of texts beside their labels, of pictures; one a split."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from shlex import quote

from leanify.core.errors import DataError
from leanify.core.files.reading import preview, read_lines, text_encoding
from leanify.layouts import columns
from leanify.layouts.image_files import class_folders, find_images, find_split_folder, has_tables
from leanify.layouts.split_names import parse_split

TEXT_WORDS = {"x", "text", "texts", "sentence", "sentences", "sents", "data", "features", "input", "inputs"}
TEXT_WORDS |= {"seq", "in", "reviews", "tweets", "comments", "messages", "documents", "docs", "corpus"}
LABEL_WORDS = {"y", "label", "labels", "target", "targets", "gold", "sentiment", "sentiments", "topic", "topics"}
NUMBERED = re.compile(r"[\W_]*\d+([\W_]+\d+)*$")  # the end of a picture's name behind its class
LISTING = (".txt", ".mat", ".json", ".csv", ".lst", ".npy")  # files that may name the classes of pictures
FEW_PARTS = 9  # of a table, which a line can join
MAX_LINES = 1000  # lines of two files by which one has the labels of the other
MIN_LINES, MAX_LINE = 20, 2000  # lines of a file with a text in each, and their characters


def join_tables(tables: Sequence[Path], place: Path) -> str | None:
    """The line that joins the parts of one table, or tables of a class each; None for tables of other columns."""
    suffixes, splits = {file.suffix for file in tables}, {parse_split(file.stem) for file in tables}
    stems = {re.sub(r"\d+", "", file.stem) for file in tables}
    if suffixes in ({".jsonl"}, {".csv"}) and ((len(splits) == 1 and None not in splits) or len(stems) == 1):
        rest = "tail -qn +2" if suffixes == {".csv"} else "cat"
        parts = " ".join(quote(str(file)) for file in tables)
        first = f"head -1 {quote(str(tables[0]))}; " if suffixes == {".csv"} else ""
        whole = quote(str(place / f"all{tables[0].suffix}"))
        return f"Parts of one table are joined with ({first}{rest} {parts}) > {whole}; then leanify compare {whole}"
    heads = {next(read_lines(file, DataError), "") for file in tables if decodes(file)}
    names = next(iter(heads)).strip().split(",") if len(heads) == 1 else list(columns.LABELS)
    if suffixes != {".csv"} or splits != {None} or columns.match_column(columns.LABELS, names) is not None:
        return None
    files, whole = json.dumps([str(file) for file in tables]), json.dumps(str(place / "train.csv"))
    code = (
        "import pandas, pathlib; pandas.concat([pandas.read_csv(file).assign(label=pathlib.Path(file).stem) "
        f"for file in {files}]).to_csv({whole}, index=False)"
    )
    return f"If each has the rows of a class, python -c {quote(code)} makes one table of them"


def split_table(table: Path, column: str, splits: Iterable[str]) -> str:
    """The line that writes a table for each split that a column names; "" where its cells are no names of splits."""
    readers = {".csv": "csv({})", ".tsv": "csv({}, sep='\\t')", ".parquet": "parquet({})", ".json": "json({})"}
    readers |= dict.fromkeys((".jsonl", ".ndjson"), "json({}, lines=True)")
    reader = readers.get(table.suffix.lower())
    if reader is None or {"true", "false"} & {*splits}:
        return ""
    folder = table.parent / "splits"
    code = (
        f"import pandas, pathlib; place = pathlib.Path({json.dumps(str(folder))}); place.mkdir(); "
        "[rows.to_csv(place / (pathlib.Path(str(name)).name + '.csv'), index=False) for name, rows in "
        f"pandas.read_{reader.format(json.dumps(str(table)))}.groupby({json.dumps(column)})]"
    )
    return f". python -c {quote(code)} writes them into {folder}"


def join_texts(files: Sequence[Path], place: Path) -> str | None:
    """The line that makes a table of a few files with a text in each line, of a class each; None for other texts."""
    if not 1 < len(files) < FEW_PARTS or len({re.sub(r"\d+", "", file.stem) for file in files}) == 1:
        return None
    for file in files:
        lines = list(islice(read_lines(file, DataError), MAX_LINES)) if decodes(file) else []
        if len(lines) < MIN_LINES or not all(line.strip() and len(line) < MAX_LINE for line in lines):
            return None
    names, table = " ".join(quote(str(file)) for file in files), quote(str(place / "train.tsv"))
    line = f"""for f in {names}; do n=$(basename "$f" .txt); sed "s/$/\\t$n/" "$f"; done > {table}"""
    return (
        f"{preview([file.name for file in files])} have a text in each line. If each file is a class, a table has them "
        f"all: {line}. Without labels, a language model learns them: leanify train own-text --set "
        f"data.path={quote(str(place))}"
    )


def texts_and_labels(file: Path) -> tuple[Path, Path] | None:
    """Two files of as many lines, of texts alone and of their labels: X_train.csv and y_train.csv; None without."""
    for other in sorted(file.parent.iterdir()):
        texts, labels = (other, file) if _words(file) & LABEL_WORDS else (file, other)
        label_words = _words(labels)
        if other == file or not label_words & LABEL_WORDS or label_words - LABEL_WORDS != _words(texts) - TEXT_WORDS:
            continue
        lines = [list(islice(read_lines(one, DataError), MAX_LINES)) for one in (texts, labels) if decodes(one)]
        values = [{*map(str.strip, one)} for one in lines]
        if len(lines) == 2 and len(lines[0]) == len(lines[1]) > len(values[1]) * 3 and len(values[1]) < len(values[0]):
            return texts, labels
    return None


def join_labels(files: Sequence[Path], place: Path) -> str | None:
    """The line that joins a file of texts and one of their labels, also in a folder for each split; None without."""
    pairs = map(texts_and_labels, files) if len(files) < FEW_PARTS else iter(())
    pair = next(filter(None, pairs), None)
    if pair is None:
        return None
    texts, labels = (quote(str(file)) for file in pair)
    line = f"paste -d '\\t' {texts} {labels} > {quote(str(place / 'train.tsv'))}"
    if pair[0].parent != place:
        folders = [folder for folder in class_folders(pair[0].parent.parent) if parse_split(folder.name) is not None]
        names = [folder.name for folder in folders if all((folder / file.name).is_file() for file in pair)]
        texts, labels = (f"{quote(str(file.parent.parent))}/$s/{quote(file.name)}" for file in pair)
        tables = f"{quote(str(place))}/$s.tsv"
        line = f"for s in {' '.join(map(quote, names))}; do paste -d '\\t' {texts} {labels} > {tables}; done"
    return f"{pair[0]} has texts alone, and {pair[1]} their labels: join them to a table, {line}"


def _words(file: Path) -> set[str]:
    return set(re.findall("[a-z]+", file.name.lower())) - {"txt", "csv", "tsv"}


def hint_labels(place: Path) -> str:
    """How labels in the names of pictures, or in a file next to them, become a table; "" without either."""
    images = list(islice(find_images(find_split_folder(place, "train") or place), MAX_LINES))
    kinds = {NUMBERED.sub("", image.stem) for image in images}
    if len(kinds) > 1 and "" not in kinds and 3 * len(kinds) <= len(images):
        folder, mark = images[0].parent, "[._ -]"
        line = f"ls {quote(str(folder))} | sed -nE 's/^(.*[^0-9._ -]){mark}*[0-9]+.*$/&,\\1/p'"
        table = quote(str(folder / "train.csv"))
        return f"; their names begin with a class ({preview(sorted(kinds))}): (echo image,label; {line}) > {table}"
    places = [place, *(folder for folder in class_folders(place) if has_tables(folder.name))]
    lists = [file for folder in places for file in sorted(folder.iterdir()) if file.suffix.lower() in LISTING]
    if lists:
        names = preview([str(file.relative_to(place)) for file in lists])
        has = "has" if len(lists) == 1 else "have"
        return f"; if {names} {has} their classes, write train.csv with the columns image and label"
    return ""


def decodes(file: Path) -> bool:
    try:
        return file.is_file() and bool(text_encoding(file, DataError))
    except DataError:
        return False
