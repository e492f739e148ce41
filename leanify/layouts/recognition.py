"""Recognise the user's data at a path, or its fault: one walk over its folders and files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from shlex import quote

from leanify.core import path_kinds as places
from leanify.core.errors import DataError, SourceError
from leanify.core.files.reading import preview, read_lines, text_encoding, walk_folders
from leanify.layouts import columns, hub, image_files, joining
from leanify.layouts.faults import Faults
from leanify.layouts.own_data import CUT, LAYOUTS, LISTS, NO_COLUMNS, NamedColumns, OwnData, nothing
from leanify.layouts.rows import find_table, labels_pictures
from leanify.layouts.split_names import FILLERS, are_split_names, is_split, name_words, parse_split, synonyms
from leanify.layouts.table_data import MAX_NAMES, NO_IMAGES, count_noun, describe_table
from leanify.layouts.text_folders import describe_unlabelled, find_texts, list_texts

MAX_FILES = 1000  # of a folder, by which it has sounds or videos
DEPTH, MAX_FOLDERS = 2, 100  # of folders below one without data that are looked into, each with all its contents
MIN_TEXT = 1024  # bytes of a text of which a model learns anything
ARCHIVES = (".zip", ".tar", ".tgz", ".gz", ".bz2", ".xz", ".zst", ".7z", ".rar")
OF_TRAINER = "are learnt by transformers' Trainer, lean models included: AutoModelFor"
OWN_FUNCTION = "a function of your own may read them, --set data.name=file.py:function"
RECORDINGS = {  # suffix → what learns from recordings
    **dict.fromkeys((".wav", ".mp3", ".flac", ".ogg", ".m4a", ".opus"), f"sounds {OF_TRAINER}AudioClassification"),
    **dict.fromkeys((".mp4", ".avi", ".mkv", ".mov", ".webm"), f"videos {OF_TRAINER}VideoClassification"),
}
OTHERWISE = {  # suffix → how to make a file that is read
    **dict.fromkeys((".xlsx", ".xls", ".ods"), "save it as .csv"),
    ".arrow": "write it as .parquet, with to_parquet of the library datasets",
    ".feather": "write it as .parquet, with to_parquet of pandas",
    ".md": "call it .txt to train on it as plain text",
    **RECORDINGS,
    **dict.fromkeys((".npy", ".npz", ".mat", ".h5", ".hdf5", ".pkl", ".sqlite", ".db"), OWN_FUNCTION),
    **dict.fromkeys((".tfrecord", ".tfrec"), OWN_FUNCTION),
    ".bin": "if they are token ids, name the text that they were made of",
    **dict.fromkeys((".conll", ".conllu", ".iob", ".iob2", ".bio"), LISTS),
}
LINES = {  # kind of a text file with labels that is not read → what it has, and what to do
    "tags": f"a token and its tag in each line; {LISTS}",
    "trees": "a sentence in brackets in each line, with a label for each part: write a table of the sentences and the "
    "label of each, train.csv",
    "mixed": "lines between its rows that are none: remove them, as grep -P '\\t' does",
}
NO_TEXTS = (".json", ".xml", ".yaml", ".yml", ".py", ".html", ".ipynb")  # endings of texts other than prose
BOXES = {  # file next to pictures of detection → the format that has it
    "annotations/instances_*.json": "COCO",
    "*/_annotations.coco.json": "COCO",
    "labels/*/*.txt": "YOLO",
    "*/labels/*.txt": "YOLO",
    "Annotations/*.xml": "Pascal VOC",
    "train/*.xml": "Pascal VOC",
    "annotations/*.xml": "Pascal VOC",
    "annotations.xml": "CVAT",
    "via_*.json": "VGG's annotator",
}


def recognise(path: str | Path, selection: NamedColumns = NO_COLUMNS, depth: int = DEPTH) -> OwnData:
    """The data in a file or folder, with their fault if they cannot be trained on; of no kind if there are none.

    Data that lie up to ``depth`` folders below are named instead.
    """
    place = Path(path).expanduser()
    try:
        if place.is_dir():
            return _describe_folder(image_files.data_folder(place), selection, depth)
        return _describe_file(place, None, selection, place) if place.is_file() else nothing("it does not exist")
    except OSError as error:
        return nothing(f"it cannot be read: {error.strerror or error}")
    except DataError as error:
        return nothing(str(error))


def find_own_data(path: str, selection: NamedColumns = NO_COLUMNS) -> OwnData | None:
    """The user's data at a path, which can be trained on; None for the path of a model. Raises SourceError."""
    if not Path(path).expanduser().exists() or places.path_kind(path) is not None:
        return None
    data = recognise(path, selection)
    if data.kind is None and places.models_inside(Path(path)):  # what loads models names those inside
        return None
    problem = data.problem(path)
    if problem is not None:
        raise SourceError(problem)
    return data


def check_is_no_data(path: str) -> None:
    """Raise SourceError, with the commands to type, for data where a model is asked for."""
    data = None if places.path_kind(path) is not None else recognise(path)
    if data is None or data.kind is None:
        return
    place = quote(path)
    rest = "" if data.is_validated or data.kind == "text" else " (no validation split: a share will be held out)"
    raise SourceError(
        data.problem(path)
        or f"{path} is data, not a model: {data.description}{rest}. Train a model on it:\n  leanify train {place}\n"
        f"or compare baseline, lean and control on it, small enough for a laptop:\n  leanify compare {place}"
    )


def _describe_file(file: Path, validation: Path | None, selection: NamedColumns, place: Path) -> OwnData:
    """A file, which may be validated on another one; ``place`` is the path that the user named."""
    if file.is_dir():  # texts in folders of their classes
        data = describe_table(file, validation, selection, place)
        return replace(data, description=data.description + describe_unlabelled(file)) if data.kind else data
    suffix = file.suffix.lower()
    kind = columns.text_table(file)
    if kind is not None and kind in columns.NO_ROWS:
        return nothing(f"{file} has {LINES[kind]}", file)
    if suffix in columns.TABLES or kind is not None:
        return describe_table(file, validation, selection, place)
    # plain text
    if suffix in (*columns.TEXT_FILES, ""):
        try:
            text_encoding(file, DataError)
        except DataError as error:  # zero bytes
            return nothing(str(error) if suffix else f"it is not text. It looks for {LAYOUTS}")
        size = file.stat().st_size
        fault = None
        if size < MIN_TEXT:
            fault = f"a model needs a text of thousands of bytes to learn from, {MIN_TEXT:,} at the least"
        return OwnData("text", f"text in {file} ({size:,} bytes)", validation is not None, fault=fault)
    # files that are not read
    if suffix in ARCHIVES:
        return nothing(f"{file} is packed: unpack it, and name what was in it")
    if suffix in OTHERWISE:
        return nothing(f"{suffix} files are not read: {OTHERWISE[suffix]}")
    if suffix in columns.IMAGES:
        return nothing(f"{file} is one picture; it takes two or more classes of them. It looks for {LAYOUTS}")
    return nothing(f"{file.suffix} files are not read. It looks for {LAYOUTS}")


def _describe_folder(place: Path, selection: NamedColumns, depth: int) -> OwnData:
    """The data in a folder: what was saved, pictures, tables or texts, in this order; else what it has instead."""
    if hub.is_saved(place):
        return _describe_saved(place, selection)
    table = find_table(place, "train")
    file = columns.find_split_file(place, "train", (*columns.TABLES, *columns.TEXT_FILES)) or table
    data = _find_other_labels(place) or _find_pictures(place, table, selection)
    data = data or (_find_rows(place, file, selection, depth) if file is not None else None)
    if data is None and not _is_of_pictures(place):
        data = _find_texts(place, file, selection)
    return data or _explain_folder(place, selection, depth)


def _find_other_labels(place: Path) -> OwnData | None:
    boxes = next((what for pattern, what in BOXES.items() if next(place.glob(pattern), None) is not None), None)
    if boxes is not None and image_files.has_images(place):
        return nothing(
            f"its labels are boxes in pictures, as {boxes} lays them out, and leanify learns one class a picture: {CUT}"
        )
    folders = [place, *image_files.class_folders(place)[: joining.FEW_PARTS]]
    masks = next(filter(None, map(image_files.mask_folders, folders)), [])
    if not masks:
        return None
    return nothing(
        f"its labels are pictures ({preview(masks)}), as masks of segmentation are, and leanify learns one class a "
        "picture: put the pictures into a folder for each class, DIR/train/CLASS and DIR/validation/CLASS"
    )


def _find_pictures(place: Path, table: Path | None, selection: NamedColumns) -> OwnData | None:
    """Pictures in a folder for each class, unless a table has their labels, or in tar shards; no recordings."""
    classes = image_files.find_class_folders(place, "train")
    if classes is not None:
        names_pictures = classes == place and table is not None and labels_pictures(table, place, "train")
        data = describe_table(table, None, selection, place) if names_pictures and table is not None else None
        if data is None or data.kind != "images":
            return _describe_classes(place, classes)
    # sounds or videos, if they are most of the files
    folders = islice(walk_folders(place), MAX_FOLDERS)
    endings = Counter(file.suffix.lower() for folder in folders for file in islice(folder.iterdir(), MAX_FILES))
    for ending, count in endings.most_common(2):
        if ending in RECORDINGS and count > 1:
            return nothing(f"{ending} files are not read: {RECORDINGS[ending]}")
    from leanify.layouts import tar_shards  # imports numpy

    shards = tar_shards.find_shards(place, "train")
    if not shards:
        return None
    text = f"{count_noun(len(shards), 'tar shard')} of images in {place}"
    is_validated = bool(tar_shards.find_shards(place, "validation"))
    try:
        _, labels = tar_shards.read(shards, Faults(skip=True))
    except (DataError, OSError) as error:
        return OwnData("images", text, is_validated, fault=str(error))
    samples, class_count = len(labels), len(set(labels))
    text += f", {samples:,} images of {class_count:,} classes"
    return OwnData("images", text, is_validated, classes=class_count, samples=samples)


def _find_rows(place: Path, file: Path, selection: NamedColumns, depth: int) -> OwnData | None:
    """Rows of a split's table, or texts in folders of their classes; None for plain text, and for texts alone."""
    if not file.is_dir() and (not columns.is_table(file) or joining.texts_and_labels(file) is not None):
        return None
    data = _describe_file(file, find_table(place, "validation"), selection, place)
    if data.kind is not None and data.fault != NO_IMAGES:
        others = columns.other_training_tables(file)
        left_out = f"; {preview(others)} {'is' if len(others) == 1 else 'are'} left out" if others else ""
        return replace(data, description=data.description + left_out)
    # a table that is not understood may list pictures that lie in folders of their classes below
    if file.parent != place and image_files.has_tables(file.parent.name):
        return None
    below = _name_inner_data(image_files.class_folders(place), place, depth) if _is_of_pictures(place) else None
    return replace(data, fault=f"{data.fault}; {below}") if below else data


def _find_texts(place: Path, file: Path | None, selection: NamedColumns) -> OwnData | None:
    """Plain texts: a split's ``file``, a single one, several, or those in a folder for each split."""
    # texts in one file and their labels in another, perhaps in a folder for each split
    texts, folder = columns.text_files(place), image_files.find_split_folder(place, "train")
    labels = joining.find_label_file(texts if file is None else [file], place)
    if labels is None and folder is not None:
        inner_files = sorted(entry for entry in islice(folder.iterdir(), joining.FEW_PARTS) if entry.is_file())
        labels = joining.find_label_file(inner_files, place)
    if labels is not None:
        return nothing(labels, place)
    if file is not None:
        kinds = (*columns.TEXT_FILES, *columns.TABLES)
        return _describe_file(file, columns.find_split_file(place, "validation", kinds), selection, place)
    if len(texts) == 1:
        return _describe_file(texts[0], None, selection, place)
    needs_labels = selection.task not in columns.WITHOUT_LABELS
    if needs_labels and (class_files := joining.find_class_files(texts, place)):
        return nothing(class_files, place)
    if texts and not any(map(columns.is_table, texts)):
        return OwnData("text", f"{len(texts)} text files in {place}", False)
    if folder is None or not (texts := list_texts(folder)):
        return None
    if needs_labels and (class_files := joining.find_class_files(texts, place)):
        return nothing(class_files, place)
    is_validated = find_texts(place, "validation") is not None
    return OwnData("text", f"{count_noun(len(texts), 'text file')} in {folder}", is_validated)


def _describe_saved(place: Path, selection: NamedColumns) -> OwnData:
    """A data set saved by ``datasets``' save_to_disk: images and their classes, or a table of texts."""
    splits = hub.load_saved(place)
    rows = next((splits[name] for name in synonyms("train") if name in splits), next(iter(splits.values())))
    by_type = hub.columns_by_type(rows)
    image = by_type.get("Image")
    label = by_type.get("ClassLabel") or columns.match_column(columns.LABELS, rows.column_names)
    file = find_table(place, "train")
    if image is None and "Audio" not in by_type and file is not None:
        return describe_table(file, find_table(place, "validation"), selection, place)
    if image is None or label is None:
        return nothing(
            f"of what datasets saves to disk images with classes and texts are read: {place} has "
            f"{preview([f'{name} ({kind})' for kind, name in by_type.items()])}"
        )
    names = getattr(rows.features[label], "names", None) or columns.sort_labels(map(str, rows.unique(label)))
    classes = f"{len(names):,} classes: {preview(names, MAX_NAMES)}"
    text = f"{len(rows):,} images ({image}) with labels ({label}, {classes}) in {place}"
    others = [name for name in synonyms("validation") if name in splits]
    text += f", {len(splits[others[0]]):,} in {others[0]}" if others else ""
    return OwnData("images", text, bool(others), None, len(names), len(rows), ((image,), label))


def _describe_classes(place: Path, train: Path) -> OwnData:
    # folders that hold pictures are the classes; images that are not read, by their endings
    others: Counter[str] = Counter()
    counts = image_files.count_images(image_files.class_folders(train), others)
    empty = [name for name, count in counts.items() if not count]
    names, samples = columns.sort_labels(set(counts) - set(empty)), sum(counts.values())
    description = f"{samples:,} images of {len(names):,} classes ({preview(names, MAX_NAMES)}) in {train}"
    # the validation folder, with its classes; folders that spoil the classes, by name
    other = image_files.find_split_folder(place, "validation") if train != place else None
    if other is not None and is_split_without_classes(other):
        description += f"; {other} has no folders of classes and is left out"
        other = None
    faults = []
    empty_folders = [str(train / name) for name in empty]
    if other is not None:
        other_counts = image_files.count_images(image_files.class_folders(other), others)
        description += f", {sum(other_counts.values()):,} in {other}"
        empty_folders += [str(other / name) for name, count in other_counts.items() if not count]
        if unknown := sorted(name for name, count in other_counts.items() if count and name not in names):
            faults.append(
                f"{other} has classes that training lacks ({preview(unknown)}): remove them there or add them"
            )
    if empty_folders:
        faults.insert(0, f"there is no image in {preview(empty_folders)}: remove the folder")
    # folders of classes beside pictures: a set beside its test set, its pictures in another size, or itself again
    sets: dict[str, list[Path]] = {}
    for name in names:
        if image_files.has_picture(train / name):
            continue
        inner = image_files.find_class_folders(image_files.data_folder(train / name), "train")
        if inner is not None:
            sets[name] = image_files.class_folders(inner)
    are_again = any({*names} - {name} <= {folder.name for folder in folders} for name, folders in sets.items())
    are_named = any(parse_split(name) is not None or not FILLERS.isdisjoint(name_words(name)) for name in names)
    if 0 < len(sets) < len(names) and (are_again or are_named):
        faults.append(f"{preview([*sets])} has folders of classes, and pictures lie beside it: name one of them")
    # what may be meant otherwise
    classes = [image_files.data_folder(train / name) for name in names]
    inner_names: list[list[str]] = []
    if not any(map(image_files.has_picture, classes)):
        inner_names = [[folder.name for folder in image_files.class_folders(place)] for place in classes]
    is_nested = 2 * sum(len(inner) > 1 for inner in inner_names) > len(inner_names)
    if is_nested and any(inner != inner_names[0] for inner in inner_names):
        inner_folders = preview([*chain(*inner_names)])
        description += (
            f"; their images are in folders of their own ({inner_folders}): if those are the classes, put them side by "
            "side"
        )
    elif is_nested:
        description += f"; each of these folders has the folders {preview(inner_names[0])}: "
        if are_split_names(inner_names[0]):
            description += "their images are mixed, unless you move them to DIR/train/CLASS and DIR/validation/CLASS"
        else:
            description += "if those are the classes, name one of the outer ones"
            if any(parse_split(name) is not None for name in names):
                faults.append(f"if {preview(names)} are splits, call them train and validation")
            table = find_table(place, "train") if train != place else None
            if table is not None:
                faults.append(f"{table} may have the labels: write its cells as paths from the table on, a/b/c.jpg")
    visible = [entry for entry in train.iterdir() if entry.is_dir() and entry.name[0] not in "._@#$"]
    tool_folders = [entry for entry in visible if image_files.is_tool_folder(entry.name)]
    left_out = [entry.name for entry in tool_folders if image_files.has_images(entry)]
    if left_out:
        description += f"; {preview(left_out)} is left out as a tool's folder: rename it if it is a class"
    if others:
        description += f"; {image_files.describe_unread(others)}"
    if single := [name for name in names if counts[name] == 1]:
        description += f"; one image alone in {preview(single)}"
    fault = "; ".join(faults) or None
    return OwnData("images", description, other is not None, classes=len(names), samples=samples, fault=fault)


def is_split_without_classes(folder: Path) -> bool:
    """Whether a folder of a split has its pictures side by side, or all in images/: their classes are elsewhere."""
    folders = image_files.picture_folders(folder)
    if len(folders) == 1:
        return folders[0].name.lower() in FILLERS
    return not folders and image_files.has_images(folder)


def _is_of_pictures(place: Path) -> bool:
    """Whether text files in a folder are lists of its pictures, which outnumber them, or captions; none to learn."""
    texts = columns.text_files(place)
    stems = [image.stem for image in islice(image_files.find_images(place), max(1, len(texts)) + 1)]
    return len(stems) > max(1, len(texts)) or (len(stems) > 1 and {file.stem for file in texts} <= {*stems})


# -- folders without data that are read -------------------------------------------------------------------------------


def _explain_folder(place: Path, selection: NamedColumns, depth: int) -> OwnData:
    """The thing that was found instead of data, and what to do."""
    entries = sorted(entry for entry in place.iterdir() if not image_files.is_tool_folder(entry.name))
    files = [entry for entry in entries if entry.is_file()]
    folders = [entry for entry in entries if entry.is_dir()]
    if not entries:
        return nothing(f"it is empty. It looks for {LAYOUTS}")
    # what says most comes first
    if _is_of_pictures(place) and (names := _name_inner_data(folders, place, depth)):
        return nothing(names)
    return (
        _explain_tables(files, place, selection)
        or _explain_inner_data(folders, place, selection, depth)
        or _explain_images(place, folders)
        or _explain_files(files, folders, place, selection)
        or nothing(f"found {preview([entry.name for entry in (*files, *folders)], 5)}. It looks for {LAYOUTS}")
    )


def _explain_tables(files: Sequence[Path], place: Path, selection: NamedColumns) -> OwnData | None:
    """Lines with labels that are no rows, or tables of which none is a split's by its name."""
    no_rows = next((file for file in files if columns.text_table(file) in columns.NO_ROWS), None)
    if no_rows is not None:
        return _describe_file(no_rows, None, selection, place)
    tables = [file for file in files if columns.is_table(file)]
    if len(tables) == 1:
        data = describe_table(tables[0], None, selection, place)
        rename = f"{tables[0]} is no split's name: call it train{tables[0].suffix}, or name it"
        return nothing(data.fault if data.kind is None and data.fault else rename)
    if not tables:
        return None
    names = preview([file.name for file in tables])
    return nothing(
        f"it has {len(tables):,} tables, of which none is called train: {names}. Name one of them, or call them "
        "train.csv and validation.csv. Parts of one table are to be joined. If each has the rows of a class, write "
        "one table with their names in a column label"
    )


def _explain_inner_data(folders: Sequence[Path], place: Path, selection: NamedColumns, depth: int) -> OwnData | None:
    """Data in folders below, which are to be named; those of the first folder with tables are taken."""
    if names := _name_inner_data(folders, place, depth):
        return nothing(names)
    with_tables = [folder for folder in folders if any(map(columns.is_table, folder.iterdir()))]
    return recognise(with_tables[0], selection, depth - 1) if with_tables and depth else None


def _name_inner_data(folders: Sequence[Path], place: Path, depth: int) -> str | None:
    kinds = {folder: recognise(folder, depth=depth - 1).kind for folder in folders[:MAX_FOLDERS] if depth}
    lists = "text" if _is_of_pictures(place) else None
    train = image_files.find_split_folder(place, "train")
    readable = [folder for folder, kind in kinds.items() if kind not in (None, lists)]
    readable = [folder for folder in readable if train is None or not is_split(folder.name)]
    if len(readable) == 1:
        return f"but {readable[0]} is data: name it"
    names = preview([folder.name for folder in readable])
    return f"its folders {names} are data, each for itself. Name one of them" if readable else None


def _explain_files(
    files: Sequence[Path], folders: Sequence[Path], place: Path, selection: NamedColumns
) -> OwnData | None:
    """Archives and files of other kinds, and texts with other endings; without files, the first ones in folders."""
    if not files:
        entries = [entry for folder in folders[:MAX_FOLDERS] for entry in islice(folder.iterdir(), joining.FEW_PARTS)]
        files = sorted(entry for entry in entries if entry.is_file())
    endings = Counter(file.suffix.lower() for file in files)
    for ending, _ in endings.most_common():
        if ending in (*ARCHIVES, *OTHERWISE):
            file = next(file for file in files if file.suffix.lower() == ending)
            return _describe_file(file, None, selection, place)
    texts = [file for file in files if file.suffix not in NO_TEXTS and joining.decodes(file)]
    for file in texts:
        lines = list(islice(read_lines(file, DataError), joining.MIN_LINES)) if file.suffix == ".data" else []
        if len({line.count(",") for line in lines}) == 1:
            return nothing(f"{file} has cells between commas: call it {file.stem}.csv, and name it")
    others = [file for file in texts if file.stat().st_size >= MIN_TEXT]
    if len(others) == 1 and not others[0].suffix:  # enwik8
        return nothing(f"but {others[0]} is text: name it")
    if not any(file.suffix for file in others):
        return None
    names = preview([str(file.relative_to(place)) for file in others])
    return nothing(
        f"{names} have texts, and endings that say nothing. Without labels, call one train.txt; with labels, write a "
        "table, train.csv, with the columns text and label"
    )


def _explain_images(place: Path, folders: Sequence[Path]) -> OwnData | None:
    others: Counter[str] = Counter()
    image_files.count_images(folders, others)
    if others:
        return nothing(f"it has {image_files.describe_unread(others)}")
    image_count = sum(1 for _ in image_files.find_images(place))
    if not image_count:
        return None
    train = image_files.find_split_folder(place, "train") or place
    names = [folder.name for folder in image_files.picture_folders(train)]
    if len(names) > 1 and are_split_names(names):
        return nothing(f"its folders of images, {', '.join(names)}, are named as splits, and none of them is train")
    hint = joining.hint_labels(place)
    if len(names) == 1 and not is_split(names[0]):
        one = f"{train} has one folder of images, {names[0]}; with one folder per class it takes two or more{hint}"
        return nothing(one)
    images = "only image is" if image_count == 1 else f"{image_count:,} images are"
    rest = f", nor named by a table{hint}" if train != place and hint else f". It looks for {LAYOUTS}"
    return nothing(f"its {images} not in folders of their classes{rest}")
