"""Files that somebody else made: archives, links, pipes, paths and numbers that lead elsewhere or never end."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from dataclasses import replace
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest
import torch
from commands import run_here
from fuzz_intact import HF, RECIPE, InlineEngine
from runs import change_json, make_pictures
from safetensors.torch import load_file, save_file

import leanify
from leanify.cli.output import show
from leanify.comparison.folder import StudyFolder
from leanify.comparison.plan import Key
from leanify.core import recipe as recipes
from leanify.core import strict_toml
from leanify.core.errors import DirectoryError, LeanifyError, RecipeError, SourceError
from leanify.core.files.reading import checksum, resolve_inside
from leanify.runs.run_directory import RunDirectory
from leanify.sources import find, names
from leanify.sources.heads import read_pooling
from leanify.sources.tensors import read_tensors
from leanify.spectra.plots import check_plot
from leanify.training.loop import Trainer

LIMITED = """import resource, torch, leanify
from leanify.core.errors import LeanifyError
size = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + (3 << 30), -1))  # beyond what Python and torch take
try:
{code}
except LeanifyError as error:
    print(f'refused: {{error}}')
"""


def alone(code: str, *arguments: Any, seconds: float = 60) -> str:
    """Run code in a process with little memory and time. Returns what it prints; "hangs" or its signal otherwise."""
    words = [sys.executable, "-c", LIMITED.format(code=indent(code, "    ")), *map(str, arguments)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return "hangs"
    return done.stdout if done.returncode == 0 else f"{done.returncode}: {done.stderr[-500:]}"


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    model: Any = leanify.load("bert", overrides=HF["bert"])
    model.save_pretrained(tmp_path / "bert")
    return tmp_path / "bert"


# -- paths ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../src/1_Pooling", "/tmp", "link"])
def test_modules_name_own_folders_only(bert: Path, tmp_path: Path, name: str) -> None:
    """``../src/1_Pooling`` of a model called src replaced files beside the output."""
    for place in (bert / "1_Pooling", tmp_path / "other", tmp_path / "src"):
        place.mkdir(exist_ok=True)
        (place / "config.json").write_text("{}")
    (bert / "link").symlink_to(tmp_path / "other")
    (bert / "modules.json").write_text(json.dumps([{"path": name}]))
    (tmp_path / "work" / "src" / "1_Pooling").mkdir(parents=True)
    model = leanify.load(bert)
    with pytest.raises(SourceError, match="which leads out of it"):
        leanify.save(model, tmp_path / "work" / "lean")
    assert [path.name for path in (tmp_path / "work").rglob("*")] == ["src", "1_Pooling"]


@pytest.mark.parametrize(
    ("place", "words"),
    [("../other", "outside its folder"), ("a\0b", "cannot be followed"), ("1_Pooling", "does not exist")],
)
def test_pooling_lies_in_own_folder(tmp_path: Path, place: str, words: str) -> None:
    (tmp_path / "modules.json").write_text(json.dumps([{"type": "models.Pooling", "path": place}]))
    with pytest.raises(SourceError, match=words):
        read_pooling(tmp_path)


def test_way_back_is_no_way_out(tmp_path: Path) -> None:
    (tmp_path / "1_Pooling").mkdir()
    with pytest.raises(SourceError, match=r"names '1_Pooling/\.\./1_Pooling'; write '1_Pooling', without"):
        resolve_inside(tmp_path, "1_Pooling/../1_Pooling")


def test_links_copy_no_private_files(bert: Path, tmp_path: Path) -> None:
    (tmp_path / "private").write_text("secret")
    (bert / "tokenizer_notes.txt").symlink_to(tmp_path / "private")
    with pytest.raises(SourceError, match=r"tokenizer_notes.txt is a link to .*private, outside the model's folder"):
        leanify.save(leanify.load(bert), tmp_path / "lean")
    (bert / "tokenizer_notes.txt").unlink()
    (bert / "vocab.txt").write_text("here")
    (bert / "tokenizer_notes.txt").symlink_to("vocab.txt")
    saved = leanify.save(leanify.load(bert), tmp_path / "lean")
    assert (saved / "tokenizer_notes.txt").read_text() == "here"


def test_copies_hold_what_files_hold(bert: Path, tmp_path: Path) -> None:
    """A sparse file of 30 GB, and a hundred names of one file, take no more room than they do at the source."""
    with (bert / "tokenizer.huge").open("wb") as file:
        file.truncate(30 << 30)
        file.seek(1 << 30)
        file.write(b"here")
    (bert / "vocab.0").write_bytes(b"x" * 100_000)
    for number in range(1, 100):
        (bert / f"vocab.{number}").symlink_to("vocab.0")
    saved = leanify.save(leanify.load(bert), tmp_path / "lean")
    assert sum(about.st_blocks for about in {path.stat() for path in saved.iterdir()}) < 2_000  # of 512 bytes
    assert (saved / "tokenizer.huge").stat().st_size == 30 << 30
    with (saved / "tokenizer.huge").open("rb") as file:
        file.seek(1 << 30)
        assert file.read(5) == b"here\0"
    assert (saved / "vocab.99").read_bytes() == b"x" * 100_000


def test_hub_cache_links_are_copied(bert: Path, tmp_path: Path) -> None:
    snapshot, blobs = tmp_path / "repo" / "snapshots" / "abc", tmp_path / "repo" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    (bert / "vocab.txt").write_text("here")
    for path in bert.iterdir():
        path.rename(blobs / path.name)
        (snapshot / path.name).symlink_to(f"../../blobs/{path.name}")
    saved = leanify.save(leanify.load(snapshot), tmp_path / "lean")
    assert (saved / "vocab.txt").read_text() == "here"


@pytest.mark.parametrize("name", ["/dev/zero", "../outside.safetensors"])
def test_config_weight_paths_are_refused(bert: Path, name: str) -> None:
    change_json(bert / "config.json", transformers_weights=name)
    with pytest.raises(SourceError, match="names its weights by transformers_weights"):
        leanify.load(bert)


def test_recipe_runs_no_package(tmp_path: Path, monkeypatch: Any) -> None:
    """Looking for ``evil.mod`` imported ``evil`` from the folder that one stood in."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil").mkdir()
    (tmp_path / "evil" / "__init__.py").write_text("import os\nos.mkdir('RAN')\n")
    (tmp_path / "evil" / "mod.py").write_text("import os\nos.mkdir('RAN')\n\ndef make():\n    pass\n")
    (tmp_path / "r.toml").write_text('[model]\nsource = "evil.mod:make"\n')
    with pytest.raises(SourceError, match="was not named here before"):
        leanify.load(tmp_path / "r.toml")
    assert not (tmp_path / "RAN").exists()


# -- bombs and loops --------------------------------------------------------------------------------------------------


def bomb(path: Path, size: int = 3 << 30) -> None:
    """An archive as torch.save writes it, with gigabytes of zeros that weigh megabytes."""
    torch.save({"x": torch.zeros(4)}, path)
    with zipfile.ZipFile(path) as old:
        parts = {name: old.read(name) for name in old.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        for name, data in parts.items():
            if not name.endswith("data/0"):
                new.writestr(name, data)
                continue
            with new.open(name, "w", force_zip64=True) as file:
                for _ in range(size >> 24):
                    file.write(bytes(1 << 24))


def seal(checkpoint: Path, name: str) -> None:
    """Give a file that was changed a sum that fits."""
    card = json.loads((checkpoint / "checkpoint.json").read_text())
    card["sums"][name] = checksum(checkpoint / name, card["sums"][name])
    (checkpoint / "checkpoint.json").write_text(json.dumps(card))


LOAD = "from leanify.sources.tensors import read_tensors\nimport sys\nprint(len(read_tensors(sys.argv[1])))"


def test_archives_match_torchs_rule(tmp_path: Path) -> None:
    """A comment at its end made Python's reader say that it is none, while torch's found the archive."""
    file = tmp_path / "a.bin"
    bomb(file, 1 << 28)
    with file.open("ab") as end:
        end.write(b"A" * 40 + b"PK\x05\x06BBBB")
    with pytest.raises(SourceError, match=r"is no archive as torch\.save writes it"):
        read_tensors(file)
    torch.save({"x": torch.zeros(4)}, file)
    assert len(read_tensors(file)) == 1


def test_training_state_is_no_bomb(run: Path) -> None:
    for folder in (run / "checkpoints").iterdir():
        bomb(folder / "state.pt", 1 << 28)
        seal(folder, "state.pt")
    with pytest.raises(LeanifyError, match=r"state\.pt was not opened: its .* MB unpack to .* MB"):
        leanify.train(recipes.load(run / "recipe.toml"), resume=run)


def test_self_containing_dict_is_refused(tmp_path: Path) -> None:
    loop: dict[str, Any] = {"epoch": 3}
    loop["model"] = loop
    torch.save(loop, tmp_path / "a.bin")
    assert "refused: " in alone(LOAD, tmp_path / "a.bin", seconds=300)


def entry(name: str, size: int, content: bytes = b"") -> bytes:
    header = tarfile.TarInfo(name)
    header.size = max(size, 0)
    data = header.tobuf(tarfile.GNU_FORMAT)
    if size < 0:  # base 256, as GNU tar writes numbers that do not fit
        data = data[:124] + size.to_bytes(12, "big", signed=True) + data[136:]
        field = sum(data[:148]) + 8 * 32 + sum(data[156:])
        data = data[:148] + b"%06o\0 " % field + data[156:]
    return data + content + bytes(-len(content) % 512)


READ = """import sys
from pathlib import Path
from leanify.layouts import tar_shards
from leanify.layouts.faults import Faults
print(len(tar_shards.read([Path(sys.argv[1])], Faults(skip=True))[1]))"""


def test_negative_member_size_is_refused(tmp_path: Path) -> None:
    """Its reader went back to where it had come from, for ever."""
    shard = tmp_path / "train-000000.tar"
    shard.write_bytes(entry("0.png", 3, b"png") + entry("1.png", -1024) + bytes(1024))
    assert re.search("refused: .*negative size", alone(READ, shard))


@pytest.mark.parametrize(
    "line",
    [
        "condition vit_tiny --heads=" + "9" * 30,
        "redesign vit_tiny --depth 7 --top=999999999999999999999999",
        "redesign vit_tiny --target-params 0.9 --max-heads 1000000000000",
        "redesign vit_tiny --target-params 0.9 --max-heads 1e308",
        "redesign vit_tiny --target-params 0.9 --min-mlp 1e308 --max-mlp 1e308",
        "condition vit_tiny --data /proc/kmsg",
        "compare r.toml --dry-run --seeds 1000000000000",
        *(f"train digits --dry-run --set schedule.epochs={number}" for number in ("9" * 301, "1e300", "2e6")),
        "train chars --dry-run --set schedule.steps=" + "9" * 301,
        "train r.toml --dry-run --set data.workers=1000000000000",
        "train r.toml --dry-run --set data.prefetch=1000000000000 --set data.workers=1",
        "train r.toml --dry-run --set schedule.batch_size=1000000000000",
        *(f"train r.toml --dry-run --set {key}=-1" for key in ("data.samples", "data.erase", "schedule.warmup")),
        *(f"train r.toml --dry-run --set run.seed={number}" for number in (-1, f"1{'0' * 400}")),
    ],
)
def test_unbounded_numbers_are_refused(line: str, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    Path("r.toml").write_text(RECIPE)
    code, out, err = run_here(line, capsys)
    assert (code, out) == (2, "")
    assert "unexpected error" not in err


# -- pipes and devices ------------------------------------------------------------------------------------------------


def test_linked_pipe_is_refused_unopened(run: Path, tmp_path: Path) -> None:
    (run / "checkpoints").rename(tmp_path / "elsewhere")
    (run / "checkpoints").symlink_to(tmp_path / "elsewhere")
    state = max((tmp_path / "elsewhere").iterdir()) / "state.pt"
    state.unlink()
    os.mkfifo(state)
    resume = "import sys\nfrom leanify.runs.run_directory import RunDirectory\nRunDirectory.open(sys.argv[1])"
    assert "state.pt is a pipe, a socket or a device" in alone(resume, run)


def test_kernel_files_are_not_read(bert: Path, tmp_path: Path) -> None:
    (tmp_path / "plot.svg").symlink_to("/proc/kmsg")
    with pytest.raises(DirectoryError, match=r"plot\.svg"):
        check_plot(tmp_path / "plot.svg")
    (bert / "tokenizer.json").unlink(missing_ok=True)
    (bert / "tokenizer.json").symlink_to("/proc/kmsg")
    with pytest.raises(SourceError, match=r"tokenizer\.json"):
        find.find(str(bert))


# -- a run's state ----------------------------------------------------------------------------------------------------

ODD = {
    "list": [1, 2],
    "no window": {"optimizer": {}, "scaler": {}, "weights": {}, "maps": {}},
    "odd window": {"optimizer": {"state": {}, "param_groups": []}, "window": ["a"], "weights": {}, "maps": {}},
    "code": os.system,
}


@pytest.mark.parametrize("kind", ODD)
def test_odd_training_state_names_reason(run: Path, kind: str) -> None:
    for folder in (run / "checkpoints").iterdir():
        torch.save(ODD[kind], folder / "state.pt")
        seal(folder, "state.pt")
    with pytest.raises(LeanifyError) as error:
        leanify.train(recipes.load(run / "recipe.toml"), resume=run)
    assert "checkpoints/" in str(error.value)
    assert "\n" not in str(error.value)
    assert "Re-running" not in str(error.value)
    if kind == "code":
        assert "it names posix.system" in str(error.value)


@pytest.mark.parametrize("how", ["bits", "missing", "shape"])
def test_best_checkpoint_is_checked_first(tmp_path: Path, how: str) -> None:
    """It is checked before the test split is evaluated."""
    recipe = recipes.parse(RECIPE)
    trainer = Trainer(recipe.to_train())
    run = RunDirectory.open(leanify.train(recipe, tmp_path / "run"))
    best = run.best()
    file = best.path / "model.safetensors"
    tensors = load_file(file)
    name = next(iter(tensors))
    if how == "missing":
        del tensors[name]
    if how == "shape":
        tensors[name] = tensors[name].flatten()[:1].clone()
    if how == "bits":
        tensors[name] += 1
    save_file(tensors, file)
    if how != "bits":  # with a sum that fits
        seal(best.path, file.name)
    trainer.splits = replace(trainer.splits, test=trainer.splits.validation)
    with pytest.raises(LeanifyError, match=r"damaged|lacks tensors|of shape"):
        trainer.test(run)


@pytest.mark.parametrize("text", ["[]", '{"1": [1, 2]}'])
def test_edited_kappa_file_is_harmless(compared: Path, tmp_path: Path, text: str) -> None:
    study = shutil.copytree(compared, tmp_path / "study")
    folder, key = StudyFolder.open(study), Key("baseline", 0)
    (study / "runs" / f"{key}.json").unlink()
    (folder.run(key) / "kappa.json").write_text(text)
    leanify.compare(study, engine=InlineEngine(), measure=False)
    found = folder.outcome(key)
    assert found.status == "finished"


# -- what people read -------------------------------------------------------------------------------------------------


def test_tables_are_inert(capsys: Any) -> None:
    evil = "=cmd|' /C calc'!A1\x1b[2J\x07"
    for kind in ("markdown", "csv"):
        show(kind, {}, [{evil: evil, "a": "-3.5", "b": "@SUM(A1)", "c": "-2+cmd"}], lambda: None)
        out = capsys.readouterr().out
        assert not {"\x1b", "\x07"} & set(out)
        assert "\\x1b[2J" in out
    for cells in csv.reader(io.StringIO(out)):
        assert not [cell for cell in cells if cell.startswith(("=", "@")) or cell == "-2+cmd"]
        assert cells[1] in ("a", "-3.5")


# -- the environment --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["RANK", "LOCAL_RANK"])
def test_launcher_numbers_are_validated(name: str, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setenv(name, "abc")
    code, _, err = run_here(f"train digits --set schedule.steps=1 -o {tmp_path}/run", capsys)
    assert (code, f"{name}=abc" in err) == (2, True), err


def test_invalid_file_names_are_one_message(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    long = "x" * 300
    monkeypatch.setenv("XDG_CACHE_HOME", f"{tmp_path}/{long}")
    monkeypatch.delenv("LEANIFY_PRICES")
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "study.toml").write_text("")
    for line in (
        "redesign vit_tiny --depth 11",
        f"redesign vit_tiny --depth 11 -o {tmp_path}/{long}",
        f"show {'y' * 5000}",
        f"train digits --set schedule.steps=1 -o {tmp_path}/{long}",
        f"compare {tmp_path}/study --report",
    ):
        _, _, err = run_here(line, capsys)
        assert "unexpected error" not in err, (line, err)


def test_study_without_runs_is_handled(compared: Path, tmp_path: Path, capsys: Any) -> None:
    study = shutil.copytree(compared, tmp_path / "study")
    shutil.rmtree(study / "runs")
    for line in (f"show {study}", f"compare {study} --report", f"compare {study}", f"runs {tmp_path}"):
        code, _, err = run_here(line, capsys)
        assert "unexpected error" not in err, (line, err)
        assert code in (0, 2)
        assert not line.startswith("show") or f"is a study; leanify compare {study} --report shows it" in err


def test_offline_asks_no_name_server(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("socket.getaddrinfo", lambda *_: pytest.fail("a name server was asked"))
    names.hub_answers.cache_clear()
    assert not names.hub_answers()
    names.hub_answers.cache_clear()


# -- what leanify writes ----------------------------------------------------------------------------------------------


def test_ambiguous_recipe_is_not_begun(tmp_path: Path) -> None:
    recipe = recipes.parse(RECIPE)
    odd = replace(recipe, model=replace(recipe.model, override={**recipe.model.override, "num_classes": None}))
    with pytest.raises(RecipeError, match=r"cannot be written to a recipe.*NoneType"):
        RunDirectory.create(tmp_path / "run", odd, "{}")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(RecipeError, match=r"cannot be written to a recipe.*NoneType"):
        strict_toml.to_toml({"a": [None]})


# -- signals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1"])
def test_group_signal_saves_and_names_resume(tmp_path: Path, name: str) -> None:
    """`timeout`, scancel and systemd signal workers that read data, too, and some of them twice."""
    make_pictures(tmp_path / "data", size=32, train=40)
    settings = [f"data.path={tmp_path}/data", "data.holdout=0.2", "data.workers=2", "schedule.epochs=1000"]
    settings += ["model.override.img_size=32", "model.override.patch_size=16", "model.override.depth=1"]
    settings += ["schedule.batch_size=8", "model.override.num_classes=2", "data.img_size=32", "run.log_every=1"]
    words = [part for one in settings for part in ("--set", one)]
    command = [sys.executable, "-m", "leanify", "train", "own-images", *words, "-o", str(tmp_path / "run")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True, cwd=tmp_path) as process:
        log = tmp_path / "run" / "metrics.jsonl"
        while process.poll() is None and (not log.exists() or log.read_text().count("\n") < 3):
            time.sleep(0.05)
        for _ in range(2):
            os.killpg(process.pid, getattr(signal, name))
        _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + getattr(signal, name), err
    assert "leanify train --resume" in err
    assert "unexpected error" not in err
    assert RunDirectory.open(tmp_path / "run").newest()[0] is not None


LONG_ROWS = """from leanify.data.texts import encoded, tokenizers
tokenizer, _ = tokenizers.make_tokenizer("bytes", lambda: [], "")
samples = encoded.Sentences([(("[]," * 20_000_000,), 0)] * 2, tokenizer, 8, types=False)
print(samples.lengths.tolist())"""
LONG_LINES = """import sys, pathlib
from leanify.data.probe_inputs import text_batches
from leanify.data.texts import tokenizers
tokenizer, _ = tokenizers.make_tokenizer("bytes", lambda: [], "")
encode = lambda texts, around: tokenizer(texts, add_special_tokens=around)["input_ids"]
path = pathlib.Path(sys.argv[1])
path.write_text(("[]," * 5_000_000 + chr(10)) * 4)
print([len(batch["input_ids"][0]) for batch in text_batches(path, encode, 2, 1, 8)])"""
LONG_TEXT = """from leanify.data.texts import masked, tokenizers
tokenizer, _ = tokenizers.make_tokenizer("bytes", lambda: [], "")
print([len(masked.encode_text("[]," * 8_000_000, tokenizer)), 8])"""


@pytest.mark.slow
@pytest.mark.parametrize("code", [LONG_ROWS, LONG_LINES, LONG_TEXT])
def test_long_texts_fit_in_memory(code: str, tmp_path: Path) -> None:
    """Rust's tokenizer aborts the process where it finds no memory for a word of many million letters."""
    assert alone(code, tmp_path / "a.txt", seconds=600).strip() in ("[8, 8]", "[24000000, 8]")
