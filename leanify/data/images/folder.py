"""Image classification from FOLDER/SPLIT/CLASS/… or the hub, with timm's transforms or a checkpoint's processor.

timm replaces an image that it cannot read by the next one, which is then seen twice in an epoch. Here,
training stops with an error that names the image, or skips it under data.on_error = "skip".
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from leanify.core.errors import DataError, RecipeError
from leanify.core.files.reading import check_links, list_folder
from leanify.core.recipe import DataSection
from leanify.data.common import data_path, hold_out, subset
from leanify.data.images import tables as image_tables
from leanify.data.images.decoding import PLAIN, SKIP, Decoder, choose_decoder
from leanify.data.labels import match_labels, output_names
from leanify.data.samples import Selection, Splits
from leanify.layouts import hub
from leanify.layouts.columns import IMAGES
from leanify.layouts.image_files import ImageFiles, class_folders, find_split_folder, has_images
from leanify.layouts.split_names import synonyms
from leanify.upstream.inputs import example_inputs
from leanify.upstream.libraries import import_transformers, reraise_as
from leanify.upstream.origin import get_origin, is_hf

SIDES = ("height", "width", "shortest_edge", "longest_edge", "max_height", "max_width")
MAX_GROWTH = 8  # of a side that is cropped afterwards; makers resize to 256 for 224
FILES = ("preprocessor_config.json", "processor_config.json")
HUB_KINDS = {"Image": "images", "ClassLabel": "classes"}  # as datasets calls a column's type


class Scale:
    """Normalise a batch of bytes to the model's mean and standard deviation; floats are so already."""

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        self.mean, self.std = (255 * torch.tensor(values)[:, None, None] for values in (mean, std))

    def __call__(self, pixels: Tensor) -> Tensor:
        """(…, C, H, W) → the same"""
        if pixels.is_floating_point():
            return pixels
        mean, std = (values.to(pixels.device, non_blocking=True) for values in (self.mean, self.std))
        return pixels.float().sub_(mean).div_(std)


class Pictures:
    """The images and classes of one split."""

    targets = None
    workers = 4

    def __init__(self, files: Any, transform: Any, mode: str, decoder: Decoder, skips: bool = False) -> None:
        self.files = files  # a timm reader
        self.transform, self.mode, self.decoder, self.skips = transform, mode, decoder, skips
        samples = getattr(files, "samples", None)  # a folder's reader lists paths and classes
        self.labels = getattr(files, "labels", None) if samples is None else np.array([label for _, label in samples])

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """→ (C, H, W), in bytes, or normalised if random erasing is on; and a class"""
        return read_picture(self.files, index, self.mode, self.decoder, self.transform)


def read_picture(files: Any, index: int, mode: str, decoder: Decoder = PLAIN, transform: Any = None) -> tuple[Any, int]:
    """Read an image and its class from a timm reader, in Pillow's ``mode``, transformed. Raises DataError."""
    # a file that is not there says why
    name = Path(str(files.filename(index, absolute=True)))
    if hasattr(files, "samples") and not name.is_file():
        what = "is missing"
        if name.is_symlink():
            what = "is a broken link"
        elif name.exists():
            what = "is a pipe or a device"
        raise DataError(f"the image {name} {what}: remove it", SKIP)
    # the picture and its class
    try:
        file, label = files[index]
    except DataError:
        raise
    except Exception as error:  # timm's readers raise many types
        raise DataError(f"the image {name} cannot be read ({type(error).__name__})") from error
    with file:
        return decoder(file, mode, name, transform), label


def splits(data: DataSection, model: nn.Module) -> Splits:
    """Training, validation and test images of a folder, a table or the hub."""
    # readers of the splits, with the classes in the model's order
    if isinstance(getattr(model, "vocab", None), int):
        raise DataError(f"image classification needs an image model; {get_origin(model)} is a text model")
    readers, classes, where = read(data)
    labels = match_labels(classes, output_names(model))
    if list(labels.names) != classes and all(hasattr(reader, "relabel") for reader in readers):
        # the outputs of a trained classifier have an order of their own
        for reader in readers:
            reader.relabel([labels.names.index(name) for name in classes])
        classes = list(labels.names)
    # how pictures are augmented, and how they are decoded
    augmentation, plain, scale, mode = transforms(data, model)
    decoder, decoding_note = choose_decoder(readers[0], data.background, data.pixel_range)
    skips = data.on_error == "skip"
    # the splits; a share of training replaces a missing validation split
    train = Pictures(readers[0], augmentation, mode, decoder, skips)
    validation, *test = (Pictures(reader, plain, mode, decoder, skips) for reader in readers[1:])
    if data.holdout:
        train, validation = hold_out(train, data.holdout, validation)
    train = subset(train, data)
    validation_note = f"{len(validation):,}{' held out' * bool(data.holdout)} to validate"
    about = (
        f"{len(train):,} images of {len(classes):,} classes in {where} to train and {validation_note}{decoding_note}"
    )
    return Splits(
        train,
        validation,
        about,
        images=True,
        classes=len(classes),
        test=next(iter(test), None),
        scale=scale,
        names=tuple(classes),
        labels=labels,
        unchanged=plain_samples(train, plain),
        decoding=vars(decoder),
    )


def plain_samples(samples: Any, plain: Any) -> Any:
    """The same pictures without augmentation."""
    if isinstance(samples, Selection):
        return Selection(plain_samples(samples.whole, plain), samples.indices)
    return Pictures(samples.files, plain, samples.mode, samples.decoder, samples.skips)


def read(data: DataSection) -> tuple[list[Any], list[str], str]:
    """Return the readers of the splits, the class names, and their place. Raises DataError."""
    if hub.names_hub_data(data):
        return read_hub(data)
    place = data_path(data)
    if image_tables.is_image_table(place, data.train):
        return image_tables.readers(data, place)
    return read_folder(data, place)


def read_folder(data: DataSection, folder: Path) -> tuple[list[Any], list[str], str]:
    """Readers for training, validation and test folders; ``data.holdout`` takes validation from training."""
    # the folder of each split
    is_unsplit = data.holdout and find_split_folder(folder, data.train) is None
    train = folder if is_unsplit else split_folder(folder, data.train)
    places = [train, train if data.holdout else split_folder(folder, data.validation)]
    if data.test is not None:
        places.append(split_folder(folder, data.test))
    # classes are the names of training's folders; no other split may have more
    classes = class_names(train)
    labels = {name: index for index, name in enumerate(classes)}
    for place in places[1:]:
        unknown = sorted(set(class_names(place)) - set(classes))
        if unknown:
            raise DataError(f"{place} has classes that {train} lacks: {', '.join(unknown[:5])}")
    for place in dict.fromkeys(places):
        check_links(place, DataError)
    return [ImageFiles(place, labels) for place in places], classes, str(folder)


def read_hub(data: DataSection) -> tuple[list[Any], list[str], str]:
    """timm readers for a hub data set, from its first image column and its first class column."""
    from timm.data import create_dataset

    rows = hub.load_rows(data.name, data.train)
    features, first = rows.features, hub.columns_by_type(rows)
    missing = [what for kind, what in HUB_KINDS.items() if kind not in first]
    if missing:
        raise DataError(f"the data set {data.name!r} has no column of {' or of '.join(missing)}; it has {features}")
    image, label = first["Image"], first["ClassLabel"]
    # a reader for each split
    readers = []
    for split in data.needed_splits():
        split_spelling = hub.split_name(data.name, split)
        place = f"hfds/{data.name}"
        readers.append(create_dataset(place, root=None, split=split_spelling, input_key=image, target_key=label).reader)
    return readers, list(features[label].names), f"{data.name} of the hub"


def split_folder(folder: Path, split: str) -> Path:
    """The folder of a split, by its name or a usual synonym. Raises DataError with the folders that exist."""
    place = find_split_folder(folder, split)
    if place is None:
        names = " or ".join(synonyms(split)[:3])
        raise DataError(
            f"{folder} has no folder {names}; found {list_folder(folder)}. "
            "To hold out a tenth of the training images instead: --set data.holdout=0.1"
        )
    return place


def class_names(folder: Path) -> list[str]:
    """The classes of a split in timm's order. Raises DataError for an empty class or fewer than two."""
    from timm.utils.misc import natural_key

    classes = []
    folders = class_folders(folder)
    for place in folders:
        if has_images(place):
            classes.append(place.name)
        else:
            images = ", ".join(IMAGES)
            raise DataError(f"the class {place.name} in {folder} has no images ({images}): remove the folder")
    if not folders:
        raise DataError(f"{folder} has no class folders; images must be in FOLDER/CLASS/")
    if len(classes) == 1:
        raise DataError(f"{folder} has only one class, {classes[0]}; classification needs two or more")
    return sorted(classes, key=natural_key)


# -- pictures as the model takes them ---------------------------------------------------------------------------------


def transforms(data: DataSection, model: nn.Module) -> tuple[Any, Any, Scale, str]:
    """Training and evaluation transforms (to bytes), the model's `Scale`, and Pillow's image mode.

    They are timm's with the settings of the model's folder; a transformers model may bring its own processor.
    """
    from timm.data import create_transform, resolve_data_config
    from timm.data.random_erasing import RandomErasing
    from torchvision.transforms import Compose

    # the size that the model takes
    channels, *size = next(iter(example_inputs(model, 1).values())).shape[1:]
    if data.img_size is not None and [data.img_size] * 2 != size:
        raise RecipeError(
            f"data.img_size is {data.img_size}, but the model takes {size[0]} × {size[1]}: "
            f"--set model.override.img_size={data.img_size}, or remove data.img_size"
        )
    # its preprocessing: timm's settings, a transformers processor, or the middle of the range
    config: dict[str, Any] = {"mean": (0.5,), "std": (0.5,), "interpolation": "bicubic", "crop_pct": 0.9}
    if not is_hf(model):
        config = resolve_data_config({}, model=model)
    shape = (channels, *size)
    processor = find_processor(model, shape)
    if processor is not None:
        config |= processor.statistics
    side = config["crop_pct"]
    origin = get_origin(model)
    if origin is None or "crop_pct" not in origin.pictures:  # the model does not say how much of a picture it sees
        side = data.evaluated_side(side)
    # mean and std of each channel; a grey model takes the mean over colours
    statistics = {}
    for name in ("mean", "std"):
        values = tuple(config[name])
        statistics[name] = values if len(values) == channels else (sum(values) / len(values),) * channels
    scale = Scale(**statistics)
    to_bytes = {**statistics, "use_prefetcher": True}  # makes timm return bytes; `Scale` and erasing are applied later
    # the training transform
    augmentation = create_transform(
        shape,
        is_training=True,
        scale=data.crop,
        hflip=data.flip,
        color_jitter=data.color_jitter,
        auto_augment=data.rand_augment,
        interpolation="random",
        **to_bytes,
    )
    for part in augmentation.transforms:  # timm's random augmentation has its operations in one of two attributes
        operations = [*getattr(part, "ops", ()), *itertools.chain(*getattr(part, "policy", ()))]
        for operation in operations:
            if operation.name.startswith("Posterize"):
                operation.aug_fn = posterize
    if data.erase:
        augmentation = Compose([augmentation, torch.as_tensor, scale, RandomErasing(data.erase, device="cpu")])
    # the evaluation transform
    crop = {"crop_pct": side, "crop_mode": config.get("crop_mode")}
    plain = processor or create_transform(shape, interpolation=config["interpolation"], **crop, **to_bytes)
    return augmentation, plain, scale, "L" if channels == 1 else "RGB"


def posterize(image: Any, bits: int, **_: Any) -> Any:
    """Keep the highest bits of each channel. timm may ask for 0 bits, which Pillow ≥ 13 refuses."""
    from PIL import Image, ImageOps

    if bits < 1:
        return Image.new(image.mode, image.size)  # black, as in earlier versions of Pillow
    return image if bits >= 8 else ImageOps.posterize(image, bits)


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
