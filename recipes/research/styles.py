"""Styles of transformers that people write, and models of libraries that nobody named: what is read of them.

    python -m recipes.research.styles > recipes/results/styles.md
    python -m recipes.research.styles Palm LowRank      the page with these two anew, all others as they stand there

A library that is not installed is left out with that reason.
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import leanify
from leanify.core.errors import LeanifyError
from leanify.lens.row_laws import InDouble
from leanify.upstream.example_inputs import inputs_by_name
from recipes.research import further_styles, own_modules, own_styles
from recipes.research.library_models import LIBRARY_MODELS

TOLERANCE = 1e-9
PAGE = Path(__file__).parents[1] / "results" / "styles.md"
COLUMNS = ("style", "answer", "read, or what is in the way", "s")
HEAD = """# Styles of attention and blocks, one by one

Small modules in the ways that papers, libraries and people write them (`own_modules.py`, `own_styles.py` and
`further_styles.py` in `recipes/research`) and small models of libraries (`library_models.py` there), random weights.

- **right**: read as its author would say it, grown in float64 without a change of its outputs, redesigned at 0.7 with
  the parameters that were priced, run forward and backward, and read again as the same shape.
- **right to refuse**: more heads change the old ones, and leanify says so.
- **said**: what it reads is true, but it could not read all of it, or not reshape it, and says that.
- **refused**: nothing is read; the reason stands beside it.
- **wrong**: another shape is read without a word, or a design is not what was said.

**s**: processor seconds to read or refuse. Written by `python -m recipes.research.styles`.
"""
SPECIAL = {
    "llama": "3 × [4×6 on 2 kv, mlp 40, width 24]",
    "interleaved_qkv": "3 × [4×6 on 2 kv, mlp 40, width 24]",
    "one_key": "3 × [4×6 on 1 kv, mlp 40, width 24]",
    "encoder_decoder": "3 × [4×6, mlp 40, width 24]; 3 × [4×6, mlp 0, width 24, 4×6, mlp 40, width 24]",
    "torch_transformer": "3 × [4×6, mlp 40, width 24]; 3 × [4×6, mlp 0, width 24, 4×6, mlp 40, width 24]",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="styles; all without one")
    names = parser.parse_args().names
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    known = known_rows() if names else {}
    rows, counts = [], Counter[str]()
    for name, make, shape in styles():
        row = known.get(name, ())
        if not names or name in names:
            row = judge(name, make, shape)
            print(f"| {' | '.join(row)} |", file=sys.stderr, flush=True)
        if row:
            rows.append(f"| {' | '.join(row)} |")
            counts[row[1]] += 1
    print(HEAD)
    print(
        f"{sum(counts.values())} styles: {', '.join(f'{count} {answer}' for answer, count in counts.most_common())}.\n"
    )
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    print("\n".join(rows))


def known_rows() -> dict[str, tuple[str, ...]]:
    """Return the rows of the page as it stands, by style."""
    rows = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines() if PAGE.exists() else ():
        cells = tuple(cell.strip() for cell in line.strip("|").split("|"))
        if line.startswith("|") and len(cells) == len(COLUMNS):
            rows[cells[0]] = cells
    return rows


def styles() -> Iterator[tuple[str, Callable[[], Any], str | None]]:
    """Yield (name, how it is made, its shape; None if no reading keeps its outputs)."""
    for make in own_modules.EXAMPLES:
        yield make.__name__, make, SPECIAL.get(make.__name__, further_styles.PLAIN)
    for make, heads, size, _, units, experts in own_styles.STYLES:
        mlp = f"{experts} experts" if experts else str(units)
        yield make.__name__, make, f"3 × [{heads}×{size}, mlp {mlp}"
    yield "pooled_maximum", own_styles.pooled_maximum, None
    for name, (make, shape) in further_styles.STYLES.items():
        yield name, make, shape
    for name, (make, shape) in LIBRARY_MODELS.items():
        yield name, make, shape


def judge(name: str, make: Callable[[], Any], shape: str | None) -> tuple[str, ...]:
    """Return the row of a style: its name, the answer, what was read or is in the way, and processor seconds."""
    torch.manual_seed(0)
    try:
        model, inputs = make()
    except ImportError as error:
        return name, "not installed", str(error)[:120].replace("|", "/"), ""
    model = model.eval()
    start = time.process_time()
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            read = str(leanify.read(model, inputs=inputs))
        answer, words = "", read
        stages = "; ".join(part.partition(": ")[2] or part for part in read.split("; "))
        said = [str(one.message) for one in caught]
        if shape is None:
            answer = "wrong"
        elif not stages.startswith(shape):
            answer, words = ("said", f"{read}: {said[0]}") if said else ("wrong", f"{read}, for {shape}")
    except LeanifyError as error:
        answer, words = ("refused" if shape else "right to refuse"), str(error)
    except Exception as error:
        answer, words = "wrong", f"{type(error).__name__}: {error}"
    seconds = time.process_time() - start
    if not answer:
        fault, answer = check(model, inputs)
        words = fault or words
    return name, answer, " ".join(words.split())[:330].replace("|", "/"), f"{seconds:.1f}"


def check(model: nn.Module, inputs: Any) -> tuple[str, str]:
    """Grow, redesign, build and run a model that was read: (what is wrong with that, the answer)."""
    call = inputs_by_name(model, inputs)
    try:
        wide = copy.deepcopy(model).double()
        big = leanify.grow(wide, factor=2, inputs=inputs)
        difference = max(
            float((a - b).abs().max()) for a, b in zip(outputs(wide, call), outputs(big, call), strict=True)
        )
        if difference > TOLERANCE:
            return f"growth changes the outputs by {difference:.0e}", "wrong"
        plan = leanify.redesign(model, inputs=inputs, target_params=0.7, multiple=4, min_mlp=0.1, min_depth=1)
        lean = plan.build()
        count = sum(parameter.numel() for parameter in lean.parameters())
        if count != plan.chosen.params:
            return f"a design has {count} parameters, and {plan.chosen.params} were said", "wrong"
        sum(x.double().square().mean() for x in outputs(lean.train(), call)).backward()
        again = leanify.read(lean, inputs=inputs)
        if list(again.layers()) != list(plan.chosen.architecture.layers()):
            return f"a design of {plan.chosen.architecture} is read as {again}", "wrong"
    except LeanifyError as error:
        return f"read, but: {error}", "said"
    except Exception as error:
        return f"{type(error).__name__}: {error}", "wrong"
    return "", "right"


def outputs(model: nn.Module, call: dict[str, Any]) -> list[torch.Tensor]:
    """Return the floating-point tensors that a model returns, in its own precision."""
    dtype = next(model.parameters()).dtype
    torch.manual_seed(1)
    given = {
        key: x.to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x for key, x in call.items()
    }
    if dtype == torch.float64:
        with InDouble():
            result = model(**given)
    else:
        result = model(**given)
    return [x for x in tensors(result) if x.is_floating_point()]


def tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        yield from tensors(list(value.values()))
    elif isinstance(value, (tuple, list)):
        for one in value:
            yield from tensors(one)


if __name__ == "__main__":
    main()
