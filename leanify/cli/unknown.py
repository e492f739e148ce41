"""What to say of an option that a command does not have: what does it instead, or which options it has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from leanify.errors import LeanifyError

SEVERAL = "gpus num-gpus n-gpus ngpus gpu-ids devices nproc nproc-per-node ddp fsdp distributed multi-gpu"
FEWER = "search filter grep find query match name model names models library"
GRAPHS = "figure fig graph chart picture png svg html pdf image save-plot"
FEW = 12  # options that are listed in a message
CUDA = "CUDA_VISIBLE_DEVICES in the environment chooses the GPUs (empty: the CPU)"

WAYS: tuple[tuple[str, str, str], ...] = (  # commands ("" is any), options without their dashes, what does it
    ("train", SEVERAL, "several processes are started by torchrun --nproc-per-node 2 --no-python leanify train, or by "
     "accelerate launch --no_python leanify train"),
    ("compare", SEVERAL, "--jobs N runs N at a time, and divides the GPUs among them"),
    ("train compare glue", "cuda cpu mps gpu device cuda-device", CUDA),
    ("train", "list-recipes recipes models", "it is --list"),
    ("predict show runs recipes zoo export", "cuda cpu mps gpu device cuda-device", CUDA),
    ("compare glue", "resume continue restart go-on", "the same command goes on with what is unfinished"),
    ("train compare", "override overrides", "it is --set model.override.KEY=VALUE"),
    ("train compare", "class cls", "it is --set model.class=NAME"),
    ("redesign profile condition", "set config", "it is --override KEY=VALUE"),
    ("runs", "all a recursive r path dir folder", "it lists all below this folder, or below one that is "
     "named: leanify runs FOLDER"),
    ("zoo recipes", "all a list l", "it lists all without an option"),
    ("zoo recipes runs", FEWER, "the shell finds a line: leanify {command} | grep -i {value}"),
    ("predict", "top top-k topk k probabilities proba scores logits", "--json has the probability of every "
     "class"),
    ("predict", "output out o save to file", "the shell writes a file: leanify predict RUN FILES --format csv "
     "> FILE"),
    ("predict", "input image images text texts file files data", "files and texts are named without one: "
     "leanify predict RUN {value}"),
    ("condition", "layers layer blocks block", "it shows all layers; for some of them: leanify condition "
     "SOURCE --format csv | grep -e name -e LAYER"),
    ("condition show", GRAPHS, "it is --plot FILE, with .png, .svg or .html"),
    ("compare", f"{GRAPHS} plot", "every study has a page with its pictures: report.html in its folder"),
    ("show", "curves metrics log logs rows", "--format csv has every row of a run's log"),
    ("redesign", "half quarter", "it is --target-params 0.5"),
    ("redesign profile", "fp16 half-precision", "it is --dtype float16"),
    ("redesign profile", "bf16", "it is --dtype bfloat16"),
    ("train", "target-params budget params ratio share heads-mode", "leanify redesign SOURCE --target-params 0.5 -o "
     "DIR makes a lean model; leanify compare trains it beside its baseline"),
    ("train", "wandb tensorboard tracker trackers log-to", "it is --set 'run.trackers=[\"wandb\"]' (or tensorboard)"),
    ("train", f"{GRAPHS} plot", "once it runs: leanify show RUN --plot FILE"),
    ("condition", "output out o save", "it is --plot FILE for a picture; for numbers: --format csv > FILE"),
    ("recipes", "budgets budget target-params params half", "a budget is for a model: leanify redesign SOURCE "
     "--target-params 0.5"),
    ("export", "opset opset-version onnx-opset", "torch chooses the opset; onnx.version_converter.convert_version in "
     "Python raises that of a file"),
    ("export", "dynamic dynamic-axes dynamic-shapes dynamic-batch batch batch-size", "batch and tokens are left free "
     "where the model allows it"),
    ("zoo", "family class classes", "the shell finds a line: leanify zoo | grep -i {value}"),
    ("runs", "sort sort-by order", "the shell sorts: leanify runs --format csv | sort"),
    ("runs zoo", "running done failed interrupted finished failing supported refused", "the shell finds lines: leanify "
     "{command} | grep {key}"),
    ("", "verbose v vv debug traceback", "LEANIFY_DEBUG=1 in the environment prints what is behind an error"),
    ("", "silent q no-progress", "it is --quiet"),
    ("", "no-colour no-colors colour color", "it is --no-color; NO_COLOR=1 in the environment does the same"),
    ("", "csv tsv md markdown table", "it is --format csv, markdown or table"),
    ("", "version V", "it is leanify --version"),
    ("train compare glue", "force f overwrite yes y", "nothing is overwritten; -o names another folder"),
)  # fmt: skip


def refuse_known(command: str, name: str, value: str) -> None:
    """Raise LeanifyError for an option of which it is known what does it instead."""
    key = name.lstrip("-").replace("_", "-")
    for commands, keys, words in WAYS:
        if key in keys.split() and (not commands or command in commands.split()):
            how = words.replace("{command}", command).replace("{value}", value).replace("{key}", key)
            raise LeanifyError(f"leanify {command} has no option {name}; {how}")


def refuse(command: str, name: str, options: Mapping[str, Any], known_as: tuple[str, ...]) -> None:
    """Raise LeanifyError for any other option that a command lacks, with the nearest ones, or all that it has and the
    commands that have such a one. ``known_as`` are leanify's own names for what is meant.
    """
    if not name.startswith("--") and name[:2] in options:
        return  # -olean/
    key = name.lstrip("-").replace("_", "-")
    long = [one for one in options if one.startswith("--")]
    near = get_close_matches(f"--{key}", long, 1, 0.75) or [one for one in long if key in one[2:].split("-")]
    if near:
        words = f"nearest: {', '.join(_spelt(one, options) for one in near[:3])}"
    else:
        words = f"it has {', '.join(long)}" if len(long) <= FEW else f"leanify {command} -h lists those that it has"
        asked = (f"--{key}", f"--{key.removesuffix('s')}", *known_as)
        found = next((each for one in asked if (each := list(_commands_with(one, command)))), [])
        words += f"; {', '.join(found)} {'has' if len(found) == 1 else 'have'} such a one" if found else ""
    raise LeanifyError(f"leanify {command} has no option {name}; {words}")


def without_command(name: str) -> None:
    """Raise LeanifyError for an option where a command should stand."""
    key = name.partition("=")[0].lstrip("-")
    words = next((words for commands, keys, words in WAYS if not commands and key in keys.split()), None)
    found = list(_commands_with(f"--{key}", ""))
    how = words or (f"leanify {found[0]} {name}" if found else "leanify -h lists all commands")
    raise LeanifyError(f"a command comes first, and leanify alone has no option {name}; {how}")


def _spelt(name: str, options: Mapping[str, Any]) -> str:
    metavar = options[name].metavar
    return f"{name} {metavar}" if metavar and not options[name].is_flag else name


def _commands_with(option: str, but: str) -> Iterator[str]:
    """The other commands that have an option."""
    import typer

    from leanify.cli import COMMANDS, app

    for name in COMMANDS:
        if name != but and any(option in one.opts for one in typer.main.get_command(app(name)).params):
            yield name
