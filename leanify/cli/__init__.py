"""The command line: parse, call, render. Commands import torch inside; `--help` never does.

A command is a file in this room with a function of the same name; `main` imports the requested one only.
"""

from __future__ import annotations

import atexit
import errno
import gc
import io
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leanify.core.errors import LeanifyError, memory_message
from leanify.core.terminal import fold, say, shorten, show_controls_in_logs, visible

if TYPE_CHECKING:
    import typer

COMMANDS = {  # with the line that `leanify --help` shows for each
    "redesign": "Plan a smaller model under a budget: layers, heads, MLPs, width.",
    "train": "Train a recipe or a model, on your own data or a built-in set.",
    "compare": "Train baseline, lean, control, narrow; say whether lean pays.",
    "shrink": "Make a checkpoint smaller on your data, and heal it.",
    "profile": "Parameters, MACs, latency and memory of models.",
    "condition": "Singular values and condition numbers of the heads.",
    "export": "Write a model for another loader: transformers, timm, ONNX.",
    "recipes": "List the built-in recipes, print one, audit the paper's rows.",
    "runs": "List the runs and studies here.",
    "show": "Show one run or model.",
    "predict": "Apply a trained model to new images or texts.",
    "zoo": "List what can be done with each model of timm and transformers.",
}
COMMANDS_WITHOUT_TRAINING = COMMANDS.keys() - {"train", "compare", "shrink", "runs"}
ABOUT = "Make transformers smaller, and know what it costs: plan, shrink, compare."
EVERYWHERE = (
    "Every command takes -h, --quiet (no progress, no warnings) and --no-color; "
    "a hub id takes --revision REV, as ID@REV."
)


def app(*names: str, by_name: bool = False) -> typer.Typer:
    """Build the app with these commands, ``by_name`` without importing them; a single one takes arguments directly."""
    import typer

    from leanify.cli.usage import PanelCommand

    application = typer.Typer(
        help=ABOUT,
        epilog=EVERYWHERE,
        no_args_is_help=len(names) > 1,
        add_completion=len(names) > 1,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for name in names:
        command = (lambda: None) if by_name else getattr(import_module(f"leanify.cli.{name}"), name)
        application.command(name, cls=PanelCommand, epilog=EVERYWHERE, short_help=COMMANDS[name])(command)
    return application


def main() -> None:
    """The console script: prints an error as one message on stderr and exits with code 2.

    1 is the code of a limit that is exceeded (`profile --max-params`).
    """
    warnings.formatwarning = _print_warnings_once()
    show_controls_in_logs()
    _reopen()

    # print ? for κ and × if the locale cannot encode them
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")

    # run, and turn each kind of exception into a message and an exit code
    try:
        try:
            run_command()
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except LeanifyError as error:
        if os.environ.get("LEANIFY_DEBUG"):
            traceback.print_exc()
        # an error that every process raises is printed by the first one only
        if not error.every_rank or os.environ.get("RANK", "0") == "0":
            say(f"leanify: {error}")
        raise SystemExit(2) from None
    except KeyboardInterrupt as error:
        say(f"leanify: {error}" if str(error) else "leanify: interrupted")
        raise SystemExit(getattr(error, "code", 130)) from None
    except BrokenPipeError:
        # the reader of a pipe has left (`| head -1`): end as git does, by SIGPIPE, without a message
        discard_output()
        if hasattr(signal, "SIGPIPE"):
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGPIPE)
        raise SystemExit(141) from None
    except OSError as error:
        where = error.filename or ""
        # no name of a file: standard output, but for a full disk under tempfile and for what a process may have
        is_limit = error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)
        if error.filename is None and not isinstance(error, FileNotFoundError) and not is_limit:
            discard_output()
            where = "standard output could not be written"
        say(f"leanify: {where}{': ' * bool(where)}{error.strerror or error}")
        raise SystemExit(2) from None
    except (SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # a panic in a Rust extension does not derive from Exception
        shortage = memory_message(error)
        if shortage:
            say(f"leanify: {shortage}")
        else:
            _say_unexpected(error)
        raise SystemExit(2) from None


def _print_warnings_once() -> Callable[..., str]:
    """Return a format for warnings that gives "" for a repeated one: the runs of one command share their warnings."""
    messages = set()

    def format_warning(message: Warning | str, *_: Any) -> str:
        if str(message) in messages:
            return ""
        messages.add(str(message))
        return fold(f"leanify: warning: {visible(shorten(str(message)))}") + "\n"

    return format_warning


def _reopen() -> None:
    """Open the standard streams that the caller closed (``>&-``).

    Without this, the next opened file would get the stream's number and everything that is printed. Standard output
    is opened so that it fails as on a full disk, instead of losing the results silently.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            # the new handle is the lowest free number
            handle = os.open(os.devnull, os.O_WRONLY if name == "stderr" else os.O_RDONLY)
            if handle == number:
                setattr(sys, name, os.fdopen(number, "w" if number else "r", encoding="utf-8", closefd=False))


def _say_unexpected(error: BaseException) -> None:
    """Print one line for an unexpected exception: a bug in leanify, or in a library."""
    if os.environ.get("LEANIFY_DEBUG"):
        traceback.print_exc()
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "leanify" in frame.filename]
    place = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    say(
        f"leanify: unexpected error: {type(error).__name__}: {' '.join(str(error).split())[:300]}{place}; please "
        "report it with the traceback that LEANIFY_DEBUG=1 prints"
    )


def run_command() -> None:
    """Run the requested command. Raises LeanifyError for a wrong command line."""
    try:
        Path.cwd()
    except OSError:
        raise LeanifyError(
            "the current directory no longer exists, and torch cannot start without one: cd elsewhere"
        ) from None
    arguments = _common_options(sys.argv[1:])
    if arguments[:1] == ["help"]:  # as other programs have it: `leanify help`, `leanify help CMD`
        arguments = [*arguments[1:2], "--help"]
    name = arguments[0] if arguments else ""

    # on exit Python collects cycles among all objects of torch and timm, a fifth of the time of a first plan: skip it
    if name in COMMANDS_WITHOUT_TRAINING:
        atexit.register(gc.freeze)

    import typer

    # shell completion needs every command
    if "_LEANIFY_COMPLETE" in os.environ:
        return app(*COMMANDS)(prog_name="leanify")  # type: ignore[no-any-return]

    # parse and call; not by click's main(), which replaces KeyboardInterrupt and BrokenPipeError by exit codes
    is_command = name in COMMANDS
    application = app(name) if is_command else app(*COMMANDS, by_name=True)
    command: Any = typer.main.get_command(application)
    program = f"leanify {name}" if is_command else "leanify"
    usage_error: Any = typer.BadParameter.__base__  # typer vendors click under a private name
    try:
        with command.make_context(program, arguments[is_command:]) as context:
            command.invoke(context)
    except typer.Exit as end:
        raise SystemExit(end.exit_code) from None
    except usage_error as error:
        if not arguments:  # the list of commands, without the prefix of an error
            print(error.format_message(), file=sys.stderr)
            raise SystemExit(2) from None
        from leanify.cli.usage import usage_message

        raise LeanifyError(usage_message(error, command, name if is_command else "")) from None


def discard_output() -> None:
    """Discard buffered standard output, which the interpreter would otherwise try to write again on exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _common_options(arguments: list[str]) -> list[str]:
    """Apply the options that every command accepts, at any position, and return the other arguments."""
    if arguments in (["--version"], ["version"]):
        from importlib.metadata import version

        print(f"leanify {version('leanify')}")
        raise SystemExit(0)
    if "--no-color" in arguments:
        os.environ["NO_COLOR"] = "1"  # rich obeys it, here and in worker processes
    if "--quiet" in arguments:
        os.environ["LEANIFY_QUIET"] = "1"
        warnings.simplefilter("ignore")
    arguments = [argument for argument in arguments if argument not in ("--no-color", "--quiet")]
    if any(argument.partition("=")[0] == "--revision" for argument in arguments):
        from leanify.cli.usage import apply_revision

        return apply_revision(arguments)
    return arguments
