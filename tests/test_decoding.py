"""Pictures are decoded as a viewer shows them, by training, `predict` and `condition` alike."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import bounds
import numpy as np
import pytest
from PIL import Image

import leanify
from leanify.core.errors import DataError
from leanify.data.images.decoding import FORMATS, Decoder, choose_decoder
from leanify.data.probe_inputs import ImageFolder
from leanify.runs.run_directory import RunDirectory

SQUARE = np.zeros((8, 8), np.uint8)
SQUARE[2:6, 2:6] = 255
INK = np.zeros((8, 8), np.uint8)
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180, 4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE, 6: Image.Transpose.ROTATE_90, 7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}  # fmt: skip


def with_alpha(ink: int) -> Image.Image:
    """A square in the alpha channel alone."""
    return Image.fromarray(np.dstack([INK + ink] * 3 + [SQUARE]), "RGBA")


def palette(ink: int) -> Image.Image:
    picture = Image.fromarray(SQUARE // 255, "P")
    picture.putpalette([ink] * 768)
    return picture


def grey_with_alpha(ink: int) -> Image.Image:
    return Image.merge("LA", (Image.fromarray(INK + ink), Image.fromarray(SQUARE)))


def encode(picture: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


class Files:
    """Encoded pictures, as a reader gives them."""

    def __init__(self, *pictures: bytes) -> None:
        self.pictures = pictures

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> tuple[io.BytesIO, int]:
        return io.BytesIO(self.pictures[index]), 0


TRANSPARENT = {
    "RGBA": lambda ink: encode(with_alpha(ink), "PNG"),
    "LA": lambda ink: encode(grey_with_alpha(ink), "PNG"),
    "palette": lambda ink: encode(palette(ink), "PNG", transparency=bytes([0, 255])),
    "GIF": lambda ink: encode(palette(ink), "GIF", transparency=0),
    "WebP": lambda ink: encode(with_alpha(ink), "WEBP", lossless=True, exact=True),
    "TIFF": lambda ink: encode(with_alpha(ink), "TIFF"),
    "LA TIFF": lambda ink: encode(grey_with_alpha(ink), "TIFF"),
}


@pytest.mark.parametrize("kind", TRANSPARENT)
@pytest.mark.parametrize(("ink", "background"), [(0, "white"), (255, "black"), (250, "black")])
def test_transparent_shapes_stay_visible(kind: str, ink: int, background: str) -> None:
    data = TRANSPARENT[kind](ink)
    decoder, note = choose_decoder(Files(data))
    assert (decoder.background, note) == (background, f", transparent pixels on {background}")
    for mode in ("RGB", "L"):
        values = np.asarray(decoder(io.BytesIO(data), mode, kind))
        around = 255 if background == "white" else 0
        assert set(np.unique(values[SQUARE == 0])) == {around}
        assert set(np.unique(values[SQUARE > 0])) == {ink}


def test_named_background_wins() -> None:
    data = encode(with_alpha(0), "PNG")
    decoder, _ = choose_decoder(Files(data), "black")
    assert np.asarray(decoder(io.BytesIO(data), "L", "a")).max() == 0


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", TURNS)
def test_photos_stand_upright(kind: str, orientation: int) -> None:
    upright = np.full((16, 24, 3), 40, np.uint8)
    upright[:5, :9] = 220
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"PNG": {}, "JPEG": {"quality": 100}, "WEBP": {"lossless": True}, "TIFF": {}}[kind]
    data = encode(Image.fromarray(upright).transpose(TURNS[orientation]), kind, exif=exif, **options)
    seen = np.asarray(Decoder()(io.BytesIO(data), "RGB", "photo")).astype(int)
    assert seen.shape == upright.shape
    assert abs(seen - upright).max() < 50


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_damaged_exif_turns_nothing() -> None:
    data = encode(Image.new("RGB", (6, 4), (9, 9, 9)), "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff broken")
    assert Decoder()(io.BytesIO(data), "RGB", "a").size == (6, 4)


RAMP = np.linspace(0, 1, 64).reshape(8, 8)


@pytest.mark.parametrize("order", ["<u2", ">u2"])
@pytest.mark.parametrize(("low", "high"), [(0, 65535), (0, 4095), (20000, 20400), (7, 1030)])
def test_deep_pixels_fill_range(order: str, low: int, high: int) -> None:
    values = (low + RAMP * (high - low)).round()
    mode = "I;16" if order == "<u2" else "I;16B"
    data = encode(Image.frombytes(mode, (8, 8), values.astype(order).tobytes()), "TIFF")
    decoder, note = choose_decoder(Files(data))
    assert note == f", 16-bit pixels from {low:,} to {high:,}"
    seen = np.asarray(decoder(io.BytesIO(data), "L", "scan")) / 255
    assert abs(seen - RAMP).max() < 0.01


def test_range_spans_all_pictures() -> None:
    dark, bright = (encode(Image.fromarray((RAMP * high).astype(np.uint16)), "PNG") for high in (1000, 4000))
    decoder, _ = choose_decoder(Files(dark, bright))
    assert decoder.pixel_range == (0, 4000)
    assert np.asarray(decoder(io.BytesIO(dark), "L", "a")).max() == 64


def deep_png(values: np.ndarray, *chunks: bounds.Chunk) -> bytes:
    """16 bits a channel, which Pillow does not write: (H, W, channels)."""
    height, width, channels = values.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    return bounds.png_file(width, height, 16, {2: 4, 3: 2, 4: 6}[channels], zlib.compress(rows), *chunks)


def deep_tiff(values: np.ndarray, order: str = "<") -> bytes:
    """The same in an uncompressed TIFF file, of either byte order."""
    height, width, channels = values.shape
    data = values.astype(f"{order}u2").tobytes()
    entries = [(256, width), (257, height), (259, 1), (262, 2), (273, 8), (277, channels), (278, height)]
    entries += [(279, len(data))] + [(338, 2)] * (channels == 4)
    end = 8 + len(data)
    table = {tag: struct.pack(f"{order}HHII", tag, 4, 1, value) for tag, value in entries}
    table[258] = struct.pack(f"{order}HHII", 258, 3, channels, end)  # bits of each channel
    bits = struct.pack(f"{order}{channels}H", *[16] * channels)
    directory = struct.pack(f"{order}H", len(table)) + b"".join(table[tag] for tag in sorted(table)) + bytes(4)
    mark = {"<": b"II*\0", ">": b"MM\0*"}[order]
    return mark + struct.pack(f"{order}I", end + len(bits)) + data + bits + directory


DEEP = {"PNG": deep_png, "TIFF": deep_tiff, "TIFF >": lambda values: deep_tiff(values, ">")}


@pytest.mark.parametrize("kind", DEEP)
@pytest.mark.parametrize(("low", "high"), [(0, 65535), (0, 4095), (300, 420)])
def test_deep_colours_fill_range(kind: str, low: int, high: int) -> None:
    """Pillow keeps the highest 8 bits: 12-bit colours would be black."""
    shades = np.stack([RAMP, RAMP[::-1], RAMP.T], 2)
    data = DEEP[kind]((low + shades * (high - low)).round())
    decoder, note = choose_decoder(Files(data))
    assert note == f", 16-bit pixels from {low:,} to {high:,}"
    seen = np.asarray(decoder(io.BytesIO(data), "RGB", "scan")) / 255
    assert abs(seen - shades).max() < 0.01


@pytest.mark.parametrize(("kind", "channels"), [("PNG", 2), ("PNG", 4), ("TIFF", 4)])
@pytest.mark.parametrize(("ink", "background"), [(0, "white"), (65535, "black")])
def test_deep_alpha_stays_visible(kind: str, channels: int, ink: int, background: str) -> None:
    values = np.full((8, 8, channels), ink)
    values[..., -1] = SQUARE.astype(int) * 257
    data = DEEP[kind](values)
    decoder, note = choose_decoder(Files(data), pixel_range=(0, 65535))
    assert note.startswith(f", transparent pixels on {background}")
    seen = np.asarray(decoder(io.BytesIO(data), "L", "icon"))
    assert set(np.unique(seen[SQUARE > 0])) == {ink // 257}
    assert set(np.unique(seen[SQUARE == 0])) == {255 - ink // 257}


def test_deep_photos_stand_upright() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    values = (RAMP[..., None] * [65535, 60000, 50000]).round()
    plain = encode(Image.new("RGB", (8, 8)), "PNG", exif=exif)
    start = plain.index(b"eXIf") + 4
    data = plain[start : start + int.from_bytes(plain[start - 8 : start - 4], "big")]
    turned = np.asarray(Decoder()(io.BytesIO(deep_png(values, (b"eXIf", data))), "RGB", "a"))
    straight = np.asarray(Decoder()(io.BytesIO(deep_png(values)), "RGB", "a"))
    assert (turned == np.rot90(straight, -1)).all()


@pytest.mark.parametrize("kind", ["EPS", "PDF", "ICNS", "PCX"])
def test_other_formats_stay_closed(kind: str) -> None:
    """Pillow starts Ghostscript for EPS, whatever the file is called."""
    data = encode(Image.new("RGB", (32, 32)), kind)
    with pytest.raises(DataError, match=r"shape\.png cannot be read \(cannot identify image file\)"):
        Decoder()(io.BytesIO(data), "RGB", "shape.png")


def test_formats_are_pillows() -> None:
    Image.init()
    assert set(FORMATS) - set(Image.OPEN) <= {"AVIF"}, "which Pillow reads from 11.3 on"


def test_unknown_formats_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """With an older Pillow, a picture in none of its formats is still no picture, not an error of ours."""
    Image.init()
    monkeypatch.delitem(Image.OPEN, "AVIF", raising=False)
    monkeypatch.setattr(Image, "init", lambda: False)
    with pytest.raises(DataError, match="cannot identify image file"):
        Decoder()(io.BytesIO(b"no picture"), "RGB", "name")


# -- a run -------------------------------------------------------------------------------------------------------------


def test_run_keeps_its_decoding(tmp_path: Path) -> None:
    """White shapes on a transparent ground: squares and bars."""
    bar = np.zeros((8, 8), np.uint8)
    bar[:, 3:5] = 255
    for split in ("train", "validation"):
        for name, shape in (("square", SQUARE), ("bar", bar)):
            (tmp_path / split / name).mkdir(parents=True)
            for number in range(6):
                channels = [INK + 255] * 3 + [np.roll(shape, number % 3, 1)]
                Image.fromarray(np.dstack(channels), "RGBA").save(tmp_path / split / name / f"{number}.png")
    settings = [f"data.path={tmp_path}", "schedule.epochs=1", "data.workers=0", "model.override.depth=1"]
    run = leanify.train("own-images", tmp_path / "run", settings=settings)
    data = RunDirectory.open(run).recipe.data
    assert data.background == "black"
    images = ImageFolder(tmp_path / "validation", data=data)
    assert images.decoder.background == "black"
    leanify.train("own-images", resume=run, settings=settings)  # the recipe given names no background
