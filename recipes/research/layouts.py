"""What leanify says to data as public sets, guides and courses lay them out: placeholder files, `datasets` beside.

    python -m recipes.research.layouts > recipes/results/layouts.md

A layout is a list of files: a name that ends in an image's suffix is a small picture, any other one has its text. A
verdict is right where the kind, the classes and whether there is validation data are what the set's authors mean, or
where what leanify does not train on is refused with the words that help.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from leanify.data.own_data import OwnData
from leanify.data.recognition import recognise

TEXTS = ("a fine and sunny day in may", "a dull, wet and rainy night", "the train to town was late again")
ROWS = 40
IMAGES = (".jpg", ".png", ".JPEG")


@dataclass(frozen=True)
class Layout:
    """Files by name, and what is right: a kind with classes and validation, or words of a refusal."""

    source: str
    files: Mapping[str, str]
    kind: str | None
    classes: int | None = None
    is_validated: bool = False
    words: str = ""


def text(row: int) -> str:
    return f"{TEXTS[row % 3]} {row}"


def lines(line: str, number: int = ROWS, header: str = "", labels: str = "0 1") -> str:
    """Rows of a table: {i} is the row's number, {a} and {b} are texts, {label} one of the labels in turn."""
    names = labels.split(" ")
    rows = [line.format(i=i, a=text(i), b=text(i + 1), label=names[i % len(names)]) for i in range(number)]
    return "\n".join([*([header] if header else []), *rows]) + "\n"


def objects(number: int = ROWS, **columns: Any) -> list[dict[str, Any]]:
    return [{name: cell(i) if callable(cell) else cell for name, cell in columns.items()} for i in range(number)]


def json_lines(**columns: Any) -> str:
    return "\n".join(map(json.dumps, objects(**columns))) + "\n"


def pictures(*folders: str, number: int = 8, suffix: str = ".jpg") -> dict[str, str]:
    return {f"{folder}/{i:04}{suffix}": "" for folder in folders for i in range(number)}


def splits(*names: str, classes: str = "cats dogs") -> dict[str, str]:
    return pictures(*(f"{name}/{kind}" for name in names for kind in classes.split()))


def cycle(labels: str) -> Any:
    names = labels.split(" ")
    return lambda i: names[i % len(names)]


SNLI = {"sentence1": text, "sentence2": text, "sentence1_parse": "( x )", "captionID": lambda i: f"{i}.jpg#0r1n"}
TWEETS = "tweet_id,airline_sentiment,airline_sentiment_confidence,negativereason,airline,name,text"
TOXIC = "id,comment_text,toxic,severe_toxic,obscene,threat,insult,identity_hate"
CONLL = "EU NNP B-NP B-ORG\nrejects VBZ B-VP O\nGerman JJ B-NP B-MISC\ncall NN I-NP O\n\n" * 20
COCO = json.dumps({"images": [{"id": 1, "file_name": "0000.jpg"}], "annotations": [], "categories": []})

LAYOUTS: dict[str, Layout] = {
    # pictures in folders
    "class folders": Layout("torchvision ImageFolder, timm", pictures("cats", "dogs"), "images", 2),
    "train and val": Layout("PyTorch transfer tutorial (hymenoptera)", splits("train", "val"), "images", 2, True),
    "training_set and test_set": Layout(
        "Kaggle cats-and-dogs course", splits("training_set", "test_set"), "images", 2, True
    ),
    "training_set in training_set": Layout(
        "the same, as the archive unpacks", splits("training_set/training_set", "test_set/test_set"), "images", 2, True
    ),
    "01_train and 02_test": Layout("course notebooks", splits("01_train", "02_test"), "images", 2, True),
    "seg_train and seg_test": Layout(
        "Intel scenes",
        splits("seg_train/seg_train", "seg_test/seg_test", classes="sea forest street"),
        "images",
        3,
        True,
    ),
    "images/train and images/val": Layout("Ultralytics", splits("images/train", "images/val"), "images", 2, True),
    "train, test without classes": Layout(
        "Dogs vs. Cats", pictures("train", "test"), None, words="in folders of their classes"
    ),
    "COCO": Layout(
        "cocodataset.org",
        pictures("train2017", "val2017") | {"annotations/instances_train2017.json": COCO},
        None,
        words="boxes",
    ),
    "YOLO boxes": Layout(
        "Ultralytics detection",
        pictures("images/train", "images/val") | {f"labels/train/{i:04}.txt": "0 .5 .5 .1 .1\n" for i in range(8)},
        None,
        words="boxes",
    ),
    "VOC": Layout(
        "Pascal VOC",
        pictures("JPEGImages") | {f"Annotations/{i:04}.xml": "<annotation/>" for i in range(8)},
        None,
        words="boxes",
    ),
    # pictures by a table
    "metadata.csv in each split": Layout(
        "datasets, ImageFolder guide",
        pictures("train", "validation", number=ROWS)
        | {
            f"{split}/metadata.csv": lines("{i:04}.jpg,{label}", header="file_name,label", labels="cat dog")
            for split in ("train", "validation")
        },
        "images",
        2,
        True,
    ),
    "metadata.jsonl beside": Layout(
        "datasets, ImageFolder guide",
        pictures("train", number=ROWS)
        | {"train/metadata.jsonl": json_lines(file_name=lambda i: f"{i:04}.jpg", label=cycle("cat dog"))},
        "images",
        2,
    ),
    "labels.csv with ids": Layout(
        "Kaggle dog breeds",
        pictures("train", "test", number=ROWS)
        | {
            "labels.csv": lines("{i:04},{label}", header="id,breed", labels="pug boxer"),
            "sample_submission.csv": "id,pug,boxer\n0001,0.5,0.5\n",
        },
        "images",
        2,
    ),
    "train_labels.csv": Layout(
        "Kaggle, 592 repositories",
        pictures("train", "test", number=ROWS, suffix=".png")
        | {"train_labels.csv": lines("{i:04},{label}", header="id,label")},
        "images",
        2,
    ),
    "train.csv and train_images": Layout(
        "Kaggle Cassava",
        pictures("train_images", "test_images", number=ROWS)
        | {
            "train.csv": lines("{i:04}.jpg,{label}", header="image_id,label", labels="0 1 2"),
            "label_num_to_disease_map.json": "{}",
        },
        "images",
        3,
    ),
    "train.txt of paths and labels": Layout(
        "ImageNet for Caffe, MMPretrain",
        pictures("train", "val", number=ROWS)
        | {f"{s}.txt": lines(s + "/{i:04}.jpg {label}") for s in ("train", "val")},
        "images",
        2,
        True,
    ),
    "meta/train.txt": Layout(
        "MMPretrain",
        pictures("train/n01", "train/n02", number=20, suffix=".JPEG")
        | {"meta/train.txt": "".join(f"n0{1 + i % 2}/{i // 2:04}.JPEG {i % 2}\n" for i in range(ROWS))},
        "images",
        2,
    ),
    "one column a class": Layout(
        "Kaggle plant pathology",
        pictures("images", number=ROWS)
        | {"train.csv": lines("{i:04},{label}", header="image_id,healthy,rust,scab", labels="1,0,0 0,1,0 0,0,1")},
        None,
        words="a column for each class",
    ),
    # labelled texts
    "SNLI": Layout(
        "nlp.stanford.edu",
        {
            f"snli_1.0_{split}.jsonl": json_lines(
                gold_label=cycle("entailment neutral contradiction entailment neutral -"), **SNLI
            )
            for split in ("train", "dev", "test")
        },
        "sentences",
        3,
        True,
    ),
    "Quora": Layout(
        "Kaggle question pairs",
        {
            "train.csv": lines(
                '{i},{i},{i},"{a}?","{b}?",{label}', header="id,qid1,qid2,question1,question2,is_duplicate"
            )
        },
        "sentences",
        2,
    ),
    "MSRP": Layout(
        "Microsoft Research",
        {
            f"msr_paraphrase_{s}.txt": lines(
                "{label}\t70{i}\t80{i}\t{a}\t{b}", header="Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"
            )
            for s in ("train", "test")
        },
        "sentences",
        2,
        True,
    ),
    "Tweets.csv": Layout(
        "Kaggle airline sentiment",
        {
            "Tweets.csv": lines(
                '57{i},{label},0.6{i},,{label}air,user{i},"{a}"', header=TWEETS, labels="positive neutral negative"
            )
        },
        "sentences",
        3,
    ),
    "toxic comments": Layout(
        "Kaggle Jigsaw",
        {"train.csv": lines('c{i},"{a}",{label}', header=TOXIC, labels="0,0,0,0,0,0 1,0,1,0,1,0 1,1,0,1,0,1")},
        None,
        words="data.label=toxic",
    ),
    "AG News": Layout(
        "Zhang's fastText sets",
        {f"{s}.csv": lines('"{label}","{a}","{b}"', labels="1 2 3 4") for s in ("train", "test")}
        | {"classes.txt": "World\nSports\nBusiness\nSci/Tech\n"},
        "sentences",
        4,
        True,
    ),
    "CoLA": Layout(
        "nyu-mll.github.io",
        {f"{s}.tsv": lines("gj04\t{label}\t\t{a}") for s in ("in_domain_train", "in_domain_dev")},
        "sentences",
        2,
        True,
    ),
    "STS benchmark": Layout(
        "ixa2.si.ehu.eus",
        {
            f"sts-{s}.csv": lines(
                "main-captions\tMSRvid\t2012test\t{i:04}\t{label}\t{a}\t{b}", labels="5.000 4.750 2.400"
            )
            for s in ("train", "dev", "test")
        },
        "sentences",
        None,
        True,
    ),
    "GLUE SST-2": Layout(
        "gluebenchmark.com",
        {f"{s}.tsv": lines("{a}\t{label}", header="sentence\tlabel") for s in ("train", "dev")}
        | {"test.tsv": lines("{i}\t{a}", header="index\tsentence")},
        "sentences",
        2,
        True,
    ),
    "GLUE RTE": Layout(
        "gluebenchmark.com",
        {
            f"{s}.tsv": lines(
                "{i}\t{a}\t{b}\t{label}",
                header="index\tsentence1\tsentence2\tlabel",
                labels="entailment not_entailment",
            )
            for s in ("train", "dev")
        },
        "sentences",
        2,
        True,
    ),
    "GLUE MNLI": Layout(
        "gluebenchmark.com",
        {
            f"{s}.tsv": lines(
                "{i}\t{i}\t{a}\t{b}\t{label}",
                header="index\tpromptID\tsentence1\tsentence2\tgold_label",
                labels="entailment neutral contradiction",
            )
            for s in ("train", "dev_matched", "dev_mismatched")
        },
        "sentences",
        3,
        True,
    ),
    "SMS spam": Layout("UCI", {"SMSSpamCollection.txt": lines("{label}\t{a}", labels="ham spam")}, "sentences", 2),
    "texts in class folders": Layout(
        "aclImdb",
        {f"{s}/{k}/{i}_7.txt": text(i) for s in ("train", "test") for k in ("neg", "pos") for i in range(8)},
        None,
        words="write a table",
    ),
    "CoNLL": Layout(
        "CoNLL 2003", {"train.txt": CONLL, "valid.txt": CONLL}, None, words="AutoModelForTokenClassification"
    ),
    "train folder of tables": Layout(
        "exports",
        {f"{s}/data.csv": lines('"{a}",{label}', header="text,label") for s in ("train", "test")},
        "sentences",
        2,
        True,
    ),
    "fastText": Layout(
        "fasttext.cc", {f"cooking.{s}": lines("__label__{label} {a}") for s in ("train", "valid")}, "sentences", 2, True
    ),
    # texts without labels
    "alpaca": Layout(
        "Stanford Alpaca",
        {"alpaca_data.json": json.dumps(objects(instruction=text, input="", output=text))},
        None,
        words="leanify train own-text",
    ),
    "chat": Layout(
        "OpenAI fine-tuning",
        {
            "train.jsonl": json_lines(
                messages=lambda i: [{"role": "user", "content": text(i)}, {"role": "assistant", "content": text(i + 1)}]
            )
        },
        None,
        words="leanify train own-text",
    ),
    "triplets": Layout(
        "sentence-transformers",
        {"train.jsonl": json_lines(anchor=text, positive=text, negative=text)},
        None,
        words="leanify train own-text",
    ),
    "preferences": Layout(
        "TRL",
        {"train.jsonl": json_lines(prompt=text, chosen=text, rejected=text)},
        None,
        words="leanify train own-text",
    ),
    "wikitext": Layout(
        "Salesforce",
        {f"wiki.{s}.tokens": " = Title = \n\n" + "some words of a text . \n" * 99 for s in ("train", "valid", "test")},
        "text",
        None,
        True,
    ),
    "stories": Layout(
        "TinyStories",
        {f"TinyStories-{s}.txt": "once upon a time\n<|endoftext|>\n" * 99 for s in ("train", "valid")},
        "text",
        None,
        True,
    ),
}


def make(folder: Path, layout: Layout) -> None:
    """Write a layout's placeholder files."""
    for number, (name, content) in enumerate(layout.files.items()):
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.suffix in IMAGES:
            Image.new("RGB", (8, 8), (number % 250, 0, 90)).save(place, "JPEG")
        else:
            place.write_text(content)


def is_right(layout: Layout, found: OwnData) -> bool:
    """Whether leanify's answer is what the set's authors mean."""
    if layout.kind is None:
        return found.fault is not None and layout.words in found.fault
    answer = (found.kind, found.classes, found.is_validated)
    return found.fault is None and answer == (layout.kind, layout.classes, layout.is_validated)


def by_datasets(folder: Path) -> str:
    """What `datasets` makes of the same folder: splits and columns, or the first words of its error."""
    import datasets

    try:
        splits = datasets.load_dataset(str(folder))
    except Exception as error:  # any of its builders' errors
        return f"{type(error).__name__}: {' '.join(str(error).split())[:70]}"
    rows = {name: len(split) for name, split in splits.items()}
    return f"{rows}, columns {', '.join(next(iter(splits.values())).column_names[:7])}"


def main() -> None:
    """Print the page, or the layouts of the names that are typed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("layouts", nargs="*", help="names of layouts (default: all)")
    only = parser.parse_args().layouts
    rows, right = [], 0
    for name, layout in LAYOUTS.items():
        if only and name not in only:
            continue
        with tempfile.TemporaryDirectory() as place:
            make(Path(place), layout)
            found = recognise(place)
            says = (
                (f"**{found.fault}**" if found.fault else found.description)
                .replace(f"{place}/", "")
                .replace(place, "it")
            )
            beside = "" if only else by_datasets(Path(place)).replace(f"{place}/", "").replace(place, "it")
        right += is_right(layout, found)
        what = "right" if is_right(layout, found) else "WRONG"
        rows.append(f"| {name} | {layout.source} | {says} | {beside} | {what} |".replace("\n", " "))
    print("# Layouts of data\n\nWhat leanify says to data as public sets, guides and courses lay them out, with")
    print("placeholder files, and what `datasets` reads of the same folder. Made by\n")
    print("    python -m recipes.research.layouts > recipes/results/layouts.md\n")
    print(f"{right} of {len(rows)} layouts right. Bold: not trained on, for this reason.\n")
    print("| layout | source | leanify | `datasets` (load_dataset of the folder) | verdict |\n|---|---|---|---|---|")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
