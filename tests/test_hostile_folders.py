"""A folder that somebody hands over, in which one stands: its modules, its .git, its names, its links, its sizes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from fuzz_intact import HF, RECIPE, TIMM
from PIL import Image
from runs import git, make_pictures
from studies import two_designs

import leanify
from leanify.comparison import runner
from leanify.comparison.folder import Outcome, StudyFolder
from leanify.comparison.plan import Key
from leanify.core import machine
from leanify.core import recipe as recipes
from leanify.core.errors import DataError, DirectoryError, LeanifyError
from leanify.core.files import cache
from leanify.core.recipe import DataSection
from leanify.data import fingerprint
from leanify.data.images import folder as image_folder
from leanify.data.texts import tokenizers
from leanify.runs import checkpoints
from leanify.runs.run_directory import RunDirectory
from leanify.sources import tensors

RAN = "RAN"  # the file that appears where code ran


@pytest.fixture
def study(tmp_path: Path) -> StudyFolder:
    """A study of two designs that nobody has run."""
    return StudyFolder.create(tmp_path / "study", two_designs(recipes.parse(RECIPE)))


# -- code -------------------------------------------------------------------------------------------------------------


def test_study_imports_nothing_local(study: StudyFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("leanify", "torch", "json"):
        (tmp_path / f"{module}.py").write_text(f"import os\nos.mkdir({RAN!r})\n")
    monkeypatch.chdir(tmp_path)
    with runner.Local(study, 1) as engine:
        job = engine.submit(runner.execute, str(study.path), "baseline", 0, None)
        while not job.done():
            time.sleep(0.02)
    assert not (tmp_path / RAN).exists()
    assert study.outcome(Key("baseline", 0)).status == "finished"  # type: ignore[union-attr]


def test_repository_programs_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A monitor of files, filters by whatever name, a hook: `git status` alone runs all of them."""
    monkeypatch.chdir(tmp_path)
    program = tmp_path / "program"
    program.write_text(f'#!/bin/sh\nmkdir -p "{tmp_path / RAN}/$1"\ncat\n')
    program.chmod(0o755)
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
        ("designs.lean", 'designs.".."'),
        ("    1,\n", '    "1/../../outside",\n'),
    ],
)
def test_plan_names_only_own_folders(study: StudyFolder, old: str, new: str) -> None:
    file = study.path / "study.toml"
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(DirectoryError, match=r"study's plan: .*(cannot name a folder|a list of numbers)"):
        _ = study.plan


def test_outcome_names_only_own_run(study: StudyFolder, tmp_path: Path) -> None:
    """Failed runs are removed before they start again."""
    (tmp_path / "outside-0").mkdir()
    key = Key("lean", 0)
    written = Outcome("../../outside", 0, study.plan.fingerprint(key), "failed")
    (study.path / "runs" / f"{key}.json").write_text(json.dumps(asdict(written)))
    with pytest.raises(DirectoryError, match=r"is damaged: it is the outcome of \.\./\.\./outside-0"):
        study.forget_failures()
    assert (tmp_path / "outside-0").exists()


# -- links ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    return make_pictures(tmp_path / "data", train=1, validation=1)


def doubled(place: Path) -> None:
    """No loop, but 2³⁰ ways to the last."""
    for number in range(30):
        (place / f"{number + 1}").mkdir()
        for name in "xy":
            (place / str(number) if number else place).joinpath(name).symlink_to(place / str(number + 1))


@pytest.mark.parametrize("make", [lambda place: (place / "up").symlink_to(".."), doubled], ids=["loop", "doubled"])
def test_circular_links_are_named(pictures: Path, make: Callable[[Path], None]) -> None:
    """The reader of images follows them: with one, every image is there forty times; with two it never ends."""
    data = DataSection("x", "classification", str(pictures))
    (pictures / "elsewhere").mkdir()
    Image.new("L", (8, 8)).save(pictures / "elsewhere" / "1.png")
    (pictures / "train" / "c").symlink_to(pictures / "elsewhere")
    readers, *_ = image_folder.read(data)
    assert len(readers[0]) == 3  # a link that leads elsewhere is followed

    make(pictures / "train" / "a")
    splits: Any = type("Splits", (), {"train": range(3), "validation": range(3)})
    for recognise in (lambda: image_folder.read(data), lambda: fingerprint.take_fingerprint(data, splits)):
        with pytest.raises(DataError, match=r"train/[ab]/.* is a link that leads to .* again; remove it"):
            recognise()


def test_copying_follows_no_links(tmp_path: Path) -> None:
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


def test_large_files_are_not_read(tmp_path: Path) -> None:
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
        tokenizers.load(tmp_path)


def test_foreign_cache_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a home the cache lies among everybody's temporary files, where its name can be guessed."""
    monkeypatch.setattr(cache.tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", classmethod(lambda cls: (_ for _ in ()).throw(RuntimeError)))
    guessed = tmp_path / f"leanify-{os.getuid()}"

    def homes() -> tuple[Path, Path]:
        cache._private_folder.cache_clear()
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
    cache._private_folder.cache_clear()
