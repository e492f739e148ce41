"""Draw docs/images/terminal.svg: what a terminal of 92 columns shows of the README's first command.

python docs/images/terminal.py
"""

import io
import os
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

COMMAND = "leanify redesign vit_base --target-params 0.5"
COLUMNS = 92
PAPER, INK = (22, 24, 29), (230, 230, 230)
COLOURS = [(80, 80, 80), (255, 95, 95), (95, 215, 95), (215, 175, 95), (95, 175, 255), (215, 135, 215), (95, 215, 215)]
THEME = TerminalTheme(PAPER, INK, [*COLOURS, INK], [*COLOURS, INK])


def main() -> None:
    terminal = {"COLUMNS": str(COLUMNS), "FORCE_COLOR": "1", "TTY_COMPATIBLE": "1", "TERM": "xterm-256color"}
    environment = {**os.environ, **terminal}
    environment.pop("NO_COLOR", None)
    run = [sys.executable, "-m", *COMMAND.split()]
    # warnings, too: what the reader sees
    done = subprocess.run(run, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True)
    screen = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    screen.print(Text.assemble(("$ ", "bold green"), (COMMAND, "bold")))
    # without the frames of the spinner and the lines that it leaves, which a terminal has erased at the end
    lines = [line for line in done.stdout.rstrip().splitlines() if not re.search("[\u2800-\u28ff]", line)]
    while not Text.from_ansi(lines[0]).plain.strip():
        del lines[0]
    screen.print(Text.from_ansi("\n".join(lines)), end="\n\n")
    picture = screen.export_svg(title="leanify", theme=THEME, unique_id="leanify")
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)  # nothing is fetched from elsewhere
    picture = picture.replace("Fira Code", "ui-monospace, Menlo, Consolas, DejaVu Sans Mono")
    picture = re.sub(r"(?m)^\s*<!--.*?-->\s*$\n?", "", picture)
    Path(__file__).with_name("terminal.svg").write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
