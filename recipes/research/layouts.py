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


@dataclass(frozen=True)
class Layout:
    """Files by name, and the right answer: a kind, its classes, whether it is validated; or "no:" and words."""

    source: str
    files: Mapping[str, str]
    answer: str


def text(row: int) -> str:
    return f"{TEXTS[row % 3]} {row}"


def lines(line: str, header: str = "", labels: str = "0 1") -> str:
    """Rows of a table: {i} is the row's number, {a} and {b} are texts, {label} one of the labels in turn."""
    names = labels.split(" ")
    rows = [line.format(i=i, a=text(i), b=text(i + 1), label=names[i % len(names)]) for i in range(ROWS)]
    return "\n".join([*([header] if header else []), *rows]) + "\n"


def objects(**columns: Any) -> list[dict[str, Any]]:
    return [{name: cell(i) if callable(cell) else cell for name, cell in columns.items()} for i in range(ROWS)]


def json_lines(**columns: Any) -> str:
    return "\n".join(map(json.dumps, objects(**columns))) + "\n"


def pictures(*folders: str, number: int = 8, suffix: str = ".jpg") -> dict[str, str]:
    return {f"{folder}/{i:04}{suffix}": "" for folder in folders for i in range(number)}


def each(pattern: str, names: str, content: str) -> dict[str, str]:
    """Files of one content, a name each."""
    return {pattern.format(name): content for name in names.split()}


def splits(*names: str, classes: str = "cats dogs") -> dict[str, str]:
    return pictures(*(f"{name}/{kind}" for name in names for kind in classes.split()))


def cycle(labels: str) -> Any:
    names = labels.split(" ")
    return lambda i: names[i % len(names)]


SNLI = {"sentence1": text, "sentence2": text, "sentence1_parse": "( x )", "captionID": lambda i: f"{i}.jpg#0r1n"}
TWEETS = "tweet_id,airline_sentiment,airline_sentiment_confidence,negativereason,airline,name,text"
TOXIC = "id,comment_text,toxic,severe_toxic,obscene,threat,insult,identity_hate"
CONLL = "EU NNP B-NP B-ORG\nrejects VBZ B-VP O\nGerman JJ B-NP B-MISC\ncall NN I-NP O\n\n" * 20
OWN_TEXT = "no: leanify train own-text"
COCO = json.dumps({"images": [{"id": 1, "file_name": "0000.jpg"}], "annotations": [], "categories": []})

LAYOUTS: dict[str, Layout] = {
    # pictures in folders
    "class folders": Layout("torchvision ImageFolder, timm", pictures("cats", "dogs"), "images, 2 classes"),
    "train and val": Layout(
        "PyTorch transfer tutorial (hymenoptera)", splits("train", "val"), "images, 2 classes, validated"
    ),
    "training_set and test_set": Layout(
        "Kaggle cats-and-dogs course", splits("training_set", "test_set"), "images, 2 classes, validated"
    ),
    "training_set in training_set": Layout(
        "the same, as the archive unpacks",
        splits("training_set/training_set", "test_set/test_set"),
        "images, 2 classes, validated",
    ),
    "01_train and 02_test": Layout("course notebooks", splits("01_train", "02_test"), "images, 2 classes, validated"),
    "seg_train and seg_test": Layout(
        "Intel scenes",
        splits("seg_train/seg_train", "seg_test/seg_test", classes="sea forest street"),
        "images, 3 classes, validated",
    ),
    "images/train and images/val": Layout(
        "Ultralytics", splits("images/train", "images/val"), "images, 2 classes, validated"
    ),
    "train, test without classes": Layout(
        "Dogs vs. Cats", pictures("train", "test"), "no: in folders of their classes"
    ),
    "COCO": Layout(
        "cocodataset.org",
        pictures("train2017", "val2017") | {"annotations/instances_train2017.json": COCO},
        "no: boxes",
    ),
    "YOLO boxes": Layout(
        "Ultralytics detection",
        pictures("images/train", "images/val") | {f"labels/train/{i:04}.txt": "0 .5 .5 .1 .1\n" for i in range(8)},
        "no: boxes",
    ),
    "VOC": Layout(
        "Pascal VOC",
        pictures("JPEGImages") | {f"Annotations/{i:04}.xml": "<annotation/>" for i in range(8)},
        "no: boxes",
    ),
    # pictures by a table
    "metadata.csv in each split": Layout(
        "datasets, ImageFolder guide",
        pictures("train", "validation", number=ROWS)
        | each("{}/metadata.csv", "train validation", lines("{i:04}.jpg,{label}", "file_name,label", labels="cat dog")),
        "images, 2 classes, validated",
    ),
    "metadata.jsonl beside": Layout(
        "datasets, ImageFolder guide",
        pictures("train", number=ROWS)
        | {"train/metadata.jsonl": json_lines(file_name=lambda i: f"{i:04}.jpg", label=cycle("cat dog"))},
        "images, 2 classes",
    ),
    "labels.csv with ids": Layout(
        "Kaggle dog breeds",
        pictures("train", "test", number=ROWS)
        | {
            "labels.csv": lines("{i:04},{label}", "id,breed", labels="pug boxer"),
            "sample_submission.csv": "id,pug,boxer\n0001,0.5,0.5\n",
        },
        "images, 2 classes",
    ),
    "train_labels.csv": Layout(
        "Kaggle, 592 repositories",
        pictures("train", "test", number=ROWS, suffix=".png")
        | {"train_labels.csv": lines("{i:04},{label}", "id,label")},
        "images, 2 classes",
    ),
    "train.csv and train_images": Layout(
        "Kaggle Cassava",
        pictures("train_images", "test_images", number=ROWS)
        | {
            "train.csv": lines("{i:04}.jpg,{label}", "image_id,label", labels="0 1 2"),
            "label_num_to_disease_map.json": "{}",
        },
        "images, 3 classes",
    ),
    "train.txt of paths and labels": Layout(
        "ImageNet for Caffe, MMPretrain",
        pictures("train", "val", number=ROWS)
        | {f"{s}.txt": lines(s + "/{i:04}.jpg {label}") for s in ("train", "val")},
        "images, 2 classes, validated",
    ),
    "meta/train.txt": Layout(
        "MMPretrain",
        pictures("train/n01", "train/n02", number=20, suffix=".JPEG")
        | {"meta/train.txt": "".join(f"n0{1 + i % 2}/{i // 2:04}.JPEG {i % 2}\n" for i in range(ROWS))},
        "images, 2 classes",
    ),
    "one column a class": Layout(
        "Kaggle plant pathology",
        pictures("images", number=ROWS)
        | {"train.csv": lines("{i:04},{label}", "image_id,healthy,rust,scab", labels="1,0,0 0,1,0 0,0,1")},
        "no: a column for each class",
    ),
    # labelled texts
    "SNLI": Layout(
        "nlp.stanford.edu",
        each(
            "snli_1.0_{}.jsonl",
            "train dev test",
            json_lines(gold_label=cycle("entailment neutral contradiction entailment neutral -"), **SNLI),
        ),
        "sentences, 3 classes, validated",
    ),
    "Quora": Layout(
        "Kaggle question pairs",
        {"train.csv": lines('{i},{i},{i},"{a}?","{b}?",{label}', "id,qid1,qid2,question1,question2,is_duplicate")},
        "sentences, 2 classes",
    ),
    "MSRP": Layout(
        "Microsoft Research",
        each(
            "msr_paraphrase_{}.txt",
            "train test",
            lines("{label}\t70{i}\t80{i}\t{a}\t{b}", "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"),
        ),
        "sentences, 2 classes, validated",
    ),
    "Tweets.csv": Layout(
        "Kaggle airline sentiment",
        {
            "Tweets.csv": lines(
                '57{i},{label},0.6{i},,{label}air,user{i},"{a}"', TWEETS, labels="positive neutral negative"
            )
        },
        "sentences, 3 classes",
    ),
    "toxic comments": Layout(
        "Kaggle Jigsaw",
        {"train.csv": lines('c{i},"{a}",{label}', TOXIC, labels="0,0,0,0,0,0 1,0,1,0,1,0 1,1,0,1,0,1")},
        "no: data.label=toxic",
    ),
    "AG News": Layout(
        "Zhang's fastText sets",
        each("{}.csv", "train test", lines('"{label}","{a}","{b}"', labels="1 2 3 4"))
        | {"classes.txt": "World\nSports\nBusiness\nSci/Tech\n"},
        "sentences, 4 classes, validated",
    ),
    "CoLA": Layout(
        "nyu-mll.github.io",
        each("{}.tsv", "in_domain_train in_domain_dev", lines("gj04\t{label}\t\t{a}")),
        "sentences, 2 classes, validated",
    ),
    "STS benchmark": Layout(
        "ixa2.si.ehu.eus",
        each(
            "sts-{}.csv",
            "train dev test",
            lines("main-captions\tMSRvid\t2012test\t{i:04}\t{label}\t{a}\t{b}", labels="5.000 4.750 2.400"),
        ),
        "sentences, validated",
    ),
    "GLUE SST-2": Layout(
        "gluebenchmark.com",
        each("{}.tsv", "train dev", lines("{a}\t{label}", "sentence\tlabel"))
        | {"test.tsv": lines("{i}\t{a}", "index\tsentence")},
        "sentences, 2 classes, validated",
    ),
    "GLUE RTE": Layout(
        "gluebenchmark.com",
        each(
            "{}.tsv",
            "train dev",
            lines("{i}\t{a}\t{b}\t{label}", "index\tsentence1\tsentence2\tlabel", labels="entailment not_entailment"),
        ),
        "sentences, 2 classes, validated",
    ),
    "GLUE MNLI": Layout(
        "gluebenchmark.com",
        each(
            "{}.tsv",
            "train dev_matched dev_mismatched",
            lines(
                "{i}\t{i}\t{a}\t{b}\t{label}",
                "index\tpromptID\tsentence1\tsentence2\tgold_label",
                labels="entailment neutral contradiction",
            ),
        ),
        "sentences, 3 classes, validated",
    ),
    "SMS spam": Layout(
        "UCI", {"SMSSpamCollection.txt": lines("{label}\t{a}", labels="ham spam")}, "sentences, 2 classes"
    ),
    "texts in class folders": Layout(
        "aclImdb",
        {f"{s}/{k}/{i}_7.txt": text(i) for s in ("train", "test") for k in ("neg", "pos") for i in range(8)},
        "no: write a table",
    ),
    "CoNLL": Layout("CoNLL 2003", {"train.txt": CONLL, "valid.txt": CONLL}, "no: AutoModelForTokenClassification"),
    "train folder of tables": Layout(
        "exports",
        each("{}/data.csv", "train test", lines('"{a}",{label}', "text,label")),
        "sentences, 2 classes, validated",
    ),
    "fastText": Layout(
        "fasttext.cc",
        each("cooking.{}", "train valid", lines("__label__{label} {a}")),
        "sentences, 2 classes, validated",
    ),
    # texts without labels
    "alpaca": Layout(
        "Stanford Alpaca", {"alpaca_data.json": json.dumps(objects(instruction=text, input="", output=text))}, OWN_TEXT
    ),
    "chat": Layout(
        "OpenAI fine-tuning",
        {
            "train.jsonl": json_lines(
                messages=lambda i: [{"role": "user", "content": text(i)}, {"role": "assistant", "content": text(i + 1)}]
            )
        },
        OWN_TEXT,
    ),
    "triplets": Layout(
        "sentence-transformers", {"train.jsonl": json_lines(anchor=text, positive=text, negative=text)}, OWN_TEXT
    ),
    "preferences": Layout("TRL", {"train.jsonl": json_lines(prompt=text, chosen=text, rejected=text)}, OWN_TEXT),
    "wikitext": Layout(
        "Salesforce",
        each("wiki.{}.tokens", "train valid test", " = Title = \n\n" + "some words of a text . \n" * 99),
        "text, validated",
    ),
    "stories": Layout(
        "TinyStories",
        each("TinyStories-{}.txt", "train valid", "once upon a time\n<|endoftext|>\n" * 99),
        "text, validated",
    ),
}


def make(folder: Path, layout: Layout) -> None:
    """Write a layout's placeholder files."""
    for number, (name, content) in enumerate(layout.files.items()):
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if place.suffix in (".jpg", ".png", ".JPEG"):
            Image.new("RGB", (8, 8), (number % 250, 0, 90)).save(place, "JPEG")
        else:
            place.write_text(content)


def is_right(layout: Layout, found: OwnData) -> bool:
    """Whether leanify's answer is what the set's authors mean."""
    if found.fault is not None:
        start, _, words = layout.answer.partition(": ")
        return start == "no" and words in found.fault
    classes = f", {found.classes} classes" if found.classes else ""
    return layout.answer == f"{found.kind}{classes}{', validated' * found.is_validated}"


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
    rows = []
    for name in only or LAYOUTS:
        layout = LAYOUTS[name]
        with tempfile.TemporaryDirectory() as place:
            make(Path(place), layout)
            found = recognise(place)
            says = f"**{found.fault}**" if found.fault else found.description
            beside = "" if only else by_datasets(Path(place))
        what = "right" if is_right(layout, found) else "WRONG"
        row = f"| {name} | {layout.source} | {says} | {beside} | {what} |".replace("\n", " ")
        rows.append(row.replace(f"{place}/", "").replace(place, "it"))
    print("# Layouts of data\n\nWhat leanify says to data as public sets, guides and courses lay them out, with")
    print("placeholder files, and what `datasets` reads of the same folder. Made by\n")
    print("    python -m recipes.research.layouts > recipes/results/layouts.md\n")
    right = sum(row.endswith(" right |") for row in rows)
    print(f"{right} of {len(rows)} layouts right. Bold: not trained on, for this reason.\n")
    print("| layout | source | leanify | `datasets` (load_dataset of the folder) | verdict |\n|---|---|---|---|---|")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
