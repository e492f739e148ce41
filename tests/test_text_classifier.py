"""A head on a text encoder: which weights are carried over, in which shape, for which encoders."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from test_shrink_heads import SIZES, drawn

import leanify
from leanify.core import recipe as recipes
from leanify.core.errors import DataError
from leanify.core.recipe import ModelSection
from leanify.data.texts import tokenizers
from leanify.runs.run_directory import RunDirectory
from leanify.training import loop, preparation
from leanify.training import start as training

WORDS = [f"word{number} was {mood}" for number in range(30) for mood in ("good", "bad")]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT with its tokenizer, as transformers saves it."""
    folder = tmp_path_factory.mktemp("bert")
    tokenizer = tokenizers._wrap(tokenizers._train(200, lambda: WORDS))
    tokenizer.save_pretrained(folder)
    sizes = {**SIZES, "num_hidden_layers": 2, "vocab_size": len(tokenizer), "max_position_embeddings": 48}
    drawn("BertForMaskedLM", **sizes).save_pretrained(folder)
    return folder


def test_encoder_weights_are_carried(bert: Path) -> None:
    old = leanify.load(bert)
    with pytest.warns(UserWarning, match=r" 4 .*bert\.pooler.*cls\."):
        new = preparation.add_head(ModelSection(str(bert)), 3)
    assert type(new).__name__ == "BertForSequenceClassification"
    assert new.classifier.out_features == 3
    theirs = old.bert.state_dict()
    mine = {name: value for name, value in new.bert.state_dict().items() if not name.startswith("pooler")}
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_lean_encoders_keep_shape(bert: Path, tmp_path: Path) -> None:
    grown = leanify.grow(leanify.load(bert), heads=3)  # 3 × 16 in a width of 32
    leanify.save(grown, tmp_path / "lean")
    with pytest.warns(UserWarning, match="carried over"):
        new = preparation.add_head(ModelSection(str(tmp_path / "lean"), override={"hidden_dropout_prob": 0.0}), 2)
    layer = leanify.read(new).stages[0].primary
    assert (layer.heads, layer.head_dim, layer.width) == (3, 16, 32)
    ids = torch.randint(5, 60, (2, 9))
    with torch.no_grad():
        mine, theirs = new.eval().bert(ids)[0], grown.eval().bert(ids)[0]
    assert torch.equal(mine, theirs)
    leanify.save(new, tmp_path / "tuned")
    with torch.no_grad():
        assert torch.equal(leanify.load(tmp_path / "tuned")(ids).logits, new(ids).logits)


def test_models_without_weights_are_named() -> None:
    override = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 3, "intermediate_size": 16}
    with pytest.warns(UserWarning, match="bert has no weights"):
        model = preparation.add_head(ModelSection("bert", override=override, depth=1, heads=4), 1)
    assert leanify.read(model).depth == 1
    assert model.config.num_labels == 1


@pytest.mark.filterwarnings("ignore:.*(carried over|initialised):UserWarning")
@pytest.mark.parametrize("kind", ["roberta", "distilbert", "electra", "albert", "deberta-v2", "mpnet", "nystromformer"])
def test_other_encoders_are_fine_tuned(kind: str, bert: Path, tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModel

    tokenizer = tokenizers.load(str(bert))
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
    table = "".join(f"{text},{text},{text.split()[-1]}\n" for text in WORDS)
    (tmp_path / "train.csv").write_text(f"sentence1,sentence2,label\n{table}")
    quick = [f"model.source={tmp_path / 'model'}", f"data.path={tmp_path / 'train.csv'}", "data.holdout=0.2"]
    quick += ["data.samples=16", "schedule.steps=2", "schedule.warmup=0"]
    recipe = recipes.apply_settings(recipes.load("glue"), quick)
    fitting = recipes.apply_settings(recipe, [f"data.length={longest}"])
    run = RunDirectory.open(training.train(fitting, tmp_path / "run"))
    assert 0 <= run.rows()[-1]["top1"] <= 100
    model = loop.Trainer(run.recipe).unwrapped_model.eval()
    ids = torch.randint(5, len(tokenizer), (2, longest))
    with torch.no_grad():
        assert model(ids).logits.shape == (2, 2)
    with pytest.raises(DataError, match=f" {longest} positions"):
        training.train(recipes.apply_settings(recipe, [f"data.length={longest + 1}"]), tmp_path / "other")
