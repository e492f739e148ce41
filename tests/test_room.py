"""A model that is larger than the memory is refused in words, by every command that would build it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

import leanify
from leanify.core import machine
from leanify.core.errors import SourceError
from leanify.upstream import build
from leanify.upstream.build import build_model
from leanify.upstream.origin import Origin

HUGE = "hf/mixtral"  # 46.6 billion parameters, 186 GB
FREE = machine.free_memory() or 0
small_machine = pytest.mark.skipif(not 0 < FREE < 150e9, reason="the model may fit into the memory of this machine")


def run(*words: str, at: Path) -> tuple[int, str, str, int]:
    """Exit code, what was printed, and the most memory of the process in bytes."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        child = subprocess.Popen([sys.executable, "-m", "leanify", *words], cwd=at, stdout=out, stderr=err)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0), err.seek(0)
        return child.returncode, out.read(), err.read(), usage.ru_maxrss * 1024


TEXTS = "--set data.path=texts.txt --set data.tokenizer= --set data.length=16"
COMMANDS = {
    "train": f"train {HUGE} {TEXTS} -o run",
    "condition": f"condition {HUGE}",
    "profile": f"profile {HUGE} --max-latency 3ms",
    "compare": f"compare {HUGE} {TEXTS} -o study",
}


@pytest.mark.slow
@small_machine
@pytest.mark.parametrize(
    "command", ["train", *(pytest.param(name, marks=pytest.mark.long) for name in ("condition", "profile", "compare"))]
)
def test_oversized_model_is_one_message(command: str, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 200)
    free = machine.free_memory() or 0
    code, _, words, peak = run(*COMMANDS[command].split(), at=tmp_path)
    assert code == 2, words
    assert "Traceback" not in words
    assert "free" in words or "available" in words
    assert [path.name for path in tmp_path.iterdir()] == ["texts.txt"]
    assert peak < free / build.SHARE + (2 << 30)


@pytest.mark.slow
@small_machine
def test_profile_counts_unmeasurable_models(tmp_path: Path) -> None:
    code, printed, words, _ = run("profile", HUGE, "--json", at=tmp_path)
    assert code == 0, words
    (facts,) = json.loads(printed)["models"]
    assert facts["params"] > 46e9
    assert facts["latency_s"] is None
    assert "the model was not measured" in facts["not_measured"]


def test_unfitting_training_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest is."""
    facts = leanify.profile("test_vit", batch_size=2, repeats=1)
    assert facts.not_measured is None
    assert facts.memory.train_peak_bytes is not None
    monkeypatch.setattr(machine, "available_memory", lambda device: facts.weights_bytes + 1)
    facts = leanify.profile("test_vit", batch_size=2, repeats=1)
    assert facts.latency_s is not None
    assert facts.memory.train_peak_bytes is None
    assert str(facts.not_measured).startswith("training was not measured")


@pytest.mark.parametrize(
    "origin",
    [
        Origin("timm", "test_vit"),
        Origin("timm", "swin_s3_tiny_224", {"depths": (1, 1, 1, 1)}),
        Origin("hf", "bert", {"num_hidden_layers": 1, "vocab_size": 99}, "BertModel"),
        Origin("hf", "mixtral", {"num_hidden_layers": 1, "hidden_size": 64, "vocab_size": 99}, "MixtralForCausalLM"),
    ],
    ids=str,
)
def test_weighing_keeps_seeded_draws(origin: Origin, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(5)
    plain, after = build_model(origin).state_dict(), torch.rand(1)
    monkeypatch.setattr(build, "SHARE", (machine.free_memory() or 0) // 50_000)  # weighed after some layers were drawn
    torch.manual_seed(5)
    weighed = build_model(origin).state_dict()
    assert torch.equal(after, torch.rand(1))
    assert plain.keys() == weighed.keys()
    assert all(torch.equal(plain[name], weighed[name]) for name in plain)


@pytest.mark.skipif(not 0 < FREE < 4e12, reason="no file is larger than this machine's memory")
@pytest.mark.parametrize("whole", [True, False])
def test_oversized_weights_stay_unopened(whole: bool, tmp_path: Path) -> None:
    leanify.save(leanify.load("hf/bert", overrides={"num_hidden_layers": 1, "vocab_size": 99}), tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    if not whole:
        name = "model-00001-of-00001.safetensors"
        index = {"weight_map": {"embeddings.word_embeddings.weight": name}}
        (tmp_path / "model" / "model.safetensors.index.json").write_text(json.dumps(index))
        file = file.rename(file.with_name(name))
    with file.open("r+b") as stream:  # a file with a hole takes no room
        stream.truncate(FREE * 2)
    with pytest.raises(SourceError, match=r"the weights of .*model take .* GiB, .* of memory are free"):
        leanify.load(tmp_path / "model")
