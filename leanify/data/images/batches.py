"""Batches of images from a folder, resized and normalised for a model."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leanify.core.errors import DataError
from leanify.core.files.reading import open_file
from leanify.core.recipe import DataSection
from leanify.data.images.decoding import choose_decoder, recorded_decoder
from leanify.layouts.columns import IMAGES
from leanify.layouts.image_files import find_images


class ImageFolder:
    """All images under a folder, in a random order fixed by ``seed``. ``skipped`` lists unreadable files."""

    def __init__(self, folder: Path, seed: int = 0, data: DataSection | None = None) -> None:
        """``data`` is the [data] of the run that the images are for: they are decoded as its own were."""
        self.folder = folder
        images = sorted(find_images(folder))
        self.paths = [path for path in images if path.is_file()]  # opening a pipe would block
        self.skipped = [path for path in images if not path.is_file()]
        if not self.paths:
            raise DataError(f"no image in {folder}; looked for {', '.join(IMAGES)} there and in its subfolders")
        self.decoder = choose_decoder(self)[0] if data is None else recorded_decoder(data)
        random.Random(seed).shuffle(self.paths)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Any, None]:
        """An image's open file, as `choose_decoder` takes it."""
        return open_file(self.paths[index], DataError), None

    def batches(
        self, samples: int, batch_size: int, shape: Sequence[int], mean: Sequence[float], std: Sequence[float]
    ) -> Iterator[Tensor]:
        """Yield up to ``samples`` normalised images in batches (B, *shape); unreadable ones are replaced.

        ``shape`` is (channels, height, width); ``mean`` and ``std`` have one number per channel. Raises
        DataError.
        """
        batch: list[Tensor] = []
        missing = samples
        for path in self.paths:
            if not missing:
                break
            image = self._read(path, shape)
            if image is None:
                # unreadable pictures are replaced by the next ones
                continue
            batch.append((image - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None])
            missing -= 1
            if len(batch) == batch_size or not missing:
                yield torch.stack(batch)
                batch = []
        if batch:
            yield torch.stack(batch)
        if missing == samples:
            raise DataError(f"none of the {len(self.paths)} images in {self.folder} could be read")

    def _read(self, path: Path, shape: Sequence[int]) -> Tensor | None:
        """An image as (C, H, W) in 0 … 1, scaled to cover the size and centre-cropped; None if unreadable."""
        from PIL import Image, ImageOps

        # resized to cover the model's size, and cropped at the centre
        channels, height, width = shape
        try:
            with open_file(path, DataError) as file:
                image = self.decoder(file, "L" if channels == 1 else "RGB", path)
        except DataError:
            self.skipped.append(path)
            return None
        image = ImageOps.fit(image, (width, height), Image.Resampling.BICUBIC)
        pixels = torch.from_numpy(np.array(image, dtype=np.float32) / 255)
        return pixels[None] if channels == 1 else pixels.permute(2, 0, 1)
