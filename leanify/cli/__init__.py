"""The command line: parse, call, render. Commands import torch inside; `--help` never does.

A command is a file here with a function of its own name; `main` loads the one that is asked for, and all of them only
to complete a word.
"""

from __future__ import annotations

import atexit
import gc
import io
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from difflib import get_close_matches
from functools import wraps
from importlib import import_module
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from leanify.errors import LeanifyError
from leanify.terminal import columns, say, starting, wrap

if TYPE_CHECKING:
    import typer

COMMANDS = {  # with the line that `leanify --help` shows for each
    "redesign": "Trade layers for heads under a budget.",
    "train": "Train a recipe or a model, on your own data or a built-in set.",
    "compare": "Train baseline, lean and control; say whether lean pays.",
    "shrink": "Make a checkpoint smaller so that it keeps what it knew.",
    "glue": "Fine-tune an encoder on the tasks of GLUE.",
    "profile": "Parameters, MACs, latency and memory of models.",
    "condition": "Singular values and condition numbers of the heads.",
    "export": "Write a model for another loader: transformers, timm, ONNX.",
    "recipes": "List the built-in recipes, print one, audit the paper's rows.",
    "runs": "List the runs and studies here.",
    "show": "Show one run, study, recipe, lean directory or model.",
    "predict": "Apply a trained model to new images or texts.",
    "zoo": "List what can be done with each model of timm and transformers.",
}
UNTRAINED = ("redesign", "profile", "condition", "export", "recipes", "show", "predict", "zoo")  # they train nothing
ALONE = ("-h", "--help", "--install-completion", "--show-completion")  # options without a command
LISTS = (["recipes"], ["train", "--list"])  # no arguments to parse, and importing typer would take most of the time
ABOUT = "Redesign transformers: trade layers for attention heads under a parameter budget."
EVERYWHERE = "Every command takes -h, --quiet (no progress, no warnings) and --no-color."


def app(*names: str, by_name: bool = False) -> typer.Typer:
    """Build the app with these commands; a single one takes its arguments directly. ``by_name``: only to list them."""
    import typer

    from leanify.cli.help import GroupedCommand

    made = typer.Typer(
        help=ABOUT,
        epilog=EVERYWHERE,
        no_args_is_help=len(names) > 1,
        add_completion=len(names) > 1,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for name in names:
        command = _only_named if by_name else keeping_exit_code(getattr(import_module(f"leanify.cli.{name}"), name))
        made.command(name, cls=GroupedCommand, epilog=EVERYWHERE, short_help=COMMANDS[name])(command)
    return made


def _only_named() -> None:
    """Stand for a command whose file is not read."""


def keeping_exit_code(command: Callable[..., None]) -> Callable[..., None]:
    """Wrap a command to keep the message and exit code of KeyboardInterrupt, which typer drops."""

    @wraps(command)
    def wrapper(*arguments: Any, **words: Any) -> None:
        try:
            command(*arguments, **words)
        except KeyboardInterrupt as error:
            say(f"leanify: {error}" if str(error) else "leanify: interrupted")
            raise SystemExit(getattr(error, "code", 130)) from None

    return wrapper


def main() -> None:
    """The console script: prints an error as one message on stderr and exits with code 2.

    1 is the code of a limit that is exceeded (`profile --max-params`), or of a law that is broken (`zoo --check`).
    """
    warnings.formatwarning = _saying_once()
    _reopen()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # print ? for κ and × if the locale cannot encode them
    try:
        try:
            run_command()
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except LeanifyError as error:
        if os.environ.get("LEANIFY_DEBUG"):
            traceback.print_exc()
        if not error.shared or os.environ.get("RANK", "0") == "0":
            say(f"leanify: {error}")
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        say("leanify: interrupted")
        raise SystemExit(130) from None
    except BrokenPipeError:
        _end_unread()
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):  # typer has made exit code 1 of it
            _end_unread()
        raise
    except OSError as error:
        if error.filename is None:
            discard_output()
        where = "standard output could not be written" if error.filename is None else error.filename
        say(f"leanify: {where}: {error.strerror or error}")
        raise SystemExit(2) from None
    except Exception as error:
        _say_unexpected(error)
        raise SystemExit(2) from None


def _saying_once() -> Callable[..., str]:
    """Format a warning for people, "" if it was said before: several runs of one command have the same to say."""
    said = set()

    def formatted(message: Warning | str, *_: Any) -> str:
        if str(message) in said:
            return ""
        said.add(str(message))
        return f"{wrap(f'leanify: warning: {message}', columns())}\n"

    return formatted


def _reopen() -> None:
    """Open what the caller closed (``>&-``): else the next file that is opened gets its number, and what is printed.

    Standard output then fails as on a full disk, instead of losing the results without a word.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            handle = os.open(os.devnull, os.O_WRONLY if name == "stderr" else os.O_RDONLY)
            if handle == number:  # the lowest that is free
                setattr(sys, name, os.fdopen(number, "w" if number else "r", encoding="utf-8", closefd=False))


def _say_unexpected(error: Exception) -> None:
    """Print one line for an unexpected exception: a bug in leanify, or in a library outside any `wall`."""
    if os.environ.get("LEANIFY_DEBUG"):
        traceback.print_exc()
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "leanify" in frame.filename]
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    say(
        f"leanify: unexpected error: {type(error).__name__}: {' '.join(str(error).split())[:300]}{place}; please "
        "report it with the traceback that LEANIFY_DEBUG=1 prints"
    )


def run_command() -> None:
    """Run the requested command."""
    try:
        Path.cwd()
    except OSError:
        raise LeanifyError(
            "the current directory no longer exists, and torch cannot start without one: cd elsewhere"
        ) from None
    arguments = _common_options(sys.argv[1:])
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:2], "--help"]
    asked = arguments[0] if arguments else ""
    if arguments in LISTS:
        return import_module("leanify.cli.recipe_list").show()  # type: ignore[no-any-return]
    if asked in UNTRAINED:
        # an interpreter that ends looks for cycles among all that torch and timm have made: a fifth of a first plan
        atexit.register(gc.freeze)
    if asked in COMMANDS:
        with starting(f"leanify {asked}"):
            import typer

            command = with_plain_arguments(typer.main.get_command(app(asked)))
        return run(command, asked, arguments[1:])
    if asked.startswith("-") and asked.partition("=")[0] not in ALONE:
        from leanify.cli.mistakes import redirected

        instead = redirected(asked.lstrip("-")) or "leanify -h lists all commands"
        raise LeanifyError(f"a command comes first, and leanify alone has no option {asked}; {instead}")
    if "/" in asked and Path(asked).exists():
        raise LeanifyError(f"a command comes first: leanify show {quote(asked)}; leanify -h lists all commands")
    if asked and not asked.startswith("-") and not get_close_matches(asked, [*COMMANDS, "help"]):
        raise LeanifyError(
            f"there is no command {asked!r}; a model is named after one: leanify redesign {quote(asked)} "
            "--target-params 0.5; leanify -h lists all commands"
        )
    completing = "_LEANIFY_COMPLETE" in os.environ  # a word of a command: its options are asked for
    app(*COMMANDS, by_name=not completing)(args=arguments, prog_name="leanify")


def run(command: Any, name: str, arguments: list[str]) -> None:
    """Parse a command's arguments and call it; what the parser refuses is a LeanifyError that says what works."""
    import typer

    from leanify.cli import mistakes

    mistakes.check_budget(name, arguments)
    usage_error: Any = typer.BadParameter.__base__  # typer brings click along under a private name
    try:
        code = command.main(args=arguments, prog_name=f"leanify {name}", standalone_mode=False)
    except usage_error as error:
        raise mistakes.explained(error, command, name, arguments) from None
    if code:
        raise SystemExit(code)


def with_plain_arguments(command: Any) -> Any:
    """Name arguments in the help by their metavar alone: typer adds braces and the type in Python."""
    for param in command.params:
        if param.param_type_name == "argument":
            name = param.metavar if param.required else f"[{param.metavar}]"
            param._usage_display_name = lambda name=name: name
            param.display_type_rich = lambda ctx: None
    return command


def _end_unread() -> None:
    """End as git does when the reader of a pipe has left (`| head -1`): by SIGPIPE, without a word."""
    discard_output()
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGPIPE)
    raise SystemExit(141)


def discard_output() -> None:
    """Discard buffered standard output, which the interpreter would otherwise try to write again on exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _common_options(arguments: list[str]) -> list[str]:
    """Apply the options that every command accepts, at any position, and return the other arguments."""
    if arguments == ["--version"]:
        from importlib.metadata import version

        print(f"leanify {version('leanify')}")
        raise SystemExit(0)
    if "--no-color" in arguments:
        os.environ["NO_COLOR"] = "1"  # rich obeys it, here and in worker processes
    if "--quiet" in arguments:
        os.environ["LEANIFY_QUIET"] = "1"
        warnings.simplefilter("ignore")
    return [argument for argument in arguments if argument not in ("--no-color", "--quiet")]
