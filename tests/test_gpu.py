"""What only a GPU can show: run with ``pytest -m gpu``; elsewhere each is skipped with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from cases import CASES, batch, outputs
from runs import digits, final_state, launched

import leanify
from leanify.core import machine
from leanify.runs.run_directory import RunDirectory
from leanify.training import start as training
from leanify.training.loop import Trainer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU; torch sees none here"),
]


@pytest.mark.parametrize("name", ["vit", "bert", "llama"])
def test_gpu_growth_matches_cpu(name: str) -> None:
    model = CASES[name].load()
    inputs = batch(model)
    grown = leanify.grow(model, factor=2).cuda()
    there = outputs(grown, {key: value.cuda() for key, value in inputs.items()})
    for mine, theirs in zip(outputs(model, inputs), there, strict=True):
        torch.testing.assert_close(theirs.cpu(), mine, rtol=1e-3, atol=1e-4)


def test_torch_and_nvml_peaks_are_shown() -> None:
    memory = leanify.profile("vit_small_patch16_224", batch_size=8, repeats=3, device="cuda").memory
    assert memory.train_peak_bytes <= memory.train_reserved_bytes <= memory.nvml_used_bytes
    assert memory.train_predicted_bytes == pytest.approx(memory.train_peak_bytes, rel=0.05)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_gpu_run_learns_and_resumes(tmp_path: Path, precision: str) -> None:
    if precision == "bf16" and not torch.cuda.is_bf16_supported():
        pytest.skip("this GPU has no bf16")
    whole = training.train(digits("schedule.epochs=1", f"run.precision={precision}"), tmp_path / "whole")
    losses = [row["loss"] for row in RunDirectory.open(whole).rows() if row["split"] == "train"]
    assert losses[-1] < losses[0]
    last = RunDirectory.open(whole).checkpoints()[-1]
    before = final_state(whole)["rows"]
    for file in last.path.iterdir():
        file.unlink()
    training.train(resume=whole)
    after = final_state(whole)["rows"]
    assert RunDirectory.open(whole).checkpoints()[-1].step == last.step
    for mine, theirs in zip(before, after, strict=True):
        assert theirs["loss"] == pytest.approx(mine["loss"], rel=1e-3)


def test_step_waits_for_nothing() -> None:
    """No copy from the GPU in a step: torch raises at the first one."""
    trainer = Trainer(digits("schedule.epochs=1", "data.workers=0"))
    batches = trainer.batches(0)
    trainer.step(0, batches)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for step in (1, 2):
            trainer.step(step, batches)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.filterwarnings("ignore")
def test_compiled_model_learns_the_same(tmp_path: Path) -> None:
    still = ["model.override.drop_path_rate=0", "model.override.proj_drop_rate=0", "run.precision=fp32"]
    plain, compiled = (
        final_state(training.train(digits("schedule.epochs=1", *still, f"run.compile={word}"), tmp_path / word))["rows"]
        for word in ("false", "true")
    )
    for mine, theirs in zip(plain, compiled, strict=True):
        assert theirs["loss"] == pytest.approx(mine["loss"], rel=2e-2)


def test_oversized_batch_is_split(tmp_path: Path) -> None:
    run = training.train(digits("schedule.epochs=1", "schedule.batch_size=2000000000"), tmp_path / "run")
    assert RunDirectory.open(run).recipe.run.accumulate > 1


@pytest.mark.parametrize("shard", ["false", "true"])
def test_processes_match_gpu_count(tmp_path: Path, shard: str) -> None:
    (tmp_path / "recipe.toml").write_text(digits("schedule.epochs=1", f"parallel.shard={shard}").to_toml())
    gpus = torch.cuda.device_count()
    for processes, code in ((gpus + 1, 2), (gpus, 0)):
        words = ["train", str(tmp_path / "recipe.toml"), "-o", str(tmp_path / f"run{processes}")]
        size = ["--set", f"schedule.batch_size={16 * processes}"]
        done = launched(*words, *size, processes=processes)
        _, said = done.communicate()
        assert (done.returncode == 0) == (code == 0), said
        assert code == 0 or f"and it has {gpus} GPUs" in said


def test_device_is_named_in_report() -> None:
    facts = leanify.profile("vit_tiny_patch16_224", repeats=2, device="cuda:0").to_json()
    assert torch.cuda.get_device_name(0) in facts["device"]
    with pytest.raises(leanify.LeanifyError, match="is not available; available: cpu, cuda:0"):
        machine.parse_device(f"cuda:{torch.cuda.device_count()}")
