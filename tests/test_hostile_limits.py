"""What would take memory or time without bound, and what acts from the folder that one stands in: refused at once.

Each table is a class: its first row is the attack that gave the class its name, the others are relatives of it.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import sys
import tarfile
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bounds import write_pictures
from commands import run_forked, run_here
from fuzz_intact import HF, RECIPE, TIMM
from runs import change_json, git
from studies import two_designs

import leanify
from leanify import cli
from leanify.comparison import runner
from leanify.comparison.folder import StudyFolder
from leanify.comparison.plan import StudyPlan
from leanify.core import machine
from leanify.core import recipe as recipes
from leanify.core.errors import DataError, DirectoryError, LeanifyError, RecipeError, ShapeError, SourceError
from leanify.core.files.reading import check_links, walk_folders
from leanify.core.files.tensor_files import MAX_TENSORS
from leanify.layouts import hub, tar_shards
from leanify.layouts.faults import Faults
from leanify.layouts.rows import read_table
from leanify.sources.tensors import read_tensors, tensor_names
from leanify.spectra.sweep import read_into
from leanify.upstream.libraries import reraise_as

CONTROLS = "\x1b]0;PWN\x07\u202egnp.\x9b2J"


def stand_ins(folder: Path, programs: dict[str, str]) -> str:
    """A PATH on which these names are shell scripts."""
    (folder / "bin").mkdir()
    for name, text in programs.items():
        (folder / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / "bin" / name).chmod(0o755)
    return f"{folder}/bin:{os.environ['PATH']}"


# -- TOML: recipes, studies and tables of rows have one reader ---------------------------------------------------------

DOTTED = {
    "a long key": "x" + ".x" * 60_000 + " = 1\n",
    "quoted parts": '"x"' + ' . "x"' * 60_000 + " = 1\n",
    "parts on other lines": '"x\u2028"' + '."x\u2028"' * 60_000 + " = 1\n",
    "many long keys": "".join(f"k{number}{'.x' * 199} = 1\n" for number in range(1_000)),
    "below a long table": f"[{'x.' * 199}x]\n" + "".join(f"k{number} = 1\n" for number in range(60_000)),
}


@pytest.mark.parametrize("kind", DOTTED)
def test_dotted_keys_end_soon(kind: str, tmp_path: Path) -> None:
    for name, error in (("study.toml", DirectoryError), ("r.toml", RecipeError)):
        (tmp_path / name).write_text(DOTTED[kind], encoding="utf-8")
        with pytest.raises(error, match=r"more than 200 dots|too many parts"):
            StudyPlan.read(tmp_path / name) if name == "study.toml" else recipes.load(tmp_path / name)


@pytest.fixture
def plan() -> StudyPlan:
    return two_designs(recipes.parse(RECIPE))


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('title = "x"', "title = 1", "title is 1; it must be a string"),
        ("threads = 1", 'threads = "x"', 'threads is "x"; it must be an integer'),
        ("threads = 1", "threads = 1000000000", "it must be from 1 to"),
        ("threads = 1", "threads = 1\nrates = [nan]", "rates"),
        ("format = 1", 'format = "x"', "format"),
        ("format = 1", "format = 99", "newer leanify"),
        ("    0,\n    1,\n", "    " + "1, " * 200_000 + "\n", "400,000 runs; at most 10,000"),
        ("    0,\n    1,\n", "    0, -1\n", "the seed '-1' is not an integer from 0"),
        ("    0,\n    1,\n", f"    0, 1{'0' * 200}\n", "is not an integer from 0"),
    ],
)
def test_study_keys_have_types_and_bounds(plan: StudyPlan, tmp_path: Path, old: str, new: str, reason: str) -> None:
    text = plan.to_toml()
    assert old in text
    (tmp_path / "study.toml").write_text(text.replace(old, new, 1))
    with pytest.raises(DirectoryError, match="is not a study's plan") as refusal:
        StudyPlan.read(tmp_path / "study.toml")
    assert reason in str(refusal.value)
    assert len(str(refusal.value)) < 500


# -- tensors -----------------------------------------------------------------------------------------------------------


def empty_tensors(key: str) -> bytes:
    """A header of more tensors than are read, each with a key of this spelling."""
    tensors = (f'"{i}":{{"{key}":"F32","shape":[0],"data_offsets":[0,0]}}' for i in range(MAX_TENSORS + 9))
    return f"{{{','.join(tensors)}}}".encode()


LARGEST = 2**63 - 1
HEADERS: dict[str, Callable[[], bytes]] = {
    "a million empty tensors": lambda: empty_tensors("dtype"),
    "keys with escapes": lambda: empty_tensors("\\u0064type"),
    "a length beyond the file": lambda: b"{}",
    "sizes beyond a number": lambda: b'{"x":{"dtype":"F32","shape":[%d,%d],"data_offsets":[0,0]}}' % (LARGEST, LARGEST),
}


@pytest.mark.parametrize("kind", HEADERS)
def test_tensor_headers_are_bounded(kind: str, tmp_path: Path) -> None:
    header, path = HEADERS[kind](), tmp_path / "model.safetensors"
    length = 1 << 60 if kind == "a length beyond the file" else len(header)
    path.write_bytes(length.to_bytes(8, "little") + header)
    model = leanify.load("vit_tiny_patch16_224", overrides=TIMM)
    for read in (read_tensors, tensor_names, lambda path: read_into(model, path)):
        with pytest.raises(SourceError, match=r"names [\d,]+ tensors|not a safetensors file"):
            read(path)


def test_newer_run_is_not_resumed(run: Path, capsys: Any) -> None:
    for number in (99, "x", [1]):
        change_json(run / "leanify.json", format=number)
        for line in (f"train --resume {run}", f"show {run}", f"predict {run} {run}"):
            code, out, err = run_here(line, capsys)
            assert (code, out) == (2, "")
            assert "newer leanify" in err


# -- numbers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["depth", "heads", "head_dim", "mlp"])
@pytest.mark.parametrize("number", [10**9, 10**30, "x", float("nan"), float("inf"), True, [10**9], {"x": 10**9}])
def test_shape_numbers_are_bounded(name: str, number: Any) -> None:
    model = leanify.load("vit_tiny_patch16_224", overrides=TIMM)
    with pytest.raises(ShapeError):
        leanify.redesign(model, **{name: number})


@pytest.mark.parametrize("number", [10**12, -1, "x", None, 0.5])
def test_card_blocks_are_bounded(number: Any, tmp_path: Path) -> None:
    saved = leanify.save(leanify.load("vit_tiny_patch16_224", overrides=TIMM), tmp_path / "lean")
    card = json.loads((saved / "leanify.json").read_text())
    card["architecture"]["stages"][0]["blocks"][0]["repeat"] = number
    (saved / "leanify.json").write_text(json.dumps(card))
    with pytest.raises(LeanifyError):
        leanify.load(saved)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e308", "-1e308", "9" * 299])
def test_odd_metrics_are_shown(number: str, run: Path, tmp_path: Path, capsys: Any) -> None:
    """A run that diverged logs such numbers by itself."""
    log = run / "metrics.jsonl"
    odd = f'{{"step": 1, "split": "train", "loss": {number}}}\n'
    odd += f'{{"step": 2, "split": "validation", "loss": {number}, "top1": {number}}}\n'
    log.write_text(odd + log.read_text() + f'{{"step": {"9" * 290}, "split": "train", "loss": 1.0}}\n')
    for line in (
        f"show {run}",
        f"show {run} --json",
        f"show {run} --plot {tmp_path}/a.svg",
        f"runs {tmp_path}",
    ):
        code, out, err = run_here(line, capsys)
        assert code == 0, (line, err)
        if "--json" in line:
            json.loads(out, parse_constant=lambda name: pytest.fail(name))


# -- the terminal ------------------------------------------------------------------------------------------------------


def test_long_names_are_shortened(tmp_path: Path, capsys: Any) -> None:
    """An architecture of a megabyte, and one of many words."""
    for name in ("x" * 1_000_000, "x " * 500_000):
        (tmp_path / "config.json").write_text(json.dumps({"architecture": name, "model_args": {}}))
        code, _, err = run_here(f"redesign {tmp_path} --depth 1", capsys)
        assert (code, len(err) < 6_000, "…" in err) == (2, True, True)


@pytest.mark.parametrize("kind", ["a warning", "a log", "a recipe", "a message"])
def test_all_printers_escape_names(kind: str, tmp_path: Path) -> None:
    """Whatever prints a name: warnings of Python, libraries' logs, a recipe as it is, an error."""
    (tmp_path / "r.toml").write_text(f"# {CONTROLS[8:13]}\n{RECIPE}", encoding="utf-8")
    run_command = cli.run_command

    def run_attacked() -> None:
        if kind == "a warning":
            print(warnings.formatwarning(CONTROLS, UserWarning, "x", 1), file=sys.stderr)
        elif kind == "a log":
            logging.getLogger("timm").warning("folder %s", CONTROLS)
        elif kind == "a message":
            raise LeanifyError(CONTROLS)
        run_command()

    def attack() -> None:
        warnings.simplefilter("always")
        logging.basicConfig(stream=sys.stderr, force=True)
        cli.run_command = run_attacked

    words = ["recipes", "r.toml" if kind == "a recipe" else "digits"]
    _, out, err = run_forked(words, tmp_path, attack, os.pipe(), os.pipe())
    shown = out + err
    assert not set(CONTROLS) & set(shown) - set("]0;PWNgnp.2J")
    assert "\\u202e" in shown


# -- the folder that one stands in -------------------------------------------------------------------------------------

SETTINGS: dict[str, Callable[[Path], Any]] = {
    "LaTeX": lambda file: file.write_text("text.usetex: True\ntext.latex.preamble: \\input{private}\n"),
    "a font": lambda file: file.write_text("font.family: cursive\nsavefig.dpi: 100000\nfigure.figsize: 9999, 9999\n"),
    "a pipe": lambda file: os.mkfifo(file),
    "no text": lambda file: file.write_bytes(b"\xff\xfe" * 99),
}


@pytest.mark.parametrize("kind", SETTINGS)
def test_local_plot_settings_are_not_read(kind: str, run: Path, tmp_path: Path) -> None:
    """matplotlib would read them from the folder that one stands in."""
    SETTINGS[kind](tmp_path / "matplotlibrc")
    programs = dict.fromkeys(("latex", "pdflatex", "dvipng", "dvisvgm", "kpsewhich"), f"touch {tmp_path}/RAN")

    def import_afresh() -> None:
        os.environ["PATH"] = stand_ins(tmp_path, programs)
        for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
            del sys.modules[name]

    arguments = ["show", "run", "--plot", "a.png"]
    code, _, err = run_forked(arguments, tmp_path, import_afresh, os.pipe(), os.pipe())
    assert code == 0, err
    assert (tmp_path / "a.png").exists()
    assert not (tmp_path / "RAN").exists()


@pytest.mark.parametrize("name", ["$\\undefined$", "a$^$b", f"x{CONTROLS}", "\udcff", "$$", "\ufffe"])
def test_plots_show_names_literally(name: str, run: Path, tmp_path: Path, capsys: Any) -> None:
    folder = run.rename(tmp_path / name)
    for plot in ("a.svg", "a.png"):
        code, _, err = run_here(f"show '{folder}' --plot {tmp_path}/{plot}", capsys)
        assert code == 0, err
    text = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert not set(CONTROLS) & set(text) - set("]0;PWNgnp.2J")


@pytest.mark.parametrize("kind", ["a file's name", "a filter's name", "a folder's name"])
def test_odd_names_in_repository_are_recorded(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that are not UTF-8: git prints them as they are with core.quotePath=false."""
    monkeypatch.chdir(tmp_path)
    git("init")
    git("config", "core.quotePath", "false")
    git("commit", "--allow-empty", "-m", "x")
    name = {"a file's name": b"caf\xe9.txt", "a filter's name": b"a", "a folder's name": b"d\xe9/a"}[kind]
    Path(os.fsdecode(name)).parent.mkdir(exist_ok=True)
    Path(os.fsdecode(name)).touch()
    if kind == "a filter's name":
        with (tmp_path / ".git" / "config").open("ab") as file:
            file.write(b'[filter "caf\xe9"]\n\tclean = cat\n')
    assert machine.environment()["git"]["changed"] is True


# -- somebody else's files ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["_name_or_path", "_commit_hash", "_attn_implementation"])
def test_recipe_passes_no_tokenizer_on(key: str, tmp_path: Path, capsys: Any) -> None:
    private = tmp_path / "private"
    private.mkdir()
    (private / "vocab.txt").write_text("secret\n")
    (private / "tokenizer.json").write_text("{}")
    recipe = {"model": {"source": "bert", "override": {**HF["bert"], key: str(private)}}}
    (tmp_path / "r.toml").write_text(recipes.from_dict(recipe).to_toml())
    code, _, err = run_here(f"redesign {tmp_path}/r.toml --depth 1 -o {tmp_path}/out", capsys)
    assert code == 2
    assert "cannot be overridden" in err
    assert not (tmp_path / "out").exists()


# -- files that unpack, grow or start a program ------------------------------------------------------------------------


def test_panic_is_one_message(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """pyo3's PanicException is a BaseException."""

    class PanicError(BaseException):
        pass

    def panic() -> None:
        raise PanicError("index out of bounds")

    with pytest.raises(SourceError, match=r"reading a: .*index out of bounds"), reraise_as("reading a"):
        panic()
    monkeypatch.setattr(cli, "run_command", panic)
    monkeypatch.setattr(cli, "_say_unexpected", lambda error: print(error, file=sys.stderr))
    assert run_here("recipes", capsys) == (2, "", "index out of bounds\n")


SHORTAGES = {
    "memory": (MemoryError(), "memory ran out: "),
    "torch's allocator": (RuntimeError("DefaultCPUAllocator: can't allocate 9 bytes"), "memory ran out (Default"),
    "threads": (RuntimeError("can't start new thread"), "memory ran out (can't start"),
    "a fork": (OSError(errno.ENOMEM, "Cannot allocate memory"), "Cannot allocate memory"),
    "pipes": (OSError(errno.EMFILE, "Too many open files"), "Too many open files"),
}


@pytest.mark.parametrize("kind", SHORTAGES)
def test_shortages_name_what_ran_out(kind: str, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never a model that is not found, a bug of leanify's, or standard output."""
    error, message = SHORTAGES[kind]

    def run_short() -> None:
        raise error

    monkeypatch.setattr(cli, "run_command", run_short)
    code, out, err = run_here("recipes", capsys)
    assert (code, out) == (2, "")
    assert err.startswith(f"leanify: {message}")
    with pytest.raises(SourceError) as raised, reraise_as("no model is found there"):
        run_short()
    assert ("no model" in str(raised.value)) == (kind == "pipes")


def one_value(value: str | bytes, times: int) -> Any:
    return pa.DictionaryArray.from_arrays(pa.array([0] * times, pa.int32()), pa.array([value]))


PARQUET: dict[str, Callable[[], dict[str, Any]]] = {
    "equal rows": lambda: {"text": one_value("hello", 3_000_000).cast(pa.string())},
    "a long cell": lambda: {"text": ["a" * (3 << 20)]},
    "one value": lambda: {"text": one_value("x" * 10_000, 3000)},
    "one picture": lambda: {
        "image": pa.StructArray.from_arrays([one_value(b"x" * 10_000, 3000), pa.array([""] * 3000)], ["bytes", "path"])
    },
}


@pytest.mark.parametrize("kind", PARQUET)
def test_parquet_files_are_no_bombs(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "FREE_BYTES", 1 << 20)
    file = tmp_path / "train.parquet"
    pq.write_table(pa.table(PARQUET[kind]()), file, compression="zstd")
    assert file.stat().st_size < 100_000
    with pytest.raises(DataError, match=r"rows in [\d,]+ bytes|unpack to over 1 MB"):
        list(hub.read_parquet(file))


POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n"


@pytest.mark.parametrize("kind", ["folder", "shard", "table"])
def test_pictures_start_no_program(kind: str, run: Path, tmp_path: Path) -> None:
    """Pillow would hand PostScript, whatever its name, to Ghostscript."""
    write_pictures(tmp_path / "data", kind, [POSTSCRIPT] * 6)
    path = stand_ins(tmp_path, {"gs": f"touch {tmp_path}/RAN"})
    sizes = ["img_size=8", "patch_size=4", "embed_dim=8", "depth=1", "num_heads=2"]
    settings = " ".join(f"--set model.override.{size}" for size in sizes) + " --set data.holdout=0.4"
    lines = [f"train vit_tiny {settings} --set data.path={tmp_path}/data --set data.workers=0 -o {tmp_path}/out"]
    lines.append(f"condition {run} --samples 2 --data {tmp_path}/data")
    if kind == "folder":
        lines.append(f"predict {run} {tmp_path}/data/a/0.png")
    for line in lines:
        with_gs = partial(os.environ.update, PATH=path)
        code, out, err = run_forked(line.split(), tmp_path, with_gs, os.pipe(), os.pipe())
        assert code == 2, (line, out, err)
    assert not (tmp_path / "RAN").exists()


def test_tar_headers_are_no_recursion(tmp_path: Path) -> None:
    """Python's reader calls itself for every long name that precedes a member."""
    header = tarfile.TarInfo("././@LongLink")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, 2
    (tmp_path / "train-000000.tar").write_bytes((header.tobuf(tarfile.GNU_FORMAT) + b"a\0".ljust(512, b"\0")) * 2000)
    with pytest.raises(DataError, match="no tar archive"):
        tar_shards.read([tmp_path / "train-000000.tar"], Faults())


@pytest.mark.parametrize("part", ["{},", "[],", '{"a":[]},'])
def test_json_parts_are_bounded(part: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(f"[{part * 2_100_000}0]")
    with pytest.raises(SourceError, match="over 2,000,000 objects"):
        leanify.load(tmp_path)


@pytest.mark.parametrize("where", ["title", "folder"])
def test_slurm_scripts_hold_no_commands(
    where: str, plan: StudyPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The title of a study, and the path of its folder, go into a shell script of submitit's."""
    pytest.importorskip("submitit", reason="an extra")
    programs = {"srun": "exit 0", "sbatch": "echo Submitted batch job 1", "scontrol": "exit 0"}
    monkeypatch.setenv("PATH", stand_ins(tmp_path, programs))
    evil = "x\nmkdir RAN\n#"
    study = StudyFolder.create(tmp_path / (evil if where == "folder" else "study"), replace(plan, title=evil))
    if where == "folder":
        with pytest.raises(LeanifyError, match="control character"), runner.open_engine("slurm", study, 1):
            pass
        return
    with runner.open_engine("slurm", study, 1) as engine:
        engine.submit(print, "x")
    script = next(study.path.rglob("*.sh"))  # submitit leaves a link beside it
    lines = [line for line in script.read_text().splitlines() if line and not line.startswith("#")]
    assert not [line for line in lines if "RAN" in line], lines


def test_deep_folders_end_soon(tmp_path: Path) -> None:
    place = tmp_path / "a"
    for _ in range(200):
        place /= "d"
    place.mkdir(parents=True)
    assert len(list(walk_folders(tmp_path))) < 80
    with pytest.raises(DataError, match="over 64 folders deep"):
        check_links(tmp_path, DataError)


def test_long_cell_is_one_message(tmp_path: Path) -> None:
    """A quote that encloses lines without end."""
    (tmp_path / "a.csv").write_text('text,label\n"' + ("a" * 999 + "\n") * 17_000 + '",1\nb,2\n')
    with pytest.raises(DataError, match=r"a\.csv cannot be read as a csv table: field larger than"):
        list(read_table(tmp_path / "a.csv", Faults()))


def test_threads_count_alike() -> None:
    """They share the environment, in which transformers' checks are turned off for a count."""
    model = leanify.load("bert", overrides=HF["bert"])
    with ThreadPoolExecutor(4) as threads:
        counts = list(threads.map(lambda _: leanify.profile(model, measure=False).macs, range(8)))
    assert len(set(counts)) == 1
