"""The commands as real processes: what they print, where, and with which exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import run

import leanify

SMALL = [
    "--override",
    "img_size=32",
    "--override",
    "embed_dim=60",
    "--override",
    "depth=6",
    "--override",
    "num_heads=3",
]


def test_redesign_writes_directory_and_table(tmp_path: Path) -> None:
    """The table fits 100 columns."""
    done = run("redesign", "vit_base", *SMALL, "--target-params", "0.6", "-o", str(tmp_path / "lean"))
    assert done.returncode == 0, done.stderr
    assert all(line.startswith("warning ") for line in done.stderr.splitlines())
    lines = done.stdout.splitlines()
    assert max(len(line) for line in lines if str(tmp_path) not in line) <= 100  # a path is not broken
    assert "\nnext  leanify compare vit_base --set data.path=DATA" in done.stdout
    words = [line.split()[0].rstrip(",") for line in lines if line.strip()]
    assert words.index("baseline") < words.index("lean") < words.index("control")
    assert "\x1b" not in done.stdout
    assert leanify.read(leanify.load(tmp_path / "lean")).stages[0].depth < 6


def test_json_output_is_one_object(tmp_path: Path) -> None:
    done = run("redesign", "vit_base", *SMALL, "--heads", "4", "--json", "-o", str(tmp_path / "lean"))
    data = json.loads(done.stdout)
    assert data["chosen"]["heads"] == 4
    assert data["directory"] == str(tmp_path / "lean")
    assert done.stderr == ""
    done = run("profile", str(tmp_path / "lean"), "vit_base", "--no-measure", "--json", *SMALL[:0])
    models = json.loads(done.stdout)["models"]
    assert [model["macs"] > 0 for model in models] == [True, True]


@pytest.mark.parametrize("measured", [["--no-measure"], [*SMALL, "--repeats", "1"]], ids=["counted", "measured"])
def test_profile_ratios_are_to_first(measured: list[str]) -> None:
    done = run("profile", "vit_tiny_patch16_224", "vit_small_patch16_224", "--explain", *measured)
    assert done.returncode == 0, done.stderr
    assert ("×3." if len(measured) == 1 else "×1.000") in done.stdout
    assert "neither counts add, gelu" in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 100


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["redesign", "vit_bsae", "--target-params", "0.5"], "nearest: vit_base"),
        (["redesign", "resnet18", "--target-params", "0.5"], "no attention"),
        (["redesign", "vit_base", "--target-params", "1.5"], "above 1 and has no unit"),
        (["redesign", "vit_base", "--target-params", "-1"], "above zero"),
        (["redesign", "vit_base", "--target-params", "1M"], "the smallest that trades layers for heads has"),
        (["redesign", "llama", "--heads", "33", "--override", "num_key_value_heads=8"], "multiple of 4"),
        (["redesign", "vit_base", "--heads", "3.5"], "--heads must be an integer"),
        (["redesign", "vit_base", "--heads-mode", "graw", "--depth", "7"], "not one of grow, split, auto"),
        (["redesign", "vit_base", "--depth", "7", "--override", "x"], "takes key=value"),
        pytest.param(
            ["redesign", "hf/deepseek_v2", "--target-params", "0.7"], "cannot be priced", marks=pytest.mark.slow
        ),
        (["profile", "nobody/nomodel"], "Hugging Face hub"),
        (["profile", "vit_base", "--dtype", "int3", "--no-measure"], "not a floating-point type"),
    ],
)
def test_bad_input_exits_with_2(arguments: list[str], message: str, tmp_path: Path) -> None:
    done = run(*arguments, *(["-o", str(tmp_path / "out")] if arguments[0] == "redesign" else []))
    assert done.returncode == 2
    assert done.stdout == ""
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_nonempty_output_is_refused_first(tmp_path: Path) -> None:
    """A directory that is not empty is refused before any work."""
    (tmp_path / "mine").touch()
    done = run("redesign", "vit_base", "--target-params", "0.5", "-o", str(tmp_path))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "is not empty" in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize("command", ["redesign", "profile", "train"])
def test_help_imports_no_torch(command: str) -> None:
    code = (
        "import sys, atexit\n"
        "sys.argv = ['leanify', *sys.argv[1:]]\n"
        "atexit.register(lambda: print('HEAVY', [m for m in ('torch', 'timm', 'transformers') if m in sys.modules]))\n"
        "from leanify.cli import main\nmain()"
    )
    for arguments in (["--help"], [command, "--help"]):
        done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
        assert done.returncode == 0
        assert "HEAVY []" in done.stdout
        assert "Usage: leanify" in done.stdout


def test_showing_plans_imports_no_scipy() -> None:
    script = "import sys, leanify.cli.redesign, leanify.cli.planned; print('scipy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize(("words", "frozen"), [("recipes digits", True), ("train digits --dry-run -h", False)])
def test_exit_skips_final_garbage_collection(words: str, frozen: bool) -> None:
    """A command that trains nothing ends without a last look for reference cycles."""
    script = """
import atexit, gc, sys
atexit.register(lambda: print("frozen", gc.get_freeze_count() > 0))
from leanify.cli import main
sys.argv = ["leanify", *sys.argv[1:]]
main()
"""
    done = subprocess.run([sys.executable, "-c", script, *words.split()], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == f"frozen {frozen}"


def test_cli_and_library_are_twins() -> None:
    overrides: dict[str, Any] = dict(pair.split("=") for pair in SMALL[1::2])
    plan = leanify.redesign("vit_base", target_params="0.6", overrides={k: int(v) for k, v in overrides.items()})
    data = json.loads(run("redesign", "vit_base", *SMALL, "--target-params", "0.6", "--json").stdout)
    assert {**data, "seconds": 0} == {**plan.to_json(), "seconds": 0}


# -- what every command takes -----------------------------------------------------------------------------------------


def test_version_and_short_help() -> None:
    assert run("--version").stdout == f"leanify {leanify.__version__}\n"
    assert run("recipes", "-h").stdout == run("recipes", "--help").stdout
    assert "--no-color" in run("-h").stdout


def test_quiet_silences_only_warnings() -> None:
    loud, quiet = (run("condition", *SMALL, "vit_base", "--samples", "1", *more) for more in ([], ["--quiet"]))
    assert loud.stdout == quiet.stdout
    assert "random" in loud.stdout
    assert quiet.stderr == "" == "".join(line for line in loud.stderr.splitlines() if "warning" not in line)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("leanify redes", "redesign"),
        ("leanify redesign vit_tiny_patch16_2", "vit_tiny_patch16_224"),
        ("leanify recipes dig", "digits"),
    ],
)
def test_shell_completes_names(words: str, found: str) -> None:
    """The shell completes commands, models and recipes."""
    asked = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1), "_LEANIFY_COMPLETE": "complete_bash"}
    done = run(**asked)
    assert found in done.stdout.split()


def test_completion_imports_no_torch() -> None:
    code = "import sys; from leanify.cli.options import complete_source as c; c('vit'); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


def test_repeated_warning_is_shown_once() -> None:
    """Python itself says it again after each change of its filters, which libraries make."""
    code = (
        "import sys, warnings; from leanify import cli\ndef run_command():\n    for words in 'aba':\n        with "
        "warnings.catch_warnings(): warnings.simplefilter('always'); warnings.warn(words)\n"
        "cli.run_command = run_command; cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.splitlines() == ["leanify: warning: a", "leanify: warning: b"]


def test_readmes_are_model_cards(tmp_path: Path) -> None:
    plan = leanify.redesign("vit_tiny", depth=7, heads=4).save(tmp_path / "both", control=True)
    readmes = {name: (tmp_path / "both" / name / "README.md").read_text() for name in ("lean", "control")}
    for name, title in (("lean", "# A lean model"), ("control", "# The control of a lean model")):
        assert readmes[name].startswith("---\nlibrary_name: timm\ntags: [leanify, pruning]\n---\n" + title)
    assert f"{plan.chosen.params / 1e6:.2f} M of 5.72 M parameters" in readmes["lean"]
    assert "New weights: it has not been trained." in readmes["lean"]
