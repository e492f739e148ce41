"""Whole processes side by side: start-up, and the main job beside building the model that it redesigns."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.benchmark

LEANIFY = "import sys; sys.argv[0] = 'leanify'; from leanify.cli import main; main()"


def seconds(*arguments: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", *arguments], check=True, capture_output=True)
    return time.perf_counter() - start


def ratio(one: list[str], other: list[str], pairs: int) -> float:
    """The median of one/other over runs in turn, after a run of each to warm up."""
    seconds(*one), seconds(*other)
    return statistics.median(seconds(*one) / seconds(*other) for _ in range(pairs))


@pytest.mark.parametrize("arguments", [["--help"], ["redesign", "--help"]])
def test_help_starts_like_its_libraries(arguments: list[str]) -> None:
    measured = ratio([LEANIFY, *arguments], ["import typer, rich"], pairs=11)
    print(f"leanify {' '.join(arguments)}: {measured:.2f} times `import typer, rich`")
    assert measured <= 1.5


def test_a_redesign_takes_little_more_than_building_the_model() -> None:
    create = "import leanify, timm; timm.create_model('vit_base_patch16_224')"
    measured = ratio([LEANIFY, "redesign", "vit_base", "--target-params", "0.5"], [create], pairs=5)
    print(f"leanify redesign vit_base --target-params 0.5: {measured:.2f} times timm.create_model")
    assert measured <= 1.25
