"""The ways in which the fuzzer damages a file: its bytes, what it says, or what it is."""

from __future__ import annotations

import io
import json
import os
import random
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile

HOSTILE = (
    None, True, -1, 0, 1, 3, 7, 10**6, 10**24, -0.5, 1e400, float("nan"), "", "x", "0", "None", "../..", "/dev/zero",
    "κ×\ud800", "a" * 5000, [], [1], ["a"], [[]], {}, {"a": 1}, "__import__('os')", "hf-hub:a/b", [32, 32], "float16",
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
    put = [b"\0", b"\xff\xfe", b"\n", b'"', b"{" * 50_000, b"\xed\xa0\x80"]
    return draw.choice(
        [
            lambda: data[:place],
            lambda: data[:place] + bytes([draw.randrange(256)]) + data[place + 1 :],
            lambda: data[:place] + draw.choice(put) + data[place:],
            lambda: data[:place] + data[other:],
            lambda: data[place:other] * 3,
            lambda: data + data,
            lambda: b"",
        ]
    )()


def mutate(draw: random.Random, file: Path) -> None:
    """Change a file in place, or what it is: gone, a folder, a pipe, a link to nothing or to itself, a device."""
    how = draw.randrange(10)
    said = mutated_words(draw, file) if how >= 5 else None
    if said is not None:
        file.write_bytes(said)
    elif how >= 2:
        file.write_bytes(mutated_bytes(draw, file.read_bytes()))
    else:
        file.unlink()
        draw.choice(
            [
                lambda: None,
                file.mkdir,
                lambda: os.mkfifo(file),
                lambda: file.symlink_to("nowhere"),
                lambda: file.symlink_to(file.name),
                lambda: file.symlink_to("/dev/zero"),
            ]
        )()


# -- what a file says -------------------------------------------------------------------------------------------------


def mutated_words(draw: random.Random, file: Path) -> bytes | None:
    """The file with other values in a format that is still whole; None where no such way is known for it."""
    change = WAYS.get(file.suffix)
    try:
        return None if change is None else change(draw, file.read_bytes())
    except (ValueError, RecursionError, BadZipFile, IndexError):  # it was changed before
        return None


def _json(draw: random.Random, data: bytes) -> bytes:
    value = json.loads(data)
    for _ in range(draw.choice([1, 1, 2, 5])):
        value = mutated_value(draw, value)
    return json.dumps(value).encode()


def _lines(draw: random.Random, data: bytes) -> bytes:
    """One line of JSON lines."""
    lines = data.splitlines(keepends=True)
    place = draw.randrange(len(lines))
    lines[place] = _json(draw, lines[place]) + b"\n"
    return b"".join(lines)


def _toml(draw: random.Random, data: bytes) -> bytes:
    value = mutated_value(draw, tomllib.loads(data.decode()))
    rows = value.items() if isinstance(value, dict) else [("x", value)]
    return "".join(f"{json.dumps(key)} = {_inline(item)}\n" for key, item in rows).encode(errors="replace")


def _inline(value: Any) -> str:
    """A value as TOML writes it inside a line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_inline(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(_inline, value))}]"
    return json.dumps("" if value is None else value).replace("Infinity", "inf").replace("NaN", "nan")


def _header(draw: random.Random, data: bytes) -> bytes:
    """Other types, shapes and places in the header of a safetensors file."""
    end = 8 + int.from_bytes(data[:8], "little")
    header = _json(draw, data[8:end])
    return len(header).to_bytes(8, "little") + header + data[end:]


def _archive(draw: random.Random, data: bytes) -> bytes:
    """A member of a torch or NumPy file changed, dropped, renamed, compressed, or far larger than it was."""
    made = io.BytesIO()
    with ZipFile(io.BytesIO(data)) as old, ZipFile(made, "w", ZIP_STORED) as new:
        chosen, how = draw.choice(old.namelist()), draw.randrange(5)
        for name in old.namelist():
            inside, place, kind = old.read(name), name, ZIP_STORED
            if name == chosen and how == 0:
                continue
            if name == chosen:
                inside = mutated_bytes(draw, inside) if how >= 3 else inside + b"\0" * (10**7 if how == 1 else 0)
                place, kind = (f"{name}x", kind) if how == 2 else (name, ZIP_DEFLATED if how == 1 else kind)
            new.writestr(place, inside, kind)
    return made.getvalue()


def _array(draw: random.Random, data: bytes) -> bytes:
    """A whole NumPy file of another shape or type."""
    import numpy as np

    made, old = io.BytesIO(), np.load(io.BytesIO(data))
    others = [
        np.array(1.0),
        old[:-1],
        old.T,
        old.astype("int8"),
        old.astype("complex64"),
        np.array(["a"]),
        old * np.nan,
    ]
    np.save(made, draw.choice(others))
    return made.getvalue()


WAYS = {
    ".json": _json,
    ".jsonl": _lines,
    ".toml": _toml,
    ".safetensors": _header,
    ".npy": _array,
    **dict.fromkeys((".pt", ".bin", ".npz"), _archive),
}


def some_file(draw: random.Random, folder: Path, *suffixes: str) -> Path:
    files = [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix in (suffixes or path.suffix) and path.suffix != ".user"
    ]
    return draw.choice(files)
