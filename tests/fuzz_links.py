"""Links, pipes and devices under the fuzzer: anywhere in a folder that somebody hands over, under any name.

A case may read what they lead to, or refuse it; it may not wait, and no byte outside its folder may change.
"""

from __future__ import annotations

import hashlib
import os
import random
import socket
from pathlib import Path
from typing import Any

from fuzz_commands import SHRINK, command
from fuzz_files import mutate, some_file
from fuzz_intact import Here

MINE = "mine.user"  # a file of the user's, in folders that leanify writes to
NAMES = (  # that leanify writes or reads, with what it might write beside them
    *("recipe.toml", "environment.json", "metrics.jsonl", "leanify.json", "data.json", "skipped.json", "kappa.json"),
    *("study.toml", "results.json", "report.html", "tournament.json", "worker.log", "baseline-0.json", "baseline-0"),
    *("checkpoints", "00000003", "model.safetensors", "state.pt", "checkpoint.json", "shards", "runs", "starts"),
    *("config.json", "modules.json", "1_Pooling", "tokenizer.json", "tokenizer_notes.txt", "adapter_config.json"),
    *("pytorch_model.bin", "model.safetensors.index.json", "train-000000.tar", "train.csv", "train", "notes.txt"),
)
DATA = {"images": "images", "pictures": "images", "glue": "sentences", "texts": "text"}


def outside(place: Path) -> None:
    """What must stay as it is: files and folders that links lead to."""
    (place / "docs").mkdir(parents=True)
    for name in (".bashrc", "docs/thesis.txt", "docs/00000007"):
        (place / name).write_text(f"{name} is precious\n")
    os.mkfifo(place / "docs" / "pipe")


def digest(place: Path) -> str:
    """Names, kinds, sizes and bytes below a folder."""
    found = hashlib.sha256()
    for path in sorted(place.rglob("*")):
        about = path.lstat()
        found.update(f"{path.relative_to(place)} {about.st_mode} {about.st_size}\n".encode(errors="replace"))
        if path.is_file():
            found.update(path.read_bytes())
    return found.hexdigest()


def mark(home: Path) -> int:
    """Put a file of the user's into every folder of runs, studies and lean directories. Returns how many there are."""
    places = [place for name in ("run", "study", "lean-timm", "lean-hf") for place in (home / name).rglob("*")]
    places = [home / name for name in ("run", "study") if (home / name).is_dir()] + places
    places = [place for place in places if place.is_dir()]
    for place in places:
        (place / MINE).write_text("mine")
    return len(places)


def put(draw: random.Random, folder: Path, elsewhere: Path) -> None:
    """Something that is no file in a folder or below it, in place of what is there or under a name that is written."""
    below = [path for path in sorted(folder.rglob("*")) if not path.is_symlink() and path.name != MINE]
    parent = draw.choice([folder, *(path for path in below if path.is_dir())])
    place = draw.choice(below) if below and draw.random() < 0.5 else parent / draw.choice(NAMES)
    if draw.random() < 0.3:
        place = place.with_name(f".{place.name}{draw.choice(['', '.old', '.lock'])}")
    if place.is_dir() and not place.is_symlink():
        place.rename(place.with_name(f"{place.name}-moved"))
    elif os.path.lexists(place):
        place.unlink()
    target = draw.choice(
        [
            *(elsewhere / ".bashrc", elsewhere / "docs", elsewhere / "docs" / "pipe", elsewhere / "new", place.name),
            *("/dev/zero", "/dev/tty", "/proc/kmsg", "..", place.with_name(f"{place.name}-moved"), None, None),
        ]
    )
    if target is not None:
        place.symlink_to(target)
    elif draw.random() < 0.7:
        os.mkfifo(place)
    else:
        _socket(place)


def _socket(place: Path) -> None:
    here = Path.cwd()
    os.chdir(place.parent)  # a socket's path has at most 107 bytes
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(place.name[:90])
    finally:
        os.chdir(here)


def several(draw: random.Random, home: Path, folder: str) -> None:
    for _ in range(draw.choice([1, 1, 2, 5])):
        put(draw, home / folder, home.parent / "outside")


def of_linked_run(draw: random.Random, home: Path) -> None:
    several(draw, home, "run")
    uses = [
        *([("train", "--resume", "run")] * 4),
        ("show", "run"),
        ("show", "run", "--plot", "run/curves.svg"),
        ("runs", "."),
        ("condition", "--checkpoints", "run", "--samples", "2"),
        ("redesign", "run", "--depth", "1", "-o", "run/out"),
        ("export", "run", "--format", "timm", "-o", "out"),
    ]
    command(*draw.choice(uses))


def of_linked_study(draw: random.Random, home: Path) -> None:
    import leanify

    several(draw, home, "study")
    if draw.random() < 0.4:
        leanify.compare(home / "study", seeds=draw.choice([2, 3]), engine=Here(), measure=False)
        return
    uses = [
        *([("compare", "study", "--report")] * 2),
        ("show", "study"),
        ("runs", "."),
        ("train", "--resume", "study/runs/baseline-0"),
        ("redesign", "lean-timm", "--target-params", "0.9", "--min-depth", "1", "--study", "study"),
    ]
    command(*draw.choice(uses))


def of_linked_shrink(draw: random.Random, home: Path) -> None:
    """A shrink that was stopped, with links in its folder, an odd state, or both."""
    if draw.random() < 0.5:
        several(draw, home, "shrunk")
    else:
        mutate(draw, draw.choice([home / "shrunk" / "shrink.json", some_file(draw, home / "shrunk")]))
    command("shrink", "hf", "--data", "rows.csv", *SHRINK, "-o", "shrunk")


def of_linked_model(draw: random.Random, home: Path) -> None:
    import leanify

    source = draw.choice(["lean-timm", "lean-hf", "hf", "bin", "adapter"])
    several(draw, home, draw.choice([source, source, "hf"]))
    uses = [
        *([("redesign", source, "--depth", "1", "-o", "out", "--weights", source)] * 3),
        ("redesign", "lean-hf", "--depth", "1", "-o", "lean-hf/out"),
        ("export", source, "--format", draw.choice(["hf", "timm"]), "-o", "out"),
        ("condition", source, "--samples", "2", "--plot", "plot.svg"),
        ("profile", source, "--no-measure"),
        ("show", source),
    ]
    if draw.random() < 0.3:
        leanify.save(leanify.load(home / source), home / "out")
    else:
        command(*draw.choice(uses))


def of_linked_data(draw: random.Random, home: Path) -> None:
    folder = draw.choice(list(DATA))
    several(draw, home, folder)
    path = "glue/sst2" if folder == "glue" else folder
    if draw.random() < 0.3:
        command("train", path)
    elif draw.random() < 0.3:
        command("condition", "lean-timm" if DATA[folder] == "images" else "hf", "--samples", "2", "--data", path)
    else:
        from fuzz_cases import SHALLOW

        command("train", f"own-{DATA[folder]}", "--dry-run", *SHALLOW[DATA[folder]], "--set", f"data.path={path}")


def of_linked_cache(draw: random.Random, home: Path) -> None:
    """The user's cache, and the places that are written at the user's word."""
    from leanify.runs import cache

    use: Any = draw.choice(
        [
            ("redesign", "lean-timm", "--target-params", "0.9", "--min-depth", "1", "-o", "made/lean"),
            ("train", "own-text", "--dry-run", "--set", "data.path=rows.txt", "--set", "model.override.n_layer=1"),
            ("condition", "lean-timm", "--samples", "2", "--plot", "made/plot.svg"),
            ("export", "lean-timm", "--format", "timm", "-o", "made/timm"),
        ]
    )
    (home / "made").mkdir()
    if draw.random() < 0.5:
        command(*use)
    cache.home().mkdir(parents=True, exist_ok=True)
    for _ in range(draw.choice([1, 2])):
        put(draw, draw.choice([cache.home(), home / "made"]), home.parent / "outside")
    command(*use)


def of_shards(draw: random.Random, home: Path) -> None:
    """Tar shards of images, damaged, or with headers that say other things."""
    from fuzz_files import mutated_bytes

    shard = home / "shards" / "train-000000.tar"
    data = shard.read_bytes()
    for _ in range(draw.choice([1, 1, 3])):
        how = draw.randrange(3)
        if how == 0:
            data = mutated_bytes(draw, data) or b"\0"
        else:  # a field of a header: name, size, kind, with a sum that fits
            place = 512 * draw.randrange(max(1, len(data) // 512))
            first, last = draw.choice([(0, 100), (124, 136), (124, 125), (156, 157), (257, 265), (345, 500)])
            field = draw.choice([b"\xff" * 200, b"\x80" + b"\0" * 199, b"7" * 200, b"../" * 70, b"x" * 200, b"L" * 200])
            head = bytearray(data[place : place + 512].ljust(512, b"\0"))
            head[first:last] = field[: last - first]
            head[148:156] = b"%06o\0 " % (sum(head[:148]) + 8 * 32 + sum(head[156:512]))
            data = data[:place] + bytes(head) + data[place + 512 :]
    shard.write_bytes(data)
    words = ("--set", "data.path=shards", "--set", f"data.on_error={draw.choice(['stop', 'skip'])}")
    from fuzz_cases import SHALLOW

    if draw.random() < 0.3:
        command("train", "shards")
    else:
        command("train", "own-images", "--dry-run", *SHALLOW["images"], *words)
