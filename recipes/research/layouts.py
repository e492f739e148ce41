"""What leanify says to data as public sets, guides and courses lay them out: placeholder files, `datasets` beside.

    python -m recipes.research.layouts > recipes/results/layouts.md

`tables/layouts.toml` has the layouts. A verdict is right where the kind, the classes and whether there is validation
data are what the set's authors mean, or where what leanify does not train on is refused with the words that help.
"""

from __future__ import annotations

import argparse
import io
import re
import tarfile
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Any

from PIL import Image

from leanify.layouts.own_data import OwnData
from leanify.layouts.recognition import recognise

FILE = Path(__file__).parent / "tables" / "layouts.toml"
LAYOUTS: dict[str, dict[str, Any]] = tomllib.loads(FILE.read_text("utf-8"))
TEXTS = ("a fine and sunny day in may", "a dull, wet and rainy night", "the train to town was late again")
ROWS = 40


def text(row: int) -> str:
    return f"{TEXTS[row % 3]} {row}"


def expand(name: str) -> list[str]:
    """The names that a shell makes of one with braces: {train,val}/{0000..0007}.jpg."""
    braces = re.search(r"\{([^}]*)\}", name)
    if braces is None:
        return [name]
    first, dots, last = braces[1].partition("..")
    words = [f"{i:0{len(first)}}" for i in range(int(first), int(last) + 1)] if dots else braces[1].split(",")
    return [f"{name[: braces.start()]}{word}{rest}" for word in words for rest in expand(name[braces.end() :])]


def write_rows(
    line: str, header: str = "", labels: list[str] | None = None, rows: int = ROWS, join: str = "", end: str = ""
) -> str:
    """The text of a file from the pattern of its rows."""
    names = labels or ["0", "1"]
    fields = (
        {"i": i, "n": f"{i:04}", "a": text(i), "b": text(i + 1), "label": names[i % len(names)]} for i in range(rows)
    )
    body = f"{join}\n".join(Template(line).substitute(row) for row in fields)
    return "".join(f"{part}\n" for part in (header, body, end) if part)


def picture_bytes(row: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 8), (row % 250, 0, 90)).save(file, "JPEG")
    return file.getvalue()


def picture_rows() -> Any:
    """A data set of pictures and classes, as `datasets` has them."""
    import datasets

    rows = {
        "image": [{"bytes": picture_bytes(i), "path": None} for i in range(ROWS)],
        "label": [i % 2 for i in range(ROWS)],
    }
    features = datasets.Features(image=datasets.Image(), label=datasets.ClassLabel(names=["cat", "dog"]))
    return datasets.Dataset.from_dict(rows, features)


def picture_parquet(place: Path) -> None:
    picture_rows().to_parquet(place)


def picture_tar(place: Path) -> None:
    with tarfile.open(place, "w") as file:
        for i in range(8):
            for ending, content in (("jpg", picture_bytes(i)), ("cls", str(i % 2).encode())):
                member = tarfile.TarInfo(f"{place.stem}-{i:04}.{ending}")
                member.size = len(content)
                file.addfile(member, io.BytesIO(content))


def saved_pictures(place: Path) -> None:
    import datasets

    splits = {"train": picture_rows(), "validation": picture_rows()}
    datasets.DatasetDict(splits).save_to_disk(place.parent.parent)


def saved_texts(place: Path) -> None:
    import datasets

    rows = datasets.Dataset.from_dict({"text": [text(i) for i in range(ROWS)], "label": [i % 2 for i in range(ROWS)]})
    datasets.DatasetDict(train=rows, test=rows).save_to_disk(place.parent.parent)


MAKERS = {"parquet": picture_parquet, "tar": picture_tar, "saved": saved_pictures, "saved texts": saved_texts}


def make(folder: Path, layout: Mapping[str, Any]) -> None:
    """Write a layout's placeholder files."""
    for number, name in enumerate(name for pattern in layout.get("pictures", ()) for name in expand(pattern)):
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(picture_bytes(number))
    for pattern, content in layout.get("files", {}).items():
        for name in expand(pattern):
            place = folder / name
            place.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, str):
                place.write_text(content)
            elif "make" in content:
                MAKERS[content["make"]](place)
            else:
                place.write_text(write_rows(**content))


def is_right(layout: Mapping[str, Any], found: OwnData) -> bool:
    """Whether leanify's answer is what the set's authors mean."""
    if found.fault is not None:
        start, _, words = layout["answer"].partition(": ")
        return start == "no" and words in found.fault
    classes = f", {found.classes} classes" if found.classes else ""
    return layout["answer"] == f"{found.kind}{classes}{', validated' * found.is_validated}"


def by_datasets(folder: Path) -> str:
    """What `datasets` makes of the same folder: splits and columns, or the first words of its error."""
    import datasets

    try:
        splits = datasets.load_dataset(str(folder))
    except Exception as error:  # any of its builders' errors
        return f"{type(error).__name__}: {' '.join(str(error).split())[:70]}"
    rows = {name: len(split) for name, split in splits.items()}
    return f"{rows}, columns {', '.join(next(iter(splits.values())).column_names[:7])}"


def main() -> None:
    """Print the page, or the layouts of the names that are typed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("layouts", nargs="*", help="names of layouts (default: all)")
    only = parser.parse_args().layouts
    rows = []
    for name in only or LAYOUTS:
        layout = LAYOUTS[name]
        with tempfile.TemporaryDirectory() as place:
            make(Path(place), layout)
            found = recognise(place)
            says = f"**{found.fault}**" if found.fault else found.description
            beside = "" if only else by_datasets(Path(place))
        what = "right" if is_right(layout, found) else "WRONG"
        row = f"| {name} | {layout['source']} | {says} | {beside} | {what} |".replace("\n", " ")
        rows.append(row.replace(f"{place}/", "").replace(place, "it"))
    print("# Layouts of data\n\nWhat leanify says to data as public sets, guides and courses lay them out, with")
    print("placeholder files, and what `datasets` reads of the same folder. Made by\n")
    print("    python -m recipes.research.layouts > recipes/results/layouts.md\n")
    right = sum(row.endswith(" right |") for row in rows)
    print(f"{right} of {len(rows)} layouts right. Bold: not trained on, for this reason.\n")
    print("| layout | source | leanify | `datasets` (load_dataset of the folder) | verdict |\n|---|---|---|---|---|")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
