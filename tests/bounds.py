"""Tokenizers and pictures that ask for all memory or time: what leanify makes of each, within the bound.

    python tests/bounds.py              every member: peak memory of its processes, seconds, exit code and message
    python tests/bounds.py NAME …       these members

Each member is a command of its own under LEANIFY_MEMORY=1G. It ends well where it succeeds, or gives one message with
exit code 2, and where its processes took no more than the bound beside what the libraries take.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runs import change_json, write_shard

BOUND = "1G"
LIBRARIES = 1 << 30  # bytes of memory that a command takes for any model
FOLDER = Path("bert")
HUB_ID = "somebody/bert"
BASE = "train bert --set data.path=rows.csv --set data.holdout=0.2 --set schedule.epochs=1 -o out"
TRAIN = f"{BASE} --set data.tokenizer=tokenizer"
PICTURES = "train pictures -o out --set data.holdout=0.2 --set schedule.epochs=1 --set model.override.img_size=16"


# -- tokenizers -------------------------------------------------------------------------------------------------------

Parts = dict[str, Any]


def precompiled(table: bytes) -> Parts:
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(table).decode()}


def trie(replacement: bytes) -> bytes:
    """A table of characters with one text in it."""
    return (4).to_bytes(4, "little") + bytes(4) + replacement + b"\0"


def replace(pattern: dict[str, str], content: str, **more: str) -> Parts:
    return {"type": "Replace", "pattern": pattern, "content": content, **more}


def normalizers(*rules: Parts) -> Parts:
    return {"normalizer": {"type": "Sequence", "normalizers": list(rules)}}


def template(count: int) -> Parts:
    """A template that repeats a text."""
    return {
        "type": "TemplateProcessing",
        "single": [{"Sequence": {"id": "A", "type_id": 0}}] * count,
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {},
    }


def nested(depth: int) -> Parts:
    rule: Parts = {"type": "Lowercase"}
    for _ in range(depth):
        rule = {"type": "Sequence", "normalizers": [rule]}
    return {"normalizer": rule}


WORDS = {"model": {"type": "WordLevel", "vocab": {"[UNK]": 1, "a": 5}, "unk_token": "[UNK]"}}
PADDING = {"direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"}
CUT = {"direction": "Right", "strategy": "LongestFirst"}
BYTES = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": False}
RULES: dict[str, Parts] = {
    "byte levels": normalizers(*[{"type": "ByteLevel"}] * 14) | WORDS,
    "many byte levels": normalizers(*[{"type": "ByteLevel"}] * 60) | WORDS,
    "a rule with another's key": normalizers(
        *[replace({"String": "a"}, "a" * 40, precompiled_charsmap=base64.b64encode(trie(b"a")).decode())] * 6
    ),
    "a rule for any letter": normalizers(replace({"Regex": "."}, "a" * 4000)),
    "a rule for nothing": normalizers(*[replace({"Regex": ""}, "aa")] * 12),
    "a rule for a rare letter": normalizers(*[replace({"String": "\u4e2d"}, "\u4e2d" * 60)] * 4),
    "rules for a rare word": normalizers(*[replace({"String": "\u4e2d\u6587"}, "\u4e2d\u6587" * 60)] * 4),
    "a long prefix": normalizers(*[{"type": "Prepend", "prepend": "a" * 1_000_000}] * 40),
    "a map to long texts": {"normalizer": precompiled(trie(b"a" * 9999))},
    "a map that panics": {"normalizer": precompiled(b"\0\1\0\0" + b"\xff" * 300)},
    "a map that is cut off": {"normalizer": precompiled((1 << 30).to_bytes(4, "little"))},
    "letters in thirty pieces": {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [BYTES] * 30}},
    "padding that aborts": {"padding": {"strategy": {"Fixed": 10**11}, **PADDING}},
    "ten million pads": {"padding": {"strategy": {"Fixed": 10**7}, **PADDING}},
    "pads to a multiple": {"padding": {"strategy": "BatchLongest", **PADDING, "pad_to_multiple_of": 10**9}},
    "windows of one step": {"truncation": {**CUT, "max_length": 2000, "stride": 1999}},
    "a template of copies": {"post_processor": template(100_000)},
    "templates of templates": {"post_processor": {"type": "Sequence", "processors": [template(8)] * 12}},
    "nested rules": nested(100),
    "a nest without end": nested(400),
    "a pattern without end": {
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": r"(a+)+$"}, "behavior": "Isolated", "invert": False}
    },
    "a slow pattern": normalizers(*[replace({"Regex": r"(?:a?){25}a{25}\b|(?<=a.*)b"}, "")] * 5000),
    "one long word": {"model": {"type": "Unigram", "vocab": [["a" * 60_000_000, 0.0]], "unk_id": 0}},
    "a huge number": {"model": {"type": "WordLevel", "vocab": {"[UNK]": 2**32 - 1, "[PAD]": 0}, "unk_token": "[UNK]"}},
    "tokens that are added": {
        "added_tokens": [
            {"id": n, "content": f"t{n}", "special": True, "normalized": False, "lstrip": False, "rstrip": False,
             "single_word": False}
            for n in range(300_000)
        ]
    },
}  # fmt: skip


def with_rules(parts: Parts) -> str:
    change_json(Path("tokenizer/tokenizer.json"), **parts)
    return TRAIN


def named_elsewhere() -> str:
    """transformers reads the file that is named, and finds an innocent tokenizer.json beside it."""
    shutil.copy("tokenizer/tokenizer.json", "innocent.json")
    with_rules(RULES["many byte levels"])
    Path("tokenizer/tokenizer.json").rename("tokenizer/tokenizer.4.0.json")
    shutil.move("innocent.json", "tokenizer/tokenizer.json")
    change_json(Path("tokenizer/tokenizer_config.json"), fast_tokenizer_files=["tokenizer.4.0.json"])
    return TRAIN


def named_outside() -> str:
    named_elsewhere()
    Path("tokenizer/tokenizer.4.0.json").rename("tokenizer.4.0.json")
    change_json(Path("tokenizer/tokenizer_config.json"), fast_tokenizer_files=["../tokenizer.4.0.json"])
    return TRAIN


def on_the_hub() -> str:
    with_rules(RULES["many byte levels"])
    home = Path("hub") / f"models--{HUB_ID.replace('/', '--')}"
    (home / "refs").mkdir(parents=True)
    (home / "refs" / "main").write_text("0" * 40)
    shutil.copytree("tokenizer", home / "snapshots" / ("0" * 40))
    return f"{BASE} --set data.tokenizer={HUB_ID}"


def sparse_vocabulary() -> str:
    Path("tokenizer/tokenizer.json").unlink()
    with Path("tokenizer/vocab.txt").open("w") as file:
        file.truncate(30 << 30)
    return TRAIN


def sentencepiece() -> str:
    """A length of four gigabytes where the pieces should be."""
    Path("tokenizer/tokenizer.json").unlink()
    Path("tokenizer/tokenizer.model").write_bytes(b"\x0a\xff\xff\xff\xff\x0f" + b"a" * 100_000)
    return TRAIN


def tokens_by_number() -> str:
    added = {str(10**number): {"content": "x", "special": True} for number in range(1, 18)}
    change_json(Path("tokenizer/tokenizer_config.json"), added_tokens_decoder=added)
    return TRAIN


def in_own_folder() -> str:
    """The tokenizer of the model that is trained, not one that is named."""
    with_rules(RULES["many byte levels"])
    shutil.copy("tokenizer/tokenizer.json", FOLDER)
    return BASE


def while_probing() -> str:
    with_rules(RULES["byte levels"])
    shutil.copy("tokenizer/tokenizer.json", FOLDER)
    return "condition bert --samples 4 --data rows.csv"


# -- pictures ---------------------------------------------------------------------------------------------------------


Chunk = tuple[bytes, bytes]  # its kind and data


def png_file(width: int, height: int, depth: int, colour: int, pixels: bytes, *chunks: Chunk) -> bytes:
    """A PNG file of compressed pixels."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    file = b"\x89PNG\r\n\x1a\n"
    for kind, data in ((b"IHDR", header), *chunks, (b"IDAT", pixels), (b"IEND", b"")):
        file += struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    return file


def png(width: int, height: int, depth: int = 16, colour: int = 2, *chunks: Chunk) -> bytes:
    """A picture of one value, compressed to about a thousandth of its size."""
    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour]
    row = b"\0" + bytes((width * channels * depth + 7) // 8)
    packer, parts = zlib.compressobj(9), []
    for start in range(0, height, 64):
        parts.append(packer.compress(row * min(64, height - start)))
    return png_file(width, height, depth, colour, b"".join([*parts, packer.flush()]), *chunks)


def noise() -> bytes:
    """A picture of 8 × 8 pixels that is like no other."""
    from PIL import Image

    file = io.BytesIO()
    Image.frombytes("RGB", (8, 8), os.urandom(192)).save(file, "PNG")
    return file.getvalue()


def by_pillow(mode: str, size: tuple[int, int], kind: str, **options: Any) -> bytes:
    from PIL import Image

    Image.MAX_IMAGE_PIXELS = None
    file = io.BytesIO()
    Image.new(mode, size).save(file, kind, **options)
    return file.getvalue()


def tiff_of_one_strip(width: int, height: int) -> bytes:
    """A header of a picture whose pixels are not there."""
    entries = [(256, 4, 1, width), (257, 4, 1, height), (258, 3, 1, 16), (259, 3, 1, 1), (262, 3, 1, 1),
               (273, 4, 1, 8), (277, 3, 1, 1), (278, 4, 1, height), (279, 4, 1, 0xFFFFFFF0)]  # fmt: skip
    table = struct.pack("<H", len(entries)) + b"".join(struct.pack("<HHII", *entry) for entry in entries) + bytes(4)
    return b"II*\0" + struct.pack("<I", 8) + table


IMAGES: dict[str, Callable[[], bytes]] = {
    "16 bits, three colours": lambda: png(11_000, 8_000),
    "16 bits, with alpha": lambda: png(11_000, 8_000, 16, 6),
    "16 bits, grey": lambda: png(13_000, 13_000, 16, 0),
    "16 bits, grey with alpha": lambda: png(11_000, 8_000, 16, 4),
    "8 bits, with alpha": lambda: png(13_000, 13_000, 8, 6),
    "one bit": lambda: png(13_300, 13_300, 1, 0),
    "just below the bound": lambda: png(5_000, 5_000, 16, 6),
    "a line": lambda: png(1_000_000, 1, 8, 2),
    "a column": lambda: png(1, 1_000_000, 8, 2),
    "a comment of gigabytes": lambda: png(
        8, 8, 8, 2, *[(b"zTXt", b"a\0\0" + zlib.compress(bytes(60_000_000), 9))] * 40
    ),
    "a profile of gigabytes": lambda: png(8, 8, 8, 2, (b"iCCP", b"a\0\0" + zlib.compress(bytes(400_000_000), 9))),
    "progressive JPEG": lambda: by_pillow("RGB", (13_000, 13_000), "JPEG", progressive=True),
    "JPEG": lambda: by_pillow("CMYK", (13_000, 13_000), "JPEG"),
    "WebP": lambda: by_pillow("RGBA", (13_000, 13_000), "WEBP", lossless=True, method=0),
    "GIF": lambda: by_pillow("P", (13_000, 13_000), "GIF"),
    "BMP": lambda: by_pillow("RGB", (9_000, 9_000), "BMP")[:2000],
    "TIFF": lambda: by_pillow("I;16", (13_000, 13_000), "TIFF", compression="tiff_lzw"),
    "a TIFF of one strip": lambda: tiff_of_one_strip(13_000, 13_000),
    "PPM": lambda: b"P6 13000 13000 65535\n" + bytes(1000),
    "JPEG 2000": lambda: by_pillow("RGBA", (6_000, 6_000), "JPEG2000"),
}


def write_pictures(folder: Path, kind: str, pictures: list[bytes]) -> None:
    """Pictures of two classes in turn, in folders, a shard or a table."""
    folder.mkdir(exist_ok=True)
    labels = ["a", "b"] * (len(pictures) // 2)
    if kind == "shard":
        write_shard(folder / "train-000000.tar", zip(pictures, (label.encode() for label in labels), strict=True))
    elif kind == "table":
        import pyarrow
        import pyarrow.parquet

        table = pyarrow.table({"image": [{"bytes": data, "path": None} for data in pictures], "label": labels})
        pyarrow.parquet.write_table(table, folder / "train.parquet")
    else:
        for number, (data, label) in enumerate(zip(pictures, labels, strict=True)):
            (folder / label).mkdir(exist_ok=True)
            (folder / label / f"{number}.png").write_bytes(data)


def among_others(picture: bytes, kind: str = "folder") -> str:
    """A picture beside seven small ones."""
    write_pictures(Path("pictures"), kind, [picture, *(noise() for _ in range(7))])
    return PICTURES


def by_a_processor(**size: int) -> str:
    """A picture of the model's own folder's processor."""
    import leanify

    model: Any = leanify.load("hf/vit", overrides={"image_size": 16, "patch_size": 4, "hidden_size": 16,
        "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16,
        "class": "AutoModelForImageClassification"})  # fmt: skip
    model.save_pretrained("vit")
    words = {"image_processor_type": "ViTImageProcessor", "size": size, "crop_size": {"height": 16, "width": 16}}
    Path("vit/preprocessor_config.json").write_text(json.dumps(words))
    among_others(png(8, 8, 8))
    return "train vit -o out --set data.path=pictures --set data.holdout=0.2 --set schedule.epochs=1"


MEMBERS: dict[str, Callable[[], str]] = {
    **{name: lambda parts=parts: with_rules(parts) for name, parts in RULES.items()},  # type: ignore[misc]
    "named elsewhere": named_elsewhere,
    "named outside": named_outside,
    "on the hub": on_the_hub,
    "a sparse vocabulary": sparse_vocabulary,
    "a broken SentencePiece": sentencepiece,
    "tokens by number": tokens_by_number,
    "in the model's folder": in_own_folder,
    "while probing": while_probing,
    **{name: lambda make=make: among_others(make()) for name, make in IMAGES.items()},  # type: ignore[misc]
    "in a shard": lambda: among_others(IMAGES["16 bits, with alpha"](), "shard"),
    "in a table": lambda: among_others(IMAGES["16 bits, with alpha"](), "table"),
    "a processor's size": lambda: by_a_processor(height=40_000, width=40_000),
    "a processor's edge": lambda: by_a_processor(shortest_edge=100_000),
}

# -- running ----------------------------------------------------------------------------------------------------------


def make_model(home: Path) -> None:
    """A small BERT, a tokenizer beside it, and a table with Chinese cells."""
    import leanify
    from leanify.data.texts.tokenizers import make_tokenizer

    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    model: Any = leanify.load("hf/bert", overrides={**sizes, "vocab_size": 300, "max_position_embeddings": 64})
    model.save_pretrained(home / FOLDER)
    for place in (home / "tokenizer", home / FOLDER):
        make_tokenizer("bytes", lambda: [], "")[0].save_pretrained(place)
    rows = ["text,label", *(f"{'中文 aaa é ' * 300}{'a' * 60}!,{number % 2}" for number in range(60))]
    (home / "rows.csv").write_text("\n".join(rows))


def attack(name: str, intact: Path) -> tuple[int, str, float, int]:
    """Exit code, message, seconds, and the largest peak of a process's memory in bytes."""
    with tempfile.TemporaryDirectory(prefix="bounds-") as folder:
        shutil.copytree(intact, folder, dirs_exist_ok=True)
        with contextlib.chdir(folder):
            line = MEMBERS[name]().split()
        variables = {"LEANIFY_MEMORY": BOUND, "XDG_CACHE_HOME": f"{folder}/cache", "HF_HUB_OFFLINE": "1"}
        variables |= {"HF_HUB_CACHE": f"{folder}/hub", "OMP_NUM_THREADS": "1"}
        start = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "leanify", *line], cwd=folder, env=os.environ | variables,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stderr is not None
        said = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        messages = [text for text in said.splitlines() if text.startswith("leanify: ")]
        message = (messages or said.splitlines() or [""])[-1].removeprefix("leanify: ").replace(folder, "…")
        return process.returncode, message, time.monotonic() - start, usage.ru_maxrss * 1024


def main(names: list[str]) -> int:
    intact = Path(tempfile.mkdtemp(prefix="bounds-intact-"))
    failures = 0
    try:
        make_model(intact)
        most = int(BOUND[:-1]) * 2**30 + LIBRARIES
        for name in names or MEMBERS:
            code, message, seconds, peak = attack(name, intact)
            good = code in (0, 2) and peak <= most and "unexpected" not in message
            failures += not good
            mark = "" if good else "BAD "
            print(f"{mark}{name:28} {peak / 2**30:5.2f} GiB {seconds:6.1f} s  exit {code}  {message[:160]}", flush=True)
        print(f"{failures} of {len(names or MEMBERS)} went beyond the bound of {BOUND}, or ended badly")
    finally:
        shutil.rmtree(intact)
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
