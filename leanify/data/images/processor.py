"""Pictures as the processor of a transformers checkpoint makes them: its size, crop, resampling and scale."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from leanify.core.errors import DataError
from leanify.upstream.libraries import import_transformers, reraise_as
from leanify.upstream.origin import is_hf

SIDES = ("height", "width", "shortest_edge", "longest_edge", "max_height", "max_width")
MAX_GROWTH = 8  # of a side that is cropped afterwards; makers resize to 256 for 224
FILES = ("preprocessor_config.json", "processor_config.json")


class ProcessorTransform:
    """A picture of Pillow → (C, H, W), normalised, by the model's own processor."""

    def __init__(self, processor: Any, shape: tuple[int, ...], place: Path) -> None:
        self.processor, self.shape, self.place = processor, shape, place

    def __call__(self, picture: Any) -> Tensor:
        pixels: Tensor = self.processor(picture, return_tensors="pt")["pixel_values"][0]
        if tuple(pixels.shape) != self.shape:
            actual_shape, expected_shape = (" × ".join(map(str, shape)) for shape in (pixels.shape, self.shape))
            raise DataError(
                f"the processor in {self.place} makes pictures of {actual_shape} and the model takes {expected_shape}; "
                "correct its preprocessor_config.json"
            )
        return pixels

    @property
    def statistics(self) -> dict[str, tuple[float, ...]]:
        """Mean and standard deviation of each channel, for pixels between 0 and 1."""
        channels = self.shape[0]
        mean, std = (0.0,) * channels, (1.0,) * channels
        if getattr(self.processor, "do_normalize", True):
            mean, std = (tuple(getattr(self.processor, key) or ()) for key in ("image_mean", "image_std"))
        # bytes are divided by 255 by the processor's rescaling; without it, or with another factor, scale alike
        factor = 255 * self.processor.rescale_factor if getattr(self.processor, "do_rescale", True) else 255.0
        return {"mean": tuple(x / factor for x in mean), "std": tuple(x / factor for x in std)}


def find_processor(model: nn.Module, shape: tuple[int, ...]) -> ProcessorTransform | None:
    """The processor in the folder of the model's weights, or None.

    Raises DataError for one that transformers cannot make without running code of the folder's.
    """
    # only a checkpoint of transformers has a processor, next to its weights
    folder = str(getattr(getattr(model, "config", None), "_name_or_path", "") or "") if is_hf(model) else ""
    place = Path(folder).expanduser()
    if not folder or not any((place / name).is_file() for name in FILES):
        return None
    library = import_transformers()
    with reraise_as(f"the processor in {place} does not open", DataError):  # a damaged or foreign file
        processor = library.AutoImageProcessor.from_pretrained(str(place), trust_remote_code=False)
        transform = ProcessorTransform(processor, shape, place)
        # the sizes on the way to the model's: a picture is resized before it is cropped
        for key in ("size", "crop_size", "pad_size"):
            size = getattr(processor, key, None) or {}
            sides = [size] if isinstance(size, int | float) else [dict(size).get(side) or 0 for side in SIDES]
            if max(sides) > MAX_GROWTH * max(shape[1:]):
                raise DataError(
                    f"the processor in {place} makes pictures of {max(sides):,} pixels a side ({key}) and the model "
                    f"takes {max(shape[1:])}; correct its preprocessor_config.json"
                )
        # its means and deviations must be of the model's channels
        mean, std = transform.statistics.values()
        if {len(mean), len(std)} != {shape[0]}:
            raise DataError(
                f"the processor in {place} has statistics of {max(len(mean), len(std))} channels, the model {shape[0]}"
            )
        if not all(map(math.isfinite, (*mean, *std))) or 0 in std:
            raise DataError(f"the processor in {place} would make no finite pixels; correct its mean, std and factor")
    return transform
