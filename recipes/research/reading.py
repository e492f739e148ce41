"""What `datasets` and leanify make of files as people have them: rows and pixels beside those that are meant.

python -m recipes.research.reading > recipes/results/reading.md
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
import warnings
from importlib.metadata import files
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from PIL import Image

from leanify.core.recipe import DataSection
from leanify.data.faults import Faults
from leanify.data.images import decoding, folder
from leanify.data.tables.rows import read_table

INTRODUCTION = """# Who reads the user's files: `datasets` or leanify?

*Right* is equal to what a spreadsheet or a viewer shows. Images of `datasets` are converted by Pillow's
`convert("RGB")`, as its users do. Made by `python -m recipes.research.reading > recipes/results/reading.md`.
"""
Rows = list[tuple[str, str]]
LIBRARIES = ("datasets", "pyarrow", "pandas")


def rows(*labels: str, text: str = "sentence number {}") -> Rows:
    return [(text.format(i), labels[i % len(labels)]) for i in range(60)]


def table(rows: Rows, mark: str = ",", head: str = "text,label\n", line: str = "{},{}\n") -> str:
    return (head + "".join(line.format(*row) for row in rows)).replace(",", mark)


ROWS, NAMES, NUMBERS = rows("neg", "pos"), rows("NA", "None"), rows("007", "008")
STRAY = [('"' * (i in (5, 40)) + text, label) for i, (text, label) in enumerate(ROWS)]
LINES, QUOTES, BLANK = rows("a", "b", text="x\n{}"), rows("“a”", "b"), rows("a b", "c")
OBJECTS = [json.dumps({"text": text, "label": label}) for text, label in ROWS]
TABLES: dict[str, tuple[str, str | bytes, Rows]] = {  # ending, content, and the rows that are meant; none: a refusal
    "commas": (".csv", table(ROWS), ROWS),
    "semicolons": (".csv", table(ROWS, ";"), ROWS),
    "tabs": (".tsv", table(ROWS, "\t"), ROWS),
    "a byte order mark": (".csv", table(ROWS).encode("utf-8-sig"), ROWS),
    "UTF-16": (".csv", table(ROWS).encode("utf-16"), ROWS),
    "Windows' quotes": (".csv", table(QUOTES).encode("cp1252"), QUOTES),
    "two stray quotes between tabs": (".tsv", table(STRAY, "\t"), STRAY),
    "two stray quotes between commas": (".csv", table(STRAY), []),
    "lines inside quotes": (".csv", table(LINES, line='"{}",{}\n'), LINES),
    "no header": (".csv", table(ROWS, head=""), ROWS),
    "a blank before quotes": (".csv", table(BLANK, line='{}, "{}"\n', head="text, label\n"), BLANK),
    "Excel's sep=": (".csv", "sep=;\n" + table(ROWS, ";"), ROWS),
    "labels NA and None": (".csv", table(NAMES), NAMES),
    "labels 007 and 008": (".csv", table(NUMBERS), NUMBERS),
    "JSON lines": (".jsonl", "\n".join(OBJECTS), ROWS),
    "a first object without a label": (".jsonl", "\n".join(['{"text": "a"}', *OBJECTS]), [("a", "None"), *ROWS]),
    "JSON lines in UTF-16": (".jsonl", "\n".join(OBJECTS).encode("utf-16"), ROWS),
    "fastText": (".txt", "".join(f"__label__{label} {text}\n" for text, label in ROWS), ROWS),
}
GREY = np.full((16, 16), 40, np.uint8)
GREY[:5] = 220  # bright at the top
PICTURE, EXIF = Image.fromarray(np.dstack([GREY] * 3)), Image.Exif()
EXIF[0x0112] = 6
PICTURES: dict[str, tuple[Any, dict[str, Any]]] = {  # picture, and options of saving
    "class folders": (PICTURE, {}),
    "turned by EXIF": (PICTURE.transpose(Image.Transpose.ROTATE_90), {"exif": EXIF}),
    "a shape in alpha": (Image.fromarray(np.dstack([GREY * 0] * 3 + [255 - GREY]), "RGBA"), {}),
    "12 bits in 16": (Image.fromarray(GREY.astype(np.uint16) * 16), {}),
    "tar shards": (PICTURE, {}),
}


def write_pictures(root: Path, name: str) -> Path:
    picture, options = PICTURES[name]
    is_tar = name == "tar shards"
    for split, kind, number in product(("train", "validation"), ("cat", "dog"), range(4)):
        (place := root / split / ("" if is_tar else kind)).mkdir(parents=True, exist_ok=True)
        picture.save(place / f"{kind}{number}.png", **options)
        if is_tar:
            (place / f"{kind}{number}.cls").write_text(str(int(kind == "cat")))
    for split in ("train", "validation") if is_tar else ():
        shutil.make_archive(str(root / f"{split}-0"), "tar", root / split)
        shutil.rmtree(root / split)
    return root


def leanify_rows(file: Path, _: str) -> Rows:
    cells = [list(row.values()) for _, row in read_table(file, Faults())]
    return [(str(text), str(label)) for text, label in cells]


def datasets_rows(file: Path, cache: str) -> Rows:
    kind = {".csv": "csv", ".tsv": "csv", ".txt": "text"}.get(file.suffix, "json")
    options = {"sep": "\t"} if file.suffix == ".tsv" else {}
    loaded = datasets.load_dataset(kind, data_files=str(file), cache_dir=cache, split="train", **options)
    return [(str(row["text"]), str(row.get("label"))) for row in loaded]


def leanify_pictures(root: Path, _: str) -> bool:
    readers, names, _ = folder.read(DataSection("data", "classification", str(root)))
    decoder, _ = decoding.choose_decoder(readers[0])
    return is_seen(len(names), [folder.read_picture(x, i, "RGB", decoder)[0] for x in readers for i in range(len(x))])


def datasets_pictures(root: Path, cache: str) -> bool:
    kind, image, label = ("webdataset", "png", "cls") if any(root.glob("*.tar")) else ("imagefolder", "image", "label")
    parts = datasets.load_dataset(kind, data_dir=str(root), cache_dir=cache)
    loaded = [row for split in ("train", "validation") for row in parts[split]]
    return is_seen(len({row[label] for row in loaded}), [row[image].convert("RGB") for row in loaded])


def is_seen(classes: int, images: list[Any]) -> bool:
    pixels = [np.asarray(image, float) for image in images]
    return classes == 2 and len(pixels) == 16 and all(image[:4].mean() - image[-4:].mean() > 60 for image in pixels)


def judge(read: Any, place: Path, meant: Any) -> str:
    with tempfile.TemporaryDirectory() as cache, warnings.catch_warnings(action="ignore"):
        try:
            return "right" if read(place, cache) == meant else "**wrong, without a word**"
        except KeyError as error:
            return f"**wrong**: no column {error}"
        except Exception as error:
            return f"{'refused' if meant else 'rightly refused'}: {str(error.__cause__ or error)[-50:]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000, help="of the tables that are timed")
    count = parser.parse_args().rows
    print(f"{INTRODUCTION}\n| input | leanify | datasets |\n|---|---|---|")
    place = Path(tempfile.mkdtemp())
    for name, (ending, content, meant) in TABLES.items():
        file = place / f"{name}{ending}"
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        print(f"| {name} ({ending}) | {judge(leanify_rows, file, meant)} | {judge(datasets_rows, file, meant)} |")
    for name in PICTURES:
        root = write_pictures(place / name, name)
        print(f"| images: {name} | {judge(leanify_pictures, root, True)} | {judge(datasets_pictures, root, True)} |")
    print("\n| processor seconds | leanify | datasets | its cache |\n|---|---|---|---|")
    for ending, content in ((".csv", table(ROWS * (count // 60))), (".jsonl", "\n".join(OBJECTS * (count // 60)))):
        (file := place / f"many{ending}").write_text(content)
        seconds = [time.process_time()]
        for read in (leanify_rows, datasets_rows):
            read(file, str(place / ending))
            seconds.append(time.process_time())
        size = sum(path.stat().st_size for path in (place / ending).rglob("*") if path.is_file()) >> 20
        times = " | ".join(f"{after - before:.1f}" for before, after in pairwise(seconds))
        print(f"| {count:,} rows, {ending}, {len(content) >> 20} MB | {times} | {size} MB |")
    shutil.rmtree(place)
    sizes = [Path(str(file.locate())).stat().st_size for name in LIBRARIES for file in files(name) or ()]
    print(f"\n{', '.join(LIBRARIES)} take {sum(sizes) >> 20} MB.")


if __name__ == "__main__":
    main()
