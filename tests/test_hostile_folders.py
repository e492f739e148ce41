"""A folder that somebody hands over, in which one stands: its modules, its .git, its names, its links, its sizes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fuzz_intact import HF, RECIPE, TIMM
from PIL import Image

import leanify
from leanify import machine
from leanify.data import fingerprint, found
from leanify.data.faults import Faults
from leanify.data.images import folder as image_folder
from leanify.data.tables import rows as tables
from leanify.data.texts import vocabulary
from leanify.errors import DataError, DirectoryError, LeanifyError
from leanify.runs import cache, checkpoints
from leanify.runs import recipe as recipes
from leanify.runs.recipe import DataSection
from leanify.runs.run_directory import RunDirectory
from leanify.sources import tensors
from leanify.study.folder import Outcome, StudyFolder
from leanify.study.plan import Key, PlannedDesign, StudyPlan
from leanify.study.runner import Worker

RAN = "RAN"  # the file that appears where code ran


@pytest.fixture
def study(tmp_path: Path) -> StudyFolder:
    """A study of two designs that nobody has run."""
    recipe = recipes.parse(RECIPE)
    designs = tuple(PlannedDesign(name, recipe.model, 2, 2, 4, 32, 1000, 1000) for name in ("baseline", "lean"))
    return StudyFolder.create(tmp_path / "study", StudyPlan("x", recipe, None, (0, 1), designs, 1))


# -- code -------------------------------------------------------------------------------------------------------------


def test_a_study_imports_no_module_of_the_folder_it_is_run_in(
    study: StudyFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("leanify", "torch", "json"):
        (tmp_path / f"{module}.py").write_text(f"import os\nos.mkdir({RAN!r})\n")
    monkeypatch.chdir(tmp_path)
    worker = Worker(study)
    worker.close()
    assert not (tmp_path / RAN).exists()
    assert worker.process.returncode == 0


def test_no_program_that_a_repository_names_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A monitor of files, filters by whatever name, a hook: `git status` alone runs all of them."""
    monkeypatch.chdir(tmp_path)
    program = tmp_path / "program"
    program.write_text(f'#!/bin/sh\nmkdir -p "{tmp_path / RAN}/$1"\ncat\n')
    program.chmod(0o755)

    def git(*arguments: str) -> None:
        subprocess.run(["git", "-c", "user.name=x", "-c", "user.email=x", *arguments], check=True, capture_output=True)

    git("init")
    (tmp_path / "a.txt").write_text("one")
    git("add", "a.txt")
    git("commit", "-m", "x")
    (tmp_path / ".gitattributes").write_text("*.txt filter=a=b\n")
    for key, name in (("core.fsmonitor", "monitor"), ("filter.a=b.clean", "filter")):
        git("config", key, f"{program} {name}")
    hook = tmp_path / ".git" / "hooks" / "post-index-change"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f'#!/bin/sh\nexec "{program}" hook\n')
    hook.chmod(0o755)

    (tmp_path / "a.txt").write_text("two")
    found: Any = machine.environment()["git"]
    assert found["changed"] is True
    assert not (tmp_path / RAN).exists()
    subprocess.run(["git", "status"], capture_output=True)
    assert {"monitor", "filter"} <= {path.name for path in (tmp_path / RAN).iterdir()}


# -- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("designs.lean", 'designs."../../outside"'),
        ("designs.lean", 'designs."/outside"'),
        ("designs.lean", 'designs.".."'),
        ("seeds = [0, 1]", 'seeds = [0, "1/../../outside"]'),
    ],
)
def test_a_plan_names_no_folder_outside_its_study(study: StudyFolder, old: str, new: str) -> None:
    file = study.path / "study.toml"
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(DirectoryError, match=r"is not a study's plan: .*(cannot name a folder|is not an integer)"):
        _ = study.plan


def test_an_outcome_names_no_run_but_its_own(study: StudyFolder, tmp_path: Path) -> None:
    """Failed runs are removed before they start again."""
    (tmp_path / "outside-0").mkdir()
    key = Key("lean", 0)
    written = Outcome("../../outside", 0, study.plan.fingerprint(key), "failed").to_json()
    (study.path / "runs" / f"{key}.json").write_text(json.dumps(written))
    with pytest.raises(DirectoryError, match=r"is damaged: it is the outcome of \.\./\.\./outside-0"):
        study.forget_failures()
    assert (tmp_path / "outside-0").exists()


# -- links ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    for split in ("train", "validation"):
        for kind in "ab":
            (tmp_path / "data" / split / kind).mkdir(parents=True)
            Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / "data" / split / kind / "0.png")
    return tmp_path / "data"


def one_loop(place: Path) -> None:
    (place / "up").symlink_to("..")


def two_loops(place: Path) -> None:
    for name in "12":
        (place / name).symlink_to("../..")


def each_to_the_other(place: Path) -> None:
    (place / "b").symlink_to("../b")
    (place.parent / "b" / "a").symlink_to("../a")


def doubled(place: Path) -> None:
    """No loop, but 2³⁰ ways to the last."""
    for number in range(30):
        (place / f"{number + 1}").mkdir()
        for name in "xy":
            (place / str(number) if number else place).joinpath(name).symlink_to(place / str(number + 1))


@pytest.mark.parametrize("make", [one_loop, two_loops, each_to_the_other, doubled])
def test_links_that_lead_back_are_named(pictures: Path, make: Callable[[Path], None]) -> None:
    """The reader of images follows them: with one, every image is there forty times; with two it never ends."""
    data = DataSection("x", "classification", str(pictures))
    (pictures / "elsewhere").mkdir()
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(pictures / "elsewhere" / "1.png")
    (pictures / "train" / "c").symlink_to(pictures / "elsewhere")
    readers, *_ = image_folder.read(data)
    assert len(readers[0]) == 3  # a link that leads elsewhere is followed

    make(pictures / "train" / "a")
    splits: Any = type("Splits", (), {"train": range(3), "validation": range(3)})
    for recognise in (lambda: image_folder.read(data), lambda: fingerprint.taken(data, splits)):
        with pytest.raises(DataError, match=r"train/[ab]/.* is a link that leads to .* again; remove it"):
            recognise()


def test_folders_a_thousand_levels_deep_are_looked_through(pictures: Path) -> None:
    place = pictures / "train" / "a"
    try:
        for _ in range(1100):
            place /= "d"
            place.mkdir()
        shutil.copy(pictures / "train" / "a" / "0.png", place)
        looked = found.recognise(pictures)
        assert looked is not None
        assert (looked.classes, looked.samples) == (2, 3)
    finally:  # Python 3.11's own removal recurses
        subprocess.run(["rm", "-rf", str(pictures / "train" / "a" / "d")], check=True)


def test_what_lies_beside_a_model_is_copied_without_what_its_links_lead_to(tmp_path: Path) -> None:
    model: Any = leanify.load("bert", overrides=HF["bert"])
    folder = tmp_path / "bert"
    model.save_pretrained(folder)
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "large").write_text("x")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "one.jinja").write_text("{{ x }}")
    for place, target in (
        (folder / "tokenizer_disk", tmp_path / "disk"),
        (folder / "tokenizer_loop", folder),
        (folder / "additional_chat_templates" / "loop", folder),
        (folder / "additional_chat_templates" / "gone", tmp_path / "nowhere"),
    ):
        place.symlink_to(target)
    saved = leanify.save(leanify.load(folder), tmp_path / "lean")
    kept = sorted(path.relative_to(saved).as_posix() for path in saved.rglob("*") if path.parent != saved)
    assert kept == ["additional_chat_templates/one.jinja"]
    assert not (saved / "tokenizer_disk").exists()


# -- sizes ------------------------------------------------------------------------------------------------------------


def sparse(file: Path) -> None:
    """A file of thirty gigabytes that takes no room."""
    file.unlink(missing_ok=True)
    file.touch()
    os.truncate(file, 30 << 30)


def test_files_that_should_be_small_are_not_read_when_they_are_large(tmp_path: Path) -> None:
    run = leanify.train(recipes.parse(RECIPE), tmp_path / "run")
    lean = leanify.save(leanify.load("vit_tiny_patch16_224", overrides=TIMM), tmp_path / "lean")
    sparse(lean / "leanify.json")
    assert tensors.read_tensors(lean / "model.safetensors")  # the card that would have its checksum is no card
    with pytest.raises(LeanifyError, match=r"leanify\.json has 30,720 MB"):
        leanify.load(lean / "model.safetensors")

    for name in ("environment.json", "data.json", "leanify.json"):
        sparse(run / name)
    assert (RunDirectory.open(run).data(), RunDirectory.open(run).card()) == ({}, {})
    for folder in (run / "checkpoints").iterdir():
        sparse(folder / checkpoints.CARD)
        assert checkpoints.Checkpoint.read(folder) is None
    sparse(run / "metrics.jsonl")
    with pytest.raises(DirectoryError, match=r"metrics\.jsonl has 30,720 MB"):
        RunDirectory.open(run).rows()

    shutil.copy(lean / "config.json", tmp_path / "config.json")
    sparse(tmp_path / "tokenizer.json")
    with pytest.raises(DataError, match=r"tokenizer\.json has 30,720 MB"):
        vocabulary.load(tmp_path)


@pytest.mark.parametrize("number", ["1" + "0" * 400, "9" * 5000])
def test_numbers_beyond_all_bounds_in_a_folder_are_damage(study: StudyFolder, tmp_path: Path, number: str) -> None:
    key = Key("lean", 0)
    written = json.dumps(Outcome("lean", 0, "x", "finished", quality=0.5, kappas=((1, 77.0),)).to_json())
    (study.path / "runs" / f"{key}.json").write_text(written.replace("77.0", number))
    with pytest.raises(DirectoryError, match=r"lean-0\.json is damaged"):
        study.outcome(key)
    card = {"step": 2, "rows": 10, "score": None, "metrics": {"loss": 1}, "sums": {}}
    (tmp_path / checkpoints.CARD).write_text(json.dumps(card).replace('"loss": 1', f'"loss": {number}'))
    assert checkpoints.Checkpoint.read(tmp_path) is None


def test_a_table_of_very_many_columns_is_read(tmp_path: Path) -> None:
    """In time that grows with their number, not with its square: a million took hours."""
    names = [f"c{number}" for number in range(300_000)]
    (tmp_path / "a.csv").write_text(",".join(names) + "\n" + ",".join(names) + "\n")
    [(_, row)] = tables.rows_of_table(tmp_path / "a.csv", Faults())
    assert row == dict(zip(names, names, strict=True))


def test_a_cache_that_somebody_else_made_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a home the cache lies among everybody's temporary files, where its name can be guessed."""
    monkeypatch.setattr(cache.tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", classmethod(lambda cls: (_ for _ in ()).throw(RuntimeError)))
    guessed = tmp_path / f"leanify-{os.getuid()}"

    def homes() -> tuple[Path, Path]:
        cache._of_user.cache_clear()
        return cache.home(), cache.home()

    assert homes() == (guessed, guessed)
    guessed.chmod(0o777)
    other, again = homes()
    assert other == again != guessed
    guessed.rmdir()
    (tmp_path / "planted").mkdir(mode=0o700)
    guessed.symlink_to(tmp_path / "planted")
    assert guessed not in homes()
    guessed.unlink()
    guessed.mkdir(mode=0o700)
    if os.getuid() == 0:
        os.chown(guessed, 12345, 12345)
        assert guessed not in homes()
    cache._of_user.cache_clear()
