"""Lean models on the hub, and back: by the libraries' own loaders, from a hub in this process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from flows import FAMILIES
from mock_hub import mock_hub

import leanify

THERE_AND_BACK = """
import sys, torch
sys.path.insert(0, {tests!r})
import flows, huggingface_hub, leanify, timm, transformers
from timm.models import push_to_hf_hub

bert, swin = leanify.load({bert!r}), leanify.load({swin!r})
bert.push_to_hub("me/bert")
transformers.AutoTokenizer.from_pretrained({bert!r}).push_to_hub("me/bert")
push_to_hf_hub(swin, "me/swin")
huggingface_hub.create_repo("me/uploaded")
huggingface_hub.upload_folder(repo_id="me/uploaded", folder_path={swin!r})

words = transformers.AutoTokenizer.from_pretrained("me/bert")
assert words("the cat sat")["input_ids"] == [2, 5, 6, 8, 3]
flows.assert_same_model(bert, transformers.BertForSequenceClassification.from_pretrained("me/bert"))
flows.assert_same_model(bert, leanify.load("me/bert"))
flows.assert_same_model(swin, timm.create_model("hf-hub:me/swin", pretrained=True))
flows.assert_same_model(swin, leanify.load(huggingface_hub.snapshot_download("me/uploaded")))
print(leanify.read(leanify.load("me/bert")))
"""


@pytest.mark.long
def test_hub_round_trip(tmp_path: Path) -> None:
    """In a process of its own: the hub's address is read when its client is imported. Its cache begins empty."""
    lean = {name: str(FAMILIES[key].lean(tmp_path / name)) for name, key in (("bert", "BERT"), ("swin", "Swin (timm)"))}
    code = THERE_AND_BACK.format(tests=str(Path(__file__).parent), **lean)
    with mock_hub() as hub:
        wanted = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path), "HF_TOKEN": "hf_" + "x" * 34, "HF_HUB_OFFLINE": "0"}
        environment = {**os.environ, **wanted, "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
        run = [sys.executable, "-W", "ignore", "-c", code]
        done = subprocess.run(run, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1] == str(leanify.read(leanify.load(lean["bert"])))
        assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(hub.repositories["me/bert"])
        assert {"config.json", "model.safetensors"} <= set(hub.repositories["me/swin"])
        assert not hub.unknown
