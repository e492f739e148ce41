"""Every small module of `own_modules` and of libraries, held against what leanify promises of one's own modules.

    python -m recipes.research.modules > recipes/results/modules.md
    python -m recipes.research.modules Plain      this one alone

A library that is not installed is left out with that reason.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import leanify
from recipes.research.libraries import LIBRARIES
from recipes.research.own_modules import EXAMPLES, Example

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))  # how they are held to the promises
import test_modules as held

COLUMNS = ("module", "read", "grown, 4 modes", "parameters", "MACs", "saved, loaded", "profiled", "probed", "trained")
HEAD = """# Transformers of one's own, module by module

Small modules in the way that people write them (`recipes/research/own_modules.py`), and small models of
libraries (`libraries.py` there), random weights. **grown**: the largest difference of outputs with twice the heads,
in float64, over train, eval, no_grad and inference_mode. **parameters**, **MACs**: a design of the redesign, recounted
by hand and by torch's counter. **saved, loaded**: the outputs are the same bit for bit. **trained**: ten steps lower a
loss.

Written by `python -m recipes.research.modules`.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="functions of own_modules.py and libraries.py")
    names = parser.parse_args().names
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(HEAD)
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    for make in (*EXAMPLES, *LIBRARIES):
        if names and make.__name__ not in names:
            continue
        print(f"| {' | '.join(row(make))} |", flush=True)


def row(make: Callable[[], Example]) -> list[str]:
    name = f"`{make.__name__}`"
    try:
        model, inputs = held.made(make)
        shape = leanify.read(model, inputs=inputs)
    except ImportError as error:
        return [name, f"not tried: {error}", *["–"] * 7]
    except leanify.LeanifyError as error:
        return [name, f"refused: {str(error)[:220].replace('|', ' ')} …", *["–"] * 7]
    cells = [str(shape).replace("|", "/")]
    cells.append(tried(lambda: f"{grown(make):.0e}"))
    plan = leanify.redesign(model, inputs=inputs, target_params=0.8, multiple=4, min_mlp=0.3, min_depth=1)
    lean = plan.build()
    count = sum(parameter.numel() for parameter in lean.parameters())
    cells.append(f"{count:,} {'=' if count == plan.chosen.params else '≠'} {plan.chosen.params:,}")
    macs = held.macs_of(lean, inputs)
    cells.append(f"{macs:,} {'=' if macs == plan.chosen.macs else '≠'} {plan.chosen.macs:,}")
    cells.append(tried(lambda: saved(make, lean, inputs)))
    cells.append(tried(lambda: f"{leanify.profile(lean, inputs=inputs, repeats=2).macs:,} MACs"))
    cells.append(tried(lambda: f"{len(leanify.condition(lean, inputs).layers)} layers"))
    cells.append(tried(lambda: held.trained(lean, inputs) or "yes"))
    return [name, *cells]


def tried(step: Callable[[], Any]) -> str:
    try:
        return str(step())
    except Exception as error:  # a line of the table, whatever it is
        return f"{type(error).__name__}: {' '.join(str(error).split())[:120]}".replace("|", " ")


def grown(make: Callable[[], Example]) -> float:
    model, inputs = held.made(make)
    model = model.double()
    big = leanify.grow(model, factor=2, inputs=inputs)
    return max(held.difference(held.outputs(model, inputs, m), held.outputs(big, inputs, m)) for m in held.MODES)


def saved(make: Callable[[], Example], lean: Any, inputs: Any) -> str:
    with tempfile.TemporaryDirectory() as place:
        leanify.save(lean, f"{place}/lean", source=f"{make.__module__}:{make.__name__}")
        again = leanify.load(f"{place}/lean")
        with torch.no_grad():
            one, other = (list(held.tensors(model.eval()(**inputs))) for model in (lean, again))
    return "equal" if all(torch.equal(a, b) for a, b in zip(one, other, strict=True)) else "not equal"


if __name__ == "__main__":
    main()
