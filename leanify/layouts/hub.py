"""What the library ``datasets`` reads: data sets of the hub (``data.name`` with a slash and no ``data.path``), those
that it saved to a folder, and Parquet.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from leanify.core import bounds
from leanify.core.errors import DataError
from leanify.core.files.reading import open_file, read_object, resolve_inside
from leanify.core.recipe import DataSection
from leanify.core.recipe_code import is_code
from leanify.layouts.split_names import synonyms
from leanify.upstream.libraries import reraise_as

# of a Parquet file, which may hold a value once for millions of rows
FREE_ROWS, MAX_ROWS_PER_BYTE = 1_000_000, 2
FREE_BYTES, MAX_RATIO = 256 << 20, 100  # limit of its unpacked size: this, or a multiple of its size
Choice = Callable[[Sequence[str]], Sequence[str] | None]  # of columns by their names
ROWS = 256  # that are unpacked at a time


def names_hub_data(data: DataSection) -> bool:
    """Whether a recipe names a hub data set (or a local folder in the hub's layout)."""
    return data.path is None and "/" in data.name and not is_code(data.name)


def library(what: str) -> Any:
    """Import ``datasets``. Raises DataError if it is not installed; ``what`` names what needs it."""
    try:
        import datasets
    except ImportError as error:
        raise DataError(f"{what} needs the library datasets: pip install 'leanify[data]'") from error
    datasets.disable_progress_bars()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # a warning for each of its tries
    return datasets


def split_name(name: str, split: str) -> str:
    """The data set's own name for a split. Raises DataError if it has none."""
    datasets = library(f"the data set {name!r}")
    try:
        split_names = datasets.get_dataset_split_names(name)
    except Exception as error:  # the hub client raises from several libraries
        raise DataError(_describe_failure(name, error)) from error
    for word in synonyms(split):
        if word in split_names:
            return word
    raise DataError(f"the data set {name!r} has no split {split!r}; it has {', '.join(split_names)}")


def load_rows(name: str, split: str) -> Any:
    """Load a split through ``datasets``, memory-mapped from its cache. Raises DataError."""
    split_spelling = split_name(name, split)
    try:
        return library(name).load_dataset(name, split=split_spelling)
    except Exception as error:
        raise DataError(_describe_failure(name, error)) from error


def is_saved(place: Path) -> bool:
    """Whether a folder is what ``datasets``' save_to_disk writes."""
    return any((place / name).is_file() for name in ("dataset_dict.json", "state.json"))


def load_saved(place: Path) -> dict[str, Any]:
    """The splits that ``datasets`` saved to a folder, memory-mapped; a single one is train. Raises DataError."""
    with reraise_as(f"{place} is not a data set that the library datasets can load", DataError):
        # folders of splits, and files of each, must be inside
        folders = [place]
        if (place / "dataset_dict.json").is_file():
            splits = read_object(place / "dataset_dict.json", DataError)["splits"]
            folders = [resolve_inside(place, split) for split in splits]
        size = 0
        for folder in folders:
            for file in read_object(folder / "state.json", DataError)["_data_files"]:
                size += resolve_inside(folder, file["filename"]).stat().st_size
        with bounds.held(place):  # a compressed file is unpacked as a whole
            data = library(f"{place}").load_from_disk(str(place))
    if not len(data):
        raise DataError(f"{place} is a data set of no splits or no rows")
    saved_splits = dict(data) if isinstance(data, dict) else {"train": data}
    _check_unpacked(place, size, sum(rows.data.nbytes for rows in saved_splits.values()))
    return saved_splits


def _check_unpacked(place: Path, size: int, unpacked: int) -> None:
    """Raise DataError for data whose bytes unpack to a large multiple of them."""
    max_bytes = max(FREE_BYTES, MAX_RATIO * size)
    if unpacked > max_bytes:
        raise DataError(
            f"{place} was not read: its {size / 1e6:.3g} MB unpack to over {max_bytes / 1e6:,.0f} MB; write it without "
            "compression if that is right"
        )


def find_saved(place: Path, split: str) -> Path | None:
    """The folder of a split of what ``datasets`` saved, by a usual name; without splits all is for training."""
    if not (place / "dataset_dict.json").is_file():
        return place if split == "train" else None
    splits = read_object(place / "dataset_dict.json", DataError).get("splits")
    names = [name for name in synonyms(split) if isinstance(splits, list) and name in splits]
    return resolve_inside(place, names[0]) if names else None


def columns_by_type(rows: Any) -> dict[str, str]:
    """The first column of each type, as ``datasets`` calls it."""
    first: dict[str, str] = {}
    for name, feature in rows.features.items():
        first.setdefault(type(feature).__name__, name)
    return first


def _describe_failure(name: str, error: Exception) -> str:
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return f"the data set {name!r} is not a folder here, and the hub did not provide it: {reason}; --set data.path=PATH"


def read_parquet(path: Path, choose: Choice | None = None) -> Iterator[dict[str, Any]]:
    """Yield a Parquet file's rows, with all columns or those that ``choose`` takes of their names."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise DataError(f"{path} needs the library pyarrow: pip install 'leanify[data]'") from error
    with reraise_as(f"{path} cannot be read as Parquet", DataError):  # a date beyond Python's raises OverflowError, …
        open_file(path, DataError).close()  # a pointer to the file
        file = pyarrow.parquet.ParquetFile(path)
        columns = None if choose is None else choose(file.schema_arrow.names)
        size = path.stat().st_size
        groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
        if file.metadata.num_rows > FREE_ROWS + MAX_ROWS_PER_BYTE * size:
            raise DataError(
                f"{path} has {file.metadata.num_rows:,} rows in {size:,} bytes: no text or picture is so short"
            )
        _check_unpacked(path, size, sum(group.total_byte_size for group in groups))

        # what equal cells unpack to is known once they are there: few rows at a time
        unpacked_bytes = 0
        for batch in file.iter_batches(batch_size=ROWS, columns=columns):
            batch = batch.cast(_expand_dictionaries(batch.schema))
            unpacked_bytes += batch.nbytes
            _check_unpacked(path, size, unpacked_bytes)
            yield from batch.to_pylist()


def _expand_dictionaries(kind: Any) -> Any:
    """A schema or a type of pyarrow's whose cells hold their values, not numbers of values in a dictionary."""
    import pyarrow

    if isinstance(kind, pyarrow.Schema):
        return pyarrow.schema([field.with_type(_expand_dictionaries(field.type)) for field in kind])
    if pyarrow.types.is_dictionary(kind):
        return kind.value_type
    if pyarrow.types.is_struct(kind):
        return pyarrow.struct([field.with_type(_expand_dictionaries(field.type)) for field in kind])
    if pyarrow.types.is_list(kind):
        return pyarrow.list_(_expand_dictionaries(kind.value_type))
    return kind
