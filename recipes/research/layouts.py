"""What leanify says to data as public sets, guides and courses lay them out: placeholder files, `datasets` beside.

    python -m recipes.research.layouts > recipes/results/layouts.md

A layout is a list of files: a name that ends in an image's suffix is a small picture, any other one has its text. A
verdict is right where the kind, the classes and whether there is validation data are what the set's authors mean, or
where what leanify does not train on is refused with the words that help.
"""

from __future__ import annotations

import argparse
import io
import json
import tarfile
import tempfile
from collections.abc import Callable, Mapping
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
    files: Mapping[str, str | Callable[[Path], None]]
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


def picture_bytes(row: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 8), (row % 250, 0, 90)).save(file, "JPEG")
    return file.getvalue()


def picture_rows() -> Any:
    """A data set of pictures and classes, as `datasets` has them."""
    import datasets

    rows = {
        "image": [{"bytes": picture_bytes(i), "path": None} for i in range(ROWS)],
        "label": [i % 2 for i in range(ROWS)],
    }
    features = datasets.Features(image=datasets.Image(), label=datasets.ClassLabel(names=["cat", "dog"]))
    return datasets.Dataset.from_dict(rows, features)


def picture_parquet(place: Path) -> None:
    picture_rows().to_parquet(place)


def picture_tar(place: Path) -> None:
    with tarfile.open(place, "w") as file:
        for i in range(8):
            for ending, content in (("jpg", picture_bytes(i)), ("cls", str(i % 2).encode())):
                member = tarfile.TarInfo(f"{place.stem}-{i:04}.{ending}")
                member.size = len(content)
                file.addfile(member, io.BytesIO(content))


def saved_pictures(place: Path) -> None:
    import datasets

    splits = {"train": picture_rows(), "validation": picture_rows()}
    datasets.DatasetDict(splits).save_to_disk(place.parent.parent)


def saved_texts(place: Path) -> None:
    import datasets

    rows = datasets.Dataset.from_dict({"text": [text(i) for i in range(ROWS)], "label": [i % 2 for i in range(ROWS)]})
    datasets.DatasetDict(train=rows, test=rows).save_to_disk(place.parent.parent)


SQUAD = {"version": "1.1", "data": [{"title": "x", "paragraphs": [{"context": "a b c", "qas": []}]}] * 9}
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
    # pictures by lists of several files, or of a scheme of their own
    "list of names and numbers": Layout(
        "Oxford pets",
        pictures("images", number=ROWS)
        | {
            "annotations/list.txt": "#Image CLASS-ID SPECIES BREED ID\n" + lines("{i:04} {label} 1 1", labels="1 2"),
            "annotations/trainval.txt": lines("{i:04} {label} 1 1", labels="1 2"),
            "annotations/test.txt": lines("{i:04} {label} 1 1", labels="1 2"),
        },
        "no: write train.csv",
    ),
    "images.txt and image_class_labels.txt": Layout(
        "CUB-200",
        pictures("images/001.Albatross", "images/002.Auklet", number=20)
        | {
            "images.txt": lines("{i} 001.Albatross/{i:04}.jpg"),
            "image_class_labels.txt": lines("{i} {label}", labels="1 2"),
            "train_test_split.txt": lines("{i} {label}"),
            "classes.txt": "1 001.Albatross\n2 002.Auklet\n",
            "README": "The birds.\n",
        },
        "no: images is data: name it",
    ),
    "class folders in one folder": Layout(
        "Caltech-101",
        pictures("101_ObjectCategories/ant", "101_ObjectCategories/bass", "101_ObjectCategories/crab"),
        "images, 3 classes",
    ),
    "a csv of boxes and a class": Layout(
        "Stanford cars, as csv",
        pictures("cars_train/cars_train", "cars_test/cars_test", number=ROWS)
        | each("cardatasettrain.csv", "x", lines("{i:04}.jpg,1,2,3,4,{label}", "image,x1,y1,x2,y2,Class", labels="1 2"))
        | each("cardatasettest.csv", "x", lines("{i:04}.jpg,1,2,3,4,{label}", "image,x1,y1,x2,y2,Class", labels="1 2")),
        "images, 2 classes, validated",
    ),
    "labels.json of names": Layout(
        "flowers, notebooks",
        pictures("images", number=ROWS)
        | {"labels.json": json.dumps({f"{i:04}.jpg": ("rose", "tulip")[i % 2] for i in range(ROWS)})},
        "no: or name it",
    ),
    "list_attr_celeba.csv": Layout(
        "CelebA",
        pictures("img_align_celeba/img_align_celeba", number=ROWS)
        | {
            "list_attr_celeba.csv": lines(
                "{i:04}.jpg,{label}", "image_id,Arched_Eyebrows,Bald,Male,Young", labels="1,-1,1,-1 -1,1,1,1 -1,-1,1,-1"
            ),
            "list_eval_partition.csv": lines("{i:04}.jpg,{label}", "image_id,partition", labels="0 0 1 2"),
        },
        "no: a column for each class",
    ),
    "list_attr_celeba.txt": Layout(
        "CelebA, from the authors",
        pictures("img_align_celeba", number=ROWS)
        | {
            "list_attr_celeba.txt": f"{ROWS}\nArched_Eyebrows Bald Male\n"
            + lines("{i:04}.jpg {label}", labels="1_-1__1 -1__1__1").replace("_", " ")
        },
        "no: write train.csv",
    ),
    "val_annotations.txt": Layout(
        "Tiny ImageNet",
        pictures("train/n01/images", "train/n02/images", "val/images", "test/images", suffix=".JPEG")
        | {
            "val/val_annotations.txt": "".join(f"{i:04}.JPEG\tn0{1 + i % 2}\t0\t0\t9\t9\n" for i in range(8)),
            "wnids.txt": "n01\nn02\n",
            "words.txt": "n01\tgoldfish\nn02\tsalamander\n",
        }
        | {f"train/{n}/{n}_boxes.txt": f"{n}_0.JPEG\t0\t9\t9\t9\n" for n in ("n01", "n02")},
        "images, 2 classes",
    ),
    "labels in names": Layout(
        "Kaggle dogs-vs-cats train folder",
        {f"train/{kind}.{i}.jpg": "" for kind in ("cat", "dog") for i in range(20)},
        "no: in folders of their classes",
    ),
    "train2017 and val2017 of classes": Layout(
        "years in names", splits("train2017", "val2017"), "images, 2 classes, validated"
    ),
    "train and valid and test": Layout(
        "Roboflow folders", splits("train", "valid", "test"), "images, 2 classes, validated"
    ),
    "Training and Testing": Layout(
        "Kaggle brain tumours", splits("Training", "Testing", classes="glioma notumor"), "images, 2 classes, validated"
    ),
    "chest_xray": Layout(
        "Kaggle pneumonia",
        splits(*(f"chest_xray/{s}" for s in ("train", "val", "test")), classes="NORMAL PNEUMONIA"),
        "images, 2 classes, validated",
    ),
    "classes before splits": Layout("course sets", splits("cats", "dogs", classes="train test"), "images, 2 classes"),
    "_classes.csv": Layout(
        "Roboflow multi-label",
        pictures("train", "valid", number=ROWS)
        | each(
            "{}/_classes.csv", "train valid", lines("{i:04}.jpg,{label}", "filename, cat, dog", labels="1,0 0,1 1,1")
        ),
        "no: a column for each class",
    ),
    "_annotations.csv": Layout(
        "Roboflow TensorFlow boxes",
        pictures("train", "valid", number=ROWS)
        | each(
            "{}/_annotations.csv",
            "train valid",
            "filename,width,height,class,xmin,ymin,xmax,ymax\n"
            + "".join(f"{i // 2:04}.jpg,9,9,{'cat' if i % 3 else 'dog'},1,1,5,5\n" for i in range(ROWS)),
        ),
        "no: boxes",
    ),
    "masks": Layout("segmentation", pictures("images") | pictures("masks", suffix=".png"), "no: masks"),
    "train and train_masks": Layout("Carvana", pictures("train") | pictures("train_masks", suffix=".png"), "no: masks"),
    "several labels in a cell": Layout(
        "NIH chest X-rays",
        pictures("images", number=ROWS, suffix=".png")
        | {
            "Data_Entry_2017.csv": lines(
                "{i:04}.png,{label},{i}", "Image Index,Finding Labels,Patient ID", labels="Edema|Mass Edema Mass None"
            )
        },
        "no: several labels",
    ),
    "captions": Layout(
        "Flickr8k",
        pictures("Images", number=ROWS) | {"captions.txt": lines("{i:04}.jpg,{a}", "image,caption")},
        "no: write train.csv",
    ),
    "parquet of pictures": Layout(
        "hub, datasets' parquet",
        {f"data/{split}-00000-of-00001.parquet": picture_parquet for split in ("train", "test")},
        "images, 2 classes, validated",
    ),
    "webdataset shards": Layout(
        "webdataset",
        {f"{split}-{i:06}.tar": picture_tar for split in ("train", "val") for i in range(2)},
        "images, 2 classes, validated",
    ),
    "saved to disk": Layout(
        "datasets, save_to_disk", {"train/state.json": saved_pictures}, "images, 2 classes, validated"
    ),
    "texts saved to disk": Layout("datasets, save_to_disk", {"train/state.json": saved_texts}, "no: to_parquet"),
    # more texts
    "SNLI without header": Layout(
        "GLUE's order",
        each("{}.tsv", "train dev", lines("{i}\t{a}\t{b}\t{label}", labels="entailment neutral contradiction")),
        "sentences, 3 classes, validated",
    ),
    "Yelp": Layout(
        "Zhang's fastText sets",
        each("{}.csv", "train test", lines('"{label}","{a}"', labels="1 2")),
        "sentences, 2 classes, validated",
    ),
    "a score of two sentences": Layout(
        "sentence-transformers",
        each(
            "{}.csv", "train dev", lines("{a},{b},0.{i}", "sentence1,sentence2,score").replace("dull, wet", "dull wet")
        ),
        "sentences, validated",
    ),
    "Amazon reviews": Layout(
        "Kaggle, fastText",
        each("{}.ft.txt", "train test", lines("__label__{label} {a}: {b}", labels="1 2")),
        "sentences, 2 classes, validated",
    ),
    "CoNLL-U": Layout(
        "Universal Dependencies",
        each(
            "en_ewt-ud-{}.conllu",
            "train dev test",
            "# text = The cat\n1\tThe\tthe\tDET\tDT\t_\t2\tdet\t_\t_\n2\tcat\tcat\tNOUN\tNN\t_\t0\troot\t_\t_\n\n" * 20,
        ),
        "no: AutoModelForTokenClassification",
    ),
    "tokens and tags": Layout(
        "hub's CoNLL as JSON lines",
        {"train.json": json_lines(id=str, tokens=lambda i: ["EU", "rejects"], ner_tags=lambda i: [3, 0])},
        "no: AutoModelForTokenClassification",
    ),
    "SQuAD": Layout(
        "Stanford", {"train-v1.1.json": json.dumps(SQUAD), "dev-v1.1.json": json.dumps(SQUAD)}, "no: nested"
    ),
    "questions and contexts": Layout(
        "hub's SQuAD as JSON lines",
        {
            "train.jsonl": json_lines(
                id=str, title="x", context=text, question=text, answers={"text": ["a"], "answer_start": [0]}
            )
        },
        "no: answers",
    ),
    "COPA": Layout(
        "SuperGLUE",
        {
            "train.jsonl": json_lines(
                premise=text, choice1=text, choice2=text, question=cycle("cause effect"), label=cycle("0 1")
            )
        },
        "no: AutoModelForMultipleChoice",
    ),
    "RACE": Layout(
        "hub, JSON lines",
        {"train.jsonl": json_lines(article=text, question=text, options=["a", "b"], answer=cycle("A B"))},
        "no: AutoModelForMultipleChoice",
    ),
    "labels in a file of their own": Layout(
        "TweetEval",
        each("{}_text.txt", "train val", lines("{a}")) | each("{}_labels.txt", "train val", lines("{label}")),
        "no: paste -d",
    ),
    "multiple choice": Layout(
        "SWAG, ARC",
        {
            "train.csv": lines(
                '"{a}","{b}","{a} b","{b} c","d {a}",{label}',
                "sent1,ending0,ending1,ending2,ending3,label",
                labels="0 1 2 3",
            )
        },
        "no: choice",
    ),
    "summaries": Layout(
        "CNN/Daily Mail", {"train.csv": lines('{i}x,"{a} {b}","{b}"', "id,article,highlights")}, "no: own-text"
    ),
    "translations": Layout(
        "WMT as JSON lines",
        {"train.json": json_lines(translation={"en": "a cat", "de": "eine Katze"})},
        "no: translation",
    ),
    "parallel files": Layout("Moses", each("train.{}", "en de", "a line of text\n" * 99), "no: call one train.txt"),
    "ratings": Layout(
        "Amazon fine food",
        {
            "Reviews.csv": lines(
                '{i},B00{i},A{i},user{i},1,1,{label},130386{i},"{b}","{a}"',
                "Id,ProductId,UserId,ProfileName,HelpfulnessNumerator,HelpfulnessDenominator,Score,Time,Summary,Text",
                labels="1 2 3 4 5",
            )
        },
        "sentences, 5 classes",
    ),
    "IMDB Dataset.csv": Layout(
        "Kaggle IMDB",
        {"IMDB Dataset.csv": lines('"{a}",{label}', "review,sentiment", labels="positive negative")},
        "sentences, 2 classes",
    ),
    "spam.csv": Layout(
        "Kaggle SMS spam",
        {"spam.csv": lines('{label},"{a}",,,', "v1,v2,,,", labels="ham spam")},
        "sentences, 2 classes",
    ),
    "Sentiment140": Layout(
        "Kaggle",
        {
            "training.1600000.processed.noemoticon.csv": lines(
                '"{label}","14678{i}","Mon Apr 06","NO_QUERY","user{i}","{a}"', labels="0 4"
            )
        },
        "sentences, 2 classes",
    ),
    "disaster tweets": Layout(
        "Kaggle NLP start",
        {
            "train.csv": lines('{i},ablaze,London,"{a}",{label}', "id,keyword,location,text,target"),
            "test.csv": lines('{i},ablaze,London,"{a}"', "id,keyword,location,text"),
            "sample_submission.csv": lines("{i},0", "id,target"),
        },
        "sentences, 2 classes",
    ),
    "Rotten Tomatoes phrases": Layout(
        "Kaggle",
        {
            "train.tsv": lines("{i}\t{i}\t{a}\t{label}", "PhraseId\tSentenceId\tPhrase\tSentiment", labels="0 1 2 3 4"),
            "test.tsv": lines("{i}\t{i}\t{a}", "PhraseId\tSentenceId\tPhrase"),
        },
        "sentences, 5 classes",
    ),
    "TREC": Layout(
        "UIUC questions",
        {
            "train_5500.label": lines("{label}:manner {a} ?", labels="DESC ENTY NUM"),
            "TREC_10.label": lines("{label}:manner {a} ?", labels="DESC ENTY NUM"),
        },
        "no: write a table",
    ),
    "emotion": Layout(
        "dair-ai, Kaggle",
        each("{}.txt", "train val test", lines("{a};{label}", labels="joy anger")),
        "sentences, 2 classes, validated",
    ),
    "label:text JSON": Layout(
        "one JSON list", {"data.json": json.dumps(objects(text=text, label=cycle("spam ham")))}, "no: or name it"
    ),
    "pos and neg files": Layout(
        "Cornell movie reviews",
        each("rt-polarity.{}", "pos neg", "a fine film in every way\n" * 80),
        "no: write a table",
    ),
    "20 newsgroups": Layout(
        "qwone.com",
        {
            f"20news-bydate-{s}/{k}/{100 + i}": "From: someone\n\n" + text(i)
            for s in ("train", "test")
            for k in ("alt.atheism", "sci.space")
            for i in range(8)
        },
        "no: write a table",
    ),
    "prompt and completion": Layout("OpenAI, TRL", {"train.jsonl": json_lines(prompt=text, completion=text)}, OWN_TEXT),
    "ShareGPT": Layout(
        "Vicuna",
        {"sharegpt.json": json.dumps(objects(id=str, conversations=lambda i: [{"from": "human", "value": text(i)}]))},
        OWN_TEXT,
    ),
    "the Pile": Layout(
        "EleutherAI",
        {
            "train.jsonl": json_lines(text=text, meta={"pile_set_name": "x"}),
            "val.jsonl": json_lines(text=text, meta={"pile_set_name": "x"}),
        },
        "text, validated",
    ),
    "code": Layout("source files", {f"src/{i}.py": "def f(x):\n    return x + 1\n" * 20 for i in range(9)}, "no: .txt"),
}


def make(folder: Path, layout: Layout) -> None:
    """Write a layout's placeholder files."""
    for number, (name, content) in enumerate(layout.files.items()):
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if not isinstance(content, str):
            content(place)
        elif place.suffix in (".jpg", ".png", ".JPEG"):
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
