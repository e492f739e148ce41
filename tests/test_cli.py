"""The commands as real processes: what they print, where, and with which exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from commands import run

import leanify

SMALL = [f"--override={pair}" for pair in ("img_size=32", "embed_dim=60", "depth=6", "num_heads=3")]


def test_redesign_writes_directory_and_table(tmp_path: Path) -> None:
    """The table fits 100 columns."""
    done = run("redesign", "vit_base", *SMALL, "--target-params", "0.7", "-o", str(tmp_path / "lean"))
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
    done = run("profile", str(tmp_path / "lean"), "vit_base", "--no-measure", "--json")
    models = json.loads(done.stdout)["models"]
    assert [model["macs"] > 0 for model in models] == [True, True]


@pytest.mark.parametrize("measured", [["--no-measure"], [*SMALL, "--repeats", "1"]], ids=["counted", "measured"])
def test_profile_ratios_are_to_first(measured: list[str]) -> None:
    done = run("profile", "vit_tiny_patch16_224", "vit_small_patch16_224", "--explain", *measured)
    assert done.returncode == 0, done.stderr
    assert ("×3." if len(measured) == 1 else "×1.000") in done.stdout
    assert "neither counts add, gelu" in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 100


def test_nonempty_output_is_refused_first(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    done = run("redesign", "vit_base", "--target-params", "0.5", "-o", str(tmp_path))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "is not empty" in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["mine"]


LIGHT = """
import sys
import leanify
from leanify.cli import main
from leanify.cli.options import complete_source

complete_source("vit")
for line in sys.argv[1:]:
    sys.argv = ["leanify", *line.split()]
    try:
        main()
        code = 0
    except SystemExit as end:
        code = end.code or 0
    print("code", code, file=sys.stderr)
    heavy = {"numpy", "scipy", "timm", "torch", "transformers"} & set(sys.modules)
    assert not heavy, f"{line} imports {heavy}"
"""
MISTAKES = {
    "redesign vit_bas": "did you mean vit_base?",
    "compare deit_smal": "did you mean deit_small",
    "profile swin_tinny": "nearest: swin",
    "condition clip_vision_modl": "nearest: clip_vision_model",
    "train no_such_thing": "is not a timm model, transformers model type, recipe, hub id or path",
    "shrink vit_b --data .": "is ambiguous: timm has vit_base",
    "train --set learning_rate=1": "it is optim.lr",
    "redesign vit_base --max-latency 12": "or an amount (12ms)",
    "redesign vit_base --target-params 43MB": "is not a valid budget",
    "profile vit_base --max-params 0.5": "is a share",
    "condition vit_base --heads 2,x": "whole numbers with commas",
    "condition vit_base --plot kappa.pdf": ".svg",
    "redesign vit_base --override img_size": "takes key=value",
    "profile vit_base --override img_size": "takes key=value",
    "condition vit_base --override img_size": "takes key=value",
}


def test_light_commands_import_no_torch(trained: Path) -> None:
    """One process for all of them; completion, the package itself and a mistake in a name or an amount import none."""
    lines = ["--help", "redesign --help", "profile --help", "train --help", "recipes", "recipes digits"]
    lines += ["recipes --keys", "train --list", "zoo --json", f"runs {trained.parent}", f"show {trained}"]
    done = subprocess.run([sys.executable, "-c", LIGHT, *lines, *MISTAKES], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Usage: leanify") == 4
    assert "top1" in done.stdout
    said = [line for line in done.stderr.splitlines() if line.startswith(("code", "leanify: "))]
    assert said[: len(lines)] == ["code 0"] * len(lines)
    for message, code, words in zip(said[len(lines) :: 2], said[len(lines) + 1 :: 2], MISTAKES.values(), strict=True):
        assert words in message
        assert code == "code 2"


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


# -- what every command takes -----------------------------------------------------------------------------------------


def test_version_and_short_help() -> None:
    assert run("--version").stdout == run("version").stdout == f"leanify {leanify.__version__}\n"
    assert run("help").stdout == run("--help").stdout
    assert run("help", "redesign").stdout == run("redesign", "-h").stdout
    assert run("recipes", "-h").stdout == run("recipes", "--help").stdout
    assert "--no-color" in run("-h").stdout


def test_gate_says_what_is_exceeded() -> None:
    over, within = (
        run("profile", "vit_tiny", "--no-measure", "--json", "--max-params", limit) for limit in ("5M", "6M")
    )
    found = json.loads(over.stdout)
    assert (over.returncode, found["passed"]) == (1, False)
    assert found["exceeded"] == [{"source": "vit_tiny", "limit": "--max-params", "value": 5_717_416}]
    found = json.loads(within.stdout)
    assert (within.returncode, found["passed"], found["exceeded"]) == (0, True, [])


def test_quiet_leaves_the_result() -> None:
    """Neither warnings nor the line to type next."""
    loud, quiet = (run("condition", *SMALL, "vit_base", "--samples", "1", *more) for more in ([], ["--quiet"]))
    assert loud.stdout.partition("\n\nnext  leanify")[0] == quiet.stdout.removesuffix("\n")
    assert "random" in quiet.stdout
    assert quiet.stderr == "" == "".join(line for line in loud.stderr.splitlines() if "warning" not in line)


def test_shell_completes_names() -> None:
    for line in ("redes|ign", "redesign vit_tiny_patch16_2|24", "recipes dig|its"):
        words = f"leanify {line.partition('|')[0]}"
        asked = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1), "_LEANIFY_COMPLETE": "complete_bash"}
        assert line.replace("|", "").split()[-1] in run(**asked).stdout.split()


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
