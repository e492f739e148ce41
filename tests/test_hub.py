"""push_to_hub of lean models, and back: by the libraries' own loaders, from a hub in this process."""

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
import flows, leanify, timm, transformers
from timm.models import push_to_hf_hub

bert, swin = leanify.load({bert!r}), leanify.load({swin!r})
bert.push_to_hub("me/bert")
transformers.AutoTokenizer.from_pretrained({bert!r}).push_to_hub("me/bert")
push_to_hf_hub(swin, "me/swin")

words = transformers.AutoTokenizer.from_pretrained("me/bert")
assert words("the cat sat")["input_ids"] == [2, 5, 6, 8, 3]
flows.same(bert, transformers.BertForSequenceClassification.from_pretrained("me/bert"))
flows.same(bert, leanify.load("me/bert"))
flows.same(swin, timm.create_model("hf-hub:me/swin", pretrained=True))
print(leanify.read(leanify.load("me/bert")))
"""


PUSHED = """
import sys
import urllib.request
import leanify

leanify.redesign("vit_tiny", depth=4, heads=5, mlp=384).save("lean")
print(leanify.push_to_hub("lean", "me/lean"))
code = urllib.request.urlopen(sys.argv[1] + "/me/lean/resolve/main/README.md").read().decode()
loads = code.partition("```python")[2].partition("```")[0]
exec(loads.partition("# or")[0])
print(leanify.read(model) == leanify.read(leanify.load("lean")))
exec("import leanify" + loads.partition("`import leanify`")[2])
print(leanify.read(model) == leanify.read(leanify.load("lean")))
"""


def test_a_lean_directory_is_pushed_with_a_card_that_says_how_it_was_made(tmp_path: Path) -> None:
    with mock_hub() as hub:
        wanted = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hub"), "HF_TOKEN": "hf_" + "x" * 34}
        wanted |= {"HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
        run = [sys.executable, "-W", "ignore", "-c", PUSHED, hub.url]
        done = subprocess.run(run, env={**os.environ, **wanted}, capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == [f"{hub.url}/me/lean", "True", "True"]
        files = hub.repositories["me/lean"]
        assert {"config.json", "model.safetensors", "leanify.json", "README.md"} == set(files)
        card = files["README.md"].decode()
    assert card.startswith("---\nlibrary_name: timm\n")
    assert "| parameters | 5.72 M | 1.96 M |" in card
    assert "has not been trained" in card


def test_what_is_no_lean_directory_is_not_pushed(tmp_path: Path) -> None:
    with pytest.raises(leanify.DirectoryError, match="no lean directory"):
        leanify.push_to_hub(tmp_path, "me/lean")


@pytest.mark.long
def test_pushed_and_pulled_back(tmp_path: Path) -> None:
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
