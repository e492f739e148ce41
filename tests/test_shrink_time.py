"""The minutes of a shrink: planned before the work, candidates left out by rule, and healing that never hurts."""

from __future__ import annotations

import os
import re
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from runs import make_documents

import leanify
from leanify.carrying.teacher import CalibratedTeacher
from leanify.carrying.transfer import transfer_weights
from leanify.cli.options import spare_busy_cores
from leanify.core import terminal
from leanify.core.errors import DirectoryError, LeanifyError
from leanify.search.options import Options
from leanify.shrinking.candidates import Candidate, Prices, candidates
from leanify.shrinking.carry import MAX_TOKENS, MIN_TOKENS, Carried
from leanify.shrinking.folder import ShrinkFolder
from leanify.shrinking.healing import heal, healing_copy
from leanify.shrinking.judging import compare_embeddings, judge
from leanify.shrinking.original import Original
from leanify.shrinking.resolve import resolve
from leanify.shrinking.shrink import is_late
from leanify.shrinking.time_plan import PRIORITY, Clock, limit_samples, plan_time
from leanify.sources.source import describe
from leanify.training.engine import build_accelerator
from leanify.training.memory import longest_sample, split_batch

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documents' sentence encoder, with sentences."""
    folder = tmp_path_factory.mktemp("time")
    make_documents(folder, sentences="reviews", checkpoint="old")
    return folder


def prepared(here: Path, *settings: str) -> Original:
    return resolve(here / "old", here / "reviews", list(settings))


def test_candidates_are_left_out_by_rule(here: Path) -> None:
    """The fewer minutes, the fewer tokens, and then candidates: the last of the order go first; those named stay."""
    original = prepared(here)
    several = candidates(Prices(original, Options(target_params=0.7)), kind="free")
    counts = []
    for minutes in (1000.0, 1.0, 0.1):
        time_plan = plan_time(original, several, ["free"], Clock(minutes), original.sample_macs / 2e8, None)
        names = [one.name for one in time_plan.candidates]
        assert "free" in names
        assert set(names) | set(time_plan.left_out) == {one.name for one in several}
        ranks = [PRIORITY.index(name) for name in names]
        assert all(PRIORITY.index(name) > max(ranks) for name in time_plan.left_out)
        assert time_plan.tokens == (MIN_TOKENS if time_plan.left_out else MAX_TOKENS)
        if len(names) > 1:
            assert sum(time_plan.seconds.values()) == pytest.approx(60 * minutes, rel=0.01)
        counts.append(len(names))
    assert counts[0] == len(several)
    assert counts[0] > counts[1] >= counts[2] == 1


def test_memory_follows_lengths_of_data(here: Path) -> None:
    """A batch is padded to its longest text, not to the model's table of positions, and split where memory is short."""
    original = prepared(here, "data.length=128")
    recipe, splits, shell = original.recipe, original.splits, original.shell
    longest = longest_sample(splits, recipe.data.length)
    assert longest is not None
    assert longest == max(splits.train.lengths) < 128
    engine = build_accelerator(recipe)
    whole, need = split_batch(recipe, splits, shell, engine)
    assert whole.run.accumulate == recipe.run.accumulate
    batch = recipe.schedule.batch_size
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("leanify.core.machine.available_memory", lambda device: int(need.of(batch // 2) / 0.8))
        split, split_need = split_batch(recipe, splits, shell, engine)
    assert split.run.accumulate > 1
    assert split_need.of(-(-batch // split.run.accumulate)) <= need.of(batch // 2)


@pytest.mark.parametrize(("rates", "rate"), [((3e-5,), 3e-5), ((2e-4, 7e-5), 2e-4), ((), 5e-4)])
def test_short_healing_takes_first_rate(rates: tuple[float, ...], rate: float, here: Path, tmp_path: Path) -> None:
    """Steps that are too few for a test: the first rate that is given, else the usual one."""
    original = prepared(here, "schedule.steps=6", "schedule.batch_size=8", "data.samples=64")
    folder = ShrinkFolder(tmp_path / "out", {"minutes": 1.0}, clock=Clock(1.0))
    folder.keep()
    leanify.save(leanify.load(here / "old"), folder.place("narrow"))
    quality = judge(original, original.module)
    carried = Carried(Candidate("narrow", None), None, folder.place("narrow"), 0.0, "", [], quality, 0, 0)
    healed = heal(folder, original, [carried], rates)
    assert folder.findings["plan narrow"]["rate"] == pytest.approx(rate)
    # the original itself cannot be improved: nothing was healed, and that is what the report shows
    assert healed == []


def test_encoder_heals_the_states_of_its_tokens(here: Path) -> None:
    """By default; the user's own distillation stays as it is."""
    usual, own = (prepared(here, *words).recipe.distill for words in ((), ("distill.hidden_weight=0",)))
    assert (usual.hidden_weight > 0, usual.layers) == (True, "output")
    assert (own.hidden_weight, own.layers) == (0.0, "even")


def test_healing_changes_a_copy(here: Path, tmp_path: Path) -> None:
    """The copy that is trained has the dropout of healing and equal weights; the carried model keeps its own."""
    original = prepared(here)
    assert original.no_dropout
    assert not {"hidden_dropout_prob"} & set(prepared(here, "model.override.hidden_dropout_prob=0.2").no_dropout)
    model: Any = leanify.load(here / "old")
    quality = judge(original, model)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    student: Any = healing_copy(original, Carried(Candidate("x", None), model, tmp_path, 0.0, "", [], quality, 0, 0))
    rates = {key: getattr(model.config, key) for key in original.no_dropout}
    assert all(getattr(student.config, key) == 0 < rates[key] for key in original.no_dropout)
    assert {module.p for module in student.modules() if isinstance(module, torch.nn.Dropout)} == {0.0}
    assert all(torch.equal(before[name], tensor) for name, tensor in student.state_dict().items())
    with torch.no_grad():
        for parameter in student.parameters():
            assert parameter.requires_grad
            parameter.zero_()
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_minutes_too_few_are_refused(here: Path) -> None:
    """In one sentence, which names minutes that are enough, also for the data that more minutes allow."""
    original = prepared(here)
    several = candidates(Prices(original, Options(target_params=0.7)))
    forward = original.sample_macs / 3e6

    def check_minutes(minutes: float) -> None:
        some = replace(original, splits=limit_samples(original, minutes, forward))
        plan_time(some, several, [], Clock(minutes), forward, None).check_minutes(minutes)

    with pytest.raises(LeanifyError, match="--minutes 6 are too few") as refusal:
        check_minutes(6)
    enough = int(re.search(r"give --minutes (\d+)", str(refusal.value))[1])  # type: ignore[index]
    check_minutes(enough)


def test_late_candidates_are_left_out(tmp_path: Path) -> None:
    """Once the time for transferring is over, one candidate is enough, and those that were named."""
    late, early = (Clock(30.0, seconds_before=60 * minutes) for minutes in (25, 5))
    for clock, request, findings, result in (
        (late, {}, {"carried narrow": {}}, True),
        (late, {}, {}, False),
        (late, {"designs": ["paired"]}, {"carried narrow": {}}, False),
        (early, {}, {"carried narrow": {}}, False),
        (Clock(0.0, seconds_before=9e9), {}, {"carried narrow": {}}, False),
    ):
        folder = ShrinkFolder(tmp_path / "out", request, findings=findings, clock=clock)
        assert is_late(folder, "paired") is result


def test_calibration_pairs_what_may_pair(here: Path) -> None:
    """Blocks that are only dropped need no units before pairing; the result is the same."""
    model = leanify.load(here / "old")
    old = leanify.read(model)
    new = replace(old, stages=tuple(replace(stage, blocks=stage.blocks[1:]) for stage in old.stages))
    batches = [{"input_ids": torch.randint(5, 30, (4, 12))} for _ in range(4)]
    results = []
    for paired in ([], None):
        teacher = CalibratedTeacher(model, batches[1:], batches[:1])
        teacher.prepare([new], paired=paired)
        assert bool(teacher._cuts) is (paired is None)
        results.append(transfer_weights(teacher, new, moves=("drop",)).model.state_dict())
    assert all(torch.equal(results[0][name], results[1][name]) for name in results[0])


def test_threads_sleep_beside_others(monkeypatch: pytest.MonkeyPatch) -> None:
    for load, before, policy in ((0.0, None, None), (64.0, None, "PASSIVE"), (64.0, "ACTIVE", "ACTIVE")):
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load * (os.cpu_count() or 1), 0.0, 0.0))
        monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
        if before:
            monkeypatch.setenv("OMP_WAIT_POLICY", before)
        spare_busy_cores()
        assert os.environ.get("OMP_WAIT_POLICY") == policy
    monkeypatch.delenv("OMP_WAIT_POLICY")


def test_second_shrink_is_refused(tmp_path: Path) -> None:
    folder = ShrinkFolder(tmp_path / "out", {})
    with (
        folder.lock(),
        pytest.raises(DirectoryError, match="another shrink"),
        ShrinkFolder(tmp_path / "out", {}).lock(),
    ):
        pass
    with ShrinkFolder(tmp_path / "out", {}).lock():
        pass


def test_pipe_hears_of_long_steps(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Also of a step that does not advance."""
    monkeypatch.setattr(terminal, "SECONDS", 0.05)
    with terminal.progress("fitting a block", None):
        time.sleep(0.3)
    with terminal.progress("trials", 9) as advance:
        advance(4)
        time.sleep(0.3)
    lines = capsys.readouterr().err.splitlines()
    assert lines.count("fitting a block: 0 s") >= 2
    assert "trials: 4 of 9" in lines


class Constant(torch.nn.Module):
    """Embeds sentence i as a row of a table, which its ids name."""

    def __init__(self, table: torch.Tensor) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(table)

    def forward(self, input_ids: torch.Tensor, **_: Any) -> Any:
        return SimpleNamespace(last_hidden_state=self.table[input_ids])


class Rows:
    def __init__(self, embeddings: torch.Tensor) -> None:
        self.embeddings = embeddings

    def __len__(self) -> int:
        return len(self.embeddings)

    def batch(self, indices: np.ndarray) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        return {"input_ids": torch.from_numpy(indices)[:, None]}, self.embeddings[indices]


def test_neighbours_equal_brute_force() -> None:
    """All stay for the teacher itself; of a noisy copy as many as counting one by one in the same crowd says."""
    torch.manual_seed(0)
    teacher, crowd = (torch.nn.functional.normalize(torch.randn(count, 6), dim=-1) for count in (40, 90))
    assert compare_embeddings(Constant(2 * teacher), Rows(teacher), ["mean"], crowd)[1] == 1.0
    student = torch.nn.functional.normalize(teacher + 0.3 * torch.randn(40, 6), dim=-1)
    kept = 0
    for i in range(40):
        sets = []
        for table in (student, teacher):
            others = sorted(range(90), key=lambda j: -float(table[i] @ crowd[j]))
            sets.append(set(others[:10]))
        kept += len(sets[0] & sets[1])
    cosine, share = compare_embeddings(Constant(student), Rows(teacher), ["mean"], crowd)
    assert share == pytest.approx(kept / 400)
    assert cosine == pytest.approx(float(torch.cosine_similarity(student, teacher).mean()))
    # in a crowd of 49, a fifth of the neighbours would stay by chance
    assert compare_embeddings(Constant(student), Rows(teacher), ["mean"], crowd[:49])[1] is None
    assert compare_embeddings(Constant(student), Rows(teacher), ["mean"], crowd[:50])[1] is not None


def test_plain_shapes_open_anywhere(here: Path) -> None:
    """Every plain candidate is one that transformers builds by itself; others are announced before the work."""
    source, original = str(here / "old"), prepared(here)
    several = candidates(Prices(original, Options(target_params=0.7)), kind="plain")
    assert several
    for one in several:
        assert one.shape is not None
        assert describe(leanify.write(leanify.load(source), one.shape)).architecture is None


@pytest.mark.parametrize(
    ("setting", "words"), [("schedule.steps=2", "2 steps are too few"), ("data.samples=3", "3 samples are too few")]
)
def test_too_few_steps_are_no_lack_of_minutes(
    setting: str, words: str, here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line names what is short; 30 minutes would not help."""
    settings = [setting, "schedule.batch_size=32"]
    leanify.shrink(here / "old", here / "reviews", 0.8, 30, tmp_path / "out", settings=settings, designs=["narrow"])
    printed = " ".join(capsys.readouterr().err.split())
    assert words in printed
    assert "leaves no time" not in printed


def test_one_sample_is_too_few(here: Path, tmp_path: Path) -> None:
    with pytest.raises(LeanifyError, match="one sample is left to train on"):
        leanify.shrink(here / "old", here / "reviews", 0.8, 0, tmp_path / "out", settings=["data.samples=1"])
