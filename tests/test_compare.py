"""``compare``: what is planned, what is run, what is known of it afterwards."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import typed
from runs import make_pictures
from studies import NARROW, RECIPE, command, environment, outcomes, recipe_file, run, start_counts

import leanify
from leanify.cli.study_tables import longer_study
from leanify.comparison import comparing as studies
from leanify.comparison import rates, runner
from leanify.comparison.designs import Designer, parse_shape, parse_sweep, split_names
from leanify.comparison.folder import Outcome, StudyFolder
from leanify.comparison.plan import Key, PlannedDesign, StudyPlan, rank_designs
from leanify.comparison.results import read_study
from leanify.core import recipe as recipes
from leanify.core.errors import DirectoryError, LeanifyError, RecipeError, ShapeError
from leanify.core.recipe import ModelSection
from leanify.profiling import counting, measuring
from leanify.reshaping import surgery
from leanify.runs.run_directory import RunDirectory
from leanify.training.preparation import model_on_meta

TINY = recipes.parse(RECIPE)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A study that was run by the command, and the object that it printed."""
    folder = tmp_path_factory.mktemp("study")
    done = run(
        str(recipe_file(folder)), "-o", str(folder / "s"), "--designs", f"baseline,{NARROW}", "--seeds", "2",
        "--rates", "1,2", "--jobs", "1", "--set", "schedule.epochs=2", "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder / "s", json.loads(done.stdout)


def test_expensive_costs_get_fewer_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def timed(name: str) -> float:
        calls.append(name)
        return float(len(calls))

    work = {name: [lambda name=name: timed(name)] * 3 for name in "ab"}
    measuring.time_rounds(work)
    assert (len(calls), calls[:4]) == (2 * 3 * 7, ["a", "b", "a", "b"])
    calls.clear()
    monkeypatch.setattr(measuring, "MAX_SECONDS", -1)
    found = measuring.time_rounds(work)
    assert [[time.median for time in times] for times in found.values()] == [[7, 9, 11], [8, 10, 12]]
    assert [(time.low, time.high) for time in found["a"]] == [(4, 10), (6, 12), (8, 14)]
    assert len(calls) == 2 * 3 * 3


def test_waiting_threads_sleep(tmp_path: Path) -> None:
    """Where other processes use the cores, threads that spin take ten times as long; torch reads it when imported."""
    (tmp_path / "torch.py").write_text("import os\nprint(os.environ['OMP_WAIT_POLICY'], flush=True)\nos._exit(0)\n")
    told = subprocess.run(
        [*command("--dry-run")], cwd=tmp_path, text=True, capture_output=True,
        env={**environment(), "PYTHONPATH": f"{tmp_path}{os.pathsep}{Path.cwd()}"},
    )  # fmt: skip
    assert told.stdout == "PASSIVE\n", told.stderr


# -- what is planned --------------------------------------------------------------------------------------------------


def test_designs_parse_as_typed() -> None:
    assert split_names(["baseline,a=depth:4,heads:8,b=mlp:64", "front:3"]) == [
        "baseline", "a=depth:4,heads:8", "b=mlp:64", "front:3",
    ]  # fmt: skip
    assert parse_shape("a=depth:4/2,heads:8") == ("a", {"depth": [4, 2], "heads": 8})
    assert parse_sweep(["heads=2,4", "depth=8"]) == {"heads": [2, 4], "depth": [8]}
    for text in ("a=width:4", "a=depth:four", "a=depth:0"):
        with pytest.raises(ShapeError):
            parse_shape(text)
    with pytest.raises(ShapeError, match="heads=2,4,8"):
        parse_sweep(["width=3"])


def test_design_costs_match_models() -> None:
    """Prices, shapes and the recipe's [model] say the same model, for every kind of design."""
    names = ["baseline", "lean", "depth-only", "mlp-only", "wide-heads", NARROW]
    designs = Designer(recipes.load("digits-study"), "0.65").all(names, {"heads": [3]})
    assert [design.name for design in designs] == ["baseline", "lean", *names[2:5], "narrow", "heads3"]
    for design in designs:
        model = model_on_meta(design.model)
        [stage] = surgery.read(model).stages
        assert (stage.depth, stage.primary.heads, stage.primary.head_dim, stage.primary.mlp) == (
            design.depth, design.heads, design.head_dim, design.mlp,
        )  # fmt: skip
        assert sum(p.numel() for p in model.parameters()) == design.params
        assert counting.count(model, None).macs == design.macs
    assert sorted(design.rank for design in designs) == list(range(1, 8))
    base, lean, depth, mlp, wide, *_ = designs
    assert max(lean.params, depth.params, mlp.params) <= 0.65 * base.params
    assert (depth.heads, depth.mlp) == (base.heads, base.mlp)
    assert (mlp.depth, mlp.heads) == (base.depth, base.heads)
    assert (wide.inner, wide.heads, wide.params) == (lean.inner, base.heads, lean.params)


def test_longer_study_is_the_same_study(study: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The line that is proposed where models have not learnt: the recipe of a run, with more steps."""
    folder, _ = study
    old = read_study(StudyFolder(folder))
    command = longer_study(old, folder, 480)
    assert command[:2] == ["leanify", "compare"]
    assert command[3:5] == ["-o", f"{folder}-480-steps"]
    seen: list[StudyPlan] = []
    monkeypatch.setattr(
        "leanify.comparison.duration.forecast", lambda plan, timings, jobs: seen.append(plan) or {"designs": []}
    )
    assert typed(shlex.join([*command[1:], "--dry-run", "--json"])) == 0
    [new] = seen
    assert new.recipe.schedule.steps == 480
    assert new.recipe.data == old.plan.recipe.data
    for design in new.designs:
        before = old.plan.design(design.name)
        assert (design.model, design.params, design.macs) == (before.model, before.params, before.macs)
    assert (new.seeds, new.rates, new.budget) == (old.plan.seeds, old.plan.rates, old.plan.budget)


def test_study_on_pictures_ends(tmp_path: Path) -> None:
    """Runs whose data are read by processes of their own: neither the readers nor the runs hold up the study."""
    make_pictures(tmp_path, ("cats", "dogs"), pets=20)
    settings = ("schedule.steps=1", "model.depth=2", "run.eval_every=1")
    made = leanify.compare(
        tmp_path / "pets", tmp_path / "s", designs=("baseline",), seeds=2, rates=(1.0,), settings=settings,
        measure=False,
    )  # fmt: skip
    assert [run.status for run in made.results[0].runs] == ["finished", "finished"]


def plan(*designs: str, seeds: tuple[int, ...] = (0, 1)) -> StudyPlan:
    made = []
    for i, name in enumerate(designs):
        model = replace(TINY.model, depth=i + 1)
        made.append(PlannedDesign(name, model, i + 1, 2, 8, 64, 1000 * (i + 1), 5000, 0, 3.0 - i))
    return StudyPlan("tiny", TINY, "0.5", seeds, rank_designs(tuple(made)), 1)


def test_plan_round_trips(tmp_path: Path) -> None:
    written = replace(plan("baseline", "lean", "front-1"), margin=0.5)
    (tmp_path / "study.toml").write_text(written.to_toml())
    assert StudyPlan.read(tmp_path / "study.toml") == written


def test_plan_only_grows() -> None:
    old = plan("baseline", "lean")
    grown = old.merge(plan("baseline", "lean", "control", seeds=(0, 1, 2)))
    assert [design.name for design in grown.designs] == ["baseline", "lean", "control"]
    assert [design.rank for design in grown.designs] == [3, 2, 1]
    assert grown.seeds == (0, 1, 2)
    other = replace(old, recipe=recipes.apply_settings(TINY, ["optim.lr=1"]))
    with pytest.raises(RecipeError, match=r"optim\.lr: 0\.003 → 1\.0.* -o"):
        old.merge(other)
    with pytest.raises(RecipeError, match="the shape of 'lean'"):
        old.merge(plan("lean"))


def test_fingerprint_covers_run_settings() -> None:
    old = plan("baseline", "lean")
    prints = {old.fingerprint(key) for key in old.runs()}
    assert len(prints) == 4
    again = replace(old, title="other", margin=3.0, threads=4, seeds=(1, 0))
    assert {again.fingerprint(key) for key in again.runs()} == prints
    longer = replace(old, recipe=recipes.apply_settings(TINY, ["schedule.epochs=5"]))
    assert not prints & {longer.fingerprint(key) for key in longer.runs()}


# -- bad input --------------------------------------------------------------------------------------------------------


def test_design_task_must_match(tmp_path: Path) -> None:
    leanify.save(leanify.load("deit_tiny_patch16_224", overrides={"depth": 1, "img_size": 32}), tmp_path / "other")
    with pytest.raises(LeanifyError, match="recipe") as caught:
        Designer(TINY, "0.5").all([str(tmp_path / "other")], {})
    assert "(1, 1000)" in str(caught.value)
    assert "(1, 10)" in str(caught.value)


def test_lean_directory_is_a_design(tmp_path: Path) -> None:
    """Its shape is taken, for the recipe's classes and inputs; every seed draws its weights anew."""
    source = leanify.load("vit_tiny_patch16_224", overrides={**TINY.model.override, "num_classes": 7, "img_size": 64})
    leanify.save(leanify.write(source, leanify.read(source).grown(heads=3)), tmp_path / "more")
    [design] = Designer(TINY, "0.5").all([str(tmp_path / "more")], {})
    assert (design.name, design.heads, design.model.source, design.model.heads) == ("more", 3, TINY.model.source, 3)
    [written] = Designer(TINY, "0.5").all(["same=heads:3"], {})
    assert design.predicted == pytest.approx(written.predicted)
    assert (design.params, design.macs) == (written.params, written.macs)
    assert design.predicted != pytest.approx(Designer(TINY, "0.5").all(["baseline"], {})[0].predicted)


def test_missing_engine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("submitit", reason="an extra: pip install submitit")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(LeanifyError, match="Slurm is not available"):
        runner.check_engine("slurm")
    with pytest.raises(LeanifyError, match="local, slurm, ray"):
        runner.check_engine("pbs")


def test_refused_jobs_leave_no_folder(tmp_path: Path) -> None:
    """Of too many, the message names the number that fits into memory."""
    for jobs, words in ((100_000, r"jobs=100000 .* GiB .*jobs=\d+"), (0, "must be at least 1")):
        with pytest.raises(RecipeError, match=words):
            leanify.compare(recipe_file(tmp_path), tmp_path / "study", designs=["baseline"], jobs=jobs)
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize("text", ["", "fast", "0,1", "-1", "nan", "inf", "0.5;2"])
def test_invalid_rates_are_refused(text: str) -> None:
    with pytest.raises(RecipeError, match=r"--rates takes multiples .* such as 0\.5,1,2"):
        rates.parse(text)


def test_rate_trials_are_shorter() -> None:
    """A rate applies to the runs, and the trials that choose it are shorter than they."""
    base = replace(plan("baseline", "lean"), rates=(0.5, 1.0, 2.0))
    optim, schedule = base.recipe.optim, base.recipe.schedule
    assert [str(key) for key in base.trials()][:3] == ["baseline-0-rate0.5", "baseline-0-rate1", "baseline-0-rate2"]
    trial = base.run_recipe(Key("lean", 0, 2.0))
    assert (trial.optim.lr, trial.schedule.epochs) == (2 * optim.lr, schedule.epochs / 2)  # type: ignore[union-attr,operator]
    known = replace(base, designs=tuple(replace(design, rate=0.5) for design in base.designs))
    assert list(known.trials()) == []
    assert known.run_recipe(Key("lean", 1)).optim.lr == optim.lr / 2  # type: ignore[union-attr]
    assert replace(base, rates=(2.0,)).run_recipe(Key("lean", 1)).optim.lr == 2 * optim.lr  # type: ignore[union-attr]
    with pytest.raises(RecipeError, match=r"rates: 0\.5,1,2 → 1"):
        base.merge(replace(base, rates=(1.0,)))


# -- what is run ------------------------------------------------------------------------------------------------------


def test_study_object_matches_interface(study: tuple[Path, Any]) -> None:
    path, found = study
    assert {"study", "task", "metric", "margin", "designs", "pairs", "verdicts"} <= set(found)
    assert (found["study"], found["task"], found["metric"]) == (str(path), "classification", "top1")
    baseline = next(design for design in found["designs"] if design["name"] == "baseline")
    assert found["margin"] == pytest.approx(0.05 * (100 - baseline["quality"]["mean"]))
    assert found["evaluated"] == 80
    for design in found["designs"]:
        assert {"name", "depth", "heads", "head_dim", "mlp", "params", "macs", "rank", "predicted"} <= set(design)
        assert {"latency_s", "throughput_per_s", "train_peak_bytes", "kappa", "kappa_begin"} <= set(design)
        low, high = design["kappa_bounds"]
        assert low <= design["kappa"] <= float(high)
        quality = design["quality"]
        assert quality["low"] <= quality["mean"] <= quality["high"]
        assert (quality["seeds"], quality["failed"]) == (2, 0)
        for value, span in (("latency_s", "latency_range"), ("train_per_s", "train_range")):
            low, high = design[span]
            assert low <= design[value] <= high
    [pair] = found["pairs"]
    assert (pair["design"], pair["against"]) == ("narrow", "baseline")
    [verdict] = found["verdicts"]
    assert (verdict["answer"], found["look"]) == ("undecided", 0)  # two seeds
    assert json.loads((path / "results.json").read_text()) == found


def test_study_numbers_match_runs(study: tuple[Path, Any]) -> None:
    """Each design's best rate of its trials, the quality of each run and of its samples, and their mean."""
    path, found = study
    folder = StudyFolder.open(path)
    for design in found["designs"]:
        tried = {trial["factor"]: trial["quality"] for trial in design["rates"]}
        assert list(tried) == [1.0, 2.0]
        best = folder.plan.design(design["name"]).rate
        assert tried[best] == max(tried.values())
        assert design["rate"] == pytest.approx(best * 3e-3)
        for entry in design["runs"]:
            key = Key(design["name"], entry["seed"])
            assert entry["quality"] == RunDirectory.open(path / entry["path"]).rows()[-1]["top1"]
            right = folder.run_samples(key)
            assert set(right) <= {0.0, 100.0}
            assert right.mean() == pytest.approx(entry["quality"])
        assert design["quality"]["mean"] == pytest.approx(sum(run["quality"] for run in design["runs"]) / 2)


def test_study_run_equals_train(study: tuple[Path, Any], tmp_path: Path) -> None:
    """The same recipe, trained by `leanify train`, gives the same rows: nothing of a study changes a run."""
    path, _ = study
    folder = StudyFolder.open(path)
    threads = torch.get_num_threads()
    torch.set_num_threads(folder.plan.threads)
    try:
        leanify.train(folder.plan.run_recipe(Key("narrow", 1)), tmp_path / "alone")
    finally:
        torch.set_num_threads(threads)
    rows = RunDirectory.open(tmp_path / "alone").rows()
    for row in (*rows, *(theirs := folder.rows(Key("narrow", 1)))):
        row.pop("samples_per_s", None)
    assert rows == theirs


@pytest.mark.slow
def test_growing_a_study_reruns_nothing(study: tuple[Path, Any]) -> None:
    path, found = study
    before = outcomes(path)
    shown = run(str(path), "--report", "--json")
    assert json.loads(shown.stdout) == found
    grown = leanify.compare(path, seeds=3, jobs=2, measure=False)
    assert [result.quality.seeds for result in grown.results] == [3, 3]
    assert {name: count for name, count in start_counts(path).items() if name in before} == dict.fromkeys(before, 1)
    assert {name: value for name, value in outcomes(path).items() if name in before} == before
    assert grown.result("narrow").costs is not None
    with pytest.raises(RecipeError, match="another study"):
        leanify.compare(TINY, path, settings=["optim.lr=1"], designs=[])


def test_damaged_file_is_named(study: tuple[Path, Any]) -> None:
    path, _ = study
    whole = (path / "results.json").read_text()
    try:
        (path / "results.json").write_text(whole[: len(whole) // 2])
        done = run(str(path), "--report")
        assert (done.returncode, done.stdout) == (2, "")
        assert "results.json is damaged" in done.stderr
        assert len(done.stderr.splitlines()) == 1
    finally:
        (path / "results.json").write_text(whole)


@pytest.mark.slow
def test_failures_are_reported_and_retried(tmp_path: Path) -> None:
    """A loss that is not finite fails a run; the rest goes on."""
    recipe = recipes.apply_settings(TINY, ["schedule.epochs=1"])
    huge = replace(recipe.model, override={**recipe.model.override, "init_values": 1e38})  # activations overflow
    designs = (_planned("baseline", recipe.model), _planned("broken", huge))
    folder = StudyFolder.create(tmp_path / "s", StudyPlan("tiny", recipe, None, (0, 1), designs, 1))
    with runner.open_engine("local", folder, 1) as engine:
        studies.train_all(folder, engine)
    found = studies.finish_study(folder)
    assert [run.status for run in found.result("broken").runs] == ["failed", "failed"]
    assert "is not finite" in found.result("broken").runs[0].reason
    assert (found.result("broken").quality.failed, found.result("baseline").quality.seeds) == (2, 2)
    assert folder.missing() == []
    folder.forget_failures()
    assert [str(key) for key in folder.missing()] == ["broken-0", "broken-1"]
    assert not (tmp_path / "s" / "runs" / "broken-0").exists()


def _planned(name: str, model: ModelSection) -> PlannedDesign:
    return PlannedDesign(name, model, 4, 2, 8, 64, 1000, 5000)


@pytest.mark.slow
def test_killed_study_resumes_identically(tmp_path: Path) -> None:
    """SIGKILL to the command alone: its workers end with it. No run that has ended is started again."""
    arguments = (str(recipe_file(tmp_path)), "--designs", f"baseline,{NARROW}", "--seeds", "2", "--rates", "1")
    arguments += ("--jobs", "1", "-o")
    whole, target = tmp_path / "whole", tmp_path / "killed"
    process = subprocess.Popen(command(*arguments, str(target)), stderr=-1, text=True, env=environment())
    while not list(target.glob("runs/*.json")):
        time.sleep(0.05)
        assert process.poll() is None
    process.kill()
    process.communicate()
    ended = start_counts(target)
    for study in (target, whole):
        done = run(*arguments, str(study))
        assert done.returncode == 0, done.stderr
    assert start_counts(target).items() >= ended.items()
    assert outcomes(target) == outcomes(whole)


def test_outcomes_must_match_plan(tmp_path: Path) -> None:
    folder = StudyFolder.create(tmp_path / "s", plan("baseline", "lean"))
    folder.record(Outcome("lean", 0, "0123", "finished", quality=1.0))
    with pytest.raises(DirectoryError, match="another plan"):
        folder.outcomes()


SCRIPT = """
import leanify
leanify.compare({recipe!r}, {study!r}, designs=["baseline"], seeds=2, rates=[1], settings=["schedule.epochs=1"],
                measure=False)
print("ran")
"""


@pytest.mark.slow
def test_script_needs_no_main_guard(tmp_path: Path) -> None:
    """A run's process does not execute the main module again."""
    text = SCRIPT.format(recipe=str(recipe_file(tmp_path)), study=str(tmp_path / "s"))
    (tmp_path / "script.py").write_text(text)
    env = {**environment(), "PYTHONPATH": str(Path.cwd())}
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, text=True, capture_output=True, env=env)
    assert (done.returncode, done.stdout) == (0, "ran\n"), done.stderr
    assert StudyFolder.open(tmp_path / "s").missing() == []


@pytest.fixture
def endless(tmp_path: Path) -> StudyFolder:
    """A study of one design whose runs take minutes."""
    recipe = recipes.apply_settings(TINY, ["schedule.epochs=1000", "run.checkpoint_every=100000"])
    designs = (_planned("baseline", recipe.model),)
    return StudyFolder.create(tmp_path / "s", StudyPlan("tiny", recipe, "0.5", (0, 1), designs, 1))


def wait_for_a_step(study: StudyFolder, is_running: Callable[[], bool]) -> None:
    while not study.rows(Key("baseline", 0)):
        time.sleep(0.05)
        assert is_running()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_ended_study_leaves_no_process(number: signal.Signals, endless: StudyFolder) -> None:
    """SIGTERM as Ctrl-C: a checkpoint, the line that resumes, the exit code that shells have."""
    process = subprocess.Popen(command(str(endless.path), "--jobs", "1"), stderr=-1, text=True, env=environment())
    wait_for_a_step(endless, lambda: process.poll() is None)
    process.send_signal(number)
    _, message = process.communicate()
    if number == signal.SIGTERM:
        assert process.returncode == 128 + signal.SIGTERM
        assert f"leanify: interrupted; continue with: leanify compare {endless.path}" in message
        saved = RunDirectory.open(endless.run(Key("baseline", 0))).checkpoints()
        assert saved[-1].step >= endless.rows(Key("baseline", 0))[-1]["step"] > 0
        assert endless.outcomes() == []
    log = endless.run(Key("baseline", 0)) / "metrics.jsonl"
    sizes = [-1]
    while log.stat().st_size != sizes[-1]:
        sizes.append(log.stat().st_size)
        assert len(sizes) < 200, "a run went on after its study had ended"
        time.sleep(0.25)


@pytest.mark.slow
@pytest.mark.parametrize("dies", [True, False])
def test_dead_run_failed_and_cancelled_one_goes_on(dies: bool, endless: StudyFolder) -> None:
    """An interrupted study closes its workers: their runs are killed, and go on another time."""
    with runner.open_engine("local", endless, 1) as engine:
        job = engine.submit(runner.execute, str(endless.path), "baseline", 0, None)
        wait_for_a_step(endless, lambda: not job.done())
        if dies:
            os.kill(engine.running[0].process.pid, signal.SIGKILL)
            while not job.done():
                time.sleep(0.05)
            job.result()
    reasons = [outcome.reason for outcome in endless.outcomes() if outcome.status == "failed"]
    assert reasons == ["killed by SIGKILL, probably because memory ran out"] * dies
    assert (endless.run(Key("baseline", 0)) / "checkpoints").is_dir() or dies
