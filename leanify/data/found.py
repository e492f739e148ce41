"""What lies at a path that names no model: images, labelled texts, text; and what trains on it. Knows no torch."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from leanify.data import columns

Kind = Literal["images", "sentences", "text"]
MODELS: Mapping[Kind, str] = {"images": "vit_tiny", "sentences": "bert", "text": "gpt2"}  # to be trained at full size
SOME = 1000  # rows that are looked at
TRAINING = ("train", "training")
SHOWN = 6  # classes that are named


@dataclass(frozen=True)
class Found:
    """What was found.

    kind       images, sentences (labelled) or text
    words      the same with counts and names
    validated  whether there is a part to validate on
    classes    how many there are, where that is known
    samples    how many are to train on, where that is known
    """

    kind: Kind
    words: str
    validated: bool
    classes: int | None = None
    samples: int | None = None

    @property
    def recipe(self) -> str:
        """The built-in recipe for data of this kind that a laptop trains."""
        return f"own-{self.kind}"


def look(path: str | Path) -> Found | None:
    """What data a file or folder holds; None where it holds none, or none that is known."""
    place = Path(path).expanduser()
    try:
        if place.is_file():
            return _file(place, False)
        return _folder(place) if place.is_dir() else None
    except (OSError, UnicodeDecodeError, csv.Error):
        return None


def _folder(place: Path) -> Found | None:
    if any((place / name).is_file() for name in ("dataset_dict.json", "state.json")):
        return _on_disk(place)
    train = next((place / name for name in TRAINING if (place / name).is_dir()), place)
    counts = {folder.name: number for folder in _folders(train) if (number := _images(folder))}
    if len(counts) > 1:
        return _of_classes(place, train, counts)
    for stem in TRAINING:
        for suffix in (*columns.TABLES, ".txt"):
            if (file := place / f"{stem}{suffix}").is_file():
                return _file(file, _has_validation(place, suffix))
    texts = sorted(place.glob("*.txt"))
    return Found("text", f"{len(texts)} text files in {place}", False) if texts else None


def _on_disk(place: Path) -> Found | None:
    """What ``datasets`` wrote by save_to_disk: images with classes, by the features that it notes."""
    whole = (place / "state.json").is_file()
    splits = [] if whole else json.loads((place / "dataset_dict.json").read_text(encoding="utf-8"))["splits"]
    part = place if whole else place / ("train" if "train" in splits else splits[0])
    features = json.loads((part / "dataset_info.json").read_text(encoding="utf-8"))["features"]
    kinds = {name: entry.get("_type") for name, entry in features.items() if isinstance(entry, dict)}
    image, label = (next((name for name in kinds if kinds[name] == kind), None) for kind in ("Image", "ClassLabel"))
    if image is None or label is None:
        return None
    names = features[label]["names"]
    shown = f"{', '.join(names[:SHOWN])}{', …' * (len(names) > SHOWN)}"
    words = f"a data set of images ({image}) of {len(names):,} classes ({label}: {shown}) in {place}"
    return Found("images", words, any(name in splits for name in columns.SPLITS["validation"]), len(names))


def _of_classes(place: Path, train: Path, counts: Mapping[str, int]) -> Found:
    names = sorted(counts)
    shown = f"{', '.join(names[:SHOWN])}{', …' * (len(names) > SHOWN)}"
    words = f"{sum(counts.values()):,} images of {len(names):,} classes ({shown}) in {train}"
    other = next((place / name for name in columns.SPLITS["validation"][:4] if (place / name).is_dir()), None)
    validated = other is not None and train != place
    if validated and other is not None:
        words += f", {sum(_images(folder) for folder in _folders(other)):,} in {other}"
    return Found("images", words, validated, len(names), sum(counts.values()))


def _folders(place: Path) -> Iterator[Path]:
    return (Path(entry.path) for entry in os.scandir(place) if entry.is_dir() and not entry.name.startswith("."))


def _images(folder: Path) -> int:
    return sum(name.lower().endswith(columns.IMAGES) for _, _, names in os.walk(folder) for name in names)


def _has_validation(place: Path, suffix: str) -> bool:
    return any((place / f"{stem}{suffix}").is_file() for stem in columns.SPLITS["validation"])


def _file(file: Path, validated: bool) -> Found | None:
    if file.suffix in (".txt", ".text"):
        return Found("text", f"text in {file} ({file.stat().st_size:,} bytes)", validated)
    if file.suffix not in columns.TABLES:
        return None
    rows = list(islice(_rows(file), SOME))
    names = list(rows[0]) if rows else []
    texts, label = columns.texts_in(names), columns.one_of(columns.LABELS, names)
    picture = columns.one_of(columns.PICTURES, names)
    if picture is not None and label is not None and _is_picture(rows[0][picture]):
        return _labelled(file, rows, "images", (picture,), label, validated)
    if texts and label is not None:
        return _labelled(file, rows, "sentences", texts, label, validated)
    return Found("text", f"texts in {file} (column {texts[0]})", validated) if texts else None


def _labelled(
    file: Path, rows: list[Mapping[str, Any]], kind: Kind, of: tuple[str, ...], label: str, validated: bool
) -> Found:
    many = f"{len(rows):,}" if len(rows) < SOME else f"{SOME:,} or more"
    names = sorted({str(row.get(label)) for row in rows})
    fraction = all(_is_number(name) for name in names) and any(float(name) % 1 for name in names)
    what = "a number" if fraction else f"{len(names)} classes: {', '.join(names[:SHOWN])}{', …' * (len(names) > SHOWN)}"
    samples = "images" if kind == "images" else "rows of texts"
    words = f"{many} {samples} ({' and '.join(of)}) with labels ({label}, {what}) in {file}"
    classes = None if fraction else len(names)
    return Found(kind, words, validated, classes, len(rows) if len(rows) < SOME else None)


def _is_picture(cell: Any) -> bool:
    """Whether a cell names an image file, or holds one as Parquet files of ``datasets`` do."""
    if isinstance(cell, str):
        return cell.lower().endswith(columns.IMAGES)
    return isinstance(cell, bytes) or (isinstance(cell, dict) and "bytes" in cell)


def _is_number(text: str) -> bool:
    try:
        return abs(float(text)) < float("inf")
    except ValueError:
        return False


def _rows(file: Path) -> Iterator[Mapping[str, Any]]:
    """The rows of a table, loosely: what is malformed is for whoever trains on it to name."""
    if file.suffix == ".parquet":
        import pyarrow.parquet

        for batch in pyarrow.parquet.ParquetFile(file).iter_batches(batch_size=SOME):
            yield from batch.to_pylist()
        return
    with file.open(encoding="utf-8", errors="replace", newline="") as lines:
        if file.suffix == ".jsonl":
            for line in lines:
                try:
                    row = json.loads(line)
                except ValueError:
                    continue
                if isinstance(row, dict):
                    yield row
        else:
            yield from csv.DictReader(lines, delimiter="\t" if file.suffix == ".tsv" else ",")
