"""GLUE (Wang et al. 2019): sentences and sentence pairs from tab-separated files.

``data.path`` is a folder with one folder per task, or a single task's folder. A file's first line names its
columns: ``sentence``, or ``sentence1`` and ``sentence2`` (or the names in GLUE's own files), and ``label``, a
number or a name. Quotes have no meaning. The validation split is looked for as validation.tsv, dev.tsv, then
test.tsv, because MRPC is often distributed with only train and test; MNLI has two, ``_matched`` and
``_mismatched``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from torch import nn

from leanify.data import hub
from leanify.data.common import folder_of, held_out, refuse, subset, vocabulary_of
from leanify.data.samples import Selection, Splits
from leanify.data.texts import vocabulary
from leanify.data.texts.encoded import Row, Sentences, takes_types
from leanify.errors import DataError, RecipeError
from leanify.runs.files import lines_in, listing
from leanify.runs.recipe import DataSection
from leanify.tasks.glue import TASKS, GlueTask, name_of, plain_name
from leanify.terminal import progress
from leanify.upstream.libraries import first_line

HIGHEST = 5.0  # the highest score in STS-B


def splits(data: DataSection, model: nn.Module) -> Splits:
    """A task's samples, for a model with a head for it. Validation is sorted by length."""
    name = name_of(data)
    for key, value in (("img_size", data.img_size), ("rand_augment", data.rand_augment)):
        if value is not None:
            raise RecipeError(f"data.{key} is for images, but the task is {data.task}")
    refuse(data, "on_error")
    size, positions = vocabulary_of(model, data.task)
    length = data.length or positions or 512
    if positions is not None and length > positions:
        raise DataError(
            f"data.length is {length} tokens, but the model has only {positions} positions: "
            f"--set data.length={positions}"
        )
    if data.tokenizer is None:
        raise DataError("the model comes without a tokenizer; name a directory or a hub id in data.tokenizer")
    tokenizer = vocabulary.load(data.tokenizer)
    vocabulary.check_fit(tokenizer, size, f"by the tokenizer {data.tokenizer}")
    types = takes_types(model)

    def encoded(rows: Sequence[Row]) -> Sentences:
        return Sentences(rows, tokenizer, length, types)

    rows, others, files = read(data, name)
    train = subset(encoded(rows), data)
    if data.holdout:
        train, validation = held_out(train, data.holdout)
    else:
        validation = encoded(others)
        validation = Selection(validation, validation.lengths.argsort(kind="stable"))
    summary = f"{TASKS[name].title} of {files}, {len(train):,} samples to train and {len(validation):,} to validate"
    return Splits(train, validation, summary, classes=len(TASKS[name].labels) or None, tokenizer=tokenizer)


HUB = "nyu-mll/glue"  # used if the recipe has no data.path
MNLI = ("_matched", "_mismatched")  # its two validation sets
SPELLINGS = {"validation": ("validation", "dev", "test")}  # file names of a split, in order of preference


def read(data: DataSection, name: str) -> tuple[list[Row], list[Row], str]:
    """A task's training rows, its validation rows, and where they are from. Raises DataError.

    The labels of MNLI's mismatched validation set are shifted by 3, so that the metrics can tell the two
    apart.
    """
    if data.path is None:
        return _of_hub(data, name)
    folder = folder_of_task(folder_of(data), name)
    train = found_in(folder, (data.train,))
    rows = list(rows_of(train, TASKS[name]))
    others: list[Row] = []
    files = []
    for part in MNLI if name == "mnli" else ("",):
        spellings = SPELLINGS.get(data.validation, (data.validation,))
        if not data.holdout:
            files.append(found_in(folder, tuple(word + part for word in spellings)))
    for place, file in enumerate(files):
        shift = place * len(TASKS[name].labels)
        others += [(texts, label + shift) for texts, label in rows_of(file, TASKS[name])]
    return rows, others, f"{folder} ({', '.join(file.name for file in (train, *files))})"


def is_there(data: DataSection, name: str) -> bool:
    """Whether there is training data for a task: a folder of its name with a training file, or the hub."""
    if data.path is None:
        return True
    root = folder_of(data)
    folder = folder_of_task(root, name)
    return folder != root and (folder / f"{data.train}.tsv").is_file()


def folder_of_task(root: Path, name: str) -> Path:
    """The task's folder: a subfolder with its name, else ``root`` itself. Raises DataError for a file."""
    if not root.is_dir():
        raise DataError(f"data.path {root} is a file; name the folder that has a subfolder for each GLUE task")
    here = [entry for entry in sorted(root.iterdir()) if entry.is_dir() and plain_name(entry.name) == name]
    return here[0] if here else root


def found_in(folder: Path, stems: tuple[str, ...]) -> Path:
    """The first of these .tsv files that exists. Raises DataError that lists what is there."""
    names = [f"{stem}.tsv" for stem in stems]
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise DataError(f"{folder} has no {' or '.join(names)}; found {listing(folder, 8)}")


def _of_hub(data: DataSection, name: str) -> tuple[list[Row], list[Row], str]:
    """`read` from the hub's data set. Raises DataError."""
    try:
        with progress(f"fetching {name} from the hub", None):
            whole = hub.library(HUB).load_dataset(HUB, name)
    except DataError:
        raise
    except Exception as error:  # the hub client raises from several libraries
        raise DataError(
            f"the recipe has no data.path, and the hub did not provide {HUB}: {first_line(error)}; "
            "--set data.path=DIR names a folder with sst2/train.tsv, rte/train.tsv, …"
        ) from error
    task, parts = TASKS[name], MNLI if name == "mnli" else ("",)
    names = [data.train, *(data.validation + part for part in parts)]
    if missing := [split for split in names if split not in whole]:
        raise DataError(f"{task.title} on the hub has no split {missing[0]!r}; it has {', '.join(whole)}")
    found: list[list[Row]] = []
    for number, split in enumerate(names):
        table, where = whole[split], f"{task.title} {split}"
        columns = [table[table.column_names[place]] for place in _places(where, table.column_names, task)]
        shift = max(0, number - 1) * len(task.labels)
        rows: list[Row] = []
        for place, (*texts, label) in enumerate(zip(*columns, strict=True)):
            rows.append((tuple(texts), _label(str(label), task, f"{where}, row {place}") + shift))
        found.append(rows)
    validation = [] if data.holdout else [row for rows in found[1:] for row in rows]
    return found[0], validation, f"{HUB} ({', '.join(names)})"


def rows_of(file: Path, task: GlueTask) -> Iterator[Row]:
    """Yield texts and label of every line after the header. Raises DataError that names a malformed line."""
    places: list[int] = []
    columns: list[str] = []
    number = 0
    for number, line in enumerate(lines_in(file, DataError, "\n"), 1):
        cells = line.rstrip("\r\n").split("\t")
        if number == 1:
            columns, places = cells, _places(f"{file}, line 1", cells, task)
        elif len(cells) != len(columns):
            raise DataError(
                f"{file}, line {number}: {len(cells)} tab-separated cells, but line 1 names {len(columns)} columns"
            )
        else:
            *texts, label = (cells[place] for place in places)
            if not all(text.strip() for text in texts):
                raise DataError(f"{file}, line {number}: a sentence is empty")
            yield tuple(texts), _label(label.strip(), task, f"{file}, line {number}")
    if number < 2:
        raise DataError(f"{file} has no sample: there is nothing after the header")


def _places(where: str, columns: list[str], task: GlueTask) -> list[int]:
    for spelling in task.columns:
        wanted = (*spelling, "label")
        if set(wanted) <= set(columns):
            return [columns.index(name) for name in wanted]
    names = ", ".join((*task.columns[0], "label"))
    raise DataError(f"{where}: {task.title} needs the columns {names}; found {', '.join(columns)}")


def _label(text: str, task: GlueTask, where: str) -> float | int:
    if text in task.labels:
        return task.labels.index(text)
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not task.labels and 0 <= value <= HIGHEST:
        return value
    if task.labels and value in range(len(task.labels)):
        return int(value)
    known = " or ".join(f"{i} {name}" for i, name in enumerate(task.labels)) or f"a number 0 … {HIGHEST:g}"
    raise DataError(f"{where}: {task.title} has no label {text!r}; expected {known}")
