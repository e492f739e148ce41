"""What earlier versions could do, and what older folders still ask for, is refused in one message."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import commands
import pytest
import torch
from safetensors.torch import save_file

import leanify
from leanify.data.unrecognised import check_is_no_data
from leanify.training.start import resolve

OLDER = Path(__file__).parent / "fixtures" / "older"
BERT = {"vocab_size": 50, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}


def test_diffusers_models_are_refused(tmp_path: Path) -> None:
    """By name, by diffusers' own configuration, and in an older lean directory."""
    theirs, lean = tmp_path / "theirs", tmp_path / "lean"
    theirs.mkdir()
    (theirs / "config.json").write_text(json.dumps({"_class_name": "DiTTransformer2DModel", "num_layers": 2}))
    shutil.copytree(OLDER / "crammed-bert", lean)
    card = json.loads((lean / "leanify.json").read_text())
    card["origin"] |= {"library": "diffusers", "name": "DiTTransformer2DModel", "options": {"num_layers": 2}}
    (lean / "leanify.json").write_text(json.dumps(card))
    for source in ("diffusers/dit", theirs, lean):
        with pytest.raises(leanify.SourceError, match=r"name it as the source: model\.py:make"):
            leanify.load(source)


def test_adapters_are_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a folder, as a file, beside complete weights, on the hub, and with keys that nothing could read."""
    alone, beside = tmp_path / "adapter", tmp_path / "beside"
    snapshot = tmp_path / "hub" / "models--me--tuned" / "snapshots" / "0123"
    leanify.load("bert", overrides=BERT).save_pretrained(beside)
    for folder in (alone, beside, snapshot):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "target_modules": "(x+x+)+y"')
        save_file({"a": torch.zeros(2)}, folder / "adapter_model.safetensors")
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("0123")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    way = r"AutoPeftModel\.from_pretrained\(\.\.\.\)\.merge_and_unload\(\)"
    for source in (alone, alone / "adapter_model.safetensors", beside, "me/tuned"):
        with pytest.raises(leanify.SourceError, match=way):
            leanify.load(source)


@pytest.mark.parametrize(
    ("task", "way"),
    [
        ("multi-label-classification", r"Trainer does, .*AutoModelForSequenceClassification\.from_pretrained"),
        ("token-classification", r"Trainer does, .*AutoModelForTokenClassification\.from_pretrained"),
        ("glue", "recipes/leaner-transformers/glue.py does"),
    ],
)
def test_removed_tasks_name_their_trainer(tmp_path: Path, task: str, way: str) -> None:
    """In a recipe, in a setting, and in an older run."""
    old = Path(shutil.copytree(OLDER / "run", tmp_path / "run"))
    text = (old / "recipe.toml").read_text()
    (old / "recipe.toml").write_text(re.sub('(?m)^task = ".*"$', f'task = "{task}"\nseparator = "|"', text))
    for refused in (
        lambda: leanify.train(old / "recipe.toml"),
        lambda: leanify.train("own-sentences", settings=[f"data.task={task}"]),
        lambda: leanify.train(resume=old),
    ):
        with pytest.raises(leanify.LeanifyError, match=way):
            refused()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("train.jsonl", '{"text": "a red ball", "topics": ["red", "round"]}\n{"text": "a box", "topics": []}\n'),
        ("train.jsonl", '{"tokens": ["Ada", "met"], "ner_tags": ["B-PER", "O"]}\n'),
        ("train.conll", "Ada B-PER\nmet O\n"),
    ],
)
def test_lists_of_labels_are_refused(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(leanify.LeanifyError, match="are learnt by transformers' Trainer"):
        check_is_no_data(str(tmp_path), say_why=True)


def test_lists_of_labels_are_no_texts(tmp_path: Path) -> None:
    """A model that takes labels is not trained on the texts alone, unless that is the task."""
    (tmp_path / "train.jsonl").write_text('{"text": "a red ball", "label": ["red", "round"]}\n')
    with pytest.raises(leanify.DataError, match="lists in its column label"):
        resolve("bert", [f"data.path={tmp_path}"])
    recipe = resolve("bert", [f"data.path={tmp_path}", "data.task=masked-lm"])
    assert recipe.data.task == "masked-lm"


def test_removed_command_names_its_script() -> None:
    for words in (("glue", "RUN", "--data", "GLUE"), ("glue", "-h")):
        done = commands.run(*words)
        script = re.search(r"python (\S+/glue\.py) SOURCE --data DIR\n$", done.stderr)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert Path(script[1]).is_file()
