"""One's own texts with many labels, or with a tag a token: from the file to predictions, names and scores included."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_labelled_text import TINY, write

import leanify
from leanify.data.faults import Faults
from leanify.data.found import recognise
from leanify.data.samples import IGNORED
from leanify.data.tables import columns
from leanify.data.tables.rows import rows_of_table
from leanify.data.texts.labelled_text import MultiLabelled
from leanify.data.texts.tagged_text import Tagged, TaggedSentences, first_pieces
from leanify.data.texts.vocabulary import tokenizer_of
from leanify.errors import DataError
from leanify.runs.recipe import DataSection
from leanify.runs.run_directory import RunDirectory
from leanify.tasks.multi_label import MultiLabel
from leanify.tasks.token_classification import TokenClassification, entities
from leanify.training import start as training
from leanify.training.predicting import predict

pytestmark = pytest.mark.filterwarnings("ignore:bert has no weights")
SENTENCES = [(["Ada", "met", "Bob"], ["B-PER", "O", "B-PER"]), (["Rome", "is", "far"], ["B-LOC", "O", "O"])]
TAGGED = [{"tokens": tokens, "ner_tags": tags} for tokens, tags in SENTENCES]
TOPICS = [{"text": "a red ball", "topics": ["red", "round"]}, {"text": "a red box", "topics": ["red"]}]
TOPICS += [{"text": "a blue ball", "topics": ["round"]}, {"text": "a blue box", "topics": []}]


def section(file: Path, task: Any, **settings: Any) -> DataSection:
    return DataSection("data", task, str(file), **settings)


# -- a tag a token ------------------------------------------------------------------------------------------------


def conll_file(file: Path, sentences: list[tuple[list[str], list[str]]], between: str = " ") -> Path:
    parts = ("\n".join(f"{a}{between}X{between}{b}" for a, b in zip(*one, strict=True)) for one in sentences)
    file.write_text("-DOCSTART- -X- O\n\n" + "\n\n".join(parts) + "\n")
    return file


@pytest.mark.parametrize("suffix", [*columns.TABLES, ".conll", ".iob2"])
def test_every_kind_of_file_holds_the_same_tags(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"train{suffix}"
    if suffix in columns.CONLL:
        conll_file(file, SENTENCES, "\t" if suffix == ".conll" else " ")
    else:
        flat = suffix in (".csv", ".tsv")
        write(file, [{key: " ".join(cell) if flat else cell for key, cell in row.items()} for row in TAGGED])
    table = Tagged.read(file, section(file, "token-classification"), Faults())
    assert table.rows == [(tuple(tokens), tuple(tags)) for tokens, tags in SENTENCES]
    assert table.names == ["O", "B-LOC", "B-PER"]
    found = recognise(tmp_path)
    assert found is not None
    assert (found.kind, found.task, found.classes) == ("sentences", "token-classification", 3)
    assert "3 tags: B-LOC, B-PER, O" in found.description


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"tokens": ["a", "b"], "ner_tags": ["O"]}, "line 3: 2 tokens and 1 ner_tags"),
        ({"tokens": ["a", "b c"], "ner_tags": ["O", "O"]}, "line 3: the token 'b c' is empty or contains a blank"),
        ({"tokens": 3, "ner_tags": ["O"]}, "line 3: tokens is neither a list nor a string"),
        ({"tokens": [], "ner_tags": []}, "line 3: tokens is empty"),
    ],
)
def test_a_dirty_sentence_is_named_or_skipped(tmp_path: Path, row: dict[str, Any], words: str) -> None:
    file = write(tmp_path / "train.jsonl", [*TAGGED, row])
    with pytest.raises(leanify.DataError, match=words):
        Tagged.read(file, section(file, "token-classification"), Faults())
    assert len(Tagged.read(file, section(file, "token-classification"), Faults(skip=True)).rows) == 2


def test_a_line_without_a_tag_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.conll").write_text("Ada B-PER\nmet\n")
    with pytest.raises(leanify.DataError, match=r"a\.conll, line 2: 'met'"):
        list(rows_of_table(tmp_path / "a.conll", Faults()))


def test_the_first_piece_of_a_token_has_its_tag() -> None:
    tokenizer, _ = tokenizer_of("bytes", lambda: [], "")
    samples = TaggedSentences([(["ab", "c"], [1, 2]), (["é"], [0])], tokenizer, 16, False)
    inputs, tags = samples.batch(np.array([0, 1]))
    assert tags.tolist() == [  # [CLS] a b ␣ c [SEP], and [CLS] two bytes [SEP]
        [IGNORED, 1, IGNORED, IGNORED, 2, IGNORED],
        [IGNORED, 0, IGNORED, IGNORED, IGNORED, IGNORED],
    ]
    assert inputs["attention_mask"].sum(1).tolist() == [6, 4]
    assert samples.targets is not None
    assert samples.targets.tolist() == [2, 1]
    cut = TaggedSentences([(["ab", "c"], [1, 2])], tokenizer, 4, False)
    assert cut.token_starts == [[1, None]]
    # SentencePiece counts the blank to the piece behind it; a mark of its own for the blank alone is of no token
    assert first_pieces(["ab", "c"], [(0, 1), (1, 2), (2, 4)]) == [0, 2]
    assert first_pieces(["ab", "c"], [(0, 2), (2, 3), (3, 4)]) == [0, 2]


@pytest.mark.parametrize(
    ("tags", "found"),  # as seqeval 1.2.2 has them; 20,000 random sequences were equal, too
    [
        ("O B-A I-A O", [("A", 1, 3)]),
        ("B-A B-A I-B", [("A", 0, 1), ("A", 1, 2), ("B", 2, 3)]),
        ("I-A I-A O I-A", [("A", 0, 2), ("A", 3, 4)]),
        ("S-A B-A E-A E-A I-A", [("A", 0, 1), ("A", 1, 3), ("A", 3, 4), ("A", 4, 5)]),
        ("B-A I-A S-A B-A", [("A", 0, 2), ("A", 2, 3), ("A", 3, 4)]),
        ("U-A B-A L-A", [("A", 0, 1), ("A", 1, 3)]),
        ("O O", []),
    ],
)
def test_entities_are_those_of_conll(tags: str, found: list[tuple[str, int, int]]) -> None:
    assert list(entities(tags.split())) == found


class Fixed(torch.nn.Module):
    """Whose logits are what it is made of."""

    def __init__(self, logits: torch.Tensor) -> None:
        super().__init__()
        self.logits = logits

    def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
        return self.logits


def test_entities_are_scored_whole_and_tags_without_any_by_token() -> None:
    names = ["O", "B-A", "I-A"]
    true = torch.tensor([[1, 2, IGNORED, 0], [1, 0, 0, IGNORED]])
    guess = torch.tensor([[1, 2, 2, 0], [1, 2, 1, 1]])  # the first right; then A too long, and one that is none
    model = Fixed(torch.nn.functional.one_hot(guess, 3).float())
    task = TokenClassification(names, 0.0)
    found = task.found(model, {}, true)
    metrics = task.metrics(found)
    assert metrics.pop("loss") == pytest.approx(task.loss(model, {}, true).item() / 6)
    assert metrics == pytest.approx({"f1": 40.0, "precision": 100 / 3, "recall": 50.0, "accuracy": 100 * 4 / 6})
    assert task.metric == "f1"
    plain = TokenClassification(["DET", "NOUN", "VERB"], 0.0)
    assert plain.metric == "accuracy"
    assert set(plain.metrics(plain.found(model, {}, true))) == {"loss", "accuracy"}


def test_a_tagger_keeps_its_tags_from_the_file_to_its_predictions(tmp_path: Path) -> None:
    names = ["Ada", "Bob", "Cyd"]
    sentences = [([names[i % 3], "met", names[i // 3 % 3]], ["B-PER", "O", "B-PER"]) for i in range(32)]
    conll_file(tmp_path / "train.conll", [*sentences, *([["far", "away"], ["O", "O"]] for _ in range(16))])
    recipe = training.resolve("bert", [f"data.path={tmp_path}", *TINY])
    assert recipe.data is not None
    assert (recipe.data.task, recipe.data.holdout) == ("token-classification", 0.1)
    run = RunDirectory.open(training.train(recipe, tmp_path / "run"))
    assert run.rows()[-1]["f1"] > 90
    assert run.classes == ["O", "B-PER"]
    model: Any = leanify.load(run.path)
    assert type(model).__name__ == "BertForTokenClassification"
    assert model.config.id2label == {0: "O", 1: "B-PER"}
    (tmp_path / "new.txt").write_text("Bob met Ada\n\nfar away\n")
    first, second = predict(run.path, [tmp_path / "new.txt"])
    assert (first.tokens, first.answer) == (("Bob", "met", "Ada"), ["B-PER", "O", "B-PER"])
    assert (first.words, second.words) == ("Bob PER, Ada PER", "–")
    assert next(predict(run.path, [tmp_path / "train.conll"])).answer == ["B-PER", "O", "B-PER"]
    (tmp_path / "new.txt").write_text("\n")
    with pytest.raises(DataError, match=r"new\.txt"):
        list(predict(run.path, [tmp_path / "new.txt"]))


# -- any number of labels a text ----------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_labels_are_a_list_or_a_separated_text(tmp_path: Path, suffix: str) -> None:
    flat = suffix in (".csv", ".tsv")
    file = write(
        tmp_path / f"train{suffix}",
        [{**row, "topics": "; ".join(row["topics"])} if flat else row for row in TOPICS],
    )
    found = recognise(file)
    assert found is not None
    assert (found.task, found.classes) == ("multi-label-classification", 2)
    assert "any number of 2 labels: red, round" in found.description
    table = MultiLabelled.read(file, section(file, "multi-label-classification"), Faults())
    assert table.rows == [((row["text"],), tuple(row["topics"])) for row in TOPICS]
    assert table.separator == (";" if flat else None)
    assert table.names == ["red", "round"]


@pytest.mark.parametrize(
    ("cells", "separator"),
    [
        (["Oslo, Norway", "Lima, Peru"], None),
        (["a|b", "a", "b"], "|"),
        (["a, b", "a", "b,a"], ","),
        (["a;b", "b;c", "a;c", "c"], ";"),
        (["a", "b"], None),
        (["a|b"], None),
    ],
)
def test_a_separator_is_guessed_where_it_makes_fewer_labels(cells: list[str], separator: str | None) -> None:
    assert columns.separator_of(cells) == separator


def test_a_separator_can_be_named(tmp_path: Path) -> None:
    file = write(tmp_path / "train.csv", [{"text": "x", "label": "a/b"}, {"text": "y", "label": ""}])
    data = section(file, "multi-label-classification", separator="/")
    assert MultiLabelled.read(file, data, Faults()).rows == [(("x",), ("a", "b")), (("y",), ())]


def test_scores_of_labels_are_those_of_scikit_learn() -> None:
    from sklearn.metrics import f1_score

    true = torch.tensor([[1.0, 0, 1], [0, 1, 0], [0, 0, 0], [1, 1, 0]])
    guess = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 0], [0, 1, 0]])
    task = MultiLabel()
    model = Fixed(6 * guess - 3)
    metrics = task.metrics(task.found(model, {}, true))
    assert metrics["loss"] == pytest.approx(task.loss(model, {}, true).item() / 4)
    wanted = torch.nn.functional.binary_cross_entropy_with_logits(6 * guess - 3, true)
    assert metrics["loss"] == pytest.approx(wanted.item())
    assert metrics["f1_micro"] == pytest.approx(75.0)  # 3 of 5 found, none wrong: 2 · 3 / (2 · 3 + 2)
    assert metrics["f1_macro"] == pytest.approx(
        100 * f1_score(true.int(), guess.int(), average="macro", zero_division=0)
    )
    assert metrics["exact"] == 50.0


def test_a_model_of_many_labels_keeps_their_names(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", [{**row, "text": f"{row['text']} {i}"} for i in range(16) for row in TOPICS])
    recipe = training.resolve("bert", [f"data.path={tmp_path}", *TINY, "schedule.epochs=24"])
    assert recipe.data is not None
    assert recipe.data.task == "multi-label-classification"
    run = RunDirectory.open(training.train(recipe, tmp_path / "run"))
    last = run.rows()[-1]
    assert last["f1_micro"] > 90
    assert last["exact"] > 80
    model: Any = leanify.load(run.path)
    assert model.config.problem_type == "multi_label_classification"
    assert model.config.id2label == {0: "red", 1: "round"}
    both, none = predict(run.path, ["a red ball 3", "a blue box 4"])
    (tmp_path / "new.txt").write_text("")
    with pytest.raises(DataError, match=r"new\.txt"):
        list(predict(run.path, [tmp_path / "new.txt"]))
    assert (both.answer, none.answer) == (["red", "round"], [])
    assert set(both.probabilities) == {"red", "round"}
    assert json.dumps(both.to_json())


def test_a_teacher_of_labels_that_do_not_exclude_each_other_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", TOPICS)
    recipe = training.resolve(
        "own-sentences", [f"data.path={tmp_path}", "data.task=multi-label-classification"], "bert"
    )
    with pytest.raises(leanify.RecipeError, match="exclude"):
        training.train(recipe, tmp_path / "run")


def test_named_columns_decide_the_task(tmp_path: Path) -> None:
    file = write(tmp_path / "train.jsonl", [{"toks": ["a", "b"], "marks": ["X", "Y"], "body": "a b", "kind": "c"}])
    for text, label, task in (
        ('["toks"]', "marks", "token-classification"),
        ('["body"]', "kind", "text-classification"),
    ):
        recipe = training.resolve("bert", [f"data.path={file}", f"data.text={text}", f"data.label={label}"])
        assert recipe.data is not None
        assert recipe.data.task == task
