"""What every test shares: one thread a process (two run side by side), no network, and prices that are counted."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ["LEANIFY_PRICES"] = "off"  # what is remembered would answer for the code that is under test

import pytest
import torch
from fuzz_intact import RECIPE, InlineEngine

import leanify
from leanify import cli
from leanify.core import recipe as recipes
from leanify.core import terminal

torch.set_num_threads(1)
for number in (signal.SIGINT, signal.SIGHUP):  # ignored below nohup and in a script's background: commands inherit that
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


@pytest.fixture(autouse=True)
def fail_on_unexpected_error(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test in which the command line met an error that nothing expected, whatever the test itself looks at."""
    errors: list[Exception] = []
    say = cli._say_unexpected

    def record_error(error: Exception) -> None:
        errors.append(error)
        say(error)

    cli._say_unexpected = record_error
    yield
    cli._say_unexpected = say
    if errors and not request.node.get_closest_marker("unexpected"):
        pytest.fail(f"unexpected error: {errors[0]!r}")


@pytest.fixture(autouse=True)
def reset_error_console() -> None:
    """Standard error is looked at again: a test may have another terminal, width or colour."""
    terminal.error_console.cache_clear()


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run on digits; not to be written to."""
    return leanify.train(recipes.parse(RECIPE), tmp_path_factory.mktemp("trained") / "run")


@pytest.fixture(scope="session")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of two runs on digits; not to be written to."""
    study, options = tmp_path_factory.mktemp("compared") / "study", {"designs": ("baseline",), "rates": (1,)}
    leanify.compare(recipes.parse(RECIPE), study, seeds=2, engine=InlineEngine(), measure=False, **options)
    return study


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A run without its last checkpoint, so that a resume has something to do."""
    shutil.copytree(trained, tmp_path / "run")
    shutil.rmtree(max((tmp_path / "run" / "checkpoints").iterdir()))
    return tmp_path / "run"


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """End the run when a worker crashes: xdist's scheduler by files waits for ever for the files of a lost worker."""
    if getattr(config.option, "maxworkerrestart", "") is None:
        config.option.maxworkerrestart = "0"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as slow what ``slow.txt`` names: tests, and single cases that cost more than others of their test."""
    slow_cases = set(Path(__file__).with_name("slow.txt").read_text("utf-8").splitlines())
    for item in items:
        case = item.nodeid.removeprefix("tests/")
        if case in slow_cases or case.partition("[")[0] in slow_cases:
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: Any, log: Any) -> Any:
    """Give a file to one worker: what its tests share is made once."""
    from xdist.scheduler import LoadFileScheduling

    return LoadFileScheduling(config, log) if config.getvalue("dist") == "load" else None
