"""`shrink` of checkpoints by the head that they have: masked words, a mixture of experts, one number, none."""

from __future__ import annotations

import json
import math
import random
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from runs import make_documents

import leanify
from leanify.carrying.choose import choose_units
from leanify.core.errors import LeanifyError
from leanify.core.recipe import DistillSection
from leanify.data.samples import Selection
from leanify.reshaping.sites import locate
from leanify.training.distillation import Distilled, Learner
from leanify.upstream.libraries import import_transformers

SIZES = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 64}
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def drawn(cls: str, seed: int = 0, **options: Any) -> Any:
    """A model of transformers with drawn weights."""
    kind = getattr(import_transformers(), cls)
    torch.manual_seed(seed)
    return kind(kind.config_class(**options))


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints with several heads beside one tokenizer, a table of scores and a text."""
    folder = tmp_path_factory.mktemp("heads")
    make_documents(folder, checkpoint="bare", images="pets")
    leanify.save(leanify.load("vit_tiny", overrides={"img_size": 32, "embed_dim": 48, "depth": 3}), folder / "thousand")
    tokenizer = import_transformers().BertTokenizerFast.from_pretrained(folder / "bare")
    labels = {"id2label": dict(enumerate(["cold", "dog", "film", "town", "war", "warm"]))}
    common = {"vocab_size": len(tokenizer), "max_position_embeddings": 64, **SIZES}
    t5 = {"vocab_size": len(tokenizer), "d_model": 32, "num_heads": 2}
    bart = {"d_model": 32, "decoder_layers": 4, "encoder_layers": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
    bart |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "forced_eos_token_id": None}
    bart |= {"eos_token_id": tokenizer.sep_token_id, "pad_token_id": tokenizer.pad_token_id}
    tower = {**SIZES, "num_hidden_layers": 2}
    towers = {"text_config": {**common, **tower}, "vision_config": {"image_size": 32, "patch_size": 8, **tower}}
    models = {
        "masked": drawn("BertForMaskedLM", **common),
        "names": drawn("BertForTokenClassification", num_labels=5, **common),
        "number": drawn("BertForSequenceClassification", num_labels=1, **common),
        "four": drawn("BertForSequenceClassification", num_labels=4, **common),
        "experts": drawn("MixtralForCausalLM", num_local_experts=3, num_key_value_heads=2, **common),
        "seq2seq": drawn("T5ForConditionalGeneration", d_ff=64, num_layers=3, **t5),
        "encoder": drawn("T5EncoderModel", d_ff=128, num_layers=4, **t5),
        "several": drawn(
            "BertForSequenceClassification", problem_type="multi_label_classification", **labels, **common
        ),
        "end": drawn("BartForSequenceClassification", **bart, **labels, **common),
        "pictures": drawn("CLIPModel", **towers),
    }
    for name, model in models.items():
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    shutil.copytree(folder / "masked", folder / "foreign")  # its tokenizer has words without an embedding
    tokens = json.loads((folder / "foreign" / "tokenizer.json").read_text())
    tokens["model"]["vocab"]["beyond"] = len(tokenizer)
    (folder / "foreign" / "tokenizer.json").write_text(json.dumps(tokens))
    draw = random.Random(0)
    words = ["warm", "cold", "film", "town", "dog", "war"]
    lines = [" ".join(draw.choice(words) for _ in range(8)) for _ in range(120)]
    (folder / "text.txt").write_text("\n".join(lines * 4))
    rows = [f"{line},{line.count('warm') / 8}" for line in lines]
    (folder / "scores.csv").write_text("\n".join(["text,score", *rows]))
    (folder / "classes.csv").write_text("\n".join(["text,label", *(f"{line},{line[:4]}" for line in lines)]))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "data"),
    [
        ("masked", "text.txt"),
        ("experts", "text.txt"),
        ("number", "scores.csv"),
        ("encoder", "scores.csv"),
        ("end", "classes.csv"),
    ],
)
def test_every_head_is_carried_and_healed(
    source: str, data: str, here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A step of healing that improves nothing is not kept, and then ``healed`` is null."""
    settings = ["data.holdout=0.2", "schedule.steps=6", "schedule.batch_size=8"]
    settings += ["data.length=16"] if source != "number" else []
    shrunk = leanify.shrink(here / source, here / data, 0.8, 2, tmp_path / "small", settings=settings, rates=[1e-4])
    small = leanify.load(tmp_path / "small")
    assert type(small) is type(leanify.load(here / source))
    assert sum(p.numel() for p in small.parameters()) <= 0.8 * shrunk.report["original"]["params"]
    (chosen,) = [one for one in shrunk.report["candidates"] if one["name"] == shrunk.report["chosen"]]
    assert math.isfinite(chosen["carried"]["quality"])
    assert f"{chosen['name']}: step 6, " in capsys.readouterr().err
    if chosen["healed"] is not None:
        assert chosen["healed"]["steps"] > 0
        assert math.isfinite(chosen["healed"]["quality"])


@pytest.mark.parametrize(
    ("source", "data", "fact"),
    [
        ("names", "text.txt", "no data here judge its head"),
        ("several", "classes.csv", "no data here judge its head"),
        ("pictures", "text.txt", "a CLIPModel, does not run on the samples of .*text.txt"),
        ("four", "classes.csv", "4 classes apart and .*classes.csv has 6"),
        ("seq2seq", "text.txt", "no task here trains"),
        ("foreign", "text.txt", "the tokenizer of another model"),
        ("thousand", "pets", "1,000 classes apart and .*pets has 2"),
    ],
)
def test_strange_heads_are_refused(source: str, data: str, fact: str, here: Path, tmp_path: Path) -> None:
    """A head that would be drawn now has no quality to keep."""
    with pytest.raises(LeanifyError, match=fact):
        leanify.shrink(here / source, here / data, 0.8, 0.1, tmp_path / "small")
    assert not (tmp_path / "small").exists()


def test_experts_keep_their_largest_units() -> None:
    model = leanify.load("hf/mixtral", overrides={**SIZES, "vocab_size": 60, "num_local_experts": 3})
    site = next(site for site in list(locate(model).layers)[1].sites if "m" in site.sizes)
    strong = torch.tensor([3, 10, 40])
    with torch.no_grad():
        site.module.down_proj[:, :, strong] *= 100
    picks = choose_units(site, "m", [3, 5], {})
    assert picks[3]["m"].tolist() == strong.tolist()
    assert set(strong.tolist()) < set(picks[5]["m"].tolist())


def test_selection_draws_the_same_masks() -> None:
    samples: Any = SimpleNamespace(workers=0, draw=lambda seed, keys: (seed, keys))
    indices = np.array([5, 2, 9])
    assert Selection(samples, indices).draw(7, [(0, 2), (1, 0)]) == (7, [(0, 9), (1, 5)])


def test_one_output_is_distilled_by_squares() -> None:
    """Of one number a softmax would say nothing: its divergence is always 0."""
    own_task: Any = SimpleNamespace(loss=lambda model, x, targets: (model(x)[:, 0] - targets).square().sum())
    place: Any = SimpleNamespace(device="cpu", autocast=torch.no_grad)
    student, teacher = torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)
    section = DistillSection("teacher", temperature=2.0, weight=0.25)
    learner = Learner(student, [], [])
    task = Distilled(own_task, section, learner, teacher, [], place)
    inputs, targets = torch.randn(5, 4), torch.randn(5)
    own, distance = (student(inputs)[:, 0] - targets).square(), (student(inputs) - teacher(inputs)).square()
    expected = 0.75 * own.sum() + 0.25 * distance.sum()
    assert torch.allclose(task.loss(learner, inputs, targets), expected)
