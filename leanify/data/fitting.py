"""Settings of the built-in recipes for own data that fit the user's pictures and texts. Does not import torch."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

from leanify.data.found import Found
from leanify.data.images.files import images_below
from leanify.errors import DataError
from leanify.runs.files import opened

LOOKED_AT = 60  # pictures, of the first thousand
LARGEST = 64  # pixels a side
PATCHES = 4  # a side, at most: few long ones learn more from few pictures (`recipes/results/references.md`)
LENGTHS = (16, 128)  # shortest and longest texts, in tokens
TOKENS_A_WORD = 1.5
VOCABULARIES = (512, 1024, 2048, 4096, 8192)


def settings_for(found: Found, path: str) -> list[str]:
    """The settings for data found at a path: classes, columns, sizes of pictures, lengths of texts, a held-out part."""
    settings = [f"data.path={json.dumps(path)}"]
    if found.kind == "text":
        return settings
    if found.kind == "images":
        settings += [] if found.classes is None else [f"model.override.num_classes={found.classes}"]
        settings += _of_pictures(Path(path).expanduser())
    if found.task is not None:
        settings.append(f"data.task={found.task}")
    if found.words is not None and found.vocabulary is not None:
        settings += _of_texts(found.words, found.vocabulary)
    return [*settings, *([] if found.validated else ["data.holdout=0.2"]), *found.settings]


def _of_pictures(place: Path) -> list[str]:
    """Size, patch and channels for a folder of pictures: small ones as they are, larger ones made smaller."""
    from PIL import Image

    files = list(islice(images_below(place), 1000)) if place.is_dir() else []
    sizes, grey = [], True
    for file in files[:: max(1, len(files) // LOOKED_AT)]:
        try:
            with opened(file, DataError) as held, Image.open(held) as picture:
                sizes.append(max(picture.size))
                grey = grey and picture.mode in ("1", "L", "I", "I;16", "F")
        except Exception:  # Pillow's decoders raise many types for damaged files
            continue  # training says which pictures cannot be read
    if not sizes:
        return []
    size = min(sorted(sizes)[len(sizes) // 2], LARGEST)
    size += -size % (2 if size < 32 else 4)
    patch = next(one for one in range(2, size + 1) if size % one == 0 and size // one <= PATCHES)
    settings = [f"model.override.img_size={size}", f"model.override.patch_size={patch}"]
    return settings + (["model.override.in_chans=1"] if grey else [])


def _of_texts(words: int, vocabulary: int) -> list[str]:
    """Length and vocabulary for texts of this many words, of so many different ones."""
    shortest, longest = LENGTHS
    length = min(longest, max(shortest, 8 * round((TOKENS_A_WORD * words + 4) / 8)))
    size = next((one for one in VOCABULARIES if one >= vocabulary), VOCABULARIES[-1])
    return [
        f"data.length={length}",
        f'data.tokenizer="wordpiece-{size}"',
        f"model.override.vocab_size={size}",
    ]
