"""Labels of a table and outputs of a classifier: by name, whatever their order, case and spelling; or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

import leanify
from leanify.cli.plans import next_lines
from leanify.data.labels import match_labels
from leanify.data.splits import load_splits
from leanify.shrinking.judging import check_original, judge
from leanify.shrinking.resolve import resolve
from leanify.training import preparation, start
from leanify.upstream.libraries import import_transformers

GOOD, BAD = "a fine and sunny day", "a dull and rainy night"


@pytest.mark.parametrize(
    ("labels", "outputs", "names", "kind"),
    [
        (["negative", "positive"], ["POSITIVE", "NEGATIVE"], ["positive", "negative"], "same"),
        (["neg", "pos"], ["Positive", "Neutral", "Negative"], ["pos", "Neutral", "neg"], "same"),
        (["1", "2", "5"], ["1 star", "2 stars", "3 stars", "4 stars", "5 stars"], None, "same"),
        (["not-duplicate", "duplicate"], ["duplicate", "not_duplicate"], ["duplicate", "not-duplicate"], "same"),
        (["tench", "goldfish"], ["goldfish, Carassius", "tench, Tinca tinca"], ["goldfish", "tench"], "same"),
        (["entailment", "neutral"], ["ENTAILMENT", "NEUTRAL", "CONTRADICTION"], None, "same"),
        (["0", "1"], ["NEGATIVE", "POSITIVE"], ["0", "1"], "guess"),
        (["-1", "1"], ["LABEL_0", "LABEL_1"], ["-1", "1"], "guess"),
        (["neg", "pos"], ["LABEL_0", "LABEL_1"], ["neg", "pos"], "guess"),
        (["label_1", "LABEL_0"], ["LABEL_0", "LABEL_1"], ["LABEL_0", "label_1"], "guess"),
        (["ham", "spam"], ["NEGATIVE", "POSITIVE"], ["ham", "spam"], "other"),
        (["a", "b", "c"], ["LABEL_0", "LABEL_1"], ["a", "b", "c"], "other"),
        (["cats", "dogs"], [], ["cats", "dogs"], "unnamed"),
    ],
)  # fmt: skip
def test_labels_follow_names(labels: list[str], outputs: list[str], names: list[str] | None, kind: str) -> None:
    match = match_labels(labels, outputs)
    assert match.kind == kind
    if names is not None:
        assert list(match.names) == names
    else:
        assert len(match.names) == len(outputs)


def test_scores_refute_an_order() -> None:
    """A guess must be far above chance; what is far below it is a mapping, whatever the names say."""
    guess, same = match_labels(["0", "1"], ["no", "yes"]), match_labels(["no", "yes"], ["YES", "NO"])
    guess.check_score(0.9, 100)
    same.check_score(0.5, 100)
    with pytest.raises(leanify.DataError, match="does not confirm it: the data has 0, 1, the model no, yes"):
        guess.check_score(0.55, 100)
    with pytest.raises(leanify.DataError, match="far below chance"):
        same.check_score(0.05, 100)


def classifier(folder: Path, names: dict[int, str]) -> Path:
    """A BERT whose output 0 is right for GOOD and output 1 for BAD, by the embedding of one word each."""
    config = BertConfig(
        vocab_size=300, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        id2label=names, label2id={name: place for place, name in names.items()}, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    torch.manual_seed(0)
    model: Any = BertForSequenceClassification(config)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *{*GOOD.split(), *BAD.split()}]
    (folder / "vocabulary").mkdir(parents=True)
    file = folder / "vocabulary" / "vocab.txt"
    file.write_text("\n".join(words))
    tokenizer = import_transformers().BertTokenizerFast(str(file))
    # a few steps make it right in every sample
    inputs = tokenizer([GOOD, BAD], return_tensors="pt")
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(30):
        model(**inputs, labels=torch.tensor([0, 1])).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert model(**inputs).logits.argmax(-1).tolist() == [0, 1]
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def table(folder: Path, good: str, bad: str) -> Path:
    folder.mkdir()
    rows = [f"{(GOOD, BAD)[i % 2]},{(good, bad)[i % 2]}" for i in range(80)]
    (folder / "train.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    return folder


def test_reversed_names_are_right_everywhere(tmp_path: Path) -> None:
    """In `train`, `compare` and `predict` by the model that a recipe builds, in `shrink` by the original."""
    model = classifier(tmp_path / "model", {0: "POSITIVE", 1: "NEGATIVE"})
    data = table(tmp_path / "data", "positive", "negative")
    original = resolve(model, data, [])
    assert original.splits.names == ("positive", "negative")
    assert judge(original, original.module).quality == 100
    # the model that training starts from
    value = preparation.trainable(start.resolve(str(model), [f"data.path={data}"]))
    built: Any = preparation.build_model(value)
    splits = load_splits(preparation.data_section(value), built)
    assert (built.config.id2label, splits.names) == ({0: "positive", 1: "negative"}, ("positive", "negative"))


def test_other_names_are_refused(tmp_path: Path) -> None:
    """`shrink` measures an original; `train` learns the labels as a new task, and says so."""
    model = classifier(tmp_path / "model", {0: "POSITIVE", 1: "NEGATIVE"})
    data = table(tmp_path / "data", "ham", "spam")
    with pytest.raises(leanify.LeanifyError) as refused:
        resolve(model, data, [])
    assert "the data has ham, spam, the model POSITIVE, NEGATIVE" in str(refused.value)


@pytest.mark.parametrize(("good", "bad", "is_right"), [("0", "1", True), ("1", "0", False)])
def test_integers_need_a_score(tmp_path: Path, good: str, bad: str, is_right: bool) -> None:
    model = classifier(tmp_path / "model", {0: "GLAD", 1: "SAD"})
    original = resolve(model, table(tmp_path / "data", good, bad), [])
    if is_right:
        check_original(original)
        assert judge(original, original.module).quality == 100
        return
    with pytest.raises(leanify.DataError, match=r"0\.0%.*does not confirm it: the data has 0, 1, the model GLAD, SAD"):
        check_original(original)


@pytest.mark.parametrize("task", ["TokenClassification", "QuestionAnswering", "MultipleChoice"])
def test_heads_of_other_tasks_are_named(tmp_path: Path, task: str) -> None:
    """A head that no data here judge is refused with the line that writes a smaller model, which is not read on."""
    shape = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 64}
    getattr(import_transformers(), f"BertFor{task}")(BertConfig(vocab_size=99, **shape)).save_pretrained(tmp_path)
    with pytest.raises(leanify.LeanifyError, match=f"leanify redesign .* as AutoModelFor{task}"):
        resolve(tmp_path, table(tmp_path / "data", "0", "1"), [])
    plan = leanify.redesign(tmp_path, target_params=0.6)
    assert next_lines(plan, str(tmp_path), False, ()) == [f"leanify profile {tmp_path} {plan.directory}"]
