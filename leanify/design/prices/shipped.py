"""Prices of common names, shipped with the package; ``python -m leanify.design.prices.shipped`` counts them again.

They are believed only under the versions of leanify, timm and transformers that they were made with, and the versions
of torch under which every one of them was counted alike (`made_with` in the file; counting them again under another
torch adds it). A test counts some of them in every run, and all of them in the long one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import leanify
from leanify.design.prices import cache as price_cache
from leanify.design.prices.price_list import PriceList
from leanify.design.search import search
from leanify.design.search.control import control
from leanify.design.search.design import designer
from leanify.design.search.grid import Request, turned_stages
from leanify.errors import BudgetError, LeanifyError
from leanify.runs import writing
from leanify.terminal import track

# The names that people type, by what they complete to; the full names are shipped too.
NAMES = {
    "timm": {
        "vit_base": "vit_base_patch16_224", "vit_small": "vit_small_patch16_224", "vit_tiny": "vit_tiny_patch16_224",
        "vit_large": "vit_large_patch16_224", "deit_base": "deit_base_patch16_224",
        "deit_small": "deit_small_patch16_224", "swin_tiny_patch4_window7": "swin_tiny_patch4_window7_224",
        "xcit_medium_24": "xcit_medium_24_p16_224", "hiera_huge": "hiera_huge_224",  # seconds to count
    },
    "hf": {
        name: name
        for name in (
            "bert", "gpt2", "llama", "roberta", "distilbert", "mistral", "qwen2", "qwen3", "t5", "opt",
            "deepseek_v3", "zamba2", "mixtral", "qwen3_moe",  # seconds to count
        )
    },
}  # fmt: skip
BUDGETS = (0.9, 0.75, 0.5)  # what is asked of each, so that the answers are there


def spellings(library: str, short: str, full: str) -> list[str]:
    """How a user may write the name."""
    return list(dict.fromkeys((short, full, f"{library}/{short}", f"{library}/{full}")))


def counted(source: str) -> dict[str, Any] | None:
    """The answers to `BUDGETS`, counted now; None for a model that cannot be priced."""
    answers = price_cache.Remembered(None, lambda: price_cache.live(price_cache.Asked(source)))
    try:
        prices = PriceList(answers, turned_stages(answers.facts.architecture, Request()))
        baseline = search.baseline(prices)
    except LeanifyError:
        return None
    design = designer(prices)
    design(baseline)
    for share in BUDGETS:
        request = Request(max_params=int(share * baseline.cost.params))
        try:
            found = search.search(prices, request, 3)
        except BudgetError:
            continue
        control(prices, found.chosen)
        design(found.chosen)
    return answers.answers.to_json()


def main(asked: Sequence[str]) -> None:
    """Count the models that are asked for, by their full names, or all; of others what is there is kept."""
    path = Path(leanify.__file__).parent / "design" / "prices" / price_cache.SHIPPED
    here = price_cache.versions()
    models, torches = _known(path, here)
    if asked and models and here["torch"] not in torches:
        raise SystemExit(
            f"the others were counted under torch {', '.join(torches)}, this is {here['torch']}: count all"
        )
    before = dict(models)
    for library, full in track([pair for pair in EVERY if not asked or pair[1] in asked], "counting", len(EVERY)):
        answers = counted(f"{library}/{full}")
        if answers is not None:
            models[f"{library}/{full}"] = json.loads(json.dumps(answers))
    alike = all(models[name] == before[name] for name in before)
    _write(path, {**here, "torch": sorted({*torches, here["torch"]}) if alike else [here["torch"]]}, models)
    print(f"{len(models)} models in {path}{'' if alike else '; some have other prices than before'}", file=sys.stderr)


EVERY = [(library, full) for library, names in NAMES.items() for full in names.values()]


def _known(path: Path, here: dict[str, str]) -> tuple[dict[str, Any], list[str]]:
    """What is there already, if it was made with these libraries, and the versions of torch that agree on it."""
    table = json.loads(path.read_text("utf-8")) if path.exists() else {"made_with": {"torch": []}, "models": {}}
    if {**table["made_with"], "torch": ""} != {**here, "torch": ""}:
        return {}, []
    return dict(table["models"]), list(table["made_with"]["torch"])


def _write(path: Path, made_with: dict[str, Any], models: dict[str, Any]) -> None:
    """A model a line."""
    names: dict[str, str] = {}
    for library, shorts in NAMES.items():
        for short, full in shorts.items():
            if f"{library}/{full}" in models:
                names |= dict.fromkeys(spellings(library, short, full), f"{library}/{full}")
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(models[name])}" for name in sorted(models))
    head = f'{{"made_with": {json.dumps(made_with)},\n"names": {json.dumps(names)},\n'
    writing.write(path, f'{head}"models": {{\n{lines}\n}}}}\n')


if __name__ == "__main__":
    main(sys.argv[1:])
