"""Open safetensors files whose headers are of a plausible size.

The library parses a header of up to 100 MB and makes an object for each tensor that it names, one at a time: a file of
57 MB can name a million tensors without elements.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from leanify.core.errors import LeanifyError, SourceError
from leanify.core.files.reading import open_file

MAX_HEADER = 32 << 20  # bytes
MAX_TENSORS = 100_000  # in one file; a mixture of 61 layers with 256 experts has 91,000 in all its files


def check_header(path: Path, error: type[LeanifyError] = SourceError) -> None:
    """Raise ``error`` if a file is not a regular one, or its header is larger than any model needs."""
    with open_file(path, error) as file:
        length = int.from_bytes(file.read(8), "little")  # of the header, which is JSON
        if length > MAX_HEADER:
            raise error(f"the checkpoint {path} is not a safetensors file: its header would have {length:,} bytes")
        tensor_count = file.read(length).count(b"{") - 1  # every tensor is described by an object of its own
    if tensor_count > MAX_TENSORS:
        raise error(f"the checkpoint {path} names {tensor_count:,} tensors; at most {MAX_TENSORS:,} are read")


@contextmanager
def open_tensors(path: Path, error: type[LeanifyError] = SourceError) -> Iterator[Any]:
    """Yield a safetensors file as `safetensors.safe_open` does. Raises ``error``, also for a damaged file."""
    from safetensors import safe_open

    check_header(path, error)
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except LeanifyError:
        raise
    except Exception as caught:  # a shape that torch cannot have raises other types than SafetensorError
        reason = (str(caught).splitlines() or [type(caught).__name__])[0]
        raise error(f"the checkpoint {path} is truncated or not a safetensors file: {reason[:300]}") from caught


def load_tensors(path: Path, error: type[LeanifyError] = SourceError) -> dict[str, Any]:
    """Return the tensors of a safetensors file, on the CPU. Raises ``error`` as `open_tensors` does."""
    with open_tensors(path, error) as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a dict
