"""Read what torch.save wrote, without running code or unpacking a bomb."""

from __future__ import annotations

import argparse
import pickle
import re
import warnings
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import torch

from leanify.core.errors import LeanifyError, SourceError
from leanify.core.files.reading import open_file

SLACK = 16 << 20  # torch.save does not compress, so a file that unpacks to more than 2 × its size + SLACK is refused
PLAIN: list[Any] = [argparse.Namespace]  # holds attributes and runs nothing; timm's trainer saves its arguments as one
ZIP = b"PK\x03\x04"  # by these first bytes torch decides that a file is an archive
END, LENGTH = b"PK\x05\x06", 22  # of the record at the end of an archive without a comment


def load_pickle(path: Path, error: type[LeanifyError] = SourceError) -> Any:
    """Load a file of torch.save on the CPU. Raises ``error``, with the reason, for anything else.

    That includes a pickle that would run code, and an archive that unpacks to far more than its size.
    """
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
