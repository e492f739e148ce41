"""Data sets of the Hugging Face hub: ``data.name`` with a slash and no ``data.path``, through ``datasets``."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from leanify.errors import DataError
from leanify.runs.files import few
from leanify.runs.recipe import DataSection
from leanify.upstream.wall import wall

SPLITS = {"validation": ("validation", "valid", "val", "test")}  # usual names of a split, in order of preference


def is_meant(data: DataSection) -> bool:
    """Whether a recipe names a hub data set (or a local folder in the hub's layout)."""
    return data.path is None and "/" in data.name


def library(what: str) -> Any:
    """Import ``datasets``. Raises DataError if it is not installed; ``what`` names what needs it."""
    try:
        import datasets
    except ImportError as error:
        raise DataError(f"{what} needs the library datasets: pip install 'leanify[data]'") from error
    datasets.disable_progress_bars()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # a warning for each of its tries
    return datasets


def split_of(name: str, split: str) -> str:
    """The data set's own name for a split. Raises DataError if it has none."""
    datasets = library(f"the data set {name!r}")
    try:
        known = datasets.get_dataset_split_names(name)
    except Exception as error:  # the hub client raises from several libraries
        raise DataError(_unreached(name, error)) from error
    for word in SPLITS.get(split, (split,)):
        if word in known:
            return word
    raise DataError(f"the data set {name!r} has no split {split!r}; it has {', '.join(known)}")


def rows(name: str, split: str) -> Any:
    """Load a split through ``datasets``, memory-mapped from its cache. Raises DataError."""
    called = split_of(name, split)
    try:
        return library(name).load_dataset(name, split=called)
    except Exception as error:
        raise DataError(_unreached(name, error)) from error


def _unreached(name: str, error: Exception) -> str:
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return f"the data set {name!r} is not a folder here, and the hub did not provide it: {reason}; --set data.path=PATH"


def parquet(path: Path, columns: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
    """Yield a Parquet file's rows, with all columns or the first of ``columns`` that it has."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise DataError(f"{path} needs the library pyarrow: pip install 'leanify[data]'") from error
    with wall(f"{path} cannot be read as Parquet", DataError):  # a date beyond Python's raises OverflowError, …
        file = pyarrow.parquet.ParquetFile(path)
        found = [name for name in columns or () if name in file.schema_arrow.names][:1]
        if columns and not found:
            known = few(file.schema_arrow.names, 8)
            raise DataError(f"{path} has no text column: looked for {', '.join(columns)}, found {known}")
        for batch in file.iter_batches(columns=found or None):
            yield from batch.to_pylist()
