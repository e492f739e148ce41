"""Weights that do not fit into memory lie in files, and nothing else changes."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from test_shrink_heads import drawn
from torch import nn

import leanify
from leanify.carrying.free import transfer_free
from leanify.carrying.narrow import narrow_model
from leanify.carrying.teacher import CalibratedTeacher
from leanify.carrying.transfer import TransferResult, transfer_weights
from leanify.core import machine
from leanify.core.errors import DirectoryError
from leanify.search.redesign import redesign
from leanify.shrinking.candidates import NO_BOUNDS
from leanify.sources import find
from leanify.training.master_weights import to_master_weights, to_stored_weights
from leanify.upstream.libraries import import_transformers
from leanify.upstream.on_disk import SMALL, on_disk, place

SHRINK = """
import resource, sys
from leanify.cli import main
from leanify.core import machine
from leanify.shrinking import shrink
from leanify.upstream.libraries import import_transformers
import_transformers().LlamaForCausalLM  # the libraries are in memory
limit = int(sys.argv.pop(1)) + machine.status("VmData")
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
main()
"""
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A decoder of three layers with weights of 16 bits."""
    place = tmp_path_factory.mktemp("decoder")
    sizes = {"hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 768}
    drawn("LlamaForCausalLM", vocab_size=300, **sizes).bfloat16().save_pretrained(place)
    return place


def carried(source: Path) -> dict[str, TransferResult]:
    """The decoder's weights in several shapes, by random tokens."""
    torch.manual_seed(0)
    batches = [{"input_ids": torch.randint(0, 300, (4, 16))} for _ in range(4)]
    model = find.load_with_weights(find.find(source), None)
    to_master_weights(model)
    teacher = CalibratedTeacher(model, batches[:3], batches[3:])
    budget = {"target_params": 0.6, "count": "body", "heads": 4, **NO_BOUNDS}
    narrow, paired = (redesign(source, depth=depth, **budget).chosen for depth in (3, 2))
    results = {}
    for name, transfer in {
        "narrow": lambda: transfer_weights(teacher, narrow.architecture),
        "paired": lambda: transfer_weights(teacher, paired.architecture, moves=("pair",)),
        "free": lambda: transfer_free(teacher, narrow.params),
    }.items():
        torch.manual_seed(0)
        results[name] = transfer()
    return results


def halved(source: Path) -> nn.Module:
    """The decoder with MLPs of half the width."""
    model = find.load_with_weights(find.find(source), None)
    shape = leanify.read(model)
    batches = [{"input_ids": torch.randint(0, 300, (4, 16))} for _ in range(2)]
    narrower = replace(shape, stages=(shape.stages[0].reshape(mlp=640),))
    return narrow_model(CalibratedTeacher(model, batches, batches), narrower).model


def in_memory(model: nn.Module) -> list[str]:
    """Large weights that are not in files."""
    return [
        name
        for name, tensor in model.named_parameters()
        if tensor.numel() > SMALL and tensor.untyped_storage().filename is None
    ]


@pytest.mark.slow
def test_disk_changes_no_bit(decoder: Path, tmp_path: Path) -> None:
    expected = carried(decoder)
    with on_disk(tmp_path):
        results = carried(decoder)
        assert in_memory(halved(decoder)) == []  # as soon as they are narrower
        assert list(results) == ["narrow", "paired", "free"]
        for name, result in results.items():
            tensors, before = result.model.state_dict(), expected[name].model.state_dict()
            assert list(tensors) == list(before)
            assert all(torch.equal(tensors[key], before[key]) for key in before), name
            assert [step.damage for step in result.steps] == [step.damage for step in expected[name].steps]
            assert in_memory(result.model) == [], name
            to_stored_weights(result.model, torch.bfloat16)
            assert in_memory(result.model) == [], name
    assert list(tmp_path.iterdir()) == []  # the files have no names
    assert any(in_memory(result.model) for result in expected.values())


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="a limit of data")
def test_command_keeps_below_limit(tmp_path: Path) -> None:
    """The whole command, from the plan to the saved folder, in less than the original's weights of 32 bits twice."""
    text = "a warm film about a dog and a cold town in the war . "
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *sorted(set(text.split()))]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    (tmp_path / "text.txt").write_text(text * 160)
    import_transformers().BertTokenizerFast(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path / "model")
    sizes = {"hidden_size": 512, "num_hidden_layers": 20, "num_attention_heads": 8, "intermediate_size": 1024}
    model = drawn("LlamaForCausalLM", vocab_size=len(words), **sizes).bfloat16()
    model.save_pretrained(tmp_path / "model")
    limit = 2 * 4 * sum(p.numel() for p in model.parameters())
    options = ["--data", "text.txt", "--designs", "narrow", "--minutes", "0", "--set", "data.length=16", "-o", "small"]
    command = [sys.executable, "-c", SHRINK, str(limit), "shrink", "model", *options]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-2000:]
    assert "the weights lie in files" in result.stderr
    assert "latencies are not measured" in result.stderr
    assert leanify.read(leanify.load(tmp_path / "small")).depth == 20


@pytest.mark.skipif(sys.platform != "linux", reason="a limit of files")
def test_full_disk_is_named(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # as Python does at its start
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, before[1]))
    try:
        with on_disk(tmp_path), pytest.raises(DirectoryError, match=r"do not fit on the disk of .*, 512\.00 KiB more"):
            place(torch.zeros(2**17))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.skipif(sys.platform != "linux", reason="a limit of data")
def test_limit_of_data_counts() -> None:
    before, free = resource.getrlimit(resource.RLIMIT_DATA), machine.free_memory()
    used = machine.status("VmData")
    assert free is not None
    resource.setrlimit(resource.RLIMIT_DATA, (used + 2**28, before[1]))
    try:
        limited = machine.free_memory()
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)
    assert limited <= 2**28
