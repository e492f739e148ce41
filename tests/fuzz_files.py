"""The ways in which the fuzzer damages a folder: a file's bytes, what it says or what it is, and links put into it."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import random
import socket
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile

import tomli_w

HOSTILE = (
    None, True, -1, 0, 1, 3, 7, 10**6, 10**24, -0.5, 1e400, float("nan"), "", "x", "0", "None", "../..", "/dev/zero",
    "κ×\ud800", "a" * 5000, [], [1], ["a"], [[]], {}, {"a": 1}, "__import__('os')", "hf-hub:a/b", [32, 32], "float16",
    1e308, float("-inf"), 10**9, 2**31, 2**63, "9" * 400, {"__float__": "NaN"}, "\x1b]0;x\x07", "\u202egnp",
    "$\\undefined$",
)  # fmt: skip


def mutated_value(draw: random.Random, value: Any) -> Any:
    """A JSON value with one place changed: another value, a key more, a key less, a type turned."""
    places = list(_places(value))
    if not places or draw.random() < 0.1:
        return draw.choice(HOSTILE)
    table, key = draw.choice(places)
    how = draw.randrange(4)
    if how == 0 and isinstance(table, dict):
        del table[key]
    elif how == 1 and isinstance(table, dict):
        table[draw.choice(["", "x", "checkpoint_path", "_class", str(key) + "s"])] = draw.choice(HOSTILE)
    elif how == 2 and isinstance(table[key], int | float):
        table[key] = draw.choice([-table[key], table[key] * 1000, table[key] + 1, str(table[key]), [table[key]]])
    else:
        table[key] = draw.choice(HOSTILE)
    return value


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in pairs:
        yield value, key
        yield from _places(item)


def mutated_bytes(draw: random.Random, data: bytes) -> bytes:
    """Cut, flipped, doubled, emptied, or with something put in."""
    place, other = sorted((draw.randrange(len(data) + 1), draw.randrange(len(data) + 1)))
    insertions = [b"\0", b"\xff\xfe", b"\n", b'"', b"{" * 50_000, b"\xed\xa0\x80"]
    ways = [
        lambda: data[:place],
        lambda: data[:place] + bytes([draw.randrange(256)]) + data[place + 1 :],
        lambda: data[:place] + draw.choice(insertions) + data[place:],
        lambda: data[:place] + data[other:],
        lambda: data[place:other] * 3,
        lambda: data + data,
        lambda: b"",
    ]
    return draw.choice(ways)()


def mutate(draw: random.Random, file: Path) -> None:
    """Change a file in place, or what it is: gone, a folder, a pipe, a link to nothing or to itself, a device."""
    how = draw.randrange(10)
    content = mutated_content(draw, file) if how >= 5 else None
    if content is not None:
        file.write_bytes(content)
    elif how >= 2:
        file.write_bytes(mutated_bytes(draw, file.read_bytes()))
    else:
        file.unlink()
        links = [lambda to=to: file.symlink_to(to) for to in ("nowhere", file.name, "/dev/zero")]
        draw.choice([lambda: None, file.mkdir, lambda: os.mkfifo(file), *links])()


# -- what a file says -------------------------------------------------------------------------------------------------


def mutated_content(draw: random.Random, file: Path) -> bytes | None:
    """The file with other values in a format that is still whole; None where no such way is known for it."""
    change = MUTATIONS.get(file.suffix)
    try:
        return None if change is None else change(draw, file.read_bytes())
    except (ValueError, TypeError, RecursionError, BadZipFile, IndexError):  # it was changed before, or has None
        return None


def _json(draw: random.Random, data: bytes) -> bytes:
    value = json.loads(data)
    for _ in range(draw.choice([1, 1, 2, 5])):
        value = mutated_value(draw, value)
    return json.dumps(value).encode()


def _text(draw: random.Random, data: bytes) -> bytes:
    """A text in another encoding, or with a line, a quote or a cell that has no end."""
    if draw.random() < 0.2:
        endless = draw.choice([b"[]," * 2_000_000, b"a " * 2_000_000, b'"' + b"a\n" * 50_000])
        return data + draw.choice([b"", b'{"text": ', b"x,"]) + endless
    text = data.decode(errors="replace").replace("a", draw.choice(["a", "\u00e9", "\u2019", "\u4e00", "\u0436", "\0"]))
    return text.encode(draw.choice(ENCODINGS), "replace")


def _lines(draw: random.Random, data: bytes) -> bytes:
    """One line of JSON lines, or all of them as a text."""
    if draw.random() < 0.2:
        return _text(draw, data)
    lines = data.splitlines(keepends=True)
    place = draw.randrange(len(lines))
    lines[place] = _json(draw, lines[place]) + b"\n"
    return b"".join(lines)


def _header(draw: random.Random, data: bytes) -> bytes:
    """Other types, shapes and places in the header of a safetensors file."""
    end = 8 + int.from_bytes(data[:8], "little")
    header = _json(draw, data[8:end])
    return len(header).to_bytes(8, "little") + header + data[end:]


def _archive(draw: random.Random, data: bytes) -> bytes:
    """A member of a torch or NumPy file changed, dropped, renamed, or compressed and far larger than it was."""
    target = io.BytesIO()
    with ZipFile(io.BytesIO(data)) as old, ZipFile(target, "w", ZIP_STORED) as new:
        chosen, how = draw.choice(old.namelist()), draw.choice(["changed", "dropped", "renamed", "bomb"])
        for name in old.namelist():
            content = old.read(name)
            if name != chosen:
                new.writestr(name, content)
            elif how == "bomb":
                new.writestr(name, content + b"\0" * 10**7, ZIP_DEFLATED)
            elif how != "dropped":
                new.writestr(name + "x" * (how == "renamed"), mutated_bytes(draw, content))
    return target.getvalue()


def _toml(draw: random.Random, data: bytes) -> bytes:
    """Other values in a recipe or a study, or keys and lists that keep its parser busy."""
    lines = data.decode().splitlines()
    long_key = draw.choice([".x", ' . "x"', ".x\u2028"])
    attacks = [
        f"x{long_key * draw.choice([20, 150, 20_000])} = 1",
        "\n".join(f"k{number}{long_key * 20} = 1" for number in range(3_000)),
        f"x = {'[' * draw.choice([50, 5_000])}",
        f"seeds = [{'1, ' * draw.choice([20_000, 200_000])}]",
    ]
    if draw.random() < 0.3:
        lines.insert(draw.randrange(len(lines) + 1), draw.choice(attacks))
        return "\n".join(lines).encode()
    content = mutated_value(draw, tomllib.loads(data.decode()))
    return (tomli_w.dumps(content) if isinstance(content, dict) else str(content)).encode()


def _tar(draw: random.Random, data: bytes) -> bytes:
    """A field of a header, name, size or kind, that says something else, with a sum that fits."""
    place = 512 * draw.randrange(max(1, len(data) // 512))
    first, last = draw.choice([(0, 100), (124, 136), (124, 125), (156, 157), (257, 265), (345, 500)])
    field = draw.choice([b"\xff" * 200, b"\x80" + b"\0" * 199, b"7" * 200, b"../" * 70, b"x" * 200, b"L" * 200])
    head = bytearray(data[place : place + 512].ljust(512, b"\0"))
    head[first:last] = field[: last - first]
    head[148:156] = b"%06o\0 " % (sum(head[:148]) + 8 * 32 + sum(head[156:512]))
    return data[:place] + bytes(head) + data[place + 512 :]


ENCODINGS = ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "cp1252", "cp1251", "gbk", "cp437", "utf-7")
MUTATIONS = {
    **dict.fromkeys((".csv", ".tsv", ".txt"), _text),
    ".tar": _tar,
    ".toml": _toml,
    ".json": _json,
    ".jsonl": _lines,
    ".safetensors": _header,
    **dict.fromkeys((".pt", ".bin", ".npz"), _archive),
}


def some_file(draw: random.Random, folder: Path) -> Path:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != USER_FILE]
    return draw.choice(files)


# -- links, pipes and devices -----------------------------------------------------------------------------------------

USER_FILE = "mine.user"  # a file of the user's, in folders that leanify writes to
NAMES = (  # that leanify writes or reads, with what it might write beside them
    *("recipe.toml", "environment.json", "metrics.jsonl", "leanify.json", "data.json", "skipped.json", "kappa.json"),
    *("study.toml", "results.json", "report.html", "worker.log", "baseline-0.json", "baseline-0"),
    *("checkpoints", "00000003", "model.safetensors", "state.pt", "checkpoint.json", "shards", "runs", "starts"),
    *("config.json", "modules.json", "1_Pooling", "tokenizer.json", "tokenizer_notes.txt", "adapter_config.json"),
    *("pytorch_model.bin", "model.safetensors.index.json", "train-000000.tar", "train.csv", "train", "notes.txt"),
)


def damage(draw: random.Random, place: Path, elsewhere: Path) -> None:
    """Damage one file or a few in a folder, or put links, pipes and devices into it."""
    links = place.is_dir() and draw.random() < 0.4
    for _ in range(draw.choice([1, 1, 2, 4]) if place.is_dir() else 1):
        with contextlib.suppress(IndexError):  # the one before may have taken the last file away
            if links:
                add_special_file(draw, place, elsewhere)
            else:
                mutate(draw, some_file(draw, place) if place.is_dir() else place)


def make_outside(place: Path) -> None:
    """What must stay as it is: files and folders that links lead to."""
    (place / "docs").mkdir(parents=True)
    for name in (".bashrc", "docs/thesis.txt", "docs/00000007"):
        (place / name).write_text(f"{name} is precious\n")
    os.mkfifo(place / "docs" / "pipe")


def digest(place: Path) -> str:
    """Names, kinds, sizes and bytes below a folder."""
    sha = hashlib.sha256()
    for path in sorted(place.rglob("*")):
        about = path.lstat()
        sha.update(f"{path.relative_to(place)} {about.st_mode} {about.st_size}\n".encode(errors="replace"))
        if path.is_file():
            sha.update(path.read_bytes())
    return sha.hexdigest()


def add_user_files(home: Path) -> int:
    """Put a file of the user's into every folder of runs, studies and lean directories. Returns how many there are."""
    places = [home / "run", home / "study"]
    places += [place for name in ("run", "study", "lean-timm", "lean-hf") for place in (home / name).rglob("*")]
    places = [place for place in places if place.is_dir()]
    for place in places:
        (place / USER_FILE).write_text("mine")
    return len(places)


def add_special_file(draw: random.Random, folder: Path, elsewhere: Path) -> None:
    """Something that is no file in a folder or below it, in place of what is there or under a name that is written."""
    paths = [path for path in sorted(folder.rglob("*")) if not path.is_symlink() and path.name != USER_FILE]
    parent = draw.choice([folder, *(path for path in paths if path.is_dir())])
    place = draw.choice(paths) if paths and draw.random() < 0.5 else parent / draw.choice(NAMES)
    if draw.random() < 0.3:
        place = place.with_name(f".{place.name}{draw.choice(['', '.old', '.lock'])}")
    if place.is_dir() and not place.is_symlink():
        place.rename(place.with_name(f"{place.name}-moved"))
    elif os.path.lexists(place):
        place.unlink()
    targets = [*(elsewhere / name for name in (".bashrc", "docs", "docs/pipe", "new")), place.name, "/dev/zero"]
    targets += ["/dev/tty", "/proc/kmsg", "..", place.with_name(f"{place.name}-moved"), None, None]
    target = draw.choice(targets)
    if target is not None:
        place.symlink_to(target)
    elif draw.random() < 0.7:
        os.mkfifo(place)
    else:
        with contextlib.chdir(place.parent), socket.socket(socket.AF_UNIX) as server:
            server.bind(place.name[:90])  # a socket's path has at most 107 bytes
