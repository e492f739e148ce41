"""What is printed on a narrow terminal: whole words, units, and commands that work when they are typed."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import commands
import matplotlib
import pytest
from commands import plain
from rich.console import Console
from runs import DIGITS

from leanify.cli import COMMANDS
from leanify.cli.output import entries, print_table, table
from leanify.cli.screen import print_end
from leanify.comparison import planning
from leanify.comparison.tables import interval
from leanify.core import recipe as recipes
from leanify.core import units
from leanify.core.terminal import CYAN, GREEN, ORANGE, RED, console
from leanify.runs.run_directory import RunDirectory
from leanify.spectra.plots import STYLE, _shade, make_figure
from leanify.spectra.report import figures
from leanify.training import start as training


def on_terminal(command: str, width: int = 80) -> commands.Result:
    """A command as on a terminal of this width, without colours."""
    return commands.run(*command.split(), COLUMNS=str(width), FORCE_COLOR="1", NO_COLOR="1")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_breaks_no_word(command: str) -> None:
    """It names no types of Python."""
    lines = on_terminal(f"{command} --help").stdout.splitlines()
    assert lines[0].startswith(f"Usage: leanify {command} ")
    assert [line for line in lines if re.search(r"[<{}]", line) or line.endswith("-") or len(line) > 80] == []


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize(
    ("command", "rows", "key"), [("recipes --keys", "keys", "about"), ("zoo --status refused", "models", "reason")]
)
def test_lists_keep_words_whole(command: str, rows: str, key: str, width: int) -> None:
    printed = plain(on_terminal(command, width).stdout)
    assert max(len(line.rstrip()) for line in printed) <= width
    listed = json.loads(on_terminal(f"{command} --json").stdout)[rows]
    there = set(" ".join(printed).split())
    told = [re.sub(r"^\S+ cannot be redesigned: | \([\w.]+\)$", "", row[key]) for row in listed]  # a reason, once
    assert {word.rstrip(":") for words in told for word in words.split()} <= {word.rstrip(":") for word in there}


def test_entries_wrap_between_words() -> None:
    assert entries([("a", "one two-three four"), ("b", "")], 14) == "a\n    one\n    two-three\n    four\nb"


def test_numbers_have_readable_units() -> None:
    """Forecasts have two digits, shares a tenth of a percent at most; columns share their precision."""
    assert units.format_metric("top1", 95.2777) == "top1 95.28%"
    assert units.format_metric("loss", 0.34331) == "loss 0.3433"
    assert [units.format_forecast(s) for s in (0.03, 2.83, 43.34, 118.7, 754, 7199, 8640, 1e6)] == [
        "about 0.1 s", "about 2.8 s", "about 43 s", "about 120 s", "about 13 minutes", "about 120 minutes",
        "about 2.4 hours", "about 280 hours",
    ]  # fmt: skip
    shares = [units.format_share(share) for share in (0.5, 0.8833, 0.046, 1, -0.071)]
    assert shares == ["50%", "88.3%", "4.6%", "100%", "-7.1%"]
    macs = [units.format_operations(macs) for macs in (17_563_600_000, 1_822_000, 950_560)]
    assert macs == ["17.56 G", "1.82 M", "950.56 k"]
    assert units.format_count(1_040_000_000) == "1.04 B"
    assert interval(90.68, 85.68, 95.68) == "90.7 ± 5.0"
    assert interval(83.33, 68.1, 98.5) == "83 ± 15"
    assert interval(0.3123, 0.3, 0.3246) == "0.312 ± 0.012"
    assert units.format_range(102.0, (99.6, 102.4)) == "102 (100–102)"
    shown = [units.format_metric_value("top1", value) for value in (9.4444, 60.0, 100.0)]
    assert shown == ["9.44%", "60.00%", "100.00%"]
    digits = [units.format_digits(value) for value in (0.229, 2.2931, 12.0, 999.97, 9838.2)]
    assert digits == ["0.2290", "2.293", "12.00", "1,000", "9,838"]
    kappas = [figures(value) for value in (1.0, 9.6, 99.97, 2115.0, 337000.0)]
    assert kappas == ["1.00", "9.60", "100", "2,120", "337,000"]
    sizes = (947_720_000, 2_006_000_000)
    assert [units.format_bytes(size, reference=min(sizes)) for size in sizes] == ["903.82 MiB", "1,913.07 MiB"]


@pytest.mark.parametrize(("source", "unit", "macs"), [("vit_base", "GMACs", "17.56"), ("digits", "MMACs", "1.75")])
def test_plan_unit_suits_baseline(source: str, unit: str, macs: str) -> None:
    printed = plain(on_terminal(f"redesign {source} --depth 1 --min-mlp 1", 100).stdout)
    header, baseline = (line for line in printed if re.search(r"MACs *$|^baseline", line))
    assert unit in header
    assert baseline[: header.index(unit) + len(unit)].split()[-1] == macs


@pytest.mark.parametrize(("width", "count"), [(30, 4), (40, 2), (50, 2), (60, 1)])
def test_numbers_are_never_cut(width: int, count: int) -> None:
    """Columns that do not fit stand below the others, each part with its rows' names."""
    rows = [(f"design-{i}", f"{10**i:,}", f"{i} × 64", "0.123 ± 0.001", f"{i}.00 ms") for i in range(6)]
    made = table(("", "parameters", "heads × dim", "top1 %", "latency"), rows)
    out = Console(width=width, record=True, file=io.StringIO())
    print_table(out, made)
    parts = [part.splitlines() for part in out.export_text().split("\n\n")]
    assert len(parts) == count
    for part in parts:
        assert max(len(line.rstrip()) for line in part) <= width
        assert [line.split()[0] for line in part[1:]] == [row[0] for row in rows]
    printed = "\n".join(" ".join(lines) for lines in zip(*parts, strict=True))
    for row, line in zip(rows, printed.splitlines()[1:], strict=True):
        assert all(cell in line for cell in row)


def contrasts(colour: Any, *papers: str) -> list[float]:
    """The contrast of WCAG 2.2 with each paper; 3 is asked for bold text and large signs."""
    from matplotlib.colors import to_rgb

    def bright(one: Any) -> float:
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in to_rgb(one)]
        return 0.05 + sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    pairs = [sorted((bright(colour), bright(paper))) for paper in papers]
    return [light / dark for dark, light in pairs]


@pytest.mark.parametrize(("term", "coloured"), [("xterm", False), ("xterm-256color", True)])
def test_terminal_colours_are_default(term: str, coloured: bool, monkeypatch: Any, capsys: Any) -> None:
    """Its yellow and cyan may be unreadable on white; bold stays."""
    for name, value in {"TERM": term, "FORCE_COLOR": "1", "COLORTERM": ""}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
    console().print("lean", style=f"bold {CYAN}")
    printed = capsys.readouterr().out
    assert printed == ("\x1b[1;38;5;30mlean\x1b[0m\n" if coloured else "\x1b[1mlean\x1b[0m\n")


def test_colours_are_readable() -> None:
    """Those of the terminal on white and on black, those of layers on white."""
    for colour in (GREEN, CYAN, ORANGE, RED):
        assert min(contrasts(colour, "white", "black")) > 3.8
    for count in (1, 2, 12, 96):
        for index in range(count):
            assert min(contrasts(_shade(index, count)[:3], "white")) >= 3


def test_legend_crosses_no_line() -> None:
    """Behind its labels is the page, also over the lines of the grid."""
    with matplotlib.rc_context(STYLE):
        _, (axes,) = make_figure(1, "title")
        axes.plot([0, 1], [0, 1], label="a line")
        legend = axes.legend(title="light to dark")
    frame = legend.get_frame()
    assert legend.get_frame_on()
    assert (frame.get_alpha(), frame.get_facecolor()) == (1, axes.get_facecolor())


def test_interruption_is_reported() -> None:
    """Also where the tests run in the background, whose processes inherit that Ctrl-C is ignored."""
    when = (
        "import _thread, signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); sys.addaudithook("
        "lambda event, args: _thread.interrupt_main() if event == 'import' and args[0] == 'torch' else None)"
    )
    done = commands.run("profile", "vit_tiny", "--no-measure", "--quiet", new_interpreter=True, setup=when)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (130, "leanify: interrupted")


@pytest.mark.parametrize(("depth", "line"), [(2, "leanify compare"), (6, "leanify compare digits")])
def test_proposed_study_can_be_planned(depth: int, line: str, tmp_path: Path, capsys: Any) -> None:
    settings = ["schedule.steps=1", "schedule.epochs=", "data.samples=64", f"model.depth={depth}"]
    short = recipes.apply_settings(recipes.parse(DIGITS), settings)
    print_end(RunDirectory.open(training.train(short, tmp_path / "run")), "digits")
    assert capsys.readouterr().out.splitlines()[-1].strip() == line
    chosen = line.removeprefix("leanify compare").strip() or None
    assert planning.make_plan(planning.Request(chosen, settings=(f"model.depth={depth}",) if chosen else ())).designs


def test_spectra_of_models_are_separate() -> None:
    lines = [line.strip() for line in plain(on_terminal("condition digits digits-study --samples 1").stdout)]
    titles = [place for place, line in enumerate(lines) if line.startswith("digits")]
    assert len(titles) == 2
    assert lines[titles[1] - 1] == ""
    assert lines[0]


def test_zoo_is_summarised_on_terminals() -> None:
    """In a pipe it is listed."""
    summed, refused = (on_terminal(words).stdout for words in ("zoo", "zoo --status refused"))
    assert len(summed.splitlines()) < 24
    assert "vit_tiny" not in summed
    assert "leanify zoo --status refused" in summed
    assert refused.splitlines()[-3] == ""  # the sums stand apart from the list
    piped = commands.run("zoo", "vit_tiny").stdout
    assert all("vit_tiny" in line for line in piped.partition("\n\n")[0].splitlines())


def test_refusal_reason_heads_its_models() -> None:
    printed = on_terminal("zoo --library timm --status refused", 80).stdout
    assert printed.count("its concatenated heads are the width") == 1
    assert re.search(r"timm/botnet50ts_256 +refused\r?\ntimm/eca_botnext26ts_256 +refused\r?\n", printed)
