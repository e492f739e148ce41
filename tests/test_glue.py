"""GLUE: what is read, how it is padded, which weights a fine-tuning begins with, and what it reports."""

from __future__ import annotations

import json
import math
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from runs import outcome
from scipy import stats
from sklearn import metrics as sklearn
from typer.testing import CliRunner

import leanify
from leanify.cli import app
from leanify.data.sampling import Order
from leanify.data.texts import vocabulary
from leanify.errors import DataError, LeanifyError, RecipeError, SourceError
from leanify.paper import glue
from leanify.paper import glue_table as table
from leanify.runs import recipe as recipes
from leanify.runs.recipe import DataSection, ModelSection
from leanify.runs.run_directory import RunDirectory
from leanify.sources import text_classifier
from leanify.tasks import merged
from leanify.tasks.glue import METRICS, Glue
from leanify.training import loop
from leanify.training import start as training

NICE, BAD = ["good", "lovely", "great", "warm"], ["bad", "awful", "cold", "dull"]
REST = ["the", "film", "was", "a", "story", "of", "its", "people", "and", "more"]


def text(rng: np.random.Generator, label: int) -> str:
    """A few words, one of which tells the label."""
    words = list(rng.choice(REST, rng.integers(2, 14)))
    words.insert(int(rng.integers(len(words))), str(rng.choice(NICE if label else BAD)))
    return " ".join(words)


def write(file: Path, columns: list[str], rows: list[list[Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join("\t".join(map(str, row)) for row in [columns, *rows]) + "\n")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small tasks in the layout of GLUE: single sentences, pairs, numbers, MNLI's two sets."""
    root, rng = tmp_path_factory.mktemp("glue"), np.random.default_rng(0)
    for split, number in (("train", 96), ("validation", 40)):
        labels = rng.integers(0, 2, number)
        write(root / f"SST-2/{split}.tsv", ["sentence", "label"], [[text(rng, x), x] for x in labels])
        pairs = [[text(rng, x), text(rng, y), int(x == y)] for x, y in rng.integers(0, 2, (number, 2))]
        write(root / f"mrpc/{'test' if number == 40 else split}.tsv", ["sentence1", "sentence2", "label"], pairs)
        graded = [[text(rng, x), text(rng, y), f"{5 * float(x == y):.3f}"] for x, y in rng.integers(0, 2, (number, 2))]
        write(root / f"stsb/{split}.tsv", ["id", "sentence1", "sentence2", "label"], [[0, *row] for row in graded])
    names = glue.TASKS["mnli"].labels
    for split, number in (("train", 30), ("validation_matched", 20), ("validation_mismatched", 10)):
        rows = [[text(rng, 0), text(rng, 1), names[rng.integers(3)]] for _ in range(number)]
        write(root / f"mnli/{split}.tsv", ["premise", "hypothesis", "label"], rows)
    return root


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory, files: Path) -> Path:
    """A tiny BERT with its tokenizer, as transformers saves it."""
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("bert")
    tokenizer = vocabulary._dressed(vocabulary._trained(200, (files / "SST-2/train.tsv").read_text().splitlines))
    tokenizer.save_pretrained(folder)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    BertForMaskedLM(BertConfig(vocab_size=len(tokenizer), max_position_embeddings=48, **sizes)).save_pretrained(folder)
    return folder


@pytest.fixture
def quiet() -> Any:
    """Without the words about what was carried over; they have a test of their own."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*(carried over|no weights)", UserWarning)
        yield


def at(bert: Path, files: Path, *settings: str) -> recipes.Recipe:
    base = [f"model.source={bert}", f"data.path={files}", "data.length=40", "run.log_every=5"]
    return recipes.with_settings(recipes.load("glue"), [*base, *settings])


# -- metrics ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(METRICS))
def test_metrics_of_batches_are_those_of_scikit_learn_and_scipy_of_the_whole_set(name: str) -> None:
    rng = np.random.default_rng(0)
    task, classes = Glue(name, 0.0), len(glue.TASKS[name].labels)
    label = rng.integers(0, classes, 500) if classes else rng.uniform(0, 5, 500).round(1)
    outputs = torch.from_numpy(rng.normal(size=(500, classes or 1)) + 0.3 * (label[:, None] if not classes else 0))
    sets = rng.integers(0, 2, 500) if name == "mnli" else np.zeros(500, dtype=int)
    targets = torch.from_numpy(label + sets * classes)

    class Answers(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    parts = [task.found(Answers(), outputs[i : i + 64], targets[i : i + 64]) for i in range(0, 500, 64)]
    told = task.metrics(merged([{k: v.double() for k, v in part.items()} for part in parts]))
    guess = outputs.float().argmax(1).numpy() if classes else outputs.float()[:, 0].double().numpy()
    oracle = {
        "accuracy": sklearn.accuracy_score,
        "f1": sklearn.f1_score,
        "matthews": sklearn.matthews_corrcoef,
        "pearson": lambda a, b: stats.pearsonr(a, b).statistic,
        "spearman": lambda a, b: stats.spearmanr(a, b).statistic,
    }
    for metric in METRICS[name]:
        if name == "mnli":
            m, mm = (100 * oracle[metric](label[sets == i], guess[sets == i]) for i in (0, 1))
            assert told["accuracy_m"] == pytest.approx(m, abs=1e-12)
            assert told["accuracy_mm"] == pytest.approx(mm, abs=1e-12)
            assert told["accuracy"] == pytest.approx((m + mm) / 2, abs=1e-12)
        else:
            assert told[metric] == pytest.approx(100 * oracle[metric](label, guess), abs=1e-12)
    if classes:
        nats = sklearn.log_loss(label, torch.softmax(outputs.float().double(), 1).numpy(), labels=range(classes))
    else:
        nats = sklearn.mean_squared_error(label, guess)
    assert told["loss"] == pytest.approx(nats, rel=1e-5)


def test_metrics_by_their_formulas() -> None:
    rng = np.random.default_rng(1)
    label, guess = rng.integers(0, 2, (2, 300))
    tp, tn = int((label & guess).sum()), int(((1 - label) & (1 - guess)).sum())
    fp, fn = int(((1 - label) & guess).sum()), int((label & (1 - guess)).sum())
    by_hand = (tp * tn - fp * fn) / math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    assert METRICS["cola"]["matthews"](label, guess) == pytest.approx(by_hand, abs=1e-12)
    assert METRICS["mrpc"]["f1"](label, guess) == pytest.approx(2 * tp / (2 * tp + fp + fn), abs=1e-12)
    x, y = rng.normal(size=(2, 300))
    ranks = [np.argsort(np.argsort(column)) for column in (x, y)]
    assert METRICS["stsb"]["spearman"](x, y) == pytest.approx(np.corrcoef(*ranks)[0, 1], abs=1e-12)
    assert METRICS["stsb"]["pearson"](x, y) == pytest.approx(np.corrcoef(x, y)[0, 1], abs=1e-12)


def test_a_constant_answer_has_no_correlation_and_no_warning() -> None:
    label, constant = np.array([0.0, 1.0, 1.0]), np.ones(3)
    assert METRICS["stsb"]["pearson"](label, constant) == METRICS["stsb"]["spearman"](label, constant) == 0
    assert METRICS["cola"]["matthews"](label, constant) == METRICS["mrpc"]["f1"](label, np.zeros(3)) == 0


# -- samples ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sst2", "mrpc"])
def test_a_batch_is_what_transformers_pads(name: str, bert: Path, files: Path, quiet: None) -> None:
    trainer = loop.Trainer(at(bert, files, f"data.name={name}"))
    tokenizer = vocabulary.load(str(bert))
    rows, _, _ = glue.read(DataSection(name, "glue", str(files)), name)
    indices = np.array([5, 0, 17, 3])
    inputs, labels = trainer.splits.train.batch(indices)  # type: ignore[attr-defined]
    columns = [list(column) for column in zip(*(rows[i][0] for i in indices), strict=True)]
    theirs = tokenizer(*columns, padding=True, return_tensors="pt", return_token_type_ids=True)
    assert set(inputs) == set(theirs)
    assert all(torch.equal(inputs[key], theirs[key]) for key in inputs)
    assert labels.tolist() == [rows[i][1] for i in indices]


def test_padding_changes_no_answer(bert: Path, files: Path, quiet: None) -> None:
    trainer = loop.Trainer(at(bert, files, "data.name=mrpc"))
    model, samples = trainer.bare.double().eval(), trainer.splits.validation
    with torch.no_grad():
        together = model(**samples.batch(np.arange(40))[0]).logits  # type: ignore[attr-defined]
        for i in (0, 20, 39):
            inputs, _ = samples.batch(np.array([i]))  # type: ignore[attr-defined]
            assert "attention_mask" not in inputs
            torch.testing.assert_close(model(**inputs).logits[0], together[i], rtol=0, atol=1e-9)


def test_samples_of_like_length_share_a_batch_and_each_comes_once_an_epoch() -> None:
    lengths = np.random.default_rng(0).integers(4, 60, 1003)
    order, plain = Order(1003, 16, seed=1, lengths=lengths), Order(1003, 16, seed=1)
    for epoch in range(2):
        steps = range(epoch * order.steps_per_epoch, (epoch + 1) * order.steps_per_epoch)
        seen = np.concatenate([order.batch(step) for step in steps])
        assert sorted(seen) == list(range(1003))
        padded, before = (
            sum(len(x.batch(step)) * lengths[x.batch(step)].max() for step in steps) for x in (order, plain)
        )
        assert padded < 1.1 * lengths.sum() < 1.5 * lengths.sum() < before
        firsts = [lengths[order.batch(step)].max() for step in steps]
        assert firsts != sorted(firsts)  # the batches are shuffled
    again = Order(1003, 16, seed=1, lengths=lengths)
    assert all(np.array_equal(again.batch(step), order.batch(step)) for step in (70, 3, 69, 0))
    assert not np.array_equal(Order(1003, 16, seed=2, lengths=lengths).batch(0), order.batch(0))


def test_files_are_read_as_they_are(tmp_path: Path) -> None:
    odd = ['He said "no', '"Yes" she said', "tab-free, comma", "it's 50% off  ", "two\u2028lines"]
    write(tmp_path / "sst2/train.tsv", ["label", "sentence"], [[i % 2, words] for i, words in enumerate(odd)])
    write(tmp_path / "sst2/dev.tsv", ["sentence", "label"], [["x", "positive"], ["y", "negative"], ["z", "1.0"]])
    train, validation, where = glue.read(DataSection("sst2", "glue", str(tmp_path)), "sst2")
    assert [texts[0] for texts, _ in train] == odd
    assert [label for _, label in train] == [0, 1, 0, 1, 0]
    assert [label for _, label in validation] == [1, 0, 1]
    assert where.endswith("sst2 (train.tsv, dev.tsv)")


def test_a_task_may_have_its_own_folder_and_mnli_has_two_sets(files: Path) -> None:
    _, validation, where = glue.read(DataSection("mnli", "glue", str(files)), "mnli")
    labels = np.array([label for _, label in validation])
    assert len(labels) == 30
    assert labels[:20].max() < 3 <= labels[20:].min()
    assert "validation_matched.tsv, validation_mismatched.tsv" in where
    assert glue.read(DataSection("mnli", "glue", str(files / "mnli")), "mnli")[0]
    assert "test.tsv" in glue.read(DataSection("mrpc", "glue", str(files)), "mrpc")[2]


def test_without_a_folder_the_hubs_data_set_is_asked(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder in the hub's layout goes by the hub's name: MNLI as it lies there, and what fails where nothing is."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="nyu-mll"):
        glue.read(DataSection("mnli", "glue"), "mnli")
    home = tmp_path / "nyu-mll/glue"
    names = ("train", "validation_matched", "validation_mismatched")
    for name in names:
        lines = [line.split("\t") for line in (files / f"mnli/{name}.tsv").read_text().splitlines()[1:]]
        table = [{"premise": a, "hypothesis": b, "label": glue.TASKS["mnli"].labels.index(x)} for a, b, x in lines]
        home.mkdir(parents=True, exist_ok=True)
        (home / f"{name}.jsonl").write_text("\n".join(map(json.dumps, table)))
    places = "".join(f"\n  - split: {name}\n    path: {name}.jsonl" for name in names)
    (home / "README.md").write_text(f"---\nconfigs:\n- config_name: mnli\n  data_files:{places}\n---\n")
    train, validation, where = glue.read(DataSection("mnli", "glue"), "mnli")
    theirs = glue.read(DataSection("mnli", "glue", str(files)), "mnli")
    assert (train, validation) == theirs[:2]
    assert where == "nyu-mll/glue (train, validation_matched, validation_mismatched)"


BROKEN = [
    ("sst2", ["sentence label", "good"], "line 1: SST-2 needs the columns sentence, label; found sentence label"),
    ("sst2", ["sentence\tlabel", "good\t1", "bad"], "line 3: 1 tab-separated cells, but line 1 names 2 columns"),
    ("sst2", ["sentence\tlabel", "good\t1\t2"], "line 2: 3 tab-separated cells"),
    ("sst2", ["sentence\tlabel", "good\t2"], "line 2: SST-2 has no label '2'; expected 0 negative or 1 positive"),
    ("sst2", ["sentence\tlabel", "good\t-1"], "line 2: SST-2 has no label '-1'"),
    ("sst2", ["sentence\tlabel", "good\tyes"], "line 2: SST-2 has no label 'yes'"),
    ("sst2", ["sentence\tlabel", " \t1"], "line 2: a sentence is empty"),
    ("sst2", ["sentence\tlabel"], "has no sample"),
    ("sst2", [], "has no sample"),
    (
        "stsb",
        ["sentence1\tsentence2\tlabel", "a\tb\t5.1"],
        r"line 2: STS-B has no label '5.1'; expected a number 0 … 5",
    ),
    ("rte", ["sentence1\tsentence2\tlabel", "a\tb\tneutral"], "line 2: RTE has no label 'neutral'"),
]


@pytest.mark.parametrize(("name", "lines", "words"), BROKEN)
@pytest.mark.parametrize("split", ["train", "validation"])
def test_a_malformed_file_is_named_with_its_line(
    name: str, lines: list[str], words: str, split: str, tmp_path: Path, bert: Path
) -> None:
    good = {"sst2": ["sentence\tlabel", "good\t1"], "stsb": ["sentence1\tsentence2\tlabel", "a\tb\t1"]}
    good["rte"] = good["stsb"]
    (tmp_path / name).mkdir()
    for part in ("train", "validation"):
        written = lines if part == split else good[name]
        (tmp_path / name / f"{part}.tsv").write_text("".join(f"{line}\n" for line in written))
    with pytest.raises(DataError, match=words) as found:
        table.glue(bert, tmp_path, output=tmp_path / "out")
    assert f"{split}.tsv" in str(found.value)
    assert "\n" not in str(found.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        (["data.name=sst5"], RecipeError, "GLUE's tasks are cola, sst2"),
        (["data.name=qnli"], DataError, "has no train.tsv"),
        (["data.length=49"], DataError, "49 tokens, but the model has only 48 positions: --set data.length=48"),
        (["data.tokenizer=/nowhere"], DataError, "is not a directory here, and the hub did not provide it"),
        (["model.source=bert", "data.tokenizer="], DataError, "comes without a tokenizer"),
        (["model.source=vit_tiny_patch16_224"], SourceError, "takes images"),
        (["model.source=leanify/gpt2-tinystories"], SourceError, "no head for text classification"),
        (["data.path=/nowhere"], DataError, "does not exist"),
        (["data.holdout=0.999"], DataError, "one part would be empty"),
        (["data.img_size=3"], RecipeError, "is for images"),
        (["data.mixup=0.2"], RecipeError, "mixes images"),
        (["data.mask=0.2"], RecipeError, "data.mask"),
    ],
)
def test_bad_input_is_one_message(
    settings: list[str], error: type[Exception], words: str, bert: Path, files: Path, tmp_path: Path, quiet: None
) -> None:
    with pytest.raises(error, match=words) as found:
        training.train(at(bert, files, *settings), tmp_path / "run")
    assert "\n" not in str(found.value)
    assert not (tmp_path / "run").exists()


def test_a_tokenizer_of_another_vocabulary_is_refused(bert: Path, files: Path, tmp_path: Path, quiet: None) -> None:
    vocabulary.tokenizer_of("bytes", list, "")[0].save_pretrained(tmp_path / "bytes")
    with pytest.raises(DataError, match=r" 261 .* \d+"):
        training.train(at(bert, files, f"data.tokenizer={tmp_path / 'bytes'}"), tmp_path / "run")


# -- heads --------------------------------------------------------------------------------------------------------


def test_the_encoders_weights_are_carried_over_and_the_rest_is_said(bert: Path) -> None:
    old = leanify.load(bert)
    with pytest.warns(UserWarning, match=r" 4 .*bert\.pooler.*cls\."):
        new = text_classifier.with_head(ModelSection(str(bert)), 3)
    assert type(new).__name__ == "BertForSequenceClassification"
    assert new.classifier.out_features == 3
    theirs = old.bert.state_dict()
    mine = {name: value for name, value in new.bert.state_dict().items() if not name.startswith("pooler")}
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_a_lean_bert_that_upstream_cannot_say_keeps_its_shape_under_a_head(bert: Path, tmp_path: Path) -> None:
    grown = leanify.grow(leanify.load(bert), heads=3)  # 3 × 16 in a width of 32
    leanify.save(grown, tmp_path / "lean")
    with pytest.warns(UserWarning, match="carried over"):
        new = text_classifier.with_head(ModelSection(str(tmp_path / "lean"), override={"hidden_dropout_prob": 0.0}), 2)
    layer = leanify.read(new).stages[0].primary
    assert layer is not None
    assert (layer.heads, layer.head_dim, layer.width) == (3, 16, 32)
    ids = torch.randint(5, 60, (2, 9))
    with torch.no_grad():
        mine, theirs = new.eval().bert(ids)[0], grown.eval().bert(ids)[0]
    assert torch.equal(mine, theirs)
    leanify.save(new, tmp_path / "tuned")
    with torch.no_grad():
        assert torch.equal(leanify.load(tmp_path / "tuned")(ids).logits, new(ids).logits)


def test_a_model_without_weights_is_said_to_be_drawn_anew() -> None:
    override = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 3, "intermediate_size": 16}
    with pytest.warns(UserWarning, match="bert has no weights"):
        model = text_classifier.with_head(ModelSection("bert", override=override, depth=1, heads=4), 1)
    assert leanify.read(model).depth == 1
    assert model.config.num_labels == 1


@pytest.mark.filterwarnings("ignore:.*(carried over|initialised):UserWarning")
@pytest.mark.parametrize("kind", ["roberta", "distilbert", "electra", "albert", "deberta-v2", "mpnet", "nystromformer"])
def test_other_encoders_of_transformers_are_fine_tuned(kind: str, bert: Path, files: Path, tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModel

    tokenizer = vocabulary.load(str(bert))
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    if kind == "distilbert":
        sizes = {"dim": 32, "n_layers": 1, "n_heads": 2, "hidden_dim": 32}
    more = {"embedding_size": 32} if kind in ("electra", "albert") else {}
    config = AutoConfig.for_model(
        kind, vocab_size=len(tokenizer), max_position_embeddings=48, pad_token_id=0, **sizes, **more
    )
    AutoModel.from_config(config).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    longest = {"roberta": 47, "mpnet": 46}.get(kind, 48)  # their positions begin behind the one of padding
    quick = ["data.name=mrpc", f"data.length={longest}", "data.samples=16", "schedule.steps=2", "schedule.epochs="]
    run = RunDirectory.open(
        training.train(at(tmp_path / "model", files, *quick, "schedule.warmup=0"), tmp_path / "run")
    )
    assert 0 <= run.rows()[-1]["f1"] <= 100
    model = loop.Trainer(run.recipe).bare.eval()
    ids = torch.randint(5, len(tokenizer), (2, longest))
    with torch.no_grad():
        assert model(ids).logits.shape == (2, 2)
    with pytest.raises(DataError, match=f" {longest} positions"):
        training.train(at(tmp_path / "model", files, *quick[:1], f"data.length={longest + 1}"), tmp_path / "other")


# -- runs ---------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*carried over:UserWarning")
def test_from_masked_language_modelling_to_the_table(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lean Crammed BERT is pre-trained on a text, then fine-tuned: the run's tokenizer, weights and shape."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    lines = (files / "SST-2/train.tsv").read_text().replace("\t", " ")
    (tmp_path / "text.txt").write_text(lines)
    small = ["vocab=200", "length=40", "width=32", "depth=3", "heads=2", "head_dim=16", "mlp=32"]
    pretrained = training.train(
        recipes.with_settings(
            recipes.load("masked-small"),
            [f"data.path={tmp_path / 'text.txt'}", "data.tokenizer=wordpiece-200", "data.length=16", "model.depth=2",
             "model.heads=4", "model.heads_mode=split", "schedule.tokens=1500", "schedule.warmup=0",
             "schedule.cooldown=0", "schedule.batch_size=8", *(f"model.override.{item}" for item in small)],
        ),
        tmp_path / "masked",
    )  # fmt: skip
    trainer = loop.Trainer(at(pretrained, files, "data.name=sst2"))
    begun, old = trainer.bare.state_dict(), leanify.load(pretrained).state_dict()
    assert begun.keys() - old.keys() == {f"classifier.{i}.{kind}" for i in (0, 2) for kind in ("weight", "bias")}
    assert all(torch.equal(begun[name], old[name]) for name in old)

    quick = ["schedule.epochs=1", "schedule.warmup=0", "data.length=40"]
    report = table.glue(pretrained, files, tasks=["sst2"], seeds=3, output=tmp_path / "glue", settings=quick)
    [score] = report.scores
    assert score.median == sorted(score.values["accuracy"])[1]
    tuned = leanify.load(tmp_path / "glue/sst2-0")
    shape = leanify.read(tuned).stages[0].primary
    assert shape is not None
    assert (leanify.read(tuned).depth, shape.heads, shape.head_dim) == (2, 4, 8)
    tokenizer = vocabulary.load(str(tmp_path / "glue/sst2-0"))
    inputs = tokenizer(["a lovely film", "the film was cold and dull"], padding=True, return_tensors="pt")
    assert tuned(inputs["input_ids"], inputs["attention_mask"]).shape == (2, 2)


@pytest.mark.filterwarnings("ignore:.*carried over:UserWarning")
@pytest.mark.parametrize(("name", "metric", "least"), [("sst2", "accuracy", 95), ("stsb", "pearson", 20)])
def test_a_tiny_bert_learns_the_word_that_tells(
    name: str, metric: str, least: float, bert: Path, files: Path, tmp_path: Path
) -> None:
    settings = [f"data.name={name}", "optim.lr=5e-3", "schedule.epochs=8", "schedule.batch_size=8", "run.eval_every=48"]
    settings.append("run.seed=2")  # at this rate two seeds in five learn nothing
    last = RunDirectory.open(training.train(at(bert, files, *settings), tmp_path / "run")).rows()[-1]
    assert last[metric] > least


@pytest.mark.filterwarnings("ignore:.*carried over:UserWarning")
def test_the_table_keeps_what_is_finished_and_resumes_what_is_not(bert: Path, files: Path, tmp_path: Path) -> None:
    out = tmp_path / "glue"
    quick = ["schedule.epochs=1", "schedule.warmup=0", "data.length=40", "run.checkpoint_every=2", "run.keep=0"]

    def run() -> table.Report:
        return table.glue(bert, files, seeds=2, output=out, settings=quick)

    # a run that was killed: its last checkpoint is gone
    named = [f"model.source={bert}", f"data.path={files}", "data.name=stsb", "run.seed=1"]
    training.train(recipes.with_settings(recipes.load("glue"), [*quick, *named]), out / "stsb-1")
    expected = outcome(out / "stsb-1")
    shutil.rmtree(RunDirectory.open(out / "stsb-1").checkpoints()[-1].path)

    report = run()
    assert outcome(out / "stsb-1") == expected
    assert [score.task for score in report.scores] == ["sst2", "mrpc", "stsb", "mnli"]
    assert report.missing == ["cola", "qqp", "qnli", "rte"]
    assert report.average == pytest.approx(sum(score.median for score in report.scores) / 4)
    told = report.to_json()
    mnli = told["tasks"][3]["metrics"]
    for i in range(2):
        halves = (mnli["accuracy_m"]["values"][i] + mnli["accuracy_mm"]["values"][i]) / 2
        assert mnli["accuracy"]["values"][i] == pytest.approx(halves)

    assert run().to_json() == told
    begun = [len(json.loads((out / name / "environment.json").read_text())) for name in ("stsb-1", "stsb-0")]
    assert begun == [2, 1]
    assert all(len(list((out / name / "checkpoints").iterdir())) == 1 for name in ("stsb-0", "stsb-1", "mnli-0"))
    with pytest.raises(RecipeError, match=r"optim\.lr"):
        table.glue(bert, files, seeds=2, output=out, settings=[*quick, "optim.lr=1e-3"])


def test_the_number_of_a_task_is_the_median_of_its_own_metric() -> None:
    score = table.Score(
        "mrpc", {"accuracy": [1.0, 2.0, 3.0, 4.0], "f1": [90.0, 70.0, 80.0, 60.0]}, ["a", "b", "c", "d"]
    )
    assert (score.metric, score.median) == ("f1", 75.0)
    other = table.Score("cola", {"matthews": [50.0, 10.0, 20.0]}, ["a", "b", "c"])
    report = table.Report("bert", "runs", [score, other], [])
    assert report.average == (75.0 + 20.0) / 2
    assert score.to_json()["metrics"]["accuracy"] == {"median": 2.5, "values": [1.0, 2.0, 3.0, 4.0]}


# -- the command --------------------------------------------------------------------------------------------------


def test_the_table_is_made_by_one_process(bert: Path, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RecipeError, match=r"torchrun .* leanify train glue"):
        table.glue(bert, files)


def command(*arguments: str) -> Any:
    return CliRunner().invoke(app("glue"), list(arguments))


@pytest.mark.filterwarnings("ignore:.*carried over:UserWarning")
def test_the_command_prints_a_table_or_json(bert: Path, files: Path, tmp_path: Path) -> None:
    arguments = [str(bert), "--data", str(files), "--tasks", "stsb,SST-2", "--seeds", "2", "-o", str(tmp_path / "out")]
    arguments += ["--set", "schedule.epochs=1", "--set", "schedule.warmup=0", "--set", "data.length=40"]
    done = command(*arguments)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 100
    assert [line.split()[:2] for line in lines if line.startswith(("STS-B", "SST-2"))] == [
        ["STS-B", "spearman"],
        ["SST-2", "accuracy"],
    ]
    assert "without cola, mrpc, qqp, mnli, qnli, rte" in done.stdout
    told = json.loads(command(*arguments, "--json").stdout)  # finished ones are kept
    assert [entry["task"] for entry in told["tasks"]] == ["stsb", "sst2"]
    rows = RunDirectory.open(tmp_path / "out/sst2-1").rows()
    assert told["tasks"][1]["metrics"]["accuracy"]["values"][1] == rows[-1]["accuracy"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--tasks", "sst2,wnli"], "GLUE's tasks are"),
        (["--tasks", "rte"], "has no train.tsv"),
        (["--set", "optim.lrr=3"], "nearest: lr"),
        (["--set", "data.length=1000"], "1000 tokens, but the model has only 48 positions"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*carried over:UserWarning")
def test_the_command_refuses(arguments: list[str], words: str, bert: Path, files: Path, tmp_path: Path) -> None:
    done = command(str(bert), "--data", str(files), "-o", str(tmp_path / "out"), *arguments)
    assert isinstance(done.exception, LeanifyError)
    assert words in str(done.exception)
    assert not (tmp_path / "out").exists()


@pytest.mark.filterwarnings("ignore:.*carried over:UserWarning")
@pytest.mark.parametrize("name", ["mrpc", "stsb"])
def test_transformers_own_loss_and_a_bare_loop_find_the_same_weights(
    name: str, bert: Path, files: Path, tmp_path: Path
) -> None:
    still = [f"model.override.{key}_dropout_prob=0.0" for key in ("hidden", "attention_probs")]
    value = at(bert, files, f"data.name={name}", *still, "schedule.epochs=1", "schedule.warmup=0", "optim.lr=1e-3")
    trainer = loop.Trainer(value)
    model: Any = loop.Trainer(value).bare
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, trainer.steps)
    for step in range(trainer.steps):
        inputs, labels = trainer.splits.train.batch(trainer.order.batch(step))  # type: ignore[attr-defined]
        model(**inputs, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    run = RunDirectory.open(training.train(value, tmp_path / "run"))
    found = run.checkpoints()[-1].weights()
    assert len(found) == len(model.state_dict())
    for key, tensor in model.state_dict().items():
        assert torch.allclose(found[key], tensor, atol=1e-5), key
