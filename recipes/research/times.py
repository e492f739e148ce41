"""How long each thing takes: processor seconds of whole commands on one thread, imports included.

    python -m recipes.research.times > docs/times.md
    python -m recipes.research.times --only "zoo swin"      one command, as it stands in `COMMANDS`

Processor seconds count, not the clock: the machine may have others on it. Each is the least of three turns. Prices are
kept from the first turn on, as they are for a reader who types a command twice; *first time* has an empty cache.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

TURNS = 3
PICTURES = Path(__file__).resolve().parents[2] / "tests" / "fixtures" / "documents" / "make_images.py"
COMMANDS = {
    "the first text of any command: `leanify --help`": "--help",
    "look up a model: `leanify zoo swin`": "zoo swin",
    "look up a recipe: `leanify recipes images`": "recipes images",
    "plan a model of timm: `leanify redesign vit_base --target-params 0.5`": "redesign vit_base --target-params 0.5",
    "plan a model of transformers: `leanify redesign llama --target-params 0.5`": "redesign llama --target-params 0.5",
    "write a lean directory: `leanify redesign vit_tiny … -o lean`": "redesign vit_tiny --target-params 0.6 -o {new}",
    "count a model: `leanify profile vit_tiny --no-measure`": "profile vit_tiny --no-measure",
    "measure a model: `leanify profile vit_tiny`": "profile vit_tiny",
    "train on 1,797 digits: `leanify train digits`": "train digits -o {new}",
    "look at a model: `leanify show vit_base`": "show vit_base",
    "look at a run: `leanify show RUN`": "show {run}",
    "apply a run to a picture: `leanify predict RUN FILE`": "predict pets-run pets/validation/cats/000.png",
    "list runs: `leanify runs`": "runs {folder}",
    "spectra of a model: `leanify condition vit_tiny`": "condition vit_tiny",
    "nine runs, their rates and their comparison: `leanify compare`": "compare -o {new}",
}
ONCE = ("train", "compare", "condition")  # minutes each
FIRST = ("redesign vit_base", "redesign llama", "profile vit_tiny --no", "show vit_base")


def seconds(words: list[str], folder: Path) -> float:
    """Processor seconds of a command and of the processes that it starts. Raises CalledProcessError."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(folder / "cache"), "HF_HUB_OFFLINE": "1"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run = [sys.executable, "-m", "leanify", *words]
    subprocess.run(run, cwd=folder, env=environment, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def prepare(folder: Path) -> None:
    """Train the two runs that commands look at."""
    seconds(["train", "digits", "-o", "run", "--set", "schedule.epochs=2"], folder)
    subprocess.run([sys.executable, PICTURES, "pets"], cwd=folder, check=True)
    settings = ["--set", "data.path=pets", "--set", "schedule.steps=4"]
    seconds(["train", "own-images", "-o", "pets-run", *settings], folder)


def shown(value: float) -> str:
    return f"{value / 60:.1f} min" if value >= 100 else f"{value:.0f} s" if value >= 10 else f"{value:.1f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=COMMANDS.values(), metavar="COMMAND")
    only = parser.parse_args().only
    rows = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        if only is None:
            prepare(folder)
        for number, (what, line) in enumerate(COMMANDS.items()):
            if only not in (None, line):
                continue
            took = []
            for turn in range(1 if line.startswith(ONCE) else TURNS):
                words = line.format(new=f"new-{number}-{turn}", run="run", folder=".").split()
                took.append(seconds(words, folder))
            first = shown(took[0]) if line.startswith(FIRST) else ""
            rows.append(f"| {what} | {shown(min(took))} | {first} |")
            print(rows[-1], file=sys.stderr, flush=True)
    print("# How long each thing takes\n")
    print("Processor time on one thread, imports included: `python -m recipes.research.times`. The clock shows")
    print("more where others use the machine, and less of `train` and `compare` where they have several cores.\n")
    print("| to | takes | the first time |\n|---|---|---|")
    print("\n".join(rows))
    print(
        '\nWhere a model must be built, most of it is the import of its library: `python -c "import timm"` alone takes'
    )
    print("3.3 s of the 3.8 that `predict` takes with a model of timm, 1.2 s of them torch. Another 1.1 s are")
    print(
        "`torch._dynamo`, which nothing here needs, but torchvision, timm and transformers each import it by themselves"
    )
    print("(`python -X importtime`).")
    print("\n`leanify train … --dry-run` and `leanify compare … --dry-run` predict what yours will take.")


if __name__ == "__main__":
    main()
