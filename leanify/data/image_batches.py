"""Images from a folder, brought to a model's size and scale."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from leanify.errors import DataError

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")


class ImageFolder:
    """The images anywhere below a folder, in a fixed random order. ``skipped`` lists those that could not be read."""

    def __init__(self, folder: Path, seed: int = 0) -> None:
        self.folder = folder
        named = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and not path.is_dir())
        self.paths = [path for path in named if path.is_file()]  # a pipe would block
        self.skipped = [path for path in named if not path.is_file()]
        if not self.paths:
            raise DataError(f"no image in {folder}; looked for {', '.join(SUFFIXES)} in it and below")
        random.Random(seed).shuffle(self.paths)

    def batches(
        self, samples: int, batch_size: int, shape: Sequence[int], mean: Sequence[float], std: Sequence[float]
    ) -> Iterator[Tensor]:
        """At most ``samples`` images in batches of (batch, *shape); unreadable ones are skipped and others taken."""
        batch: list[Tensor] = []
        left = samples
        for path in self.paths:
            if not left:
                break
            image = self._read(path, shape)
            if image is None:
                continue
            batch.append((image - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None])
            left -= 1
            if len(batch) == batch_size:
                yield torch.stack(batch)
                batch = []
        if batch:
            yield torch.stack(batch)
        if left == samples:
            raise DataError(f"none of the {len(self.paths)} images in {self.folder} could be read")

    def _read(self, path: Path, shape: Sequence[int]) -> Tensor | None:
        """channels, height, width in 0 … 1: the shorter side scaled to fit, the middle cut out."""
        from PIL import Image, ImageOps

        channels, height, width = shape
        try:
            with Image.open(path) as file:
                image = file.convert("L" if channels == 1 else "RGB")
        except Exception:  # Pillow's many formats raise whatever they meet in a damaged file
            self.skipped.append(path)
            return None
        image = ImageOps.fit(image, (width, height), Image.Resampling.BICUBIC)
        pixels = torch.from_numpy(np.array(image, dtype=np.float32) / 255)
        return pixels[None] if channels == 1 else pixels.permute(2, 0, 1)
