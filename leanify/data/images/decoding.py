"""Decode pictures as a viewer shows them. Training, `predict`, `condition` and the look at own data decode here.

A photo is turned as its EXIF orientation says. Transparent pixels show a background: white, or black where white
would hide what is drawn. Pictures of 16 bits a channel are scaled by the range of their data set. A run keeps both
choices in its recipe, so that everything that reads pictures for its model decodes them alike.
"""

from __future__ import annotations

import io
import math
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from leanify.core import bounds
from leanify.core.errors import DataError
from leanify.core.recipe import DataSection
from leanify.data.common import spread_places
from leanify.upstream.libraries import first_line

# formats that are opened: among Pillow's others are some that start a program, as Ghostscript for PostScript
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "PPM", "JPEG2000", "AVIF")
FULL_RANGE = (0, 65535)  # of 16 bits
DEEP_COLOURS = re.compile(r"(LA|RGB|RGBX|RGBA);16([BLN])")  # Pillow's words for colours of 16 bits in a byte order
OTHER_ORDER = {"B": "L", "L": "B", "N": "B" if sys.byteorder == "little" else "L"}
TURNS = {  # Pillow's word for what an orientation of EXIF needs
    2: "FLIP_LEFT_RIGHT", 3: "ROTATE_180", 4: "FLIP_TOP_BOTTOM", 5: "TRANSPOSE", 6: "ROTATE_270", 7: "TRANSVERSE",
    8: "ROTATE_90",
}  # fmt: skip
MAX_LOOKED_AT = 256  # pictures, evenly spaced, by which a data set's decoder is chosen
MIN_CONTRAST = 16  # of 255, between a picture's darkest and brightest pixel; one with less is flat
SKIP = ", or skip such images with --set data.on_error=skip"


@dataclass(frozen=True)
class Decoder:
    """Decodes the pictures of one data set. Its fields are keys of a recipe's [data]."""

    background: str = "white"  # of transparent pixels
    pixel_range: tuple[float, ...] = FULL_RANGE  # what becomes black and what becomes white in 16 bits

    def __call__(self, file: Any, mode: str, name: Any, transform: Callable[[Any], Any] | None = None) -> Any:
        """Decode a picture from a file object into Pillow's ``mode``, and transform it.

        Raises DataError that names it, also for one beyond the bound on memory: its header says how large it is.
        """
        with bounds.held(f"the image {name}"):
            picture = self._decode(file, mode, name)
            return picture if transform is None else transform(picture)

    def _decode(self, file: Any, mode: str, name: Any) -> Any:
        try:
            with open_picture(file) as image:
                check_pixels(image, name)
                if has_sixteen_bits(image):
                    picture = to_eight_bits(read_deep_pixels(image, name), self.pixel_range)
                else:
                    image.load()
                    picture = image
                if has_transparency(picture):
                    picture = composite(picture, self.background)
                return _turn(picture, image).convert(mode)
        except (DataError, MemoryError):
            raise
        except Exception as error:  # Pillow's decoders raise many types for damaged files
            reason = first_line(error).partition(" <")[0]  # without the address of an object
            raise DataError(f"the image {name} cannot be read ({reason}): fix or remove it", SKIP) from error


PLAIN = Decoder()


def open_picture(file: Any) -> Any:
    """Open a picture with Pillow, in one of the formats that this version of it has."""
    from PIL import Image

    Image.init()
    return Image.open(file, formats=[name for name in FORMATS if name in Image.OPEN])


def choose_decoder(
    files: Any, background: str | None = None, pixel_range: tuple[float, ...] = ()
) -> tuple[Decoder, str]:
    """Choose the decoder that the training pictures need; returns it with a note for the user.

    ``files`` gives (file object, class) by index. ``background`` and ``pixel_range`` are those that the user names.
    """
    # how many pictures of a sample each background would hide, and the range of 16-bit pixels
    hidden = {"white": 0, "black": 0}  # pictures that the background would make flat
    transparent = 0
    extremes: list[tuple[float, float]] = []
    for place in spread_places(len(files), MAX_LOOKED_AT):
        for colour, contrast in _transparent_contrasts(files, place, extremes).items():
            hidden[colour] += contrast < MIN_CONTRAST
            transparent += colour == "white"

    # white, unless it hides more pictures than black does
    notes = []
    chosen_background = background or min("white", "black", key=lambda colour: hidden[colour])
    if transparent:
        notes.append(f"transparent pixels on {chosen_background}")
    # the range of the data set's own pixels
    chosen_range = pixel_range or FULL_RANGE
    if extremes and not pixel_range:
        chosen_range = (min(low for low, _ in extremes), max(high for _, high in extremes))
    if extremes:
        notes.append(f"16-bit pixels from {chosen_range[0]:,g} to {chosen_range[1]:,g}")
    return Decoder(chosen_background, chosen_range), "".join(f", {note}" for note in notes)


def recorded_decoder(data: DataSection) -> Decoder:
    """The decoder that a run's recipe keeps."""
    return Decoder(data.background or "white", tuple(data.pixel_range) or FULL_RANGE)


def _transparent_contrasts(files: Any, place: int, extremes: list[tuple[float, float]]) -> Mapping[str, int]:
    """A picture's contrast on each background if it is transparent; of 16 bits it adds its ``extremes``."""
    try:
        file, _ = files[place]
        with file, bounds.held(place), open_picture(file) as image:
            check_pixels(image, place)
            if has_sixteen_bits(image):
                values = read_deep_pixels(image, place)
                colours = values[..., : colour_channels(values)]
                extremes.append((int(colours.min()), int(colours.max())))
                image = to_eight_bits(values)
            if has_transparency(image):
                return {colour: measure_contrast(composite(image, colour)) for colour in ("white", "black")}
    except Exception:  # training reports a picture that cannot be read
        return {}
    return {}


def check_pixels(image: Any, name: Any) -> None:
    """Raise DataError if an open picture, not yet loaded, has more pixels than can be decoded within the bound."""
    size = bytes_per_pixel(image) * math.prod(image.size)
    bounds.check(size, f"the image {name} of {image.width:,} × {image.height:,} pixels")


def bytes_per_pixel(image: Any) -> int:
    """Bytes of memory that decoding an open picture takes at most for each pixel, with all copies on the way.

    Pillow keeps four bytes for a colour; sixteen bits are read as two planes of bytes.
    """
    if has_sixteen_bits(image):
        return 32
    return 24 if has_transparency(image) else 16


def has_sixteen_bits(image: Any) -> bool:
    """Whether an open picture of Pillow, not yet loaded, has more than 8 bits a channel."""
    return bool(image.mode.startswith(("I", "F"))) or _deep_colours(image) is not None


def _deep_colours(image: Any) -> re.Match[str] | None:
    """The channels and the byte order of a coloured picture of 16 bits a channel; None for other pictures."""
    arguments = image.tile[0][3] if image.tile else None
    layout = arguments[0] if isinstance(arguments, tuple) and arguments else arguments
    return DEEP_COLOURS.fullmatch(layout) if isinstance(layout, str) else None


def has_transparency(image: Any) -> bool:
    """Whether an open picture of Pillow has an alpha channel, or a colour that stands for transparency."""
    is_palette_transparent = image.mode == "P" and image.palette is not None and image.palette.mode.endswith("A")
    return image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info or is_palette_transparent


def read_deep_pixels(image: Any, name: Any) -> np.ndarray:
    """The pixels of a picture of 16 bits a channel, unsigned: (H, W) if it is grey, (H, W, channels) if not.

    Raises DataError for an unknown range.
    """
    if (colours := _deep_colours(image)) is not None:
        return _read_deep_colours(image, *colours.groups())
    values = np.asarray(image)
    if image.mode == "F" or values.min() < 0 or values.max() > FULL_RANGE[1]:
        raise DataError(
            f"the image {name} has pixels from {values.min():g} to {values.max():g}, of an unknown range: save it with "
            "8 or 16 bits a channel",
            SKIP,
        )
    return values.astype(np.uint16, copy=False)


def _read_deep_colours(image: Any, channels: str, order: str) -> np.ndarray:
    """(H, W, channels). Pillow keeps the first byte of each channel: in the other byte order that is the second."""
    position = image.fp.tell()
    image.fp.seek(0)
    data = image.fp.read()
    image.fp.seek(position)
    if channels == "LA":  # two channels of two bytes are read as four of one
        byte_planes = _read_as(data, "RGBA")
        high, low = byte_planes[..., ::2], byte_planes[..., 1::2]
    else:
        high, low = (_read_as(data, f"{channels};16{one}") for one in (order, OTHER_ORDER[order]))
    values = high.astype(np.uint16)
    values <<= 8
    values |= low
    return values[..., :3] if channels == "RGBX" else values


def _read_as(data: bytes, layout: str) -> np.ndarray:
    """The pixels of an encoded picture, unpacked in another of Pillow's layouts: (H, W, channels)."""
    with open_picture(io.BytesIO(data)) as image:
        tiles: list[Any] = image.tile
        for place, (codec, extents, offset, arguments) in enumerate(tiles):
            others = (layout, *arguments[1:]) if isinstance(arguments, tuple) else layout
            tiles[place] = (codec, extents, offset, others)
        return np.asarray(image)


def to_eight_bits(values: np.ndarray, pixel_range: tuple[float, ...] = FULL_RANGE) -> Any:
    """A picture of `read_deep_pixels` with colours scaled from a range."""
    from PIL import Image

    every_value = np.arange(FULL_RANGE[1] + 1)
    low, high = pixel_range
    table = ((every_value - low) * (255 / max(high - low, 1))).round().clip(0, 255).astype(np.uint8)
    eight_bits = table[values]
    if values.ndim == 3:  # alpha has a range of its own
        opacity = slice(colour_channels(values), None)
        eight_bits[..., opacity] = (every_value / 257).round().astype(np.uint8)[values[..., opacity]]
    return Image.fromarray(eight_bits)


def colour_channels(values: np.ndarray) -> int | None:
    """The number of channels of (H, W, channels) without alpha; None for a grey picture (H, W)."""
    return None if values.ndim == 2 else {2: 1, 3: 3, 4: 3}[values.shape[2]]


def composite(image: Any, background: str) -> Any:
    """A transparent picture on a background, in RGB."""
    from PIL import Image

    straight = image.convert("LA") if image.mode == "La" else image
    rgba = straight.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", rgba.size, background), rgba).convert("RGB")


def measure_contrast(image: Any) -> int:
    """The largest difference between two pixels of an 8-bit picture, in its most different channel."""
    extremes = image.getextrema()
    pairs = extremes if isinstance(extremes[0], tuple) else (extremes,)
    return int(max(high - low for low, high in pairs))


def _turn(picture: Any, original: Any) -> Any:
    """Turn a picture as the EXIF data of the ``original`` say, where these can be read."""
    from PIL import Image

    try:
        method = TURNS[original.getexif()[0x0112]]
    except Exception:  # no EXIF data turn nothing, nor damaged ones, for which Pillow raises many types
        return picture
    return picture.transpose(Image.Transpose[method])
