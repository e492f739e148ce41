"""One bound on what strangers' tokenizers and pictures take: it holds for kinds that no rule knows."""

from __future__ import annotations

import io
import resource
import time
from pathlib import Path
from typing import Any

import bounds
import pytest
from runs import change_json
from torchvision import transforms

import leanify
from leanify.core import machine
from leanify.core.bounds import call
from leanify.core.bounds import memory as memory_bound
from leanify.core.errors import DataError, LeanifyError
from leanify.data.images.decoding import Decoder, bytes_per_pixel, open_picture
from leanify.data.images.folder import find_processor
from leanify.data.texts import tokenizers
from leanify.sources import names

BEYOND = "over the bound of 150.00 MiB on its memory; LEANIFY_MEMORY=8G"
GREEDY = {  # those of `bounds.py` that need little time, and what is said about them
    "byte levels": BEYOND,
    "a rule with another's key": BEYOND,
    "a rule for a rare letter": BEYOND,
    "letters in thirty pieces": BEYOND,
    "a template of copies": BEYOND,
    "a map that panics": "Cannot parse",
}


@pytest.fixture(scope="module")
def byte_tokenizer() -> Any:
    return tokenizers.make_tokenizer("bytes", lambda: [], "")[0]


@pytest.fixture
def tokenizer_folder(byte_tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tokenizer in a folder, with a module of the name of the library that reads it, and 150 MB of memory."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("LEANIFY_MEMORY", "150M")
    monkeypatch.setattr("leanify.core.bounds._in_process", [])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tokenizers.py").write_text("import os; os.mkdir('RAN')\n")
    byte_tokenizer.save_pretrained(tmp_path / "tokenizer")
    return tmp_path / "tokenizer"


def read_chinese(name: Path | str) -> None:
    tokenizer = tokenizers.load(name)
    tokenizers.encode(tokenizer, ["中文 aaa é " * 300 + "a" * 60 + "!"] * 20)


@pytest.mark.parametrize("kind", GREEDY)
def test_greedy_tokenizers_end_in_one_message(kind: str, tokenizer_folder: Path) -> None:
    bounds.with_rules(bounds.RULES[kind])
    for _ in range(2):
        with pytest.raises(DataError, match=GREEDY[kind]) as refusal:
            read_chinese(tokenizer_folder)
        assert "\n" not in str(refusal.value)
        assert "tokenizer" in str(refusal.value)
    assert not (tokenizer_folder.parent / "RAN").exists()


def test_tried_file_is_read_file(tokenizer_folder: Path) -> None:
    """transformers takes another file than tokenizer.json, or one outside."""
    bounds.named_elsewhere()
    with pytest.raises(DataError, match=BEYOND):
        read_chinese(tokenizer_folder)
    change_json(tokenizer_folder / "tokenizer_config.json", fast_tokenizer_files=["../tokenizer.4.0.json"])
    with pytest.raises(DataError, match="no tokenizer files beside it"):
        read_chinese(tokenizer_folder)


def test_hub_tokenizers_are_bounded(tokenizer_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bounds.on_the_hub()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", "hub")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    names.hub_answers.cache_clear()
    with pytest.raises(DataError, match=BEYOND):
        read_chinese(bounds.HUB_ID)


def test_lower_limits_hold_in_forks() -> None:
    """A batch system's hard limit of processor time is below a fork's own."""

    def limited() -> list[int]:
        resource.setrlimit(resource.RLIMIT_CPU, (5, 5))
        return [call(lambda: resource.getrlimit(resource.RLIMIT_CPU)[0], "a reader", seconds) for seconds in (3, 60)]

    assert call(limited, "a process with a limit") == [3, 5]


TOO_LARGE = r"makes pictures of \d+,000 pixels a side \(size\) and the model takes 16"


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("size", {"height": 40_000, "width": 40_000}, TOO_LARGE),
        ("size", {"shortest_edge": 100_000}, TOO_LARGE),
        ("size", {"height": "16", "width": [16]}, "does not open"),
        ("image_mean", ["a", "b", "c"], "does not open"),
        ("image_std", [0, 0, 0], "no finite pixels"),
        ("image_std", [0.5], "statistics of"),
        ("rescale_factor", float("nan"), "no finite pixels"),
        ("rescale_factor", 0, "does not open"),
    ],
)
def test_greedy_processor_is_refused(
    key: str, value: Any, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of pictures without bound, or of numbers that are no pixels."""
    monkeypatch.chdir(tmp_path)
    bounds.by_a_processor(shortest_edge=18)
    model = leanify.load("vit")
    assert find_processor(model, (3, 16, 16)) is not None
    change_json(Path("vit/preprocessor_config.json"), **{key: value})
    with pytest.raises(DataError, match=words):
        find_processor(model, (3, 16, 16))


PICTURES = {
    "pixels of eight bytes": bounds.png(4_000, 3_000, 16, 6),
    "a line that is enlarged": bounds.png(1_000_000, 1, 8, 2),
    "no pixels": bounds.tiff_of_one_strip(5_000, 5_000),
    "a header": b"P6 5000 5000 65535\n" + bytes(1000),
}


@pytest.mark.parametrize("kind", PICTURES)
def test_greedy_pictures_end_in_one_message(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A header says how large a picture is; what a transform makes of it is bounded by the kernel."""
    monkeypatch.setenv("LEANIFY_MEMORY", "150M")
    monkeypatch.setattr("leanify.core.bounds._in_process", [])
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with pytest.raises(DataError, match=r"^the image big\.png.* over the bound of 150\.00 MiB on its memory"):
        Decoder()(io.BytesIO(PICTURES[kind]), "RGB", "big.png", transforms.Resize(224))
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


@pytest.mark.parametrize("layout", [(16, 2), (16, 6), (16, 4), (16, 0), (8, 6), (8, 2), (8, 0)])
def test_pictures_take_what_is_predicted(layout: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A picture whose header is just within the bound is decoded within it."""
    data = bounds.png(1500, 1500, *layout)
    with open_picture(io.BytesIO(data)) as image:
        monkeypatch.setenv("LEANIFY_MEMORY", str(bytes_per_pixel(image) * 1500 * 1500))
    monkeypatch.setattr("leanify.core.bounds._in_process", [])
    assert call(lambda: Decoder()(io.BytesIO(data), "RGB", "a").size, "a picture") == (1500, 1500)


@pytest.mark.slow
def test_slow_readers_end_in_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the processor's time, and by the clock if they wait."""

    def busy() -> None:
        while True:
            pass

    monkeypatch.setenv("LEANIFY_MEMORY", "100M")
    monkeypatch.setattr("leanify.core.bounds.WAITS", 2)
    for reader in (busy, lambda: time.sleep(600)):
        with pytest.raises(DataError, match="a reader takes over 1 s of processor time, or 2 times as long by"):
            call(reader, "a reader", 1)
    with pytest.raises(DataError, match="a reader goes over the bound"):
        call(lambda: bytes(80 << 20), "a reader")


@pytest.mark.parametrize("text", ["much", "0", "-1G", "1e9", "4 G", "9" * 40])
def test_odd_bounds_are_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEANIFY_MEMORY", text)
    with pytest.raises(LeanifyError, match="is no amount of memory; write 4G or 512M"):
        memory_bound()


def test_bounds_are_shares_or_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    free = machine.free_memory()
    sizes = {}
    for text in ("2G", "1.5GiB", "512M", "1000000", "0.25", ""):
        monkeypatch.setenv("LEANIFY_MEMORY", text)
        sizes[text] = memory_bound()
    assert (sizes["2G"], sizes["1.5GiB"], sizes["512M"], sizes["1000000"]) == (2 << 30, 3 << 29, 512 << 20, 10**6)
    assert abs(sizes[""] / sizes["0.25"] - 2) < 0.5
    assert 0.1 * free < sizes["0.25"] < 0.5 * free
