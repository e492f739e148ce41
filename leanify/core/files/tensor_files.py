"""Open files of tensors: safetensors, and what torch.save wrote, without running code or unpacking a bomb.

The library of safetensors parses a header of up to 100 MB and makes an object for each tensor that it names, one at a
time: a file of 57 MB can name a million tensors without elements. So a header must be of a plausible size.
"""

from __future__ import annotations

import argparse
import pickle
import re
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from leanify.core.errors import LeanifyError, SourceError
from leanify.core.files.reading import open_file

MAX_HEADER = 32 << 20  # bytes
MAX_TENSORS = 100_000  # in one file; a mixture of 61 layers with 256 experts has 91,000 in all its files
SLACK = 16 << 20  # torch.save does not compress, so a file that unpacks to more than 2 × its size + SLACK is refused
PLAIN: list[Any] = [argparse.Namespace]  # holds attributes and runs nothing; timm's trainer saves its arguments as one
ZIP = b"PK\x03\x04"  # by these first bytes torch decides that a file is an archive
END, LENGTH = b"PK\x05\x06", 22  # of the record at the end of an archive without a comment


# -- safetensors -----------------------------------------------------------------------------------------------------


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


# -- torch.save -------------------------------------------------------------------------------------------------------


def load_pickle(path: Path, error: type[LeanifyError] = SourceError) -> Any:
    """Load a file of torch.save on the CPU. Raises ``error``, with the reason, for anything else.

    That includes a pickle that would run code, and an archive that unpacks to far more than its size.
    """
    import torch

    with open_file(path, error) as file:
        _check_archive(path, file, error)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with torch.serialization.safe_globals(PLAIN):
                    return torch.load(file, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as caught:
            raise error(
                f"the checkpoint {path} was not opened: it is a pickle that would run code, or it is damaged "
                f"({reason(caught)}); save only its state dict, with torch.save(model.state_dict(), …) or safetensors"
            ) from caught
        except Exception as caught:  # a damaged archive raises from zipfile, pickle, struct and torch alike
            if "TorchScript" in str(caught):
                line = f"m = torch.jit.load({str(path)!r}); torch.save(m.state_dict(), 'model.pth')"
                raise error(f"{path} is a TorchScript archive, which holds code; its weights alone: {line}") from caught
            raise error(f"the checkpoint {path} is damaged: {reason(caught)}") from caught


def _check_archive(path: Path, file: BinaryIO, error: type[LeanifyError]) -> None:
    """Refuse a bomb, and a file that torch and zipfile might read as two different archives. Rewinds the file."""
    # both readers must find the same archive: it starts with the file, ends with it and has no comment
    first = file.read(len(ZIP))
    size = file.seek(0, 2)
    file.seek(max(0, size - LENGTH))
    last = file.read()
    file.seek(0)
    if first != ZIP:
        return
    if last[:4] != END or last[-2:] != b"\0\0":
        raise error(f"the checkpoint {path} is damaged: it is no archive as torch.save writes it, or is cut off")
    # torch.save stores without compressing: what unpacks to much more is a bomb
    try:
        with zipfile.ZipFile(file) as archive:
            content_size = sum(entry.file_size for entry in archive.infolist())
    except Exception as caught:  # zipfile raises what damaged numbers happen to lead to
        raise error(f"the checkpoint {path} is damaged: {reason(caught)}") from caught
    if content_size > 2 * size + SLACK:
        raise error(
            f"the checkpoint {path} was not opened: its {size / 1e6:.1f} MB unpack to {content_size / 1e6:.0f} MB, "
            "and torch.save never compresses"
        )
    file.seek(0)


def reason(error: BaseException) -> str:
    """The global that a refused pickle names (``posix.system``), torch's reason, or the first line of the error."""
    text = str(error)
    if match := re.search(r"unsupported global:?\s+(?:GLOBAL\s+)?([\w.]+)", text, re.IGNORECASE):
        return f"it names {match[1]}"
    if match := re.search(r"WeightsUnpickler error:\s*(.+)", text):
        return match[1][:160]
    return (text.splitlines() or [type(error).__name__])[0][:160]
