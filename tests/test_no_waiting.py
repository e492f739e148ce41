"""A training step asks its device for nothing: tried on ``meta``, which has sizes and no numbers to give.

There every question about a value raises, as a GPU's step would wait for it; and what mixes tensors of the device with
tensors of the host, which a GPU's step would copy, is refused here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from runs import digits
from test_labelled_text import TINY, write
from test_masked import at, stories  # noqa: F401
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

import leanify
from leanify.core import recipe as recipes
from leanify.core.recipe import Recipe
from leanify.training import preparation
from leanify.training import start as training
from leanify.training.loop import Trainer

pytestmark = pytest.mark.filterwarnings("ignore:(hf/)?bert has no weights")


class Apart(TorchDispatchMode):
    """Refuses operations on tensors of the device and of the host together; a number of the host is none."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        devices = {x.device.type for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor) and x.ndim}
        assert len(devices) < 2, f"{func} takes tensors of {devices}"
        return func(*args, **(kwargs or {}))


def step(recipe: Recipe) -> None:
    """Forward, backward, clipping and the average of one pass, on ``meta``."""
    trainer = Trainer(recipe)
    batch = next(trainer.batches(0))
    parts = [trainer.state.learner, getattr(trainer.task, "teacher", None)]
    for part in parts:
        if isinstance(part, nn.Module):
            part.to("meta")
    inputs, targets = tree_map_only(torch.Tensor, lambda x: x.to("meta"), batch)
    with Apart():
        loss = trainer.task.loss(trainer.model, trainer.splits.scale_inputs(inputs), targets)
        loss.backward()
        trainer.task.count(targets)
        nn.utils.clip_grad_norm_(trainer.model.parameters(), 1.0)
    assert next(trainer.unwrapped_model.parameters()).grad is not None


def test_waiting_is_noticed() -> None:
    x = torch.ones(3, device="meta")
    with Apart(), pytest.raises(AssertionError, match="takes tensors of"):
        x[torch.tensor([0, 2])]
    with pytest.raises((RuntimeError, NotImplementedError)):
        x.sum().item()
    with pytest.raises((RuntimeError, NotImplementedError)):
        x[x > 0]


@pytest.mark.parametrize("settings", [(), ("data.mixup=0", "data.cutmix=0"), ("optim.label_smoothing=0.1",)])
def test_image_steps_never_wait(settings: tuple[str, ...]) -> None:
    step(digits(*settings, "data.workers=0"))


@pytest.mark.parametrize("words", [("weight=0.5",), ("weight=0", "hidden_weight=1"), ("weight=0.5", "hidden_weight=1")])
def test_teacher_steps_never_wait(tmp_path: Path, words: tuple[str, ...]) -> None:
    value = digits("data.workers=0")
    leanify.save(preparation.build_model(value), tmp_path / "teacher")
    taught = [f"distill.teacher={tmp_path / 'teacher'}", *(f"distill.{word}" for word in words)]
    step(recipes.apply_settings(value, taught))


@pytest.fixture
def upstream_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """What transformers asks the device in each pass: do positions start anew in a sample, is a mask all ones?"""
    masks = pytest.importorskip("transformers.masking_utils")
    monkeypatch.setattr(masks, "find_packed_sequence_indices", lambda position_ids: None)
    monkeypatch.setattr(masks, "_ignore_bidirectional_mask_sdpa", lambda mask, *_, **__: mask is None)


@pytest.mark.usefixtures("upstream_is_told")
def test_next_token_steps_never_wait() -> None:
    step(recipes.apply_settings(recipes.load("chars"), ["schedule.batch_size=4"]))


BERT = ("model.source=bert", "model.class=AutoModelForMaskedLM", "model.override=", *TINY[:5])


@pytest.mark.parametrize("source", [(), BERT])
def test_masked_steps_never_wait(stories: Path, source: tuple[str, ...]) -> None:  # noqa: F811
    step(at(stories, *source))


@pytest.mark.usefixtures("upstream_is_told")
def test_sentence_steps_never_wait(tmp_path: Path) -> None:
    rows: dict[str, list[dict[str, Any]]] = {
        "text-classification": [{"text": f"day {i} is fine", "label": "ab"[i % 2]} for i in range(40)],
        "text-regression": [{"text": f"day {i} is fine", "label": i / 7} for i in range(40)],
    }
    for task, table in rows.items():
        write(tmp_path / f"{task}.jsonl", table)
        settings = [*TINY, f"data.path={tmp_path / task}.jsonl", f"data.task={task}"]
        step(training.resolve("bert", settings))
