"""Checkpoints in 16 bits are healed in 32, written in their own type, and end where the one in 32 bits does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from runs import make_documents

import leanify
from leanify.shrinking.resolve import resolve
from leanify.sources.find import build_on_meta, find
from leanify.sources.weights import has_weights
from leanify.training.loop import Trainer
from leanify.training.master_weights import weights_dtype
from leanify.upstream.libraries import import_transformers

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
TYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documents' sentence encoder in three types, with sentences."""
    folder = tmp_path_factory.mktemp("half")
    make_documents(folder, sentences="reviews", checkpoint="words")
    library: Any = import_transformers()
    for name, dtype in TYPES.items():
        library.AutoModel.from_pretrained(folder / "words", dtype=dtype).save_pretrained(folder / name)
        library.AutoTokenizer.from_pretrained(folder / "words").save_pretrained(folder / name)
    return folder


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_training_holds_full_precision(name: str, here: Path, tmp_path: Path) -> None:
    """Three steps at a low rate move nearly every weight, which they do not in 16 bits."""
    assert has_weights(here / name)
    assert weights_dtype(leanify.load(here / name)) == TYPES[name]
    settings = ["schedule.steps=3", "schedule.batch_size=16", "schedule.warmup=1", "optim.lr=1e-5"]
    trainer = Trainer(resolve(here / name, here / "reviews", settings).recipe)
    assert all(value.dtype == torch.float32 for value in trainer.unwrapped_model.parameters())
    # a student that is not the teacher, so that there is something to learn
    with torch.no_grad():
        for value in trainer.unwrapped_model.parameters():
            value.mul_(1.01)
    before = {key: value.clone() for key, value in trainer.unwrapped_model.named_parameters()}
    batches = trainer.batches(0)
    for step in range(3):
        trainer.step(step, batches)
    matrices = [key for key, value in before.items() if value.dim() == 2 and ".layer." in key]
    moved = [float((trainer.unwrapped_model.get_parameter(key) != before[key]).float().mean()) for key in matrices]
    assert min(moved) > 0.9


@pytest.mark.slow
def test_types_end_alike(here: Path, tmp_path: Path) -> None:
    """The same shrink in three types: results of the checkpoint's own type, equal but for rounding."""
    settings = ["schedule.batch_size=16", "schedule.steps=12"]
    quality = {}
    for name, dtype in TYPES.items():
        result = leanify.shrink(
            here / name, here / "reviews", 0.7, 1, tmp_path / name, designs=["dropped"], rates=[5e-4], settings=settings
        )
        [candidate] = result.report["candidates"]
        quality[name] = candidate["healed"]["quality"], candidate["carried"]["quality"]
        assert weights_dtype(result.build()) == dtype
    for name in ("float16", "bfloat16"):
        assert quality[name] == pytest.approx(quality["float32"], abs=4e-3)
        assert quality[name][0] > quality[name][1]  # healed above carried


def test_classifier_is_built_in_one_dtype(tmp_path: Path) -> None:
    """Llama's classifier makes its base by ``from_config``, which takes the checkpoint's 16 bits for the base alone."""
    library: Any = import_transformers()
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = library.LlamaConfig(vocab_size=60, pad_token_id=0, **sizes)
    library.LlamaForSequenceClassification(config).to(torch.bfloat16).save_pretrained(tmp_path)
    model = build_on_meta(find(tmp_path))
    assert {value.dtype for value in model.parameters()} == {torch.float32}
    assert model.config.dtype == torch.bfloat16
    ids = torch.arange(1, 9)[None]
    assert leanify.load(tmp_path)(input_ids=ids).logits.dtype == torch.bfloat16
