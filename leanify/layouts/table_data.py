"""The data in a table: labelled images or texts, or texts alone, judged by its first rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from shlex import quote

from leanify.core.files.reading import preview
from leanify.layouts import columns, guessing
from leanify.layouts.faults import Faults
from leanify.layouts.image_files import NUMBERS, PictureFolder, describe_missing, find_picture_folder, has_images
from leanify.layouts.own_data import CUT, LISTS, Kind, NamedColumns, OwnData, nothing
from leanify.layouts.rows import Row, read_table

SOME = 1000  # rows of a table by which it is recognised
MAX_COUNTED = 30_000  # rows of a table that are counted: a longer one is seen a few times, whatever its length
MAX_NAMES = 6  # classes listed by name
MAX_LABEL = 200  # characters of a label
MANY_CLASSES, FEW_SAMPLES = 20, 3  # classes, and the samples that each of them needs on average
CHOICE = "multiple choice is learnt by transformers' Trainer, lean models included: AutoModelForMultipleChoice"
BOOSTING = "gradient boosting learns, such as scikit-learn's HistGradientBoostingClassifier"
NESTED = "is nested (column {}): write an object a row, as JSON lines, with a text and its label"
NO_IMAGES = "without images there is nothing to learn"
CHATS = ("messages", "conversations", "conversation", "dialog", "dialogue")
UNLABELLED = (  # columns of data for language models and embeddings, and of their texts the one to learn
    (("instruction", "output"), "output"), (("prompt", "chosen"), "chosen"), (("prompt", "completion"), "completion"),
    (("anchor", "positive"), "anchor"), (("query", "pos"), "query"), (("prompt", "response"), "response"),
    (("instruction", "response"), "response"), (("question", "response"), "response"),
    (("chosen", "rejected"), "chosen"), (("text", "language_score"), "text"),
)  # fmt: skip
PAIRS = (  # the same of answers, summaries and translations, unless a column has labels
    (("question", "context"), "context"), (("question", "answer"), "answer"), (("article", "highlights"), "article"),
    (("document", "summary"), "document"), (("dialogue", "summary"), "dialogue"), (("article", "summary"), "article"),
    (("text", "summary"), "text"), (("source", "target"), "target"), (("src", "tgt"), "tgt"), (("en", "de"), "en"),
    (("en", "fr"), "en"),
)  # fmt: skip


@dataclass(frozen=True)
class _Table:
    """The first rows of a table, all that were read, and the user's words about it.

    In a table in the order of its classes, the first rows are of one class.
    """

    file: Path
    rows: Sequence[Row]
    all_rows: Sequence[Row]  # the first ones, and further ones with short cells alone
    selection: NamedColumns
    place: Path  # the path that the user named

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """The columns of texts by their names."""
        first, asked = self.rows[0], self.selection.texts
        return self.selection.text_columns(
            [name for name in first if name in asked or isinstance(first[name], str | None)]
        )


@dataclass(frozen=True)
class _Labels:
    """A column of labels: classes by their names, or numbers."""

    column: str
    names: Sequence[str]
    are_numbers: bool
    missing: Sequence[str]  # the names that stand for no label
    count: int  # rows that were read, and those without a label
    unlabelled: int

    @property
    def classes(self) -> int | None:
        """The number of classes, if it is known: after a single one in a long table, others may follow."""
        is_open = len(self.names) == 1 and self.count >= MAX_COUNTED
        return None if self.are_numbers or is_open else len(self.names)

    @property
    def samples(self) -> int | None:
        """The rows with a label, if all were read."""
        return self.count - self.unlabelled if self.count < MAX_COUNTED else None

    def __str__(self) -> str:
        what = f"{len(self.names):,} class{'es' * (len(self.names) != 1)}: {preview(self.names, MAX_NAMES)}"
        if self.are_numbers:
            what = "a number"
        elif self.classes is None:
            what = f"{self.names[0]} in the rows that were read"
        return f"labels ({self.column}, {what})"


def describe_table(file: Path, validation: Path | None, selection: NamedColumns, place: Path) -> OwnData:
    """The data in a table that may be validated on another one; ``place`` is the path that the user named.

    Raises DataError for a table that cannot be read.
    """
    # the first rows, of which the columns are guessed, and the number of all
    faults = Faults(skip=True)
    table = read_table(file, faults)
    rows = [row for _, row in islice(table, SOME)]
    further_rows = [_drop_long_cells(row) for _, row in islice(table, MAX_COUNTED - SOME)]
    if not rows:
        fault = f"no row of {file} can be read, the first: {faults.names[0]}" if faults.names else f"{file} has no rows"
        return nothing(fault)
    data = _describe_rows(_Table(file, rows, [*rows, *further_rows], selection, place), validation)
    if data.kind is None or not faults.names:
        return data
    faults_note = f"; {count_noun(len(faults.names), 'row')} cannot be read, the first: {faults.names[0]}"
    return replace(data, description=data.description + faults_note)


def count_noun(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"


def _drop_long_cells(row: Row) -> Row:
    """A row with the cells that can be labels; None for the others."""
    labels = {name: columns.parse_label(cell) or "" for name, cell in row.items()}
    return {name: cell if 0 < len(labels[name]) <= MAX_LABEL else None for name, cell in row.items()}


def _describe_rows(table: _Table, validation: Path | None) -> OwnData:
    """The kind of a table's rows, judged by the first ones: labelled images or texts, or texts alone."""
    file, rows, selection = table.file, table.rows, table.selection
    needs_labels = selection.task not in columns.WITHOUT_LABELS
    label = None
    if needs_labels:
        label = selection.label
        if label not in rows[0]:
            label = columns.match_column(columns.LABELS, list(rows[0]))
        # cells with several labels or texts, which nothing here learns
        cells = [] if label is None else [row.get(label) for row in rows]
        if any(isinstance(cell, (list, tuple)) and len(cell) != 1 for cell in cells):
            return nothing(f"{file} has lists in its column {label}; {LISTS}", file)
        if any(isinstance(cell, dict) for cell in cells):
            return nothing(f"{file} {NESTED.format(label)}", file)
        choices = [] if selection.texts else guessing.find_choices(rows[0])
        if choices:
            return nothing(f"{file} has texts to choose from in each row ({preview(choices)}); {CHOICE}", file)
    picture = selection.picture_column(file, rows)
    if picture is not None:
        return _describe_picture_rows(table, picture, label, validation)
    if needs_labels:
        return _describe_text_rows(table, label, validation)
    return _describe_plain_rows(table, [], validation)


def _describe_picture_rows(table: _Table, picture: str, label: str | None, validation: Path | None) -> OwnData:
    file, rows = table.file, table.rows
    names = list(rows[0])
    answer = label or guessing.guess_label(table.all_rows, (picture,))
    # boxes, of which a picture may have several
    inner = [key for cell in rows[0].values() if isinstance(cell, dict) for key in cell]
    are_several = guessing.has_boxes(names) and len({str(row.get(picture)) for row in rows}) < len(rows)
    if guessing.has_boxes(inner) or (answer is not None and are_several):
        return nothing(f"{file} has boxes in pictures, and leanify learns one class a picture: {CUT}")
    if answer is None:
        line = _compare_line(table.place, "images", (picture,), _label_like(rows) or "COLUMN")
        return nothing(
            f"which column has the labels of the images ({picture}) is not clear in {file}, which has "
            f"{preview(list(map(str, names)), 8)}. Name it: {line}; a column for each class is not read"
        )
    # some of the files may be missing
    labels = _read_labels(table, answer)
    description = _describe_samples(table, "images", (picture,), labels)
    fault = _label_fault(table, "images", (picture,), labels)
    cells = [row.get(picture) for row in rows]
    folder = find_picture_folder(file, cells) or PictureFolder(file.parent)
    missing, sentence = describe_missing(file, [folder.parse(cell) for cell in cells])
    if missing:
        description += f"; {sentence}"
    if missing == len(cells):
        fault = NO_IMAGES
    if labels.are_numbers:
        fault = NUMBERS
    data = OwnData("images", description, False, None, labels.classes, labels.samples, fault=fault)
    data = _add_validation(data, validation, answer, table.all_rows)
    named_so = (picture, answer) == (columns.match_column(columns.PICTURES, names), label)
    return data if named_so else replace(data, columns=((picture,), answer))


def _describe_text_rows(table: _Table, label: str | None, validation: Path | None) -> OwnData:
    """Texts with a label each, by the names of their columns or by their values; otherwise texts alone."""
    file, rows, selection, place = table.file, table.rows, table.selection, table.place
    # texts for a language model or for embeddings, which have no labels
    named = selection.text_columns(list(rows[0])), label
    if label is None and not selection.texts:
        fault = _describe_unlabelled(file, rows[0], UNLABELLED)
        if fault is not None:
            return nothing(fault, file)
    # columns of texts and of a label
    texts = table.texts or guessing.guess_text(rows)
    if texts and (label is None or (label in texts and selection.label is None)):
        flags = guessing.flag_columns(table.all_rows, texts)
        if flags:
            line = _compare_line(place, "sentences", texts[:2], flags[0])
            return nothing(
                f"{file} has several labels of a text ({preview(flags, 6)}). One of them is learnt with {line}; all at "
                "once are learnt by transformers' Trainer, lean models included: AutoModelForSequenceClassification",
                file,
            )
        label = guessing.guess_label(table.all_rows, texts)
    # a column whose name speaks for labels, with more values than can be learnt, beside another one (tags, quality)
    if texts and label is not None and selection.label is None and _has_many_classes(_read_labels(table, label)):
        label = guessing.guess_label(table.all_rows, (*texts, label)) or label
    usual = label or _label_like(rows) or "COLUMN"
    numbers = [] if selection.texts else guessing.find_numbers(rows, texts, usual)
    if numbers:
        line = _compare_line(place, "sentences", texts, usual)
        return nothing(
            f"{file} is a table of numbers ({preview(numbers, 4)}), which {BOOSTING}; leanify learns texts and images. "
            f"The texts of {' and '.join(texts)} alone are learnt with {line}",
            file,
        )
    if texts and label is not None:
        data = _describe_texts(table, texts, _read_labels(table, label))
        data = _add_validation(data, validation, label, table.all_rows)
        return data if named == (texts, label) else replace(data, columns=(texts, label))
    # texts without a label, unless another column has labels
    few_values = list(guessing.label_candidates(table.all_rows, texts)) if texts else []
    fault = None if few_values or selection.texts else _describe_unlabelled(file, rows[0], PAIRS)
    has_objects = any(isinstance(cell, list) and cell and isinstance(cell[0], dict) for cell in rows[0].values())
    if fault is None and not selection.texts and has_objects:
        fault = _describe_unclear(file, rows, few_values, place)
    return _describe_plain_rows(table, few_values, validation) if fault is None else nothing(fault, file)


def _describe_plain_rows(table: _Table, labels: Sequence[str], validation: Path | None) -> OwnData:
    """Texts that train a language model, unless columns may have ``labels``."""
    names = list(table.rows[0])
    if not table.texts or labels:
        return nothing(_describe_unclear(table.file, table.rows, labels, table.place), table.file if labels else "")
    has_others = len(names) > len(table.texts)
    rest = "; a label is learnt if its column is named, --set data.label=COLUMN" * has_others
    description = f"texts in {table.file} (column {table.texts[0]}{rest})"
    return OwnData("text", description, validation is not None)


def _add_validation(data: OwnData, validation: Path | None, label: str, training_rows: Sequence[Row]) -> OwnData:
    """The same, validated on a table if that has labels: one to be tested on often has none, or −1 for each."""
    if validation is None:
        return data
    # the rows of the validation table need the label column
    rows = [_drop_long_cells(row) for _, row in islice(read_table(validation, Faults(skip=True)), MAX_COUNTED)]
    if not any(label in row for row in rows[:1]):
        return replace(data, description=f"{data.description}; {validation} has no column {label} and is left out")
    # a table whose labels are kept from us often has one placeholder for all of them
    values = {columns.parse_label(row.get(label)) for row in rows}
    known_values = {columns.parse_label(row.get(label)) for row in training_rows}
    if len(rows) > 1 and len(values) == 1 and not values & known_values:
        hidden = f"all labels of {validation} are {next(iter(values)) or 'empty'}, so it is left out"
        return replace(data, description=f"{data.description}; {hidden}")
    description = f"{data.description}, validated on {validation}"
    if rows and data.classes is not None and not values & known_values:
        other_names = preview(sorted(map(str, values)), MAX_NAMES)
        fault = f"that has none of these classes ({label}: {other_names}): write the labels of both tables alike"
        data = replace(data, fault=fault)
    return replace(data, is_validated=True, description=description)


def _read_labels(table: _Table, column: str) -> _Labels:
    order = columns.class_names(table.file, column)
    cells = [columns.parse_label(columns.name_class(row.get(column), order)) for row in table.all_rows]
    labels = [label for label in cells if label is not None]
    missing = columns.missing_labels(labels, order)
    labels = [label for label in labels if label not in missing]
    names = columns.sort_labels(set(labels), order)
    are_numbers = columns.are_scores(names)
    if are_numbers:
        labels = [label for label in labels if columns.parse_number(label) is not None]
    return _Labels(column, names, are_numbers, missing, len(cells), len(cells) - len(labels))


def _describe_samples(table: _Table, samples: str, of: tuple[str, ...], labels: _Labels) -> str:
    """The description for people of images or texts (the columns ``of``) with a label each."""
    count = f"{labels.count:,}{' or more' * (labels.count >= MAX_COUNTED)}"
    description = f"{count} {samples} ({' and '.join(of)}) with {labels} in {columns.describe_table(table.file)}"
    if labels.unlabelled:
        remedy = "skip such rows with --set data.on_error=skip"
        if labels.missing:
            are = "are" if len(labels.missing) > 1 else "is"
            remedy = f"{preview(labels.missing)} {are} none, and such rows are left out"
        description += f"; {count_noun(labels.unlabelled, 'row')} without a label: {remedy}"
    return description


def _has_many_classes(labels: _Labels) -> bool:
    """Whether there are too many classes to learn them from a few rows each."""
    classes = labels.classes or 0
    return classes >= MANY_CLASSES and labels.count < FEW_SAMPLES * classes


def _label_fault(table: _Table, kind: Kind, of: tuple[str, ...], labels: _Labels) -> str | None:
    """Why nothing can be learnt from these labels; None if something can."""
    classes, count = labels.classes, labels.count
    if classes == 1:
        return "but of one class: two or more are needed to tell apart"
    several = guessing.several_labels(labels.names) if classes and table.selection.label is None else None
    if several is not None:
        line = _compare_line(table.place, kind, of, labels.column)
        return (
            f"rows have several labels ({several}). Each combination is learnt as a class of its own with {line}; "
            "several at once are learnt by transformers' Trainer, lean models included"
        )
    if classes is None or not _has_many_classes(labels):
        return None
    column = labels.column
    fault = f"a class has {count / classes:.1f} rows on average, too few to learn it: is {column} the right column?"
    if all(columns.parse_number(name) is not None for name in labels.names):
        fault += " Numbers are learnt as such with --set data.task=text-regression"
    return fault


def _describe_texts(table: _Table, texts: tuple[str, ...], labels: _Labels) -> OwnData:
    """Texts with a class or a number each, and their sizes, to which a default recipe is fitted."""
    # words at the 95th percentile, and different words
    words = [" ".join(str(row.get(name, "")) for name in texts).lower().split() for row in table.rows]
    long = sorted(map(len, words))[int(0.95 * (len(words) - 1))]
    fault = _label_fault(table, "sentences", texts, labels) if table.selection.task is None else None
    return OwnData(
        "sentences",
        _describe_samples(table, "rows of texts", texts, labels),
        False,
        "text-regression" if labels.are_numbers else "text-classification",
        labels.classes,
        labels.samples,
        words=long,
        vocabulary=len(set().union(*words)),
        fault=fault,
    )


# -- data that cannot be trained on, and why --------------------------------------------------------------------------


def _describe_unlabelled(file: Path, row: Row, kinds: Sequence[tuple[tuple[str, str], str]]) -> str | None:
    """What learns from data without labels (chats, instructions, summaries, triplets); None for other columns."""
    spellings = {str(name).lower(): str(name) for name in row}
    chat = next((spellings[name] for name in CHATS if name in spellings), None)
    learnt = chat if chat is not None and isinstance(row[chat], (list, tuple)) else None
    for names, answer in kinds:
        if learnt is None and all(name in spellings for name in names):
            learnt = spellings[answer] if guessing.has_words(row[spellings[answer]]) else None
    if learnt is None:
        return None
    return (
        f"{file} ({preview(list(spellings.values()), 6)}) has no labels; a language model learns its texts, leanify "
        f"train own-text --set data.path={quote(str(file))} --set data.text={learnt}, and a trained one is "
        f"shrunk on them, leanify shrink CHECKPOINT --data {quote(str(file))} --set data.text={learnt}"
    )


def _compare_line(place: Path, kind: Kind, of: tuple[str, ...], label: str) -> str:
    """The command that learns a label from the columns ``of``."""
    settings = OwnData(kind, "", False, columns=(of, label)).settings
    return " ".join(["leanify compare", quote(str(place)), *(f"--set {quote(setting)}" for setting in settings)])


def _describe_unclear(file: Path, rows: Sequence[Row], labels: Sequence[str], place: Path) -> str:
    """Why columns are not clear, and the line that names them."""
    for name, cell in rows[0].items():
        if isinstance(cell, dict) or (isinstance(cell, (list, tuple)) and cell and isinstance(cell[0], (list, dict))):
            return f"{file} {NESTED.format(name)}"
        if isinstance(cell, (list, tuple)):
            return f"{file} has lists in its column {name}; {LISTS}"
    names = preview(list(map(str, rows[0])), 8)
    label = next(iter(labels), None) or _label_like(rows)
    # the longest strings of several words may be the texts
    lengths = dict.fromkeys(rows[0], 0)
    for row in rows:
        for name in lengths:
            cell = row.get(name)
            if isinstance(cell, str) and guessing.has_words(cell):
                lengths[name] += len(cell)
    text = max(lengths, key=lambda name: lengths[name])
    if lengths[text]:
        texts = columns.guess_texts(list(rows[0])) or (text,)
        what = "which columns are texts and labels" if label else "which column has the labels"
        line = _compare_line(place, "sentences", texts, label or "COLUMN")
        return f"{what} is not clear in {file}, which has {names}. Name them: {line}"
    if place.is_dir() and has_images(place):
        return (
            f"no column of {file}, which has {names}, names images: a cell is a path from the table on, with its "
            "suffix, as a/b.jpg; a column of any name then does: "
            f"{_compare_line(place, 'images', ('COLUMN',), label or 'COLUMN')}"
        )
    pixels = guessing.find_pixels(rows[0])
    if pixels:
        return (
            f"{file} has pictures as numbers ({preview(pixels, 3)}): write each as a .png, with PIL.Image.fromarray, "
            "into a folder for each class, DIR/train/CLASS"
        )
    return (
        f"no column of {file} has texts of several words or names images; it has {names}. Numbers and categories are "
        f"what {BOOSTING}"
    )


def _label_like(rows: Sequence[Row]) -> str | None:
    """The column with a usual name for labels, or the column with the fewest values, at least two."""
    if (column := columns.match_column(columns.LABELS, list(rows[0]))) is not None:
        return column
    few_values: dict[str, int] = {}
    for name in rows[0]:
        count = len({str(row.get(name)) for row in rows})
        if 2 <= count <= len(rows) / 5:
            few_values[name] = count
    return min(few_values, key=lambda name: few_values[name]) if few_values else None
