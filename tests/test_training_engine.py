"""What a recipe asks of the engine: memory that suffices, checkpointed gradients, a compiler, trackers."""

from __future__ import annotations

import copy
import ctypes
import resource
import shutil
from pathlib import Path

import allocated
import pytest
import torch
from runs import Warnings, digits, final_state

from leanify.core import machine
from leanify.core import recipe as recipes
from leanify.core.errors import RecipeError, TrainingError
from leanify.profiling import counting
from leanify.profiling import training_memory as peak
from leanify.runs.run_directory import RunDirectory
from leanify.training import engine, loop, memory, preparation
from leanify.training import start as training
from leanify.training.callbacks import Callback

STILL = ["model.override.drop_path_rate=0", "model.override.proj_drop_rate=0", "data.samples=200"]


def tiny(*settings: str) -> recipes.Recipe:
    return digits(*STILL, *settings)


def weights(*settings: str, calls: list[int] | None = None) -> dict[str, torch.Tensor]:
    """After three steps; ``calls`` counts those of a block."""
    trainer = loop.Trainer(tiny(*settings))
    if calls is not None:
        trainer.unwrapped_model.blocks[0].register_forward_pre_hook(lambda *_: calls.append(1))
    batches = trainer.batches(0)
    for step in range(3):
        trainer.step(step, batches)
    return trainer.unwrapped_model.state_dict()


def test_checkpointed_gradients_are_equal() -> None:
    """Each block runs again on the way back."""
    once: list[int] = []
    twice: list[int] = []
    one, two = weights(calls=once), weights("run.gradient_checkpointing=true", calls=twice)
    assert (len(once), len(twice)) == (3, 6)
    assert all(torch.equal(tensor, two[name]) for name, tensor in one.items())


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler's own modules
def test_compiled_model_learns_the_same() -> None:
    one, two = weights(), weights("run.compile=true", "run.compile_mode=reduce-overhead")
    for name, tensor in one.items():
        torch.testing.assert_close(two[name], tensor, rtol=1e-3, atol=1e-5)


CONVOLVED = (
    "model.source=xcit_nano_12_p8_224",
    "model.override={img_size=8, in_chans=1, num_classes=10, embed_dim=16, depth=2, num_heads=2}",
)


def test_channels_last_keeps_numbers(tmp_path: Path) -> None:
    """Weights as by the other layout, checkpoints too; a run that goes on from one ends bit for bit as unbroken."""
    one, two = weights(*CONVOLVED), weights(*CONVOLVED, "run.channels_last=true")
    kernels = [name for name, tensor in one.items() if tensor.dim() == 4 and tensor.shape[1] > 1]
    assert kernels
    assert all(two[name].is_contiguous(memory_format=torch.channels_last) for name in kernels)
    for name, tensor in one.items():
        torch.testing.assert_close(two[name], tensor, rtol=1e-3, atol=1e-4)
    value = tiny(*CONVOLVED, "run.channels_last=true", "schedule.epochs=1", "run.checkpoint_every=1", "run.keep=0")
    run = training.train(value, tmp_path / "run")
    whole = final_state(run)
    for found in RunDirectory.open(run).checkpoints()[2:]:
        shutil.rmtree(found.path)
    training.train(resume=run)
    assert final_state(run) == whole


def test_prefetching_changes_no_batch() -> None:
    one, two = weights(), weights("data.workers=1", "data.prefetch=3")
    assert all(torch.equal(tensor, two[name]) for name, tensor in one.items())


@pytest.mark.parametrize(
    ("name", "gpu", "bf16", "chosen"),
    [
        (None, True, True, "bf16"),
        (None, True, False, "fp32"),
        (None, False, False, "fp32"),
        ("bf16", False, False, "bf16"),
        ("fp16", False, False, r"fp16.*--set run\.precision=fp32"),
        ("bf16", True, False, r"bf16.*--set run\.precision=fp16 or fp32"),
    ],
)
def test_precision_suits_the_device(name: str | None, gpu: bool, bf16: bool, chosen: str) -> None:
    if "--set" in chosen:
        with pytest.raises(RecipeError, match=chosen):
            engine.choose_precision(name, gpu, bf16)
    else:
        assert engine.choose_precision(name, gpu, bf16) == chosen


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU has 16-bit floats")
def test_emulated_bf16_is_warned_about() -> None:
    said: list[str] = []
    engine.check_arithmetic(engine.build_accelerator(tiny("run.precision=bf16")), said.append)
    assert bool(said) != torch.ops.mkldnn._is_mkldnn_bf16_supported()
    assert all("run.precision=fp32 is faster" in words for words in said)
    engine.check_arithmetic(engine.build_accelerator(tiny()), pytest.fail)


def test_trackers_get_rows(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    run = RunDirectory.open(training.train(tiny('run.trackers=["tensorboard"]', "schedule.epochs=1"), tmp_path / "run"))
    assert any(b"validation/top1" in file.read_bytes() for file in (tmp_path / "run").rglob("events.out.*"))
    assert final_state(run.path)["step"] == 3


# -- memory -----------------------------------------------------------------------------------------------------------


def test_memory_estimate_matches_allocator() -> None:
    """By the same loss; computed again in the backward pass, the same step takes less."""
    model = loop.Trainer(tiny()).unwrapped_model
    needed = memory.need(model, None)
    for batch in (3, 40):
        measured = allocated.training_peak(copy.deepcopy(model).to("meta"), batch, None, peak.cross_entropy)
        assert needed.of(batch) == pytest.approx(measured, rel=0.02)
    again = memory.need(loop.Trainer(tiny("run.gradient_checkpointing=true")).unwrapped_model, None)
    assert again.of(40) < needed.of(40)


def test_constant_and_shared_memory_count() -> None:
    """Gradients that stay from pass to pass, 16-bit activations, and a fourth of weights, gradients and moments."""
    model = loop.Trainer(tiny()).unwrapped_model
    weights = sum(p.numel() * 4 for p in model.parameters())
    plain, kept, half, shared = (
        memory.need(model, None, **words) for words in ({}, {"keeps_gradients": True}, {"half": True}, {"parts": 4})
    )
    assert None not in (plain, kept, half, shared)
    assert plain.of(40) < kept.of(40) <= plain.of(40) + weights
    assert half.of(400) < 0.7 * plain.of(400)
    assert shared.of(1) < kept.of(1)
    assert shared.fixed_bytes < plain.fixed_bytes + weights


def test_passes_fit_in_memory() -> None:
    need = memory.MemoryNeed(1000, ((0, 10), (-50, 9)))
    assert (need.of(100), need.largest(2000), need.largest(999)) == (2000, 100, 0)
    for batch, accumulate, passes in ((200, 1, 1), (600, 1, 3), (600, 3, 3), (600, 4, 4), (601, 1, 4)):
        fitting = memory.fitting_passes(need, 2000, batch, world=2, accumulate=accumulate, where="cpu")
        assert fitting == passes
        assert need.of(-(-batch // (2 * fitting))) <= 2000
    with pytest.raises(TrainingError, match="one sample"):
        memory.fitting_passes(need, 1005, batch=600, world=2, accumulate=1, where="cpu")


def test_large_batch_is_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that does not fit is taken in more passes, which is said and recorded; the steps are the same."""
    heard = Warnings()
    whole = training.train(tiny("schedule.batch_size=64"), tmp_path / "whole")
    kept = memory.need(preparation.build_model(tiny()), None, keeps_gradients=True)
    monkeypatch.setattr(machine, "available_memory", lambda device: kept.of(20))
    monkeypatch.setattr(counting, "weights_bytes", lambda model: 0)
    split = training.train(tiny("schedule.batch_size=64"), tmp_path / "split", callback=heard)
    assert RunDirectory.open(split).recipe.run.accumulate == 4
    assert any("in 4 passes" in words for words in heard.warnings)
    for mine, theirs in zip(RunDirectory.open(whole).rows(), RunDirectory.open(split).rows(), strict=True):
        assert theirs["loss"] == pytest.approx(mine["loss"], rel=1e-3)


def test_out_of_memory_is_one_message(tmp_path: Path) -> None:
    """From the first step on, a norm asks torch for more than any machine addresses: torch's own allocator refuses."""
    hooks = []

    def asks(module: torch.nn.Module, *_: object) -> None:
        if isinstance(module, torch.nn.LayerNorm):
            torch.empty(2**50, dtype=torch.uint8)

    class Greedy(Callback):
        def on_train_begin(self, *_: object) -> None:
            hooks.append(torch.nn.modules.module.register_module_forward_hook(asks))

    try:
        with pytest.raises(TrainingError) as raised:
            training.train(tiny("schedule.batch_size=400"), tmp_path / "run", callback=Greedy())
    finally:
        for hook in hooks:
            hook.remove()
    words = str(raised.value)
    assert "step 1 failed" in words
    assert f"leanify train --resume {tmp_path / 'run'}" in words
    assert "memory ran out in a pass of 400 samples" in words
    assert "--set run.accumulate=2" in words
    assert [found.step for found in RunDirectory.open(tmp_path / "run").checkpoints()] == [0]
    assert len(words.splitlines()) == 1


def test_processes_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    whole = machine.cores()
    for processes in (1, whole, 1000):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
        assert machine.cores() == max(1, whole // processes)


def test_container_limits_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In both versions of the interface."""
    for names, folder in ((("max", "current"), "new"), (("limit_in_bytes", "usage_in_bytes"), "old")):
        (tmp_path / folder).mkdir()
        for name, value in zip(names, (1000, 300), strict=True):
            (tmp_path / folder / f"memory.{name}").write_text(f"{value}\n")
    (tmp_path / "new" / "memory.stat").write_text("anon 100\ninactive_file 50\n")
    (tmp_path / "old" / "memory.stat").write_text("cache 1\ntotal_inactive_file 50\n")
    assert [machine._cgroup_free(tmp_path / folder) for folder in ("new", "old", "none")] == [750, 750, None]
    (tmp_path / "new" / "memory.max").write_text("max\n")
    assert machine._cgroup_free(tmp_path / "new") is None
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    part = machine.available_memory(torch.device("cpu"))
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    whole = machine.available_memory(torch.device("cpu"))
    assert part < whole


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="another C library keeps its heap as it does")
def test_freed_memory_is_reused() -> None:
    def faults() -> int:
        """Of 200 MiB, 51,200 pages."""
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        held = [torch.zeros(5 << 20).add_(1) for _ in range(10)]
        del held
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    with engine.disable_malloc_trim():
        assert min(faults() for _ in range(5)) < 5_000
    assert faults() > 25_000  # the kernel has them back
