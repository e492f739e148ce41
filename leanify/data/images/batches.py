"""Batches of images from a folder, resized and normalised for a model."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from leanify.data.tables.columns import IMAGES
from leanify.errors import DataError
from leanify.runs.files import opened


class ImageFolder:
    """All images under a folder, in a random order fixed by ``seed``. ``skipped`` lists unreadable files."""

    def __init__(self, folder: Path, seed: int = 0) -> None:
        self.folder = folder
        named = sorted(path for path in folder.rglob("*") if path.suffix.lower() in IMAGES and not path.is_dir())
        self.paths = [path for path in named if path.is_file()]  # opening a pipe would block
        self.skipped = [path for path in named if not path.is_file()]
        if not self.paths:
            raise DataError(f"no image in {folder}; looked for {', '.join(IMAGES)} there and in its subfolders")
        random.Random(seed).shuffle(self.paths)

    def batches(
        self, samples: int, batch_size: int, shape: Sequence[int], mean: Sequence[float], std: Sequence[float]
    ) -> Iterator[Tensor]:
        """Yield up to ``samples`` normalised images in batches (B, *shape); unreadable ones are replaced.

        ``shape`` is (channels, height, width); ``mean`` and ``std`` have one number per channel. Raises
        DataError.
        """
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
            if len(batch) == batch_size or not left:
                yield torch.stack(batch)
                batch = []
        if batch:
            yield torch.stack(batch)
        if left == samples:
            raise DataError(f"none of the {len(self.paths)} images in {self.folder} could be read")

    def _read(self, path: Path, shape: Sequence[int]) -> Tensor | None:
        """An image as (C, H, W) in 0 … 1, scaled to cover the size and centre-cropped; None if unreadable."""
        from PIL import Image, ImageOps

        channels, height, width = shape
        try:
            with opened(path, DataError) as held, Image.open(held) as file:
                image = file.convert("L" if channels == 1 else "RGB")
        except Exception:  # Pillow's decoders raise many types for damaged files
            self.skipped.append(path)
            return None
        image = ImageOps.fit(image, (width, height), Image.Resampling.BICUBIC)
        pixels = torch.from_numpy(np.array(image, dtype=np.float32) / 255)
        return pixels[None] if channels == 1 else pixels.permute(2, 0, 1)
